// The life of sandboxes, keys, ports and preview addresses.
import assert from 'node:assert/strict'
import { AuthError, BadRequestError, Client, NotFoundError, Sandbox } from '@pandastack/sdk'
import { check, run } from './check.mjs'

const client = new Client()
const sbx = await Sandbox.create({ metadata: { team: 'a', 'secret.token': 'hidden' }, ttlSeconds: 900 })

check('what a create answers', async () => {
  assert.equal(sbx.template, 'base') // which answers to ubuntu-24.04, the name the client asks for
  assert.equal(sbx.status, 'running')
  assert.deepEqual(sbx.info.metadata, { team: 'a' })
  assert.match(sbx.info.created_at, /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$/)
  assert.ok(sbx.info.boot_ms > 0 && sbx.info.boot_mode)
  assert.ok(sbx.info.cpu >= 1 && sbx.info.memory_mb >= 512)
})

check('list and get', async () => {
  assert.ok((await Sandbox.list()).some((s) => s.id === sbx.id))
  assert.equal((await Sandbox.get(sbx.id)).info.metadata.team, 'a')
})

check('a command right after create works', async () => {
  const s = await Sandbox.create({ template: 'base', ttlSeconds: 60 })
  assert.equal((await s.exec('echo ready')).stdout, 'ready\n')
  await s.kill()
})

check('kill, and what comes after', async () => {
  const s = await Sandbox.create({ ttlSeconds: 60 })
  await s.kill()
  for (const call of [() => s.kill(), () => s.lifecycle(), () => s.exec('true'), () => Sandbox.get(s.id)]) {
    await assert.rejects(call, (e) => e instanceof NotFoundError && /ended/.test(e.message) && e.statusCode === 404)
  }
  await assert.rejects(Sandbox.get('00000000-0000-4000-8000-000000000000'), NotFoundError)
})

check('an async dispose kills', async () => {
  const s = await Sandbox.create({ ttlSeconds: 60 })
  await s[Symbol.asyncDispose]()
  await assert.rejects(Sandbox.get(s.id), NotFoundError)
})

check('a lifetime can be read and changed', async () => {
  const life = await sbx.lifecycle()
  assert.equal(life.ttl_seconds, 900)
  assert.equal(life.persistent, false)
  assert.ok(life.idle_seconds >= 0)
  assert.equal((await sbx.setTtl(1200)).ttl_seconds, 1200)
  assert.equal((await sbx.setPersistent(false)).persistent, false)
  await assert.rejects(sbx.setTtl(-1), BadRequestError)
})

check('pause and resume', async () => {
  const s = await Sandbox.create({ ttlSeconds: 120 })
  try {
    await s.filesystem.write('/tmp/kept', 'x')
    await s.pause()
    assert.equal((await Sandbox.get(s.id)).status, 'paused')
    await assert.rejects(s.exec('true'), (e) => e instanceof BadRequestError && e.statusCode === 409)
    await assert.rejects(s.filesystem.read('/tmp/kept'), (e) => e.statusCode === 409)
    await s.resume()
    assert.equal(await s.filesystem.read('/tmp/kept'), 'x')
  } finally {
    await s.kill()
  }
})

check('errors have the text, the status and the body', async () => {
  await assert.rejects(new Client({ apiKey: 'nonsense' }).me(), (e) => e instanceof AuthError && e.statusCode === 401)
  await assert.rejects(Sandbox.create({ template: 'nope' }), (e) => /nope/.test(e.message) && !e.message.startsWith('{'))
})

check('whose key it is, and keys of one\'s own', async () => {
  assert.ok((await client.me()).prefix)
  const made = await client.tokens.create('conformance')
  assert.ok(made.token.length >= 40 && made.prefix)
  assert.ok((await client.tokens.list()).some((t) => t.prefix === made.prefix && t.label === 'conformance' && !t.token))
  const other = new Client({ apiKey: made.token })
  assert.ok((await other.sandboxes.list()).some((s) => s.id === sbx.id))
  await assert.rejects(other.tokens.create('more'), (e) => e instanceof AuthError && e.statusCode === 403)
  await client.tokens.revoke(made.prefix)
  await assert.rejects(other.me(), AuthError)
  await assert.rejects(client.tokens.revoke(made.prefix), NotFoundError)
})

check('ports, and the addresses of previews', async () => {
  await sbx.filesystem.write('/tmp/web/hello.txt', 'from inside')
  await sbx.exec('cd /tmp/web && (python3 -m http.server 8765 >/dev/null 2>&1 &)')
  let urls = {}
  for (let i = 0; i < 100 && !urls[8765]; i++) urls = await sbx.previewUrls()
  assert.equal(urls[8765], sbx.previewUrl(8765))
  assert.throws(() => sbx.previewUrl(0), RangeError)
  client.previewHost = '.localhost:' + new URL(process.env.PANDASTACK_API).port
  const mine = Sandbox.fromInfo(sbx.info, client)
  assert.equal(mine.previewUrl(8765, 'http'), `http://8765-${sbx.id}.localhost:${new URL(process.env.PANDASTACK_API).port}`)
  const through = await fetch(`${process.env.PANDASTACK_API}/v1/sandboxes/${sbx.id}/proxy/8765/hello.txt`, {
    headers: { authorization: `Bearer ${process.env.PANDASTACK_API_KEY}` },
  })
  assert.equal(await through.text(), 'from inside')
})

await run(() => sbx.kill())
