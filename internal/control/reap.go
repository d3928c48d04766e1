package control

import (
	"context"
	"errors"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/x/failpoint"
)

// purgeInterval is how often the records of the long dead are removed: they are kept
// for hours, so minutes are fine.
const purgeInterval = time.Minute

// Run ends what has expired or idled or lost its owner, carries on what was left undone, makes
// records and host agree, and removes old records, until ctx ends. The nodes hold deadlines and
// idle timeouts too; whoever comes first ends the sandbox, and the other finds it gone.
func (c *Control) Run(ctx context.Context) error {
	c.wg.Go(func() { c.sampling(ctx) })
	c.wg.Go(func() { c.reconciling(ctx) })
	c.wg.Go(func() { c.preparing(ctx) })
	c.wg.Go(func() { c.tellingUse(ctx) })
	t := time.NewTicker(c.cfg.SweepInterval)
	defer t.Stop()
	var purged time.Time
	collected := time.Now()
	for {
		select {
		case <-ctx.Done():
			return nil
		case now := <-t.C:
			c.sweep(ctx, now)
			if now.Sub(purged) > purgeInterval {
				c.purge(ctx, now)
				purged = now
			}
			if c.cfg.Images != nil && now.Sub(collected) > c.cfg.ImagesEvery {
				if err := c.collectImages(ctx); err != nil && ctx.Err() == nil {
					c.log.Error("remove images", "op", "purge", "error", err)
				}
				collected = now
			}
		}
	}
}

// sweep looks at every living sandbox once, and at what is owed.
func (c *Control) sweep(ctx context.Context, now time.Time) {
	owed := c.owedEnds.all()
	for id, end := range owed {
		c.wg.Go(func() { c.endDue(ctx, id, end) })
	}
	for id, e := range c.owedTurns.all() {
		c.wg.Go(func() { c.carryOn(ctx, id, e) })
	}
	alive, err := c.allAlive(ctx)
	if err != nil {
		if ctx.Err() == nil {
			c.log.Error("sweep", "op", "reap", "error", err)
		}
		return
	}
	for _, sb := range alive {
		if _, ok := owed[sb.ID]; ok {
			continue
		}
		if why, detail := c.due(sb, now); why == hutch.EndOwnerGone {
			c.wg.Go(func() { c.endOwnerless(ctx, sb) })
		} else if why != "" {
			c.wg.Go(func() { c.endDue(ctx, sb.ID, owedEnd{sb.Epoch, why, detail}) })
		}
	}
}

// due says why a sandbox is to be ended now; empty = it is not.
func (c *Control) due(sb hutch.Sandbox, now time.Time) (hutch.SandboxEnd, string) {
	switch {
	case sb.Transition == hutch.Killing:
		return announced(sb)
	case !now.Before(sb.ExpiresAt):
		return hutch.EndExpired, "its time to live was over"
	case sb.State != hutch.StateNew && lapsed(sb, now): // a start has its own limit
		return hutch.EndOwnerGone, ""
	case sb.State == hutch.StateRunning && sb.IdleTimeout > 0 && c.activity.idle(sb.ID, now) >= sb.IdleTimeout:
		return hutch.EndIdle, "it was not used for its idle timeout"
	}
	return "", ""
}

// endDue ends one sandbox, unless an earlier sweep is at it. If the node has ended it
// meanwhile, the node's report and this one say the same, and the first to be stored stays.
func (c *Control) endDue(ctx context.Context, id hutch.SandboxID, end owedEnd) {
	release, _ := c.swept.take(id)
	if release == nil {
		return
	}
	defer release()
	ctx, cancel := finish(ctx, finishTimeout)
	defer cancel()
	if end, ok := c.announce(ctx, id, end); ok {
		c.makeEnd(ctx, id, end)
	}
}

// announce puts on record why a sandbox is about to be ended, where nothing else says so: if
// the server dies in between, the next one finds a machine that has exited, or is to. It is false
// if somebody else acts on the sandbox; a sweep looks again.
func (c *Control) announce(ctx context.Context, id hutch.SandboxID, end owedEnd) (owedEnd, bool) {
	switch end.why {
	case hutch.EndIdle, hutch.EndOwnerGone, hutch.EndBudget:
	default:
		return end, true
	}
	sb, err := c.update(ctx, id, end.epoch, func(s *hutch.Sandbox) error {
		if s.Transition == hutch.Killing && s.EndReason == end.why { // by an earlier try
			return errAlready
		}
		if err := s.Begin(hutch.Killing); err != nil {
			return err
		}
		s.EndReason, s.EndDetail = end.why, end.detail
		return nil
	})
	switch {
	case err == nil:
		end.epoch = sb.Epoch
	case errors.Is(err, errAlready):
	case errors.Is(err, hutch.ErrStale), errors.Is(err, hutch.ErrConflict), errors.Is(err, hutch.ErrSandboxGone):
		return end, false
	default: // that it cannot be recorded is no reason to let it run
		c.log.Error("record", "sandbox", id, "op", "end", "reason", string(end.why), "error", err)
	}
	return end, true
}

// announced is why a sandbox that is on record as being killed is: somebody asked for it, unless
// it says otherwise.
func announced(sb hutch.Sandbox) (hutch.SandboxEnd, string) {
	if sb.EndReason != "" {
		return sb.EndReason, sb.EndDetail
	}
	return hutch.EndKilled, ""
}

// makeEnd ends a sandbox on its host and on record. What fails is owed to the next sweep.
// It returns the record, which is empty if there is none or it can't be had.
func (c *Control) makeEnd(ctx context.Context, id hutch.SandboxID, end owedEnd) hutch.Sandbox {
	failpoint.At(failpoint.ReapDue)
	c.measure(ctx, look{id: id, epoch: end.epoch})
	err := c.nodes.KillSandbox(ctx, id, end.epoch)
	if errors.Is(err, hutch.ErrStale) { // somebody else acts on it, and a sweep looks again
		c.owedEnds.done(id)
		return hutch.Sandbox{}
	}
	var sb hutch.Sandbox
	if err == nil || errors.Is(err, hutch.ErrSandboxGone) {
		sb, err = c.ended(ctx, id, end.why, end.detail)
	}
	switch {
	case err == nil:
		c.owedEnds.done(id)
	case errors.Is(err, hutch.ErrNotFound): // of a start that did not come to be recorded
		c.owedEnds.done(id)
		c.admission.unreserve(id)
	default:
		c.log.Error("end", "sandbox", id, "op", "end", "reason", string(end.why), "error", err)
		c.owedEnds.add(id, end)
	}
	return sb
}

// carryOn finishes a pause or a resume, begun at epoch e, whose outcome could not be
// recorded. Until then nothing but a kill can be begun.
func (c *Control) carryOn(ctx context.Context, id hutch.SandboxID, e hutch.Epoch) {
	release, _ := c.swept.take(id)
	if release == nil {
		return
	}
	defer release()
	ctx, cancel := finish(ctx, finishTimeout)
	defer cancel()
	sb, err := c.store.Sandbox(ctx, id)
	if err == nil && sb.Epoch == e && (sb.Transition == hutch.Pausing || sb.Transition == hutch.Resuming) {
		c.owedTurns.done(id) // it comes back if it fails again
		err = c.finishTransition(ctx, sb)
	} else if err == nil {
		c.owedTurns.done(id)
	}
	if err != nil {
		c.log.Error("carry on", "sandbox", id, "op", "reap", "error", err)
	}
}

func (c *Control) purge(ctx context.Context, now time.Time) {
	n, err := c.store.PurgeSandboxes(ctx, now.Add(-c.cfg.Retention))
	if err == nil {
		_, err = c.store.PurgeCalls(ctx, now.Add(-c.cfg.Retention))
	}
	if err == nil {
		_, err = c.store.PurgeBuilds(ctx, now.Add(-c.cfg.Retention))
	}
	if err == nil {
		_, err = c.store.PurgeAudit(ctx, now.Add(-c.cfg.AuditFor))
	}
	if err == nil {
		_, err = c.store.PurgeUsage(ctx, c.usageNeeded(now))
	}
	if err != nil {
		if ctx.Err() == nil {
			c.log.Error("purge", "op", "purge", "error", err)
		}
		return
	}
	if n > 0 {
		c.log.Info("purged", "op", "purge", "sandboxes", n)
	}
}
