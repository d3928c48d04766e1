package control

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/x/id"
)

// CreateSandbox makes a sandbox and returns once its guest answers. A caller who leaves
// while the create is queued is dropped; once the start is under way it is finished and
// recorded whether the caller is still there or not. Asking with the id of a sandbox that
// exists returns that one.
func (c *Control) CreateSandbox(ctx context.Context, req hutch.CreateSandbox) (hutch.Sandbox, error) {
	sb, err := c.createSandbox(ctx, req)
	c.metrics.Operation("create", err)
	return sb, err
}

func (c *Control) createSandbox(ctx context.Context, req hutch.CreateSandbox) (hutch.Sandbox, error) {
	begun := time.Now()
	if req.ID == "" {
		req.ID = hutch.SandboxID(id.NewSandbox())
	} else if sb, err := c.settled(ctx, req.Project, req.ID); !errors.Is(err, hutch.ErrNotFound) {
		return sb, err
	}
	t, err := c.store.Template(ctx, req.Template)
	if errors.Is(err, hutch.ErrNotFound) {
		return hutch.Sandbox{}, &hutch.Error{
			Code: hutch.CodeNotFound, Field: "template",
			Message: fmt.Sprintf("there is no template %q: `hutch template ls` shows what there is", req.Template), Err: err,
		}
	} else if err != nil {
		return hutch.Sandbox{}, fmt.Errorf("read template %s: %w", req.Template, err)
	}
	sb, err := c.plan(req, t, begun)
	if err != nil {
		return hutch.Sandbox{}, err
	}
	leave, err := c.admission.enter(ctx)
	if err != nil {
		return hutch.Sandbox{}, err
	}
	defer leave()
	c.metrics.CreateStage("queue", time.Since(begun))
	if err := c.admission.reserve(); err != nil {
		return hutch.Sandbox{}, err
	}
	return c.start(ctx, sb, begun)
}

// settled returns the sandbox of an id that was asked for before, once its start has ended.
func (c *Control) settled(ctx context.Context, p hutch.ProjectID, sid hutch.SandboxID) (hutch.Sandbox, error) {
	for {
		sb, err := c.load(ctx, p, sid)
		if err != nil || sb.State != hutch.StateNew {
			return sb, err
		}
		select {
		case <-ctx.Done():
			return sb, context.Cause(ctx)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// start records the sandbox and makes it, side by side: the record must be durable
// before the caller hears of the sandbox, not before its machine is made. If serve dies
// in between, the machine without a record is an orphan, which Recover removes.
func (c *Control) start(ctx context.Context, sb hutch.Sandbox, begun time.Time) (hutch.Sandbox, error) {
	if err := sb.Begin(hutch.Starting); err != nil {
		return hutch.Sandbox{}, err
	}
	ctx, cancel := finish(ctx, finishTimeout)
	defer cancel()
	var stages map[string]time.Duration
	g, gctx := errgroup.WithContext(ctx)
	var recorded bool
	g.Go(func() error {
		t := time.Now()
		if err := c.store.CreateSandbox(gctx, sb, event(sb, "sandbox.creating", "template", sb.Template)); err != nil {
			return fmt.Errorf("record sandbox: %w", err)
		}
		recorded = true
		c.metrics.CreateStage("record", time.Since(t))
		return nil
	})
	started := false
	g.Go(func() (err error) {
		if stages, err = c.nodes.StartSandbox(gctx, sb); err != nil {
			return fmt.Errorf("start sandbox: %w", err)
		}
		started = true
		return nil
	})
	if err := g.Wait(); err != nil {
		c.log.Error("create", "sandbox", sb.ID, "op", "create", "error", err)
		c.undoStart(ctx, sb, recorded, started)
		return hutch.Sandbox{}, startError(err)
	}
	for _, name := range slices.Sorted(maps.Keys(stages)) {
		c.metrics.CreateStage(name, stages[name])
	}
	return c.finishStart(ctx, sb, begun, stages)
}

// finishStart records that the sandbox runs.
func (c *Control) finishStart(ctx context.Context, sb hutch.Sandbox, begun time.Time, stages map[string]time.Duration) (hutch.Sandbox, error) {
	t := time.Now()
	boot := t.Sub(begun)
	data := []string{"boot_ms", strconv.FormatInt(boot.Milliseconds(), 10)}
	for _, name := range slices.Sorted(maps.Keys(stages)) {
		data = append(data, "stage."+name+"_us", strconv.FormatInt(stages[name].Microseconds(), 10))
	}
	out, err := c.update(ctx, sb.ID, sb.Epoch, func(s *hutch.Sandbox) error {
		s.StartedAt, s.Boot, s.BootMode = t, boot, "cold"
		return s.Finish(hutch.Starting, sb.Epoch)
	}, event(sb, "sandbox.started", data...))
	if errors.Is(err, hutch.ErrStale) { // ended, or killed, in the moment it started
		return c.store.Sandbox(ctx, sb.ID)
	}
	if err != nil {
		c.undoStart(ctx, sb, true, true)
		return hutch.Sandbox{}, fmt.Errorf("record start: %w", err)
	}
	c.metrics.CreateStage("finish", time.Since(t))
	c.metrics.CreateStage("total", time.Since(begun))
	c.activity.touch(sb.ID)
	c.log.Info("running", "sandbox", sb.ID, "epoch", sb.Epoch, "op", "create", "template", sb.Template, "boot_ms", boot.Milliseconds())
	return out, nil
}

// undoStart makes true on the host and in the records that the sandbox never ran.
func (c *Control) undoStart(ctx context.Context, sb hutch.Sandbox, recorded, started bool) {
	ctx, cancel := finish(ctx, finishTimeout)
	defer cancel()
	if started {
		if err := c.nodes.KillSandbox(ctx, sb.ID, sb.Epoch); err != nil && !errors.Is(err, hutch.ErrSandboxGone) {
			c.log.Error("undo create", "sandbox", sb.ID, "op", "create", "error", err)
		}
	}
	if recorded {
		c.ended(ctx, sb.ID, hutch.EndStartFailed, "it could not be started")
		return
	}
	c.admission.unreserve()
}

// startError is what a caller is told of a start that failed: typed errors as they are,
// anything else as an internal error without the host's details.
func startError(err error) error {
	var e *hutch.Error
	if errors.As(err, &e) {
		return err
	}
	return hutch.Wrap(hutch.CodeInternal, err, "the sandbox could not be started")
}
