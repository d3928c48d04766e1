package policy

import (
	"math/rand/v2"
	"slices"
	"testing"

	"hutch.dev/hutch"
)

// Sets of ports against the plainest there are.
func TestPortSets(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 6))
	edges := []uint16{1, 2, 3, 5, 80, 81, 443, 65533, 65534, 65535}
	make1 := func() (portSet, map[uint16]bool) {
		var ranges []hutch.PortRange
		all := make(map[uint16]bool)
		for range r.IntN(4) {
			a, b := edges[r.IntN(len(edges))], edges[r.IntN(len(edges))]
			if b < a || b-a > 400 {
				b = a
			}
			ranges = append(ranges, hutch.PortRange{First: a, Last: b})
			for p := int(a); p <= int(b); p++ {
				all[uint16(p)] = true
			}
		}
		return newPortSet(ranges), all
	}
	check := func(what string, got portSet, want func(uint16) bool) {
		t.Helper()
		for p := 0; p <= 65535; p++ {
			if p > 1000 && p < 65000 {
				continue
			}
			if got.has(uint16(p)) != want(uint16(p)) {
				t.Fatalf("%s: %v has %d is %v", what, got, p, got.has(uint16(p)))
			}
		}
		for i, x := range got {
			if !x.Valid() || i > 0 && int(got[i-1].Last)+1 > int(x.First) {
				t.Fatalf("%s: %v is not in order", what, got)
			}
		}
	}
	for range 200 {
		a, inA := make1()
		b, inB := make1()
		check("set", a, func(p uint16) bool { return inA[p] })
		check("minus", a.minus(b), func(p uint16) bool { return inA[p] && !inB[p] })
		check("and", a.and(b), func(p uint16) bool { return inA[p] && inB[p] })
		contains, overlaps := true, false
		for p := range inB {
			contains = contains && inA[p]
			overlaps = overlaps || inA[p]
		}
		if a.contains(b) != contains || a.overlaps(b) != overlaps {
			t.Fatalf("%v and %v: contains %v, overlaps %v", a, b, a.contains(b), a.overlaps(b))
		}
	}
	if got := newPortSet([]hutch.PortRange{{First: 81, Last: 90}, hutch.Port(80), {First: 85, Last: 86}}); !slices.Equal(got, portSet{{First: 80, Last: 90}}) {
		t.Errorf("ranges that touch: %v", got)
	}
}
