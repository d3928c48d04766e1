// Package e2bapi is the API that E2B's published clients speak: the control API at the
// root ("/sandboxes", "/v2/sandboxes", …) and the API of the agent in a sandbox, which those
// clients find behind the headers E2b-Sandbox-Id and E2b-Sandbox-Port: 49983.
//
// It owns that wire: which requests are for it, how they are read, what of it is refused,
// and the answers in the form its clients understand. It refuses to own decisions about
// sandboxes, commands and files: those are the services', reached through the small
// interfaces in service.go. Nothing of it runs inside a sandbox: the agent API is answered
// here, on the host, where its tokens are checked too.
//
// Invariants. An error of the control API has its status in its body as "code"; an error of
// a call of the agent is one of the Connect protocol. A success without a body is a 204. A
// stream ends with its end frame or with a broken connection, never quietly. Of a sandbox
// that is not running every call of its agent is a 502, and it is one before a stream
// that its end breaks is broken. No field that is accepted is without effect, but for those
// that docs/e2b.md lists as tolerated. A caller who leaves never ends a process.
//
// Locks: processes.mu guards the table of processes, watchers.mu that of watchers, eventLog.mu
// one watcher's events, frames.mu one stream's writer. None is held while another is taken, or
// across a call of a service.
//
// Start with [API.Router], then create.go for the control API and process.go for the agent.
package e2bapi
