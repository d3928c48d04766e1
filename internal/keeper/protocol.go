package keeper

import (
	"context"
	"errors"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/x/fdpass"
)

// Version is the version of the operations below. Operations and fields are only ever
// added, so that a node agent can go on with the keeper that an older one started: that
// one answers an operation it does not know with hutch.ErrUnsupported.
const Version = 1

const service = "hutch-keeper"

// The operations.
const (
	opPut         = "put"
	opSetDeadline = "set_deadline"
	opGet         = "get"
	opList        = "list"
	opDelete      = "delete"
	opAttach      = "attach"
	opStop        = "stop"
)

// pageSize is how many entries one answer to list holds: with the longest labels they
// take less than half a message.
const pageSize = 64

// Bounds of names, in bytes.
const (
	maxName  = 64
	maxLabel = 32
)

// FileInfo describes one stored descriptor.
type FileInfo struct {
	Label   string `json:"label"`             // unique in its entry
	Process bool   `json:"process,omitempty"` // a pidfd, which the keeper kills at the deadline
}

// use is how a sandbox is used. An instant of one process's monotonic clock says nothing to
// another process, so it goes as a span.
type use struct {
	Ago  *int64 `json:"used_ago,omitempty"` // nanoseconds since its last use, negative if that is to come; nil = not known
	Idle int64  `json:"idle,omitempty"`     // nanoseconds for which it is kept after that; 0 = to its deadline
}

// maxAgo bounds both, so that they can be added to any instant: 146 years.
const maxAgo = 1 << 62

func useOf(l hutch.Lifetime) use {
	if l.UsedAt.IsZero() {
		return use{}
	}
	ago := int64(time.Since(l.UsedAt))
	return use{Ago: &ago, Idle: int64(l.Idle)}
}

// usedAt is the instant of the last use; zero if that is not known.
func (u use) usedAt(now time.Time) time.Time {
	if u.Ago == nil {
		return time.Time{}
	}
	return now.Add(-time.Duration(*u.Ago))
}

func (u use) validate() error {
	if u.Ago != nil && (*u.Ago > maxAgo || *u.Ago < -maxAgo) {
		return hutch.FieldErrorf("used_ago", "must be within %d nanoseconds", int64(maxAgo))
	}
	if u.Idle < 0 || u.Idle > maxAgo {
		return hutch.FieldErrorf("idle", "must be from 0 to %d nanoseconds", int64(maxAgo))
	}
	return nil
}

// Info describes an entry.
type Info struct {
	Name     hutch.SandboxID `json:"name"`
	Epoch    hutch.Epoch     `json:"epoch"`
	Deadline time.Time       `json:"deadline"`
	Files    []FileInfo      `json:"files"`            // in order; none once it has exited
	KilledAt time.Time       `json:"killed_at"`        // when the keeper killed it; zero if it did not
	Reason   string          `json:"reason,omitempty"` // why it did: one of the Reason constants
	ExitedAt time.Time       `json:"exited_at"`        // when the keeper saw it exit; zero while it lives
}

// End is why the sandbox ended, if the keeper killed it.
func (i Info) End() hutch.SandboxEnd {
	if i.Reason == ReasonIdle {
		return hutch.EndIdle
	}
	return hutch.EndExpired
}

type putRequest struct {
	Name     hutch.SandboxID `json:"name"`
	Epoch    hutch.Epoch     `json:"epoch"`
	Deadline int64           `json:"deadline"` // Unix nanoseconds
	use
	Meta  []byte     `json:"meta,omitempty"`
	Files []FileInfo `json:"files"`
}

type deadlineRequest struct {
	Name     hutch.SandboxID `json:"name"`
	Epoch    hutch.Epoch     `json:"epoch"`
	Deadline int64           `json:"deadline"`
	use
}

type nameRequest struct {
	Name hutch.SandboxID `json:"name"`
}

type getReply struct {
	Info
	use
	Meta []byte `json:"meta,omitempty"`
}

type listRequest struct {
	After hutch.SandboxID `json:"after,omitempty"`
}

type listReply struct {
	Entries []Info `json:"entries"`
	More    bool   `json:"more,omitempty"` // ask again, after the last of these
}

type stopRequest struct {
	Kill bool `json:"kill,omitempty"`
}

// validate checks a put before anything of it is believed; fds is how many files came.
func (p *putRequest) validate(fds int) error {
	if err := checkName(p.Name); err != nil {
		return err
	}
	if p.Deadline <= 0 {
		return hutch.FieldErrorf("deadline", "must be an instant: every sandbox ends some time")
	}
	if err := p.use.validate(); err != nil {
		return err
	}
	if len(p.Meta) > MaxMeta {
		return hutch.FieldErrorf("meta", "%d bytes are more than %d", len(p.Meta), MaxMeta)
	}
	if len(p.Files) != fds {
		return hutch.FieldErrorf("files", "%d are described and %d came", len(p.Files), fds)
	}
	if fds > MaxFiles {
		return hutch.FieldErrorf("files", "%d are more than %d", fds, MaxFiles)
	}
	seen, procs := map[string]bool{}, 0
	for _, f := range p.Files {
		if f.Label == "" || len(f.Label) > maxLabel || seen[f.Label] {
			return hutch.FieldErrorf("files", "a label is empty, long or used twice")
		}
		seen[f.Label] = true
		if f.Process {
			procs++
		}
	}
	if procs == 0 {
		return hutch.FieldErrorf("files", "no process: the keeper could not end this sandbox")
	}
	return nil
}

// checkName accepts what a sandbox id can be, and a little more.
func checkName(id hutch.SandboxID) error {
	ok := len(id) > 0 && len(id) <= maxName
	for _, c := range []byte(id) {
		ok = ok && (c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '-' || c == '_')
	}
	if !ok {
		return hutch.FieldErrorf("name", "must be 1 to %d characters of a-z, 0-9, - and _", maxName)
	}
	return nil
}

// Handle answers one call; see [fdpass.Handler].
func (k *Keeper) Handle(_ context.Context, c *fdpass.Call) (any, []int, error) {
	out, fds, err := k.handle(c)
	if e, ok := errors.AsType[*hutch.Error](err); ok {
		err = &fdpass.RemoteError{Code: string(e.Code), Message: e.Message}
	}
	return out, fds, err
}

func (k *Keeper) handle(c *fdpass.Call) (any, []int, error) {
	switch c.Op {
	case opPut:
		return nil, nil, k.handlePut(c)
	case opSetDeadline:
		var r deadlineRequest
		if err := decodeNamed(c, &r, &r.Name); err != nil {
			return nil, nil, err
		}
		if r.Deadline <= 0 {
			return nil, nil, hutch.FieldErrorf("deadline", "must be an instant: every sandbox ends some time")
		}
		if err := r.validate(); err != nil {
			return nil, nil, err
		}
		return nil, nil, k.setDeadline(r)
	case opGet:
		var r nameRequest
		if err := decodeNamed(c, &r, &r.Name); err != nil {
			return nil, nil, err
		}
		return k.get(r.Name)
	case opDelete:
		var r nameRequest
		if err := decodeNamed(c, &r, &r.Name); err != nil {
			return nil, nil, err
		}
		k.delete(r.Name)
		return nil, nil, nil
	case opList:
		var r listRequest
		if err := c.Decode(&r); err != nil {
			return nil, nil, err
		}
		infos := k.list(r.After, pageSize)
		return listReply{Entries: infos, More: len(infos) == pageSize}, nil, nil
	case opAttach:
		k.attach(c.Session.ID)
		return nil, nil, nil
	case opStop:
		var r stopRequest
		if err := c.Decode(&r); err != nil {
			return nil, nil, err
		}
		k.drain(r.Kill)
		return nil, nil, nil
	}
	return nil, nil, fdpass.Unsupported(c.Op)
}

func (k *Keeper) handlePut(c *fdpass.Call) error {
	var p putRequest
	if err := c.Decode(&p); err != nil {
		return err
	}
	if err := p.validate(len(c.FDs())); err != nil {
		return err
	}
	files, err := hold(p.Files, c.TakeFDs())
	if err != nil {
		return err
	}
	return k.put(p, files)
}

// decodeNamed decodes a request and checks the name in it.
func decodeNamed(c *fdpass.Call, r any, name *hutch.SandboxID) error {
	if err := c.Decode(r); err != nil {
		return err
	}
	return checkName(*name)
}
