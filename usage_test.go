package hutch_test

import (
	"math"
	"testing"
	"time"

	"hutch.dev/hutch"
)

var exampleCard = hutch.RateCard{Currency: "USD", CPUHour: 0.054, MemoryGiBHour: 0.0162}

// The question that every bill has to answer: alive two hours, busy four minutes.
func TestBill(t *testing.T) {
	begin := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	interval := func(from, to time.Duration, cpu time.Duration, memory int64) hutch.Usage {
		return hutch.Usage{From: begin.Add(from), To: begin.Add(to), State: hutch.StateRunning, CPU: cpu, Memory: memory}
	}
	const m, gib = time.Minute, int64(1 << 30)
	for _, c := range []struct {
		name string
		card hutch.RateCard
		used []hutch.Usage
		want []float64 // cpu, memory, disk, egress
	}{
		{
			"alive two hours, busy four minutes, a GiB", exampleCard,
			[]hutch.Usage{interval(0, 60*m, 0, gib), interval(60*m, 64*m, 4*m, gib), interval(64*m, 120*m, 0, gib)},
			[]float64{0.0036, 0.0324, 0, 0},
		},
		{
			"the same with 128 MiB while it is idle", exampleCard,
			[]hutch.Usage{interval(0, 116*m, 0, gib/8), interval(116*m, 120*m, 4*m, gib)},
			[]float64{0.0036, 0.0162 * (116.0/60/8 + 4.0/60), 0, 0},
		},
		{
			"the same with both of its CPUs busy for two minutes", exampleCard,
			[]hutch.Usage{interval(0, 2*m, 4*m, gib), interval(2*m, 120*m, 0, gib)},
			[]float64{0.0036, 0.0324, 0, 0},
		},
		{
			"paused for an hour and fifty-six minutes of them", exampleCard,
			[]hutch.Usage{interval(0, 4*m, 4*m, gib), {From: begin.Add(4 * m), To: begin.Add(120 * m), State: hutch.StatePaused, Memory: gib}},
			[]float64{0.0036, 0.0324, 0, 0},
		},
		{
			"nothing", exampleCard, nil, []float64{0, 0, 0, 0},
		},
		{
			"everything has a price",
			hutch.RateCard{CPUHour: 1, MemoryGiBHour: 1, DiskGiBHour: 1, EgressGiB: 1},
			[]hutch.Usage{{From: begin, To: begin.Add(time.Hour), State: hutch.StateRunning, CPU: time.Hour, Memory: 2 * gib, Disk: 3 * gib, Egress: 4 * gib}},
			[]float64{1, 2, 3, 4},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			var total hutch.UsageTotal
			for _, u := range c.used {
				total.Add(u)
			}
			sum := 0.0
			for i, l := range c.card.Bill(total) {
				if math.Abs(l.Cost-c.want[i]) > 1e-9 || math.Abs(l.Cost-l.Amount*l.Rate) > 1e-12 || l.Unit == "" {
					t.Errorf("%s: %+v, want %g", l.What, l, c.want[i])
				}
				sum += l.Cost
			}
			if got := c.card.Cost(total); got != sum {
				t.Errorf("it costs %g, its lines %g", got, sum)
			}
		})
	}
}

func TestClip(t *testing.T) {
	begin := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	at := func(s int) time.Time { return begin.Add(time.Duration(s) * time.Second) }
	u := hutch.Usage{From: at(0), To: at(10), CPU: 10 * time.Second, Memory: 7, Disk: 8, Egress: 100}
	var none time.Time
	for _, c := range []struct {
		from, to time.Time
		seconds  int // left of it; 0 = there is no such part
	}{
		{none, none, 10},
		{at(-5), at(20), 10},
		{at(0), at(10), 10},
		{at(5), none, 5},
		{none, at(4), 4},
		{at(3), at(4), 1},
		{at(10), none, 0},
		{none, at(0), 0},
		{at(4), at(4), 0},
		{at(20), at(30), 0},
	} {
		got, ok := u.Clip(c.from, c.to)
		if ok != (c.seconds > 0) {
			t.Errorf("from %s to %s: %v", c.from, c.to, ok)
			continue
		}
		if d := time.Duration(c.seconds) * time.Second; ok && (got.To.Sub(got.From) != d || got.CPU != d || got.Egress != int64(c.seconds)*10 || got.Memory != 7 || got.Disk != 8) {
			t.Errorf("from %s to %s: %+v", c.from, c.to, got)
		}
	}
}

func TestPeriods(t *testing.T) {
	at := func(s string) time.Time {
		t.Helper()
		x, err := time.Parse(time.RFC3339Nano, s)
		if err != nil {
			t.Fatal(err)
		}
		return x
	}
	for _, c := range []struct {
		period          hutch.Period
		at, from, until string
	}{
		{hutch.PeriodHour, "2026-03-01T12:59:59.999999999Z", "2026-03-01T12:00:00Z", "2026-03-01T13:00:00Z"},
		{hutch.PeriodHour, "2026-03-01T00:10:00+05:30", "2026-02-28T18:00:00Z", "2026-02-28T19:00:00Z"},
		{hutch.PeriodDay, "2026-12-31T23:59:59Z", "2026-12-31T00:00:00Z", "2027-01-01T00:00:00Z"},
		{hutch.PeriodDay, "2026-01-01T00:30:00+01:00", "2025-12-31T00:00:00Z", "2026-01-01T00:00:00Z"},
		{hutch.PeriodWeek, "2026-11-30T00:00:00Z", "2026-11-30T00:00:00Z", "2026-12-07T00:00:00Z"}, // a Monday
		{hutch.PeriodWeek, "2026-11-29T23:59:59Z", "2026-11-23T00:00:00Z", "2026-11-30T00:00:00Z"},
		{hutch.PeriodMonth, "2028-02-29T12:00:00Z", "2028-02-01T00:00:00Z", "2028-03-01T00:00:00Z"},
		{hutch.PeriodMonth, "2026-12-31T23:00:00-02:00", "2027-01-01T00:00:00Z", "2027-02-01T00:00:00Z"},
	} {
		from, until := c.period.Span(at(c.at))
		if !c.period.Valid() || !from.Equal(at(c.from)) || !until.Equal(at(c.until)) || from.Location() != time.UTC || until.Location() != time.UTC {
			t.Errorf("the %s of %s is from %s until %s, want %s and %s", c.period, c.at, from, until, c.from, c.until)
		}
		if again, _ := c.period.Span(until); !again.Equal(until) {
			t.Errorf("after %s comes %s, from %s", from, c.period, again)
		}
	}
	if from, until := hutch.Period("year").Span(at("2026-01-01T00:00:00Z")); hutch.Period("year").Valid() || !from.IsZero() || !until.IsZero() {
		t.Errorf("a year is from %s until %s", from, until)
	}
	for _, by := range []hutch.UsageBy{hutch.UsageByInterval, hutch.UsageBySandbox, hutch.UsageByProject} {
		if !by.Valid() {
			t.Errorf("%q is not valid", by)
		}
	}
	if hutch.UsageBy("month").Valid() {
		t.Error("by month is valid")
	}
}
