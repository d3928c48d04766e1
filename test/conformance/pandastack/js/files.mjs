// Files and logs.
import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { BadRequestError, NotFoundError, Sandbox } from '@pandastack/sdk'
import { check, run } from './check.mjs'

const sbx = await Sandbox.create({ ttlSeconds: 900 })
const fs = sbx.filesystem

check('what is written is read', async () => {
  assert.deepEqual(await fs.write('/tmp/text', 'héllo\n'), { path: '/tmp/text', bytes: 7 })
  assert.equal(await fs.read('/tmp/text'), 'héllo\n')
  assert.equal((await fs.write('/tmp/bytes', new Uint8Array([0, 255, 128]))).bytes, 3)
  assert.equal((await sbx.exec('xxd -p /tmp/bytes || od -An -tx1 /tmp/bytes')).stdout.replaceAll(' ', '').trim(), '00ff80')
  assert.equal((await fs.write('/tmp/empty', '')).bytes, 0)
  assert.equal(await fs.read('/tmp/empty'), '')
})

check('parents are made, and names may be anything', async () => {
  for (const name of ['/tmp/deep/er/x', '/tmp/a b+c%20d&e=f?g#h', '/tmp/ünï/ço dé.txt']) {
    await fs.write(name, name)
    assert.equal(await fs.read(name), name)
    assert.equal((await fs.stat(name)).name, name.split('/').pop())
  }
})

check('up and down', async () => {
  const dir = await mkdtemp(join(tmpdir(), 'ps'))
  try {
    await writeFile(join(dir, 'one'), 'up\n')
    await fs.upload(join(dir, 'one'), '/tmp/up')
    await fs.download('/tmp/up', join(dir, 'new', 'two'))
    assert.equal(await readFile(join(dir, 'new', 'two'), 'utf8'), 'up\n')
  } finally {
    await rm(dir, { recursive: true })
  }
})

check('a file over the limit that others have', async () => {
  const data = randomBytes(1 << 20)
  const big = Buffer.concat(Array.from({ length: 40 }, () => data))
  assert.equal((await fs.write('/tmp/large', big)).bytes, big.length)
  assert.equal((await sbx.exec('stat -c %s /tmp/large')).stdout.trim(), String(big.length))
})

check('list, stat, exists, walk', async () => {
  await sbx.exec('mkdir -p /tmp/w/a/b /tmp/none; ln -s /tmp/w /tmp/w/a/loop; echo 12345 > /tmp/w/f; touch -d @1700000000 /tmp/w/f')
  assert.deepEqual(await fs.list('/tmp/none'), [])
  const f = (await fs.list('/tmp/w')).find((e) => e.name === 'f')
  assert.deepEqual(f, { name: 'f', path: '/tmp/w/f', is_dir: false, size: 6, mode: 'f', mtime: 1700000000 })
  assert.equal((await fs.stat('/tmp/w/a/loop')).is_dir, false)
  assert.deepEqual([await fs.exists('/tmp/w/f'), await fs.exists('/tmp/w/g')], [true, false])
  const walked = []
  for await (const { dir } of fs.walk('/tmp/w')) walked.push(dir)
  assert.deepEqual(walked, ['/tmp/w', '/tmp/w/a', '/tmp/w/a/b'])
  assert.ok((await fs.list()).some((e) => e.name === 'etc'))
})

check('what is not there, or is something else', async () => {
  for (const call of [() => fs.read('/nope'), () => fs.stat('/nope'), () => fs.list('/nope')]) await assert.rejects(call, NotFoundError)
  await assert.rejects(fs.read('/tmp'), BadRequestError)
  await assert.rejects(fs.list('/tmp/text'), BadRequestError)
})

check('logs', async () => {
  const s = await Sandbox.create({ ttlSeconds: 120 })
  await s.exec('echo "  indented"; echo \'{"error": "mine"}\'; echo é')
  const want = ['  indented', '{"error": "mine"}', 'é']
  const lines = []
  for await (const line of s.logs()) lines.push(line)
  assert.deepEqual(lines, want)
  const followed = []
  for await (const line of s.logs({ follow: true })) {
    followed.push(line)
    if (followed.length === 3) await s.exec('echo more')
    if (line === 'more') await s.kill()
  }
  assert.deepEqual(followed, [...want, 'more'])
})

await run(() => sbx.kill())
