// Package harness is what the conformance suites share: a server of their own, published
// client packages at pinned versions, and scripts that drive them.
//
// A suite is a directory of scripts in the language of the client it is about. A script
// reports on standard output, one JSON object a line (see [Report]): one for each check
// with its name, and at the end how many there were, so that a script that breaks off is
// no success. Every check becomes a subtest. scripts/check.mjs and scripts/check.py do the
// reporting; they are laid beside a suite's own scripts. HUTCH_CHECKS, a regular
// expression, chooses checks by name.
//
// Packages are installed once into the cache directory (HUTCH_CACHE_DIR), by the language's
// own tool and from wherever this machine's configuration says; the repository pins versions
// and checksums and names no address.
//
// The package owns no checks. Start with [Start] and [Packages.Run].
package harness
