package control

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"hutch.dev/hutch"
)

// steps are "a1" (push a1 of project a), "<" (pop), "-a1" (remove).
func TestFairQueue(t *testing.T) {
	for name, c := range map[string]struct {
		most  int
		steps string
		want  string // of each step: what was served, "!" refused, "x out" pushed another out, "?" nothing there
	}{
		"one project is first come, first served": {9, "a1 a2 a3 < < <", "a1 a2 a3"},
		"in turn":                         {9, "a1 a2 a3 b1 c1 b2 < < < < < <", "a1 b1 c1 a2 b2 a3"},
		"who has been served is last":     {9, "a1 b1 < a2 c1 < < <", "a1 b1 a2 c1"},
		"who comes late waits for one":    {9, "a1 a2 a3 a4 < b1 < < <", "a1 a2 b1 a3"},
		"nothing there":                   {9, "< a1 < <", "? a1 ?"},
		"one alone may use all places":    {3, "a1 a2 a3 a4 < < <", "! a1 a2 a3"},
		"a newcomer takes the newest":     {4, "a1 a2 a3 a4 b1 < < < < <", "out:a4 a1 b1 a2 a3 ?"},
		"up to its share":                 {4, "a1 a2 a3 a4 b1 b2 b3 < < < <", "out:a4 out:a3 ! a1 b1 a2 b2"},
		"of the one that has most":        {5, "a1 b1 b2 b3 b4 c1 < < < < <", "out:b4 a1 b1 c1 b2 b3"},
		"more projects than places":       {2, "a1 b1 c1 < <", "! a1 b1"},
		"one who left":                    {9, "a1 a2 b1 -a1 -b1 < <", "a2 ?"},
		"one who left twice":              {9, "a1 -a1 -a1 <", "! ?"},
		"one who left makes room":         {2, "a1 a2 a3 -a2 a4 < < <", "! a1 a4 ?"},
		"a project that comes back":       {9, "a1 b1 < < a2 b2 < <", "a1 b1 a2 b2"},
		"who was pushed out is nowhere":   {2, "a1 a2 b1 -a2 < < <", "out:a2 ! a1 b1 ?"},
		"who left loses the turn with it": {9, "a1 b1 c1 -a1 a2 < < <", "b1 c1 a2"},
	} {
		t.Run(name, func(t *testing.T) {
			q := newFairQueue[string](c.most)
			var got []string
			for s := range strings.FieldsSeq(c.steps) {
				switch s[0] {
				case '<':
					x, ok := q.pop()
					if !ok {
						x = "?"
					}
					got = append(got, x)
				case '-':
					if !q.remove(hutch.ProjectID(s[1:2]), s[1:]) {
						got = append(got, "!")
					}
				default:
					out, isOut, ok := q.push(hutch.ProjectID(s[:1]), s)
					if isOut {
						got = append(got, "out:"+out)
					} else if !ok {
						got = append(got, "!")
					}
				}
			}
			if g := strings.Join(got, " "); g != c.want {
				t.Errorf("got  %s\nwant %s", g, c.want)
			}
		})
	}
}

// Whatever happens: never more wait than there are places, nobody is lost or served twice, and
// between two turns of a project that waits every other has at most one.
func TestFairQueueHoldsItsRules(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 1))
		q := newFairQueue[int](1 + r.IntN(8))
		waits := map[int]hutch.ProjectID{}
		since := map[hutch.ProjectID]map[hutch.ProjectID]int{} // turns of others since p's last, or its coming
		n := 0
		for range 300 {
			if r.IntN(5) < 3 {
				p := hutch.ProjectID(fmt.Sprint(r.IntN(1 + r.IntN(5))))
				n++
				out, isOut, ok := q.push(p, n)
				if isOut {
					if waits[out] == "" || !ok {
						t.Fatalf("seed %d: %d was pushed out, and was not there", seed, out)
					}
					delete(waits, out)
				}
				if ok {
					waits[n] = p
					if since[p] == nil {
						since[p] = map[hutch.ProjectID]int{}
					}
				}
			} else if x, ok := q.pop(); ok {
				p := waits[x]
				delete(waits, x)
				if p == "" {
					t.Fatalf("seed %d: %d was served and did not wait", seed, x)
				}
				for o, m := range since {
					if m[p]++; o != p && m[p] > 1 && len(q.of[o]) > 0 {
						t.Fatalf("seed %d: %s was served %d times while %s waited", seed, p, m[p], o)
					}
				}
				since[p] = map[hutch.ProjectID]int{}
			}
			for p := range since {
				if len(q.of[p]) == 0 {
					delete(since, p)
				}
			}
			if q.n != len(waits) || q.n > q.most || len(q.turn) != len(q.of) {
				t.Fatalf("seed %d: %d wait, %d are counted, of at most %d; %d of %d projects have a turn", seed, len(waits), q.n, q.most, len(q.turn), len(q.of))
			}
		}
	}
}

func TestRates(t *testing.T) {
	t0 := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	type ask struct {
		after time.Duration
		p     hutch.ProjectID
		wait  time.Duration
	}
	for name, c := range map[string]struct {
		perMinute int
		asks      []ask
	}{
		"any": {0, []ask{{0, "a", 0}, {0, "a", 0}}},
		"a minute's worth at once, then evenly": {2, []ask{
			{0, "a", 0},
			{0, "a", 0},
			{0, "a", 30 * time.Second},
			{20 * time.Second, "a", 10 * time.Second},
			{30 * time.Second, "a", 0},
			{30 * time.Second, "a", 30 * time.Second},
		}},
		"each for itself":           {1, []ask{{0, "a", 0}, {0, "b", 0}, {0, "b", time.Minute}}},
		"no more than a minute's":   {2, []ask{{0, "a", 0}, {time.Hour, "a", 0}, {time.Hour, "a", 0}, {time.Hour, "a", 30 * time.Second}}},
		"a clock that was set back": {1, []ask{{time.Hour, "a", 0}, {0, "a", time.Minute}, {30 * time.Second, "a", 30 * time.Second}}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRates(c.perMinute)
			for i, a := range c.asks {
				if got := r.take(a.p, t0.Add(a.after)); got != a.wait {
					t.Errorf("ask %d: wait %v, want %v", i, got, a.wait)
				}
			}
		})
	}
	r := newRates(1)
	r.take("a", t0)
	r.giveBack("a")
	r.giveBack("a") // no more than there were
	r.giveBack("b") // who never had any
	if first, second := r.take("a", t0), r.take("a", t0); first != 0 || second != time.Minute {
		t.Errorf("after one was given back: %v, %v", first, second)
	}
}
