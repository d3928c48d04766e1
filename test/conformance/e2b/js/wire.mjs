// Calls that no class of the clients makes, as their command line, their dashboard and
// others make them: each member of a query and of a body has its effect.
import assert from 'node:assert/strict'
import { Sandbox } from 'e2b'
import { check, run } from './check.mjs'

const mark = `wire-${process.pid}`
const sbx = await Sandbox.create({ timeoutMs: 600_000, metadata: { mark }, envs: { FROM_CREATE: 'yes' } })
const base = process.env.E2B_API_URL

const until = async (what, cond, ms = 30_000) => {
  for (const end = Date.now() + ms; Date.now() < end; ) {
    if (await cond()) return
    await new Promise((r) => setTimeout(r, 100))
  }
  throw new Error(`waited in vain until ${what}`)
}

const answer = async (r) => {
  const text = await r.text()
  const type = r.headers.get('content-type') ?? ''
  const body = type.startsWith('application/json') ? JSON.parse(text) : text
  if (r.status >= 400 && !/\/\w+\.\w+\//.test(r.url)) assert.equal(body.code, r.status, text) // those of calls of the agent are words
  return { status: r.status, headers: r.headers, body }
}

// control makes a call of the control API.
const control = async (method, path, body) =>
  answer(await fetch(base + path, {
    method,
    headers: { 'X-API-KEY': process.env.E2B_API_KEY, ...(body && { 'Content-Type': 'application/json' }) },
    ...(body && { body: new Blob([JSON.stringify(body)]).stream(), duplex: 'half' }), // without a length
  }))

const { body: detail } = await control('GET', `/sandboxes/${sbx.sandboxId}`)

// agent makes a call of the sandbox's agent.
const agent = async (method, path, { headers, body } = {}) =>
  answer(await fetch(process.env.E2B_SANDBOX_URL + path, {
    method,
    body,
    headers: { 'E2b-Sandbox-Id': sbx.sandboxId, 'E2b-Sandbox-Port': '49983', 'X-Access-Token': detail.envdAccessToken, ...headers },
  }))

const id = sbx.sandboxId

check('logs, by each member of their query', async () => {
  for (const cmd of ['echo line 1', 'echo line 2', 'echo line 3', 'echo line err >&2']) await sbx.commands.run(cmd) // each has a time of its own
  const get = async (query = '') => (await control('GET', `/v2/sandboxes/${id}/logs${query}`)).body.logs
  await until('all lines are there', async () => (await get()).length >= 4)
  const all = await get()
  const texts = (l) => l.map((e) => e.message)
  assert.deepEqual(texts(all), ['line 1', 'line 2', 'line 3', 'line err'])
  assert.deepEqual(all.map((e) => e.level), ['info', 'info', 'info', 'error'])
  assert.deepEqual([all[0].fields.stream, all[3].fields.stream], ['stdout', 'stderr'])
  assert.deepEqual(texts(await get('?limit=2')), ['line 1', 'line 2'])
  assert.deepEqual(texts(await get('?direction=backward&limit=2')), ['line err', 'line 3'])
  assert.deepEqual(texts(await get('?level=error')), ['line err'])
  assert.deepEqual(texts(await get('?search=2')), ['line 2'])
  const at = Date.parse(all[2].timestamp)
  assert.deepEqual(texts(await get(`?cursor=${at}`)), ['line 3', 'line err'])
  assert.deepEqual(texts(await get(`?cursor=${at}&direction=backward`)), ['line 2', 'line 1'])
  const { body: v1 } = await control('GET', `/sandboxes/${id}/logs?start=${at}&limit=1`)
  assert.deepEqual([v1.logs.map((l) => l.line), texts(v1.logEntries)], [['line 3'], ['line 3']])
  for (const bad of ['?limit=1001', '?level=loud', '?direction=up', '?cursor=now']) {
    assert.equal((await control('GET', `/v2/sandboxes/${id}/logs${bad}`)).status, 400)
  }
})

check('metrics of several, and of a time', async () => {
  const { body } = await control('GET', `/sandboxes/metrics?sandbox_ids=${id},izzzzzzzzzzzzzzzzzzzz`)
  assert.deepEqual(Object.keys(body.sandboxes), [id])
  assert.ok(body.sandboxes[id].memTotal > 0)
  const get = async (query) => (await control('GET', `/sandboxes/${id}/metrics${query}`)).body
  await until('there are two', async () => (await get('')).length >= 2)
  const [first, second] = (await get('')).map((m) => m.timestampUnix)
  assert.ok(first < second)
  assert.deepEqual((await get(`?start=${first}&end=${first}`)).map((m) => m.timestampUnix), [first])
  assert.ok((await get(`?start=${second}`)).every((m) => m.timestampUnix >= second))
  assert.equal((await control('GET', `/sandboxes/${id}/metrics?start=x`)).status, 400)
})

check('a refresh moves the end away, and never nearer', async () => {
  const end = async () => Date.parse((await control('GET', `/sandboxes/${id}`)).body.endAt)
  const before = await end()
  assert.equal((await control('POST', `/sandboxes/${id}/refreshes`, { duration: 1 })).status, 204)
  assert.equal(await end(), before)
  assert.equal((await control('POST', `/sandboxes/${id}/refreshes`, { duration: 3600 })).status, 204)
  assert.ok(await end() > before + 1_000_000)
  assert.equal((await control('POST', `/sandboxes/${id}/refreshes`, { duration: 3601 })).status, 400)
  assert.equal((await control('POST', `/sandboxes/${id}/resume`, { timeout: 60 })).status, 409)
  assert.equal((await control('POST', `/sandboxes/${id}/resume`, { timeout: 60, autoPause: true })).status, 501)
})

check('lists of both versions, and pages that cannot be', async () => {
  const filter = `metadata=${encodeURIComponent(`mark=${mark}`)}`
  for (const version of ['', '/v2']) {
    const { body, headers } = await control('GET', `${version}/sandboxes?${filter}`)
    assert.deepEqual(body.map((s) => s.sandboxID), [id])
    assert.equal(headers.get('x-next-token'), null)
    assert.deepEqual((await control('GET', `${version}/sandboxes?metadata=mark%3Dnobody`)).body, [])
  }
  for (const bad of ['nextToken=made-up', 'limit=0', 'limit=101', 'state=asleep', 'order=up', 'startedAfter=now']) {
    assert.equal((await control('GET', `/v2/sandboxes?${bad}`)).status, 400, bad)
  }
})

check('a body on a DELETE, and errors of every kind have their code', async () => {
  for (const [method, path, body, status] of [
    ['DELETE', '/templates/tags', { name: 'base', tags: ['v1'] }, 501],
    ['POST', `/sandboxes/${id}/pause`, {}, 501],
    ['POST', `/sandboxes/${id}/pause`, { memory: true }, 501],
    ['POST', `/sandboxes/${id}/timeout`, {}, 400],
    ['POST', `/sandboxes/${id}/connect`, {}, 400],
    ['POST', '/v2/sandboxes', { templateID: 'ns/none:v1' }, 404],
    ['GET', '/templates/aliases/ns%2Fnone%3Av1', undefined, 404],
    ['POST', '/v3/templates', { name: 'x', cpuCount: 2, memoryMB: 1024 }, 501],
    ['GET', '/teams', undefined, 501],
  ]) {
    assert.equal((await control(method, path, body)).status, status, `${method} ${path}`) // answer looks at the code
  }
})

check('the agent: figures, variables, parts of files, files put together', async () => {
  const { body: m } = await agent('GET', '/metrics')
  assert.ok(m.cpu_count >= 1 && m.mem_total_mib >= 128 && m.mem_used > 0 && m.disk_total > 0 && m.ts > 1e9)
  assert.deepEqual((await agent('GET', '/envs')).body, { FROM_CREATE: 'yes' })
  await sbx.files.write('p1', '0123456789')
  await sbx.files.write('p2', 'abc')
  const part = await agent('GET', '/files?path=p1', { headers: { Range: 'bytes=2-4' } })
  assert.deepEqual([part.status, part.body], [206, '234'])
  const same = await agent('GET', '/files?path=p1', { headers: { 'If-Modified-Since': new Date(Date.now() + 60_000).toUTCString() } })
  assert.equal(same.status, 304)
  const made = await agent('POST', '/files/compose', {
    headers: { 'Content-Type': 'application/json' },
    body: JSON.stringify({ source_paths: ['p1', 'p2'], destination: '/srv/all.bin', username: 'user' }),
  })
  assert.deepEqual(made.body, { path: '/srv/all.bin', name: 'all.bin', type: 'file' })
  assert.equal(await sbx.files.read('/srv/all.bin'), '0123456789abc')
  assert.equal((await sbx.files.getInfo('/srv/all.bin')).owner, 'user')
  assert.equal(await sbx.files.exists('p1'), false)
  for (const path of ['/init', '/freeze', '/upgrade']) {
    assert.equal((await agent('POST', path, { headers: { 'Content-Type': 'application/json' }, body: '{}' })).status, 404)
  }
})

check('a process by its tag, and where a relative directory begins', async () => {
  const rpc = async (method, msg) => agent('POST', `/process.Process/${method}`, { headers: { 'Content-Type': 'application/json' }, body: JSON.stringify(msg) })
  const envelope = (msg) => {
    const text = Buffer.from(JSON.stringify(msg))
    const head = Buffer.alloc(5)
    head.writeUInt32BE(text.length, 1)
    return Buffer.concat([head, text])
  }
  await sbx.files.makeDir('sub')
  const stream = agent('POST', '/process.Process/Start', {
    headers: { 'Content-Type': 'application/connect+json', 'Connect-Protocol-Version': '1', 'Keepalive-Ping-Interval': '1' },
    body: envelope({ process: { cmd: '/bin/sh', args: ['-c', 'pwd; cat'], cwd: 'sub' }, tag: mark, stdin: true }),
  })
  await until('it is found by its tag', async () => (await rpc('SendInput', { process: { tag: mark }, input: { stdin: Buffer.from('in\n').toString('base64') } })).status === 200)
  await new Promise((r) => setTimeout(r, 1_500)) // in which it is silent
  assert.equal((await rpc('SendSignal', { process: { tag: mark }, signal: 'SIGNAL_SIGTERM' })).status, 200)
  const text = (await stream).body
  assert.match(text, new RegExp(Buffer.from('/home/user/sub\n').toString('base64')))
  assert.match(text, new RegExp(Buffer.from('in\n').toString('base64')))
  assert.match(text, /"keepalive":{}/)
  assert.match(text, /signal: terminated/)
})

await run(() => sbx.kill())
