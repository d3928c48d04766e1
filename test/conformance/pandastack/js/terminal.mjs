// Terminals and commands over WebSockets, as the command lines and a browser use them.
import assert from 'node:assert/strict'
import { Sandbox } from '@pandastack/sdk'
import WebSocket from 'ws'
import { check, run } from './check.mjs'

const sbx = await Sandbox.create({ ttlSeconds: 900 })
const base = process.env.PANDASTACK_API.replace(/^http/, 'ws')
const key = process.env.PANDASTACK_API_KEY

// A line that a program writes begins behind what the shell sends when it stops editing: a
// carriage return.

/** A WebSocket whose messages can be waited for. */
class Socket {
  output = ''
  texts = []
  constructor(path, headers = { authorization: `Bearer ${key}` }) {
    this.ws = new WebSocket(base + path, { headers })
    this.closed = new Promise((resolve) => this.ws.on('close', (code) => resolve(code)))
    this.ws.on('upgrade', (res) => (this.execId = res.headers['x-exec-id']))
    this.ws.on('message', (data, binary) => (binary ? (this.output += data) : this.texts.push(JSON.parse(data))))
    this.open = new Promise((resolve, reject) => this.ws.on('open', resolve).on('error', reject))
  }
  send(data) {
    this.ws.send(data)
  }
  /** Waits until what was written so far fits. */
  async until(fits) {
    for (let i = 0; i < 1000; i++) {
      if (fits(this)) return this
      await new Promise((resolve) => setImmediate(() => setTimeout(resolve, 10)))
    }
    assert.fail(`waited in vain; output ${JSON.stringify(this.output)}, texts ${JSON.stringify(this.texts)}`)
  }
}

const terminal = async (query = '', path = 'ssh') => {
  const s = new Socket(`/v1/sandboxes/${sbx.id}/${path}?${query}`)
  await s.open
  return s
}

for (const path of ['ssh', 'exec/pty']) {
  check(`a shell at /${path}`, async () => {
    const t = await terminal('rows=31&cols=97', path)
    t.send(Buffer.from('stty size; tty; echo "term=$TERM é"\n'))
    await t.until((s) => /31 97[^]*\/dev\/pts\/\d+[^]*term=xterm-256color é/.test(s.output))
    t.send(JSON.stringify({ resize: { rows: 40, cols: 120 } }))
    t.send(Buffer.from('stty size\n'))
    await t.until((s) => s.output.includes('40 120'))
    t.send(JSON.stringify({ stdin: 'echo by-text\n' }))
    await t.until((s) => s.output.includes('\rby-text'))
    t.send(Buffer.from('sleep 9753\n'))
    for (let i = 0; (await sbx.exec("pgrep -f 'sleep 975[3]'")).exit_code !== 0; i++) assert.ok(i < 200, 'it does not start')
    t.send(Buffer.from('\x03'))
    await t.until((s) => /sleep 9753[^]*:~# $/.test(s.output))
    t.send(Buffer.from('exit 7\n'))
    await t.until((s) => s.texts.length > 0)
    assert.deepEqual(t.texts, [{ exit: 7 }])
    assert.equal(await t.closed, 1000)
  })
}

check('a key in the query, as a browser sends it', async () => {
  const t = new Socket(`/v1/sandboxes/${sbx.id}/ssh?access_token=${key}`, { origin: 'https://a.example' })
  await t.open
  t.send(Buffer.from('echo in-a-browser\n'))
  await t.until((s) => s.output.includes('\rin-a-browser'))
  t.ws.close()
  const none = new Socket(`/v1/sandboxes/${sbx.id}/ssh`, {})
  await assert.rejects(none.open, /401/)
})

check('what was left is found again, and what nobody comes back to ends', async () => {
  const t = await terminal('keep_seconds=30')
  t.send(Buffer.from('left=something; echo ready\n'))
  await t.until((s) => s.output.includes('\rready'))
  t.ws.terminate()
  await t.closed
  const again = new Socket(`/v1/execs/${t.execId}/terminal?replay=4096`)
  await again.open
  await again.until((s) => s.output.includes('\rready'))
  again.send(Buffer.from('echo found=$left\n'))
  await again.until((s) => s.output.includes('found=something'))
  const short = await terminal('keep_seconds=0&cmd=' + encodeURIComponent('exec sleep 12345'))
  assert.equal((await sbx.exec("pgrep -cf 'sleep 1234[5]'")).stdout, '1\n')
  short.ws.close()
  for (let i = 0; (await sbx.exec("pgrep -f 'sleep 1234[5]'")).exit_code === 0; i++) assert.ok(i < 200, 'it lives on')
  again.ws.close()
})

check('a program that writes without end waits for its reader', async () => {
  const t = await terminal('cmd=' + encodeURIComponent('seq 1 300000'))
  await t.until((s) => s.texts.length > 0)
  const lines = t.output.trim().split('\r\n')
  assert.equal(lines.length, 300000)
  assert.equal(lines.at(-1), '300000')
})

check('the end of the sandbox ends the conversation', async () => {
  const s = await Sandbox.create({ ttlSeconds: 60 })
  const t = new Socket(`/v1/sandboxes/${s.id}/ssh`)
  await t.open
  t.send(Buffer.from('echo up\n'))
  await t.until((x) => x.output.includes('\rup'))
  await s.kill()
  await t.closed
  assert.ok(t.texts.length === 1 && ('exit' in t.texts[0] || t.texts[0].error), JSON.stringify(t.texts))
})

check('commands over one socket, with cancel', async () => {
  const s = new Socket(`/v1/sandboxes/${sbx.id}/exec/ws`)
  await s.open
  s.send(JSON.stringify({ id: 'slow', cmd: 'sleep 4321' }))
  s.send(JSON.stringify({ id: 'a', cmd: 'echo out; echo err >&2; exit 3', timeout_seconds: 10 }))
  s.send(JSON.stringify({ id: 'b', cmd: 'sleep 60', timeout_seconds: 1 }))
  await s.until((x) => x.texts.filter((m) => 'exit' in m).length === 2)
  const of = (id) => s.texts.filter((m) => m.id === id)
  assert.deepEqual(of('a').filter((m) => m.stream).map((m) => [m.stream, m.data]).sort(), [['stderr', 'err\n'], ['stdout', 'out\n']])
  assert.equal(of('a').at(-1).exit, 3)
  assert.equal(of('b').at(-1).exit, 124)
  s.send(JSON.stringify({ id: 'slow', cancel: true }))
  await s.until((x) => x.texts.some((m) => m.id === 'slow' && 'exit' in m))
  assert.equal((await sbx.exec("pgrep -f 'sleep 432[1]'")).exit_code, 1)
  s.send(JSON.stringify({ id: 'none', cancel: true }))
  await s.until((x) => x.texts.some((m) => m.id === 'none' && m.error))
  s.ws.close()
})

await run(() => sbx.kill())
