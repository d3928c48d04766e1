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
	l.stored(out, nil)
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
			l.stored(got, err)
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
	l.stored(all, nil)
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

// A store that takes nothing for hours costs no memory without bound, and no usage.
func TestLedgerOfAFullDisk(t *testing.T) {
	l, sb := charged()
	n := 3 * maxUnstored
	for s := 1; s <= n; s++ {
		l.charge(sb.ID, reading{begin.Add(time.Duration(s) * time.Second), time.Duration(s*(s%2)) * time.Millisecond, int64(s%2) << 30, 0}, testPace)
		if s%1000 == 0 {
			l.stored(l.take(choice{}), errors.New("the disk is full"))
		}
	}
	if len(l.closed) > maxUnstored+1000 {
		t.Errorf("%d intervals are kept", len(l.closed))
	}
	s := sum(rows(l))
	if s.Wall != time.Duration(n)*time.Second || s.CPU != time.Duration(n-1)*time.Millisecond || !near(s.MemoryGiBHours, float64(n+1)/2/3600) {
		t.Errorf("in all: %+v", s)
	}
}

func TestBudget(t *testing.T) {
	c := &Control{}
	card := &Control{cfg: Config{RateCard: &hutch.RateCard{Currency: "EUR", CPUHour: 3600}}}
	for name, x := range map[string]struct {
		c     *Control
		b     hutch.Budget
		field string
	}{
		"none":                {c, hutch.Budget{}, ""},
		"cpu":                 {c, hutch.Budget{CPU: time.Second}, ""},
		"negative cpu":        {c, hutch.Budget{CPU: -1}, "budget.cpu_seconds"},
		"too little cpu":      {c, hutch.Budget{CPU: 1}, "budget.cpu_seconds"},
		"too much cpu":        {c, hutch.Budget{CPU: math.MaxInt64}, "budget.cpu_seconds"},
		"money":               {card, hutch.Budget{Cost: 0.01}, ""},
		"money without rates": {c, hutch.Budget{Cost: 0.01}, "budget.cost"},
		"negative money":      {card, hutch.Budget{Cost: -1}, "budget.cost"},
		"no number":           {card, hutch.Budget{Cost: math.NaN()}, "budget.cost"},
		"endless money":       {card, hutch.Budget{Cost: math.Inf(1)}, "budget.cost"},
	} {
		err := x.c.checkBudget(x.b)
		var e *hutch.Error
		if (err == nil) != (x.field == "") || (err != nil && (!errors.As(err, &e) || e.Field != x.field)) {
			t.Errorf("%s: %v, want a fault of %q", name, err, x.field)
		}
	}
	used := hutch.UsageTotal{CPU: 10 * time.Second}
	for _, x := range []struct {
		c    *Control
		b    hutch.Budget
		want string
	}{
		{c, hutch.Budget{}, ""},
		{c, hutch.Budget{CPU: 11 * time.Second}, ""},
		{c, hutch.Budget{CPU: 10 * time.Second}, "it used 10.000 of its 10.000 CPU-seconds"},
		{card, hutch.Budget{Cost: 10.5}, ""},
		{card, hutch.Budget{CPU: time.Hour, Cost: 9.5}, "it cost 10.000000 of its 9.500000 EUR"},
	} {
		if got := x.c.overBudget(x.b, used); got != x.want {
			t.Errorf("%+v: %q, want %q", x.b, got, x.want)
		}
	}
}
