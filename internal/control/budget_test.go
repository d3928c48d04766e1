package control

import (
	"errors"
	"math"
	"testing"
	"time"

	"hutch.dev/hutch"
)

func TestBudget(t *testing.T) {
	c := &Control{}
	card := &Control{cfg: Config{RateCard: &hutch.RateCard{Currency: "EUR", CPUHour: 3600}}}
	for name, x := range map[string]struct {
		c     *Control
		b     hutch.Budget
		field string
	}{
		"none":                {c, hutch.Budget{}, ""},
		"cpu":                 {c, hutch.Budget{CPU: time.Second}, ""},
		"negative cpu":        {c, hutch.Budget{CPU: -1}, "budget.cpu_seconds"},
		"too little cpu":      {c, hutch.Budget{CPU: 1}, "budget.cpu_seconds"},
		"too much cpu":        {c, hutch.Budget{CPU: math.MaxInt64}, "budget.cpu_seconds"},
		"money":               {card, hutch.Budget{Cost: 0.01}, ""},
		"money without rates": {c, hutch.Budget{Cost: 0.01}, "budget.cost"},
		"negative money":      {card, hutch.Budget{Cost: -1}, "budget.cost"},
		"no number":           {card, hutch.Budget{Cost: math.NaN()}, "budget.cost"},
		"endless money":       {card, hutch.Budget{Cost: math.Inf(1)}, "budget.cost"},
	} {
		err := x.c.checkBudget(x.b)
		var e *hutch.Error
		if (err == nil) != (x.field == "") || (err != nil && (!errors.As(err, &e) || e.Field != x.field)) {
			t.Errorf("%s: %v, want a fault of %q", name, err, x.field)
		}
	}
	used := hutch.UsageTotal{CPU: 10 * time.Second}
	for _, x := range []struct {
		c    *Control
		b    hutch.Budget
		want string
	}{
		{c, hutch.Budget{}, ""},
		{c, hutch.Budget{CPU: 11 * time.Second}, ""},
		{c, hutch.Budget{CPU: 10 * time.Second}, "it used 10.000 of its 10.000 CPU-seconds"},
		{card, hutch.Budget{Cost: 10.5}, ""},
		{card, hutch.Budget{CPU: time.Hour, Cost: 9.5}, "it cost 10.000000 of its 9.500000 EUR"},
	} {
		if got := x.c.overBudget("it", x.b, used); got != x.want {
			t.Errorf("%+v: %q, want %q", x.b, got, x.want)
		}
	}
}
