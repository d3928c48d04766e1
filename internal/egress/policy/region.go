package policy

import (
	"net/netip"
	"slices"
	"strings"

	"hutch.dev/hutch"
)

// region is the connections that a rule matches: a product of what its fields say. A rule by
// name has every address, one by address every name and none.
type region struct {
	name   pattern
	prefix netip.Prefix
	ports  portSet
	protos protoSet
	http   *httpMatch
	allow  bool // what the rule does: it decides about what can be read in two ways
}

// protoSet is a set of protocols, as bits.
type protoSet uint8

const (
	bitTCP protoSet = 1 << iota
	bitTLS
	bitHTTP
)

// protos is what a rule is about.
func (r *rule) protos() protoSet {
	switch r.proto {
	case hutch.NetworkTLS:
		return bitTLS
	case hutch.NetworkHTTP:
		return bitHTTP
	case hutch.NetworkAny:
		if !r.name.isZero() && r.allow || r.http != nil {
			return bitTLS | bitHTTP
		}
	}
	return bitTCP | bitTLS | bitHTTP
}

func (r *rule) region() region {
	return region{r.name, r.prefix, r.ports, r.protos(), r.http, r.allow}
}

// contains reports whether a matches all that b does. It may say no where it is so.
func (a region) contains(b region) bool {
	return a.containsSubject(b) && a.ports.contains(b.ports) && b.protos&^a.protos == 0 && a.http.contains(b.http)
}

// containsSubject compares names and addresses. A range does not contain a name, whatever
// its addresses are: a rule by name also lets the name be looked up.
func (a region) containsSubject(b region) bool {
	if a.name.isZero() {
		return b.name.isZero() && covers(a.prefix, b.prefix)
	}
	return a.name.contains(b.name)
}

// contains compares conditions on requests; nil is none.
func (h *httpMatch) contains(o *httpMatch) bool {
	if h == nil {
		return true
	}
	if o == nil {
		return false
	}
	methods := len(h.methods) == 0 || len(o.methods) > 0 && !slices.ContainsFunc(o.methods, func(m string) bool { return !slices.Contains(h.methods, m) })
	paths := len(h.paths) == 0 || len(o.paths) > 0 && !slices.ContainsFunc(o.paths, func(p pathPattern) bool {
		return !slices.ContainsFunc(h.paths, func(q pathPattern) bool { return q.contains(p) })
	})
	return methods && paths
}

// describe is a rule for people.
func (r *rule) describe() string {
	var b strings.Builder
	if r.name.isZero() {
		b.WriteString(r.prefix.String())
	} else {
		b.WriteString(r.name.String())
	}
	b.WriteString(" on port " + r.ports.String())
	return b.String()
}
