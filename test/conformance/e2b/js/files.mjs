// Files.
import assert from 'node:assert/strict'
import {
  AuthenticationError,
  FileNotFoundError,
  FileType,
  FilesystemEventType,
  InvalidArgumentError,
  NotEnoughSpaceError,
  Sandbox,
} from 'e2b'
import { check, run } from './check.mjs'

const sbx = await Sandbox.create({ timeoutMs: 900_000 })
const fs = sbx.files
const text = (n) => 'äö0123456789\n'.repeat(Math.ceil(n / 15)).slice(0, n)

const until = async (what, cond, ms = 10_000) => {
  for (const end = Date.now() + ms; Date.now() < end; ) {
    if (await cond()) return
    await new Promise((r) => setTimeout(r, 50))
  }
  throw new Error(`waited in vain until ${what}`)
}

check('write and read, with directories made', async () => {
  const info = await fs.write('deep/er/a.txt', 'content')
  assert.deepEqual({ ...info }, { name: 'a.txt', path: '/home/user/deep/er/a.txt', type: 'file', metadata: undefined })
  assert.equal(await fs.read('deep/er/a.txt'), 'content')
  assert.equal(await fs.read('/home/user/deep/er/a.txt'), 'content')
  assert.equal(await fs.read('~/deep/er/a.txt'), 'content')
  await fs.write('deep/er/a.txt', 'shorter')
  assert.equal(await fs.read('deep/er/a.txt'), 'shorter')
})

check('in each form', async () => {
  const bytes = new Uint8Array([0, 1, 255, 254, 10])
  await fs.write('bytes', bytes.buffer)
  assert.deepEqual(new Uint8Array(await fs.read('bytes', { format: 'bytes' })), bytes)
  assert.equal((await fs.read('bytes', { format: 'blob' })).size, 5)
  await fs.write('blob', new Blob(['of a blob']))
  assert.equal(await fs.read('blob'), 'of a blob')
  await fs.write('stream', new Blob([text(300_000)]).stream())
  const parts = []
  for await (const p of await fs.read('stream', { format: 'stream' })) parts.push(Buffer.from(p))
  assert.equal(Buffer.concat(parts).toString(), text(300_000))
})

check('an empty file in each form', async () => {
  await fs.write('empty', '')
  assert.equal(await fs.read('empty'), '')
  assert.equal((await fs.read('empty', { format: 'bytes' })).length, 0)
  assert.equal((await fs.read('empty', { format: 'blob' })).size, 0)
  for await (const p of await fs.read('empty', { format: 'stream' })) assert.equal(p.length, 0)
})

check('several at once', async () => {
  const files = [0, 1, 2].map((i) => ({ path: i === 2 ? `/tmp/multi/${i}.txt` : `multi/${i}.txt`, data: `no ${i}` }))
  const infos = await fs.write(files)
  assert.deepEqual(infos.map((i) => i.path), ['/home/user/multi/0.txt', '/home/user/multi/1.txt', '/tmp/multi/2.txt'])
  for (const f of files) assert.equal(await fs.read(f.path), f.data)
  assert.deepEqual(await fs.write([]), [])
})

check('as a stream of bytes, and packed', async () => {
  await fs.write('octets', text(100_000), { useOctetStream: true })
  assert.equal(await fs.read('octets'), text(100_000))
  await fs.write('packed', text(100_000), { gzip: true })
  assert.equal(await fs.read('packed'), text(100_000))
  assert.equal(await fs.read('packed', { gzip: true }), text(100_000))
  await fs.write([{ path: 'p1', data: 'one' }, { path: 'p2', data: 'two' }], { gzip: true })
  assert.equal((await fs.read('p1')) + (await fs.read('p2')), 'onetwo')
})

check('a large file', async () => {
  const big = new Uint8Array(64 << 20).fill(7)
  await fs.write('big', big.buffer, { useOctetStream: true, requestTimeoutMs: 0 })
  assert.equal((await fs.getInfo('big')).size, 64 << 20)
  const back = await fs.read('big', { format: 'bytes', requestTimeoutMs: 0 })
  assert.ok(Buffer.from(back).equals(Buffer.from(big)))
  await fs.remove('big')
})

check('names with special characters', async () => {
  for (const name of ['with space.txt', 'plus+and%20.txt', 'ünï"quote.txt', '日本.txt', "a&b=c?d#e.txt", 'back\\slash']) {
    const info = await fs.write(`names/${name}`, name)
    assert.equal(info.path, `/home/user/names/${name}`)
    assert.equal(await fs.read(`names/${name}`), name)
    assert.equal((await fs.getInfo(`names/${name}`)).name, name)
  }
})

check('what is not there', async () => {
  await assert.rejects(fs.read('no-such-file'), FileNotFoundError)
  await assert.rejects(fs.read('no-such-file', { format: 'stream' }), FileNotFoundError)
  await assert.rejects(fs.getInfo('no-such-file'), FileNotFoundError)
  await assert.rejects(fs.list('no-such-dir'), FileNotFoundError)
  await assert.rejects(fs.rename('no-such-file', 'x'), FileNotFoundError)
  assert.equal(await fs.exists('no-such-file'), false)
  await fs.remove('no-such-file')
})

check('what is a directory, or none', async () => {
  await fs.makeDir('dir')
  await fs.write('plain', 'x')
  await assert.rejects(fs.read('dir'), InvalidArgumentError)
  await assert.rejects(fs.write('dir', 'x'), InvalidArgumentError)
  await assert.rejects(fs.list('plain'), InvalidArgumentError)
  await assert.rejects(fs.makeDir('plain'), (e) => e instanceof InvalidArgumentError)
})

check('users', async () => {
  await fs.write('/root/secret', 'of root', { user: 'root' })
  assert.equal(await fs.read('secret', { user: 'root' }), 'of root')
  assert.equal((await fs.getInfo('/root/secret', { user: 'root' })).owner, 'root')
  await assert.rejects(fs.read('x', { user: 'nobody-here' }), AuthenticationError)
  await assert.rejects(fs.list('/', { user: 'nobody-here' }), AuthenticationError)
})

check('where the user may not write', async () => {
  const info = await fs.write('/app/src/main.py', 'print(1)')
  assert.equal(info.path, '/app/src/main.py')
  assert.equal(await fs.read('/app/src/main.py'), 'print(1)')
  const [dir, file] = [await fs.getInfo('/app/src'), await fs.getInfo('/app/src/main.py')]
  assert.deepEqual([dir.owner, dir.group, file.owner, file.group, file.mode], ['user', 'user', 'user', 'user', 0o644])
  await fs.write('/app/large', new Uint8Array(8 << 20).buffer, { useOctetStream: true })
  assert.equal(await fs.makeDir('/code/sub'), true)
  assert.equal((await fs.getInfo('/code/sub')).owner, 'user')
  await fs.rename('/app/src/main.py', '/srv/main.py')
  await fs.remove('/app')
  assert.equal(await fs.exists('/app'), false)
  assert.ok((await fs.read('/etc/shadow')).includes('root:'))
  assert.ok(Array.isArray(await fs.list('/root')))
})

check('info', async () => {
  await fs.write('info/f.txt', '12345')
  const f = await fs.getInfo('info/f.txt')
  assert.deepEqual([f.name, f.path, f.type, f.size, f.mode, f.permissions, f.owner, f.group], ['f.txt', '/home/user/info/f.txt', FileType.FILE, 5, 0o644, '-rw-r--r--', 'user', 'user'])
  assert.ok(Math.abs(f.modifiedTime - Date.now()) < 60_000)
  const d = await fs.getInfo('info')
  assert.deepEqual([d.type, d.mode, d.permissions, d.owner], [FileType.DIR, 0o755, 'drwxr-xr-x', 'user'])
  await sbx.commands.run('ln -s f.txt info/link; ln -s nowhere info/broken')
  const l = await fs.getInfo('info/link')
  assert.deepEqual([l.type, l.symlinkTarget, l.permissions[0]], [FileType.FILE, '/home/user/info/f.txt', 'L'])
  assert.equal((await fs.getInfo('info/broken')).symlinkTarget, '/home/user/info/broken')
  assert.equal(await fs.read('info/link'), '12345')
})

check('lists, to each depth, in order', async () => {
  for (const p of ['tree/b/c/d.txt', 'tree/b/a.txt', 'tree/z.txt', 'tree/a.txt']) await fs.write(p, '')
  const names = async (depth) => (await fs.list('tree', { depth })).map((e) => e.path.replace('/home/user/tree/', ''))
  assert.deepEqual(await names(undefined), ['a.txt', 'b', 'z.txt'])
  assert.deepEqual(await names(2), ['a.txt', 'b', 'b/a.txt', 'b/c', 'z.txt'])
  assert.deepEqual(await names(3), ['a.txt', 'b', 'b/a.txt', 'b/c', 'b/c/d.txt', 'z.txt'])
  const [first] = await fs.list('tree')
  assert.deepEqual([first.name, first.type, first.size], ['a.txt', FileType.FILE, 0])
  await assert.rejects(fs.list('tree', { depth: 0 }), InvalidArgumentError)
})

check('directories', async () => {
  assert.equal(await fs.makeDir('made/by/us'), true)
  assert.equal(await fs.makeDir('made/by/us'), false)
  assert.equal((await fs.getInfo('made/by')).type, FileType.DIR)
  await fs.write('made/by/us/f', 'x')
  await fs.remove('made')
  assert.equal(await fs.exists('made'), false)
})

check('rename', async () => {
  await fs.write('old.txt', 'moved')
  const info = await fs.rename('old.txt', 'new/place.txt')
  assert.deepEqual([info.name, info.path], ['place.txt', '/home/user/new/place.txt'])
  assert.equal(await fs.exists('old.txt'), false)
  assert.equal(await fs.read('new/place.txt'), 'moved')
})

check('metadata', async () => {
  const w = await fs.write('meta.txt', 'x', { metadata: { author: 'me', 'Kind-Of': 'note' } })
  assert.deepEqual(w.metadata, { author: 'me', 'kind-of': 'note' })
  assert.deepEqual((await fs.getInfo('meta.txt')).metadata, w.metadata)
  assert.deepEqual((await fs.list('.')).find((e) => e.name === 'meta.txt').metadata, w.metadata)
  assert.deepEqual((await fs.rename('meta.txt', 'meta2.txt')).metadata, w.metadata)
  await fs.write('meta2.txt', 'y', { metadata: { other: '1' }, useOctetStream: true })
  assert.deepEqual((await fs.getInfo('meta2.txt')).metadata, { other: '1' })
  await fs.write('meta2.txt', 'z')
  assert.equal((await fs.getInfo('meta2.txt')).metadata, undefined)
  await assert.rejects(fs.write('meta3.txt', 'x', { metadata: { big: 'v'.repeat(5000) } }), InvalidArgumentError)
})

check('a full disk is told as such', async () => {
  await sbx.commands.run('mkdir -p small && mount -t tmpfs -o size=1m,mode=0777 tmpfs small', { user: 'root', cwd: '/home/user' })
  await fs.write('small/fits', new Uint8Array(1000).buffer)
  for (const opts of [{}, { useOctetStream: true }]) {
    await assert.rejects(fs.write('small/more', new Uint8Array(4 << 20).buffer, opts), NotEnoughSpaceError)
  }
  assert.equal(await fs.exists('small/more'), false)
})

check('watch', async () => {
  await fs.makeDir('watched')
  const events = []
  const handle = await fs.watchDir('watched', (e) => events.push(e), { includeEntry: true })
  await fs.write('watched/f.txt', 'x')
  const has = (type, name) => events.some((e) => e.type === type && e.name === name)
  await until('it is created', () => has(FilesystemEventType.CREATE, 'f.txt') || has(FilesystemEventType.WRITE, 'f.txt') || has(FilesystemEventType.RENAME, 'f.txt'))
  await sbx.commands.run('echo y >> watched/f.txt; chmod 600 watched/f.txt; rm watched/f.txt')
  await until('it is removed', () => has(FilesystemEventType.REMOVE, 'f.txt'))
  assert.ok(has(FilesystemEventType.WRITE, 'f.txt'), 'no write')
  assert.ok(has(FilesystemEventType.CHMOD, 'f.txt'), 'no chmod')
  await sbx.commands.run('touch watched/g; mv watched/g watched/h')
  await until('it is renamed', () => has(FilesystemEventType.RENAME, 'g') && has(FilesystemEventType.CREATE, 'h'))
  const withEntry = events.find((e) => e.type === FilesystemEventType.CREATE && e.entry)
  assert.equal(withEntry.entry.type, FileType.FILE)
  await handle.stop()
  const n = events.length
  const others = []
  const other = await fs.watchDir('watched', (e) => others.push(e))
  await fs.write('watched/late.txt', 'x')
  await until('one who still watches is told', () => others.some((e) => e.name === 'late.txt'))
  assert.equal(events.length, n)
  await other.stop()
})

check('a link that a program made leads nobody further than its user', async () => {
  await fs.write('/steer/kept', 'root may', { user: 'root' })
  await sbx.commands.run('ln -s /steer/kept to-file && ln -s /steer to-dir && ln -s /etc/shadow to-shadow')
  for (const path of ['to-file', 'to-dir/new', 'to-dir/kept']) await assert.rejects(fs.write(path, 'steered'), undefined, path)
  await assert.rejects(fs.read('to-shadow'))
  await assert.rejects(fs.makeDir('to-dir/made'))
  assert.equal(await fs.read('/steer/kept'), 'root may')
  assert.deepEqual((await fs.list('/steer')).map((e) => e.name), ['kept'])
})

check('watch recursively, in directories made later too', async () => {
  await fs.makeDir('deepwatch')
  const names = new Set()
  const handle = await fs.watchDir('deepwatch', (e) => names.add(e.name), { recursive: true })
  await fs.makeDir('deepwatch/new/er')
  await until('the directory is seen', () => names.has('new'))
  await until('a file in it is seen', async () => {
    await sbx.commands.run('echo x >> deepwatch/new/er/f')
    return names.has('new/er/f')
  })
  await handle.stop()
})

check('watch what cannot be', async () => {
  await assert.rejects(fs.watchDir('no-such-dir', () => {}), FileNotFoundError)
  await fs.write('plain2', 'x')
  await assert.rejects(fs.watchDir('plain2', () => {}), InvalidArgumentError)
  const handle = await fs.watchDir('.', () => {}, { allowNetworkMounts: true })
  await handle.stop()
})

check('a watch ends at its time', async () => {
  let ended
  await fs.watchDir('.', () => {}, { timeoutMs: 500, onExit: (e) => { ended = { e } } })
  await until('it ends', () => ended)
})

check('signed URLs, without any header', async () => {
  await fs.write('signed/a+b.txt', 'signed')
  const get = async (url) => { const r = await fetch(url); return [r.status, await r.text()] }
  assert.deepEqual(await get(await sbx.downloadUrl('signed/a+b.txt')), [200, 'signed'])
  assert.deepEqual(await get(await sbx.downloadUrl('signed/a+b.txt', { useSignatureExpiration: 60_000 })), [200, 'signed'])
  await fs.write('/root/s', 'root only', { user: 'root' })
  assert.deepEqual(await get(await sbx.downloadUrl('/root/s', { user: 'root', useSignatureExpiration: 60 })), [200, 'root only'])
  const [status, body] = await get(await sbx.downloadUrl('signed/a+b.txt', { useSignatureExpiration: -120 }))
  assert.equal(status, 401)
  assert.deepEqual(JSON.parse(body), { code: 401, message: 'signature is already expired' })
  assert.equal((await get((await sbx.downloadUrl('signed/a+b.txt')).replace('a%2Bb', 'other')))[0], 401)
  const post = async (url, name) => {
    const form = new FormData()
    name === undefined ? form.append('file', 'uploaded') : form.append('file', new Blob(['uploaded']), name)
    const r = await fetch(url, { method: 'POST', body: form })
    return [r.status, await r.json()]
  }
  assert.deepEqual(await post(await sbx.uploadUrl('signed/up.txt')), [200, [{ name: 'up.txt', path: '/home/user/signed/up.txt', type: 'file' }]])
  assert.equal(await fs.read('signed/up.txt'), 'uploaded')
  assert.equal((await post(await sbx.uploadUrl('signed/up2.txt', { useSignatureExpiration: 60 }), 'x.txt'))[0], 200)
  assert.equal(await fs.read('signed/up2.txt'), 'uploaded')
  assert.equal((await post(await sbx.uploadUrl('signed/up.txt', { useSignatureExpiration: -120 })))[0], 401)
})

check('a sandbox\'s token is asked for, and comes with connect', async () => {
  const headers = { 'E2b-Sandbox-Id': sbx.sandboxId, 'E2b-Sandbox-Port': '49983' }
  const url = `${process.env.E2B_SANDBOX_URL}/files?path=signed/a%2Bb.txt`
  assert.equal((await fetch(url, { headers })).status, 401)
  assert.equal((await fetch(url, { headers: { ...headers, 'X-Access-Token': 'wrong' } })).status, 401)
  assert.equal(await (await Sandbox.connect(sbx.sandboxId)).files.read('signed/a+b.txt'), 'signed')
})

await run(() => sbx.kill())
