package egress

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/egress/flow"
	"hutch.dev/hutch/internal/egress/policy"
	"hutch.dev/hutch/internal/x/fdpass"
)

func deniedName(name string) flow.Event {
	return flow.Event{Time: time.Unix(1000, 0), Proto: "dns", Name: name, Action: policy.Deny, Rule: policy.RuleDefault}
}

// Nothing that was written is missing from what was read and what was counted as lost.
func TestLedgerLosesNothingSilently(t *testing.T) {
	l := newLedger()
	const n = 3*maxOfOne + 17
	var at Cursor
	read := 0
	for i := range n {
		l.add("i1", deniedName(fmt.Sprintf("n%d.example", i)))
		if i%1000 == 100 {
			p := l.page(at, auditPage)
			read, at = read+len(p.Entries), p.Next
		}
	}
	var lost uint64
	last := at.Seq
	for {
		p := l.page(at, auditPage)
		for _, e := range p.Entries {
			if e.Seq <= last {
				t.Fatalf("entry %d after %d", e.Seq, last)
			}
			last = e.Seq
		}
		read, at, lost = read+len(p.Entries), p.Next, p.Lost
		if !p.More {
			break
		}
	}
	if uint64(read)+lost != n || lost == 0 || l.lostOf("i1") != lost {
		t.Errorf("%d read and %d lost of %d", read, lost, n)
	}
	l.page(at, auditPage)
	if l.total != 0 || len(l.by) != 0 {
		t.Errorf("%d entries stay after they were read", l.total)
	}
}

// A page that was not acknowledged is given again.
func TestLedgerRepeatsWhatWasNotAcknowledged(t *testing.T) {
	l := newLedger()
	for i := range 10 {
		l.add("i1", deniedName(fmt.Sprintf("n%d.example", i)))
	}
	first := l.page(Cursor{}, 4)
	again := l.page(Cursor{}, 4)
	if len(first.Entries) != 4 || !first.More || first.Next != again.Next || again.Entries[0] != first.Entries[0] {
		t.Errorf("%+v, then %+v", first, again)
	}
	if p := l.page(first.Next, 100); len(p.Entries) != 6 || p.Entries[0].Name != "n4.example" || p.More {
		t.Errorf("%+v", p)
	}
	for _, c := range []Cursor{{Gateway: l.gateway, Seq: 1 << 60}, {Gateway: "other", Seq: 3}} {
		if p := l.page(c, 1); p.Next.Seq > l.seq || p.Next.Gateway != l.gateway {
			t.Errorf("cursor %+v: %+v", c, p)
		}
	}
}

// What made room after it was given is lost only to a reader who did not keep it.
func TestLedgerDoubt(t *testing.T) {
	for _, kept := range []bool{true, false} {
		l := newLedger()
		fill := func() {
			for i := range maxOfOne {
				l.add("i1", deniedName(fmt.Sprintf("n%d.example", i)))
			}
		}
		fill()
		p := l.page(Cursor{}, auditPage)
		fill()
		var next AuditPage
		want := uint64(maxOfOne)
		if kept {
			next = l.page(p.Next, auditPage)
			want -= auditPage
		} else {
			next = l.page(Cursor{}, auditPage)
		}
		if next.Lost != want || l.lostOf("i1") != want {
			t.Errorf("kept %v: %d lost, want %d", kept, next.Lost, want)
		}
	}
}

func TestLedgerCountsWhatRepeats(t *testing.T) {
	l := newLedger()
	for range 1000 {
		l.add("i1", deniedName("a.example"))
		l.add("i1", deniedName("b.example"))
	}
	allowed := flow.Event{Proto: "tls", Name: "a.example", Action: policy.Allow, Rule: "rules[0]"}
	l.add("i1", allowed)
	l.add("i1", allowed) // each is one of its own
	p := l.page(Cursor{}, 100)
	if len(p.Entries) != 4 || p.Entries[0].Count != 1000 || p.Entries[1].Count != 1000 {
		t.Errorf("%+v", p.Entries)
	}
	l.add("i1", deniedName("a.example")) // what was read is not changed
	if p := l.page(p.Next, 100); len(p.Entries) != 1 || p.Entries[0].Count != 1 {
		t.Errorf("%+v", p.Entries)
	}
}

// One that writes without end loses its own entries and no other's.
func TestLedgerIsFair(t *testing.T) {
	l := newLedger()
	l.add("quiet", deniedName("a.example"))
	for i := range 2 * maxEntries {
		l.add(hutch.SandboxID(fmt.Sprintf("i%d", i%40)), deniedName(fmt.Sprintf("n%d.example", i)))
	}
	if l.total > maxEntries || l.lostOf("quiet") != 0 || len(l.by["quiet"]) != 1 {
		t.Errorf("%d entries, %d lost of the quiet one", l.total, l.lostOf("quiet"))
	}
	for s, all := range l.by {
		if len(all) > maxOfOne {
			t.Errorf("%s has %d entries", s, len(all))
		}
	}
}

// The largest page fits a message.
func TestPageFits(t *testing.T) {
	l := newLedger()
	for i := range auditPage {
		name := strings.Repeat("x", 253)
		l.add(hutch.SandboxID(strings.Repeat("i", maxName)), flow.Event{
			Time: time.Now(), Proto: "http", Name: name, Addr: netip.MustParseAddr("2001:db8:1111:2222:3333:4444:5555:6666"), Port: uint16(i + 1),
			Action: policy.Deny, Rule: strings.Repeat("r", 100), Reason: strings.Repeat("\"", 1000), Out: 1 << 62, In: 1 << 62, Took: time.Hour,
		})
	}
	b, err := json.Marshal(l.page(Cursor{}, auditPage))
	if err != nil || len(b) > fdpass.MaxMessage-1024 {
		t.Errorf("a page has %d bytes, %v", len(b), err)
	}
	s := Stats{Name: "i1"}
	for i := range maxTraffic {
		s.Traffic = append(s.Traffic, flow.Traffic{Host: strings.Repeat("x", 253), Port: uint16(i), Connections: 1 << 60, Out: 1 << 60, In: 1 << 60})
	}
	for range maxRecent {
		s.Recent = append(s.Recent, Refusal{Proto: "tcp", Dst: netip.MustParseAddrPort("[2001:db8:1111:2222:3333:4444:5555:6666]:65535"), First: time.Now(), Last: time.Now(), Count: 1 << 60})
	}
	if b, err := json.Marshal(s); err != nil || len(b) > fdpass.MaxMessage-1024 {
		t.Errorf("stats have %d bytes, %v", len(b), err)
	}
}
