// Templates and builds.
import assert from 'node:assert/strict'
import { Client, NotFoundError, ServerError, TemplateBuildError } from '@pandastack/sdk'
import { check, run } from './check.mjs'

const templates = new Client().templates
const image = process.env.TEST_IMAGE

check('list and get', async () => {
  assert.ok((await templates.list()).some((t) => t.name === 'base' && t.size_bytes > 0 && t.rootfs_path))
  assert.ok((await templates.get('base')).cpu >= 1)
  await assert.rejects(templates.get('nope'), NotFoundError)
})

check('an image in a registry becomes a template', async () => {
  const b = await templates.register({ name: 'conformance-js', imageRef: image, cpu: 1, memoryMb: 512 })
  assert.ok(b.id && b.name === 'conformance-js')
  const lines = []
  for await (const line of templates.buildLogs(b.id)) lines.push(line)
  assert.ok(lines.length > 0)
  const done = await templates.waitForBuild(b.id, { intervalMs: 100 })
  assert.ok(done.status === 'done' && done.bytes > 0 && done.ended_at)
  const again = []
  for await (const line of templates.buildLogs(b.id, { follow: false })) again.push(line)
  assert.deepEqual(again, lines)
  assert.equal((await templates.buildStatus(b.id)).status, 'done')
  assert.ok((await templates.builds()).some((x) => x.id === b.id))
  await templates.delete('conformance-js')
  await assert.rejects(templates.delete('conformance-js'), NotFoundError)
}, 300_000)

check('an image that is not there fails the build, in words', async () => {
  const b = await templates.register({ name: 'conformance-none-js', imageRef: image.replace(/\/[^/]*$/, '/nothing:1') })
  await assert.rejects(templates.waitForBuild(b.id, { intervalMs: 100 }), (e) => e instanceof TemplateBuildError && e.build.status === 'failed' && /does not have it/.test(e.build.error))
}, 120_000)

check('builds from files are refused', async () => {
  const image_ref = (e) => e instanceof ServerError && e.statusCode === 501 && /image_ref/.test(e.message)
  await assert.rejects(templates.buildFromDockerfile({ name: 'x', dockerfile: 'FROM scratch\nCOPY a/b.txt /\n', context: { 'a/b.txt': 'x' } }), image_ref)
  await assert.rejects(templates.build({ name: 'x', rootfs: new Uint8Array(1000) }), image_ref)
  await assert.rejects(templates.build({ name: 'x', rootfs: new Uint8Array(3 << 20) }), image_ref)
})

check('a build that is not there', async () => {
  await assert.rejects(templates.buildStatus('nope'), NotFoundError)
  await assert.rejects(templates.buildLogs('nope').next(), NotFoundError)
})

await run()
