package control

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/store"
	"hutch.dev/hutch/internal/x/failpoint"
	"hutch.dev/hutch/internal/x/id"
)

// StartExec starts a command in a sandbox and returns once it runs. Asking with the id of
// a command that exists starts nothing and returns that one. The caller may leave: the
// command goes on.
func (c *Control) StartExec(ctx context.Context, p hutch.ProjectID, sid hutch.SandboxID, req hutch.ExecRequest) (x hutch.Exec, err error) {
	defer func() { c.metrics.Operation("exec", err) }()
	given := req.ID != ""
	if !given {
		req.ID = hutch.ExecID(id.NewExec())
	} else if x, err := c.execOf(ctx, p, sid, req.ID); !errors.Is(err, hutch.ErrNotFound) {
		return x, err
	}
	if err := checkExec(&req.Spec); err != nil {
		return x, err
	}
	sb, err := c.running(ctx, p, sid)
	if err != nil {
		return x, err
	}
	spec := req.Spec
	spec.StdinOpen = spec.StdinOpen || req.Stdin != nil
	x = hutch.Exec{ID: req.ID, Sandbox: sid, Project: p, Spec: withoutValues(spec), CreatedAt: time.Now()}
	if first, decided := c.execs.begin(x); !first {
		select {
		case <-decided:
		case <-ctx.Done():
			return hutch.Exec{}, hutch.Wrap(hutch.CodeCancelled, context.Cause(ctx), "the caller left while another call was starting command %s", x.ID)
		}
		return c.execOf(ctx, p, sid, x.ID)
	}
	if given { // it may have been started, have ended and been stored since it was looked for
		if old, err := c.store.Exec(ctx, x.ID); !errors.Is(err, hutch.ErrNotFound) {
			c.execs.abandon(x.ID)
			if err == nil && old.Sandbox != sid {
				return hutch.Exec{}, hutch.Errorf(hutch.CodeConflict, "command %s exists elsewhere: choose another id", x.ID)
			}
			return old, err
		}
	}
	return c.launch(ctx, sb, x, spec, req.Stdin)
}

// launch starts a command whose place in the exec log is taken.
func (c *Control) launch(ctx context.Context, sb hutch.Sandbox, x hutch.Exec, spec hutch.ExecSpec, stdin io.Reader) (hutch.Exec, error) {
	ctx, cancel := finish(ctx, finishTimeout)
	defer cancel()
	c.promise(ctx, sb)
	pid, at, err := c.nodes.StartExec(ctx, sb.ID, sb.Epoch, x.ID, spec)
	if err != nil {
		if errors.Is(err, hutch.ErrGuestUnresponsive) {
			c.strays.expect(x) // it may run all the same: then the node says so
		}
		c.execs.abandon(x.ID)
		return hutch.Exec{}, c.explainGone(ctx, sb.Project, sb.ID, err)
	}
	failpoint.At(failpoint.ExecLaunched)
	c.activity.add(sb.ID, +1)
	x.CreatedAt = at
	x = c.execs.started(x.ID, pid, at, started(x))
	if stdin != nil {
		c.wg.Go(func() { c.feed(sb, x.ID, stdin) })
	}
	return x, nil
}

// feed gives a command the stdin that came with its request, for as long as it takes it. A
// command that ends without reading all of it is no failure, nor is a sandbox that ends.
func (c *Control) feed(sb hutch.Sandbox, x hutch.ExecID, r io.Reader) {
	_, err := c.nodes.WriteStdin(c.work, sb.ID, sb.Epoch, x, hutch.StdinChunk{Data: r, End: true})
	if err != nil && c.work.Err() == nil && !errors.Is(err, hutch.ErrInvalidState) && !errors.Is(err, hutch.ErrNotFound) && !errors.Is(err, hutch.ErrSandboxGone) {
		c.log.Warn("a command's stdin was cut off", "sandbox", sb.ID, "exec", x, "op", "stdin", "error", err)
	}
}

// withoutValues is the spec as it is recorded: of the environment the names only.
func withoutValues(s hutch.ExecSpec) hutch.ExecSpec {
	if s.Env == nil {
		return s
	}
	names := make(map[string]string, len(s.Env))
	for _, k := range slices.Collect(maps.Keys(s.Env)) {
		names[k] = ""
	}
	s.Env = names
	return s
}

// running returns a sandbox in which a command can be started now.
func (c *Control) running(ctx context.Context, p hutch.ProjectID, sid hutch.SandboxID) (hutch.Sandbox, error) {
	sb, err := c.alive(ctx, p, sid)
	if err != nil {
		return sb, err
	}
	if sb.State != hutch.StateRunning {
		return sb, hutch.Errorf(hutch.CodeInvalidState, "sandbox %s is %s: resume it first", sid, sb.State)
	}
	c.activity.touch(sid)
	return sb, nil
}

// WaitExec returns the command once it has ended.
func (c *Control) WaitExec(ctx context.Context, p hutch.ProjectID, sid hutch.SandboxID, xid hutch.ExecID) (hutch.Exec, error) {
	silent, leave := c.silences.wait(sid)
	defer leave()
	for unknown := false; ; {
		x, err := c.execOf(ctx, p, sid, xid)
		if err != nil || x.Result != nil {
			return x, err
		}
		ended, undecided := c.execs.ended(xid)
		if ended == nil && undecided == nil {
			if unknown {
				return x, hutch.Errorf(hutch.CodeSandboxGone, "how command %s ended is not on record: its sandbox was lost", xid)
			}
			unknown = true
			continue // its end was stored between the two reads
		}
		unknown = false
		select {
		case <-ended:
		case <-undecided:
		case <-silent:
			if x, err := c.execOf(ctx, p, sid, xid); err != nil || x.Result != nil { // in the same moment
				return x, err
			}
			return x, errSilent(sid, xid)
		case <-ctx.Done():
			return x, hutch.Wrap(hutch.CodeCancelled, context.Cause(ctx), "the caller stopped waiting; the command goes on")
		}
	}
}

// Exec returns a command, whose sandbox may have ended, until its tombstone expires.
func (c *Control) Exec(ctx context.Context, p hutch.ProjectID, xid hutch.ExecID) (hutch.Exec, error) {
	x, ok := c.execs.get(xid)
	if !ok {
		var err error
		if x, err = c.store.Exec(ctx, xid); err != nil && !errors.Is(err, hutch.ErrNotFound) {
			return x, fmt.Errorf("read command %s: %w", xid, err)
		}
	}
	if x.ID == "" || x.Project != p {
		return hutch.Exec{}, hutch.Errorf(hutch.CodeNotFound, "there is no command %q", xid)
	}
	return x, nil
}

// execOf is Exec for a command of one sandbox.
func (c *Control) execOf(ctx context.Context, p hutch.ProjectID, sid hutch.SandboxID, xid hutch.ExecID) (hutch.Exec, error) {
	x, err := c.Exec(ctx, p, xid)
	if err == nil && x.Sandbox != sid {
		return hutch.Exec{}, hutch.Errorf(hutch.CodeNotFound, "there is no command %q in sandbox %s", xid, sid)
	}
	return x, err
}

// ListExecs returns one page of a sandbox's commands, newest first, without their output.
func (c *Control) ListExecs(ctx context.Context, q hutch.ExecQuery) ([]hutch.Exec, string, error) {
	if _, err := c.load(ctx, q.Project, q.Sandbox); err != nil {
		return nil, "", err
	}
	if err := c.execs.settleAll(ctx, q.Sandbox); err != nil {
		return nil, "", err
	}
	l, next, err := c.store.ExecsOf(ctx, store.ExecFilter{Sandbox: q.Sandbox, Running: q.Running, Brief: true}, store.Page{Cursor: q.Cursor, Limit: q.Limit})
	if err != nil {
		return nil, "", fmt.Errorf("list commands of %s: %w", q.Sandbox, err)
	}
	return l, next, nil
}

// FollowExec hands what a command has written and writes to sink, and returns the command
// as it is then. Of a command whose sandbox has ended it hands out what was recorded.
func (c *Control) FollowExec(ctx context.Context, p hutch.ProjectID, sid hutch.SandboxID, xid hutch.ExecID, o hutch.FollowOptions, sink func(hutch.OutputEvent) error) (hutch.Exec, error) {
	x, err := c.execOf(ctx, p, sid, xid)
	if err != nil {
		return x, err
	}
	if x.Result != nil && (o.Budgeted || replayable(*x.Result)) {
		return x, replay(*x.Result, settled(*x.Result, o), sink)
	}
	sb, err := c.load(ctx, p, sid)
	if err != nil {
		return x, err
	}
	if sb.State != hutch.StateRunning { // of the guest nothing can be had
		if x, err = c.execOf(ctx, p, sid, xid); err == nil && x.Result != nil {
			return x, replay(*x.Result, settled(*x.Result, o), sink)
		}
		if err == nil && sb.State == hutch.StateDead {
			return x, goneError(sb)
		}
		if err == nil {
			err = hutch.Errorf(hutch.CodeInvalidState, "sandbox %s is %s: resume it first", sid, sb.State)
		}
		return x, err
	}
	seen := position{stdout: o.Stdout, stderr: o.Stderr}
	if o.Live {
		seen = position{} // nothing, until the first byte tells where it begins
	}
	res, err := c.nodes.FollowExec(ctx, sid, sb.Epoch, xid, o, func(ev hutch.OutputEvent) error {
		seen.note(ev)
		return sink(ev)
	})
	switch {
	case errors.Is(err, hutch.ErrSandboxGone), errors.Is(err, hutch.ErrNotFound):
		// The guest is gone or has forgotten: what follows is in the record, or comes there.
		if x, err = c.WaitExec(ctx, p, sid, xid); err != nil {
			return x, err
		}
		return x, replay(*x.Result, seen.onward(settled(*x.Result, o)), sink)
	case err != nil:
		return x, err
	case res == nil: // NoWait, and it still runs
		return x, nil
	}
	if x.Result != nil {
		return x, nil
	}
	return c.WaitExec(ctx, p, sid, xid) // the record is more than what the guest says
}

// WriteStdin gives a command a part of its stdin and returns how much it has in all.
func (c *Control) WriteStdin(ctx context.Context, p hutch.ProjectID, sid hutch.SandboxID, xid hutch.ExecID, chunk hutch.StdinChunk) (int64, error) {
	if _, err := c.execOf(ctx, p, sid, xid); err != nil {
		return 0, err
	}
	sb, err := c.running(ctx, p, sid)
	if err != nil {
		return 0, err
	}
	n, err := c.nodes.WriteStdin(ctx, sid, sb.Epoch, xid, chunk)
	c.activity.touch(sid)
	return n, c.explainGone(ctx, p, sid, err)
}

// CancelExec ends a command with everything it started, and returns it once nothing of it
// runs. Cancelling one that has ended kills what it left running.
func (c *Control) CancelExec(ctx context.Context, p hutch.ProjectID, sid hutch.SandboxID, xid hutch.ExecID, grace *time.Duration) (x hutch.Exec, err error) {
	defer func() { c.metrics.Operation("cancel", err) }()
	g := time.Duration(-1)
	if grace != nil {
		if g = *grace; g < 0 || g > hutch.MaxGrace {
			return x, hutch.FieldErrorf("grace_seconds", "must be from 0 to %d", int(hutch.MaxGrace/time.Second))
		}
	}
	if x, err = c.execOf(ctx, p, sid, xid); err != nil {
		return x, err
	}
	sb, err := c.load(ctx, p, sid)
	if err != nil {
		return x, err
	}
	if sb.State == hutch.StateDead {
		return c.WaitExec(ctx, p, sid, xid)
	}
	if sb, err = c.running(ctx, p, sid); err != nil {
		return x, err
	}
	ctx, cancel := finish(ctx, finishTimeout+hutch.MaxGrace)
	defer cancel()
	if g < 0 && x.Spec.Grace > 0 {
		g = x.Spec.Grace // what it asked for itself: so the node knows how long that may take
	}
	res, err := c.nodes.StopExec(ctx, sid, sb.Epoch, xid, g)
	if x.Result != nil && res != nil { // it had ended: what was killed is what it had left running
		done := *x.Result
		done.Killed, done.Escalated = res.Killed, res.Escalated
		x.Result = &done
		return x, err
	}
	// Not found: ended, recorded and forgotten by the guest, with nothing left of it.
	if err != nil && !errors.Is(err, hutch.ErrSandboxGone) && !errors.Is(err, hutch.ErrNotFound) {
		return x, err
	}
	return c.WaitExec(ctx, p, sid, xid)
}

// SignalExec sends a signal to a command.
func (c *Control) SignalExec(ctx context.Context, p hutch.ProjectID, sid hutch.SandboxID, xid hutch.ExecID, signal string, tree bool) error {
	if _, err := c.execOf(ctx, p, sid, xid); err != nil {
		return err
	}
	sb, err := c.running(ctx, p, sid)
	if err != nil {
		return err
	}
	return c.explainGone(ctx, p, sid, c.nodes.SignalExec(ctx, sid, sb.Epoch, xid, signal, tree))
}
