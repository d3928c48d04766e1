package node

import (
	"errors"
	"testing"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/runtime"
)

func TestAppetite(t *testing.T) {
	type meal struct {
		cpus float64
		for_ time.Duration
	}
	for name, c := range map[string]struct {
		meals []meal
		want  bool
	}{
		"nothing yet":                          {nil, false},
		"idle":                                 {[]meal{{0, time.Minute}}, false},
		"the start of a program":               {[]meal{{0, time.Minute}, {0.5, appetiteInterval}}, false},
		"a burner":                             {[]meal{{1, time.Second}}, true},
		"a fourth of a CPU and a bit":          {[]meal{{0.3, 2 * time.Second}}, true},
		"a command every second":               {[]meal{{0.1, time.Minute}}, false},
		"a burner that draws breath":           {[]meal{{2, time.Second}, {0, appetiteInterval}}, true},
		"a burner that has ended":              {[]meal{{2, time.Second}, {0, 2 * time.Second}}, false},
		"neither hungry nor sated, from above": {[]meal{{2, time.Second}, {0.2, 10 * time.Second}}, true},
		"a burner that is starved":             {[]meal{{2, time.Second}, {0.05, 2 * time.Second}}, true},
		"a burner that is starved, then fed":   {[]meal{{2, time.Second}, {0.05, doubt + time.Second}, {0.5, 2 * appetiteInterval}}, true},
		"a burner that is starved, on and off": {[]meal{{2, time.Second}, {0.05, doubt * 2 / 3}, {0.2, time.Second}, {0.05, doubt * 2 / 3}}, true},
		"a burner that takes little now":       {[]meal{{2, time.Second}, {0.05, doubt + time.Second}}, false},
		"neither hungry nor sated, from below": {[]meal{{0, time.Second}, {0.2, 10 * time.Second}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			now, cpu := time.Unix(1000, 0), time.Duration(0)
			a := appetite{}
			a.note(now, cpu)
			for _, m := range c.meals {
				for d := m.for_; d > 0; d -= appetiteInterval {
					now = now.Add(appetiteInterval)
					cpu += time.Duration(m.cpus * float64(appetiteInterval))
					a.note(now, cpu)
				}
			}
			if a.hungry != c.want {
				t.Errorf("hungry: %v at %.2f CPUs, want %v", a.hungry, a.rate, c.want)
			}
		})
	}
}

// Neither a clock that stands or goes back nor a counter that begins anew makes a sandbox hungry.
func TestAppetiteOfOddFigures(t *testing.T) {
	a, now := appetite{}, time.Unix(1000, 0)
	for _, look := range []struct {
		after, cpu time.Duration
	}{{0, time.Hour}, {0, 2 * time.Hour}, {-time.Second, 3 * time.Hour}, {time.Second, 0}, {time.Second, time.Millisecond}} {
		now = now.Add(look.after)
		a.note(now, look.cpu)
		if a.hungry || a.rate < 0 || a.rate > 1 {
			t.Errorf("after %v: hungry %v, %f CPUs", look, a.hungry, a.rate)
		}
	}
}

// TestHungrySandboxStandsBack, but for as long as somebody waits for it to answer.
func TestHungrySandboxStandsBack(t *testing.T) {
	b := newBench(t)
	rec, other := b.start(), b.start()
	g, box := b.host.Guest(rec.ID), b.find(rec.ID)
	now := time.Now()
	look := func(used time.Duration) {
		now = now.Add(time.Second)
		g.Burn(used)
		b.tasteAll(now, 0)
	}
	yields := func(what string, want bool) {
		t.Helper()
		if got := g.Yields(); got != want {
			t.Errorf("%s: stands back: %v, want %v", what, got, want)
		}
		if b.host.Guest(other.ID).Yields() {
			t.Errorf("%s: the idle one beside it stands back", what)
		}
	}
	b.exec(rec, hutch.ExecSpec{Cmd: "hang"})
	look(0)
	yields("it takes nothing", false)
	look(time.Second)
	yields("it burns", true)

	release, again := box.favour(), box.favour()
	yields("it is asked for something", false)
	look(time.Second)
	yields("it has not answered", false)
	release()
	look(time.Second)
	yields("it has answered one of two", false)
	again()
	yields("it has answered", true)
	look(0)
	look(0)
	yields("it has enough", false)

	look(time.Second)
	yields("it burns again", true)
	box.beginEnding(hutch.EndKilled, "")
	yields("it is ended", false)
}

// A call that waits for an answer is what makes a sandbox not stand back; one that waits for a
// command is not.
func TestCallsFavour(t *testing.T) {
	b := newBench(t)
	box := b.find(b.start().ID)
	asked := func() int {
		box.appetite.mu.Lock()
		defer box.appetite.mu.Unlock()
		return box.appetite.asked
	}
	for quiet, want := range map[time.Duration]int{eagerAfter: 1, patientAfter: 0} {
		stop := box.await(quiet, func(error) {})
		if got := asked(); got != want {
			t.Errorf("a call that is patient for %v counts %d, want %d", quiet, got, want)
		}
		stop()
		if got := asked(); got != 0 {
			t.Errorf("after a call that was patient for %v: %d", quiet, got)
		}
	}
}

// What nothing is known to run in has its turn all the same, and what runs is looked at each time.
func TestLooks(t *testing.T) {
	b := newBench(t)
	busy, idle := b.start(), b.start()
	b.exec(busy, hutch.ExecSpec{Cmd: "hang"})
	now := time.Now()
	b.tasteAll(now, 0) // everything is new
	for id, want := range map[hutch.SandboxID]int{busy.ID: 2 * roundOf, idle.ID: 2} {
		looks := 0
		for round := range 2 * roundOf {
			now = now.Add(appetiteInterval)
			b.tasteAll(now, round)
			a := &b.find(id).appetite
			a.mu.Lock()
			if a.at.Equal(now) {
				looks++
			}
			a.mu.Unlock()
		}
		if looks != want {
			t.Errorf("%d looks at %s, want %d", looks, id, want)
		}
	}
}

// A machine on which nothing is known to run is woken seldom.
func TestLooksSayWhetherAnyMayBeHungry(t *testing.T) {
	b := newBench(t)
	rec := b.start()
	for _, want := range []bool{true, false, false} { // everything is new once
		if got := b.tasteAll(time.Now(), 0); got != want {
			t.Errorf("with nothing that runs: %t, want %t", got, want)
		}
	}
	b.exec(rec, hutch.ExecSpec{Cmd: "hang"})
	if !b.tasteAll(time.Now(), b.find(rec.ID).turn+1) {
		t.Error("a command runs, and is not told of")
	}
}

// A sandbox that stood back when its server died does not for ever.
func TestAdoptedSandboxIsWeighedAnew(t *testing.T) {
	b := newBench(t)
	rec := b.start()
	sb := b.find(rec.ID).sb.(runtime.Yielding)
	if err := sb.Yield(true); err != nil { // an earlier process did
		t.Fatal(err)
	}
	b.tasteAll(time.Now(), 1)
	if b.host.Guest(rec.ID).Yields() {
		t.Error("it stands back, and takes nothing")
	}
}

// stubborn is a sandbox whose weight can't be set.
type stubborn struct {
	runtime.Sandbox
	told int
}

func (s *stubborn) Yield(bool) error { s.told++; return errors.New("read-only file system") }

func (s *stubborn) CPU() (time.Duration, error) { return 0, nil }

// What can't be set is not tried, and told the operator, at each look.
func TestWeightThatCannotBeSet(t *testing.T) {
	s := &stubborn{}
	b := &box{sb: s}
	for n := range 5 {
		if err := b.taste(time.Now()); (err != nil) != (n == 0) {
			t.Errorf("look %d: %v", n, err)
		}
	}
	if s.told != 1 {
		t.Errorf("tried %d times", s.told)
	}
}
