// Package httpapi is the native HTTP API: it turns requests into calls of the service
// and the service's values into answers.
//
// It owns the wire's strictness (every field and query parameter is known or refused),
// the only table from error code to HTTP status (status.go), keys and scopes at the
// door, Idempotency-Key, keeping long answers alive, and how bytes of a command become
// text (render.go). It refuses to own decisions about sandboxes and commands: limits
// that an operator may set, states, budgets are the service's, reached through the small
// interfaces in service.go.
//
// Invariants: an answer is JSON, even a 404 and a panic's; an answer that has begun
// ends with its result, an "exit" or "error" event, or a broken connection, never
// quietly; no tenant content is logged; a caller who leaves never ends a command.
//
// Locks: eventStream.mu guards one answer's writer, calls.mu the table of keyed calls
// under way; neither is held while the other is taken, or across a call of the service.
//
// Start with routes.go, then execs.go and idempotency.go.
package httpapi
