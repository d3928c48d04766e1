package flow

import (
	"bytes"
	"errors"
	"io"
	"sync"
	"time"

	"hutch.dev/hutch/internal/egress/policy"
	"hutch.dev/hutch/internal/egress/sniff"
	"hutch.dev/hutch/internal/link"
)

// denial is an error of a guard: what the guest sent now may not pass.
type denial struct {
	proto    sniff.Protocol
	decision policy.Decision
}

func (d *denial) Error() string { return d.decision.Reason }

func denied(p sniff.Protocol, rule, reason string) *denial {
	return &denial{p, policy.Decision{Action: policy.Deny, Rule: rule, Reason: reason}}
}

// splice passes bytes both ways until both have ended. What the guest sends goes through
// guard, first of all first.
func (c *conn) splice(guard io.Writer, first []byte) {
	down := &toGuest{c: c}
	if r, ok := guard.(*requests); ok {
		down.watch = r.status
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if r, ok := guard.(*requests); ok {
			defer r.status.end()
		}
		if _, err := link.Copy(down, c.up); err != nil {
			c.abort(down)
			return
		}
		_ = c.guest.CloseWrite()
	}()
	var err error
	if len(first) > 0 {
		_, err = guard.Write(first)
	}
	if err == nil {
		_, err = c.guest.WriteTo(guard)
	}
	if d, ok := errors.AsType[*denial](err); ok {
		c.deny(d.decision)
		down.stop()
		reset(c.up)
		<-ended
		c.note()
		c.tell(d.proto, d.decision)
	} else if err != nil {
		c.abort(down)
	} else if w, ok := c.up.(interface{ CloseWrite() error }); ok {
		_ = w.CloseWrite()
	}
	<-ended
}

// abort resets both ends, unless the guest is being told why.
func (c *conn) abort(down *toGuest) {
	reset(c.up)
	if !down.isStopped() {
		c.guest.Abort()
	}
}

// upstream writes to the server and counts.
func (c *conn) upstream(b []byte) (int, error) {
	n, err := c.up.Write(b)
	c.out += uint64(n)
	c.traffic.out.Add(uint64(n))
	return n, err
}

// toGuest writes to the guest and counts, until it is stopped.
type toGuest struct {
	c     *conn
	watch *status // nil = none

	mu      sync.Mutex
	stopped bool
}

var errStopped = errors.New("the guest is told something else")

func (w *toGuest) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stopped {
		return 0, errStopped
	}
	if w.watch != nil {
		w.watch.see(b)
	}
	n, err := w.c.guest.Write(b)
	w.c.in += uint64(n)
	w.c.traffic.in.Add(uint64(n))
	return n, err
}

// stop lets nothing more through, once what is being written is.
func (w *toGuest) stop() {
	_ = w.c.guest.SetWriteDeadline(time.Now().Add(tellTime))
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stopped = true
}

func (w *toGuest) isStopped() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.stopped
}

// guard is what watches over a connection that first began, and was allowed as q.
func (c *conn) guard(first sniff.First, q policy.Query) io.Writer {
	switch {
	case first.Protocol == sniff.TLS && q.Proto == policy.ProtoTLS && q.Name != "":
		return &handshake{c: c, hello: first.Hello}
	case first.Protocol == sniff.HTTP && q.Proto == policy.ProtoHTTP && q.Name != "":
		return &requests{c: c, status: newStatus()}
	}
	return &passing{c: c}
}

// passing lets everything through but miners.
type passing struct {
	c    *conn
	seen []byte
	done bool
}

func (g *passing) Write(b []byte) (int, error) {
	if g.done {
		return g.c.upstream(b)
	}
	look := b
	if len(g.seen) > 0 {
		look = append(g.seen, b[:min(len(b), maxSeen)]...)
	}
	mining, need := sniff.LooksLikeMining(look)
	if mining {
		return 0, denied(sniff.Mining, RuleMining, "it is the conversation of a miner with its pool")
	}
	if g.done = need == 0; g.done {
		g.seen = nil
	} else {
		g.seen = bytes.Clone(look)
	}
	return g.c.upstream(b)
}

// maxSeen is more than it takes to recognise a miner.
const maxSeen = 8 << 10

// handshake lets a TLS connection through, and no second ClientHello for another host.
type handshake struct {
	c       *conn
	hello   sniff.Hello
	records *sniff.Records // nil until the first ClientHello has passed
	done    bool
}

func (g *handshake) Write(b []byte) (int, error) {
	if g.done {
		return g.c.upstream(b)
	}
	pass := b
	if g.records == nil {
		// All of the first ClientHello is in the first bytes.
		g.records = sniff.NewRecords(g.hello)
		if _, err := g.c.upstream(b[:g.hello.Size]); err != nil {
			return 0, err
		}
		pass = b[g.hello.Size:]
	}
	out, err := g.records.Next(pass)
	if err != nil {
		return 0, denied(sniff.TLS, policy.RuleMalformed, err.Error())
	}
	g.done = g.records.Settled()
	if len(out) > 0 {
		if _, err := g.c.upstream(out); err != nil {
			return 0, err
		}
	}
	return len(b), nil
}
