package policy

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"hutch.dev/hutch"
)

// Name decides whether a name may be looked up: if some rule could allow a connection to it.
// Rules by address do not count, since otherwise they would let any name out. The name is as
// it was asked for. Action is Allow or Deny.
func (p *Policy) Name(name string) Decision {
	n, err := NormalName(name)
	if err != nil {
		return Decision{Deny, RuleMalformed, "no host name: " + err.Error()}
	}
	left := map[protoSet]portSet{bitTCP: allPorts, bitTLS: allPorts, bitHTTP: allPorts}
	for i := range p.rules {
		r := &p.rules[i]
		if !r.name.matches(n) {
			continue
		}
		for bit, ports := range left {
			if r.protos()&bit == 0 || !ports.overlaps(r.ports) {
				continue
			}
			if r.allow {
				return Decision{Allow, r.label, ""}
			}
			if r.http == nil {
				left[bit] = ports.minus(r.ports)
			}
		}
		if !r.allow && !slices.ContainsFunc(protoBits, func(b protoSet) bool { return len(left[b]) > 0 }) {
			return Decision{Deny, r.label, fmt.Sprintf("%s denies %s", r.label, n)}
		}
	}
	return Decision{Deny, RuleDefault, "no rule allows " + n}
}

// Resolved decides whether an address may be given as an answer for name. It asks about the
// address only: ask Name about the name first.
func (p *Policy) Resolved(name string, addr netip.Addr) Decision {
	n, err := NormalName(name)
	if err != nil {
		return Decision{Deny, RuleMalformed, "no host name: " + err.Error()}
	}
	a, err := normalAddr(addr)
	if err != nil {
		return Decision{Deny, RuleMalformed, err.Error()}
	}
	if what := p.env.unreachable(n, a); what != "" {
		return unreachable(a, what)
	}
	return Decision{Action: Allow}
}

func unreachable(a netip.Addr, what string) Decision {
	return Decision{Deny, RuleUnreachable, fmt.Sprintf("%s is never reached from a sandbox: it is %s", a, what)}
}

// Override is what the operator said of a name.
func (p *Policy) Override(name string) (Override, bool) {
	n, err := NormalName(name)
	if err != nil {
		return Override{}, false
	}
	o, ok := p.env.names[n]
	o.Addrs = slices.Clone(o.Addrs)
	return o, ok
}

// Early decides what can be decided before a connection has said anything, so that it need
// not be accepted first. Names are those that were resolved to addr for this sandbox.
// Inspect is that it depends on what the connection says: accept it, read, and ask Connect.
func (p *Policy) Early(addr netip.Addr, port uint16, names ...string) Decision {
	a, err := normalAddr(addr)
	if err != nil {
		return Decision{Deny, RuleMalformed, err.Error()}
	}
	var known []string
	for _, name := range names {
		if n, err := NormalName(name); err == nil {
			known = append(known, n)
		}
	}
	// The address alone, and under each name: all must say the same.
	first := p.early(a, port, "")
	for _, n := range known {
		if d := p.early(a, port, n); d.Action != first.Action {
			return Decision{Inspect, d.Rule, ""}
		}
	}
	return first
}

// early is Early of a connection that will turn out to be for name.
func (p *Policy) early(a netip.Addr, port uint16, name string) Decision {
	var got Decision
	for i, proto := range []Proto{ProtoTCP, ProtoTLS, ProtoHTTP} {
		d := p.Connect(Query{Proto: proto, Name: name, Addr: a, Port: port})
		if i == 0 {
			got = d
		} else if d.Action != got.Action {
			return Decision{Inspect, d.Rule, ""}
		}
	}
	return got
}

// Connect decides on a connection with all that is known of it. Inspect is that a rule
// looks at requests and there is none in q.
func (p *Policy) Connect(q Query) Decision {
	a, name, d := p.settle(q)
	if d.Action == Deny {
		return d
	}
	bit := bitOf(q.Proto)
	for i := range p.rules {
		r := &p.rules[i]
		if !r.matches(name, a, q.Port, bit) {
			continue
		}
		if r.http != nil {
			if q.HTTP == nil {
				return Decision{Inspect, r.label, r.label + " looks at requests"}
			}
			if !r.http.matches(q.HTTP, r.allow) {
				continue
			}
		}
		if r.allow {
			return Decision{Allow, r.label, ""}
		}
		return Decision{Deny, r.label, fmt.Sprintf("%s denies %s", r.label, target(name, a, q.Port))}
	}
	return Decision{Deny, RuleDefault, p.miss(q, name, a)}
}

// settle checks what no rule can change, and returns address and name as they are compared.
func (p *Policy) settle(q Query) (netip.Addr, string, Decision) {
	malformed := func(why string) (netip.Addr, string, Decision) {
		return netip.Addr{}, "", Decision{Deny, RuleMalformed, why}
	}
	a, err := normalAddr(q.Addr)
	switch {
	case err != nil:
		return malformed(err.Error())
	case bitOf(q.Proto) == 0:
		return netip.Addr{}, "", Decision{Deny, RuleUnreachable, "nothing but TCP leaves a sandbox"}
	case q.Port == 0:
		return malformed("port 0 is none")
	}
	name := ""
	if q.Name != "" {
		if name, err = NormalName(q.Name); err != nil {
			return malformed("no host name: " + err.Error())
		}
	}
	if q.HTTP != nil {
		host, ip, ok := hostOf(q.HTTP.Host)
		switch {
		case !ok:
			return malformed("the request's host is neither a name nor an address")
		case ip.IsValid() && (name != "" || ip != a):
			return malformed("the request is for another address than the connection")
		case !ip.IsValid() && name == "" && host != "":
			name = host
		case !ip.IsValid() && host != name:
			return malformed("the request is for another host than the connection")
		}
	}
	if what := p.env.unreachable(name, a); what != "" {
		return a, name, unreachable(a, what)
	}
	return a, name, Decision{}
}

// hostOf takes a Host header apart: a name, an address, or neither, which is HTTP/1.0's.
func hostOf(s string) (name string, ip netip.Addr, ok bool) {
	if s == "" {
		return "", netip.Addr{}, true
	}
	host := s
	if i := strings.LastIndexByte(s, ':'); i >= 0 && !strings.HasSuffix(s, "]") {
		host = s[:i]
		if strings.Trim(s[i+1:], "0123456789") != "" {
			return "", netip.Addr{}, false
		}
	}
	if a, err := netip.ParseAddr(host); err == nil && a.Is4() {
		return "", a, true
	}
	if bare, bracketed := strings.CutPrefix(host, "["); bracketed {
		bare, closed := strings.CutSuffix(bare, "]")
		a, err := netip.ParseAddr(bare)
		if err != nil || !closed || !a.Is6() {
			return "", netip.Addr{}, false
		}
		a, err = normalAddr(a)
		return "", a, err == nil
	}
	name, err := NormalName(host)
	return name, netip.Addr{}, err == nil
}

func bitOf(p Proto) protoSet {
	switch p {
	case "", ProtoTCP:
		return bitTCP
	case ProtoTLS:
		return bitTLS
	case ProtoHTTP:
		return bitHTTP
	default: // UDP, and what the gateway may learn to tell apart
		return 0
	}
}

// matches looks at all but the request.
func (r *rule) matches(name string, a netip.Addr, port uint16, bit protoSet) bool {
	if r.protos()&bit == 0 || !r.ports.has(port) {
		return false
	}
	if r.byName() {
		return r.name.matches(name)
	}
	return r.prefix.Contains(a)
}

func target(name string, a netip.Addr, port uint16) string {
	if name == "" {
		name = a.String()
	}
	return fmt.Sprintf("%s port %d", name, port)
}

// miss says why no rule allowed a connection, and which came closest.
func (p *Policy) miss(q Query, name string, a netip.Addr) string {
	text := "no rule allows " + target(name, a, q.Port)
	for i := range p.rules {
		r := &p.rules[i]
		if !r.allow || !r.byName() && !r.prefix.Contains(a) || r.byName() && !r.name.matches(name) {
			continue
		}
		switch {
		case !r.ports.has(q.Port):
			return fmt.Sprintf("%s: %s allows it on port %s", text, r.label, r.ports)
		case r.protos()&bitOf(q.Proto) == 0 && r.proto == hutch.NetworkAny:
			return fmt.Sprintf("%s: %s allows it for TLS and HTTP, which this is not", text, r.label)
		case r.protos()&bitOf(q.Proto) == 0:
			return fmt.Sprintf("%s: %s allows it for protocol %s", text, r.label, r.proto)
		case r.http != nil && q.HTTP != nil:
			return fmt.Sprintf("%s with this method and path: %s allows others", text, r.label)
		}
	}
	return text
}
