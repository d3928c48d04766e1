package policy

import (
	"cmp"
	"slices"
	"strings"

	"hutch.dev/hutch"
)

// portSet is a set of ports: ranges in order, apart from each other.
type portSet []hutch.PortRange

var (
	allPorts = portSet{{First: 1, Last: 65535}}
	webPorts = portSet{hutch.Port(80), hutch.Port(443)}
	// mailPorts are where mail is handed in: what is sent there goes on to anybody.
	mailPorts = portSet{hutch.Port(25), hutch.Port(465), hutch.Port(587), hutch.Port(2525)}
)

// newPortSet is the union of ranges.
func newPortSet(ranges []hutch.PortRange) portSet {
	sorted := slices.SortedFunc(slices.Values(ranges), func(a, b hutch.PortRange) int { return cmp.Compare(a.First, b.First) })
	var s portSet
	for _, r := range sorted {
		if last := len(s) - 1; last >= 0 && int(r.First) <= int(s[last].Last)+1 {
			s[last].Last = max(s[last].Last, r.Last)
			continue
		}
		s = append(s, r)
	}
	return s
}

// has reports whether p is in s.
func (s portSet) has(p uint16) bool {
	for _, r := range s {
		if r.First <= p && p <= r.Last {
			return true
		}
	}
	return false
}

// minus is what of s is not in t. It takes as long as both are long: a tenant says how long
// they are, and policies are compared rule by rule.
func (s portSet) minus(t portSet) portSet {
	var left portSet
	for _, r := range s {
		for len(t) > 0 && t[0].Last < r.First {
			t = t[1:]
		}
		first, rest := int(r.First), t
		for len(rest) > 0 && rest[0].First <= r.Last {
			if first < int(rest[0].First) {
				left = append(left, hutch.PortRange{First: uint16(first), Last: rest[0].First - 1})
			}
			first = int(rest[0].Last) + 1
			rest = rest[1:]
		}
		if first <= int(r.Last) {
			left = append(left, hutch.PortRange{First: uint16(first), Last: r.Last})
		}
	}
	return left
}

func (s portSet) contains(t portSet) bool { return len(t.minus(s)) == 0 }

func (s portSet) and(t portSet) portSet { return s.minus(s.minus(t)) }

func (s portSet) overlaps(t portSet) bool { return len(s.and(t)) > 0 }

func (s portSet) String() string {
	text := make([]string, len(s))
	for i, r := range s {
		text[i] = r.String()
	}
	return strings.Join(text, ", ")
}
