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

// load returns a sandbox of a project, dead ones too. One of another project is not found.
func (c *Control) load(ctx context.Context, p hutch.ProjectID, id hutch.SandboxID) (hutch.Sandbox, error) {
	sb, err := c.loadAny(ctx, id)
	if err == nil && sb.Project != p {
		return hutch.Sandbox{}, noSandbox(id)
	}
	return sb, err
}

// loadAny is load for callers that no project is known of.
func (c *Control) loadAny(ctx context.Context, id hutch.SandboxID) (hutch.Sandbox, error) {
	sb, err := c.store.Sandbox(ctx, id)
	if errors.Is(err, hutch.ErrNotFound) {
		return hutch.Sandbox{}, noSandbox(id)
	}
	if err != nil {
		return hutch.Sandbox{}, fmt.Errorf("read sandbox %s: %w", id, err)
	}
	return sb, nil
}

func noSandbox(id hutch.SandboxID) error {
	return hutch.Errorf(hutch.CodeNotFound, "there is no sandbox %q", id)
}

// alive is load for calls that need a living sandbox.
func (c *Control) alive(ctx context.Context, p hutch.ProjectID, id hutch.SandboxID) (hutch.Sandbox, error) {
	sb, err := c.load(ctx, p, id)
	if err != nil {
		return sb, err
	}
	if sb.State == hutch.StateDead {
		return sb, goneError(sb)
	}
	return sb, nil
}

func goneError(sb hutch.Sandbox) error {
	msg := fmt.Sprintf("sandbox %s has ended (%s)", sb.ID, sb.EndReason)
	if sb.EndDetail != "" {
		msg += ": " + sb.EndDetail
	}
	return &hutch.Error{Code: hutch.CodeSandboxGone, Reason: string(sb.EndReason), Message: msg}
}

// Sandbox returns a living sandbox; a dead one is hutch.ErrSandboxGone with the reason.
func (c *Control) Sandbox(ctx context.Context, p hutch.ProjectID, id hutch.SandboxID) (hutch.Sandbox, error) {
	sb, err := c.alive(ctx, p, id)
	sb.ActiveAt = later(sb.ActiveAt, c.activity.lastUse(id))
	return sb, err
}

// SandboxByID is Sandbox for who shows a token of the sandbox, not a key of its project: what
// the token is good for is for the caller to find out.
func (c *Control) SandboxByID(ctx context.Context, id hutch.SandboxID) (hutch.Sandbox, error) {
	sb, err := c.loadAny(ctx, id)
	if err == nil && sb.State == hutch.StateDead {
		err = goneError(sb)
	}
	return sb, err
}

// ListSandboxes returns one page and the cursor of the next. Without states in the query
// it lists the living.
func (c *Control) ListSandboxes(ctx context.Context, q hutch.SandboxQuery) ([]hutch.Sandbox, string, error) {
	if len(q.States) == 0 {
		q.States = []hutch.State{hutch.StateNew, hutch.StateRunning, hutch.StatePaused}
	}
	f := store.SandboxFilter{Project: q.Project, States: q.States, Template: q.Template, Metadata: q.Metadata, Since: q.Since, Oldest: q.Oldest}
	l, next, err := c.store.Sandboxes(ctx, f, store.Page{Cursor: q.Cursor, Limit: q.Limit})
	if err != nil {
		return nil, "", fmt.Errorf("list sandboxes: %w", err)
	}
	for i := range l {
		l[i].ActiveAt = later(l[i].ActiveAt, c.activity.lastUse(l[i].ID))
	}
	return l, next, nil
}

// ExtendSandbox sets the sandbox's end to ttl from now; 0 means the longest allowed. It
// may come sooner than before.
func (c *Control) ExtendSandbox(ctx context.Context, p hutch.ProjectID, id hutch.SandboxID, ttl time.Duration) (hutch.Sandbox, error) {
	ttl, err := c.ttl(&ttl)
	if err != nil {
		return hutch.Sandbox{}, err
	}
	return c.extend(ctx, p, id, ttl, time.Now().Add(ttl), false)
}

// extend moves a sandbox's end to at, which is ttl from now.
func (c *Control) extend(ctx context.Context, p hutch.ProjectID, id hutch.SandboxID, ttl time.Duration, at time.Time, onlyLater bool) (hutch.Sandbox, error) {
	sb, err := c.alive(ctx, p, id)
	if err != nil {
		return sb, err
	}
	if last := c.clip(sb.CreatedAt, at); last.Before(at) {
		at, ttl = last, max(0, ttl-at.Sub(last))
	}
	ctx, cancel := finish(ctx, finishTimeout)
	defer cancel()
	var already hutch.Sandbox
	// The row first: a node that has a later end than the row would keep a sandbox that
	// the control plane ends; the other way round the node would end it too early.
	out, err := c.mutate(ctx, sb, func(s *hutch.Sandbox) error {
		switch s.State {
		case hutch.StateDead:
			return goneError(*s)
		case hutch.StateNew:
			return hutch.Errorf(hutch.CodeConflict, "sandbox %s is starting: try again when that has ended", id)
		default:
		}
		if onlyLater && !at.After(s.ExpiresAt) {
			already = *s
			return errAlready
		}
		s.TTL, s.ExpiresAt = ttl, at
		return nil
	}, event(sb, "sandbox.extended", "expires_at", at.UTC().Format(time.RFC3339)))
	if errors.Is(err, errAlready) {
		c.activity.touch(id)
		return already, nil
	}
	if err != nil {
		return out, err
	}
	failpoint.At(failpoint.ExtendRecorded)
	c.activity.touch(id)
	return c.passDeadline(ctx, out)
}

// passDeadline gives a node the deadline on record. Of two that come at once the node may
// hear in the wrong order: who is last makes it right.
func (c *Control) passDeadline(ctx context.Context, sb hutch.Sandbox) (hutch.Sandbox, error) {
	for {
		err := c.nodes.SetDeadline(ctx, sb.ID, sb.Epoch, sb.ExpiresAt)
		if err != nil && !errors.Is(err, hutch.ErrStale) {
			return sb, err
		}
		now, rerr := c.alive(ctx, sb.Project, sb.ID)
		if rerr != nil || (err == nil && now.ExpiresAt.Equal(sb.ExpiresAt)) {
			return sb, rerr
		}
		sb = now
	}
}

// PauseSandbox freezes a sandbox in memory. Pausing one that is paused changes nothing.
func (c *Control) PauseSandbox(ctx context.Context, p hutch.ProjectID, id hutch.SandboxID) (hutch.Sandbox, error) {
	return c.change(ctx, p, id, hutch.Pausing, hutch.StatePaused)
}

// ResumeSandbox lets a paused sandbox go on. Resuming one that runs changes nothing.
func (c *Control) ResumeSandbox(ctx context.Context, p hutch.ProjectID, id hutch.SandboxID) (hutch.Sandbox, error) {
	return c.change(ctx, p, id, hutch.Resuming, hutch.StateRunning)
}

// errAlready says that a sandbox is what it was asked to become.
var errAlready = errors.New("it is that already")

// errUnderWay says that a sandbox is becoming what it was asked to become.
var errUnderWay = errors.New("it is becoming that")

// change carries a sandbox through transition t, to which state to is the end. If another
// call is at that already, what comes of it is this call's answer too.
func (c *Control) change(ctx context.Context, p hutch.ProjectID, id hutch.SandboxID, t hutch.Transition, to hutch.State) (sb hutch.Sandbox, err error) {
	defer func() { c.metrics.Operation(string(t), err) }()
	if sb, err = c.alive(ctx, p, id); err != nil {
		return sb, err
	}
	return c.turns.join(ctx, turnOf{id, t}, func() (hutch.Sandbox, error) { return c.makeTurn(ctx, sb, t, to) })
}

// makeTurn is change for the one call that makes it.
func (c *Control) makeTurn(ctx context.Context, sb hutch.Sandbox, t hutch.Transition, to hutch.State) (_ hutch.Sandbox, err error) {
	id := sb.ID
	ctx, cancel := finish(ctx, finishTimeout)
	defer cancel()
	var already hutch.Sandbox
	begin := func(s *hutch.Sandbox) error {
		switch {
		case s.State == to && s.Transition == "":
			already = *s
			return errAlready
		case s.Transition == t:
			return errUnderWay
		case s.Transition != "" && s.State != hutch.StateDead:
			return hutch.Errorf(hutch.CodeConflict, "sandbox %s is %s: try again when that has ended", id, s.Transition)
		}
		return s.Begin(t)
	}
	for {
		var out hutch.Sandbox
		if out, err = c.mutate(ctx, sb, begin); !errors.Is(err, errUnderWay) {
			sb = out
			break
		}
		if sb, err = c.awaitTurn(ctx, sb.Project, id, t); err != nil {
			return sb, err
		}
	}
	if errors.Is(err, errAlready) {
		c.activity.touch(id)
		return already, nil
	}
	if err != nil {
		return sb, err
	}
	failpoint.At(failpoint.TurnBegun)
	if err := c.act(ctx, sb, t); err != nil {
		c.abandon(ctx, sb, t)
		return sb, c.explainGone(ctx, sb.Project, id, err)
	}
	out, err := c.finished(ctx, sb, t)
	if err == nil {
		failpoint.At(failpoint.TurnFinished)
		c.log.Info(string(to), "sandbox", id, "epoch", sb.Epoch, "op", string(t))
	}
	return out, err
}

// finished records that transition t of sb has been made. One that was overtaken by the
// sandbox's end is hutch.ErrSandboxGone.
func (c *Control) finished(ctx context.Context, sb hutch.Sandbox, t hutch.Transition) (hutch.Sandbox, error) {
	failpoint.At(failpoint.TurnMade)
	to := hutch.StateRunning
	if t == hutch.Pausing {
		to = hutch.StatePaused
	}
	out, err := c.update(ctx, sb.ID, sb.Epoch, func(s *hutch.Sandbox) error { return s.Finish(t, sb.Epoch) },
		event(sb, "sandbox."+string(to)))
	if errors.Is(err, hutch.ErrStale) {
		err = hutch.Errorf(hutch.CodeSandboxGone, "sandbox %s was ended while it was %s", sb.ID, t)
		return out, c.explainGone(ctx, sb.Project, sb.ID, err)
	}
	if err != nil {
		c.owedTurns.add(sb.ID, sb.Epoch)
	}
	return out, err
}

// abandon records that transition t of sb failed and left it as it was. If that can't be
// recorded a sweep tries the transition again.
func (c *Control) abandon(ctx context.Context, sb hutch.Sandbox, t hutch.Transition) {
	_, err := c.update(ctx, sb.ID, sb.Epoch, func(s *hutch.Sandbox) error { return s.Abandon(t, sb.Epoch) },
		event(sb, "sandbox."+string(t)+"_failed"))
	if err != nil && !errors.Is(err, hutch.ErrStale) {
		c.log.Error("record", "sandbox", sb.ID, "op", string(t), "error", err)
		c.owedTurns.add(sb.ID, sb.Epoch)
	}
}

// finishTransition makes a pause or a resume that is on record as under way, again or at
// last: the act is harmless when it has been done already.
func (c *Control) finishTransition(ctx context.Context, sb hutch.Sandbox) error {
	t := sb.Transition
	if err := c.act(ctx, sb, t); err != nil {
		c.abandon(ctx, sb, t)
		return err
	}
	_, err := c.finished(ctx, sb, t)
	return err
}

func (c *Control) act(ctx context.Context, sb hutch.Sandbox, t hutch.Transition) error {
	c.activity.touch(sb.ID) // before it is on record as running again, when no sweep may find it idle
	switch t {
	case hutch.Pausing:
		if err := c.nodes.PauseSandbox(ctx, sb.ID, sb.Epoch); err != nil {
			return err
		}
		c.turn(ctx, sb, hutch.StatePaused)
		return nil
	case hutch.Resuming:
		c.turn(ctx, sb, hutch.StateRunning)
		err := c.nodes.ResumeSandbox(ctx, sb.ID, sb.Epoch)
		if err != nil {
			c.turn(ctx, sb, sb.State)
		}
		return err
	default:
		return hutch.Errorf(hutch.CodeInternal, "no act for %s", t)
	}
}

// KillSandbox ends a sandbox for good and returns once no process of it is left. Killing
// one that a kill is under way for waits for that; a dead one is hutch.ErrSandboxGone.
func (c *Control) KillSandbox(ctx context.Context, p hutch.ProjectID, id hutch.SandboxID) (sb hutch.Sandbox, err error) {
	defer func() { c.metrics.Operation("kill", err) }()
	if sb, err = c.alive(ctx, p, id); err != nil {
		return sb, err
	}
	ctx, cancel := finish(ctx, finishTimeout)
	defer cancel()
	found := sb
	sb, err = c.mutate(ctx, sb, func(s *hutch.Sandbox) error { return s.Begin(hutch.Killing) })
	switch {
	case errors.Is(err, hutch.ErrConflict):
		return c.awaitDead(ctx, p, id)
	case errors.Is(err, hutch.ErrSandboxGone):
		return sb, err
	case err != nil:
		return c.killUnrecorded(ctx, found, err)
	}
	failpoint.At(failpoint.KillBegun)
	if err := c.account(ctx, sb); err != nil {
		c.log.Error("charge", "sandbox", id, "op", "usage", "error", err)
	}
	c.measure(ctx, look{id: id, epoch: sb.Epoch})
	if err := c.nodes.KillSandbox(ctx, id, sb.Epoch); err != nil && !errors.Is(err, hutch.ErrSandboxGone) {
		return sb, err // Killing stays in the record: the sweep carries it on
	}
	failpoint.At(failpoint.KillMade)
	return c.ended(ctx, id, hutch.EndKilled, "")
}

// killUnrecorded ends a sandbox whose record refuses that it is being ended: with a full disk
// that must go on, as it is what makes room. Until its end is on record, which may be at once,
// the caller is told that it is not.
func (c *Control) killUnrecorded(ctx context.Context, sb hutch.Sandbox, err error) (hutch.Sandbox, error) {
	c.log.Warn("a sandbox is ended before that is on record", "sandbox", sb.ID, "op", "kill", "error", err)
	if release, _ := c.swept.take(sb.ID); release != nil { // so that nobody takes it for one that was lost
		defer release()
	}
	if out := c.makeEnd(ctx, sb.ID, owedEnd{sb.Epoch, hutch.EndKilled, ""}); out.State == hutch.StateDead {
		return out, nil
	}
	return sb, err
}

// awaitDead waits for a kill that another caller began.
func (c *Control) awaitDead(ctx context.Context, p hutch.ProjectID, id hutch.SandboxID) (hutch.Sandbox, error) {
	for {
		sb, err := c.load(ctx, p, id)
		if err != nil || sb.State == hutch.StateDead {
			return sb, err
		}
		select {
		case <-ctx.Done():
			return sb, hutch.Wrap(hutch.CodeUnavailable, context.Cause(ctx), "sandbox %s is still being ended: look again later", id)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// awaitTurn waits until transition t of a sandbox, which a sweep carries on, is no longer under way.
func (c *Control) awaitTurn(ctx context.Context, p hutch.ProjectID, id hutch.SandboxID, t hutch.Transition) (hutch.Sandbox, error) {
	for {
		sb, err := c.alive(ctx, p, id)
		if err != nil || sb.Transition != t {
			return sb, err
		}
		select {
		case <-ctx.Done():
			return sb, hutch.Wrap(hutch.CodeUnavailable, context.Cause(ctx), "sandbox %s is still %s: look again later", id, t)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// mutate is update, again if somebody else changed the record since it was read: whether
// fn is possible now is for the newest record to say.
func (c *Control) mutate(ctx context.Context, sb hutch.Sandbox, fn func(*hutch.Sandbox) error, ev ...hutch.Event) (hutch.Sandbox, error) {
	for {
		out, err := c.update(ctx, sb.ID, sb.Epoch, fn, ev...)
		if !errors.Is(err, hutch.ErrStale) {
			return out, err
		}
		if sb, err = c.store.Sandbox(ctx, sb.ID); err != nil {
			return sb, fmt.Errorf("read sandbox %s: %w", sb.ID, err)
		}
	}
}

// update is store.UpdateSandbox, after which watchers are told of the events.
func (c *Control) update(ctx context.Context, id hutch.SandboxID, e hutch.Epoch, fn func(*hutch.Sandbox) error, ev ...hutch.Event) (hutch.Sandbox, error) {
	out, err := c.store.UpdateSandbox(ctx, id, e, fn, ev...)
	if err == nil && len(ev) > 0 {
		c.watchers.wake()
	}
	return out, err
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}
