package storetest

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/store"
)

var usageChecks = map[string]check{
	"every field of usage is kept":                  usageRoundTrip,
	"a growing interval replaces itself":            usageGrows,
	"an interval must end after it began":           usageRefused,
	"usage is chosen by project, sandbox and time":  usageFilters,
	"usage of any page size is the whole":           usagePages,
	"sums of usage are those of its intervals, cut": usageSums,
	"sums of usage have no bound":                   usageOfCenturies,
	"usage outlives its sandbox":                    usageOutlives,
	"old usage goes, but of the living":             usagePurged,
	"usage is read as of one instant":               usageAtOnce,
}

func appendUsage(t *testing.T, s store.Store, rows ...hutch.Usage) {
	t.Helper()
	if err := s.AppendUsage(t.Context(), rows...); err != nil {
		t.Fatalf("AppendUsage: %v", err)
	}
}

// used lists by pages of limit.
func used(t *testing.T, s store.Store, f store.UsageFilter, limit int) []hutch.Usage {
	t.Helper()
	var all []hutch.Usage
	p := store.Page{Limit: limit}
	for {
		page, next, err := s.Usage(t.Context(), f, p)
		if err != nil {
			t.Fatalf("Usage: %v", err)
		}
		if limit > 0 && len(page) > limit {
			t.Fatalf("a page of at most %d has %d", limit, len(page))
		}
		all = append(all, page...)
		if p.Cursor = next; next == "" {
			return all
		}
	}
}

// interval is one of a sandbox of project p1, in seconds after day0.
func interval(sb hutch.SandboxID, from, to int) hutch.Usage {
	at := func(s int) time.Time { return day0.UTC().Add(time.Duration(s) * time.Second) }
	return hutch.Usage{Project: "p1", Sandbox: sb, From: at(from), To: at(to), State: hutch.StateRunning}
}

func usageRoundTrip(t *testing.T, s store.Store) {
	want := filled[hutch.Usage](t)
	appendUsage(t, s)
	appendUsage(t, s, want)
	wantEqual(t, "the interval", used(t, s, store.UsageFilter{}, 0), []hutch.Usage{want})
}

func usageGrows(t *testing.T, s store.Store) {
	u, other := interval("i1", 0, 1), interval("i2", 0, 1)
	appendUsage(t, s, u, other)
	u.To, u.CPU, u.Memory = u.To.Add(time.Second), time.Second, 7
	next := interval("i1", 2, 3)
	appendUsage(t, s, u, next)
	appendUsage(t, s, interval("i1", 0, 1)) // late news
	wantEqual(t, "the intervals", used(t, s, store.UsageFilter{}, 0), []hutch.Usage{u, other, next})
}

func usageRefused(t *testing.T, s store.Store) {
	for _, u := range []hutch.Usage{interval("i1", 1, 1), interval("i1", 1, 0)} {
		wantErr(t, fmt.Sprintf("AppendUsage from %s to %s", u.From, u.To), s.AppendUsage(t.Context(), interval("i2", 0, 1), u), hutch.ErrInternal)
	}
	if l := used(t, s, store.UsageFilter{}, 0); len(l) != 0 {
		t.Errorf("refused writes left %+v", l)
	}
}

func usageFilters(t *testing.T, s store.Store) {
	foreign := interval("i3", 0, 10)
	foreign.Project = "p2"
	appendUsage(t, s, interval("i1", 0, 10), interval("i2", 0, 10), interval("i1", 10, 20), foreign)
	at := func(n int) time.Time { return day0.Add(time.Duration(n) * time.Second) }
	for _, c := range []struct {
		f    store.UsageFilter
		want int
	}{
		{store.UsageFilter{}, 4},
		{store.UsageFilter{Project: "p1"}, 3},
		{store.UsageFilter{Project: "p1", Sandbox: "i1"}, 2},
		{store.UsageFilter{Project: "p1", Sandbox: "i3"}, 0},
		{store.UsageFilter{Sandbox: "i1", From: at(10)}, 1},
		{store.UsageFilter{Sandbox: "i1", From: at(9)}, 2},
		{store.UsageFilter{Sandbox: "i1", To: at(10)}, 1},
		{store.UsageFilter{Sandbox: "i1", To: at(11)}, 2},
		{store.UsageFilter{From: at(20)}, 0},
		{store.UsageFilter{To: at(0)}, 0},
	} {
		if l := used(t, s, c.f, 0); len(l) != c.want {
			t.Errorf("%+v: %d intervals, want %d", c.f, len(l), c.want)
		}
	}
}

func usagePages(t *testing.T, s store.Store) {
	const n = 7
	var want []hutch.Usage
	for i := range n {
		want = append(want, interval(hutch.SandboxID(fmt.Sprint("i", i%3)), i, i+1))
	}
	appendUsage(t, s, want...)
	for limit := range n + 2 {
		wantEqual(t, fmt.Sprintf("by pages of %d", limit), used(t, s, store.UsageFilter{}, limit), want)
		if l := bySandbox(t, s, store.UsageFilter{}, limit); len(l) != 3 || l[0].Sandbox != "i0" || l[2].Sandbox != "i2" {
			t.Errorf("by sandbox, in pages of %d: %+v; want i0, i1, i2", limit, l)
		}
	}
	_, next, err := s.Usage(t.Context(), store.UsageFilter{}, store.Page{Limit: 1})
	if err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{"x", next + "A"} {
		_, _, err := s.Usage(t.Context(), store.UsageFilter{}, store.Page{Cursor: bad})
		wantErr(t, "Usage from a made-up cursor", err, hutch.ErrBadRequest)
	}
	_, _, err = s.UsageBySandbox(t.Context(), store.UsageFilter{}, store.Page{Cursor: next})
	wantErr(t, "UsageBySandbox from a cursor of Usage", err, hutch.ErrBadRequest)
}

func bySandbox(t *testing.T, s store.Store, f store.UsageFilter, limit int) []hutch.SandboxUsage {
	t.Helper()
	var all []hutch.SandboxUsage
	p := store.Page{Limit: limit}
	for {
		page, next, err := s.UsageBySandbox(t.Context(), f, p)
		if err != nil {
			t.Fatalf("UsageBySandbox: %v", err)
		}
		all = append(all, page...)
		if p.Cursor = next; next == "" {
			return all
		}
	}
}

// Against sums made in Go of random intervals, cut at random bounds.
func usageSums(t *testing.T, s store.Store) {
	rng := rand.New(rand.NewPCG(3, 3))
	for i := range 60 {
		u := interval(hutch.SandboxID(fmt.Sprint("i", i%2)), i/2*10, i/2*10+1+rng.IntN(9))
		u.CPU, u.Memory, u.Disk, u.Egress = time.Duration(rng.Int64N(1e10)), rng.Int64N(1<<40), rng.Int64N(1<<40), rng.Int64N(1<<40)
		if rng.IntN(3) == 0 {
			u.State = hutch.StatePaused
		}
		appendUsage(t, s, u)
	}
	rows := used(t, s, store.UsageFilter{}, 0)
	for range 30 {
		f := store.UsageFilter{Project: "p1"}
		if rng.IntN(4) > 0 {
			f.From = day0.Add(time.Duration(rng.Int64N(int64(200 * time.Second))))
		}
		if rng.IntN(4) > 0 {
			f.To = day0.Add(time.Duration(rng.Int64N(int64(300 * time.Second))))
		}
		var all hutch.UsageTotal
		each := map[hutch.SandboxID]*hutch.SandboxUsage{}
		for _, u := range rows {
			u, ok := u.Clip(f.From, f.To)
			if !ok {
				continue
			}
			all.Add(u)
			e := each[u.Sandbox]
			if e == nil {
				e = &hutch.SandboxUsage{Project: u.Project, Sandbox: u.Sandbox, From: u.From}
				each[u.Sandbox] = e
			}
			e.To = u.To
			e.Total.Add(u)
		}
		got, err := s.UsageTotal(t.Context(), f)
		if err != nil {
			t.Fatalf("UsageTotal: %v", err)
		}
		wantTotal(t, fmt.Sprintf("%+v", f), got, all)
		l := bySandbox(t, s, f, 0)
		if len(l) != len(each) {
			t.Fatalf("%+v: %d sandboxes, want %d", f, len(l), len(each))
		}
		for _, u := range l {
			want := each[u.Sandbox]
			wantTotal(t, fmt.Sprintf("%+v of %s", f, u.Sandbox), u.Total, want.Total)
			if u.Project != "p1" || !u.From.Equal(want.From) || !u.To.Equal(want.To) {
				t.Errorf("%+v of %s: %s from %s to %s, want %s to %s", f, u.Sandbox, u.Project, u.From, u.To, want.From, want.To)
			}
		}
	}
}

// In sum a thousand sandboxes live through more time in a year than a time.Duration holds: that
// says it is the longest there is, and what is charged is right.
func usageOfCenturies(t *testing.T, s store.Store) {
	const years = 200 * 365 * 24 * 3600
	for _, id := range []hutch.SandboxID{"i1", "i2"} {
		u := interval(id, 0, years)
		u.CPU, u.Memory = time.Hour+7, 1<<30
		appendUsage(t, s, u)
	}
	got, err := s.UsageTotal(t.Context(), store.UsageFilter{})
	if err != nil {
		t.Fatalf("UsageTotal: %v", err)
	}
	wantTotal(t, "four centuries", got, hutch.UsageTotal{Wall: math.MaxInt64, CPU: 2*time.Hour + 14, MemoryGiBHours: 2 * years / 3600})
}

// wantTotal compares sums; those of floating point may be added up in another order.
func wantTotal(t *testing.T, what string, got, want hutch.UsageTotal) {
	t.Helper()
	near := func(a, b float64) bool { return math.Abs(a-b) <= 1e-9*math.Abs(b) }
	if got.Wall != want.Wall || got.Paused != want.Paused || got.CPU != want.CPU || got.EgressBytes != want.EgressBytes ||
		!near(got.MemoryGiBHours, want.MemoryGiBHours) || !near(got.DiskGiBHours, want.DiskGiBHours) {
		t.Errorf("%s:\n got %+v\nwant %+v", what, got, want)
	}
}

func usageOutlives(t *testing.T, s store.Store) {
	create(t, s, dead("i1", day0))
	appendUsage(t, s, interval("i1", -10, 0))
	if n, err := s.PurgeSandboxes(t.Context(), day0.Add(1)); err != nil || n != 1 {
		t.Fatalf("PurgeSandboxes: %d, %v", n, err)
	}
	if l := used(t, s, store.UsageFilter{Sandbox: "i1"}, 0); len(l) != 1 {
		t.Errorf("after the sandbox is gone: %+v, want its interval", l)
	}
}

// What is stored while a report is made is in no part of it.
func usageAtOnce(t *testing.T, s store.Store) {
	grown := func(to int) hutch.Usage {
		u := interval("i1", 0, to)
		u.CPU = time.Duration(to) * time.Second
		return u
	}
	appendUsage(t, s, grown(10))
	broken := errors.New("enough")
	err := s.ReadUsage(t.Context(), func(r store.UsageReader) error {
		before, err := r.UsageTotal(t.Context(), store.UsageFilter{})
		if err != nil {
			return err
		}
		appendUsage(t, s, grown(20), interval("i2", 0, 5))
		rows, _, err := r.Usage(t.Context(), store.UsageFilter{}, store.Page{})
		if err != nil {
			return err
		}
		wantEqual(t, "the intervals, while there come more", rows, []hutch.Usage{grown(10)})
		each, _, err := r.UsageBySandbox(t.Context(), store.UsageFilter{}, store.Page{})
		if err != nil {
			return err
		}
		if len(each) != 1 || each[0].Total != before || before.CPU != 10*time.Second {
			t.Errorf("in all %+v, by sandbox %+v", before, each)
		}
		return broken
	})
	if !errors.Is(err, broken) {
		t.Errorf("ReadUsage returned %v, want what its reader did", err)
	}
	wantEqual(t, "the intervals afterwards", used(t, s, store.UsageFilter{}, 0), []hutch.Usage{grown(20), interval("i2", 0, 5)})
}

func usagePurged(t *testing.T, s store.Store) {
	create(t, s, dead("dead", day0))
	create(t, s, sandbox("alive"))
	for _, id := range []hutch.SandboxID{"alive", "dead", "gone"} {
		appendUsage(t, s, interval(id, 0, 10), interval(id, 10, 20))
	}
	if n, err := s.PurgeUsage(t.Context(), day0.Add(20*time.Second)); err != nil || n != 2 {
		t.Errorf("PurgeUsage: %d, %v; want 2", n, err)
	}
	wantEqual(t, "what is left", used(t, s, store.UsageFilter{}, 0),
		[]hutch.Usage{interval("alive", 0, 10), interval("alive", 10, 20), interval("dead", 10, 20), interval("gone", 10, 20)})
}
