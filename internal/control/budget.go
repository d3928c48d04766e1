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

// checkBudget refuses a sandbox's budget that could not be held.
func (c *Control) checkBudget(b hutch.Budget) error { return c.cfg.checkAmounts("budget.", b) }

// checkAmounts does so for any budget; the names of its fields begin with prefix.
func (c Config) checkAmounts(prefix string, b hutch.Budget) error {
	switch {
	case b.CPU != 0 && (b.CPU < time.Millisecond || b.CPU > maxBudgetCPU):
		return hutch.FieldErrorf(prefix+"cpu_seconds", "must be from 0.001 to %d; leave it out for no limit", int64(maxBudgetCPU/time.Second))
	case b.Cost == 0:
		return nil
	case !(b.Cost > 0 && b.Cost <= maxBudgetCost): // not a number neither
		return hutch.FieldErrorf(prefix+"cost", "must be more than 0 and at most %g; leave it out for no limit", maxBudgetCost)
	case c.RateCard == nil:
		e := hutch.Errorf(hutch.CodeUnsupported,
			"%[1]scost: this server has no rate card to count money by (its operator gives one with `hutch serve --rate-card FILE`); use %[1]scpu_seconds", prefix)
		e.Field = prefix + "cost"
		return e
	}
	return nil
}

// overBudget says what was used up, by whom, and how far; empty while there is something left.
func (c *Control) overBudget(who string, b hutch.Budget, t hutch.UsageTotal) string {
	if b.CPU > 0 && t.CPU >= b.CPU {
		return fmt.Sprintf("%s used %.3f of its %.3f CPU-seconds", who, t.CPU.Seconds(), b.CPU.Seconds())
	}
	if card := c.cfg.RateCard; b.Cost > 0 && card != nil {
		if cost := card.Cost(t); cost >= b.Cost {
			return fmt.Sprintf("%s cost %.6f of its %.6f %s", who, cost, b.Cost, card.Currency)
		}
	}
	return ""
}
