package control

import (
	"context"
	"errors"
	"fmt"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/store"
	"hutch.dev/hutch/internal/x/failpoint"
)

// pace is how often sandboxes are looked at: those in which something changes, or that have
// a budget, each second; the others as seldom as they are sampled.
func (c *Control) pace() pace { return pace{c.cfg.UsageEvery, c.cfg.SampleEvery} }

// account begins to charge a sandbox that is not charged yet, from its start or, after a
// restart, from where it was charged to: the hole between becomes one interval, of which the
// host's counter says what CPU it used.
func (c *Control) account(ctx context.Context, sb hutch.Sandbox) error {
	if sb.StartedAt.IsZero() || c.ledger.refresh(sb) {
		return nil
	}
	l, _, err := c.store.UsageBySandbox(ctx, store.UsageFilter{Sandbox: sb.ID}, store.Page{Limit: 1})
	if err != nil {
		return fmt.Errorf("read usage of %s: %w", sb.ID, err)
	}
	at, total := sb.StartedAt, hutch.UsageTotal{}
	if len(l) > 0 {
		at, total = l[0].To, l[0].Total
	}
	c.ledger.open(sb, at, total)
	return nil
}

// measure looks at one sandbox: the one look is its sample and what it is charged by.
func (c *Control) measure(ctx context.Context, k look) {
	s, cpu, err := c.nodes.Usage(ctx, k.id, k.epoch)
	if err != nil {
		return // it is ending, or being changed: there is another look soon
	}
	total, budget := c.ledger.charge(k.id, reading{s.At, cpu, s.WorkingSet, s.Disk}, c.pace())
	if detail := c.overBudget("it", budget, total); detail != "" {
		c.wg.Go(func() { c.endDue(ctx, k.id, owedEnd{k.epoch, hutch.EndBudget, detail}) })
	}
	if k.state == hutch.StateRunning && c.meter.wants(k.id, s.At, c.cfg.SampleEvery) {
		c.meter.add(k.id, s, cpu, int(keptFor/c.cfg.SampleEvery))
	}
}

// turn charges a sandbox for what it was, and from now on as what it becomes.
func (c *Control) turn(ctx context.Context, sb hutch.Sandbox, to hutch.State) {
	if err := c.account(ctx, sb); err != nil {
		c.log.Error("charge", "sandbox", sb.ID, "op", "usage", "error", err)
		return // the next round of samples begins with it
	}
	c.measure(ctx, look{id: sb.ID, epoch: sb.Epoch})
	c.ledger.turn(sb.ID, sb.Epoch, to)
	c.writeUsage(ctx, choice{sandbox: sb.ID, grown: true})
}

// SandboxUsed takes the last word of a host on a sandbox whose processes have ended. It comes
// before SandboxEnded.
func (c *Control) SandboxUsed(ctx context.Context, id hutch.SandboxID, at time.Time, cpu time.Duration) {
	ctx, cancel := finish(ctx, finishTimeout) // it is not told twice
	defer cancel()
	if !c.ledger.has(id) {
		sb, err := c.store.Sandbox(ctx, id)
		if err == nil {
			err = c.account(ctx, sb)
		}
		if err != nil {
			if !errors.Is(err, hutch.ErrNotFound) {
				c.log.Error("charge", "sandbox", id, "op", "usage", "error", err)
			}
			return
		}
	}
	c.ledger.final(id, at, cpu)
}

// settleUsage charges a sandbox up to its end, which is now unless it was told before, and
// stores that. It returns the end.
func (c *Control) settleUsage(ctx context.Context, sb hutch.Sandbox, now time.Time) time.Time {
	if err := c.account(ctx, sb); err != nil {
		c.log.Error("charge", "sandbox", sb.ID, "op", "usage", "error", err)
	}
	at := c.ledger.end(sb.ID, now)
	c.writeUsage(ctx, choice{sandbox: sb.ID, grown: true})
	return at
}

// maxWrite is how many intervals go into one transaction.
const maxWrite = 1000

// writeUsage stores intervals. What fails is kept for the next time.
func (c *Control) writeUsage(ctx context.Context, which choice) {
	if err := c.storeUsage(ctx, which); err != nil && ctx.Err() == nil {
		c.log.Error("charge", "op", "usage", "error", err)
	}
}

// storeUsage does, and says whether all of them are on record.
func (c *Control) storeUsage(ctx context.Context, which choice) error {
	rows := c.ledger.take(which)
	defer c.ledger.giveBack()
	for len(rows) > 0 {
		n := min(len(rows), maxWrite)
		err := c.store.AppendUsage(ctx, rows[:n]...)
		failpoint.At(failpoint.UsageStored)
		if err != nil {
			return fmt.Errorf("store usage: %w", err)
		}
		c.ledger.stored(rows[:n])
		rows = rows[n:]
	}
	return nil
}

// caughtUp stores what is known of what q asks for. Of one sandbox that is all up to now; of
// a project, up to its last look at each.
func (c *Control) caughtUp(ctx context.Context, q hutch.UsageQuery) (store.UsageFilter, error) {
	f := store.UsageFilter{Project: q.Project, Sandbox: q.Sandbox}
	if q.Sandbox != "" {
		sb, err := c.load(ctx, q.Project, q.Sandbox)
		switch {
		case err == nil && c.ledger.has(sb.ID):
			c.measure(context.WithoutCancel(ctx), look{id: sb.ID, epoch: sb.Epoch})
		case errors.Is(err, hutch.ErrNotFound): // what it used is kept for longer than its record
			if l, _, lerr := c.store.Usage(ctx, f, store.Page{Limit: 1}); lerr != nil || len(l) == 0 {
				return f, errors.Join(lerr, err)
			}
		case err != nil:
			return f, err
		}
	}
	c.writeUsage(ctx, choice{project: q.Project, sandbox: q.Sandbox, grown: true})
	f.From, f.To = q.From, q.To
	return f, nil
}

// UsageReport returns what q asks for. It measures once: its entries are of the same instant
// as its total.
func (c *Control) UsageReport(ctx context.Context, q hutch.UsageQuery) (hutch.UsageReport, error) {
	var out hutch.UsageReport
	f, err := c.caughtUp(ctx, q)
	if err != nil {
		return out, err
	}
	err = c.store.ReadUsage(ctx, func(r store.UsageReader) (err error) {
		page := store.Page{Cursor: q.Cursor, Limit: q.Limit}
		switch q.By {
		case hutch.UsageByProject:
		case hutch.UsageBySandbox:
			out.Sandboxes, out.Next, err = r.UsageBySandbox(ctx, f, page)
		default:
			out.Intervals, out.Next, err = r.Usage(ctx, f, page)
		}
		if err == nil {
			out.Total, err = r.UsageTotal(ctx, f)
		}
		return err
	})
	if err != nil {
		return hutch.UsageReport{}, fmt.Errorf("report usage: %w", err)
	}
	if out.Budget, err = c.budgetState(ctx, q.Project); err != nil {
		return hutch.UsageReport{}, err
	}
	whole := out.Intervals
	out.Intervals = whole[:0]
	for _, u := range whole {
		if u, ok := u.Clip(q.From, q.To); ok {
			out.Intervals = append(out.Intervals, u)
		}
	}
	return out, nil
}

// RateCard returns what the operator charges; nil if nothing was said.
func (c *Control) RateCard() *hutch.RateCard { return c.cfg.RateCard }
