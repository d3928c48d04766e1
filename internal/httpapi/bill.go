package httpapi

import (
	"context"
	"net/http"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/api"
)

// usageReport answers what the project used, and what it costs if the operator says so.
func (a *API) usageReport(w http.ResponseWriter, r *http.Request) error {
	q := newQuery(r)
	want := hutch.UsageQuery{
		Project: project(r), Sandbox: hutch.SandboxID(q.str("sandbox_id")),
		From: q.instant("from", time.Time{}), To: q.instant("to", time.Time{}),
		Cursor: q.str("cursor"), Limit: q.limit(maxPage),
	}
	by := q.str("by")
	if q.err == nil {
		q.err = checkUsage(by, want)
	}
	if err := q.check(); err != nil {
		return err
	}
	b := biller{a.svc.Billing.RateCard()}
	total, err := a.svc.Billing.UsageTotal(r.Context(), want)
	if err != nil {
		return err
	}
	entries, next, err := a.usageEntries(r.Context(), b, by, want, total)
	if err != nil {
		return err
	}
	out := api.UsageReport{From: want.From.UTC(), To: want.To.UTC(), Usage: entries, Total: b.entry(total)}
	if c := b.card; c != nil {
		out.RateCard = &api.RateCard{
			Currency: c.Currency, CPUHour: c.CPUHour, MemoryGiBHour: c.MemoryGiBHour, DiskGiBHour: c.DiskGiBHour, EgressGiB: c.EgressGiB,
		}
	}
	nextPage(w, r, next)
	return writeJSON(w, http.StatusOK, out)
}

// What a report has an entry for.
const (
	byInterval = "interval" // also when nothing is said
	bySandbox  = "sandbox"
	byProject  = "project"
)

func checkUsage(by string, q hutch.UsageQuery) error {
	switch {
	case by != "" && by != byInterval && by != bySandbox && by != byProject:
		return hutch.FieldErrorf("by", "must be interval, sandbox or project")
	case !q.To.IsZero() && !q.To.After(q.From):
		return hutch.FieldErrorf("to", "must be after from")
	case by == byProject && q.Cursor != "":
		return hutch.FieldErrorf("cursor", "has no meaning with by=project: there is one entry")
	}
	return nil
}

// usageEntries is one page of a report whose sum is total.
func (a *API) usageEntries(ctx context.Context, b biller, by string, q hutch.UsageQuery, total hutch.UsageTotal) (out []api.UsageEntry, next string, err error) {
	out = []api.UsageEntry{}
	switch by {
	case bySandbox:
		l, next, err := a.svc.Billing.UsageBySandbox(ctx, q)
		for _, u := range l {
			e := b.entry(u.Total)
			e.SandboxID, e.From, e.To = u.Sandbox, micro(u.From), micro(u.To)
			out = append(out, e)
		}
		return out, next, err
	case byProject:
		if total.Wall > 0 {
			e := b.entry(total)
			e.Project = q.Project
			out = append(out, e)
		}
		return out, "", nil
	}
	l, next, err := a.svc.Billing.UsageIntervals(ctx, q)
	for _, u := range l {
		out = append(out, b.interval(u))
	}
	return out, next, err
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

func (b biller) interval(u hutch.Usage) api.UsageEntry {
	var t hutch.UsageTotal
	t.Add(u)
	e := b.entry(t)
	e.SandboxID, e.State, e.From, e.To = u.Sandbox, u.State, micro(u.From), micro(u.To)
	return e
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
