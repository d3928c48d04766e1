package control

import (
	"math/rand/v2"
	"testing"
	"time"

	"hutch.dev/hutch"
)

// Whatever is charged, stored and read in whatever order while a project's use is counted: it is
// what the records come to have, from the begin of the period on.
func TestSpentIsWhatIsOnRecord(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 7))
	period := begin.Add(20 * time.Second)
	for round := range 200 {
		l, stored := newLedger(), map[hutch.SandboxID]map[time.Time]hutch.Usage{}
		now, cpu := begin, map[hutch.SandboxID]time.Duration{}
		ids := []hutch.SandboxID{"i1", "i2", "i3"}
		for _, id := range ids {
			stored[id] = map[time.Time]hutch.Usage{}
			l.open(hutch.Sandbox{ID: id, Project: "p1", State: hutch.StateRunning}, begin, hutch.UsageTotal{})
		}
		l.open(hutch.Sandbox{ID: "foreign", Project: "p2", State: hutch.StateRunning}, begin, hutch.UsageTotal{})
		use := func(n int) {
			for range n {
				now = now.Add(time.Duration(1+rng.IntN(4)) * time.Second / 4)
				id := ids[rng.IntN(len(ids))]
				if rng.IntN(3) > 0 {
					cpu[id] += time.Duration(rng.IntN(200)) * time.Millisecond
				}
				l.charge(id, reading{now, cpu[id], 0, 0}, testPace)
				l.charge("foreign", reading{now, now.Sub(begin), 0, 0}, testPace)
				if rng.IntN(50) == 0 {
					l.final(id, now, cpu[id])
				}
			}
		}
		write := func() {
			all := l.take(choice{project: "p1", grown: true})
			for _, u := range all {
				stored[u.Sandbox][u.From] = u
			}
			l.stored(all)
			l.giveBack()
		}
		onRecord := func() (total hutch.UsageTotal, upTo map[hutch.SandboxID]time.Time) {
			upTo = map[hutch.SandboxID]time.Time{}
			for id, rows := range stored {
				for _, u := range rows {
					total.Add(since(u, period))
					if u.To.After(upTo[id]) {
						upTo[id] = u.To
					}
				}
			}
			return total, upTo
		}
		use(rng.IntN(60))
		for range 1 + rng.IntN(3) {
			l.beginCount("p1")
			use(rng.IntN(10))
			write()
			use(rng.IntN(10))
			total, upTo := onRecord()
			if rng.IntN(2) == 0 {
				write()
			}
			use(rng.IntN(10))
			if may := l.mayBeLate("p1"); !may["i1"] || !may["i2"] || !may["i3"] || may["foreign"] {
				t.Fatalf("these may be late: %v", may)
			}
			if rng.IntN(4) == 0 {
				l.dropCount("p1")
				continue
			}
			got := l.endCount("p1", period, total, upTo)
			if again, ok := l.spentSince("p1", period); !ok || again != got {
				t.Fatalf("round %d: counted %+v, then %+v, %v", round, got, again, ok)
			}
		}
		use(rng.IntN(20))
		write()
		got, ok := l.spentSince("p1", period)
		want, _ := onRecord()
		// Where the period begins in the middle of an interval, its part is in proportion.
		if off := (got.CPU - want.CPU).Abs(); ok && (got.Wall != want.Wall || off > 200*time.Millisecond) {
			t.Errorf("round %d: %+v was used, and on record is %+v", round, got, want)
		}
		if _, ok := l.spentSince("p1", begin); ok {
			t.Error("it is counted for another period")
		}
	}
}

func TestSpentIsExactWithinAPeriod(t *testing.T) {
	l, sb := charged()
	at := func(s int) time.Time { return begin.Add(time.Duration(s) * time.Second) }
	l.charge(sb.ID, reading{at(1), time.Second, 0, 0}, testPace)
	if _, ok := l.spentSince("p1", begin); ok {
		t.Fatal("it was counted by nobody")
	}
	l.beginCount("p1")
	l.charge(sb.ID, reading{at(2), 3 * time.Second, 0, 0}, testPace)
	// The records have the first second only: what came since is added.
	got := l.endCount("p1", begin, hutch.UsageTotal{CPU: time.Second, Wall: time.Second}, map[hutch.SandboxID]time.Time{sb.ID: at(1)})
	if got.CPU != 3*time.Second || got.Wall != 2*time.Second {
		t.Errorf("counted: %+v", got)
	}
	l.charge(sb.ID, reading{at(3), 4 * time.Second, 0, 0}, testPace)
	// Another count, of which the records have all.
	l.beginCount("p1")
	l.charge(sb.ID, reading{at(4), 6 * time.Second, 0, 0}, testPace)
	l.dropCount("p1")
	if got, _ := l.spentSince("p1", begin); got.CPU != 6*time.Second || got.Wall != 4*time.Second {
		t.Errorf("after a count that failed: %+v", got)
	}
	l.beginCount("p1")
	l.charge(sb.ID, reading{at(5), 7 * time.Second, 0, 0}, testPace)
	got = l.endCount("p1", at(4), hutch.UsageTotal{CPU: time.Second, Wall: time.Second}, map[hutch.SandboxID]time.Time{sb.ID: at(5)})
	if got.CPU != time.Second || got.Wall != time.Second {
		t.Errorf("since the fourth second: %+v", got)
	}
}
