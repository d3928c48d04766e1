package control

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/store"
)

// adoptParallel is how many sandboxes are taken over at once: each is a few calls that wait.
const adoptParallel = 16

// Recover makes records and host agree after a restart: it takes over what runs, ends or
// finishes what an earlier process left half done, marks the lost with a reason, and
// removes what nobody knows. It must return before anything else is asked of Control.
func (c *Control) Recover(ctx context.Context) error {
	alive, err := c.allAlive(ctx)
	if err != nil {
		return err
	}
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(adoptParallel)
	for _, sb := range alive {
		c.admission.restore()
		g.Go(func() error { return c.recoverOne(gctx, sb) })
	}
	if err := g.Wait(); err != nil {
		return err
	}
	left, err := c.nodes.Leftovers(ctx)
	if err != nil {
		return err
	}
	for _, id := range left {
		c.log.Warn("removing the remains of a sandbox that is not on record", "sandbox", id, "op", "recover")
		if err := c.nodes.Sweep(ctx, id); err != nil {
			return err
		}
		c.metrics.Operation("sweep_orphan", nil)
	}
	c.setReady(nil)
	return nil
}

func (c *Control) allAlive(ctx context.Context) ([]hutch.Sandbox, error) {
	f := store.SandboxFilter{States: []hutch.State{hutch.StateNew, hutch.StateRunning, hutch.StatePaused}}
	var all []hutch.Sandbox
	for cursor := ""; ; {
		l, next, err := c.store.Sandboxes(ctx, f, store.Page{Cursor: cursor, Limit: 1000})
		if err != nil {
			return nil, fmt.Errorf("list living sandboxes: %w", err)
		}
		all = append(all, l...)
		if next == "" {
			return all, nil
		}
		cursor = next
	}
}

// recoverOne takes over one sandbox, or records why it can't.
func (c *Control) recoverOne(ctx context.Context, sb hutch.Sandbox) error {
	why, err := c.nodes.Adopt(ctx, sb)
	if errors.Is(err, hutch.ErrSandboxGone) {
		return c.recordLost(ctx, sb, why, err)
	}
	if err != nil {
		return fmt.Errorf("take over %s: %w", sb.ID, err)
	}
	if err := c.recoverExecs(ctx, sb); err != nil {
		return err
	}
	switch sb.Transition {
	case hutch.Killing:
		_, err = c.carryOutKill(ctx, sb)
		return err
	case hutch.Starting, hutch.Pausing, hutch.Resuming:
		return c.recoverTransition(ctx, sb)
	}
	c.log.Info("taken over", "sandbox", sb.ID, "epoch", sb.Epoch, "op", "recover", "state", string(sb.State))
	return nil
}

// recoverTransition does again what an earlier process had begun: each act is harmless
// when it has been done already.
func (c *Control) recoverTransition(ctx context.Context, sb hutch.Sandbox) error {
	t, to := sb.Transition, hutch.StateRunning
	if t == hutch.Pausing {
		to = hutch.StatePaused
	}
	if t != hutch.Starting {
		if err := c.act(ctx, sb, t); err != nil {
			return fmt.Errorf("finish %s of %s: %w", t, sb.ID, err)
		}
	}
	_, err := c.update(ctx, sb.ID, sb.Epoch, func(s *hutch.Sandbox) error {
		if t == hutch.Starting {
			s.StartedAt, s.BootMode = time.Now(), "cold"
		}
		return s.Finish(t, sb.Epoch)
	}, event(sb, "sandbox."+string(to), "recovered", "true"))
	if errors.Is(err, hutch.ErrStale) {
		return nil
	}
	return err
}

// recordLost marks a sandbox that is gone dead, and with it the commands it ran.
func (c *Control) recordLost(ctx context.Context, sb hutch.Sandbox, why hutch.SandboxEnd, cause error) error {
	detail := ""
	switch {
	case sb.Transition == hutch.Killing:
		why = hutch.EndKilled
	case sb.State == hutch.StateNew:
		why, detail = hutch.EndStartFailed, "the server stopped while it was being started"
	default:
		var e *hutch.Error
		if errors.As(cause, &e) {
			detail = e.Message
		}
	}
	running, err := c.runningExecs(ctx, sb.ID)
	if err != nil {
		return err
	}
	now := time.Now()
	for _, x := range running {
		r := hutch.ExecResult{
			End: hutch.ExecSandboxGone, ExitCode: 128 + 9, Signal: "KILL", Detail: "the sandbox ended under it",
			StartedAt: x.CreatedAt, EndedAt: now,
		}
		if err := c.ExecEnded(ctx, sb.ID, x.ID, r); err != nil {
			return err
		}
	}
	c.ended(ctx, sb.ID, why, detail)
	return nil
}

// recoverExecs counts the commands on record that still run as use of their sandbox; the
// node has begun to watch them and reports their ends. One on record that the guest does
// not know is reported lost by the same watch.
func (c *Control) recoverExecs(ctx context.Context, sb hutch.Sandbox) error {
	running, err := c.runningExecs(ctx, sb.ID)
	if err != nil {
		return err
	}
	c.activity.touch(sb.ID)
	for _, x := range running {
		if c.execs.ended(x.ID) == nil {
			c.activity.add(sb.ID, +1)
			c.execs.put(x)
		}
	}
	return c.nodes.WatchExecs(ctx, sb.ID, sb.Epoch, slices.Collect(execIDs(running)))
}

func execIDs(l []hutch.Exec) func(func(hutch.ExecID) bool) {
	return func(yield func(hutch.ExecID) bool) {
		for _, x := range l {
			if !yield(x.ID) {
				return
			}
		}
	}
}

func (c *Control) runningExecs(ctx context.Context, id hutch.SandboxID) ([]hutch.Exec, error) {
	var all []hutch.Exec
	for cursor := ""; ; {
		l, next, err := c.store.ExecsOf(ctx, id, true, store.Page{Cursor: cursor, Limit: 1000})
		if err != nil {
			return nil, fmt.Errorf("list commands of %s: %w", id, err)
		}
		all = append(all, l...)
		if next == "" {
			return all, nil
		}
		cursor = next
	}
}

// carryOutKill does what a kill on record asks for.
func (c *Control) carryOutKill(ctx context.Context, sb hutch.Sandbox) (hutch.Sandbox, error) {
	if err := c.nodes.KillSandbox(ctx, sb.ID, sb.Epoch); err != nil && !errors.Is(err, hutch.ErrSandboxGone) {
		return sb, err
	}
	return c.ended(ctx, sb.ID, hutch.EndKilled, ""), nil
}
