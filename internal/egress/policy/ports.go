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

// minus is what of s is not in t.
func (s portSet) minus(t portSet) portSet {
	for _, cut := range t {
		var left portSet
		for _, r := range s {
			if cut.Last < r.First || r.Last < cut.First {
				left = append(left, r)
				continue
			}
			if r.First < cut.First {
				left = append(left, hutch.PortRange{First: r.First, Last: cut.First - 1})
			}
			if cut.Last < r.Last {
				left = append(left, hutch.PortRange{First: cut.Last + 1, Last: r.Last})
			}
		}
		s = left
	}
	return s
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
