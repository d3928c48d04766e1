package control

import (
	"context"
	"errors"
	"maps"
	"time"

	"hutch.dev/hutch"
)

// guestTries is how often a sandbox whose epoch changes between the look at its record and
// the call of its node is looked at anew.
const guestTries = 5

// Guest returns the inside of a running sandbox; a paused one is hutch.ErrInvalidState. It is
// good until the sandbox is paused or ended. The sandbox counts as active until done is
// called, which may be called more than once and does nothing on an error.
func (c *Control) Guest(ctx context.Context, p hutch.ProjectID, id hutch.SandboxID) (g hutch.Guest, done func(), err error) {
	for range guestTries {
		var sb hutch.Sandbox
		if sb, err = c.running(ctx, p, id); err != nil {
			break
		}
		if g, err = c.nodes.Guest(ctx, id, sb.Epoch); err == nil {
			return g, c.activity.begin(id), nil
		}
		if !errors.Is(err, hutch.ErrStale) {
			break
		}
	}
	return nil, func() {}, c.explainGone(ctx, p, id, err)
}

// explainGone gives the error of a call that a node refused because the sandbox is gone
// the reason that is on record, if it is by now.
func (c *Control) explainGone(ctx context.Context, p hutch.ProjectID, id hutch.SandboxID, err error) error {
	if !errors.Is(err, hutch.ErrSandboxGone) {
		return err
	}
	sb, lerr := c.load(ctx, p, id)
	switch {
	case lerr != nil:
	case sb.State == hutch.StateDead:
		return goneError(sb)
	case sb.Transition == hutch.Killing && !saysWhy(err):
		sb.EndReason, sb.EndDetail = announced(sb)
		return goneError(sb)
	}
	return err
}

// saysWhy reports whether an error of a sandbox that has ended says why it has.
func saysWhy(err error) bool {
	he, ok := errors.AsType[*hutch.Error](err)
	return ok && he.Reason != ""
}

// ResizeExec changes the size of a command's terminal.
func (c *Control) ResizeExec(ctx context.Context, p hutch.ProjectID, sid hutch.SandboxID, xid hutch.ExecID, size hutch.TerminalSize) error {
	x, err := c.execOf(ctx, p, sid, xid)
	if err != nil {
		return err
	}
	if err := checkTerminal(size); err != nil {
		return err
	}
	if x.Spec.Terminal == nil {
		return hutch.Errorf(hutch.CodeInvalidState, "command %s has no terminal", xid)
	}
	sb, err := c.running(ctx, p, sid)
	if err != nil {
		return err
	}
	return c.explainGone(ctx, p, sid, c.nodes.ResizeExec(ctx, sid, sb.Epoch, xid, size))
}

// UpdateAccess has fn change who reaches a sandbox, and stores it. fn may run more than
// once.
func (c *Control) UpdateAccess(ctx context.Context, p hutch.ProjectID, id hutch.SandboxID, fn func(*hutch.Access) error) (hutch.Sandbox, error) {
	return c.edit(ctx, p, id, "sandbox.access_changed", func(sb *hutch.Sandbox) error {
		sb.Access.Ports = maps.Clone(sb.Access.Ports)
		if err := fn(&sb.Access); err != nil {
			return err
		}
		return checkAccess(sb.Access)
	})
}

// UpdateMetadata sets pairs of a sandbox's metadata; others stay.
func (c *Control) UpdateMetadata(ctx context.Context, p hutch.ProjectID, id hutch.SandboxID, set map[string]string) (hutch.Sandbox, error) {
	return c.edit(ctx, p, id, "sandbox.metadata_changed", func(sb *hutch.Sandbox) error {
		all := maps.Clone(sb.Metadata)
		if all == nil {
			all = map[string]string{}
		}
		maps.Copy(all, set)
		sb.Metadata = all
		return checkPairs("metadata", all, maxMetadata, false)
	})
}

// edit changes the record of a living sandbox without touching its run.
func (c *Control) edit(ctx context.Context, p hutch.ProjectID, id hutch.SandboxID, what string, fn func(*hutch.Sandbox) error) (hutch.Sandbox, error) {
	sb, err := c.alive(ctx, p, id)
	if err != nil {
		return sb, err
	}
	out, err := c.mutate(ctx, sb, func(s *hutch.Sandbox) error {
		if s.State == hutch.StateDead {
			return goneError(*s)
		}
		return fn(s)
	}, event(sb, what))
	if err != nil {
		return hutch.Sandbox{}, err
	}
	c.activity.touch(id)
	return out, nil
}

// ExtendTo sets the sandbox's end to an instant in the future, no further away than the
// longest time to live. With onlyLater it never comes sooner than it was.
func (c *Control) ExtendTo(ctx context.Context, p hutch.ProjectID, id hutch.SandboxID, t time.Time, onlyLater bool) (hutch.Sandbox, error) {
	now := time.Now()
	if !t.After(now) || t.Sub(now) > c.cfg.MaxTTL {
		return hutch.Sandbox{}, hutch.FieldErrorf("expires_at", "must be in the future, and at most %d seconds away", int(c.cfg.MaxTTL/time.Second))
	}
	return c.extend(ctx, p, id, t.Sub(now), t, onlyLater)
}
