// Package httpapi is the native HTTP API: it turns requests into calls of the service
// and the service's values into answers.
//
// It owns the wire's strictness (every field and query parameter is known or refused),
// the only table from error code to HTTP status (status.go), keys and scopes at the
// door, Idempotency-Key, keeping long answers alive, how bytes of a command become
// text (text.go), WebSockets and who of their clients is there, and the audit of calls
// that change something. It refuses to own decisions about sandboxes and commands: limits
// that an operator may set, states, budgets are the service's, reached through the small
// interfaces in service.go.
//
// Invariants: an answer is JSON, even a 404 and a panic's; an answer that has begun
// ends with its result, an "exit" or "error" event, or a broken connection, never
// quietly; no tenant content is logged; a caller who leaves never ends a command, but for a
// terminal's last client, some time after it has left; memory does not grow with the
// length of a file or a listing.
//
// Locks: eventStream.mu guards one answer's writer, calls.mu the table of keyed calls
// under way, terminals.mu and watchers.mu what outlives a request, watcher.mu one watcher's
// news, mux.mu one connection's commands. None is held while another is taken, or across a
// call of the service.
//
// Start with routes.go, then execs.go, files.go and terminal.go.
package httpapi
