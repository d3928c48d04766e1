// Package egress is the gateway: the only way out of a sandbox. It serves the network
// link of every sandbox of a node and decides what may leave.
//
// By itself it lets nothing out. A sandbox is let out by a policy, which is set by sandbox and
// epoch ([Client.SetPolicy]); one that has none, or whose policy does not hold in what the
// operator configured ([Client.SetEnv]), gets nowhere. Every attempt that is not allowed is
// refused at once, so that a program inside fails rather than hangs. What was decided is
// counted, and kept in a list of bounded length that whoever keeps records reads on
// ([Client.Audit]); what that had no room for is counted too.
//
// The gateway is a process of its own, so that what a guest sends is parsed by one that
// holds nothing else: no records, no keys, no control of a sandbox. It works on
// duplicates of the links. While it is gone nothing gets out, and connections that were
// open are lost; a new one is given links and policies again, and goes on from there.
// That the other side of its socket restarts costs nothing: a link that is attached again
// stays as it is, with its connections and its policy.
//
// A link ends by itself when the sandbox's end of it is closed. What was counted stays
// until the sandbox is detached.
//
// The parts: package flow decides and connects, policy says what is allowed, sniff reads first
// bytes, dns answers names.
//
// Lock order: Gateway.mu, then what flow and audit have, then ledger.mu. None is held while a
// link is closed.
//
// Start with [Serve] and [Start], the two sides of the socket, then [Gateway].
package egress

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/egress/flow"
	"hutch.dev/hutch/internal/egress/policy"
	"hutch.dev/hutch/internal/link"
	"hutch.dev/hutch/internal/runtime"
	"hutch.dev/hutch/internal/x/failpoint"
)

const (
	// MaxLinks bounds the links; a host runs out of memory for sandboxes before.
	MaxLinks = 4096
	// maxEnded bounds the sandboxes that have ended and are not detached.
	maxEnded = 1024
)

// outlet is one sandbox's way out. It is the link's handler.
type outlet struct {
	*flow.Sandbox
	audit

	id    hutch.SandboxID
	epoch hutch.Epoch
	inode uint64 // of the link's socket
	ep    *link.Endpoint
	since time.Time
	ended time.Time // zero while it is served

	rules *hutch.NetworkPolicy // nil = none: nothing is allowed
}

// Gateway serves links. It is safe for concurrent use.
type Gateway struct {
	log    *slog.Logger
	world  World
	slots  *flow.Slots
	ledger *ledger

	wg sync.WaitGroup // watches on ends

	mu      sync.Mutex
	outlets map[hutch.SandboxID]*outlet
	env     policy.Env
	closed  bool
}

// newGateway returns a Gateway without links, for that many connections.
func newGateway(w World, connections int, log *slog.Logger) *Gateway {
	g := &Gateway{log: log, world: w.withDefaults(), slots: flow.NewSlots(connections), ledger: newLedger(), outlets: map[hutch.SandboxID]*outlet{}}
	g.env = g.withOwn(policy.Env{})
	return g
}

// attach serves the link f of a sandbox, in place of one with the same or an older epoch; if
// that is the same link it is served on. f stays the caller's.
func (g *Gateway) attach(id hutch.SandboxID, e hutch.Epoch, kind runtime.LinkKind, f *os.File) error {
	inode, err := inodeOf(f)
	if err != nil {
		return fmt.Errorf("attach link: %w", err)
	}
	if kind == runtime.LinkPackets {
		if served, err := g.renew(id, e, inode); served || err != nil {
			return err
		}
	}
	o := &outlet{id: id, epoch: e, inode: inode, since: time.Now()}
	o.Sandbox = flow.New(flow.Config{
		Resolver: g.world.Resolver, Dial: g.world.Dial, Slots: g.slots, Inside: inside,
		Note: func(ev flow.Event) { g.note(o, ev) },
	})
	if o.ep, err = link.Attach(kind, f, o, g.log.With("sandbox", id)); err != nil {
		return err
	}
	old, err := g.install(id, o)
	if err != nil {
		o.close()
		return err
	}
	if old != nil {
		old.close()
	}
	return nil
}

// renew takes it that a link which is served is attached again: by a new node agent, or for a
// later epoch.
func (g *Gateway) renew(id hutch.SandboxID, e hutch.Epoch, inode uint64) (bool, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	o := g.outlets[id]
	switch {
	case g.closed, o == nil, !o.ended.IsZero(), o.inode != inode:
		return false, nil
	case e < o.epoch:
		return false, hutch.ErrStale
	}
	select {
	case <-o.ep.Done():
		return false, nil
	default:
	}
	if e > o.epoch {
		o.reset()
		o.epoch = e
	}
	g.log.Info("link attached again", "sandbox", id, "epoch", e)
	return true, nil
}

func inodeOf(f *os.File) (uint64, error) {
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, errors.New("a file without an inode")
	}
	return st.Ino, nil
}

// close ends the link and everything on it.
func (o *outlet) close() {
	o.ep.Close()
	o.Close()
}

// install makes o the outlet of id and returns the one it replaces.
func (g *Gateway) install(id hutch.SandboxID, o *outlet) (*outlet, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	old := g.outlets[id]
	switch {
	case g.closed:
		return nil, hutch.Errorf(hutch.CodeUnavailable, "the egress gateway is stopping")
	case old != nil && o.epoch < old.epoch:
		return nil, hutch.ErrStale
	case old == nil && g.livingLocked() >= MaxLinks:
		return nil, hutch.Errorf(hutch.CodeNoCapacity, "the egress gateway serves %d sandboxes and takes no more: end some first", MaxLinks)
	}
	if old != nil && old.epoch == o.epoch {
		o.take(&old.audit) // the same run: what it tried stays on its account
		o.rules = old.rules
		g.applyLocked(o)
	}
	g.outlets[id] = o
	g.wg.Go(func() {
		<-o.ep.Done()
		g.noteEnd(id, o)
	})
	failpoint.At(failpoint.EgressServes)
	g.log.Info("link attached", "sandbox", id, "epoch", o.epoch)
	return old, nil
}

func (g *Gateway) livingLocked() int {
	n := 0
	for _, o := range g.outlets {
		if o.ended.IsZero() {
			n++
		}
	}
	return n
}

// noteEnd records that the link of o has ended.
func (g *Gateway) noteEnd(id hutch.SandboxID, o *outlet) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.outlets[id] != o {
		return
	}
	o.ended = time.Now()
	if err := o.ep.Err(); err != nil {
		g.log.Error("link broke", "sandbox", id, "epoch", o.epoch, "error", err)
	} else {
		g.log.Info("link has ended", "sandbox", id, "epoch", o.epoch)
	}
	g.forgetLocked()
}

// forgetLocked drops the oldest of those that have ended, if they are too many.
func (g *Gateway) forgetLocked() {
	var oldest hutch.SandboxID
	n := 0
	for id, o := range g.outlets {
		if o.ended.IsZero() {
			continue
		}
		n++
		if oldest == "" || o.ended.Before(g.outlets[oldest].ended) {
			oldest = id
		}
	}
	if n > maxEnded {
		delete(g.outlets, oldest)
	}
}

// detach stops serving a sandbox and forgets it. Detaching what is not attached does
// nothing.
func (g *Gateway) detach(id hutch.SandboxID) {
	g.mu.Lock()
	o := g.outlets[id]
	delete(g.outlets, id)
	g.mu.Unlock()
	failpoint.At(failpoint.EgressDropped)
	if o != nil {
		o.close()
		g.ledger.forget(id)
		g.log.Info("link detached", "sandbox", id, "epoch", o.epoch)
	}
}

// list returns up to limit sandboxes whose names come after after, in order, without
// their recent refusals.
func (g *Gateway) list(after hutch.SandboxID, limit int) []Stats {
	g.mu.Lock()
	defer g.mu.Unlock()
	ids := slices.Sorted(maps.Keys(g.outlets))
	first, found := slices.BinarySearch(ids, after)
	if found {
		first++
	}
	all := []Stats{}
	for _, id := range ids[first:min(first+limit, len(ids))] {
		s := g.outlets[id].stats()
		s.Recent, s.Traffic = nil, nil
		all = append(all, s)
	}
	return all
}

// stats returns everything counted of one sandbox.
func (g *Gateway) stats(id hutch.SandboxID) (Stats, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	o := g.outlets[id]
	if o == nil {
		return Stats{}, hutch.ErrNotFound
	}
	s := o.stats()
	s.Lost = g.ledger.lostOf(id)
	return s, nil
}

// close ends every link.
func (g *Gateway) close() {
	g.mu.Lock()
	g.closed = true
	all := slices.Collect(maps.Values(g.outlets))
	clear(g.outlets)
	g.mu.Unlock()
	for _, o := range all {
		o.close()
	}
	g.wg.Wait()
}

// stats describes an outlet; the gateway's lock is held.
func (o *outlet) stats() Stats {
	s := Stats{Name: o.id, Epoch: o.epoch, Since: o.since, Ended: o.ended, Link: o.ep.Stats(), Policy: o.rules != nil}
	s.Refused, s.Recent, s.Forgotten = o.snapshot()
	s.Connections, s.Traffic = o.Connections(), o.Traffic()
	slices.SortFunc(s.Traffic, func(a, b flow.Traffic) int {
		return cmp.Or(cmp.Compare(b.Out+b.In, a.Out+a.In), cmp.Compare(a.Host, b.Host), cmp.Compare(a.Port, b.Port))
	})
	s.Traffic = s.Traffic[:min(len(s.Traffic), maxTraffic)]
	return s
}

// note takes down what was decided.
func (g *Gateway) note(o *outlet, e flow.Event) {
	if e.Action == policy.Deny {
		o.note(e, time.Now())
	}
	g.ledger.add(o.id, e)
}

var _ link.Handler = (*outlet)(nil)
