package bench

import (
	"fmt"
	"strings"
)

// figureTables are the figures, a table for each kind of unit, and the claims.
func (r *Report) figureTables() []*table {
	return []*table{
		r.claimTable(),
		r.figureTable("a second", PerKilosec, func(v int64) string { return fmt.Sprintf("%.1f", float64(v)/1000) }),
		r.figureTable("ms", Microseconds, ms),
		r.ratioTable(),
		r.figureTable("memory, disk", Bytes, bytesOf),
		r.figureTable("CPU, % of one", CPUShare, func(v int64) string { return fmt.Sprintf("%.3f", float64(v)/1e4) }),
		r.figureTable("number", Count, func(v int64) string { return fmt.Sprint(v) }),
		r.stageTable(),
	}
}

func (r *Report) claimTable() *table {
	t := &table{head: []string{"what we hold ourselves to", "measured", "limit", ""}}
	for _, c := range r.Claims {
		word := map[bool]string{true: "within", false: "MISSED"}
		t.add(c.What, amount(c.Value, c.Unit), c.bound(), word[c.Within])
	}
	return t
}

// bound is the limit in words.
func (c Claim) bound() string {
	kind := map[bool]string{true: "at least ", false: "at most "}
	return kind[c.AtLeast] + amount(c.Limit, c.Unit)
}

func amount(v float64, unit string) string {
	return strings.TrimSpace(fmt.Sprintf("%.4g %s", v, unit))
}

var distHead = []string{"n", "p50", "p95", "p99", "min", "max"}

func (r *Report) figureTable(head string, u Unit, show func(int64) string) *table {
	t := &table{head: append([]string{head, "phase", "subject"}, distHead...)}
	for _, f := range r.Figures {
		if f.Unit == u && !strings.HasPrefix(f.Metric, stagePrefix) {
			t.addFigure(titleOf(f.Metric), f, show)
		}
	}
	return t
}

func (r *Report) stageTable() *table {
	t := &table{head: append([]string{"stage, ms", "phase", "subject"}, distHead...)}
	for _, f := range r.Figures {
		if name, ok := strings.CutPrefix(f.Metric, stagePrefix); ok {
			t.addFigure(name, f, ms)
		}
	}
	return t
}

func (t *table) addFigure(name string, f Figure, show func(int64) string) {
	d := f.Dist
	cells := []string{name, f.Phase, f.Subject, fmt.Sprint(d.N), show(d.P50)}
	if d.N == 1 { // one reading has no spread
		t.add(append(cells, "", "", "", "")...)
		return
	}
	t.add(append(cells, show(d.P95), show(d.P99), show(d.Min), show(d.Max))...)
}

// ratioTable compares the times of subjects that were both measured in a phase.
func (r *Report) ratioTable() *table {
	t := &table{head: []string{"hutch / floor", "phase", "of p50", "of p95", "of p99"}}
	fs := figures(r.Figures)
	for _, f := range fs {
		if f.Subject != SubjectHutch || (f.Unit != Microseconds && f.Unit != PerKilosec) || strings.HasPrefix(f.Metric, stagePrefix) {
			continue
		}
		floor, ok := fs.of(f.Phase, f.Metric, SubjectFloor)
		if !ok {
			continue
		}
		cells := []string{titleOf(f.Metric), f.Phase, times(over(f.Dist.P50, floor.P50)), "", ""}
		if f.Unit == Microseconds { // few rounds have no percentiles
			cells[3], cells[4] = times(over(f.Dist.P95, floor.P95)), times(over(f.Dist.P99, floor.P99))
		}
		t.add(cells...)
	}
	return t
}

// bytesOf shows bytes in the unit that fits.
func bytesOf(n int64) string {
	if n > -1<<20 && n < 1<<20 {
		return fmt.Sprintf("%.0f KiB", float64(n)/(1<<10))
	}
	return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
}

// faultRemark counts what went wrong beside samples, and shows how it first did.
func (r *Report) faultRemark() string {
	text := fmt.Sprintf("Went wrong: %d.", len(r.Faults))
	const most = 3
	for i, f := range r.Faults {
		if i == most {
			return text + " Others are in the raw results."
		}
		text += fmt.Sprintf(" %s, %s: %.300s.", f.Phase, f.Subject, f.Error)
	}
	return text
}
