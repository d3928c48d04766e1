// The published command line.
import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises'
import { createRequire } from 'node:module'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { check, run } from './check.mjs'

const cli = join(dirname(createRequire(import.meta.url).resolve('@pandastack/sdk')), 'cli.js')
const env = { ...process.env, PANDASTACK_API_URL: process.env.PANDASTACK_API }

const pandastack = (args, input = '') =>
  new Promise((resolve, reject) => {
    const p = spawn(process.execPath, [cli, ...args], { env })
    let stdout = ''
    let stderr = ''
    p.stdout.on('data', (d) => (stdout += d))
    p.stderr.on('data', (d) => (stderr += d))
    p.on('error', reject)
    p.on('close', (code) => resolve({ code, stdout, stderr }))
    p.stdin.end(input)
  })

const json = async (...args) => {
  const r = await pandastack(args)
  assert.equal(r.code, 0, `${args.join(' ')}: ${r.stdout}${r.stderr}`)
  return JSON.parse(r.stdout)
}

const dir = await mkdtemp(join(tmpdir(), 'ps'))
const made = await json('sandbox', 'create', '--ttl', '900', '--metadata', 'a=1,b=2')
const id = made.id

check('create, list, get', async () => {
  assert.deepEqual([made.template, made.metadata], ['base', { a: '1', b: '2' }])
  assert.ok((await json('sandbox', 'list')).some((s) => s.id === id))
  assert.equal((await json('sb', 'get', id)).id, id)
})

check('exec passes on output and exit code', async () => {
  const r = await pandastack(['sandbox', 'exec', id, '--', 'echo', 'hello'])
  assert.match(r.stdout, /hello/)
  assert.equal(r.code, 0)
  assert.equal((await pandastack(['sandbox', 'exec', id, '--', 'sh', '-c', '"exit 5"'])).code, 5)
})

check('files', async () => {
  await writeFile(join(dir, 'up'), 'from here\n')
  for (const args of [['write', id, '--path', '/tmp/w', '--content', 'text'], ['upload', id, '--local', join(dir, 'up'), '--remote', '/tmp/u'], ['download', id, '--remote', '/tmp/u', '--local', join(dir, 'down')]]) {
    const r = await pandastack(['fs', ...args])
    assert.equal(r.code, 0, r.stdout + r.stderr)
  }
  assert.equal(await readFile(join(dir, 'down'), 'utf8'), 'from here\n')
  assert.match((await pandastack(['fs', 'read', id, '--path', '/tmp/w'])).stdout, /text/)
})

check('a shell', async () => {
  const r = await pandastack(['ssh', id], 'echo "sum $((40+2))"\nexit 3\n')
  assert.match(r.stdout, /sum 42/)
})

check('lifetime, pause, ports, logs, templates, tokens', async () => {
  assert.equal((await json('sandbox', 'lifecycle', id)).ttl_seconds, 900)
  await json('sandbox', 'set-ttl', id, '--ttl', '800')
  for (const args of [['sandbox', 'pause', id], ['sandbox', 'resume', id], ['sandbox', 'preview-urls', id], ['sandbox', 'logs', id], ['template', 'list'], ['template', 'builds'], ['token', 'list'], ['me']]) {
    const r = await pandastack(args)
    assert.equal(r.code, 0, `${args.join(' ')}: ${r.stdout}${r.stderr}`)
  }
})

check('what is not here fails in words', async () => {
  for (const args of [['sandbox', 'fork', id], ['sandbox', 'hibernate', id], ['snapshot', 'list'], ['database', 'list'], ['function', 'list'], ['app', 'list']]) {
    const r = await pandastack(args)
    assert.notEqual(r.code, 0, args.join(' '))
    assert.match(r.stdout + r.stderr, /support|not part of/, args.join(' '))
  }
})

check('delete', async () => {
  assert.equal((await pandastack(['sandbox', 'delete', id])).code, 0)
  assert.notEqual((await pandastack(['sandbox', 'get', id])).code, 0)
})

await run(() => rm(dir, { recursive: true }))
