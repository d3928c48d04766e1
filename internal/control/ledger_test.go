package control

import (
	"errors"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"hutch.dev/hutch"
)

var (
	begin    = time.Date(2026, 5, 6, 7, 8, 9, 0, time.UTC)
	testPace = pace{time.Second, 5 * time.Second}
)

func charged() (*ledger, hutch.Sandbox) {
	l := newLedger()
	sb := hutch.Sandbox{ID: "i1", Project: "p1", Epoch: 3, State: hutch.StateRunning}
	l.open(sb, begin, hutch.UsageTotal{})
	return l, sb
}

// rows is everything a ledger has to store, of one sandbox.
func rows(l *ledger) []hutch.Usage {
	out := l.take(choice{grown: true})
	l.stored(out)
	l.giveBack()
	return out
}

func sum(rows []hutch.Usage) (t hutch.UsageTotal) {
	for _, u := range rows {
		t.Add(u)
	}
	return t
}

func near(a, b float64) bool { return math.Abs(a-b) <= 1e-6*max(1, math.Abs(b)) }

// Whatever is read and whenever it is written: no hole, no overlap, and the sum of the CPU is
// what the counter says.
func TestLedgerIsGapless(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 5))
	for round := range 50 {
		l, sb := charged()
		now, cpu := begin, time.Duration(0)
		state := hutch.StateRunning
		stored := map[time.Time]hutch.Usage{}
		keep := func(c choice, err error) {
			got := l.take(c)
			for _, u := range got {
				if err == nil && !u.To.Before(stored[u.From].To) {
					stored[u.From] = u
				}
			}
			if err == nil {
				l.stored(got)
			}
			l.giveBack()
		}
		for range 200 {
			switch n := rng.IntN(20); {
			case n < 15:
				now = now.Add(time.Duration(rng.Int64N(int64(3 * time.Second))))
				if state == hutch.StateRunning && rng.IntN(2) == 0 {
					cpu += time.Duration(rng.Int64N(int64(time.Second)))
				}
				l.charge(sb.ID, reading{now, cpu, rng.Int64N(1 << 22), rng.Int64N(1 << 22)}, testPace)
			case n < 17:
				if state = hutch.StateRunning; rng.IntN(2) == 0 {
					state = hutch.StatePaused
				}
				l.turn(sb.ID, 3, state)
			case n < 18:
				l.charge(sb.ID, reading{now.Add(-time.Second), 0, 0, 0}, testPace) // late news
			default:
				keep(choice{grown: rng.IntN(2) == 0}, map[bool]error{true: errors.New("full")}[rng.IntN(4) == 0])
			}
		}
		if state == hutch.StatePaused {
			l.turn(sb.ID, 3, hutch.StateRunning)
		}
		end := now.Add(time.Second)
		l.final(sb.ID, end, cpu)
		if got := l.end(sb.ID, end); !got.Equal(end) {
			t.Fatalf("round %d: it ended at %s, want %s", round, got, end)
		}
		if got := l.end(sb.ID, end.Add(time.Hour)); !got.Equal(end) {
			t.Fatalf("round %d: ending it again moved its end to %s", round, got)
		}
		keep(choice{grown: true}, nil)
		at := begin
		var total hutch.UsageTotal
		for range stored {
			u, ok := stored[at]
			if !ok || !u.To.After(u.From) || u.Project != "p1" || u.Sandbox != "i1" || (u.State == hutch.StatePaused && u.CPU != 0) {
				t.Fatalf("round %d: at %s there is %+v", round, at, u)
			}
			total.Add(u)
			at = u.To
		}
		if !at.Equal(end) || total.CPU != cpu || total.Wall != end.Sub(begin) {
			t.Errorf("round %d: charged %+v up to %s; want %s of CPU up to %s", round, total, at, cpu, end)
		}
	}
}

func TestLedgerJoinsWhatIsTheSame(t *testing.T) {
	l, sb := charged()
	at := func(s int) time.Time { return begin.Add(time.Duration(s) * time.Second) }
	read := func(s int, cpu time.Duration, memory int64) {
		l.charge(sb.ID, reading{at(s), cpu, memory, 0}, testPace)
	}
	for s := 1; s <= 100; s++ {
		read(s, 0, 50<<20)
	}
	read(101, 900*time.Millisecond, 50<<20) // busy
	read(102, 1800*time.Millisecond, 50<<20)
	read(103, 1800*time.Millisecond, 50<<20) // quiet
	read(104, 1800*time.Millisecond, 90<<20) // larger, on average half of that
	read(105, 1800*time.Millisecond, 90<<20)
	var got []time.Duration
	all := rows(l)
	for _, u := range all {
		got = append(got, u.To.Sub(u.From)/time.Second)
	}
	want := []time.Duration{100, 2, 1, 1, 1}
	if len(got) != len(want) {
		t.Fatalf("intervals of %d s, want %d", got, want)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("intervals of %d s, want %d", got, want)
		}
	}
	if all[0].CPU != 0 || all[1].CPU != 1800*time.Millisecond || all[3].Memory != 70<<20 {
		t.Errorf("intervals: %+v", all)
	}
}

func TestLedgerOfAPausedOne(t *testing.T) {
	l, sb := charged()
	at := func(s int) time.Time { return begin.Add(time.Duration(s) * time.Second) }
	l.charge(sb.ID, reading{at(1), time.Second, 1 << 30, 0}, testPace)
	l.turn(sb.ID, 4, hutch.StatePaused)
	l.charge(sb.ID, reading{at(3601), time.Second + time.Millisecond, 1 << 30, 0}, testPace)
	l.turn(sb.ID, 5, hutch.StateRunning)
	l.charge(sb.ID, reading{at(3602), 2 * time.Second, 1 << 30, 0}, testPace)
	all := rows(l)
	if len(all) != 3 || all[1].State != hutch.StatePaused || all[1].CPU != 0 || all[1].Memory != 1<<30 {
		t.Fatalf("intervals: %+v", all)
	}
	if s := sum(all); s.CPU != 2*time.Second || s.Paused != time.Hour || !near(s.MemoryGiBHours, 3602.0/3600) {
		t.Errorf("in all: %+v", s)
	}
}

// A clock that was set back while the server was down, or two looks whose news come in the
// wrong order: time that cannot be told is none, and not a nanosecond of CPU is lost.
func TestLedgerLosesNoCPU(t *testing.T) {
	const used = 484 * time.Millisecond
	ahead := time.Now().Add(time.Hour).Round(0)
	for name, c := range map[string]struct {
		news    func(l *ledger, at func(time.Duration) time.Time)
		longest time.Duration
	}{
		"read, then ended": {func(l *ledger, at func(time.Duration) time.Time) {
			l.charge("i1", reading{at(time.Second), used - 1, 0, 0}, testPace)
			l.final("i1", at(2*time.Second), used)
			l.end("i1", at(3*time.Second))
		}, 4 * time.Second},
		"ended at once": {func(l *ledger, at func(time.Duration) time.Time) {
			l.final("i1", at(-time.Second), used)
			l.end("i1", at(-time.Second))
		}, moment},
		"late news before the end": {func(l *ledger, at func(time.Duration) time.Time) {
			l.charge("i1", reading{at(2 * time.Second), 18 * time.Millisecond, 0, 0}, testPace)
			l.final("i1", at(time.Second), used)
			l.end("i1", at(time.Second))
		}, 3 * time.Second},
		"late news before a pause": {func(l *ledger, at func(time.Duration) time.Time) {
			l.charge("i1", reading{at(2 * time.Second), 18 * time.Millisecond, 0, 0}, testPace)
			l.charge("i1", reading{at(time.Second), used, 0, 0}, testPace)
			l.turn("i1", 4, hutch.StatePaused)
			l.end("i1", at(3*time.Second))
		}, 4 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLedger()
			l.open(hutch.Sandbox{ID: "i1", Project: "p1", Epoch: 3, State: hutch.StateRunning}, ahead, hutch.UsageTotal{CPU: 17 * time.Millisecond, Wall: time.Hour})
			now := time.Now()
			c.news(l, func(d time.Duration) time.Time { return now.Add(d) })
			all := rows(l)
			at := ahead
			for _, u := range all {
				if !u.From.Equal(at) {
					t.Errorf("after %s comes %+v", at, u)
				}
				at = u.To
			}
			s := sum(all)
			if s.CPU != used-17*time.Millisecond || s.Wall <= 0 || s.Wall > c.longest {
				t.Errorf("charged: %+v; want %s of CPU in at most %s", s, used-17*time.Millisecond, c.longest)
			}
			if got := l.end("i1", now.Add(time.Hour)); !got.Equal(at) {
				t.Errorf("it ended at %s, and is charged up to %s", got, at)
			}
		})
	}
}

// One that was taken over: the hole is one interval, by the counter.
func TestLedgerGoesOnAfterARestart(t *testing.T) {
	l := newLedger()
	sb := hutch.Sandbox{ID: "i1", Project: "p1", Epoch: 3, State: hutch.StateRunning}
	l.open(sb, begin, hutch.UsageTotal{CPU: 7 * time.Second, Wall: time.Hour})
	l.open(sb, begin.Add(time.Hour), hutch.UsageTotal{}) // it is charged already
	total, _ := l.charge("i1", reading{begin.Add(time.Minute), 9 * time.Second, 1 << 20, 5}, testPace)
	if all := rows(l); len(all) != 1 || all[0].CPU != 2*time.Second || !all[0].From.Equal(begin) || all[0].Memory != 1<<20 {
		t.Errorf("the hole is %+v", all)
	}
	if total.CPU != 9*time.Second || total.Wall != time.Hour+time.Minute {
		t.Errorf("in all: %+v", total)
	}
	// One that ended before it was seen again used nothing that anybody knows of.
	l.open(hutch.Sandbox{ID: "i2", State: hutch.StateRunning}, begin, hutch.UsageTotal{CPU: time.Second})
	l.end("i2", begin.Add(time.Hour))
	if all := l.take(choice{sandbox: "i2", grown: true}); len(all) != 1 || all[0].CPU != 0 || all[0].Memory != 0 || !all[0].To.Equal(begin.Add(time.Hour)) {
		t.Errorf("of one that was lost: %+v", all)
	}
}

func TestLedgerLooksSeldomAtTheIdle(t *testing.T) {
	l, sb := charged()
	never := func(hutch.SandboxID) time.Time { return time.Time{} }
	cpu, looks := time.Duration(0), 0
	tick := func(s int, busy bool, lastUse func(hutch.SandboxID) time.Time) bool {
		now := begin.Add(time.Duration(s) * time.Second)
		due := l.due(now, lastUse)
		if busy {
			cpu += time.Second / 2
		}
		for range due {
			looks++
			l.charge(sb.ID, reading{now, cpu, 1 << 20, 0}, testPace)
		}
		return len(due) > 0
	}
	for s := 1; s <= 60; s++ {
		tick(s, false, never)
	}
	if looks < 12 || looks > 15 {
		t.Errorf("an idle sandbox was looked at %d times in a minute", looks)
	}
	if !tick(61, false, func(hutch.SandboxID) time.Time { return begin.Add(60 * time.Second) }) {
		t.Error("one that was used just now is not looked at")
	}
	for s := 62; s <= 70; s++ {
		tick(s, true, never)
	}
	looks = 0
	for s := 71; s <= 80; s++ {
		tick(s, true, never)
	}
	if looks != 10 {
		t.Errorf("a busy sandbox was looked at %d times in ten seconds", looks)
	}
	l.open(hutch.Sandbox{ID: "i2", State: hutch.StateRunning, Budget: hutch.Budget{CPU: 1}}, begin, hutch.UsageTotal{})
	for s := range 10 {
		now := begin.Add(time.Duration(100+s) * time.Second)
		if s > 0 && len(l.due(now, never)) == 0 {
			t.Error("one with a budget is not looked at each second")
		}
		l.charge("i2", reading{now, 0, 0, 0}, testPace)
	}
}

// Alive for two hours, busy for four minutes of them, with a GiB all the time: through looks,
// intervals and writes to the bill, of the whole and of what is cut out of it.
func TestTwoHoursOfWhichFourMinutesWereBusy(t *testing.T) {
	l, sb := charged()
	card := hutch.RateCard{Currency: "USD", CPUHour: 0.054, MemoryGiBHour: 0.0162}
	stored := map[time.Time]hutch.Usage{}
	write := func(c choice) {
		all := l.take(c)
		for _, u := range all {
			stored[u.From] = u
		}
		l.stored(all)
		l.giveBack()
	}
	cpu, lastUse := time.Duration(0), begin
	for s := 1; s <= 2*60*60; s++ {
		now := begin.Add(time.Duration(s) * time.Second)
		if s > 60*60 && s <= 64*60 {
			cpu, lastUse = cpu+time.Second, now
		}
		for range l.due(now, func(hutch.SandboxID) time.Time { return lastUse }) {
			l.charge(sb.ID, reading{now, cpu, 1 << 30, 0}, testPace)
		}
		if s%5 == 0 {
			write(choice{})
		}
	}
	end := begin.Add(2 * time.Hour)
	l.final(sb.ID, end, cpu)
	l.end(sb.ID, end)
	write(choice{grown: true})
	bill := func(from, to time.Time) float64 {
		var sum hutch.UsageTotal
		for _, u := range stored {
			if u, ok := u.Clip(from, to); ok {
				sum.Add(u)
			}
		}
		return card.Cost(sum)
	}
	if got := bill(time.Time{}, time.Time{}); !near(got, 240.0/3600*0.054+2*0.0162) || !near(got, 0.036) {
		t.Errorf("it costs %g, want 0.036", got)
	}
	// Where it began to work in the middle of an interval, by the few seconds between two looks.
	const looks = 5.0 / 3600 * 0.054
	busy := begin.Add(time.Hour)
	if got := bill(busy, busy.Add(4*time.Minute)); math.Abs(got-(0.0036+0.0162*4/60)) > looks {
		t.Errorf("the four minutes cost %g", got)
	}
	if got := bill(time.Time{}, busy); math.Abs(got-0.0162) > looks {
		t.Errorf("the hour before costs %g", got)
	}
	if len(stored) > 10 {
		t.Errorf("it takes %d intervals", len(stored))
	}
}
