// What is cut short: clients that are killed in the middle of a call, each a process of its
// own, and calls in whose middle their sandbox ends.
import assert from 'node:assert/strict'
import { fork } from 'node:child_process'
import { fileURLToPath } from 'node:url'
import { FilesystemEventType, Sandbox, SandboxError, TimeoutError } from 'e2b'
import { check, run } from './check.mjs'

const mark = `killed-${process.pid}`

// What a client does until it is killed. It tells its parent when that may be.
const acts = {
  async create() {
    process.send('now')
    await Sandbox.create({ metadata: { mark, by: process.argv[3] }, timeoutMs: 600_000 })
    await new Promise(() => {})
  },
  async command() {
    const sbx = await Sandbox.connect(process.argv[3])
    let tell
    const begun = new Promise((r) => { tell = r })
    const cmd = await sbx.commands.run('echo begun; while [ ! -e /tmp/go ]; do sleep 0.05; done; echo went on; exit 3', {
      timeoutMs: 0,
      background: true,
      onStdout: tell,
    })
    await begun
    process.send({ pid: cmd.pid })
    await cmd.wait()
  },
  async terminal() {
    const sbx = await Sandbox.connect(process.argv[3])
    const pty = await sbx.pty.create({ cols: 80, rows: 24, timeoutMs: 0, onData: () => {} })
    process.send({ pid: pty.pid })
    await pty.wait()
  },
  async upload() {
    const sbx = await Sandbox.connect(process.argv[3])
    let sent = 0
    const endless = new ReadableStream({
      async pull(c) {
        c.enqueue(new Uint8Array(1 << 20))
        if (++sent === 24) process.send('now')
        if (sent > 24) await new Promise(() => {})
      },
    })
    await sbx.files.write(process.argv[4], endless, { useOctetStream: true, requestTimeoutMs: 0 })
  },
  async watch() {
    const sbx = await Sandbox.connect(process.argv[3])
    await sbx.files.watchDir('.', () => {}, { timeoutMs: 0 })
    process.send('now')
    await new Promise(() => {})
  },
}

if (acts[process.argv[2]]) {
  await acts[process.argv[2]]()
  process.exit(0)
}

const after = (ms) => new Promise((r) => setTimeout(r, ms))

// killed starts a client and kills it once it says so and when is over. It returns what the
// client said.
const killed = (args, when = () => after(0)) =>
  new Promise((resolve, reject) => {
    const child = fork(fileURLToPath(import.meta.url), args)
    let said
    child.on('message', (m) => {
      if (said || (m.pid === undefined && m !== 'now')) return
      said = m
      when().finally(() => child.kill('SIGKILL')).catch(reject)
    })
    child.on('exit', (code, signal) => (signal === 'SIGKILL' && said ? resolve(said) : reject(new Error(`the client ended by itself: ${code} ${signal}`))))
  })

const until = async (what, cond, ms = 20_000) => {
  for (const end = Date.now() + ms; Date.now() < end; ) {
    if (await cond()) return
    await new Promise((r) => setTimeout(r, 50))
  }
  throw new Error(`waited in vain until ${what}`)
}

const made = []
const make = async () => {
  const sbx = await Sandbox.create({ timeoutMs: 600_000 })
  made.push(sbx)
  return sbx
}
const sbx = await make()
const run1 = async (cmd) => (await sbx.commands.run(cmd)).stdout

check('a client killed in a create leaves a sandbox that can be used, or none', async () => {
  const by = `${mark}-create`
  const list = () => Sandbox.list({ query: { metadata: { by } } }).nextItems()
  // One is there for certain when its client is killed; the others may be at any point.
  await killed(['create', by], () => until('the sandbox is there', async () => (await list()).length > 0))
  for (const wait of [0, 20, 60, 200]) await killed(['create', by], () => after(wait))
  // What has begun goes on: nothing more comes once there has been nothing for three seconds.
  let left = await list()
  for (let was = -1; was !== left.length; left = await list()) {
    was = left.length
    await after(3_000)
  }
  assert.ok(left.length >= 1 && left.length <= 5, `${left.length} are left`)
  for (const { sandboxId } of left) {
    const s = await Sandbox.connect(sandboxId)
    assert.equal((await s.commands.run('echo alive')).stdout, 'alive\n')
    assert.equal(await s.kill(), true)
    assert.equal(await s.isRunning(), false)
  }
}, 180_000)

check('a client killed in a command ends nothing', async () => {
  const { pid } = await killed(['command', sbx.sandboxId])
  assert.ok((await sbx.commands.list()).some((p) => p.pid === pid))
  const again = await sbx.commands.connect(pid)
  await sbx.commands.run('touch /tmp/go')
  const e = await again.wait().then(() => null, (e) => e)
  assert.deepEqual([e.exitCode, e.stdout], [3, 'went on\n'])
  assert.ok(!(await sbx.commands.list()).some((p) => p.pid === pid))
}, 180_000)

check('a client killed at a terminal can come back to it', async () => {
  const { pid } = await killed(['terminal', sbx.sandboxId])
  let text = ''
  const pty = await sbx.pty.connect(pid, { onData: (d) => { text += new TextDecoder().decode(d) } })
  await sbx.pty.sendInput(pid, new TextEncoder().encode('echo "sum:$((40+2))"; exit\n'))
  assert.equal((await pty.wait()).exitCode, 0)
  assert.match(text, /sum:42/)
}, 180_000)

check('a client killed in an upload leaves the old file, or none', async () => {
  await run1('mkdir up && echo old >up/old')
  await killed(['upload', sbx.sandboxId, 'up/old'])
  await killed(['upload', sbx.sandboxId, 'up/new'])
  await until('nothing is left of it', async () => (await run1('ls -A up')) === 'old\n')
  assert.equal(await sbx.files.read('up/old'), 'old\n')
}, 180_000)

check('a client killed at a watch disturbs no other', async () => {
  const seen = []
  const handle = await sbx.files.watchDir('.', (e) => seen.push(e))
  await killed(['watch', sbx.sandboxId])
  await sbx.files.write('after', 'x')
  await until('the other still sees', () => seen.some((e) => e.name === 'after' && e.type !== FilesystemEventType.REMOVE))
  await handle.stop()
}, 180_000)

// ends checks what a call says in whose middle the sandbox ended.
const ends = (e) => {
  assert.ok(e instanceof TimeoutError, `got ${e?.stack ?? e}`)
  assert.match(e.message, /sandbox/i)
}

check('a download that the end of the sandbox cuts short is told as such', async () => {
  const own = await make()
  await own.commands.run('head -c 300000000 /dev/zero > big')
  const body = await own.files.read('big', { format: 'stream', requestTimeoutMs: 0 })
  const reader = body.getReader()
  assert.ok((await reader.read()).value.length > 0)
  await own.kill()
  let n = 0
  const e = await (async () => {
    for (;;) {
      const { done, value } = await reader.read()
      if (done) return null
      n += value.length
    }
  })().catch((e) => e)
  assert.ok(e, `it came to an end after ${n} bytes as if it were whole`)
  assert.equal(await own.isRunning(), false)
})

check('an upload that the end of the sandbox cuts short is told as such', async () => {
  const own = await make()
  let go
  const begun = new Promise((r) => { go = r })
  let sent = 0
  const endless = new ReadableStream({
    async pull(c) {
      if (++sent === 16) go()
      if (sent > 16) await new Promise((r) => setTimeout(r, 50))
      c.enqueue(new Uint8Array(1 << 18))
    },
  })
  const e = own.files.write('f', endless, { useOctetStream: true, requestTimeoutMs: 0 }).then(() => null, (e) => e)
  await begun
  await own.kill()
  assert.ok(await e instanceof Error)
  assert.equal(await own.isRunning(), false)
})

check('a watch that the end of the sandbox cuts short is told as such', async () => {
  const own = await make()
  let tell
  const exit = new Promise((r) => { tell = r })
  await own.files.watchDir('.', () => {}, { timeoutMs: 0, onExit: tell })
  await own.kill()
  ends(await exit)
})

check('a terminal that the end of the sandbox cuts short is told as such', async () => {
  const own = await make()
  const pty = await own.pty.create({ cols: 80, rows: 24, timeoutMs: 0, onData: () => {} })
  const wait = pty.wait().then(() => null, (e) => e)
  await own.kill()
  ends(await wait)
  await assert.rejects(own.commands.list(), (e) => e instanceof TimeoutError || e instanceof SandboxError)
})

await run(() => Promise.all(made.map((s) => s.kill().catch(() => {}))))
