package egress

import (
	"net/netip"
	"testing"
	"time"

	"hutch.dev/hutch/internal/link"
)

func flowTo(p link.Proto, i int) link.Flow {
	dst := netip.AddrPortFrom(netip.AddrFrom4([4]byte{100, byte(i >> 16), byte(i >> 8), byte(i)}), 443)
	return link.Flow{Proto: p, Dst: dst}
}

func TestAuditCountsByProtocol(t *testing.T) {
	var a audit
	now := time.Unix(1000, 0)
	for _, p := range []link.Proto{link.TCP, link.UDP, link.UDP, link.ICMP, link.Other, "new"} {
		a.note(flowTo(p, 1), now)
	}
	counts, recent, forgotten := a.snapshot()
	if counts != (Counts{TCP: 1, UDP: 2, ICMP: 1, Other: 2}) || len(recent) != 5 || forgotten != 0 {
		t.Errorf("got %+v, %+v, %d", counts, recent, forgotten)
	}
}

func TestAuditKeepsTheLatest(t *testing.T) {
	var a audit
	at := time.Unix(1000, 0)
	const n = 10 * maxRecent
	for i := range n {
		at = at.Add(time.Second)
		a.note(flowTo(link.TCP, i), at)
		a.note(flowTo(link.TCP, 0), at) // tried again and again: stays
	}
	counts, recent, forgotten := a.snapshot()
	if counts.TCP != 2*n || len(recent) != maxRecent || forgotten != n-maxRecent {
		t.Fatalf("%d tries, %d remembered, %d forgotten", counts.TCP, len(recent), forgotten)
	}
	seen := map[netip.AddrPort]Refusal{}
	for i, r := range recent {
		seen[r.Dst] = r
		if i > 0 && r.Last.After(recent[i-1].Last) {
			t.Fatal("not the latest first")
		}
	}
	if r := seen[flowTo(link.TCP, 0).Dst]; r.Count != n+1 || r.First != time.Unix(1001, 0) || r.Last != at {
		t.Errorf("the steady one: %+v", r)
	}
	if _, ok := seen[flowTo(link.TCP, n-1).Dst]; !ok {
		t.Error("the last one is missing")
	}
}

func TestAuditTakesOver(t *testing.T) {
	var a, b audit
	now := time.Unix(1000, 0)
	a.note(flowTo(link.UDP, 1), now)
	for i := range maxRecent + 5 {
		b.note(flowTo(link.TCP, i), now)
	}
	a.take(&b)
	counts, recent, forgotten := a.snapshot()
	if counts != (Counts{UDP: 1, TCP: maxRecent + 5}) || len(recent) != maxRecent || forgotten != 6 {
		t.Errorf("got %+v, %d, %d", counts, len(recent), forgotten)
	}
}
