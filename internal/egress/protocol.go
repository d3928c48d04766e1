package egress

import (
	"context"
	"errors"
	"os"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/link"
	"hutch.dev/hutch/internal/runtime"
	"hutch.dev/hutch/internal/x/fdpass"
)

// Version is the version of the operations below.
const Version = 1

const service = "hutch-egress"

// The operations.
const (
	opAttach = "attach"
	opDetach = "detach"
	opList   = "list"
	opStats  = "stats"
	opStop   = "stop"
)

// pageSize is how many sandboxes one answer to list holds: half a message.
const pageSize = 64

// maxName is how long a sandbox's name may be, in bytes.
const maxName = 64

// Stats is what is known of a sandbox's link and what it tried.
type Stats struct {
	Name      hutch.SandboxID `json:"name"`
	Epoch     hutch.Epoch     `json:"epoch"`
	Since     time.Time       `json:"since"` // when it was attached
	Ended     time.Time       `json:"ended"` // when the link ended; zero while it is served
	Refused   Counts          `json:"refused"`
	Recent    []Refusal       `json:"recent,omitempty"`    // latest first
	Forgotten uint64          `json:"forgotten,omitempty"` // destinations that Recent had no room for
	Link      link.Stats      `json:"link"`
}

type attachRequest struct {
	Name  hutch.SandboxID  `json:"name"`
	Epoch hutch.Epoch      `json:"epoch"`
	Kind  runtime.LinkKind `json:"kind"`
}

type nameRequest struct {
	Name hutch.SandboxID `json:"name"`
}

type listRequest struct {
	After hutch.SandboxID `json:"after,omitempty"`
}

type listReply struct {
	Sandboxes []Stats `json:"sandboxes"`
	More      bool    `json:"more,omitempty"` // ask again, after the last of these
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

// controller answers the calls on the socket.
type controller struct {
	*Gateway
	stop context.CancelFunc // ends the process
}

// Closed does nothing: a gateway serves on when its client has gone.
func (c *controller) Closed(fdpass.Session) {}

// Handle answers one call; see [fdpass.Handler].
func (c *controller) Handle(_ context.Context, call *fdpass.Call) (any, []int, error) {
	out, err := c.handle(call)
	if e, ok := errors.AsType[*hutch.Error](err); ok {
		err = &fdpass.RemoteError{Code: string(e.Code), Message: e.Message}
	}
	return out, nil, err
}

func (c *controller) handle(call *fdpass.Call) (any, error) {
	switch call.Op {
	case opAttach:
		return nil, c.handleAttach(call)
	case opDetach, opStats:
		var r nameRequest
		if err := call.Decode(&r); err != nil {
			return nil, err
		}
		if err := checkName(r.Name); err != nil {
			return nil, err
		}
		if call.Op == opStats {
			return c.stats(r.Name)
		}
		c.detach(r.Name)
		return nil, nil
	case opList:
		var r listRequest
		if err := call.Decode(&r); err != nil {
			return nil, err
		}
		all := c.list(r.After, pageSize)
		return listReply{Sandboxes: all, More: len(all) == pageSize}, nil
	case opStop:
		c.stop()
		return nil, nil
	}
	return nil, fdpass.Unsupported(call.Op)
}

func (c *controller) handleAttach(call *fdpass.Call) error {
	var r attachRequest
	if err := call.Decode(&r); err != nil {
		return err
	}
	if err := checkName(r.Name); err != nil {
		return err
	}
	if len(call.FDs()) != 1 {
		return hutch.FieldErrorf("link", "one file must come along, %d did", len(call.FDs()))
	}
	f := os.NewFile(uintptr(call.TakeFDs()[0]), "link")
	defer func() { _ = f.Close() }()
	return c.attach(r.Name, r.Epoch, r.Kind, f)
}
