// Package egress is the gateway: the only way out of a sandbox. It serves the network
// link of every sandbox of a node and decides what may leave.
//
// Today nothing may. Every attempt is refused at once, so that a program inside fails
// rather than hangs, and is counted. Name service, the host, other sandboxes and the
// gateway's own address are no exceptions: there is nothing behind a link but this
// package, and it opens no connection for anybody.
//
// The gateway is a process of its own, so that what a guest sends is parsed by one that
// holds nothing else: no records, no keys, no control of a sandbox. It works on
// duplicates of the links. While it is gone nothing gets out, and nothing is lost: a new
// one is given the links again, and it refuses from there on.
//
// A link ends by itself when the sandbox's end of it is closed. What was counted stays
// until the sandbox is detached.
//
// Lock order: Gateway.mu, then audit.mu. Neither is held while a link is closed.
//
// Start with [Serve] and [Start], the two sides of the socket, then [Gateway].
package egress

import (
	"log/slog"
	"maps"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"hutch.dev/hutch"
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
	audit

	epoch hutch.Epoch
	ep    *link.Endpoint
	since time.Time
	ended time.Time // zero while it is served
}

// Gateway serves links. It is safe for concurrent use.
type Gateway struct {
	log *slog.Logger

	wg sync.WaitGroup // watches on ends

	mu      sync.Mutex
	outlets map[hutch.SandboxID]*outlet
	closed  bool
}

// newGateway returns a Gateway without links.
func newGateway(log *slog.Logger) *Gateway {
	return &Gateway{log: log, outlets: map[hutch.SandboxID]*outlet{}}
}

// attach serves the link f of a sandbox, in place of one with the same or an older epoch.
// f stays the caller's.
func (g *Gateway) attach(id hutch.SandboxID, e hutch.Epoch, kind runtime.LinkKind, f *os.File) error {
	o := &outlet{epoch: e, since: time.Now()}
	var err error
	if o.ep, err = link.Attach(kind, f, o, g.log.With("sandbox", id)); err != nil {
		return err
	}
	old, err := g.install(id, o)
	if err != nil {
		o.ep.Close()
		return err
	}
	if old != nil {
		old.ep.Close()
	}
	return nil
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
		o.ep.Close()
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
		s := g.outlets[id].stats(id)
		s.Recent = nil
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
	return o.stats(id), nil
}

// close ends every link.
func (g *Gateway) close() {
	g.mu.Lock()
	g.closed = true
	all := slices.Collect(maps.Values(g.outlets))
	clear(g.outlets)
	g.mu.Unlock()
	for _, o := range all {
		o.ep.Close()
	}
	g.wg.Wait()
}

// stats describes an outlet; the gateway's lock is held.
func (o *outlet) stats(id hutch.SandboxID) Stats {
	s := Stats{Name: id, Epoch: o.epoch, Since: o.since, Ended: o.ended, Link: o.ep.Stats()}
	s.Refused, s.Recent, s.Forgotten = o.snapshot()
	return s
}

// Admit lets nothing out.
func (o *outlet) Admit(link.Flow) bool { return false }

// Refused counts what was not let out.
func (o *outlet) Refused(f link.Flow) { o.note(f, time.Now()) }

// ServeTCP closes a connection: none is admitted.
func (o *outlet) ServeTCP(_ link.Flow, c net.Conn) { _ = c.Close() }

// ServeUDP closes a flow: none is admitted.
func (o *outlet) ServeUDP(_ link.Flow, c net.Conn) { _ = c.Close() }

var _ link.Handler = (*outlet)(nil)
