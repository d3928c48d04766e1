package bench

import (
	"bytes"
	"context"
	"errors"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"hutch.dev/hutch"
)

// TestFiguresOf: rounds of a phase are one, subjects and phases are not, and what a reader
// looks for comes first.
func TestFiguresOf(t *testing.T) {
	b := &book{}
	b.page("first", SubjectFloor, 1).add(MetricKill, Microseconds, 5)
	b.page("first", SubjectHutch, 1).add(MetricKill, Microseconds, 9, 3)
	b.page("second", SubjectHutch, 1).add(MetricKill, Microseconds, 1)
	b.page("first", SubjectHutch, 2).add(MetricKill, Microseconds, 6)
	b.page("first", SubjectHutch, 2).add(MetricCreate, Microseconds, 2)
	b.page("first", SubjectHutch, 2).reserve(MetricPSS, Bytes, 10)
	want := []Figure{
		{"first", MetricCreate, SubjectHutch, Microseconds, Dist{N: 1, Min: 2, P50: 2, P95: 2, P99: 2, Max: 2}},
		{"first", MetricKill, SubjectHutch, Microseconds, Dist{N: 3, Min: 3, P50: 6, P95: 9, P99: 9, Max: 9}},
		{"first", MetricKill, SubjectFloor, Microseconds, Dist{N: 1, Min: 5, P50: 5, P95: 5, P99: 5, Max: 5}},
		{"second", MetricKill, SubjectHutch, Microseconds, Dist{N: 1, Min: 1, P50: 1, P95: 1, P99: 1, Max: 1}},
	}
	got := figuresOf(b.samples)
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	if _, ok := figures(got).of("second", MetricCreate, SubjectHutch); ok {
		t.Error("a figure of another phase was found")
	}
	if got := figures(got).phases(MetricKill); !reflect.DeepEqual(got, []string{"first", "second"}) {
		t.Errorf("phases %v", got)
	}
}

func TestClaims(t *testing.T) {
	for name, tt := range map[string]struct {
		got  Claim
		want bool
	}{
		"below the most":  {atMost("x", 1.499, 1.5, ""), true},
		"at the most":     {atMost("x", 1.5, 1.5, ""), true},
		"above the most":  {atMost("x", 1.501, 1.5, ""), false},
		"above the least": {atLeast("x", 0.81, 0.8), true},
		"at the least":    {atLeast("x", 0.8, 0.8), true},
		"below the least": {atLeast("x", 0.799, 0.8), false},
	} {
		if tt.got.Within != tt.want {
			t.Errorf("%s: %+v", name, tt.got)
		}
	}
}

// claimsOf is what a kind of benchmark holds of samples, by how each claim begins.
func claimsOf(kind string, s Settings, b *book) map[string]Claim {
	rep := newReport(kind, s)
	_, _ = rep.conclude(b, nil)
	out := map[string]Claim{}
	for _, c := range rep.Claims {
		out[c.What] = c
	}
	return out
}

func TestDensityClaims(t *testing.T) {
	b := &book{}
	at := func(tier hutch.DiskTier, phase string) page { return b.page(tierPhase(tier, phase), SubjectHutch, 0) }
	for _, tier := range []hutch.DiskTier{hutch.TierDisk, hutch.TierMemory} {
		at(tier, phaseNone).add(MetricCreate, Microseconds, 100_000, 100_000, 400_000)
		at(tier, phaseNone).add(MetricCPUOurs, CPUShare, 7_000, 9_000, 15_000)
		at(tier, phaseIdle).add(MetricPSS, Bytes, 15<<20, 17<<20)
		at(tier, phaseIdle).add(MetricCPUAll, CPUShare, 2_000) // 0.2 % of one
		at(tier, phaseIdle).add(MetricCPUOurs, CPUShare, 18_000, 17_000, 30_000)
		at(tier, phaseIdle).add(MetricCreate, Microseconds, 140_000, 140_000, 900_000)
		at(tier, phaseUsed).add(MetricAnswer, Microseconds, 20_000)
	}
	const overNoise = "disk tier: CPU of the machine but for other processes, median with them less that with none; the limit is the spread with none"
	got := claimsOf("density", Settings{N: 2, Tiers: []hutch.DiskTier{hutch.TierDisk, hutch.TierMemory}}, b)
	for what, want := range map[string]Claim{
		"disk tier: memory of the largest of 2 idle sandboxes (PSS)":   {Value: 17, Limit: 22, Unit: "MiB", Within: true},
		"memory tier: memory of the largest of 2 idle sandboxes (PSS)": {Value: 17, Limit: 16, Unit: "MiB", Within: false},
		"disk tier: CPU of all of them":                                {Value: 0.2, Limit: 1, Unit: "% of one", Within: true},
		"disk tier: create beside them over create with none, p50":     {Value: 1.4, Limit: 1.5, Within: true},
		overNoise:                            {Value: 0.9, Limit: 0.8, Unit: "% of one", Within: false},
		"memory tier: sandboxes that answer": {Value: 1, Limit: 2, AtLeast: true, Within: false},
	} {
		want.What = what
		if got[what] != want {
			t.Errorf("got  %+v\nwant %+v", got[what], want)
		}
	}
	if len(got) != 10 {
		t.Errorf("%d claims, want 5 of each tier: %+v", len(got), got)
	}
}

func TestCreatesClaims(t *testing.T) {
	b := &book{}
	for i, r := range []int64{7_000, 9_000, 8_000} { // the median counts
		b.page(atOncePhase(4), SubjectHutch, i+1).add(MetricRate, PerKilosec, r)
		b.page(atOncePhase(4), SubjectFloor, i+1).add(MetricRate, PerKilosec, 10_000)
	}
	b.page(atOncePhase(16), SubjectHutch, 1).add(MetricRate, PerKilosec, 10_000)
	got := claimsOf("creates", Settings{}, b)
	const what = "creates a second over the floor's, 4 at once"
	if want := (Claim{What: what, Value: 0.8, Limit: 0.8, AtLeast: true, Within: true}); len(got) != 1 || got[what] != want {
		t.Errorf("got %+v, want %+v and nothing of what has no floor", got, want)
	}
}

func TestCyclesClaims(t *testing.T) {
	b := &book{}
	before := holdings{heap: 100 << 20, routines: map[string]int{"main": 3}, files: map[string]map[string]int{"server": {"socket:[*]": 2}}}
	after := holdings{heap: 106 << 20, routines: map[string]int{"main": 3}, files: map[string]map[string]int{"server": {"socket:[*]": 3}}, left: 1}
	before.book(b.page(phaseBefore, SubjectHutch, 0))
	after.book(b.page(phaseAfter, SubjectHutch, 0))
	b.page(phaseCycles, SubjectHutch, 0).add(MetricKill, Microseconds, 1, 2)
	b.page(phaseAfter, SubjectHutch, 0).add(MetricLeaks, Count, 2)
	got := claimsOf("cycles", Settings{N: 3}, b)
	for what, want := range map[string]Claim{
		"what `hutch leaks` prints":                                     {Value: 2},
		"cycles without an error":                                       {Value: 2, Limit: 3, AtLeast: true},
		"heap after over heap before, each after a collection":          {Value: 1.06, Limit: 1.05},
		"goroutines of the server, more than before":                    {Within: true},
		"open descriptors: server, more than before":                    {Value: 1},
		"control groups and directories of sandboxes, more than before": {Value: 1},
	} {
		want.What = what
		if got[what] != want {
			t.Errorf("got  %+v\nwant %+v", got[what], want)
		}
	}
	if more := after.beyond(&before); !reflect.DeepEqual(more, []string{"descriptors of the server: 1 more of socket:[*]"}) {
		t.Errorf("what there is more of: %q", more)
	}
	if after.like(&before) || !before.like(&before) {
		t.Error("like does not tell them apart")
	}
}

// TestTakeRecords: the pool of readers may fill, by so many files, and nothing else may grow.
func TestTakeRecords(t *testing.T) {
	h := &Host{Records: []string{"/d7/hutch.db", "/d7/hutch.db-wal"}}
	look := func(readers int) *holdings {
		open := map[string]int{"/d*/hutch.db": readers, "/d*/hutch.db-wal": readers, "socket:[*]": 3}
		taken := h.takeRecords(open)
		if len(open) != 1 || count(taken) != 2*readers {
			t.Fatalf("%v are left, %v taken, want the sockets left", open, taken)
		}
		return &holdings{files: map[string]map[string]int{"server": open, filesOfRecords: taken}}
	}
	before := look(1)
	if after := look(5); !after.like(before) || after.beyond(before) != nil {
		t.Errorf("four readers more are taken for a leak: %q", after.beyond(before))
	}
	if after := look(6); after.beyond(before) == nil {
		t.Error("five readers more are not")
	}
}

func TestParseStacks(t *testing.T) {
	const dump = `goroutine 1 [running]:
main.main()
	/a/main.go:3 +0x1

goroutine 7 [select]:
net/http.(*persistConn).readLoop(0x1)
	/go/transport.go:1 +0x2
created by net/http.(*Transport).dialConn in goroutine 5
	/go/transport.go:2 +0x3

goroutine 8 [select]:
net/http.(*persistConn).writeLoop(0x1)
created by net/http.(*Transport).dialConn in goroutine 5
	/go/transport.go:3 +0x4
`
	want := map[string]int{"main": 1, "net/http.(*Transport).dialConn": 2}
	if got := parseStacks(dump); !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if own := routines(); own["testing.(*T).Run"] < 1 {
		t.Errorf("this test's own goroutine is not among %v", own)
	}
}

// TestSustain: what is done before every caller has had one, and after the end, is not
// counted, and the rate is of the rest.
func TestSustain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var now, most, n atomic.Int32
		b := &book{}
		err := sustain(t.Context(), b.page("x", SubjectHutch, 1), 4, 10*time.Second, func(_ context.Context, c *clock) error {
			most.Store(max(most.Load(), now.Add(1)))
			defer now.Add(-1)
			n.Add(1)
			time.Sleep(time.Second)
			c.book(MetricCreate, time.Second)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		fs := figures(figuresOf(b.samples))
		d, _ := fs.of("x", MetricCreate, SubjectHutch)
		r, _ := fs.of("x", MetricRate, SubjectHutch)
		// Of 12 seconds the first opens the window; those that end with it, at its very
		// end, are in it; the last four only see that it is over.
		if most.Load() != 4 || n.Load() != 48 || d.N != 40 || r.P50 != 4000 {
			t.Errorf("%d at once, %d runs, %d of them counted, %d in 1000 s: want 4, 48, 40, 4000", most.Load(), n.Load(), d.N, r.P50)
		}
	})
}

func TestSustainFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &book{}
		err := sustain(t.Context(), b.page("x", SubjectHutch, 1), 2, time.Minute, func(context.Context, *clock) error {
			time.Sleep(time.Second)
			return errors.New("no room")
		})
		if err == nil || !strings.Contains(err.Error(), "no room") || len(b.faults) < maxInARow {
			t.Errorf("%v after %d faults, want it given up with the reason", err, len(b.faults))
		}
	})
}

func TestRounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var order []string
		var last string
		sub := func(name string) subject {
			return subject{name, func(_ context.Context, c *clock) error {
				if last != name {
					order, last = append(order, name), name
				}
				time.Sleep(time.Second)
				return nil
			}}
		}
		b := &book{}
		s := Settings{N: 2, Levels: []int{1}, Window: 3 * time.Second}
		if err := s.rounds(t.Context(), b, []subject{sub("a"), sub("b")}, nil); err != nil {
			t.Fatal(err)
		}
		// b ends the first round and begins the second.
		if want := []string{"a", "b", "a"}; !reflect.DeepEqual(order, want) {
			t.Errorf("order %v, want %v", order, want)
		}
	})
}

func TestRate(t *testing.T) {
	if got := rate(30, 4*time.Second); got != 7500 {
		t.Errorf("%d in 1000 s, want 7500", got)
	}
}

// many is a report with samples.
func many(t *testing.T) *Report {
	t.Helper()
	b := &book{}
	for _, subject := range []string{SubjectHutch, SubjectFloor} {
		p := b.page(atOncePhase(4), subject, 1)
		p.add(MetricRate, PerKilosec, 12_345)
		p.add(MetricCreate, Microseconds, 100_000, 120_000, 140_000)
		p.add(MetricPSS, Bytes, 512<<10, 20<<20)
		p.add("stage.guest", Microseconds, 7_000)
	}
	b.page(atOncePhase(4), SubjectHutch, 1).fault("create: %s", "no room")
	rep, err := newReport("creates", Settings{N: 1, Levels: []int{4}, Window: time.Second, Baseline: true}).conclude(b, nil)
	if err != nil {
		t.Fatal(err)
	}
	return rep
}

func TestSamplesRoundTrip(t *testing.T) {
	rep := many(t)
	rep.Runs = []Run{}
	var b bytes.Buffer
	if err := rep.Write(&b); err != nil {
		t.Fatal(err)
	}
	got, err := Read(bytes.NewReader(b.Bytes()))
	if err != nil {
		t.Fatalf("%v\n%s", err, b.String())
	}
	if !reflect.DeepEqual(got, rep) {
		t.Errorf("got  %+v\nwant %+v", got, rep)
	}
	for name, edit := range map[string][2]string{
		"a value":  {"120000", "110000"},
		"a figure": {`"p50": 120000`, `"p50": 110000`},
		"a claim":  {`"within": true`, `"within": false`},
	} {
		bad := strings.Replace(b.String(), edit[0], edit[1], 1)
		if bad == b.String() {
			t.Fatalf("%s: %q is not in\n%s", name, edit[0], b.String())
		}
		if _, err := Read(strings.NewReader(bad)); err == nil {
			t.Errorf("%s was changed, and it was read", name)
		}
	}
}

func TestFigureTables(t *testing.T) {
	var b bytes.Buffer
	if err := many(t).Markdown(&b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"| creates a second over the floor's, 4 at once | 1 | at least 0.8 | within |",
		"| sandboxes made and ended | 4 at once | hutch | 1 | 12.3 |  |  |  |  |",
		"| create, to running | 4 at once | floor | 3 | 120.0 | 140.0 | 140.0 | 100.0 | 140.0 |",
		"| create, to running | 4 at once | 1.00 | 1.00 | 1.00 |",
		"| memory of a sandbox, PSS | 4 at once | hutch | 2 | 512 KiB | 20.0 MiB | 20.0 MiB | 512 KiB | 20.0 MiB |",
		"| guest | 4 at once | hutch | 1 | 7.0 |  |  |  |  |",
		"Went wrong: 1. 4 at once, hutch: create: no room.",
		"1 rounds of 1s of each subject",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("%q is not in\n%s", want, b.String())
		}
	}
	if strings.Contains(b.String(), "Failed runs") {
		t.Error("runs are counted where there are none")
	}
}
