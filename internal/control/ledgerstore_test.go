package control

import (
	"math"
	"testing"
	"time"

	"hutch.dev/hutch"
)

func TestLedgerWritesWhatOnlyGrowsSeldom(t *testing.T) {
	l, sb := charged()
	at := func(s int) time.Time { return begin.Add(time.Duration(s) * time.Second) }
	grow := func(s int) { l.charge(sb.ID, reading{at(s), 0, 0, 0}, testPace) }
	grow(5)
	if all := l.take(choice{}); len(all) != 0 {
		t.Errorf("5 s of idleness: %+v", all)
	}
	grow(31)
	all := l.take(choice{})
	if len(all) != 1 {
		t.Fatalf("31 s of idleness: %+v", all)
	}
	l.stored(all)
	l.giveBack()
	grow(40)
	if all := l.take(choice{}); len(all) != 0 {
		t.Errorf("9 s after it was written: %+v", all)
	}
	if all := l.take(choice{sandbox: "i1", project: "p1", grown: true}); len(all) != 1 || !all[0].To.Equal(at(40)) {
		t.Errorf("on request: %+v", all)
	}
	if all := l.take(choice{project: "p2", grown: true}); len(all) != 0 {
		t.Errorf("another project's: %+v", all)
	}
	// Forgotten with something to write, which is not lost. A list that was begun before it
	// started says nothing of it.
	l.keep(map[hutch.SandboxID]bool{}, time.Now().Add(-time.Hour))
	if !l.has("i1") {
		t.Error("it was forgotten by an old list")
	}
	l.keep(map[hutch.SandboxID]bool{}, time.Now().Add(time.Hour))
	if all := l.take(choice{}); len(all) != 1 || !all[0].To.Equal(at(40)) || l.has("i1") {
		t.Errorf("when it is gone: %+v", all)
	}
}

// restless is what a sandbox is read as that does something every other second, so that no two
// intervals of it are the same.
func restless(second int) reading {
	return reading{
		at: begin.Add(time.Duration(second) * time.Second), cpu: time.Duration((second+1)/2) * 100 * time.Millisecond,
		memory: int64(second%2) << 30,
	}
}

// A store that takes nothing for hours costs no memory without bound, and no usage.
func TestLedgerOfAFullDisk(t *testing.T) {
	l, sb := charged()
	n := 3 * maxUnstored
	for s := 1; s <= n; s++ {
		l.charge(sb.ID, restless(s), testPace)
		if s%1000 == 0 {
			l.take(choice{}) // and the disk is full
			l.giveBack()
		}
	}
	if len(l.closed) > maxUnstored+1000 {
		t.Errorf("%d intervals are kept", len(l.closed))
	}
	s := sum(rows(l))
	// A mean is kept in whole bytes, which costs millionths over so many.
	off := s.MemoryGiBHours*3600/(float64(n+1)/2) - 1
	if s.Wall != time.Duration(n)*time.Second || s.CPU != restless(n).cpu || math.Abs(off) > 1e-5 {
		t.Errorf("in all: %+v", s)
	}
}

// Intervals that somebody is about to store are not made part of others meanwhile: both would be
// stored, and what they used be charged twice.
func TestLedgerIsNotThinnedUnderAWriter(t *testing.T) {
	l, sb := charged()
	second := 0
	charge := func(n int) {
		for range n {
			second++
			l.charge(sb.ID, restless(second), testPace)
		}
	}
	stored := map[time.Time]hutch.Usage{}
	store := func(rows []hutch.Usage) {
		for _, u := range rows {
			if !u.To.Before(stored[u.From].To) {
				stored[u.From] = u
			}
		}
		l.stored(rows)
	}
	charge(2 * maxUnstored)
	slow := l.take(choice{grown: true})
	store(slow[:1000])
	l.take(choice{grown: true}) // another, whose store fails
	l.giveBack()
	charge(10)
	store(slow[1000:2000]) // of several transactions the second
	l.giveBack()           // and the third failed
	if n := len(l.closed); n > maxUnstored {
		t.Errorf("%d intervals are kept", n)
	}
	store(l.take(choice{grown: true}))
	l.giveBack()
	at := begin
	for range stored {
		u, ok := stored[at]
		if !ok {
			t.Fatalf("there is no interval at %s, and %d are stored", at, len(stored))
		}
		at = u.To
	}
	if want := begin.Add(time.Duration(second) * time.Second); !at.Equal(want) {
		t.Errorf("stored up to %s, want %s", at, want)
	}
}
