package cli_test

import (
	"strings"
	"testing"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/httpapi/httpapitest"
)

func TestUsageOutput(t *testing.T) {
	w := newWorld(t)
	card := httpapitest.ExampleCard
	bill := httpapitest.Bill{Card: &card, Intervals: append(httpapitest.TwoHours(hutch.DefaultProject, "i1"), httpapitest.TwoHours(hutch.DefaultProject, "i2")...)}
	w.SetBill(bill)
	golden(t, "usage", w.ok("usage"))
	golden(t, "usage-one", w.ok("usage", "i1"))
	golden(t, "usage-explain", w.ok("usage", "i1", "--explain"))
	golden(t, "usage-json", w.ok("usage", "i1", "--json"))
	half := httpapitest.Epoch.Add(time.Hour).Format(time.RFC3339)
	golden(t, "usage-half", w.ok("usage", "--explain", "--to", half))
	if out := w.ok("usage", "--from", "1h"); !strings.Contains(out, "in all") {
		t.Errorf("the last hour: %s", out)
	}
	if q := w.Asked(); time.Since(q.From) < time.Hour || time.Since(q.From) > time.Hour+time.Minute {
		t.Errorf("an hour ago is %s", q.From)
	}
	w.SetBill(httpapitest.Bill{Intervals: bill.Intervals})
	golden(t, "usage-no-card", w.ok("usage", "i1", "--explain"))
	bill.Budget = &hutch.BudgetState{
		ProjectBudget: hutch.ProjectBudget{Budget: hutch.Budget{CPU: 10 * time.Minute, Cost: 0.5}, Period: hutch.PeriodMonth},
		From:          time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), Until: time.Date(2026, 2, 1, 0, 0, 0, 0, time.UTC),
		Used: hutch.UsageTotal{CPU: 8 * time.Minute, MemoryGiBHours: 4},
	}
	w.SetBill(bill)
	golden(t, "usage-budget", w.ok("usage"))
	golden(t, "usage-budget-json", w.ok("usage", "i1", "--json"))
	if out := w.ok("usage", "i1", "--explain"); !strings.HasSuffix(out, "The project has used 480.000 of 600.000 CPU-seconds and 0.072000 of 0.500000 USD for this month, which ends 2026-02-01T00:00:00Z.") {
		t.Errorf("an explanation under a budget:\n%s", out)
	}
	for _, bad := range [][]string{{"--from", "soon"}, {"--explain", "--json"}, {"i1", "i2"}} {
		if r := w.run(append([]string{"usage"}, bad...)...); r.code != 2 {
			t.Errorf("usage %v: code %d, %s", bad, r.code, r.err)
		}
	}
	if r := w.run("usage", "none"); r.code != 1 || !strings.Contains(r.err, "no sandbox") {
		t.Errorf("an unknown one: %d, %s", r.code, r.err)
	}
}
