package control

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/store"
	"hutch.dev/hutch/internal/x/failpoint"
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
		claimed, release := c.ClaimPrepared(ctx, req)
		defer release()
		req.ID = cmp.Or(claimed, hutch.SandboxID(id.NewSandbox()))
	}
	release, err := c.alone(ctx, req.ID)
	if err != nil {
		return hutch.Sandbox{}, err
	}
	defer release()
	if sb, err := c.store.Sandbox(ctx, req.ID); err == nil && sb.Project == req.Project {
		return sb, nil
	} else if err == nil {
		return hutch.Sandbox{}, hutch.Errorf(hutch.CodeConflict, "sandbox %s exists elsewhere: choose another id", req.ID)
	} else if !errors.Is(err, hutch.ErrNotFound) {
		return hutch.Sandbox{}, fmt.Errorf("read sandbox %s: %w", req.ID, err)
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
	if err := c.askBudget(ctx, sb.Project); err != nil {
		return hutch.Sandbox{}, err
	}
	if err := c.admission.ask(sb, begun); err != nil {
		return hutch.Sandbox{}, err
	}
	leave, err := c.admission.enter(ctx, sb.Project)
	if err != nil {
		c.admission.askedInVain(sb.Project)
		return hutch.Sandbox{}, err
	}
	defer c.spares.poke()
	defer leave()
	if ctx.Err() != nil { // its turn and its caller's leaving came together
		c.admission.askedInVain(sb.Project)
		return hutch.Sandbox{}, errLeftQueued(ctx)
	}
	c.metrics.CreateStage("queue", time.Since(begun))
	if err := c.admission.reserve(sb); err != nil {
		c.admission.askedInVain(sb.Project)
		return hutch.Sandbox{}, err
	}
	c.spares.note(kindOf(sb), time.Now())
	c.spares.tells(kindOf(sb), sb.Defaults)
	c.makeRoom(ctx)
	c.spares.drop(sb.ID) // from here on it is the sandbox's
	return c.start(ctx, sb, begun)
}

// alone waits until no other create for this id is under way, and keeps others out until
// release is called. A create asked for twice then finds the record of the first.
func (c *Control) alone(ctx context.Context, id hutch.SandboxID) (release func(), err error) {
	for {
		release, taken := c.creating.take(id)
		if release != nil {
			return release, nil
		}
		select {
		case <-taken:
		case <-ctx.Done():
			return nil, hutch.Wrap(hutch.CodeCancelled, context.Cause(ctx), "the caller left while another call was making sandbox %s", id)
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
	g.Go(func() error {
		t := time.Now()
		failpoint.At(failpoint.CreateBegun)
		// Not under gctx: a start that fails is recorded too.
		if err := c.store.CreateSandbox(ctx, sb, event(sb, "sandbox.creating", "template", sb.Template)); err != nil {
			return fmt.Errorf("record sandbox: %w", err)
		}
		failpoint.At(failpoint.CreateRecorded)
		c.watchers.wake()
		c.metrics.CreateStage("record", time.Since(t))
		return nil
	})
	g.Go(func() (err error) {
		if stages, err = c.nodes.StartSandbox(gctx, sb); err != nil {
			return fmt.Errorf("start sandbox: %w", err)
		}
		return nil
	})
	if err := g.Wait(); err != nil {
		c.log.Error("create", "sandbox", sb.ID, "op", "create", "error", err)
		err = startError(err)
		if out := c.undoStart(ctx, sb, err); out.EndReason != "" && out.EndReason != hutch.EndStartFailed {
			return hutch.Sandbox{}, goneError(out) // killed, or over its time, while it was started
		}
		return hutch.Sandbox{}, err
	}
	failpoint.At(failpoint.CreateMade)
	for _, name := range slices.Sorted(maps.Keys(stages)) {
		if name != hutch.BootPrepared {
			c.metrics.CreateStage(name, stages[name])
		}
	}
	return c.finishStart(ctx, sb, begun, stages)
}

// finishStart records that the sandbox runs. That there is one is durable by now; that it has
// begun to run need not be: if this machine loses its power the sandbox is lost, running or not.
func (c *Control) finishStart(ctx context.Context, sb hutch.Sandbox, begun time.Time, stages map[string]time.Duration) (hutch.Sandbox, error) {
	t := time.Now()
	boot := t.Sub(begun)
	data := []string{"boot_ms", strconv.FormatInt(boot.Milliseconds(), 10)}
	mode := hutch.BootCold
	if stood, ok := stages[hutch.BootPrepared]; ok {
		mode = hutch.BootPrepared
		data = append(data, "stood_ms", strconv.FormatInt(stood.Milliseconds(), 10))
		delete(stages, hutch.BootPrepared)
	}
	for _, name := range slices.Sorted(maps.Keys(stages)) {
		data = append(data, "stage."+name+"_us", strconv.FormatInt(stages[name].Microseconds(), 10))
	}
	out, err := c.update(store.Lazily(ctx), sb.ID, sb.Epoch, func(s *hutch.Sandbox) error {
		s.StartedAt, s.Boot, s.BootMode = t, boot, mode
		s.LeasedTo = leaseFrom(t, s.Lease) // its owner hears of it now
		return s.Finish(hutch.Starting, sb.Epoch)
	}, event(sb, "sandbox.started", data...))
	if errors.Is(err, hutch.ErrStale) { // ended, or killed, in the moment it started
		if out, err = c.awaitDead(ctx, sb.Project, sb.ID); err == nil {
			err = goneError(out)
		}
		return hutch.Sandbox{}, err
	}
	if err != nil {
		err = hutch.Wrap(hutch.CodeUnavailable, err, "the sandbox could not be recorded, and was removed: try again")
		c.undoStart(ctx, sb, err)
		return hutch.Sandbox{}, err
	}
	failpoint.At(failpoint.CreateFinished)
	c.metrics.CreateStage("finish", time.Since(t))
	c.metrics.CreateStage("total", time.Since(begun))
	c.activity.touch(sb.ID)
	c.ledger.open(out, t, hutch.UsageTotal{})
	c.log.Info("running", "sandbox", sb.ID, "epoch", sb.Epoch, "op", "create", "template", sb.Template, "boot_ms", boot.Milliseconds())
	return out, nil
}

// undoStart makes true on the host and in the records that the sandbox never ran, now or
// by a sweep, and returns its record, if it has one. It keeps what the caller is told of why.
func (c *Control) undoStart(ctx context.Context, sb hutch.Sandbox, why error) hutch.Sandbox {
	ctx, cancel := finish(ctx, finishTimeout)
	defer cancel()
	detail := "it could not be started"
	var e *hutch.Error
	if errors.As(why, &e) {
		detail = e.Message
	}
	return c.makeEnd(ctx, sb.ID, owedEnd{sb.Epoch, hutch.EndStartFailed, detail})
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
