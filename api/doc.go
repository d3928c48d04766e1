// Package api is the wire of the native HTTP API, as Go structs: what the server
// decodes and encodes and what the Go client sends and reads. Both ends compile it,
// so they cannot drift; a test holds it equal to openapi/native.yaml, which is the
// contract for everybody else.
//
// It owns names, units and which fields exist. It decides nothing and does no I/O:
// limits and defaults are the server's (package httpapi), the catalogue of error
// codes is openapi/errors.json, embedded here.
//
// Units: fields ending in _seconds are numbers and may have fractions; _ms are whole
// milliseconds; _mb are MiB; _bytes are bytes. Times are RFC 3339 in UTC. In a
// request null means the same as leaving the field out.
//
// Start with [CreateSandbox] and [Sandbox], then [ExecRequest] and [ExecResult].
package api

import "hutch.dev/hutch"

// Version of the paths: every one but /healthz, /readyz, /metrics and /version begins with it.
const Version = "/v1"

// DefaultTemplate is what a create that names no template gets.
const DefaultTemplate = "base"

// Headers of the API.
const (
	HeaderAPIKey         = "X-API-Key"           // instead of "Authorization: Bearer …"
	HeaderRequestID      = "X-Request-Id"        // echoed, or made
	HeaderIdempotencyKey = "Idempotency-Key"     // on every mutating call
	HeaderReplayed       = "Idempotent-Replayed" // "true": this answer is an earlier one
	HeaderNextCursor     = "X-Next-Cursor"       // of a listing's next page; absent on the last
	HeaderExecID         = "X-Exec-Id"           // of the command a stream is about
	HeaderOutputOffset   = "X-Output-Offset"     // byte offset that a raw output begins at
	TrailerNextOffset    = "X-Output-Next"       // trailer: where to go on
	TrailerComplete      = "X-Output-Complete"   // trailer: "true" once there is no more to come
)

// Names of the events in a stream of a command's output.
const (
	EventStdout = "stdout" // OutputChunk
	EventStderr = "stderr" // OutputChunk
	EventGap    = "gap"    // OutputGap; only when following
	EventExit   = "exit"   // ExecEnd; the last event
	EventError  = "error"  // Error; the last event
)

// EventLine names the events of a followed log: each is a [LogLine].
const EventLine = "line"

// EventEvent names the events in a stream of a sandbox's life: each is an [Event].
const EventEvent = "event"

// Error is the body of every failed call, and of an "error" event. It is flat because
// published clients read the text from the top level.
type Error struct {
	Error     string     `json:"error"` // a sentence that says what to do
	Code      hutch.Code `json:"code"`
	Field     string     `json:"field,omitempty"` // of the request
	RequestID string     `json:"request_id,omitempty"`
	// EndReason says why the sandbox ended, when Code is sandbox_gone and it is known.
	EndReason hutch.SandboxEnd `json:"end_reason,omitempty"`
}
