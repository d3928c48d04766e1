package control

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"hutch.dev/hutch"
)

// reconciling makes records and host agree, every ReconcileEvery until ctx ends.
func (c *Control) reconciling(ctx context.Context) {
	t := time.NewTicker(c.cfg.ReconcileEvery)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			leaks, err := c.lookTwice(ctx, false)
			if err == nil && len(leaks) > 0 {
				err = c.mend(ctx, leaks)
			}
			if err != nil && ctx.Err() == nil {
				c.log.Error("reconcile", "op", "reconcile", "error", err)
			}
		}
	}
}

// mend removes the remains of sandboxes that leaks are, and marks records that have no
// machine. What is of no sandbox is left to people. It returns an error only if it could
// not go on; what could not be mended is logged, and stays a leak.
func (c *Control) mend(ctx context.Context, leaks []hutch.Leak) error {
	nobodys := slices.DeleteFunc(slices.Clone(leaks), func(l hutch.Leak) bool { return l.Sandbox != "" })
	if len(nobodys) > 0 {
		c.log.Warn("what is of no sandbox is left to people: see hutch leaks", "op", "reconcile", "remains", named(nobodys))
		c.metrics.Operation("stray", nil)
	}
	done := map[hutch.SandboxID]bool{"": true}
	for _, l := range leaks {
		if done[l.Sandbox] {
			continue
		}
		done[l.Sandbox] = true
		if err := context.Cause(ctx); err != nil {
			return hutch.Wrap(hutch.CodeCancelled, err, "the caller left before all was swept")
		}
		mine := slices.DeleteFunc(slices.Clone(leaks), func(o hutch.Leak) bool { return o.Sandbox != l.Sandbox })
		c.mendOne(ctx, l.Sandbox, mine)
	}
	return nil
}

// mendOne makes record and host agree about one sandbox, unless somebody is at it: both
// claims keep creates and sweeps of ours out until that is done, and the node refuses to sweep
// what it starts, takes over or runs. Nothing of an earlier look is relied on.
func (c *Control) mendOne(ctx context.Context, id hutch.SandboxID, leaks []hutch.Leak) {
	release, _ := c.creating.take(id)
	if release == nil {
		return
	}
	defer release()
	letGo, _ := c.swept.take(id)
	if letGo == nil {
		return
	}
	defer letGo()
	if c.nodes.Held()[id] {
		return
	}
	ctx, cancel := finish(ctx, finishTimeout)
	defer cancel()
	// After the look at the node: one that it ran and that has ended is dead on record by now.
	sb, err := c.store.Sandbox(ctx, id)
	switch {
	case errors.Is(err, hutch.ErrNotFound), err == nil && sb.State == hutch.StateDead:
		c.sweepOrphan(ctx, id, leaks)
	case err != nil:
		c.log.Error("read", "sandbox", id, "op", "reconcile", "error", err)
	case sb.State == hutch.StateNew:
		c.log.Warn("a start that nobody makes any more is on record", "sandbox", id, "op", "reconcile")
		c.makeEnd(ctx, id, owedEnd{sb.Epoch, hutch.EndStartFailed, "its start came to no end"})
		c.metrics.Operation("mend_record", nil)
	case sb.Transition == "": // else a sweep carries it on
		err := c.takeBack(ctx, sb)
		if err != nil {
			c.log.Error("take back", "sandbox", id, "op", "reconcile", "error", err)
		}
		c.metrics.Operation("mend_record", err)
	}
}

// sweepOrphan removes what is left of a sandbox that no record knows.
func (c *Control) sweepOrphan(ctx context.Context, id hutch.SandboxID, leaks []hutch.Leak) {
	err := c.nodes.Sweep(ctx, id)
	if errors.Is(err, hutch.ErrConflict) {
		return // the node has it in hand after all
	}
	c.metrics.Operation("sweep_orphan", err)
	if err != nil {
		c.log.Error("remains of a sandbox that is not on record cannot be removed", "sandbox", id, "op", "sweep", "remains", named(leaks), "error", err)
		return
	}
	c.log.Warn("removed the remains of a sandbox that is not on record", "sandbox", id, "op", "sweep", "remains", named(leaks))
}

// named says what leaks are, for the log.
func named(leaks []hutch.Leak) []string {
	out := make([]string, 0, len(leaks))
	for _, l := range leaks {
		out = append(out, fmt.Sprintf("%s %s", l.Kind, l.Name))
	}
	return out
}

// takeBack takes over a sandbox that is on record and that the node does not run; if its
// machine is gone it is marked lost.
func (c *Control) takeBack(ctx context.Context, sb hutch.Sandbox) error {
	// Before the node can report the end of one of them: the other way round a command that
	// has just ended would be taken for a running one.
	running, err := c.runningExecs(ctx, sb.ID)
	if err != nil {
		return err
	}
	c.track(running)
	c.admission.restore(sb)
	why, err := c.nodes.Adopt(ctx, sb)
	if errors.Is(err, hutch.ErrSandboxGone) {
		return c.recordLost(ctx, sb, why, err)
	}
	if err != nil {
		return err
	}
	c.restoreUse(sb.ID)
	c.log.Warn("a sandbox that the node had lost is taken over", "sandbox", sb.ID, "op", "reconcile")
	return c.nodes.WatchExecs(ctx, sb.ID, sb.Epoch, running)
}
