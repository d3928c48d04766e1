package httpapi_test

import (
	"math"
	"testing"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/api"
	"hutch.dev/hutch/internal/httpapi"
	"hutch.dev/hutch/internal/httpapi/httpapitest"
)

func TestUsageReport(t *testing.T) {
	b := newBench(t, httpapi.Config{})
	card := httpapitest.ExampleCard
	rows := append(httpapitest.TwoHours(hutch.DefaultProject, "i1"), httpapitest.TwoHours(hutch.DefaultProject, "i2")...)
	rows[2].State = hutch.StatePaused
	rows[2].Egress = 5
	b.SetBill(httpapitest.Bill{Card: &card, Intervals: append(rows, httpapitest.TwoHours("other", "i3")...)})
	near := func(e api.UsageEntry, cpu, cost float64) bool {
		return math.Abs(float64(e.CPUMicros)/1e6-cpu) < 1e-6 && e.Cost != nil && math.Abs(*e.Cost-cost) < 1e-9
	}
	get := func(query string) (api.UsageReport, answer) {
		a := b.do("GET", "/v1/usage"+query, "").want(200)
		return into[api.UsageReport](a), a
	}

	r, _ := get("")
	if len(r.Usage) != 6 || !near(r.Total, 480, 0.072) || r.Total.EgressBytes != 5 || r.Total.PausedSeconds != 56*60 ||
		r.Total.WallSeconds != 4*3600 || r.Total.MemoryGiBSeconds != 4*3600 || r.Total.DiskGiBSeconds != 2*3600 {
		t.Errorf("all: %+v", r)
	}
	if c := r.RateCard; c == nil || *c != (api.RateCard{Currency: "USD", CPUHour: 0.054, MemoryGiBHour: 0.0162}) {
		t.Errorf("the card: %+v", c)
	}
	if u := r.Usage[1]; u.SandboxID != "i1" || u.State != hutch.StateRunning || !u.From.Equal(httpapitest.Epoch.Add(time.Hour)) ||
		u.To.Sub(u.From) != 4*time.Minute || !near(u, 240, 0.0036+0.0162/15) {
		t.Errorf("an interval: %+v", u)
	}
	r, _ = get("?by=sandbox&sandbox_id=i1")
	if len(r.Usage) != 1 || !near(r.Usage[0], 240, 0.036) || r.Usage[0].To.Sub(r.Usage[0].From) != 2*time.Hour || r.Usage[0].State != "" {
		t.Errorf("by sandbox: %+v", r)
	}
	r, _ = get("?by=project")
	if len(r.Usage) != 1 || r.Usage[0].Project != hutch.DefaultProject || !near(r.Usage[0], 480, 0.072) {
		t.Errorf("by project: %+v", r)
	}
	from := httpapitest.Epoch.Add(62 * time.Minute).Format(time.RFC3339)
	r, _ = get("?by=sandbox&from=" + from)
	if len(r.Usage) != 2 || !near(r.Usage[1], 120, 0.0018+0.0162*58/60) || !r.From.Equal(httpapitest.Epoch.Add(62*time.Minute)) || !r.To.IsZero() {
		t.Errorf("from the middle: %+v", r)
	}
	if q := b.Asked(); q.Project != hutch.DefaultProject || !q.To.IsZero() || q.From.IsZero() {
		t.Errorf("asked: %+v", q)
	}
	r, a := get("?by=sandbox&limit=1")
	next := a.header.Get(api.HeaderNextCursor)
	if len(r.Usage) != 1 || next == "" || !near(r.Total, 480, 0.072) {
		t.Errorf("a page: %+v, then %q", r, next)
	}
	if r, a = get("?by=sandbox&limit=1&cursor=" + next); len(r.Usage) != 1 || r.Usage[0].SandboxID != "i2" || a.header.Get(api.HeaderNextCursor) != "" {
		t.Errorf("the last page: %+v", r)
	}
	b.as(httpapitest.ReadKey).do("GET", "/v1/usage", "").want(200)
	if r.Budget != nil {
		t.Errorf("a budget where there is none: %+v", r.Budget)
	}
	until := httpapitest.Epoch.Add(time.Hour)
	state := hutch.BudgetState{
		ProjectBudget: hutch.ProjectBudget{Budget: hutch.Budget{CPU: 1500 * time.Millisecond}, Period: hutch.PeriodDay},
		From:          httpapitest.Epoch, Until: until, Used: hutch.UsageTotal{CPU: time.Hour},
	}
	for _, c := range []struct {
		card *hutch.RateCard
		cost float64
		used float64 // -1 = not said
	}{{nil, 0, -1}, {&card, 2, 0.054}} {
		state.Cost = c.cost
		b.SetBill(httpapitest.Bill{Card: c.card, Budget: &state})
		r, _ = get("?by=project")
		got := r.Budget
		if got == nil || got.Period != hutch.PeriodDay || !got.From.Equal(httpapitest.Epoch) || !got.Until.Equal(until) ||
			*got.CPUSeconds != 1.5 || got.UsedCPUSeconds != 3600 || (got.Cost == nil) != (c.cost == 0) || (got.UsedCost == nil) != (c.used < 0) {
			t.Fatalf("the budget: %+v", got)
		}
		if c.used >= 0 && (math.Abs(*got.UsedCost-c.used) > 1e-9 || *got.Cost != c.cost) {
			t.Errorf("the budget in money: %g of %g", *got.UsedCost, *got.Cost)
		}
	}

	b.SetBill(httpapitest.Bill{})
	if r, _ = get("?by=project"); len(r.Usage) != 0 || r.Usage == nil || r.RateCard != nil || r.Total.Cost != nil {
		t.Errorf("nothing, without a card: %+v", r)
	}
	for query, field := range map[string]string{
		"?by=month": "by", "?from=noon": "from", "?from=20&to=10": "to", "?limit=0": "limit", "?by=project&cursor=1": "cursor", "?cursor=x": "cursor",
	} {
		b.do("GET", "/v1/usage"+query, "").wantError(400, "bad_request", field)
	}
	b.do("GET", "/v1/usage?sandbox_id=none", "").want(404)
}

func TestBudgetOfACreate(t *testing.T) {
	b := newBench(t, httpapi.Config{})
	for body, want := range map[string]hutch.Budget{
		`{}`:                               {},
		`{"budget": {"cpu_seconds": 1.5}}`: {CPU: 1500 * time.Millisecond},
		`{"budget": {"cost": 0.25}}`:       {Cost: 0.25},
		`{"budget": {"cpu_seconds": 1, "cost": 2.5}}`: {CPU: time.Second, Cost: 2.5},
	} {
		sb := into[api.Sandbox](b.do("POST", "/v1/sandboxes", body).want(201))
		var got hutch.Budget
		if sb.Budget != nil && sb.Budget.CPUSeconds != nil {
			got.CPU = time.Duration(*sb.Budget.CPUSeconds * float64(time.Second))
		}
		if sb.Budget != nil && sb.Budget.Cost != nil {
			got.Cost = *sb.Budget.Cost
		}
		if got != want || (sb.Budget == nil) != (want == hutch.Budget{}) {
			t.Errorf("%s: %+v", body, sb.Budget)
		}
	}
	for body, field := range map[string]string{
		`{"budget": {}}`:                    "budget",
		`{"budget": {"cpu_seconds": 0}}`:    "budget.cpu_seconds",
		`{"budget": {"cpu_seconds": -1}}`:   "budget.cpu_seconds",
		`{"budget": {"cpu_seconds": 1e30}}`: "budget.cpu_seconds",
		`{"budget": {"cost": 0}}`:           "budget.cost",
	} {
		b.do("POST", "/v1/sandboxes", body).wantError(400, "bad_request", field)
	}
	b.do("POST", "/v1/sandboxes", `{"budget": {"gpu": 1}}`).want(400)
}
