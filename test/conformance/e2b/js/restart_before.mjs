// Leaves behind what restart_after.mjs finds again after a crash of the server.
import { writeFileSync } from 'node:fs'
import { Sandbox } from 'e2b'
import { check, run } from './check.mjs'

check('a sandbox with a file, a command and a terminal', async () => {
  const sbx = await Sandbox.create({ timeoutMs: 600_000, metadata: { restart: 'yes' } })
  await sbx.files.write('kept.txt', 'kept')
  const cmd = await sbx.commands.run('cat; exit 3', { background: true, stdin: true, timeoutMs: 0 })
  await cmd.sendStdin('before\n')
  await cmd.disconnect()
  const pty = await sbx.pty.create({ cols: 80, rows: 24, timeoutMs: 0, onData: () => {} })
  await pty.disconnect()
  const { endAt } = await sbx.getInfo()
  writeFileSync(process.env.STATE, JSON.stringify({
    id: sbx.sandboxId, cmd: cmd.pid, pty: pty.pid, endAt, url: await sbx.downloadUrl('kept.txt'),
  }))
})

await run()
