package fake

import (
	"context"
	"net/http"
	"sync"

	"hutch.dev/hutch"
)

// Op names a call of the port, for Host.Fail and Host.Block.
type Op string

// The calls that can be made to fail or block. Kill and Sweep can only block: they
// must work.
const (
	OpCreate     Op = "create"
	OpAdopt      Op = "adopt"
	OpList       Op = "list"
	OpSweep      Op = "sweep"
	OpStart      Op = "start"
	OpCheckpoint Op = "checkpoint"
	OpPause      Op = "pause"
	OpResume     Op = "resume"
	OpKill       Op = "kill"
	OpStats      Op = "stats"
)

// Host is a machine that runs sandboxes. It outlives the Runtimes on it. Its methods
// are safe for concurrent use.
type Host struct {
	mu       sync.Mutex
	machines map[hutch.SandboxID]*machine // nil while it is being made
	fail     map[Op]error
	block    map[Op]chan struct{}
	calls    map[Op]int
	blocked  chan struct{} // closed and replaced when a call begins to block
	services http.Handler  // answers what no scripted guest does; nil = nobody
	deaf     bool          // by Deafen
	wait     sync.WaitGroup
}

// NewHost returns a host without sandboxes.
func NewHost() *Host {
	return &Host{
		machines: map[hutch.SandboxID]*machine{},
		fail:     map[Op]error{},
		block:    map[Op]chan struct{}{},
		calls:    map[Op]int{},
		blocked:  make(chan struct{}),
	}
}

// Close ends and removes every sandbox, and returns once nothing of them runs.
func (h *Host) Close() {
	h.mu.Lock()
	all := make([]*machine, 0, len(h.machines))
	for _, m := range h.machines {
		if m != nil {
			all = append(all, m)
		}
	}
	h.mu.Unlock()
	for _, m := range all {
		h.remove(m)
	}
	h.wait.Wait()
}

// Fail makes every call of op fail with err, until Fail(op, nil).
func (h *Host) Fail(op Op, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.fail[op] = err
}

// Block makes every call of op wait, until release is called or the call's context
// ends.
func (h *Host) Block(op Op) (release func()) {
	ch := make(chan struct{})
	h.mu.Lock()
	defer h.mu.Unlock()
	h.block[op] = ch
	return sync.OnceFunc(func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		if h.block[op] == ch {
			delete(h.block, op)
		}
		close(ch)
	})
}

// Blocked returns a channel that is closed when the next call begins to block.
func (h *Host) Blocked() <-chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.blocked
}

// Deafen makes the guests of machines that are started from now on silent from birth, or not.
func (h *Host) Deafen(on bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.deaf = on
}

func (h *Host) deafens() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.deaf
}

// Serve makes h answer every call of an identified guest that is not in guestapi's own
// list of commands: a test can have the real services of a guest agent behind it. It is
// for before the first sandbox.
func (h *Host) Serve(services http.Handler) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.services = services
}

// Calls says how often op was called.
func (h *Host) Calls(op Op) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.calls[op]
}

// Kill ends the process of a sandbox, started or not, as any root of the host could.
func (h *Host) Kill(id hutch.SandboxID) {
	if m := h.find(id); m != nil {
		m.exit(false)
	}
}

// Guest returns the guest of a sandbox, nil if there is no such sandbox or it has not
// been started.
func (h *Host) Guest(id hutch.SandboxID) *Guest {
	h.mu.Lock()
	m := h.machines[id]
	h.mu.Unlock()
	if m == nil {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.guest
}

// enter is the beginning of every call: it counts, blocks and fails as told.
func (h *Host) enter(ctx context.Context, op Op) error {
	h.mu.Lock()
	h.calls[op]++
	ch := h.block[op]
	if ch != nil {
		close(h.blocked)
		h.blocked = make(chan struct{})
	}
	h.mu.Unlock()
	if ch != nil {
		select {
		case <-ch:
		case <-ctx.Done():
		}
	}
	if ctx.Err() != nil {
		return hutch.Wrap(hutch.CodeCancelled, context.Cause(ctx), "%s", hutch.ErrCancelled.Message)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.fail[op]
}

// reserve takes an id for a machine that is being made.
func (h *Host) reserve(id hutch.SandboxID) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if _, ok := h.machines[id]; ok {
		return hutch.Errorf(hutch.CodeConflict, "sandbox %s exists", id)
	}
	h.machines[id] = nil
	return nil
}

// settle puts a machine in its reserved place, or gives the place up if it is nil.
func (h *Host) settle(id hutch.SandboxID, m *machine) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if m == nil {
		delete(h.machines, id)
		return
	}
	h.machines[id] = m
}

// find returns a machine of which anything is left.
func (h *Host) find(id hutch.SandboxID) *machine {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.machines[id]
}

// remove ends a machine and everything of it, and returns once nothing is left.
func (h *Host) remove(m *machine) {
	m.exit(false)
	<-m.reaped
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.machines[m.spec.ID] == m {
		delete(h.machines, m.spec.ID)
	}
}
