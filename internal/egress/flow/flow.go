// Package flow is what becomes of the packets of one sandbox: names are answered,
// connections decided on, dialled and passed through, and everything else is refused.
//
// It owns a sandbox's connections and what they are allowed by. What a rule means is the
// policy's business, what bytes say is that of package sniff, which address a name has is
// that of package dns, and the guest's side of a connection is the link's.
//
// A connection is for the host it says it is for, and only if that host was resolved, for this
// sandbox, to the address it goes to; what says nothing needs a rule for that address. In order:
//
//  1. its first packet: what no first bytes could make allowed is refused;
//  2. before it is answered: what is allowed whatever its first bytes are is dialled, and
//     answered once that has succeeded, so that a refusal of the server is one inside too;
//  3. its first bytes, for a bounded time: TLS goes by the name in the ClientHello, HTTP by the
//     Host, and so does every further request on the same connection;
//  4. the dial goes to the address that the name was pinned to, and to no other.
//
// Bytes that pass are passed as they are. A denial is told in the protocol that is spoken: as
// an alert of TLS, a 403 that says what missed, REFUSED, or a reset.
//
// The decision on a connection and its place among the connections are one step under
// Sandbox.mu, so that a policy that is replaced finds every connection that the old one
// allowed, and ends those that the new one denies.
//
// Lock order: Sandbox.mu, then Slots.mu. Neither is held while anything is read, written,
// dialled or resolved, or while Note is called.
//
// Start with [Sandbox.ServeTCP].
package flow

import (
	"context"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"hutch.dev/hutch/internal/egress/dns"
	"hutch.dev/hutch/internal/egress/policy"
	"hutch.dev/hutch/internal/link"
)

// Rules that decide here and are none of a policy's.
const (
	RuleProtocol = "protocol"     // it is not TCP
	RuleLimit    = "limit"        // there are too many
	RuleMining   = "mining"       // a miner talks to its pool
	RuleNoName   = "no-name"      // it says nothing, or hides, which host it is for
	RuleOther    = "not-resolved" // the host it is for was not resolved to where it goes
)

const (
	dialTime     = 10 * time.Second
	firstTime    = 10 * time.Second       // for the first bytes to say what they begin
	silence      = 250 * time.Millisecond // after which a server is taken to speak first, where that may be
	maxLookups   = 32                     // at once
	maxTraffic   = 256                    // destinations that bytes are counted by
	otherTraffic = "others"
)

// Config is what a Sandbox needs to know.
type Config struct {
	Resolver dns.Resolver
	// Dial connects to an address over TCP. It is only given addresses that are allowed.
	Dial func(ctx context.Context, to netip.AddrPort) (net.Conn, error)
	// Note is told of decisions. It must not block.
	Note func(Event)
	// Slots bound the connections of all sandboxes together.
	Slots *Slots
	// Inside is the sandbox's own network.
	Inside netip.Prefix

	FirstTime, Silence time.Duration // 0 = the defaults
}

// Event is a decision, or the end of a connection.
type Event struct {
	Time   time.Time
	Proto  string     // tcp, tls, http, dns, udp, icmp, …
	Name   string     // the host; empty if it is not known
	Addr   netip.Addr // invalid if there is none
	Port   uint16     // 0 if there is none
	Action policy.Action
	Rule   string
	Reason string
	Out    uint64 // bytes that left
	In     uint64 // bytes that came
	Took   time.Duration
}

// Traffic is what went to one destination and came from it.
type Traffic struct {
	Host        string `json:"host"` // a name, or an address
	Port        uint16 `json:"port,omitempty"`
	Connections uint64 `json:"connections"`
	Out         uint64 `json:"out"`
	In          uint64 `json:"in"`
}

type destination struct {
	host string
	port uint16
}

type traffic struct{ connections, out, in atomic.Uint64 }

// Sandbox handles one sandbox's link. It is safe for concurrent use.
type Sandbox struct {
	cfg     Config
	names   *dns.Names
	ctx     context.Context // of lookups
	cancel  context.CancelFunc
	wg      sync.WaitGroup // lookups
	lookups chan struct{}
	asked   atomic.Pointer[asked] // what Admit was asked last

	mu      sync.Mutex
	policy  *policy.Policy // nil = none was set, and nothing is allowed
	expiry  *time.Timer    // nil = none
	closed  bool
	conns   map[*conn]struct{}
	traffic map[destination]*traffic
}

var _ link.Handler = (*Sandbox)(nil)

// New returns a Sandbox that allows nothing.
func New(cfg Config) *Sandbox {
	if cfg.FirstTime == 0 {
		cfg.FirstTime = firstTime
	}
	if cfg.Silence == 0 {
		cfg.Silence = silence
	}
	ctx, cancel := context.WithCancel(context.Background())
	return &Sandbox{
		cfg: cfg, ctx: ctx, cancel: cancel,
		names:   dns.New(dns.Config{Resolver: cfg.Resolver, Inside: cfg.Inside}),
		lookups: make(chan struct{}, maxLookups),
		conns:   make(map[*conn]struct{}),
		traffic: make(map[destination]*traffic),
	}
}

// Close ends what is under way. The link is closed before.
func (s *Sandbox) Close() {
	s.cancel()
	s.mu.Lock()
	s.closed = true
	if s.expiry != nil {
		s.expiry.Stop()
	}
	s.mu.Unlock()
	s.wg.Wait()
}

// SetPolicy replaces the policy; nil is none, and allows nothing. Connections that the new one
// denies are cut before it returns. When a rule of it expires, that is as if it was replaced.
func (s *Sandbox) SetPolicy(p *policy.Policy) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.setLocked(p)
}

func (s *Sandbox) setLocked(p *policy.Policy) {
	if s.expiry != nil {
		s.expiry.Stop()
		s.expiry = nil
	}
	if p != nil {
		p = p.At(time.Now())
		if until := p.Until(); !until.IsZero() && !s.closed {
			s.expiry = time.AfterFunc(time.Until(until), func() { s.expire(p) })
		}
	}
	s.policy = p
	for c := range s.conns {
		if c.allowed {
			if d := s.connectLocked(c.query); d.Action != policy.Allow {
				c.cutLocked(d)
			}
		}
	}
}

// expire replaces p, which has rules that are over, unless something else did.
func (s *Sandbox) expire(p *policy.Policy) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.policy == p && !s.closed {
		s.setLocked(p)
	}
}

// current is the policy now; nil if there is none.
func (s *Sandbox) current() *policy.Policy {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.currentLocked()
}

func (s *Sandbox) currentLocked() *policy.Policy {
	if s.policy == nil {
		return nil
	}
	return s.policy.At(time.Now()) // the timer may be late
}

// connectLocked asks about a connection of which all is known. What it would take more for is
// denied: a rule about requests can't be held against what is within TLS.
func (s *Sandbox) connectLocked(q policy.Query) policy.Decision {
	p := s.currentLocked()
	if p == nil {
		return noPolicy()
	}
	d := p.Connect(q)
	if d.Action == policy.Inspect {
		return policy.Decision{Action: policy.Deny, Rule: d.Rule, Reason: d.Rule + " looks at requests, which can't be read here"}
	}
	return d
}

func (s *Sandbox) connect(q policy.Query) policy.Decision {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.connectLocked(q)
}

func noPolicy() policy.Decision {
	return policy.Decision{Action: policy.Deny, Rule: policy.RuleDefault, Reason: "this sandbox has no network policy, so nothing is allowed"}
}

// early decides on a connection that has said nothing. The targets are the names that its
// address was given for; each of them knows the true address.
func (s *Sandbox) early(dst netip.AddrPort) (policy.Decision, []dns.Target) {
	p := s.current()
	if p == nil {
		return noPolicy(), nil
	}
	targets := s.names.Of(dst.Addr())
	addr := dst.Addr()
	var names []string
	for _, t := range targets {
		addr = t.Addr // a stand-in has one target; others have all the same address
		names = append(names, t.Name)
	}
	return p.Early(addr, dst.Port(), names...), targets
}

// asked is what was decided on a first packet.
type asked struct {
	dst      netip.AddrPort
	decision policy.Decision
	targets  []dns.Target
}

// Admit implements link.Handler.
func (s *Sandbox) Admit(f link.Flow) bool {
	if f.Dst.Port() == namesPort {
		return s.current() != nil
	}
	d, targets := s.early(f.Dst)
	if d.Action == policy.Deny {
		s.asked.Store(&asked{f.Dst, d, targets}) // for Refused, which follows
	}
	return d.Action != policy.Deny
}

// why says why a connection was refused at its first packet.
func (s *Sandbox) why(dst netip.AddrPort) (policy.Decision, []dns.Target) {
	if a := s.asked.Swap(nil); a != nil && a.dst == dst {
		return a.decision, a.targets
	}
	return s.early(dst)
}

// Refused implements link.Handler.
func (s *Sandbox) Refused(f link.Flow) {
	e := Event{Time: time.Now(), Proto: string(f.Proto), Addr: f.Dst.Addr(), Port: f.Dst.Port(), Action: policy.Deny}
	switch {
	case f.Proto != link.TCP:
		e.Rule, e.Reason = RuleProtocol, "nothing but TCP and questions about names leaves a sandbox"
	case f.Dst.Addr().Is6():
		e.Rule, e.Reason = RuleProtocol, "a sandbox has no IPv6: names that have nothing else are given an IPv4 address inside"
	default:
		d, targets := s.why(f.Dst)
		e.Rule, e.Reason = d.Rule, d.Reason
		if len(targets) > 0 {
			e.Name, e.Addr = targets[0].Name, targets[0].Addr
		}
		if d.Action != policy.Deny {
			e.Rule, e.Reason = RuleLimit, "the sandbox has too many connections at once"
		}
	}
	s.cfg.Note(e)
}

// Traffic returns what went where.
func (s *Sandbox) Traffic() []Traffic {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]Traffic, 0, len(s.traffic))
	for d, t := range s.traffic {
		out = append(out, Traffic{d.host, d.port, t.connections.Load(), t.out.Load(), t.in.Load()})
	}
	return out
}

// trafficLocked is where the bytes of a connection are counted.
func (s *Sandbox) trafficLocked(d destination) *traffic {
	t := s.traffic[d]
	if t == nil && len(s.traffic) >= maxTraffic {
		d = destination{host: otherTraffic}
		t = s.traffic[d]
	}
	if t == nil {
		t = new(traffic)
		s.traffic[d] = t
	}
	return t
}

// Connections is how many connections there are, allowed or not yet.
func (s *Sandbox) Connections() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.conns)
}

// Slots bound the connections of all sandboxes together. When they get scarce, a sandbox that
// has many gets no more, so that those that have few still do.
type Slots struct {
	max int

	mu    sync.Mutex
	total int
	by    map[*Sandbox]int
}

// fairShare is how many connections a sandbox may have when slots are scarce.
const fairShare = 64

// NewSlots returns room for n connections.
func NewSlots(n int) *Slots { return &Slots{max: n, by: make(map[*Sandbox]int)} }

func (l *Slots) take(s *Sandbox) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.total >= l.max || l.total >= l.max/4*3 && l.by[s] >= fairShare {
		return false
	}
	l.total++
	l.by[s]++
	return true
}

func (l *Slots) release(s *Sandbox) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.total--
	if l.by[s]--; l.by[s] == 0 {
		delete(l.by, s)
	}
}
