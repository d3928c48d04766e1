// What is not served fails as its caller can understand: with its own class of error and a
// sentence that says what to do.
import assert from 'node:assert/strict'
import { Sandbox as Interpreter } from '@e2b/code-interpreter'
import { NotFoundError, Sandbox, SandboxError, Secret, Template, Volume } from 'e2b'
import { check, run } from './check.mjs'

const sbx = await Sandbox.create({ timeoutMs: 600_000 })

const refused = (says) => (e) => {
  assert.match(String(e?.message), /^501: .{30}/)
  assert.match(e.message, says)
  if (e instanceof SandboxError) assert.equal(e.statusCode, 501)
  return true
}

check('pause, fork and snapshots', async () => {
  await assert.rejects(sbx.pause(), refused(/paused/))
  await assert.rejects(sbx.fork(), refused(/forked/))
  await assert.rejects(sbx.createSnapshot(), refused(/snapshots/))
  await assert.rejects(Sandbox.listSnapshots().nextItems(), refused(/snapshots/))
  assert.equal(await Sandbox.deleteSnapshot('team/snap:default'), false)
  assert.equal(await sbx.isRunning(), true)
})

check('changes of the network', async () => {
  await assert.rejects(sbx.updateNetwork({ allowOut: ['1.1.1.1'] }), refused(/reach/))
})

check('what a create asks for and cannot have', async () => {
  for (const [opts, says] of [
    [{ lifecycle: { onTimeout: 'pause' } }, /autoPause/],
    [{ lifecycle: { onTimeout: 'pause', autoResume: true } }, /autoPause/],
    [{ network: { allowOut: ['1.1.1.1'] } }, /allowOut/],
    [{ network: { httpsPorts: [8443] } }, /httpsPorts/],
    [{ network: { egressProxy: { address: 'proxy.example:1080' } } }, /egressProxy/],
    [{ network: { rules: { 'api.example.com': [{ transform: { headers: { a: 'b' } } }] } } }, /rules/],
    [{ volumeMounts: { '/mnt': 'vol' } }, /volumeMounts/],
    [{ mcp: { github: {} } }, /mcp/],
  ]) {
    await assert.rejects(Sandbox.create('base', opts), refused(says))
  }
})

check('builds of templates', async () => {
  await assert.rejects(Template.build(Template().fromBaseImage().runCmd('true'), 'mine'), refused(/hutch template build/))
  await assert.rejects(Template.getTags('no-such').then(() => {}), /404/)
  assert.equal((await Template.getTags('base'))[0].tag, 'default')
  await assert.rejects(Template.assignTags('base:default', 'v2'), refused(/tags/))
})

check('volumes', async () => {
  await assert.rejects(Volume.create('vol'), refused(/volumes/))
  await assert.rejects(Volume.list(), refused(/volumes/))
})

check('secrets', async () => {
  await assert.rejects(Secret.create('name', 'value'), refused(/secrets/))
})

check('code in contexts', async () => {
  const code = await Interpreter.connect(sbx.sandboxId)
  await assert.rejects(code.runCode('1+1'), (e) => e instanceof NotFoundError && /^not supported here: .*code interpreter/.test(e.message))
  await assert.rejects(code.createCodeContext(), (e) => e instanceof NotFoundError && /code interpreter/.test(e.message))
  assert.equal((await code.commands.run('echo still here')).stdout, 'still here\n')
})

check('calls that there are not', async () => {
  const r = await fetch(`${process.env.E2B_API_URL}/v2/nothing`, { headers: { 'X-API-KEY': process.env.E2B_API_KEY } })
  assert.equal(r.status, 404)
  assert.equal((await r.json()).code, 404)
})

await run(() => sbx.kill())
