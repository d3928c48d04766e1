package httpapi

import (
	"net/http"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/api"
)

// usageReport answers what the project used, and what it costs if the operator says so.
func (a *API) usageReport(w http.ResponseWriter, r *http.Request) error {
	q := newQuery(r)
	want := hutch.UsageQuery{
		Project: project(r), Sandbox: hutch.SandboxID(q.str("sandbox_id")), By: hutch.UsageBy(q.str("by")),
		From: q.instant("from", time.Time{}), To: q.instant("to", time.Time{}),
		Cursor: q.str("cursor"), Limit: q.limit(maxPage),
	}
	if q.err == nil {
		q.err = checkUsage(want)
	}
	if err := q.check(); err != nil {
		return err
	}
	report, err := a.svc.Billing.UsageReport(r.Context(), want)
	if err != nil {
		return err
	}
	b := biller{a.svc.Billing.RateCard()}
	out := api.UsageReport{From: want.From.UTC(), To: want.To.UTC(), Usage: b.entries(want, report), Total: b.entry(report.Total)}
	if report.Budget != nil {
		out.Budget = b.budget(*report.Budget)
	}
	if c := b.card; c != nil {
		out.RateCard = &api.RateCard{
			Currency: c.Currency, CPUHour: c.CPUHour, MemoryGiBHour: c.MemoryGiBHour, DiskGiBHour: c.DiskGiBHour, EgressGiB: c.EgressGiB,
		}
	}
	nextPage(w, r, report.Next)
	return writeJSON(w, http.StatusOK, out)
}

func checkUsage(q hutch.UsageQuery) error {
	switch {
	case q.By != "" && !q.By.Valid():
		return hutch.FieldErrorf("by", "must be interval, sandbox or project")
	case !q.To.IsZero() && !q.To.After(q.From):
		return hutch.FieldErrorf("to", "must be after from")
	case q.By == hutch.UsageByProject && q.Cursor != "":
		return hutch.FieldErrorf("cursor", "has no meaning with by=project: there is one entry")
	}
	return nil
}

// micro is t as the API shows the bounds of intervals: UTC, whole microseconds.
func micro(t time.Time) time.Time { return t.UTC().Truncate(time.Microsecond) }

// biller shows usage, with what it costs by a card; nil = without.
type biller struct{ card *hutch.RateCard }

func (b biller) entry(t hutch.UsageTotal) api.UsageEntry {
	const hour = 3600
	e := api.UsageEntry{
		WallSeconds: t.Wall.Seconds(), PausedSeconds: t.Paused.Seconds(), CPUMicros: t.CPU.Microseconds(),
		MemoryGiBSeconds: t.MemoryGiBHours * hour, DiskGiBSeconds: t.DiskGiBHours * hour, EgressBytes: t.EgressBytes,
	}
	if b.card != nil {
		cost := b.card.Cost(t)
		e.Cost = &cost
	}
	return e
}

// entries are those of one page of a report.
func (b biller) entries(q hutch.UsageQuery, r hutch.UsageReport) []api.UsageEntry {
	out := []api.UsageEntry{}
	if q.By == hutch.UsageByProject && r.Total.Wall > 0 {
		e := b.entry(r.Total)
		e.Project = q.Project
		out = append(out, e)
	}
	for _, u := range r.Sandboxes {
		e := b.entry(u.Total)
		e.SandboxID, e.From, e.To = u.Sandbox, micro(u.From), micro(u.To)
		out = append(out, e)
	}
	for _, u := range r.Intervals {
		out = append(out, b.interval(u))
	}
	return out
}

func (b biller) interval(u hutch.Usage) api.UsageEntry {
	var t hutch.UsageTotal
	t.Add(u)
	e := b.entry(t)
	e.SandboxID, e.State, e.From, e.To = u.Sandbox, u.State, micro(u.From), micro(u.To)
	return e
}

// budget shows how far a project's budget is used up.
func (b biller) budget(s hutch.BudgetState) *api.ProjectBudget {
	out := &api.ProjectBudget{Period: s.Period, From: s.From, Until: s.Until, UsedCPUSeconds: s.Used.CPU.Seconds()}
	if limits := showBudget(s.Budget); limits != nil {
		out.CPUSeconds, out.Cost = limits.CPUSeconds, limits.Cost
	}
	if b.card != nil {
		cost := b.card.Cost(s.Used)
		out.UsedCost = &cost
	}
	return out
}

// budget reads what a create says of a budget.
func budget(in *api.Budget) (out hutch.Budget, err error) {
	if in == nil {
		return out, nil
	}
	if in.CPUSeconds == nil && in.Cost == nil {
		return out, hutch.FieldErrorf("budget", "needs cpu_seconds, cost, or both; leave it out for none")
	}
	// Beyond these bounds the service says what is allowed.
	if out.CPU, err = seconds("budget.cpu_seconds", in.CPUSeconds, 0, longest); err != nil {
		return out, err
	}
	if in.CPUSeconds != nil && out.CPU == 0 {
		return out, hutch.FieldErrorf("budget.cpu_seconds", "must be more than 0; leave it out for no limit")
	}
	if in.Cost != nil {
		if out.Cost = *in.Cost; out.Cost == 0 {
			return out, hutch.FieldErrorf("budget.cost", "must be more than 0; leave it out for no limit")
		}
	}
	return out, nil
}

func showBudget(b hutch.Budget) *api.Budget {
	if b == (hutch.Budget{}) {
		return nil
	}
	out := &api.Budget{}
	if s := b.CPU.Seconds(); s > 0 {
		out.CPUSeconds = &s
	}
	if b.Cost > 0 {
		out.Cost = &b.Cost
	}
	return out
}
