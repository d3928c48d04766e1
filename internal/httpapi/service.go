package httpapi

import (
	"context"
	"time"

	"hutch.dev/hutch"
)

// Sandboxes is the life of sandboxes, as the service offers it. Everything it
// returns belongs to the project asked for: another project's sandbox is
// hutch.ErrNotFound, one that has ended hutch.ErrSandboxGone with Reason its SandboxEnd.
type Sandboxes interface {
	// CreateSandbox returns once the sandbox runs. A caller who leaves while queued is
	// dropped; a start under way is finished and recorded. With the id of a sandbox that
	// exists it makes nothing and returns that one, dead or alive, once its start has ended.
	CreateSandbox(ctx context.Context, req hutch.CreateSandbox) (hutch.Sandbox, error)
	// Sandbox returns a record.
	Sandbox(ctx context.Context, project hutch.ProjectID, id hutch.SandboxID) (hutch.Sandbox, error)
	// ListSandboxes returns a page and the cursor of the next, empty on the last.
	ListSandboxes(ctx context.Context, q hutch.SandboxQuery) ([]hutch.Sandbox, string, error)
	// ExtendSandbox moves ExpiresAt to ttl from now; 0 = the most the operator allows.
	ExtendSandbox(ctx context.Context, project hutch.ProjectID, id hutch.SandboxID, ttl time.Duration) (hutch.Sandbox, error)
	// KillSandbox returns once it has ended; hutch.ErrSandboxGone if it had before.
	KillSandbox(ctx context.Context, project hutch.ProjectID, id hutch.SandboxID) (hutch.Sandbox, error)
}

// Prepared has machines that were made before anybody asked for them.
type Prepared interface {
	// ClaimPrepared returns the id under which a sandbox that is asked for is started on one
	// of them; empty if there is none like it. Release must be called once CreateSandbox has
	// returned, or is not to be called; what was not used is for others then.
	ClaimPrepared(ctx context.Context, req hutch.CreateSandbox) (_ hutch.SandboxID, release func())
}

// Pausing freezes sandboxes in memory. Doing either to one that it was done to already
// changes nothing.
type Pausing interface {
	PauseSandbox(ctx context.Context, project hutch.ProjectID, id hutch.SandboxID) (hutch.Sandbox, error)
	ResumeSandbox(ctx context.Context, project hutch.ProjectID, id hutch.SandboxID) (hutch.Sandbox, error)
}

// Execs starts commands and reports on them. The end of a caller's context never
// ends a command.
type Execs interface {
	// StartExec returns once the command runs. With the id of a command that exists it
	// starts nothing and returns that one.
	StartExec(ctx context.Context, project hutch.ProjectID, id hutch.SandboxID, req hutch.ExecRequest) (hutch.Exec, error)
	// WaitExec returns the record once the command has ended, however it did.
	WaitExec(ctx context.Context, project hutch.ProjectID, sb hutch.SandboxID, exec hutch.ExecID) (hutch.Exec, error)
	// FollowExec hands the output to sink, one event at a time, and returns the record
	// when there is no more to come. An error of sink ends it and is returned.
	FollowExec(ctx context.Context, project hutch.ProjectID, sb hutch.SandboxID, exec hutch.ExecID, opt hutch.FollowOptions, sink func(hutch.OutputEvent) error) (hutch.Exec, error)
	// Exec returns a record, also when its sandbox has ended.
	Exec(ctx context.Context, project hutch.ProjectID, exec hutch.ExecID) (hutch.Exec, error)
	// ListExecs returns a page and the cursor of the next, empty on the last.
	ListExecs(ctx context.Context, q hutch.ExecQuery) ([]hutch.Exec, string, error)
}

// ExecControl acts on commands under way.
type ExecControl interface {
	// WriteStdin gives a command a part of its stdin. It returns how many bytes the command has been
	// given in all; bytes below that are skipped, so a repetition repeats nothing.
	WriteStdin(ctx context.Context, project hutch.ProjectID, sb hutch.SandboxID, exec hutch.ExecID, c hutch.StdinChunk) (int64, error)
	// CancelExec ends a command: TERM to its whole tree, grace (nil = its own), KILL. It
	// returns the record once that is done. One that has ended by itself is
	// returned as it is, after what it left running has been killed.
	CancelExec(ctx context.Context, project hutch.ProjectID, sb hutch.SandboxID, exec hutch.ExecID, grace *time.Duration) (hutch.Exec, error)
	// SignalExec sends a signal by name ("INT") to the leader, or with tree set to all.
	SignalExec(ctx context.Context, project hutch.ProjectID, sb hutch.SandboxID, exec hutch.ExecID, signal string, tree bool) error
	// ResizeExec changes the size of a command's terminal; hutch.ErrInvalidState if it has none.
	ResizeExec(ctx context.Context, project hutch.ProjectID, sb hutch.SandboxID, exec hutch.ExecID, size hutch.TerminalSize) error
}

// Guests reaches into running sandboxes.
type Guests interface {
	// Guest is a running sandbox's inside; hutch.ErrInvalidState if it is paused. The
	// sandbox counts as active until done is called.
	Guest(ctx context.Context, project hutch.ProjectID, id hutch.SandboxID) (g hutch.Guest, done func(), err error)
}

// Settings changes what is known of a sandbox while it lives.
type Settings interface {
	// UpdateAccess has fn change a copy and stores it, at once with what others change.
	UpdateAccess(ctx context.Context, project hutch.ProjectID, id hutch.SandboxID, fn func(*hutch.Access) error) (hutch.Sandbox, error)
	// UpdateMetadata sets pairs; others stay.
	UpdateMetadata(ctx context.Context, project hutch.ProjectID, id hutch.SandboxID, set map[string]string) (hutch.Sandbox, error)
}

// Meter measures.
type Meter interface {
	// Usage measures a running sandbox now.
	Usage(ctx context.Context, project hutch.ProjectID, id hutch.SandboxID) (hutch.Sample, error)
	// Samples are a sandbox's, every 5 s of the last hour, oldest first. Zero times are no bounds.
	Samples(ctx context.Context, project hutch.ProjectID, id hutch.SandboxID, from, to time.Time) ([]hutch.Sample, error)
	BootStats(ctx context.Context, project hutch.ProjectID) ([]hutch.BootStat, error)
}

// Billing says what was used.
type Billing interface {
	// UsageReport returns a page of what was used, cut at the bounds asked for, with the sum
	// of all pages, both as of one instant.
	UsageReport(ctx context.Context, q hutch.UsageQuery) (hutch.UsageReport, error)
	// RateCard is what the operator charges; nil = it has not said.
	RateCard() *hutch.RateCard
}

// Logs reads what a sandbox's commands wrote.
type Logs interface {
	// Logs hands lines to sink until there are no more, sink fails or ctx ends.
	Logs(ctx context.Context, q hutch.LogQuery, sink func(hutch.LogLine) error) error
}

// Builds makes templates.
type Builds interface {
	// StartBuild returns once the build is queued. With the id of one that exists it
	// starts nothing and returns that one.
	StartBuild(ctx context.Context, req hutch.BuildRequest) (hutch.Build, error)
	Build(ctx context.Context, project hutch.ProjectID, id string) (hutch.Build, error)
	// ListBuilds lists a project's builds, newest first.
	ListBuilds(ctx context.Context, project hutch.ProjectID) ([]hutch.Build, error)
	// FollowBuild hands the log to sink from line number from on, and with follow what
	// comes, until the build has ended.
	FollowBuild(ctx context.Context, project hutch.ProjectID, id string, from int, follow bool, sink func(hutch.LogLine) error) error
	// DeleteTemplate makes a template unknown. Sandboxes made from it live on.
	DeleteTemplate(ctx context.Context, name string) error
}

// AuditLog keeps which calls changed something, or tried to.
type AuditLog interface {
	Audit(ctx context.Context, q hutch.AuditQuery) ([]hutch.AuditEntry, error)
	// RecordAudit never waits for the entry to be stored.
	RecordAudit(e hutch.AuditEntry)
}

// Templates lists what sandboxes can be made from.
type Templates interface {
	ListTemplates(ctx context.Context) ([]hutch.Template, error)
	Template(ctx context.Context, name string) (hutch.Template, error)
}

// Keys manages a project's API keys.
type Keys interface {
	// CreateKey returns the record and the key itself, which is shown this once.
	CreateKey(ctx context.Context, req hutch.CreateKey) (hutch.APIKey, string, error)
	ListKeys(ctx context.Context, project hutch.ProjectID) ([]hutch.APIKey, error)
	// RevokeKey makes the key with that prefix useless. Twice is hutch.ErrNotFound.
	RevokeKey(ctx context.Context, project hutch.ProjectID, prefix string) error
}

// EventLog reads what happened.
type EventLog interface {
	Events(ctx context.Context, q hutch.EventQuery) ([]hutch.Event, error)
	// WatchEvents hands sink every event after q.After, those to come too, until ctx
	// ends (its error is returned) or sink fails (that error is). When q names
	// a sandbox, it returns nil after the event that ends it.
	WatchEvents(ctx context.Context, q hutch.EventQuery, sink func(hutch.Event) error) error
}

// Health says whether the service can do its work.
type Health interface {
	Ready(ctx context.Context) error
}

// Authenticator turns a presented key into its record; hutch.ErrUnauthenticated
// if it is unknown, expired or revoked.
type Authenticator interface {
	Verify(ctx context.Context, presented string) (hutch.APIKey, error)
}
