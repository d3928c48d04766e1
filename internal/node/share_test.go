package node

import (
	"math/rand/v2"
	"testing"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/guestapi"
	"hutch.dev/hutch/internal/runtime"
)

func TestShare(t *testing.T) {
	const s = time.Second
	for name, c := range map[string]struct{ own, all, charged, want time.Duration }{
		"alone on an idle host, with its kernel":    {2 * s, 2 * s, 3 * s, 3 * s},
		"alone on a host that has no time for it":   {2 * s, 2 * s, s, s},
		"a quarter of all that ran":                 {s, 4 * s, 2 * s, s / 2},
		"nothing":                                   {0, 4 * s, 2 * s, 0},
		"a guest that says less of all than of one": {4 * s, s, 2 * s, 2 * s},
		"a guest of old":                            {s, 0, 3 * s, s},
		"a guest of old that says too much":         {4 * s, 0, 3 * s, 3 * s},
		"begun before the server":                   {4 * s, 5 * s, unknown, 4 * s},
		"a guest that says anything":                {1<<63 - 1, 1<<63 - 1, 3 * s, 3 * s},
	} {
		if got := share(c.own, c.all, c.charged); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

// counted is a sandbox of which nothing but its CPU time is known.
type counted struct {
	runtime.Sandbox
	cpu time.Duration
}

func (c *counted) CPU() (time.Duration, error) { return c.cpu, nil }

// Whatever a guest says of its commands, and however they overlap: together they get no more
// than the host charged. Where it says the truth by its own clock, that is all there is.
func TestSharesAddUp(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 7))
	for round := range 200 {
		sb := &counted{}
		b := &box{sb: sb}
		var idle time.Duration // what was used while no command ran
		var sum, inside time.Duration
		type running struct{ own, all, before time.Duration }
		var execs []running
		honest := round%2 == 0
		slow := 1 + rng.Float64()*4 // how much the clock inside goes ahead
		end := func(i int) {
			x := execs[i]
			execs = append(execs[:i:i], execs[i+1:]...)
			st := guestapi.ExecStatus{AllCPU: inside - x.all, Result: &hutch.ExecResult{CPU: x.own}}
			if !honest {
				st.AllCPU, st.Result.CPU = time.Duration(rng.Int64()), time.Duration(rng.Int64())
			}
			sum += b.shareCPU(st, x.before)
		}
		for range 100 {
			switch n := rng.IntN(3); {
			case n == 0 && len(execs) < 8:
				if len(execs) == 0 {
					b.shares.begin(b.cpu())
				}
				execs = append(execs, running{all: inside, before: b.cpu()})
			case n == 1 && len(execs) > 0:
				end(rng.IntN(len(execs)))
			default:
				if len(execs) == 0 {
					idle += time.Second
					sb.cpu += time.Second
				}
				for i := range execs {
					used := time.Duration(rng.Int64N(int64(time.Second)))
					sb.cpu += used
					execs[i].own += time.Duration(float64(used) * slow)
					inside += time.Duration(float64(used) * slow)
				}
			}
			if sum > sb.cpu-idle {
				t.Fatalf("round %d: commands have %s of %s", round, sum, sb.cpu-idle)
			}
		}
		for len(execs) > 0 {
			end(0)
		}
		if lost := sb.cpu - idle - sum; lost < 0 || honest && lost > time.Millisecond {
			t.Errorf("round %d: commands have %s of %s", round, sum, sb.cpu-idle)
		}
	}
}

// A command that began before this server did has what the guest says, within what there is.
func TestShareOfAnAdoptedOne(t *testing.T) {
	b := &box{sb: &counted{cpu: 3 * time.Second}}
	st := guestapi.ExecStatus{AllCPU: 9 * time.Second, Result: &hutch.ExecResult{CPU: 2 * time.Second}}
	for _, want := range []time.Duration{2 * time.Second, time.Second, 0} {
		if got := b.shareCPU(st, unknown); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}
