package e2bapi

import (
	"context"
	"time"

	"hutch.dev/hutch"
)

// Sandboxes is the life of sandboxes. What is asked for by project belongs to that project:
// another one's sandbox is hutch.ErrNotFound, one that has ended hutch.ErrSandboxGone.
type Sandboxes interface {
	// CreateSandbox returns once the sandbox runs. With the id of a sandbox that exists it
	// makes nothing and returns that one, dead or alive, once its start has ended.
	CreateSandbox(ctx context.Context, req hutch.CreateSandbox) (hutch.Sandbox, error)
	// SandboxByID returns a sandbox of any project: its agent is reached with its own token,
	// not with a project's key.
	SandboxByID(ctx context.Context, id hutch.SandboxID) (hutch.Sandbox, error)
	// ListSandboxes returns a page and the cursor of the next, empty on the last. Without a
	// project it lists those of all.
	ListSandboxes(ctx context.Context, q hutch.SandboxQuery) ([]hutch.Sandbox, string, error)
	// KillSandbox returns once it has ended; hutch.ErrSandboxGone if it had before.
	KillSandbox(ctx context.Context, project hutch.ProjectID, id hutch.SandboxID) (hutch.Sandbox, error)
}

// Lifetimes moves the end of sandboxes and lets paused ones go on.
type Lifetimes interface {
	// ExtendTo moves ExpiresAt to t; with onlyLater set it is never made earlier.
	ExtendTo(ctx context.Context, project hutch.ProjectID, id hutch.SandboxID, t time.Time, onlyLater bool) (hutch.Sandbox, error)
	ResumeSandbox(ctx context.Context, project hutch.ProjectID, id hutch.SandboxID) (hutch.Sandbox, error)
}

// Execs starts commands and reports on them. The end of a caller's context never ends a
// command.
type Execs interface {
	// StartExec returns once the command runs.
	StartExec(ctx context.Context, project hutch.ProjectID, id hutch.SandboxID, req hutch.ExecRequest) (hutch.Exec, error)
	// FollowExec hands the output to sink, one event at a time, and returns the record
	// when there is no more to come. An error of sink ends it and is returned.
	FollowExec(ctx context.Context, project hutch.ProjectID, sb hutch.SandboxID, exec hutch.ExecID, opt hutch.FollowOptions, sink func(hutch.OutputEvent) error) (hutch.Exec, error)
	// Exec returns a record.
	Exec(ctx context.Context, project hutch.ProjectID, exec hutch.ExecID) (hutch.Exec, error)
	// ListExecs returns a page, newest first, and the cursor of the next, empty on the last.
	ListExecs(ctx context.Context, q hutch.ExecQuery) ([]hutch.Exec, string, error)
}

// ExecControl acts on commands under way.
type ExecControl interface {
	// WriteStdin gives a command a part of its stdin.
	WriteStdin(ctx context.Context, project hutch.ProjectID, sb hutch.SandboxID, exec hutch.ExecID, c hutch.StdinChunk) (int64, error)
	// CancelExec ends a command with its whole tree and returns once nothing of it runs.
	CancelExec(ctx context.Context, project hutch.ProjectID, sb hutch.SandboxID, exec hutch.ExecID, grace *time.Duration) (hutch.Exec, error)
	// SignalExec sends a signal by name ("TERM") to the leader, or with tree set to all.
	SignalExec(ctx context.Context, project hutch.ProjectID, sb hutch.SandboxID, exec hutch.ExecID, signal string, tree bool) error
	// ResizeExec sets the size of a command's terminal.
	ResizeExec(ctx context.Context, project hutch.ProjectID, sb hutch.SandboxID, exec hutch.ExecID, size hutch.TerminalSize) error
}

// Guests reaches into running sandboxes.
type Guests interface {
	// Guest returns what a running sandbox can be asked for. It counts as active until
	// done is called.
	Guest(ctx context.Context, project hutch.ProjectID, id hutch.SandboxID) (g hutch.Guest, done func(), err error)
}

// Templates is what sandboxes can be made from. Names and aliases are both found.
type Templates interface {
	ListTemplates(ctx context.Context) ([]hutch.Template, error)
	Template(ctx context.Context, name string) (hutch.Template, error)
	DeleteTemplate(ctx context.Context, name string) error
}

// Usage measures sandboxes.
type Usage interface {
	// Samples returns what was measured from one instant to another, oldest first; zero
	// times are no bounds.
	Samples(ctx context.Context, project hutch.ProjectID, id hutch.SandboxID, from, to time.Time) ([]hutch.Sample, error)
	// Usage measures now.
	Usage(ctx context.Context, project hutch.ProjectID, id hutch.SandboxID) (hutch.Sample, error)
}

// Logs reads what commands wrote, line by line.
type Logs interface {
	Logs(ctx context.Context, q hutch.LogQuery, sink func(hutch.LogLine) error) error
}

// Tokens makes and checks the tokens of sandboxes, for the uses [TokenAgent] and
// [TokenTraffic].
type Tokens interface {
	Token(id hutch.SandboxID, use string) string
	Valid(id hutch.SandboxID, use, presented string) bool
}

// What a sandbox's tokens are for.
const (
	TokenAgent   = "envd"    // calls of its agent
	TokenTraffic = "traffic" // its ports, if they are private
)

// Authenticator turns a presented key into its record; hutch.ErrUnauthenticated if it is
// unknown, expired or revoked.
type Authenticator interface {
	Verify(ctx context.Context, presented string) (hutch.APIKey, error)
}

// Auditor is told of calls that change something. It must not block.
type Auditor interface {
	RecordAudit(e hutch.AuditEntry)
}

// Metrics is told about every answer. It must not block.
type Metrics interface {
	// HTTPRequest counts one answer: route is a pattern or "other", so its values are a
	// closed set.
	HTTPRequest(route, method string, status int, d time.Duration)
}
