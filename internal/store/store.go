// Package store is the port to durable records: sandboxes, commands, templates and their
// builds, keys, events, idempotency keys, audited calls, what sandboxes used, and the
// server's own settings.
//
// It owns their durability and the compare-and-set on a sandbox's epoch; it decides
// nothing. Each adapter (sqlite) passes storetest. Driver errors never leave an
// adapter: no row is [hutch.ErrNotFound], a taken id or name is [hutch.ErrConflict],
// anything else is wrapped with what was being done.
//
// Every write is durable when it returns, but for the calls of [Idempotency], and commands and
// updates under [Lazily]. Writes given events store them in the same transaction, so no state
// change goes unrecorded and no event lies. A write whose context ends either was made and
// returns nil, or was not made and returns the context's error.
//
// All methods are safe for concurrent use. Times are stored in UTC with nanoseconds.
// Maps and lists that are empty may come back nil. Nothing that is passed in or
// returned is shared with the store.
//
// Start with [Sandboxes].
package store

import (
	"context"
	"time"

	"hutch.dev/hutch"
)

type lazyKey struct{}

// Lazily returns a context under which an update of a sandbox's record, or the record of a command,
// waits for no sync of its own: when it returns it is written and survives the end of this process,
// and it is durable with whatever is written next, or within about a tenth of a second. It is for
// news that a loss of the machine's power would overtake anyway.
func Lazily(ctx context.Context) context.Context { return context.WithValue(ctx, lazyKey{}, true) }

// Lazy reports whether ctx came of [Lazily]. For adapters, which may take no notice of it.
func Lazy(ctx context.Context) bool { return ctx.Value(lazyKey{}) != nil }

// Store is all of it.
type Store interface {
	Sandboxes
	Changes
	Execs
	Templates
	Builds
	BuildLogs
	Keys
	Events
	Idempotency
	Audit
	UsageLog
	Settings

	// Close makes the writes already accepted and lets go of everything. Calls after it
	// are hutch.ErrUnavailable; closing twice does nothing.
	Close() error
}

// Page asks for a part of a listing. A page may hold fewer than Limit records and not be
// the last: only an empty cursor is the end.
type Page struct {
	Cursor string // from the previous page's answer; empty = from the start
	Limit  int    // at most this many; 0 = 100; adapters cap it at 1000
}

// SandboxFilter chooses sandboxes; zero fields do not filter.
type SandboxFilter struct {
	Project  hutch.ProjectID
	States   []hutch.State
	Template string
	Metadata map[string]string // all of these pairs
	Since    time.Time         // only those created then or later
	Oldest   bool              // first stored first; a cursor is of one order only
}

// Sandboxes keeps the records of sandboxes.
type Sandboxes interface {
	// CreateSandbox stores a new record; hutch.ErrConflict if its id exists.
	CreateSandbox(ctx context.Context, sb hutch.Sandbox, ev ...hutch.Event) error

	// Sandbox returns a record, hutch.ErrNotFound if there is none.
	Sandbox(ctx context.Context, id hutch.SandboxID) (hutch.Sandbox, error)

	// Sandboxes lists records, last stored first, in an order that paging keeps while
	// records come and go. The second result is the cursor of the next page, empty
	// on the last. A cursor that is not from here is hutch.ErrBadRequest.
	Sandboxes(ctx context.Context, f SandboxFilter, p Page) ([]hutch.Sandbox, string, error)

	// UpdateSandbox applies fn to the record in one transaction and returns the
	// record as stored. If the stored epoch is not epoch it writes nothing and
	// returns hutch.ErrStale; if there is no record, hutch.ErrNotFound. If fn returns
	// an error it writes nothing and returns that error. fn may run more than once, so
	// it must have no side effects. It must not change the id, the project or the time
	// of creation: hutch.ErrInternal.
	UpdateSandbox(ctx context.Context, id hutch.SandboxID, epoch hutch.Epoch, fn func(*hutch.Sandbox) error, ev ...hutch.Event) (hutch.Sandbox, error)

	// PurgeSandboxes removes dead sandboxes that ended before t, with their execs
	// and events, and says how many. Events before t about sandboxes that have no
	// record go with them.
	PurgeSandboxes(ctx context.Context, t time.Time) (int, error)
}

// Changes says whether anything has changed, to who would read the same again.
type Changes interface {
	// SandboxChanges is a number that grows with each write of a sandbox's record, before the
	// write is seen and again before it returns: what was read after the number was, and before it
	// was found to be the same, is what a write that has returned left.
	SandboxChanges() uint64
}

// ExecFilter chooses commands of a sandbox.
type ExecFilter struct {
	Sandbox hutch.SandboxID
	Running bool // only those without a result
	Oldest  bool // first stored first; a cursor is of one order only
	Brief   bool // results without Head and Tail: what a list of many needs
}

// Execs keeps the records of commands.
type Execs interface {
	// PutExec stores a record, replacing the one with its id; hutch.ErrNotFound if its
	// sandbox has no record. A record that has a result is never replaced by one that
	// has none: such late news does nothing, its events included. Of Spec.Env only
	// the names are stored, whatever the values.
	PutExec(ctx context.Context, e hutch.Exec, ev ...hutch.Event) error
	// Exec returns a record, hutch.ErrNotFound if there is none.
	Exec(ctx context.Context, id hutch.ExecID) (hutch.Exec, error)
	// ExecsOf lists a sandbox's commands, last stored first, paged as Sandboxes pages.
	ExecsOf(ctx context.Context, f ExecFilter, p Page) ([]hutch.Exec, string, error)
	// TrimOutput drops the output of a sandbox's first stored commands until what is left
	// has at most so many bytes, and says of how many commands. Their results say that all
	// of it was dropped.
	TrimOutput(ctx context.Context, sb hutch.SandboxID, most int64) (int, error)
}

// Templates keeps the records of templates.
type Templates interface {
	// PutTemplate stores a template, replacing the one of that name with its aliases. A
	// name or alias that another template answers to is hutch.ErrConflict, as is an alias
	// that is there twice or is its own name.
	PutTemplate(ctx context.Context, t hutch.Template) error
	// Template returns a template by name or alias, hutch.ErrNotFound if there is none.
	Template(ctx context.Context, name string) (hutch.Template, error)
	// Templates lists all, by name.
	Templates(ctx context.Context) ([]hutch.Template, error)
	// DeleteTemplate removes one by its name, not an alias; hutch.ErrNotFound if there is none.
	DeleteTemplate(ctx context.Context, name string) error
}

// BuildFilter chooses builds; zero fields do not filter.
type BuildFilter struct {
	Project hutch.ProjectID
	Open    bool // only those that are queued or under way
	Limit   int  // at most this many; 0 = 100, capped at 1000
}

// Builds keeps the records of builds of templates.
type Builds interface {
	// PutBuild stores a record, replacing the one with its id.
	PutBuild(ctx context.Context, b hutch.Build) error
	// Build returns a record, hutch.ErrNotFound if there is none.
	Build(ctx context.Context, id string) (hutch.Build, error)
	// Builds lists builds, last stored first.
	Builds(ctx context.Context, f BuildFilter) ([]hutch.Build, error)
	// PurgeBuilds removes builds that ended before t, with their logs, and says how many.
	PurgeBuilds(ctx context.Context, t time.Time) (int, error)
}

// BuildLogs keeps what builds said, line by line.
type BuildLogs interface {
	// AppendBuildLog adds lines to a build's log; hutch.ErrNotFound if there is no such
	// build. Of a line, the time and the text are kept.
	AppendBuildLog(ctx context.Context, id string, lines ...hutch.LogLine) error
	// BuildLog returns at most limit lines (0 = 100, capped at 1000) from the number
	// from on, counted from 0. A build without a log has no lines.
	BuildLog(ctx context.Context, id string, from, limit int) ([]hutch.LogLine, error)
}

// Keys keeps the records of API keys.
type Keys interface {
	// CreateKey stores a key; hutch.ErrConflict if its prefix exists.
	CreateKey(ctx context.Context, k hutch.APIKey) error
	// Key returns the key with that prefix, hutch.ErrNotFound if there is none.
	Key(ctx context.Context, prefix string) (hutch.APIKey, error)
	// Keys lists all, last stored first, revoked ones too.
	Keys(ctx context.Context) ([]hutch.APIKey, error)
	// RevokeKey marks a key revoked at t, hutch.ErrNotFound if there is none; revoking
	// twice keeps the first time.
	RevokeKey(ctx context.Context, prefix string, t time.Time) error
}

// EventFilter chooses events; zero fields do not filter.
type EventFilter struct {
	Project hutch.ProjectID
	Sandbox hutch.SandboxID
	After   int64 // only those with a higher Seq
	Limit   int   // at most this many, oldest first; 0 = 100, capped at 1000
}

// Events keeps what happened.
type Events interface {
	// AppendEvents stores events and numbers them in the order given.
	AppendEvents(ctx context.Context, ev ...hutch.Event) error
	// Events lists events by Seq.
	Events(ctx context.Context, f EventFilter) ([]hutch.Event, error)
}

// IdempotentCall is a mutating request made under an Idempotency-Key.
type IdempotentCall struct {
	Project   hutch.ProjectID
	Key       string
	Request   []byte // SHA-256 of method, path and body
	Ref       string // id of what the call makes, chosen before it is made
	Status    int    // HTTP status of the answer; 0 while under way
	Body      []byte // the answer
	CreatedAt time.Time
}

// Idempotency keeps the answers to calls that must not be done twice. What is begun and finished
// here survives the server's end at once; a machine that loses its power may lose the last of it, but
// nothing that something else was recorded after: so a call whose effect is on record is too.
type Idempotency interface {
	// BeginCall stores c if its (Project, Key) is new and returns it; else it
	// returns the one that is stored, and second true.
	BeginCall(ctx context.Context, c IdempotentCall) (stored IdempotentCall, existed bool, err error)
	// FinishCall stores Status and Body of a call that is under way: hutch.ErrNotFound
	// if it is not known, hutch.ErrConflict if it has its answer already, which stays.
	FinishCall(ctx context.Context, c IdempotentCall) error
	// ForgetCall removes a call that came to nothing, so that it can be made again. One
	// that has an answer stays; one that is not known is no error.
	ForgetCall(ctx context.Context, p hutch.ProjectID, key string) error
	// PurgeCalls removes calls begun before t and says how many.
	PurgeCalls(ctx context.Context, t time.Time) (int, error)
}

// AuditFilter chooses audited calls; zero fields do not filter.
type AuditFilter struct {
	Project hutch.ProjectID
	Since   time.Time // only those made then or later
	Limit   int       // at most this many, newest first; 0 = 100, capped at 1000
}

// Audit keeps who called what.
type Audit interface {
	// AppendAudit stores entries and numbers them in the order given.
	AppendAudit(ctx context.Context, entries ...hutch.AuditEntry) error
	// AuditEntries lists entries, last stored first.
	AuditEntries(ctx context.Context, f AuditFilter) ([]hutch.AuditEntry, error)
	// PurgeAudit removes entries of calls made before t and says how many.
	PurgeAudit(ctx context.Context, t time.Time) (int, error)
}

// UsageFilter chooses intervals; zero fields do not filter.
type UsageFilter struct {
	Project hutch.ProjectID
	Sandbox hutch.SandboxID
	From    time.Time // only what ended after it
	To      time.Time // only what began before it
}

// UsageReader reads what sandboxes used.
type UsageReader interface {
	// Usage lists whole intervals, first stored first, paged as Sandboxes pages.
	Usage(ctx context.Context, f UsageFilter, p Page) ([]hutch.Usage, string, error)
	// UsageTotal is the sum of the intervals, cut at From and To as hutch.Usage.Clip cuts.
	UsageTotal(ctx context.Context, f UsageFilter) (hutch.UsageTotal, error)
	// UsageBySandbox lists such sums for each sandbox, the one first stored first.
	UsageBySandbox(ctx context.Context, f UsageFilter, p Page) ([]hutch.SandboxUsage, string, error)
}

// UsageLog keeps what sandboxes used, also after their records are purged.
type UsageLog interface {
	UsageReader
	// AppendUsage stores intervals. One that begins when a stored one of its sandbox does
	// replaces that, unless that ends later: the last of a living sandbox grows, and late
	// news does nothing. One that does not end after its begin is hutch.ErrInternal.
	AppendUsage(ctx context.Context, rows ...hutch.Usage) error
	// ReadUsage hands read the log as it is at one instant: what it finds first does not
	// change while it goes on, whatever is stored meanwhile. It returns what read does. The
	// reader is of no use afterwards.
	ReadUsage(ctx context.Context, read func(UsageReader) error) error
	// PurgeUsage removes intervals that ended before t, but of no sandbox that lives, and
	// says how many.
	PurgeUsage(ctx context.Context, t time.Time) (int, error)
}

// Settings keeps small values that the server once chose for itself.
type Settings interface {
	// KeepSetting stores value under name unless there is one, and returns the one that is
	// stored: of many that choose at once, all get the same.
	KeepSetting(ctx context.Context, name string, value []byte) ([]byte, error)
}
