package policy

import (
	"net/netip"
	"slices"
	"strings"

	"hutch.dev/hutch"
)

// region is a set of connections: a product of what is said of each of their properties.
// What is said of none (a zero name, prefix or request) is every one; a connection without
// a name is in no region with one.
//
// Where a region can't be given exactly, contains errs towards no, overlaps towards yes, and
// minus leaves too much: so what is built on them refuses rather than passes.
type region struct {
	name   pattern
	prefix netip.Prefix
	ports  portSet
	protos protoSet
	http   *httpMatch
}

// protoSet is a set of protocols, as bits.
type protoSet uint8

const (
	bitTCP protoSet = 1 << iota
	bitTLS
	bitHTTP
)

var protoBits = []protoSet{bitTCP, bitTLS, bitHTTP}

// protos is what a rule is about. What is denied without a protocol is denied in each.
func (r *rule) protos() protoSet {
	switch {
	case r.proto == hutch.NetworkTLS:
		return bitTLS
	case r.proto == hutch.NetworkHTTP:
		return bitHTTP
	case r.http != nil, r.proto == hutch.NetworkAny && r.byName() && r.allow:
		return bitTLS | bitHTTP
	}
	return bitTCP | bitTLS | bitHTTP
}

func (r *rule) byName() bool { return !r.name.isZero() }

// region is what the rule matches.
func (r *rule) region() region {
	return region{r.name, r.prefix, r.ports, r.protos(), r.http}
}

// contains reports whether every connection in b is in a.
func (a region) contains(b region) bool {
	return a.containsName(b) && a.containsAddr(b) && a.ports.contains(b.ports) && b.protos&^a.protos == 0 && a.http.contains(b.http)
}

func (a region) containsName(b region) bool { return a.name.isZero() || a.name.contains(b.name) }

func (a region) containsAddr(b region) bool {
	return !a.prefix.IsValid() || b.prefix.IsValid() && covers(a.prefix, b.prefix)
}

// overlaps reports whether a connection may be in both.
func (a region) overlaps(b region) bool {
	return (a.name.isZero() || b.name.isZero() || a.name.overlaps(b.name)) &&
		(!a.prefix.IsValid() || !b.prefix.IsValid() || a.prefix.Overlaps(b.prefix)) &&
		a.protos&b.protos != 0 && a.ports.overlaps(b.ports) && a.http.overlaps(b.http)
}

// and is what is in both, of regions that overlap.
func (a region) and(b region) region {
	out := region{a.name, a.prefix, a.ports.and(b.ports), a.protos & b.protos, a.http.and(b.http)}
	if a.name.isZero() || !b.name.isZero() && a.name.contains(b.name) {
		out.name = b.name
	}
	if !a.prefix.IsValid() || b.prefix.IsValid() && covers(a.prefix, b.prefix) {
		out.prefix = b.prefix
	}
	return out
}

// minus is what of a is not in b, in pieces, or more.
func (a region) minus(b region) []region {
	if !a.overlaps(b) {
		return []region{a}
	}
	if !b.containsName(a) || !b.http.contains(a.http) {
		return []region{a} // what is left of names and requests can't be written down
	}
	var out []region
	rest := a
	if left := rest.protos &^ b.protos; left != 0 {
		piece := rest
		piece.protos = left
		out = append(out, piece)
		rest.protos &= b.protos
	}
	if left := rest.ports.minus(b.ports); len(left) > 0 {
		piece := rest
		piece.ports = left
		out = append(out, piece)
		rest.ports = rest.ports.and(b.ports)
	}
	if b.containsAddr(rest) {
		return out
	}
	if !rest.prefix.IsValid() {
		return append(out, rest)
	}
	for _, p := range without(rest.prefix, b.prefix) {
		piece := rest
		piece.prefix = p
		out = append(out, piece)
	}
	return out
}

// without is p less q, which lies within it.
func without(p, q netip.Prefix) []netip.Prefix {
	var out []netip.Prefix
	for p.Bits() < q.Bits() {
		low, high := halves(p)
		if covers(low, q) {
			p = low
			out = append(out, high)
		} else {
			p = high
			out = append(out, low)
		}
	}
	return out
}

// halves cuts a prefix of more than one address in two.
func halves(p netip.Prefix) (low, high netip.Prefix) {
	bits := p.Bits() + 1
	b := p.Addr().AsSlice()
	b[(bits-1)/8] |= 0x80 >> ((bits - 1) % 8)
	a, _ := netip.AddrFromSlice(b)
	return netip.PrefixFrom(p.Addr(), bits), netip.PrefixFrom(a, bits)
}

// describe is a region for people.
func (a region) describe() string {
	var b strings.Builder
	switch {
	case !a.name.isZero() && a.prefix.IsValid():
		b.WriteString(a.name.String() + " at " + a.prefix.String())
	case !a.name.isZero():
		b.WriteString(a.name.String())
	default:
		b.WriteString(a.prefix.String())
	}
	b.WriteString(" on port " + a.ports.String())
	if a.protos == bitTCP {
		b.WriteString(" for what is neither TLS nor HTTP")
	}
	return b.String()
}

// contains compares conditions on requests, of which nil is none.
func (h *httpMatch) contains(o *httpMatch) bool {
	switch {
	case h == nil:
		return true
	case o == nil:
		return false
	}
	return containsAll(h.methods, o.methods, func(a, b string) bool { return a == b }) &&
		containsAll(h.paths, o.paths, pathPattern.contains)
}

// containsAll reports whether each of b is in one of a; an empty list is everything.
func containsAll[T any](a, b []T, contains func(a, b T) bool) bool {
	if len(a) == 0 || len(b) == 0 {
		return len(a) == 0
	}
	return !slices.ContainsFunc(b, func(y T) bool {
		return !slices.ContainsFunc(a, func(x T) bool { return contains(x, y) })
	})
}

func (h *httpMatch) overlaps(o *httpMatch) bool { return h == nil || o == nil || h.and(o) != nil }

// and is what both match; nil if there is none, or no condition in both.
func (h *httpMatch) and(o *httpMatch) *httpMatch {
	switch {
	case h == nil:
		return o
	case o == nil:
		return h
	}
	methods, ok1 := common(h.methods, o.methods, func(a, b string) bool { return a == b })
	paths, ok2 := common(h.paths, o.paths, pathPattern.contains)
	if !ok1 || !ok2 {
		return nil
	}
	return &httpMatch{methods, paths}
}

// common is what is in both lists, of things of which two have something in common only if
// one contains the other. An empty list is everything; ok is false if nothing is in both.
func common[T any](a, b []T, contains func(a, b T) bool) (out []T, ok bool) {
	if len(a) == 0 {
		return b, true
	}
	if len(b) == 0 {
		return a, true
	}
	for _, x := range a {
		for _, y := range b {
			if contains(x, y) {
				out = append(out, y)
			} else if contains(y, x) {
				out = append(out, x)
			}
		}
	}
	return out, len(out) > 0
}
