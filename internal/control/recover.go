package control

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"golang.org/x/sync/errgroup"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/store"
	"hutch.dev/hutch/internal/x/backoff"
	"hutch.dev/hutch/internal/x/failpoint"
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
		c.admission.restore(sb)
		g.Go(func() error { return c.recoverOne(gctx, sb) })
	}
	if err := g.Wait(); err != nil {
		return err
	}
	// Nobody starts or ends anything yet, so one look is enough.
	left, err := c.look(ctx, false)
	if err != nil {
		return err
	}
	if err := c.mend(ctx, left); err != nil {
		return err
	}
	failpoint.At(failpoint.RecoverMended)
	if err := c.failCutBuilds(ctx); err != nil {
		return err
	}
	failpoint.At(failpoint.RecoverBuilds)
	c.setReady(nil)
	return nil
}

// Recovered reports whether Recover is through: until then a sandbox that is not known yet
// would be taken for one that is gone.
func (c *Control) Recovered() bool {
	c.readyMu.Lock()
	defer c.readyMu.Unlock()
	return c.ready == nil
}

// allAlive returns the living sandboxes, as the records have them. The list is shared.
func (c *Control) allAlive(ctx context.Context) ([]hutch.Sandbox, error) {
	return c.roster.get(c.store, func() ([]hutch.Sandbox, error) { return c.readAlive(ctx) })
}

func (c *Control) readAlive(ctx context.Context) ([]hutch.Sandbox, error) {
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
	// Before the node can report the end of one of them: the other way round a command
	// that has just ended would be taken for a running one.
	running, err := c.runningExecs(ctx, sb.ID)
	if err != nil {
		return err
	}
	c.track(running)
	if sb, err = c.clipRecord(ctx, sb); err != nil {
		return err
	}
	why, err := c.adopt(ctx, sb)
	if errors.Is(err, hutch.ErrSandboxGone) {
		return c.recordLost(ctx, sb, why, err)
	}
	if err != nil {
		// It may well live: what failed is ours, and a start that fails loudly costs less than
		// a sandbox that is given up.
		return fmt.Errorf("take over %s: %w", sb.ID, err)
	}
	c.restoreUse(sb.ID)
	failpoint.At(failpoint.RecoverAdopted)
	err = c.nodes.WatchExecs(ctx, sb.ID, sb.Epoch, running)
	if err != nil && !errors.Is(err, hutch.ErrSandboxGone) {
		return fmt.Errorf("watch the commands of %s: %w", sb.ID, err)
	}
	switch sb.Transition {
	case hutch.Killing:
		why, detail := announced(sb)
		c.makeEnd(ctx, sb.ID, owedEnd{sb.Epoch, why, detail})
		return nil
	case hutch.Starting:
		return c.recoverStart(ctx, sb)
	case hutch.Pausing, hutch.Resuming:
		if err := c.finishTransition(ctx, sb); err != nil {
			c.log.Error("finish", "sandbox", sb.ID, "op", string(sb.Transition), "error", err)
		}
	}
	if err := c.renewAfterOutage(ctx, sb); err != nil {
		return err
	}
	c.log.Info("taken over", "sandbox", sb.ID, "epoch", sb.Epoch, "op", "recover", "state", string(sb.State))
	return nil
}

// track takes in commands that run, which are use of their sandboxes.
func (c *Control) track(running []hutch.Exec) {
	for _, x := range running {
		if c.execs.track(x) {
			c.activity.resume(x.Sandbox, x.CreatedAt)
		}
	}
}

// adoptTries is how often a sandbox is tried to be taken over, with adoptPolicy's waits.
const adoptTries = 5

var adoptPolicy = backoff.Policy{Base: 50 * time.Millisecond, Cap: time.Second}

// adopt takes a sandbox over, and again if what failed may pass.
func (c *Control) adopt(ctx context.Context, sb hutch.Sandbox) (why hutch.SandboxEnd, err error) {
	for n := range adoptTries {
		if why, err = c.nodes.Adopt(ctx, sb); err == nil || errors.Is(err, hutch.ErrSandboxGone) {
			return why, err
		}
		if serr := backoff.Sleep(ctx, adoptPolicy.Delay(n, rand.Float64)); serr != nil {
			return why, err
		}
	}
	return why, err
}

// recoverStart finishes the record of a sandbox that an earlier process was starting, if
// its guest answers; else it removes what there is.
func (c *Control) recoverStart(ctx context.Context, sb hutch.Sandbox) error {
	if err := c.nodes.ResumeSandbox(ctx, sb.ID, sb.Epoch); err != nil {
		c.log.Warn("a sandbox whose start was cut off does not answer", "sandbox", sb.ID, "op", "recover", "error", err)
		c.makeEnd(ctx, sb.ID, owedEnd{sb.Epoch, hutch.EndStartFailed, cutStart})
		return nil
	}
	now := time.Now()
	_, err := c.update(ctx, sb.ID, sb.Epoch, func(s *hutch.Sandbox) error {
		s.StartedAt, s.Boot, s.BootMode = now, now.Sub(s.CreatedAt), hutch.BootCold
		s.LeasedTo = leaseFrom(now, s.Lease)
		return s.Finish(hutch.Starting, sb.Epoch)
	}, event(sb, "sandbox.started", "recovered", "true"))
	if errors.Is(err, hutch.ErrStale) { // it ended meanwhile
		return nil
	}
	return err
}

// cutStart is what is said of a start that a restart of ours cut off.
const cutStart = "the server stopped while it was being started"

// recordLost marks a sandbox that is gone dead, and with it the commands it ran.
func (c *Control) recordLost(ctx context.Context, sb hutch.Sandbox, why hutch.SandboxEnd, cause error) error {
	detail := ""
	switch {
	case sb.Transition == hutch.Killing:
		why, detail = announced(sb)
	case sb.State == hutch.StateNew:
		why, detail = hutch.EndStartFailed, cutStart
	default:
		var e *hutch.Error
		if errors.As(cause, &e) {
			detail = e.Message
		}
	}
	if _, err := c.ended(ctx, sb.ID, why, detail); err != nil {
		return err
	}
	failpoint.At(failpoint.RecoverLost)
	// Only now may the note on how it ended go.
	ctx, cancel := finish(ctx, finishTimeout)
	defer cancel()
	if err := c.nodes.Sweep(ctx, sb.ID); err != nil {
		c.log.Error("sweep", "sandbox", sb.ID, "op", "recover", "error", err)
	}
	return nil
}

func (c *Control) runningExecs(ctx context.Context, id hutch.SandboxID) ([]hutch.Exec, error) {
	var all []hutch.Exec
	for cursor := ""; ; {
		l, next, err := c.store.ExecsOf(ctx, store.ExecFilter{Sandbox: id, Running: true}, store.Page{Cursor: cursor, Limit: 1000})
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
