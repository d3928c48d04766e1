package control

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/store"
)

// projectBudgets is what projects may use in a period. The zero value is ready.
type projectBudgets struct {
	mu sync.Mutex
	of map[hutch.ProjectID]hutch.ProjectBudget
}

// get returns a project's budget: its own, or that of every project. It is false if it has none.
func (b *projectBudgets) get(p hutch.ProjectID) (hutch.ProjectBudget, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	x, ok := b.of[p]
	if !ok {
		x = b.of[hutch.EveryProject]
	}
	return x, x != (hutch.ProjectBudget{})
}

// earliest is the begin of the earliest period that a budget is counted for at now; zero if none
// is.
func (b *projectBudgets) earliest(now time.Time) (first time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, x := range b.of {
		if from, _ := x.Period.Span(now); x.Period.Valid() && (first.IsZero() || from.Before(first)) {
			first = from
		}
	}
	return first
}

// CheckProjectBudgets refuses budgets of which one could not be held. An empty one is none.
func (c Config) CheckProjectBudgets(of map[hutch.ProjectID]hutch.ProjectBudget) error {
	for _, p := range slices.Sorted(maps.Keys(of)) {
		b := of[p]
		switch {
		case b == (hutch.ProjectBudget{}):
			continue
		case !b.Period.Valid():
			return hutch.FieldErrorf(string(p)+".period", "must be hour, day, week or month")
		case b.Budget == (hutch.Budget{}):
			return hutch.FieldErrorf(string(p), "needs cpu_seconds, cost, or both; null is no budget")
		}
		if err := c.checkAmounts(string(p)+".", b.Budget); err != nil {
			return err
		}
	}
	return nil
}

// SetProjectBudgets sets what projects may use together in a period, in the place of all that
// was set before. That of [hutch.EveryProject] is for each that has no entry. It holds from the
// next look at usage on, also for what was used in the period already. If one could not be held,
// none is set.
func (c *Control) SetProjectBudgets(of map[hutch.ProjectID]hutch.ProjectBudget) error {
	if err := c.cfg.CheckProjectBudgets(of); err != nil {
		return err
	}
	c.budgets.mu.Lock()
	defer c.budgets.mu.Unlock()
	c.budgets.of = maps.Clone(of)
	return nil
}

// budgetState returns how far a project's budget is used up; nil if it has none.
func (c *Control) budgetState(ctx context.Context, p hutch.ProjectID) (*hutch.BudgetState, error) {
	b, ok := c.budgets.get(p)
	if !ok {
		return nil, nil
	}
	from, until := b.Period.Span(c.cfg.Now())
	used, err := c.spentSince(ctx, p, from)
	if err != nil {
		return nil, hutch.Wrap(hutch.CodeUnavailable, err, "what this project has used of its budget cannot be read now: try again later")
	}
	return &hutch.BudgetState{ProjectBudget: b, From: from, Until: until, Used: used}, nil
}

// spentSince returns what a project has used since a period began. It is read from the records
// once in a period and after a start.
func (c *Control) spentSince(ctx context.Context, p hutch.ProjectID, from time.Time) (hutch.UsageTotal, error) {
	for {
		if t, ok := c.ledger.spentSince(p, from); ok {
			return t, nil
		}
		release, taken := c.counting.take(p)
		if release != nil {
			defer release()
			return c.countSpent(ctx, p, from)
		}
		select {
		case <-taken:
		case <-ctx.Done():
			return hutch.UsageTotal{}, context.Cause(ctx)
		}
	}
}

func (c *Control) countSpent(ctx context.Context, p hutch.ProjectID, from time.Time) (hutch.UsageTotal, error) {
	c.ledger.beginCount(p)
	var total hutch.UsageTotal
	upTo := map[hutch.SandboxID]time.Time{}
	err := c.storeUsage(ctx, choice{project: p, grown: true})
	if err == nil {
		err = c.store.ReadUsage(ctx, func(r store.UsageReader) (err error) {
			if total, err = r.UsageTotal(ctx, store.UsageFilter{Project: p, From: from}); err != nil {
				return err
			}
			// Only now, when what r reads is as of an instant that has passed: what is charged
			// for the first time after this is not in it.
			for id := range c.ledger.mayBeLate(p) {
				l, _, err := r.UsageBySandbox(ctx, store.UsageFilter{Sandbox: id, From: from}, store.Page{Limit: 1})
				if err != nil {
					return err
				}
				if len(l) > 0 {
					upTo[id] = l[0].To
				}
			}
			return nil
		})
	}
	if err != nil {
		c.ledger.dropCount(p)
		return total, fmt.Errorf("count what project %s has used: %w", p, err)
	}
	return c.ledger.endCount(p, from, total, upTo), nil
}

// overProject says what of a project's budget was used up; empty while there is something left.
func (c *Control) overProject(who string, s *hutch.BudgetState) string {
	over := c.overBudget(who, s.Budget, s.Used)
	if over != "" {
		over += " for this " + string(s.Period)
	}
	return over
}

// askBudget refuses a create for a project whose budget is used up.
func (c *Control) askBudget(ctx context.Context, p hutch.ProjectID) error {
	s, err := c.budgetState(ctx, p)
	if err != nil || s == nil {
		return err
	}
	over := c.overProject("this project", s)
	if over == "" {
		return nil
	}
	e := hutch.Errorf(hutch.CodeBudgetExhausted, "%s: it can have sandboxes again from %s on, or once the operator of this server gives it more",
		over, s.Until.Format(time.RFC3339))
	e.RetryAfter = max(time.Second, s.Until.Sub(c.cfg.Now()))
	return e
}

// endOverspent ends what lives of projects whose budget is used up.
func (c *Control) endOverspent(ctx context.Context) {
	for p, living := range c.ledger.living() {
		s, err := c.budgetState(ctx, p)
		if err != nil && ctx.Err() == nil {
			c.log.Error("hold budget", "project", p, "op", "usage", "error", err)
		}
		if s == nil {
			continue
		}
		if over := c.overProject("its project", s); over != "" {
			for _, k := range living {
				c.wg.Go(func() { c.endDue(ctx, k.id, owedEnd{k.epoch, hutch.EndBudget, over}) })
			}
		}
	}
}

// usageNeeded is from when on usage is kept at now: for as long as the operator wants it, and
// what a budget is counted by in any case.
func (c *Control) usageNeeded(now time.Time) time.Time {
	kept := now.Add(-c.cfg.UsageFor)
	if counted := c.budgets.earliest(c.cfg.Now()); !counted.IsZero() && counted.Before(kept) {
		return counted
	}
	return kept
}
