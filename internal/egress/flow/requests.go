package flow

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"time"

	"hutch.dev/hutch/internal/egress/policy"
	"hutch.dev/hutch/internal/egress/sniff"
)

// requests lets the requests of a connection through one by one, each if it is allowed. Bytes
// are passed as they came; only the head of a request is held until there is all of it.
type requests struct {
	c      *conn
	status *status

	head    []byte // what there is of one
	body    sniff.Body
	n       int  // requests so far
	waiting bool // for the server to agree to another protocol
	opaque  bool // it has
}

func (g *requests) Write(b []byte) (int, error) {
	size := len(b)
	for len(b) > 0 {
		var err error
		switch {
		case g.opaque:
			_, err = g.c.upstream(b)
			b = nil
		case g.waiting:
			g.waiting = false
			g.opaque, err = g.status.wait(g.c.ctx)
		case !g.body.Empty():
			b, err = g.passBody(b)
		default:
			b, err = g.passHead(b)
		}
		if err != nil {
			return 0, err
		}
	}
	return size, nil
}

func (g *requests) passBody(b []byte) ([]byte, error) {
	n, err := g.body.Take(b)
	if err != nil {
		return nil, denied(sniff.HTTP, policy.RuleMalformed, err.Error())
	}
	_, err = g.c.upstream(b[:n])
	return b[n:], err
}

func (g *requests) passHead(b []byte) ([]byte, error) {
	held := len(g.head)
	if held > 0 {
		b = append(g.head, b...)
		g.head = nil
	}
	h, need, err := sniff.ParseHead(b)
	switch {
	case err != nil:
		return nil, denied(sniff.HTTP, policy.RuleMalformed, err.Error())
	case need > 0:
		g.head = bytes.Clone(b)
		return nil, nil
	}
	if q, d := g.c.decideRequest(h); d.Action != policy.Allow {
		g.c.denyAs(q, d)
		return nil, &denial{sniff.HTTP, d}
	}
	if g.n++; h.Upgrade {
		// Whether the server agrees is seen in its first answer; in a later one it could not be told
		// from what is in an answer's body.
		if g.n > 1 {
			return nil, denied(sniff.HTTP, policy.RuleMalformed, "another protocol (Upgrade) can only be asked for in the first request of a connection")
		}
		g.waiting = true
	}
	g.body = h.Body
	_, err = g.c.upstream(b[:h.Size])
	return b[h.Size:], err
}

// status reads from a server's first bytes whether it agreed to another protocol.
type status struct {
	mu      sync.Mutex
	line    []byte
	decided bool
	agreed  bool
	done    chan struct{}
}

func newStatus() *status { return &status{done: make(chan struct{})} }

const agreement = "HTTP/1.1 101 "

// see is shown what the server sends.
func (s *status) see(b []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.decided {
		return
	}
	s.line = append(s.line, b[:min(len(b), len(agreement)-len(s.line))]...)
	if len(s.line) == len(agreement) || !bytes.HasPrefix([]byte(agreement), s.line) {
		s.decideLocked(string(s.line) == agreement)
	}
}

// end is told that nothing more comes.
func (s *status) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.decided {
		s.decideLocked(false)
	}
}

func (s *status) decideLocked(agreed bool) {
	s.decided, s.agreed, s.line = true, agreed, nil
	close(s.done)
}

// agreeTime is how long a server may take to agree to another protocol, once the guest has
// begun to speak it, or something.
const agreeTime = 30 * time.Second

// wait returns once it is known, with the answer.
func (s *status) wait(ctx context.Context) (bool, error) {
	patience := time.NewTimer(agreeTime)
	defer patience.Stop()
	select {
	case <-s.done:
	case <-patience.C:
		return false, errNoAnswer
	case <-ctx.Done():
		return false, ctx.Err()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.agreed, nil
}

var errNoAnswer = errors.New("the server says neither yes nor no to another protocol")
