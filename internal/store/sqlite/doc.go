// Package sqlite keeps the records of package store in one SQLite file.
//
// It owns the schema and its migrations, how writes become durable, and the
// translation of driver errors; it decides nothing about sandboxes, and no type of the
// driver leaves it.
//
// # Writing
//
// One goroutine (writer) makes all writes on the one connection that can write, each
// between savepoints in a transaction that is committed with a full sync of the
// write-ahead log. Whatever asks to write while a transaction is being synced goes into
// the next one together, so that many callers at once share a sync (32 of them make
// about nine writes a sync, by count) and one alone waits for nothing else. A part that
// fails is undone alone, the others are committed. A call returns once its transaction is
// durable; only the answers kept under an Idempotency-Key, and writes under [store.Lazily], wait
// for no sync of their own: they are durable with whatever is written next, or a tenth of a second
// later ([writer.DoLazily]). Reads have connections of their own, which cannot write, see only
// what is committed, and neither wait for the writer nor make it wait.
//
// The caller's function in an update runs on the caller's goroutine, between the read
// and the write; the write holds only if the record's rev is still the one that was read
// (see [Store.UpdateSandbox]). Nothing but this package's own statements runs on the
// writer's goroutine.
//
// Lock order: writer.mu is the only lock, and no call is made under it.
//
// # Secrets
//
// The environments of sandboxes are secrets of tenants, and so is metadata that is never
// read back ([hutch.SecretMetadata]). A node needs the first again when it takes a sandbox
// over, so both are stored, their values sealed (seal.go) with a key in a file beside the
// database; filters look for a hash of the second. Whoever has the whole directory can open
// them; whoever has the database alone, a backup or a page of it, cannot. All files are ours
// alone (mode 0600, set at each Open), and pages are overwritten when a record is purged. Of
// commands only the names of their environment are stored. Of API keys the SHA-256 is stored.
//
// # Files
//
// Beside the database there are "-wal", "-shm" and ".key"; a copy of the first without the
// second is not a backup (use the sqlite3 shell's .backup, which may run meanwhile).
// The header carries our application id; a file of a newer schema, of another program,
// or a damaged one is refused with an error of its own. Migrations only go forward.
//
// Start with [Open], then the writer. The contract is in package storetest.
package sqlite
