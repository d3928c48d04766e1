package control

import (
	"context"
	"errors"
	"time"

	"hutch.dev/hutch"
)

// purgeInterval is how often the records of the long dead are removed: they are kept
// for hours, so minutes are fine.
const purgeInterval = time.Minute

// Run ends what has expired or idled, carries on what was left undone, and removes old
// records, until ctx ends. The nodes hold deadlines too; whoever comes first ends the
// sandbox, and the other finds it gone.
func (c *Control) Run(ctx context.Context) error {
	t := time.NewTicker(c.cfg.SweepInterval)
	defer t.Stop()
	var purged time.Time
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
		}
	}
}

// sweep looks at every living sandbox once.
func (c *Control) sweep(ctx context.Context, now time.Time) {
	alive, err := c.allAlive(ctx)
	if err != nil {
		if ctx.Err() == nil {
			c.log.Error("sweep", "op", "reap", "error", err)
		}
		return
	}
	for _, sb := range alive {
		why, detail := c.due(sb, now)
		if why == "" {
			continue
		}
		c.wg.Go(func() { c.endDue(context.WithoutCancel(ctx), sb, why, detail) })
	}
}

// due says why a sandbox is to be ended now; empty = it is not.
func (c *Control) due(sb hutch.Sandbox, now time.Time) (hutch.SandboxEnd, string) {
	switch {
	case sb.Transition == hutch.Killing:
		return hutch.EndKilled, ""
	case !now.Before(sb.ExpiresAt):
		return hutch.EndExpired, "its time to live was over"
	case sb.State == hutch.StateRunning && sb.IdleTimeout > 0 && c.activity.idle(sb.ID, now) >= sb.IdleTimeout:
		return hutch.EndIdle, "it was not used for its idle timeout"
	}
	return "", ""
}

// endDue ends one sandbox for a reason of ours. If the node has ended it meanwhile, the
// node's report and this one say the same, and the first to be stored stays.
func (c *Control) endDue(ctx context.Context, sb hutch.Sandbox, why hutch.SandboxEnd, detail string) {
	ctx, cancel := finish(ctx, finishTimeout)
	defer cancel()
	if !c.admission.ending(sb.ID) {
		return // an earlier sweep is at it
	}
	defer c.admission.endingDone(sb.ID)
	err := c.nodes.KillSandbox(ctx, sb.ID, sb.Epoch)
	if err != nil && !errors.Is(err, hutch.ErrSandboxGone) {
		c.log.Error("end", "sandbox", sb.ID, "op", "reap", "reason", string(why), "error", err)
		return
	}
	c.ended(ctx, sb.ID, why, detail)
}

func (c *Control) purge(ctx context.Context, now time.Time) {
	n, err := c.store.PurgeSandboxes(ctx, now.Add(-c.cfg.Retention))
	if err == nil {
		_, err = c.store.PurgeCalls(ctx, now.Add(-c.cfg.Retention))
	}
	if err != nil {
		c.log.Error("purge", "op", "purge", "error", err)
		return
	}
	if n > 0 {
		c.log.Info("purged", "op", "purge", "sandboxes", n)
	}
}
