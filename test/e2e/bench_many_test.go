package e2e

import (
	"slices"
	"testing"

	"hutch.dev/hutch/internal/bench"
)

// The benchmarks of many sandboxes in their short form: that they measure, and on both
// disk tiers, is a test's business; what they come to on a busy machine is not.

// figure finds what was measured of a metric in a phase; the test ends without it.
func figure(t *testing.T, rep *bench.Report, phase, metric, subject string) bench.Dist {
	t.Helper()
	i := slices.IndexFunc(rep.Figures, func(f bench.Figure) bool {
		return f.Phase == phase && f.Metric == metric && f.Subject == subject
	})
	if i < 0 {
		t.Fatalf("%s of %s, %s, is missing from %+v", metric, subject, phase, rep.Figures)
	}
	return rep.Figures[i].Dist
}

func faultless(t *testing.T, rep *bench.Report) {
	t.Helper()
	for _, f := range rep.Faults {
		t.Errorf("went wrong: %+v", f)
	}
}

func TestBenchDensity(t *testing.T) {
	t.Parallel()
	const n = 3
	rep := measured(t, "density", "-n", "3", "--warmup", "1", "--probes", "1", "--over", "1s", "--memory", "256")
	faultless(t, rep)
	for _, tier := range []string{"disk", "memory"} {
		if d := figure(t, rep, tier+" tier, none alive", bench.MetricCreate, bench.SubjectHutch); d.N != 1 {
			t.Errorf("%s tier: %d creates with none alive, want 1", tier, d.N)
		}
		idle := tier + " tier, all alive"
		pss, own := figure(t, rep, idle, bench.MetricPSS, bench.SubjectHutch), figure(t, rep, idle, bench.MetricOwn, bench.SubjectHutch)
		// A sandbox is a kernel and a guest agent: less than this is not all of it.
		if pss.N != n || pss.Min < 4<<20 || own.Min < 2<<20 || pss.Max < own.Max {
			t.Errorf("%s tier: memory %+v, of it its own %+v", tier, pss, own)
		}
		for phase, metric := range map[string]string{idle: bench.MetricRest, tier + " tier, none alive": bench.MetricCPUOurs} {
			if d := figure(t, rep, phase, metric, bench.SubjectHutch); d.N != 1 {
				t.Errorf("%s: %s %+v", phase, metric, d)
			}
		}
		if d := figure(t, rep, idle, bench.MetricProcesses, bench.SubjectHutch); d.Min < 2 {
			t.Errorf("%s tier: %+v processes", tier, d)
		}
		if d := figure(t, rep, tier+" tier, after a command in each", bench.MetricAnswer, bench.SubjectHutch); d.N != n {
			t.Errorf("%s tier: %d of %d answered", tier, d.N, n)
		}
		if d := figure(t, rep, tier+" tier, ending", bench.MetricKill, bench.SubjectHutch); d.N != n {
			t.Errorf("%s tier: %d of %d ended", tier, d.N, n)
		}
	}
	if len(rep.Claims) != 10 {
		t.Errorf("claims: %+v, want 5 of each tier", rep.Claims)
	}
}

func TestBenchDisk(t *testing.T) {
	t.Parallel()
	const size = 10_000_000
	rep := measured(t, "disk", "-n", "2", "--memory", "256")
	faultless(t, rep)
	of := func(phase string) bench.Dist { return figure(t, rep, phase, bench.MetricDisk, bench.SubjectHutch) }
	made, written := of("disk tier, after create"), of("disk tier, after writing a file in each")
	if made.N != 2 || made.Max > 1<<20 {
		t.Errorf("a new sandbox has %+v bytes of the disk: the root image was copied, or something else", made)
	}
	if written.N != 2 || written.Min < size || written.Max > size+2<<20 {
		t.Errorf("with a file of %d bytes a sandbox has %+v bytes of the disk", size, written)
	}
	if d := of("memory tier, after writing a file in each"); d.Max > 1<<20 {
		t.Errorf("on the memory tier a sandbox has %+v bytes of the disk", d)
	}
}

func TestBenchCreates(t *testing.T) {
	t.Parallel()
	rep := measured(t, "creates", "-n", "1", "--parallel", "1,3", "--over", "1s", "--baseline", "--memory", "256")
	faultless(t, rep)
	for _, phase := range []string{"1 at once", "3 at once"} {
		for _, subject := range []string{bench.SubjectHutch, bench.SubjectFloor} {
			figure(t, rep, phase, bench.MetricRate, subject)
		}
	}
	if len(rep.Claims) != 2 {
		t.Errorf("claims: %+v, want one of each number at once", rep.Claims)
	}
}

// TestBenchCycles is the short form of `make soak`: after many sandboxes the server holds
// what it held before. The command itself fails if it does not, or if a cycle does.
func TestBenchCycles(t *testing.T) {
	t.Parallel() // much of it is waiting until the server has come to rest
	rep := measured(t, "cycles", "-n", "24", "--concurrency", "4", "--warmup", "12", "--memory", "256")
	if d := figure(t, rep, "cycles", bench.MetricKill, bench.SubjectHutch); d.N != 24 {
		t.Errorf("%d cycles, want 24", d.N)
	}
	if d := figure(t, rep, "after", bench.MetricRoutines, bench.SubjectHutch); d.P50 < 5 {
		t.Errorf("%d goroutines: that is no server", d.P50)
	}
}

// TestBenchSiege: every load is under way in a sandbox of its own, is asked and killed, both
// through the server and by hand.
func TestBenchSiege(t *testing.T) {
	rep := measured(t, "siege", "-n", "2", "--rounds", "1", "--warmup", "1", "--baseline", "--memory", "256")
	faultless(t, rep)
	for _, subject := range []string{bench.SubjectHutch, bench.SubjectFloor} {
		for _, phase := range []string{"no load", "under siege"} {
			if d := figure(t, rep, phase, bench.MetricRoundTrip, subject); d.N != 2 {
				t.Errorf("%s, %s: %d commands of a neighbour, want 2", subject, phase, d.N)
			}
		}
		for _, load := range []string{"fork bomb", "memory hog"} { // which may take the sandbox before it is asked
			figure(t, rep, load, bench.MetricAnew, subject)
			figure(t, rep, load, bench.MetricTaken, subject)
		}
		for _, load := range []string{"disk filler", "output flood", "CPU burner"} {
			figure(t, rep, load, bench.MetricList, subject)
			figure(t, rep, load, bench.MetricRead, subject)
			if d := figure(t, rep, load, bench.MetricKill, subject); d.N != 1 {
				t.Errorf("%s, %s: %d kills, want 1", subject, load, d.N)
			}
			if d := figure(t, rep, load, bench.MetricCPU, subject); d.Min < 10_000 {
				t.Errorf("%s, %s: took %d millionths of a CPU: that is no load", subject, load, d.Min)
			}
		}
	}
	if n := len(rep.Claims); n < 4 || n > 6 {
		t.Errorf("claims: %+v, want one of the neighbour and one of each load that was asked", rep.Claims)
	}
}
