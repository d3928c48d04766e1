// Checks of a conformance suite, reported as the harness reads them: one JSON object a line.
import { writeSync } from 'node:fs'

const report = (line) => writeSync(1, JSON.stringify(line) + '\n')

const limit = (promise, ms) => {
  let timer
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`it did not end within ${ms} ms`)), ms)
  })
  return Promise.race([promise, late]).finally(() => clearTimeout(timer))
}

const checks = []

/** Adds a check: it passes unless fn throws or takes longer than ms. */
export function check(name, fn, ms = 60_000) {
  checks.push({ name, fn, ms })
}

/** Runs the checks in order, then what cleans up after them, and ends the process. */
export async function run(cleanUp = async () => {}) {
  const only = process.env.HUTCH_CHECKS ? new RegExp(process.env.HUTCH_CHECKS) : /./
  let done = 0
  for (const { name, fn, ms } of checks) {
    if (!only.test(name)) continue
    const began = Date.now()
    let error = ''
    try {
      await limit(fn(), ms)
    } catch (e) {
      error = String(e?.stack ?? e) || 'it threw nothing'
    }
    report({ check: name, error, ms: Date.now() - began })
    done++
  }
  await cleanUp()
  report({ done })
  process.exit(0)
}
