package flow

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"time"

	"hutch.dev/hutch/internal/egress/dns"
	"hutch.dev/hutch/internal/egress/policy"
	"hutch.dev/hutch/internal/egress/sniff"
	"hutch.dev/hutch/internal/link"
)

// conn is one connection, from its first packet to its end.
type conn struct {
	s       *Sandbox
	ctx     context.Context
	cancel  context.CancelFunc
	port    uint16
	addr    netip.Addr   // the true address
	targets []dns.Target // names that were resolved to it
	guest   *link.Conn   // nil until it is accepted
	began   time.Time

	// Guarded by s.mu.
	up      net.Conn // nil until it is dialled
	allowed bool
	query   policy.Query    // what it was allowed as
	rule    string          // by which rule
	denied  policy.Decision // why it was not, or no more
	// deniedAs is what it was then, if that is known.
	deniedAs policy.Query
	failed   string // why it could not be made though it was allowed
	cut      bool
	noted    bool
	traffic  *traffic // nil until it is allowed
	// out and in are counted where the connection is served; they are read when it has ended.
	out, in uint64
}

// ServeTCP implements link.Handler.
func (s *Sandbox) ServeTCP(r *link.Request) {
	dst := r.Flow().Dst
	if dst.Port() == namesPort {
		s.serveNames(r)
		return
	}
	d, targets := s.early(dst)
	c := &conn{s: s, port: dst.Port(), addr: dst.Addr(), targets: targets, began: time.Now()}
	if len(targets) > 0 {
		c.addr = targets[0].Addr
	}
	if d.Action == policy.Deny {
		c.deny(d)
		c.note()
		return
	}
	if !s.cfg.Slots.take(s) {
		c.deny(policy.Decision{Action: policy.Deny, Rule: RuleLimit, Reason: "there are too many connections at once"})
		c.note()
		return
	}
	defer s.cfg.Slots.release(s)
	c.ctx, c.cancel = context.WithCancel(r.Context())
	defer c.cancel()
	s.mu.Lock()
	s.conns[c] = struct{}{}
	s.mu.Unlock()
	defer c.note()
	defer c.end()
	if d.Action == policy.Allow {
		c.serveAtOnce(r)
	} else {
		c.serveInspected(r)
	}
}

// end takes the connection out of the table, and closes what is open upstream. The guest's end
// is the link's to close.
func (c *conn) end() {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	delete(c.s.conns, c)
	if c.up != nil {
		_ = c.up.Close()
	}
}

// note tells of the connection, once, when nothing more passes.
func (c *conn) note() {
	c.s.mu.Lock()
	if c.noted {
		c.s.mu.Unlock()
		return
	}
	c.noted = true
	e := Event{
		Time: time.Now(), Proto: string(policy.ProtoTCP), Addr: c.addr, Port: c.port,
		Action: policy.Allow, Rule: c.rule, Reason: c.failed, Out: c.out, In: c.in, Took: time.Since(c.began),
	}
	q := c.query
	if !c.allowed || c.denied.Action == policy.Deny {
		e.Action, e.Rule, e.Reason = policy.Deny, c.denied.Rule, c.denied.Reason
		if c.deniedAs.Proto != "" {
			q = c.deniedAs
		}
	}
	if q.Proto != "" {
		e.Proto = string(q.Proto)
	}
	e.Name = shown(q.Name)
	if e.Name == "" && len(c.targets) > 0 {
		e.Name = c.targets[0].Name
	}
	c.s.mu.Unlock()
	c.s.cfg.Note(e)
}

// deny remembers why the connection is denied; the first reason stays.
func (c *conn) deny(d policy.Decision) {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	c.denyLocked(d)
}

func (c *conn) denyLocked(d policy.Decision) {
	if c.denied.Action == "" {
		d.Action = policy.Deny
		c.denied = d
	}
}

// cutLocked ends a connection that is not allowed any more.
func (c *conn) cutLocked(d policy.Decision) {
	c.denyLocked(d)
	c.cut = true
	c.cancel()
	if c.up != nil {
		reset(c.up)
	}
	if c.guest != nil {
		c.guest.Abort()
	}
}

// allow asks the policy, and takes what it allows to be allowed from now on, in one step.
func (c *conn) allow(q policy.Query) policy.Decision {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	if c.cut {
		return c.denied
	}
	d := c.s.connectLocked(q)
	if d.Action != policy.Allow {
		return d
	}
	c.query, c.rule = q, d.Rule
	if !c.allowed {
		c.allowed = true
		host := q.Name
		if host == "" {
			host = c.addr.String()
		}
		c.traffic = c.s.trafficLocked(destination{host, c.port})
		c.traffic.connections.Add(1)
	}
	return d
}

// isCut reports whether a policy ended the connection.
func (c *conn) isCut() bool {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	return c.cut
}

// dial connects to where the connection was allowed to go. A failure is not told yet.
func (c *conn) dial() error {
	to := netip.AddrPortFrom(c.addr, c.port)
	ctx, cancel := context.WithTimeout(c.ctx, dialTime)
	defer cancel()
	up, err := c.s.cfg.Dial(ctx, to)
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	if err == nil && !c.cut {
		// Once more, with what holds now that it is made.
		if d := c.s.connectLocked(c.query); d.Action != policy.Allow {
			c.cutLocked(d)
		}
	}
	switch {
	case err != nil:
		c.failed = "connect: " + dialError(err)
		return err
	case c.cut:
		reset(up)
		return errCut
	}
	c.up = up
	return nil
}

var errCut = errors.New("cut by a policy")

// dialError is an error of a dial in words that say nothing of the host.
func dialError(err error) string {
	switch {
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded):
		return "no answer in time"
	case strings.Contains(err.Error(), "refused"):
		return "refused by the server"
	case strings.Contains(err.Error(), "unreachable"):
		return "the server cannot be reached"
	}
	return "it could not be made"
}

// reset closes a connection upstream at once.
func reset(up net.Conn) {
	if t, ok := up.(interface{ SetLinger(sec int) error }); ok {
		_ = t.SetLinger(0)
	}
	_ = up.Close()
}

// serveAtOnce serves a connection that is allowed whatever its bytes are.
func (c *conn) serveAtOnce(r *link.Request) {
	if d := c.allow(policy.Query{Proto: policy.ProtoTCP, Addr: c.addr, Port: c.port}); d.Action != policy.Allow {
		c.deny(d)
		return
	}
	if err := c.dial(); err != nil {
		return // refused inside, as it was outside
	}
	if !c.accept(r) {
		return
	}
	c.splice(&passing{c: c}, nil)
}

// accept answers the guest. It fails if the guest has gone, or the connection was cut.
func (c *conn) accept(r *link.Request) bool {
	guest, err := r.Accept()
	if err != nil {
		return false
	}
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	c.guest = guest
	if c.cut {
		guest.Abort()
		return false
	}
	return true
}

// serveInspected serves a connection that is allowed, or not, by its first bytes.
func (c *conn) serveInspected(r *link.Request) {
	if !c.accept(r) {
		return
	}
	raw, isRaw := c.raw()
	first, buf := c.readFirst(isRaw)
	proto := first.Protocol
	q, d := c.decide(first)
	if d.Action != policy.Allow && isRaw && lacks(d.Rule) {
		q, d = raw, c.allow(raw)
	}
	if d.Action != policy.Allow {
		c.denyAs(q, d)
		c.note() // the guest may take its time
		c.tell(proto, d)
		return
	}
	if err := c.dial(); err != nil {
		if c.isCut() {
			c.guest.Abort()
		} else {
			c.tellFailure(proto)
		}
		return
	}
	c.splice(c.guard(first, q), buf)
}

// lacks reports whether what decided was no rule, but that there was none: then a rule may be
// one for whatever is spoken.
func lacks(rule string) bool {
	switch rule {
	case policy.RuleDefault, policy.RuleMalformed, RuleNoName, RuleOther:
		return true
	}
	return false
}

// denyAs remembers why the connection is denied, and what for.
func (c *conn) denyAs(q policy.Query, d policy.Decision) {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	c.denyLocked(d)
	c.deniedAs = q
}

// raw is what the connection is if nothing of its bytes matters: allowed by a rule for TCP as
// such, for its address or for a name that was resolved to it.
func (c *conn) raw() (policy.Query, bool) {
	q := policy.Query{Proto: policy.ProtoTCP, Addr: c.addr, Port: c.port}
	for _, name := range append([]string{""}, c.names()...) {
		q.Name = name
		if c.s.connect(q).Action == policy.Allow {
			return q, true
		}
	}
	return policy.Query{}, false
}

func (c *conn) names() []string {
	var out []string
	for _, t := range c.targets {
		out = append(out, t.Name)
	}
	return out
}

// readFirst reads until it is known what the connection is, or time is up, and returns what was
// read. If a server may speak first, it does not wait long for the first byte.
func (c *conn) readFirst(serverMaySpeak bool) (sniff.First, []byte) {
	deadline := time.Now().Add(c.s.cfg.FirstTime)
	if serverMaySpeak {
		_ = c.guest.SetReadDeadline(time.Now().Add(min(c.s.cfg.Silence, c.s.cfg.FirstTime)))
	} else {
		_ = c.guest.SetReadDeadline(deadline)
	}
	defer func() { _ = c.guest.SetReadDeadline(time.Time{}) }()
	buf := make([]byte, 0, 2048)
	for {
		first, need := sniff.Look(buf, false)
		if need == 0 {
			return first, buf
		}
		if len(buf) == cap(buf) {
			bigger := make([]byte, len(buf), min(2*cap(buf), 2*sniff.MaxFirst))
			copy(bigger, buf)
			buf = bigger
		}
		n, err := c.guest.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		if err != nil {
			first, _ = sniff.Look(buf, true)
			return first, buf
		}
		_ = c.guest.SetReadDeadline(deadline)
	}
}

// decide decides by the first bytes, and returns what was asked.
func (c *conn) decide(f sniff.First) (policy.Query, policy.Decision) {
	q := policy.Query{Proto: policy.ProtoTCP, Addr: c.addr, Port: c.port}
	refuse := func(rule, reason string) (policy.Query, policy.Decision) {
		return q, policy.Decision{Action: policy.Deny, Rule: rule, Reason: reason}
	}
	switch f.Protocol {
	case sniff.Mining:
		return refuse(RuleMining, "it is the conversation of a miner with its pool")
	case sniff.TLS:
		q.Proto = policy.ProtoTLS
		switch {
		case f.Err != nil:
			return c.byAddress(q, policy.RuleMalformed, f.Err.Error())
		case f.Hello.Encrypted:
			return c.byAddress(q, RuleNoName, "an encrypted ClientHello (ECH) hides which host it is for: turn it off, or allow the address")
		case f.Hello.Name == "":
			return c.byAddress(q, RuleNoName, "TLS without the name of the host (SNI) goes only to an address that a rule allows")
		}
		q.Name = f.Hello.Name
		return c.byName(q)
	case sniff.HTTP:
		q.Proto = policy.ProtoHTTP
		if f.Err != nil {
			return refuse(policy.RuleMalformed, f.Err.Error())
		}
		return c.decideRequest(f.Head)
	case sniff.HTTP2:
		return c.byAddress(q, RuleNoName, "HTTP/2 without TLS hides which host it is for: use HTTP/1.1, or TLS")
	case sniff.SSH, sniff.Unknown:
	}
	return q, c.allow(q)
}

// decideRequest decides on one request.
func (c *conn) decideRequest(h sniff.Head) (policy.Query, policy.Decision) {
	q := policy.Query{Proto: policy.ProtoHTTP, Addr: c.addr, Port: c.port}
	host, _ := sniff.SplitHost(h.Host)
	if host == "" {
		return c.byAddress(q, RuleNoName, "a request without a Host goes only to an address that a rule allows")
	}
	if a, err := netip.ParseAddr(strings.Trim(host, "[]")); err == nil {
		if a.Unmap() != c.addr {
			return q, policy.Decision{Action: policy.Deny, Rule: RuleOther, Reason: "the request is for another address than the connection"}
		}
		return q, c.allow(q)
	}
	q.Name = host
	q.HTTP = &policy.HTTPQuery{Host: h.Host, Method: h.Method, Path: h.Path}
	return c.byName(q)
}

// byName decides on a connection that says which host it is for. Unless that was resolved to
// where it goes, that is its word only: a rule may deny it by that, and none allow.
func (c *conn) byName(q policy.Query) (policy.Query, policy.Decision) {
	name, err := policy.NormalName(q.Name)
	if err != nil {
		return q, policy.Decision{Action: policy.Deny, Rule: policy.RuleMalformed, Reason: "no host name: " + err.Error()}
	}
	q.Name = name
	for _, t := range c.targets {
		if t.Name == name {
			return q, c.allow(q)
		}
	}
	d := c.s.connect(q)
	if d.Action == policy.Deny && d.Rule != policy.RuleDefault {
		return q, d
	}
	_, d = c.byAddress(policy.Query{Proto: q.Proto, Addr: q.Addr, Port: q.Port}, RuleOther, fmt.Sprintf("%s was not resolved to this address for this sandbox", name))
	return q, d
}

// byAddress decides on a connection that is only allowed if its address is. If it is not, the
// reason is what it lacks.
func (c *conn) byAddress(q policy.Query, rule, reason string) (policy.Query, policy.Decision) {
	d := c.allow(q)
	if d.Action != policy.Allow && d.Rule == policy.RuleDefault {
		d.Rule, d.Reason = rule, reason
	}
	return q, d
}
