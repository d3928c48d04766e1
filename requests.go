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
}

// SandboxQuery asks for one page of a project's sandboxes, newest first. Zero
// fields do not filter.
type SandboxQuery struct {
	Project  ProjectID
	States   []State
	Template string
	Metadata map[string]string // all of these pairs
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
	Budgeted bool // keep to the command's output budget: head live, a gap, the tail at the end
	NoWait   bool // stop after what there is now
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
