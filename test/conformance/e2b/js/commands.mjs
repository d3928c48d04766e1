// Commands and terminals.
import assert from 'node:assert/strict'
import {
  CommandExitError,
  InvalidArgumentError,
  AuthenticationError,
  NotFoundError,
  Sandbox,
  SandboxError,
  TimeoutError,
} from 'e2b'
import { check, run } from './check.mjs'

const sbx = await Sandbox.create({ timeoutMs: 900_000, envs: { FROM_CREATE: 'yes' } })

const until = async (what, cond, ms = 10_000) => {
  for (const end = Date.now() + ms; Date.now() < end; ) {
    if (await cond()) return
    await new Promise((r) => setTimeout(r, 50))
  }
  throw new Error(`waited in vain until ${what}`)
}

check('output, exit code, and both streams', async () => {
  const r = await sbx.commands.run('echo out; echo err >&2')
  assert.deepEqual([r.stdout, r.stderr, r.exitCode, r.error], ['out\n', 'err\n', 0, undefined])
})

check('callbacks get the output as it comes', async () => {
  const seen = []
  const began = Date.now()
  let first
  await sbx.commands.run('echo 1; sleep 1; echo 2 >&2', {
    onStdout: (s) => { first ??= Date.now(); seen.push(['out', s]) },
    onStderr: (s) => { seen.push(['err', s]) },
  })
  assert.deepEqual(seen, [['out', '1\n'], ['err', '2\n']])
  assert.ok(Date.now() - first > 800, `the first came ${first - began} ms after the start`)
})

check('special characters and many lines', async () => {
  const text = `!@#$%^&*()_+{}[]|\\:;"'<>,.?/~ äöü 日本 🦊`
  assert.equal((await sbx.commands.run(`cat <<'END'\n${text}\nline 2\n\nEND`)).stdout, `${text}\nline 2\n\n`)
})

check('a failing command', async () => {
  const e = await sbx.commands.run('echo out; echo err >&2; exit 3').then(() => null, (e) => e)
  assert.ok(e instanceof CommandExitError)
  assert.deepEqual([e.exitCode, e.stdout, e.stderr, e.error], [3, 'out\n', 'err\n', 'exit status 3'])
})

check('a program that is not there', async () => {
  const e = await sbx.commands.run('no-such-program').then(() => null, (e) => e)
  assert.ok(e instanceof CommandExitError)
  assert.equal(e.exitCode, 127)
})

check('much output is all there', async () => {
  const r = await sbx.commands.run('head -c 20000000 /dev/zero | tr "\\0" x')
  assert.equal(r.stdout.length, 20_000_000)
})

check('who, where, and with which variables', async () => {
  assert.equal((await sbx.commands.run('whoami; pwd; echo $HOME $USER')).stdout, 'user\n/home/user\n/home/user user\n')
  assert.equal((await sbx.commands.run('whoami; pwd', { user: 'root' })).stdout, 'root\n/root\n')
  assert.equal((await sbx.commands.run('pwd', { cwd: '/tmp' })).stdout, '/tmp\n')
  assert.equal((await sbx.commands.run('echo $FROM_CREATE $A', { envs: { A: 'of the call' } })).stdout, 'yes of the call\n')
  assert.equal((await sbx.commands.run('echo "[$A]"')).stdout, '[]\n')
  assert.equal((await sbx.commands.run('echo $FROM_CREATE', { envs: { FROM_CREATE: 'no' } })).stdout, 'no\n')
})

check('a directory and a user that are not there', async () => {
  await assert.rejects(sbx.commands.run('pwd', { cwd: '/no/such' }), (e) => e instanceof InvalidArgumentError && /cwd '\/no\/such' does not exist/.test(e.message))
  await assert.rejects(sbx.commands.run('pwd', { user: 'nobody-here' }), (e) => e instanceof AuthenticationError && /invalid username: 'nobody-here'/.test(e.message))
})

check('a timeout ends the command', async () => {
  const began = Date.now()
  await assert.rejects(sbx.commands.run('touch /tmp/began; sleep 77', { timeoutMs: 1_500 }), TimeoutError)
  assert.ok(Date.now() - began < 10_000)
  await until('the process is gone', async () => (await sbx.commands.run('pgrep -fx "sleep 77" || echo none')).stdout === 'none\n')
})

check('in the background: wait, and kill', async () => {
  const cmd = await sbx.commands.run('sleep 0.5; echo done', { background: true })
  assert.ok(cmd.pid > 0)
  assert.equal((await cmd.wait()).stdout, 'done\n')
  const long = await sbx.commands.run('sleep 60', { background: true })
  assert.equal(await long.kill(), true)
  const e = await long.wait().then(() => null, (e) => e)
  assert.ok(e instanceof CommandExitError)
  assert.deepEqual([e.exitCode, e.error], [-1, 'signal: killed'])
  assert.equal((await sbx.commands.run(`kill -0 ${long.pid} 2>/dev/null; echo $?`)).stdout, '1\n')
  assert.equal(await sbx.commands.kill(long.pid), false)
  assert.equal(await sbx.commands.kill(999_999), false)
})

check('kill reaches what a command has started', async () => {
  const cmd = await sbx.commands.run('setsid sleep 88 & sleep 89', { background: true })
  await until('both run', async () => (await sbx.commands.run('pgrep -fx "sleep 8[89]" | wc -l')).stdout === '2\n')
  await cmd.kill()
  assert.equal((await sbx.commands.run('pgrep -fx "sleep 8[89]" || echo none')).stdout, 'none\n')
})

check('list shows what runs', async () => {
  const a = await sbx.commands.run('sleep 30', { background: true })
  const b = await sbx.commands.run('sleep 31', { background: true, cwd: '/tmp' })
  const all = await sbx.commands.list()
  const got = all.find((p) => p.pid === b.pid)
  assert.ok(all.some((p) => p.pid === a.pid))
  assert.deepEqual([got.cmd, got.args, got.cwd], ['/bin/bash', ['-l', '-c', 'sleep 31'], '/tmp'])
  await a.kill()
  await b.kill()
  assert.ok(!(await sbx.commands.list()).some((p) => p.pid === a.pid))
})

check('connect to a command that runs', async () => {
  const cmd = await sbx.commands.run('sleep 1; echo late; exit 4', { background: true })
  await cmd.disconnect()
  const again = await sbx.commands.connect(cmd.pid)
  assert.equal(again.pid, cmd.pid)
  const e = await again.wait().then(() => null, (e) => e)
  assert.deepEqual([e.exitCode, e.stdout], [4, 'late\n'])
  const late = await sbx.commands.connect(cmd.pid) // its end is still known
  assert.equal((await late.wait().then(() => null, (e) => e)).exitCode, 4)
  await assert.rejects(sbx.commands.connect(999_999), NotFoundError)
})

check('two who follow one command', async () => {
  const cmd = await sbx.commands.run('sleep 1; for i in 1 2 3; do echo $i; done', { background: true })
  const [a, b] = await Promise.all([sbx.commands.connect(cmd.pid), sbx.commands.connect(cmd.pid)])
  assert.equal((await a.wait()).stdout, '1\n2\n3\n')
  assert.equal((await b.wait()).stdout, '1\n2\n3\n')
  assert.equal((await cmd.wait()).stdout, '1\n2\n3\n')
})

check('leaving does not end the command', async () => {
  const cmd = await sbx.commands.run('sleep 1; echo went on > /tmp/went-on', { background: true })
  await cmd.disconnect()
  await until('it has gone on', async () => (await sbx.commands.run('cat /tmp/went-on 2>/dev/null || true')).stdout === 'went on\n')
})

check('stdin', async () => {
  const cmd = await sbx.commands.run('cat', { background: true, stdin: true })
  await sbx.commands.sendStdin(cmd.pid, 'Hello,\n')
  await sbx.commands.sendStdin(cmd.pid, '')
  await cmd.sendStdin('wörld 🦊\n')
  await sbx.commands.sendStdin(cmd.pid, new Uint8Array([0x41, 0x42]))
  await cmd.closeStdin()
  await cmd.closeStdin()
  assert.equal((await cmd.wait()).stdout, 'Hello,\nwörld 🦊\nAB')
})

check('stdin of a command without one, and of none', async () => {
  const cmd = await sbx.commands.run('sleep 20', { background: true })
  await assert.rejects(cmd.sendStdin('x'), SandboxError)
  await cmd.kill()
  await assert.rejects(sbx.commands.sendStdin(999_999, 'x'), NotFoundError)
  assert.equal((await sbx.commands.run('cat; echo end')).stdout, 'end\n')
})

check('a child that keeps the output open does not hold the end back for long', async () => {
  const began = Date.now()
  const r = await sbx.commands.run('sleep 40 & echo started')
  assert.equal(r.stdout, 'started\n')
  assert.ok(Date.now() - began < 20_000, `it took ${Date.now() - began} ms`)
  await sbx.commands.run('pkill -fx "sleep 40"')
})

check('many commands at once', async () => {
  const all = await Promise.all(Array.from({ length: 20 }, (_, i) => sbx.commands.run(`sleep 0.2; echo ${i}`)))
  assert.deepEqual(all.map((r) => r.stdout), Array.from({ length: 20 }, (_, i) => `${i}\n`))
})

const terminal = async (opts = {}) => {
  let text = ''
  const pty = await sbx.pty.create({ cols: 80, rows: 24, onData: (d) => { text += new TextDecoder().decode(d) }, ...opts })
  const type = (s) => sbx.pty.sendInput(pty.pid, new TextEncoder().encode(s))
  return { pty, type, seen: (re) => until(`${re} is shown in ${JSON.stringify(text.slice(-400))}`, () => re.test(text)) }
}

check('a terminal has its size, and is resized', async () => {
  const { pty, type, seen } = await terminal()
  await type('echo "cols=$(tput cols) term=$TERM"\n')
  await seen(/cols=80 term=xterm-256color/)
  await sbx.pty.resize(pty.pid, { cols: 100, rows: 30 })
  await type('echo "cols=$(tput cols)"\n')
  await seen(/cols=100/)
  await type('exit\n')
  assert.equal((await pty.wait()).exitCode, 0)
})

check('a terminal with a user, a directory and variables', async () => {
  const { pty, type, seen } = await terminal({ user: 'root', cwd: '/tmp', envs: { MY: 'own' } })
  await type('echo "$(whoami):$(pwd):$MY:$(tty)"\n')
  await seen(/root:\/tmp:own:\/dev\/pts\/\d+/)
  assert.equal(await sbx.pty.kill(pty.pid), true)
  await pty.wait().catch(() => {})
  assert.equal(await sbx.pty.kill(pty.pid), false)
})

check('a key that interrupts', async () => {
  const { pty, type, seen } = await terminal()
  await type('sleep 100; echo "code:$?"\n')
  await until('it sleeps', async () => (await sbx.commands.run('pgrep -fx "sleep 100" || true')).stdout !== '')
  await type('\x03')
  await type('echo "still:$((40+2))"\n')
  await seen(/still:42/)
  await sbx.pty.kill(pty.pid)
  await pty.wait().catch(() => {})
})

check('connect to a terminal', async () => {
  const { pty, type } = await terminal()
  await pty.disconnect()
  let text = ''
  const again = await sbx.pty.connect(pty.pid, { onData: (d) => { text += new TextDecoder().decode(d) } })
  await type('echo "sum:$((20+3))"\n')
  await until('it is shown', () => /sum:23/.test(text))
  await type('exit 5\n')
  const e = await again.wait().then(() => null, (e) => e)
  assert.equal(e.exitCode, 5)
})

check('git, as its helper uses it', async () => {
  await sbx.git.init('/home/user/repo')
  await sbx.files.write('/home/user/repo/a.txt', 'a')
  await sbx.git.add('/home/user/repo')
  await sbx.git.configureUser('A', 'a@example.com')
  await sbx.git.commit('/home/user/repo', 'first')
  const status = await sbx.git.status('/home/user/repo')
  assert.equal(status.isClean, true)
})

await run(() => sbx.kill())
