package flow

import (
	"encoding/binary"
	"io"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"hutch.dev/hutch/internal/egress/dns"
	"hutch.dev/hutch/internal/egress/policy"
	"hutch.dev/hutch/internal/link"
)

// namesPort is where questions about names go, whatever the address.
const namesPort = 53

const (
	namesIdle  = 10 * time.Second // between two questions on a connection
	maxOnConn  = 200              // questions on a connection
	maxMessage = 4 << 10          // bytes of a question
)

// Datagram implements link.Handler: it answers questions about names.
func (s *Sandbox) Datagram(f link.Flow, payload []byte, answer func([]byte) bool) bool {
	p := s.current()
	if f.Dst.Port() != namesPort || p == nil {
		return false
	}
	q, a, done := s.names.Ask(p, payload)
	if done {
		s.reply(q, a, answer)
		return true
	}
	select {
	case s.lookups <- struct{}{}:
	default:
		s.reply(q, q.Busy(), answer)
		return true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		<-s.lookups
		return false
	}
	s.wg.Go(func() {
		defer func() { <-s.lookups }()
		s.reply(q, s.names.Resolve(s.ctx, p, q), answer)
	})
	return true
}

func (s *Sandbox) reply(q dns.Question, a dns.Answer, answer func([]byte) bool) {
	s.noteName(q, a)
	if b := q.Fit(a); len(b) > 0 {
		answer(b)
	}
}

// noteName notes what was refused, and what was resolved anew.
func (s *Sandbox) noteName(q dns.Question, a dns.Answer) {
	if a.Decision.Action != policy.Deny && len(a.Addrs) == 0 {
		return
	}
	e := Event{Time: time.Now(), Proto: "dns", Name: shown(q.Name), Action: a.Decision.Action, Rule: a.Decision.Rule, Reason: a.Decision.Reason}
	if len(a.Addrs) > 0 {
		e.Addr = a.Addrs[0]
	}
	s.cfg.Note(e)
}

// shown is a name as it may be shown: a host name as such, anything else quoted and cut.
func shown(name string) string {
	if name == "" {
		return ""
	}
	if n, err := policy.NormalName(name); err == nil {
		return n
	}
	if _, err := netip.ParseAddr(name); err == nil {
		return name
	}
	return strconv.QuoteToASCII(name[:min(len(name), 64)])
}

// serveNames answers questions on a connection.
func (s *Sandbox) serveNames(r *link.Request) {
	if !s.cfg.Slots.take(s) {
		return
	}
	defer s.cfg.Slots.release(s)
	c, err := r.Accept()
	if err != nil {
		return
	}
	head := make([]byte, 2)
	for range maxOnConn {
		if c.SetDeadline(time.Now().Add(namesIdle)) != nil {
			return
		}
		if _, err := io.ReadFull(c, head); err != nil {
			return
		}
		size := int(binary.BigEndian.Uint16(head))
		if size > maxMessage {
			return
		}
		message := make([]byte, size)
		if _, err := io.ReadFull(c, message); err != nil {
			return
		}
		p := s.current()
		if p == nil {
			return
		}
		q, a, done := s.names.Ask(p, message)
		if !done {
			a = s.lookUp(r, p, q)
		}
		s.noteName(q, a)
		if len(a.Message) == 0 {
			return
		}
		if _, err := c.Write(slices.Concat(binary.BigEndian.AppendUint16(nil, uint16(len(a.Message))), a.Message)); err != nil {
			return
		}
	}
}

func (s *Sandbox) lookUp(r *link.Request, p *policy.Policy, q dns.Question) dns.Answer {
	select {
	case s.lookups <- struct{}{}:
		defer func() { <-s.lookups }()
		return s.names.Resolve(r.Context(), p, q)
	default:
		return q.Busy()
	}
}
