package control

import (
	"fmt"
	"time"

	"hutch.dev/hutch"
)

// Bounds of a budget, far above any use, so that no sum of them overflows.
const (
	maxBudgetCPU  = 100 * 365 * 24 * time.Hour
	maxBudgetCost = 1e12
)

// checkBudget refuses a budget that could not be held.
func (c *Control) checkBudget(b hutch.Budget) error {
	switch {
	case b.CPU != 0 && (b.CPU < time.Millisecond || b.CPU > maxBudgetCPU):
		return hutch.FieldErrorf("budget.cpu_seconds", "must be from 0.001 to %d; leave it out for no limit", int64(maxBudgetCPU/time.Second))
	case b.Cost == 0:
		return nil
	case !(b.Cost > 0 && b.Cost <= maxBudgetCost): // not a number neither
		return hutch.FieldErrorf("budget.cost", "must be more than 0 and at most %g; leave it out for no limit", maxBudgetCost)
	case c.cfg.RateCard == nil:
		e := hutch.Errorf(hutch.CodeUnsupported,
			"budget.cost: this server has no rate card to count money by (its operator gives one with `hutch serve --rate-card FILE`); use budget.cpu_seconds")
		e.Field = "budget.cost"
		return e
	}
	return nil
}

// overBudget says what was used up, and how far; empty while there is something left.
func (c *Control) overBudget(b hutch.Budget, t hutch.UsageTotal) string {
	if b.CPU > 0 && t.CPU >= b.CPU {
		return fmt.Sprintf("it used %.3f of its %.3f CPU-seconds", t.CPU.Seconds(), b.CPU.Seconds())
	}
	if card := c.cfg.RateCard; b.Cost > 0 && card != nil {
		if cost := card.Cost(t); cost >= b.Cost {
			return fmt.Sprintf("it cost %.6f of its %.6f %s", cost, b.Cost, card.Currency)
		}
	}
	return ""
}
