package control

import (
	"errors"
	"math"
	"testing"
	"time"

	"hutch.dev/hutch"
)

func TestProjectBudgetsThatCannotBeHeld(t *testing.T) {
	day := func(b hutch.Budget) hutch.ProjectBudget {
		return hutch.ProjectBudget{Budget: b, Period: hutch.PeriodDay}
	}
	card := Config{RateCard: &hutch.RateCard{Currency: "EUR"}}
	for name, x := range map[string]struct {
		c     Config
		b     hutch.ProjectBudget
		field string
	}{
		"none":                {Config{}, hutch.ProjectBudget{}, ""},
		"cpu":                 {Config{}, day(hutch.Budget{CPU: time.Second}), ""},
		"money":               {card, day(hutch.Budget{Cost: 5}), ""},
		"both":                {card, day(hutch.Budget{CPU: time.Second, Cost: 5}), ""},
		"no period":           {Config{}, hutch.ProjectBudget{Budget: hutch.Budget{CPU: time.Second}}, "ci.period"},
		"an unknown period":   {Config{}, hutch.ProjectBudget{Budget: hutch.Budget{CPU: time.Second}, Period: "year"}, "ci.period"},
		"nothing in a day":    {Config{}, day(hutch.Budget{}), "ci"},
		"negative cpu":        {Config{}, day(hutch.Budget{CPU: -1}), "ci.cpu_seconds"},
		"money without rates": {Config{}, day(hutch.Budget{Cost: 5}), "ci.cost"},
		"no number":           {card, day(hutch.Budget{Cost: math.NaN()}), "ci.cost"},
	} {
		err := x.c.CheckProjectBudgets(map[hutch.ProjectID]hutch.ProjectBudget{"ci": x.b})
		var e *hutch.Error
		if (err == nil) != (x.field == "") || (err != nil && (!errors.As(err, &e) || e.Field != x.field)) {
			t.Errorf("%s: %v, want a fault of %q", name, err, x.field)
		}
	}
}

func TestProjectBudgetsAreSetAllOrNone(t *testing.T) {
	c := &Control{}
	hour := hutch.ProjectBudget{Budget: hutch.Budget{CPU: time.Hour}, Period: hutch.PeriodHour}
	week := hutch.ProjectBudget{Budget: hutch.Budget{CPU: time.Hour}, Period: hutch.PeriodWeek}
	set := map[hutch.ProjectID]hutch.ProjectBudget{"a": hour, "b": {}, hutch.EveryProject: week}
	if err := c.SetProjectBudgets(set); err != nil {
		t.Fatal(err)
	}
	if err := c.SetProjectBudgets(map[hutch.ProjectID]hutch.ProjectBudget{"a": week, "c": {Period: "year"}}); err == nil {
		t.Error("a budget that cannot be held was set")
	}
	delete(set, "a") // what was given is not shared
	for p, want := range map[hutch.ProjectID]hutch.ProjectBudget{"a": hour, "b": {}, "c": week} {
		if got, ok := c.budgets.get(p); got != want || ok != (want != hutch.ProjectBudget{}) {
			t.Errorf("%s has %+v, %v; want %+v", p, got, ok, want)
		}
	}
	now := time.Date(2026, 5, 6, 7, 8, 9, 0, time.UTC)
	if got, want := c.budgets.earliest(now), time.Date(2026, 5, 4, 0, 0, 0, 0, time.UTC); !got.Equal(want) {
		t.Errorf("counted from %s on, want %s", got, want)
	}
	if err := c.SetProjectBudgets(nil); err != nil {
		t.Fatal(err)
	}
	if got := c.budgets.earliest(now); !got.IsZero() {
		t.Errorf("without budgets counted from %s on", got)
	}
}
