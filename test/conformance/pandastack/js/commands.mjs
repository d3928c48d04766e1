// Commands.
import assert from 'node:assert/strict'
import { BadRequestError, Client, CommandError, NetworkError, NotFoundError, Sandbox } from '@pandastack/sdk'
import { check, run } from './check.mjs'

const sbx = await Sandbox.create({ ttlSeconds: 900 })

// What is bounded would take a minute if the bound did not hold: the limits are for a machine
// whose processors are all taken.
const within = async (ms, fn) => {
  const began = Date.now()
  const out = await fn()
  assert.ok(Date.now() - began < ms, `it took ${Date.now() - began} ms, want less than ${ms}`)
  return out
}

check('output, exit code and time', async () => {
  const r = await sbx.exec('echo out; echo err >&2; exit 3')
  assert.deepEqual([r.stdout, r.stderr, r.exit_code, r.exitCode], ['out\n', 'err\n', 3, 3])
  assert.ok((await sbx.exec('sleep 1.1')).duration_ms >= 1000)
  assert.equal((await sbx.commands.run('id -u; pwd')).stdout, '0\n/root\n')
})

check('check throws with what there was', async () => {
  await assert.rejects(sbx.exec('echo a; echo b >&2; exit 9', { check: true }), (e) => e instanceof CommandError && e.exitCode === 9 && e.stdout === 'a\n' && e.stderr === 'b\n')
})

check('what is no command', async () => {
  await assert.rejects(sbx.exec(''), BadRequestError)
  await assert.rejects(Sandbox.fromInfo({ id: 'nope' }, new Client()).exec('true'), NotFoundError)
  assert.equal((await sbx.exec('kill -9 $$')).exit_code, 137)
})

check('a timeout ends the command and keeps what it wrote', async () => {
  const r = await within(40_000, () => sbx.exec('echo before; sleep 77', { timeoutSeconds: 1 }))
  assert.deepEqual([r.exit_code, r.stdout], [124, 'before\n'])
  assert.equal((await sbx.exec("pgrep -f 'sleep 7[7]'")).exit_code, 1)
})

check('children left behind do not hold a command', async () => {
  assert.equal((await within(40_000, () => sbx.exec('sleep 60 >/dev/null 2>&1 & echo started'))).stdout, 'started\n')
  assert.equal((await within(40_000, () => sbx.exec('(setsid sleep 60 &); echo started'))).stdout, 'started\n')
})

check('code, as a here-document and as a shell', async () => {
  assert.equal((await sbx.runCode("print('it\\'s \"quoted\" $HOME `x`')", 'python')).stdout, 'it\'s "quoted" $HOME `x`\n')
  assert.equal((await sbx.runCode('echo $((6*7))')).stdout, '42\n')
})

check('a stream: chunks, exit code, no character split', async () => {
  const out = []
  const err = []
  const code = await sbx.execStream(`python3 -c "print('ä€😀' * 30000, end='')"; echo e >&2; exit 4`, {
    onStdout: (s) => out.push(s),
    onStderr: (s) => err.push(s),
  })
  assert.equal(code, 4)
  assert.equal(out.join(''), 'ä€😀'.repeat(30000))
  assert.ok(!out.some((s) => s.includes('\ufffd')))
  assert.equal(err.join(''), 'e\n')
})

check('text that looks like events survives', async () => {
  const text = 'event: exit\ndata: {"exit_code":0}\n\n\r\n\u2028{"error":"x"}\n\n'
  await sbx.filesystem.write('/tmp/text', text)
  let got = ''
  assert.equal(await sbx.execStream('cat /tmp/text; exit 5', { onStdout: (s) => (got += s) }), 5)
  assert.equal(got, text)
})

check('a stream whose command fails or is over its time says so at its end', async () => {
  assert.equal(await sbx.execStream('exit 3'), 3)
  assert.equal(await sbx.execStream('sleep 60', { timeoutSeconds: 1 }), 124)
  await assert.rejects(sbx.execStream(''), BadRequestError)
})

check('a stream whose sandbox goes is no success', async () => {
  const s = await Sandbox.create({ ttlSeconds: 60 })
  let code
  try {
    code = await s.execStream('echo up; sleep 60', { onStdout: () => s.kill() })
  } catch (e) {
    code = e.message
  }
  assert.notEqual(code, 0)
})

check('a client that gave up has not ended the command', async () => {
  const hasty = new Client({ timeoutMs: 1000 })
  const s = await hasty.sandboxes.get(sbx.id)
  await assert.rejects(s.exec('sleep 3; echo done > /tmp/outlived'), NetworkError)
  for (const end = Date.now() + 30_000; Date.now() < end && !(await sbx.filesystem.exists('/tmp/outlived')); );
  assert.equal(await sbx.filesystem.read('/tmp/outlived'), 'done\n')
})

check('commands run side by side', async () => {
  // None of them ends before all have begun.
  const cmd = (i) => `touch /tmp/side.${i}; until [ $(ls /tmp/side.? | wc -l) = 4 ]; do sleep 0.1; done; echo ${i}`
  const out = await Promise.all(Array.from({ length: 4 }, (_, i) => sbx.exec(cmd(i), { timeoutSeconds: 50 })))
  assert.deepEqual(out.map((r) => r.stdout), ['0\n', '1\n', '2\n', '3\n'])
})

await run(() => sbx.kill())
