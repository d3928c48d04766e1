// Servers in a sandbox, reached from outside as getHost names them, and by headers.
import assert from 'node:assert/strict'
import http from 'node:http'
import { Sandbox } from 'e2b'
import { check, run } from './check.mjs'

const server = new URL(process.env.E2B_SANDBOX_URL)
const made = []
const make = async (opts) => {
  const sbx = await Sandbox.create({ timeoutMs: 600_000, ...opts })
  made.push(sbx)
  return sbx
}

const until = async (what, cond, ms = 15_000) => {
  for (const end = Date.now() + ms; Date.now() < end; ) {
    if (await cond()) return
    await new Promise((r) => setTimeout(r, 100))
  }
  throw new Error(`waited in vain until ${what}`)
}

// get asks the server for what is at a host name, which need not resolve.
const get = (host, headers = {}, path = '/') =>
  new Promise((resolve, reject) => {
    const req = http.request({ host: server.hostname, port: server.port, path, headers: { ...(host && { Host: host }), ...headers } }, (res) => {
      let body = ''
      res.on('data', (d) => { body += d })
      res.on('end', () => resolve({ status: res.statusCode, body, json: () => JSON.parse(body) }))
    })
    req.on('error', reject)
    req.end()
  })

const byHeaders = (sbx, port) => ({ 'E2b-Sandbox-Id': sbx.sandboxId, 'E2b-Sandbox-Port': String(port) })

let sbx

check('a server is reached by its name and by headers', async () => {
  sbx = await make()
  await sbx.files.write('web/index.html', 'hello from inside')
  await sbx.commands.run('python -m http.server 8000', { background: true, cwd: '/home/user/web', timeoutMs: 0 })
  await sbx.commands.run('python -m http.server 8001 --bind 127.0.0.1', { background: true, cwd: '/home/user/web', timeoutMs: 0 })
  for (const port of [8000, 8001]) {
    await until(`port ${port} answers`, async () => (await get(sbx.getHost(port))).status === 200)
    assert.equal((await get(sbx.getHost(port))).body, 'hello from inside')
    assert.equal((await get(null, byHeaders(sbx, port))).body, 'hello from inside')
  }
})

check('a port that nothing listens on', async () => {
  const r = await get(sbx.getHost(3000))
  assert.equal(r.status, 502)
  assert.deepEqual(r.json(), { sandboxId: sbx.sandboxId, message: 'The sandbox is running but port is not open', port: 3000, code: 502 })
})

check('half an address', async () => {
  const r = await get(null, { 'E2b-Sandbox-Id': sbx.sandboxId })
  assert.equal(r.status, 400)
  assert.match(r.body, /missing header/)
})

check('private ports ask for the token, and the agent does not', async () => {
  const own = await make({ network: { allowPublicTraffic: false } })
  await own.commands.run('python -m http.server 8000', { background: true, timeoutMs: 0 })
  const token = { 'e2b-traffic-access-token': own.trafficAccessToken }
  await until('it answers', async () => (await get(own.getHost(8000), token)).status === 200)
  for (const headers of [{}, { 'e2b-traffic-access-token': 'wrong' }]) {
    const r = await get(own.getHost(8000), headers)
    assert.equal(r.status, 403)
    assert.equal(r.json().code, 403)
    assert.equal(r.json().sandboxId, own.sandboxId)
  }
  assert.equal((await own.commands.run('echo agent')).stdout, 'agent\n')
})

check('the host that a server is shown', async () => {
  const own = await make({ network: { maskRequestHost: 'custom.example.com:${PORT}' } })
  await own.files.write('echo.py', `
import http.server
class H(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.headers['Host'].encode())
http.server.HTTPServer(('', 8080), H).serve_forever()
`)
  await own.commands.run('python echo.py', { background: true, timeoutMs: 0 })
  await until('it answers', async () => (await get(own.getHost(8080))).status === 200)
  assert.equal((await get(own.getHost(8080))).body, 'custom.example.com:8080')
})

check('the agent by its host name', async () => {
  assert.equal((await get(sbx.getHost(49983), {}, '/health')).status, 204)
  const url = new URL(await sbx.downloadUrl('web/index.html'))
  assert.equal((await get(sbx.getHost(49983), {}, url.pathname + url.search)).body, 'hello from inside')
})

check('paths that look like the control API are the sandbox\'s', async () => {
  await sbx.files.write('web/sandboxes', 'a file')
  assert.equal((await get(sbx.getHost(8000), {}, '/sandboxes')).body, 'a file')
  assert.equal((await get(null, byHeaders(sbx, 8000), '/sandboxes')).body, 'a file')
})

check('ports of a sandbox that is not there', async () => {
  const host = sbx.getHost(8000)
  await sbx.kill()
  for (const r of [await get(host), await get(null, byHeaders(sbx, 8000)), await get(null, byHeaders(sbx, 49983), '/health')]) {
    assert.equal(r.status, 502)
    assert.deepEqual(r.json(), { sandboxId: sbx.sandboxId, message: 'The sandbox was not found', code: 502 })
  }
})

await run(() => Promise.all(made.map((s) => s.kill().catch(() => {}))))
