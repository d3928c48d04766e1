// Finds again what restart_before.mjs has left behind.
import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import { Sandbox } from 'e2b'
import { check, run } from './check.mjs'

const state = JSON.parse(readFileSync(process.env.STATE, 'utf8'))
let sbx

check('the sandbox is where it was', async () => {
  const page = await Sandbox.list({ query: { metadata: { restart: 'yes' } } }).nextItems()
  assert.deepEqual(page.map((s) => s.sandboxId), [state.id])
  sbx = await Sandbox.connect(state.id, { timeoutMs: 10_000 })
  assert.equal((await sbx.getInfo()).endAt.toISOString(), state.endAt)
  assert.equal(await sbx.files.read('kept.txt'), 'kept')
})

check('a URL that was signed before', async () => {
  assert.equal(await (await fetch(state.url)).text(), 'kept')
})

check('the command goes on', async () => {
  assert.ok((await sbx.commands.list()).some((p) => p.pid === state.cmd))
  const cmd = await sbx.commands.connect(state.cmd)
  await cmd.sendStdin('after\n')
  await cmd.closeStdin()
  const e = await cmd.wait().then(() => null, (e) => e)
  assert.deepEqual([e.exitCode, e.stdout], [3, 'after\n'])
})

check('the terminal goes on', async () => {
  let text = ''
  const pty = await sbx.pty.connect(state.pty, { onData: (d) => { text += new TextDecoder().decode(d) } })
  await sbx.pty.resize(pty.pid, { cols: 90, rows: 30 })
  await sbx.pty.sendInput(pty.pid, new TextEncoder().encode('echo "sum:$((40+2)) cols:$(tput cols)"; exit\n'))
  assert.equal((await pty.wait()).exitCode, 0)
  assert.match(text, /sum:42 cols:90/)
})

await run(() => sbx?.kill())
