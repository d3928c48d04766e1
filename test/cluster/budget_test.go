package cluster

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"hutch.dev/hutch"
)

// calendar says when it is for the periods of budgets: now, or months later.
type calendar struct{ months atomic.Int64 }

func (c *calendar) now() time.Time {
	from, _ := hutch.PeriodMonth.Span(time.Now())
	// In the middle of a month, whenever the test runs: it is in one period until it says so.
	return from.AddDate(0, int(c.months.Load()), 14)
}

// on tunes a world to it, in which the project has a budget.
func (c *calendar) on(b hutch.ProjectBudget) func(*world) {
	return func(w *world) {
		w.control.Now = c.now
		w.budgets = map[hutch.ProjectID]hutch.ProjectBudget{project: b}
	}
}

func cpuBudget(d time.Duration) hutch.ProjectBudget {
	return hutch.ProjectBudget{Budget: hutch.Budget{CPU: d}, Period: hutch.PeriodMonth}
}

// give changes the project's budget while the server runs.
func (w *world) give(b hutch.ProjectBudget) {
	w.t.Helper()
	w.budgets = map[hutch.ProjectID]hutch.ProjectBudget{project: b}
	if err := w.c.SetProjectBudgets(w.budgets); err != nil {
		w.t.Fatal(err)
	}
}

// wantExhausted checks that the project gets no more sandboxes, and hears until when.
func (w *world) wantExhausted(what, used string) {
	w.t.Helper()
	_, err := w.c.CreateSandbox(w.ctx(), request())
	var e *hutch.Error
	if !errors.As(err, &e) || e.Code != hutch.CodeBudgetExhausted || e.RetryAfter < 24*time.Hour ||
		!strings.Contains(e.Message, used) || !strings.Contains(e.Message, "-01T00:00:00Z") {
		w.t.Errorf("%s a create is answered %+v", what, err)
	}
}

func (w *world) budget() hutch.BudgetState {
	w.t.Helper()
	r, err := w.c.UsageReport(w.ctx(), hutch.UsageQuery{Project: project, By: hutch.UsageByProject})
	if err != nil || r.Budget == nil {
		w.t.Fatalf("the project's budget: %+v, %v", r.Budget, err)
	}
	return *r.Budget
}

func TestProjectBudget(t *testing.T) {
	const some = 40 * time.Millisecond
	cal := &calendar{}
	w := newWorld(t, quickly, cal.on(cpuBudget(some)))
	busy, idle, paused := w.create(), w.create(), w.create()
	other := w.create(func(r *hutch.CreateSandbox) { r.Project = "other" })
	if _, err := w.c.PauseSandbox(w.ctx(), project, paused.ID); err != nil {
		t.Fatal(err)
	}
	x := w.exec(busy, "tick 1")
	if x = w.wait(x); x.Result.End != hutch.ExecSandboxGone {
		t.Errorf("its command ended %s", x.Result.End)
	}
	const spent = " of its 0.040 CPU-seconds for this month"
	for _, sb := range []hutch.Sandbox{busy, idle, paused} {
		w.wantBudgetEnd(sb, spent)
	}
	if sb, err := w.db.Sandbox(w.ctx(), busy.ID); err != nil || !strings.HasPrefix(sb.EndDetail, "its project used 0.") {
		t.Errorf("it ended for %q, %v", sb.EndDetail, err)
	}
	if _, err := w.c.Sandbox(w.ctx(), "other", other.ID); err != nil {
		t.Errorf("one of a project without a budget: %v", err)
	}
	w.wantExhausted("when it is used up", "this project used 0.")
	from, until := hutch.PeriodMonth.Span(cal.now())
	b := w.budget()
	if b.Used.CPU < some || !b.From.Equal(from) || !b.Until.Equal(until) || b.ProjectBudget != w.budgets[project] {
		t.Errorf("the budget: %+v", b)
	}
	w.restart()
	w.wantExhausted("after a restart", spent)
	if now := w.budget(); now.Used.CPU != b.Used.CPU || now.Used.Wall != b.Used.Wall {
		t.Errorf("after a restart %+v was used, before %+v", now.Used, b.Used)
	}

	// More, and less: without a restart, and what was used counts.
	w.give(cpuBudget(time.Hour))
	sb := w.create()
	w.give(cpuBudget(some))
	w.wantBudgetEnd(sb, spent)
	w.give(hutch.ProjectBudget{})
	w.killIt(w.create())
	w.give(cpuBudget(some))
	w.wantExhausted("when it has one again", spent)

	cal.months.Add(1)
	if b := w.budget(); b.Used != (hutch.UsageTotal{}) || !b.From.Equal(until) {
		t.Errorf("in the next month: %+v", b)
	}
	sb = w.create()
	w.killIt(sb)
	// And back, as by a clock that is set.
	cal.months.Add(-1)
	w.wantExhausted("in the month before", spent)
}

// A budget of every project is each one's own, and one that is named has its own or none.
func TestBudgetOfEveryProject(t *testing.T) {
	cal := &calendar{}
	w := newWorld(t, quickly, cal.on(hutch.ProjectBudget{}), func(w *world) {
		w.control.RateCard = &hutch.RateCard{Currency: "EUR", CPUHour: 3600}
		w.budgets[hutch.EveryProject] = hutch.ProjectBudget{Budget: hutch.Budget{Cost: 0.03}, Period: hutch.PeriodMonth}
	})
	free := w.create()
	w.sees(w.exec(free, "tick 1"), "tick 60\n")
	w.budgets = map[hutch.ProjectID]hutch.ProjectBudget{hutch.EveryProject: w.budgets[hutch.EveryProject]}
	theirs := w.create(func(r *hutch.CreateSandbox) { r.Project = "other" })
	if err := w.c.SetProjectBudgets(w.budgets); err != nil {
		t.Fatal(err)
	}
	w.wantBudgetEnd(free, " of its 0.030000 EUR for this month")
	w.wantExhausted("of a project that has what every one has", "this project cost 0.")
	if _, err := w.c.Sandbox(w.ctx(), "other", theirs.ID); err != nil {
		t.Errorf("one of another project: %v", err)
	}
}

// However often what was used is counted from the records while there comes more, the sum is
// that of the records: nothing twice, nothing lost.
func TestBudgetIsCountedWhileItIsUsed(t *testing.T) {
	cal := &calendar{}
	w := newWorld(t, quickly, cal.on(cpuBudget(time.Hour)))
	var all []hutch.Sandbox
	for range 3 {
		sb := w.create()
		w.sees(w.exec(sb, "tick 1"), "tick 1\n")
		all = append(all, sb)
	}
	dead := w.create()
	w.sees(w.exec(dead, "tick 1"), "tick 5\n")
	w.killIt(dead)
	// The calendar stands in the middle of the month, so that of these the month alone is
	// counted from before the test.
	for i := range 40 {
		b := cpuBudget(time.Hour)
		if i%2 == 0 {
			b.Period = hutch.PeriodHour
		}
		w.give(b)
		if got := w.budget(); got.Period != b.Period {
			t.Fatalf("the budget: %+v", got)
		}
	}
	for _, sb := range all {
		w.killIt(sb)
	}
	from, _ := hutch.PeriodMonth.Span(cal.now())
	r, err := w.c.UsageReport(w.ctx(), hutch.UsageQuery{Project: project, By: hutch.UsageByProject, From: from})
	if err != nil || r.Budget == nil || r.Budget.Used.CPU != r.Total.CPU || r.Budget.Used.Wall != r.Total.Wall || r.Total.CPU == 0 {
		t.Errorf("by the budget %+v was used, by the records %+v, %v", r.Budget, r.Total, err)
	}
}

// Where it cannot be told what a project has used it gets nothing, and keeps what it has.
func TestBudgetThatCannotBeCounted(t *testing.T) {
	for _, op := range []string{"ReadUsage", "AppendUsage"} {
		cal := &calendar{}
		w := newWorld(t, quickly, cal.on(hutch.ProjectBudget{}))
		sb := w.create()
		w.sees(w.exec(sb, "tick 1"), "tick 10\n")
		w.store.fail(op, -1)
		w.sees(w.exec(sb, "tick 1"), "tick 10\n") // so that there is something to store
		w.give(cpuBudget(10 * time.Millisecond))
		eventually(t, "the failure is logged", func() error {
			if !strings.Contains(w.log.String(), "hold budget") {
				return errors.New("not yet")
			}
			return nil
		})
		_, err := w.c.CreateSandbox(w.ctx(), request())
		wantError(t, op+" fails: a create", err, hutch.ErrUnavailable)
		if _, err := w.c.Sandbox(w.ctx(), project, sb.ID); err != nil {
			t.Errorf("%s fails: the sandbox: %v", op, err)
		}
		w.store.fail(op, 0)
		w.wantBudgetEnd(sb, " of its 0.010 CPU-seconds for this month")
	}
}

// What a budget is counted by is kept for as long as its period, however short else.
func TestUsageOfAPeriodIsKept(t *testing.T) {
	cal := &calendar{}
	w := newWorld(t, quickly, cal.on(cpuBudget(20*time.Millisecond)))
	sb := w.create()
	w.wait(w.exec(sb, "tick 1"))
	w.wantBudgetEnd(sb, " of its 0.020 CPU-seconds for this month")
	w.control.UsageFor, w.control.Retention = time.Nanosecond, time.Nanosecond
	w.restart() // which is when it purges next
	eventually(t, "old records were purged", func() error {
		if !strings.Contains(w.log.String(), "msg=purged") {
			return errors.New("not yet")
		}
		return nil
	})
	w.restart() // and after which it counts again
	w.wantExhausted("after a purge", " of its 0.020 CPU-seconds for this month")
	w.give(hutch.ProjectBudget{})
	w.restart()
	eventually(t, "what nothing is counted by is gone", func() error {
		if l := w.intervals(sb.ID); len(l) > 0 {
			return errors.New("there are intervals")
		}
		return nil
	})
}
