// Package store is the port to durable records: sandboxes, commands, templates,
// keys, events and idempotency keys.
//
// It owns their durability and the compare-and-set on a sandbox's epoch; it decides
// nothing. Each adapter (sqlite) passes storetest. Driver errors never leave an
// adapter: no row is [hutch.ErrNotFound], a taken id or name is [hutch.ErrConflict],
// anything else is wrapped with what was being done.
//
// Every write is durable when it returns. Writes given events store them in the same
// transaction, so no state change goes unrecorded and no event lies. A write whose
// context ends either was made and returns nil, or was not made and returns the
// context's error.
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

// Store is all of it.
type Store interface {
	Sandboxes
	Execs
	Templates
	Keys
	Events
	Idempotency

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

// Execs keeps the records of commands.
type Execs interface {
	// PutExec stores a record, replacing the one with its id; hutch.ErrNotFound if its
	// sandbox has no record. A record that has a result is never replaced by one that
	// has none: such late news does nothing, its events included. Of Spec.Env only
	// the names are stored, whatever the values.
	PutExec(ctx context.Context, e hutch.Exec, ev ...hutch.Event) error
	// Exec returns a record, hutch.ErrNotFound if there is none.
	Exec(ctx context.Context, id hutch.ExecID) (hutch.Exec, error)
	// ExecsOf lists a sandbox's commands, last stored first, paged as Sandboxes pages;
	// with running set, only those without a result.
	ExecsOf(ctx context.Context, sb hutch.SandboxID, running bool, p Page) ([]hutch.Exec, string, error)
}

// Templates keeps the records of templates.
type Templates interface {
	// PutTemplate stores a template, replacing the one of that name.
	PutTemplate(ctx context.Context, t hutch.Template) error
	// Template returns a template by name, hutch.ErrNotFound if there is none.
	Template(ctx context.Context, name string) (hutch.Template, error)
	// Templates lists all, by name.
	Templates(ctx context.Context) ([]hutch.Template, error)
	// DeleteTemplate removes one, hutch.ErrNotFound if there is none.
	DeleteTemplate(ctx context.Context, name string) error
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

// Idempotency keeps the answers to calls that must not be done twice.
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
