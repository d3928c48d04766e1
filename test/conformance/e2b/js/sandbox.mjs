// The life of sandboxes.
import assert from 'node:assert/strict'
import {
  AuthenticationError,
  Sandbox,
  SandboxError,
  SandboxNotFoundError,
  Template,
  TimeoutError,
} from 'e2b'
import { check, run } from './check.mjs'

const mark = `js-${process.pid}`
const made = []
const make = async (...args) => {
  const sbx = await Sandbox.create(...args)
  made.push(sbx)
  return sbx
}
const near = (date, seconds) =>
  Math.abs(date.getTime() - Date.now() - seconds * 1000) < 5000

let shared

check('create without anything makes one of base', async () => {
  shared = await make()
  assert.match(shared.sandboxId, /^i[a-z0-9]{20}$/)
  assert.equal(await shared.isRunning(), true)
  const info = await shared.getInfo()
  assert.equal(info.templateId, 'base')
  assert.equal(info.name, 'base')
  assert.equal(info.state, 'running')
  assert.ok(near(info.endAt, 300), `it ends at ${info.endAt}`)
  assert.ok(info.startedAt <= new Date())
  assert.ok(info.cpuCount >= 1 && info.memoryMB >= 128)
  assert.equal(info.envdVersion, '0.6.13')
})

check('create with metadata, variables and a timeout', async () => {
  const sbx = await make('base', { metadata: { mark, 'a b': 'c&d=e%' }, envs: { GREETING: 'hello' }, timeoutMs: 90_500 })
  const info = await sbx.getInfo()
  assert.deepEqual(info.metadata, { mark, 'a b': 'c&d=e%' })
  assert.ok(near(info.endAt, 91), 'milliseconds are rounded up to seconds')
  assert.equal((await sbx.commands.run('echo $GREETING')).stdout, 'hello\n')
  assert.equal((await shared.commands.run('echo "[$GREETING]"')).stdout, '[]\n')
})

check('a template with its tag', async () => {
  const sbx = await make('base:default')
  assert.equal((await sbx.getInfo()).templateId, 'base')
  await sbx.kill()
})

check('an unknown template is told as such', async () => {
  await assert.rejects(Sandbox.create('no-such-template'), (e) => e instanceof SandboxError && e.statusCode === 404 && /template 'no-such-template' not found/.test(e.message))
})

check('a template that exists, and one that does not', async () => {
  assert.equal(await Template.exists('base'), true)
  assert.equal(await Template.exists('some/thing:v1'), false)
})

check('a timeout that cannot be', async () => {
  await assert.rejects(Sandbox.create({ timeoutMs: 25 * 3600_000 }), (e) => e instanceof SandboxError && e.statusCode === 400 && /timeout/.test(e.message))
})

check('a wrong key', async () => {
  await assert.rejects(Sandbox.create({ apiKey: 'e2b_' + '0'.repeat(40) }), AuthenticationError)
  await assert.rejects(Sandbox.list({ apiKey: 'nonsense' }).nextItems(), AuthenticationError)
})

check('lists, by state, metadata, template and start', async () => {
  const page = await Sandbox.list({ query: { metadata: { mark, 'a b': 'c&d=e%' } } }).nextItems()
  assert.equal(page.length, 1)
  assert.equal(page[0].sandboxId, made[1].sandboxId)
  assert.deepEqual(page[0].metadata, { mark, 'a b': 'c&d=e%' })
  const all = await Sandbox.list({ query: { state: ['running', 'paused'] } }).nextItems()
  assert.ok(all.some((s) => s.sandboxId === shared.sandboxId))
  assert.deepEqual(await Sandbox.list({ query: { state: ['paused'] } }).nextItems(), [])
  assert.deepEqual(await Sandbox.list({ query: { template: 'nothing' } }).nextItems(), [])
  assert.ok((await Sandbox.list({ query: { template: 'base' } }).nextItems()).length >= 2)
  const { startedAt } = await made[1].getInfo()
  const since = await Sandbox.list({ query: { startedAfter: startedAt } }).nextItems()
  assert.ok(since.some((s) => s.sandboxId === made[1].sandboxId), 'its own start is not found')
  assert.ok(!since.some((s) => s.sandboxId === shared.sandboxId), 'one from before is found')
  assert.deepEqual(await Sandbox.list({ query: { startedAfter: new Date(Date.now() + 60_000) } }).nextItems(), [])
})

check('pages, both ways', async () => {
  const set = { set: mark }
  const ids = []
  for (let i = 0; i < 3; i++) ids.push((await make({ metadata: set })).sandboxId)
  for (const order of ['asc', 'desc']) {
    const pager = Sandbox.list({ query: { metadata: set }, limit: 2, order })
    const got = []
    let pages = 0
    while (pager.hasNext) {
      got.push(...(await pager.nextItems()).map((s) => s.sandboxId))
      pages++
    }
    assert.deepEqual(got, order === 'asc' ? ids : [...ids].reverse())
    assert.equal(pages, 2)
  }
  for (const id of ids) assert.equal(await Sandbox.kill(id), true)
})

check('setTimeout moves the end, both ways', async () => {
  await shared.setTimeout(600_000)
  assert.ok(near((await shared.getInfo()).endAt, 600))
  await shared.setTimeout(200_000)
  assert.ok(near((await shared.getInfo()).endAt, 200))
})

check('connect leaves the end, or moves it further away', async () => {
  const before = (await shared.getInfo()).endAt
  const again = await Sandbox.connect(shared.sandboxId, { timeoutMs: 10_000 })
  assert.equal((await again.getInfo()).endAt.getTime(), before.getTime())
  await Sandbox.connect(shared.sandboxId, { timeoutMs: 900_000 })
  assert.ok(near((await shared.getInfo()).endAt, 900))
  assert.equal((await again.commands.run('echo there')).stdout, 'there\n')
})

check('an end in five seconds is one', async () => {
  const sbx = await make({ timeoutMs: 5_000 })
  await new Promise((r) => setTimeout(r, 6_500))
  assert.equal(await sbx.isRunning(), false)
  await assert.rejects(sbx.getInfo(), SandboxNotFoundError)
})

check('kill, twice, and what is left afterwards', async () => {
  const sbx = await make({ metadata: { killed: mark } })
  assert.equal(await sbx.kill(), true)
  assert.equal(await sbx.isRunning(), false)
  assert.equal(await Sandbox.kill(sbx.sandboxId), false)
  assert.equal(await Sandbox.kill('nonexistingsandbox'), false)
  assert.deepEqual(await Sandbox.list({ query: { metadata: { killed: mark } } }).nextItems(), [])
  await assert.rejects(sbx.getInfo(), SandboxNotFoundError)
  await assert.rejects(sbx.setTimeout(5000), SandboxNotFoundError)
  await assert.rejects(Sandbox.connect(sbx.sandboxId), SandboxNotFoundError)
  await assert.rejects(sbx.getMetrics(), SandboxNotFoundError)
  await assert.rejects(sbx.commands.run('true'), SandboxNotFoundError)
  await assert.rejects(sbx.files.read('x'), TimeoutError)
  await assert.rejects(sbx.files.list('/'), TimeoutError)
})

check('a kill while a command runs is told as such', async () => {
  const sbx = await make()
  const cmd = await sbx.commands.run('sleep 60', { background: true, timeoutMs: 0 })
  const wait = cmd.wait().then(() => null, (e) => e)
  await sbx.kill()
  const e = await wait
  assert.ok(e instanceof TimeoutError, `got ${e}`)
  assert.match(e.message, /killed or reached its end of life/)
})

check('an end in time while a command runs is told as such', async () => {
  const sbx = await make({ timeoutMs: 3_000 })
  const e = await sbx.commands.run('sleep 60').then(() => null, (e) => e)
  assert.ok(e instanceof TimeoutError, `got ${e}`)
  assert.match(e.message, /killed or reached its end of life/)
})

check('metrics come, and are of the time asked for', async () => {
  let metrics = []
  for (let i = 0; i < 30 && metrics.length === 0; i++) {
    await new Promise((r) => setTimeout(r, 1000))
    metrics = await shared.getMetrics()
  }
  assert.ok(metrics.length > 0)
  const m = metrics[0]
  assert.ok(m.cpuCount >= 1 && m.memTotal > 0 && m.diskTotal > 0 && m.memUsed > 0)
  assert.ok(m.timestamp instanceof Date)
  assert.deepEqual(await shared.getMetrics({ start: new Date(0), end: new Date(1000) }), [])
  const { startedAt } = await shared.getInfo()
  assert.ok((await shared.getMetrics({ start: startedAt, end: new Date() })).length > 0)
})

check('tokens and names of ports', async () => {
  const sbx = await make({ network: { allowPublicTraffic: false, maskRequestHost: 'localhost:${PORT}' } })
  assert.ok(sbx.trafficAccessToken)
  assert.match(sbx.getHost(8000), new RegExp(`^8000-${sbx.sandboxId}\\.`))
  const info = await sbx.getInfo()
  assert.equal(info.network?.allowPublicTraffic, false)
  assert.equal(info.network?.maskRequestHost, 'localhost:${PORT}')
  assert.equal(shared.trafficAccessToken, undefined)
  await sbx.kill()
})

check('what asks for what holds already is taken', async () => {
  const sbx = await make({ allowInternetAccess: false, network: { denyOut: ['0.0.0.0/0'] }, lifecycle: { onTimeout: 'kill', autoResume: false } })
  assert.equal(await sbx.isRunning(), true)
  await sbx.kill()
})

await run(() => Promise.all(made.map((s) => s.kill().catch(() => {}))))
