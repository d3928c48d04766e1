// What this server does not have fails at once, as a caller can understand.
import assert from 'node:assert/strict'
import { Client, Sandbox, ServerError } from '@pandastack/sdk'
import { check, run } from './check.mjs'

const client = new Client()
const sbx = await Sandbox.create({ ttlSeconds: 300 })

const calls = {
  'snapshots and forks': [
    () => sbx.snapshot(),
    () => sbx.fork(),
    () => sbx.fork({ metadata: { a: 'b' } }),
    () => sbx.forkTree({ count: 2 }),
    () => sbx.promote(),
    () => sbx.explore(['true']),
    () => Sandbox.create({ fromSnapshot: 'x' }),
    () => client.snapshots.list(),
    () => client.snapshots.get('x'),
    () => client.snapshots.delete('x'),
  ],
  'hibernation and persistence': [() => sbx.hibernate(), () => sbx.wake(), () => sbx.setPersistent(true), () => Sandbox.create({ persistent: true })],
  'code contexts': [() => sbx.createCodeContext()],
  volumes: [() => client.volumes.list(), () => client.volumes.create('v', 100), () => client.volumes.get('v'), () => client.volumes.delete('v')],
  'databases, apps, functions and schedules, lists too': [
    () => client.databases.list(),
    () => client.databases.get('x'),
    () => client.apps.list(),
    () => client.apps.get('x'),
    () => client.functions.list(),
    () => client.functions.get('x'),
    () => client.schedules.list(),
    () => client.schedules.get('x'),
  ],
}

for (const [name, list] of Object.entries(calls)) {
  check(name, async () => {
    for (const call of list) {
      await assert.rejects(
        async () => call(),
        (e) => e instanceof ServerError && e.statusCode === 501 && /support|not part of/.test(e.message) && !/timeout|connection refused/.test(e.message),
        String(call),
      )
    }
  })
}

check('the sandbox is as it was', async () => {
  assert.equal((await sbx.exec('echo fine')).stdout, 'fine\n')
})

await run(() => sbx.kill())
