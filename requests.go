package hutch

import (
	"io"
	"time"
)

// CreateSandbox asks for a sandbox.
type CreateSandbox struct {
	ID          SandboxID // chosen by whoever must be able to ask again; empty = a new one
	Project     ProjectID
	Template    string            // name; never empty
	Resources   Resources         // zero fields take the template's value
	Env         map[string]string // for every command
	Metadata    map[string]string
	Hostname    string         // a DNS label; empty = derived from the id
	TTL         *time.Duration // nil = the default; 0 = the most the operator allows
	IdleTimeout time.Duration  // 0 = none
	Profile     Profile        // empty = the template's, else the project's
	Lease       time.Duration  // 0 = it has no owner that must renew it
	Budget      Budget
	Access      Access
}

// SandboxQuery asks for one page of a project's sandboxes, newest first. Zero
// fields do not filter.
type SandboxQuery struct {
	Project  ProjectID
	States   []State
	Template string
	Metadata map[string]string // all of these pairs
	Since    time.Time         // only those created then or later
	Oldest   bool              // oldest first
	Cursor   string            // from the previous page; empty = the first
	Limit    int               // 0 = 100
}

// ExecRequest asks for a command to be started.
type ExecRequest struct {
	ID    ExecID // chosen by whoever must be able to ask again; empty = a new one
	Spec  ExecSpec
	Stdin io.Reader // all of its stdin, known beforehand; nil = none (or Spec.StdinOpen)
}

// StdinChunk is a part of a command's input.
type StdinChunk struct {
	Offset int64     // of the first byte of Data in the whole input; bytes given before are skipped
	Data   io.Reader // read to its end
	End    bool      // nothing follows: close the input
	Append bool      // Offset has no meaning: Data comes after whatever was given so far
}

// ExecQuery asks for one page of a sandbox's commands, newest first. It can be
// asked of a sandbox that has ended, until its tombstone expires.
type ExecQuery struct {
	Project ProjectID
	Sandbox SandboxID
	Running bool   // only those without a result
	Cursor  string // from the previous page; empty = the first
	Limit   int    // 0 = 100
}

// Names of a command's output streams.
const (
	Stdout = "stdout"
	Stderr = "stderr"
)

// FollowOptions says which output of a command to deliver and how.
type FollowOptions struct {
	Stdout   int64 // byte offset to start from
	Stderr   int64
	Budgeted bool  // keep to the command's output budget: head live, a gap, the tail at the end
	NoWait   bool  // stop after what there is now
	Live     bool  // Stdout and Stderr have no meaning: start with what is written from now on
	Last     int64 // with Live: start this many bytes before now, as far as they are kept
}

// OutputEvent is one step of following a command. Exactly one of Data, GapTo and
// Keepalive is set.
type OutputEvent struct {
	Stream    string // [Stdout] or [Stderr]; empty in a keepalive
	Offset    int64  // of Data's first byte, or of the gap's
	Data      []byte // valid only during the call it is handed to
	GapTo     int64  // > 0: the bytes [Offset, GapTo) are not delivered
	Keepalive bool   // nothing to say for a while
}

// EventQuery asks for a project's events by Seq, oldest first.
type EventQuery struct {
	Project ProjectID
	Sandbox SandboxID // empty = all of the project
	After   int64     // only those with a higher Seq
	Limit   int       // 0 = 100; without meaning when watching
}

// CreateKey asks for an API key.
type CreateKey struct {
	Project ProjectID
	Name    string // a label for people
	Scope   Scope
	TTL     time.Duration // 0 = never expires
}

// BuildRequest asks for a template to be built. Exactly one source is set.
type BuildRequest struct {
	ID      string // UUID; empty = a new one
	Project ProjectID
	Name    string // of the template; replaced if it exists

	Recipe   string // name of a recipe that the server has
	ImageRef string // image in a registry: "host/path:tag" or "@sha256:…"
	Archive  string // path on the server of an OCI layout or a `docker save` tar; for callers on the server itself

	Username, Password string // for the registry; never stored
	Resources          Resources
	Profile            Profile // of sandboxes that do not ask for one; empty = as it was
	Force              bool    // build although the result is there
}

// AuditQuery asks for a project's audited calls, newest first.
type AuditQuery struct {
	Project ProjectID
	Since   time.Time
	Limit   int // 0 = 200, at most 1000
}

// LogQuery asks for what a sandbox's commands wrote, line by line, in the order of the
// commands' starts, and while following in the order it comes.
type LogQuery struct {
	Project ProjectID
	Sandbox SandboxID
	Stream  string // [Stdout], [Stderr]; empty = both
	Tail    int    // only the last lines; 0 = all that is kept
	Follow  bool   // go on with what comes, until the sandbox ends
}
