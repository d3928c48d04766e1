package control

import (
	"context"
	"errors"
	"fmt"
	"time"

	"hutch.dev/hutch"
)

// Bounds of what an owner's renewal is good for. Less than the shortest would end sandboxes
// for a slow network; an owner who needs more than the longest needs no lease.
const (
	minLease = 10 * time.Second
	maxLease = 24 * time.Hour
)

func checkLease(d time.Duration) error {
	if d != 0 && (d < minLease || d > maxLease) {
		return hutch.FieldErrorf("lease_seconds", "must be from %d to %d, or 0 for a sandbox without an owner", minLease/time.Second, maxLease/time.Second)
	}
	return nil
}

// leaseFrom is when a lease that begins now runs out; zero where there is none.
func leaseFrom(now time.Time, lease time.Duration) time.Time {
	if lease == 0 {
		return time.Time{}
	}
	return now.Add(lease)
}

// lapsed reports whether a sandbox has an owner who has not renewed in time.
func lapsed(sb hutch.Sandbox, now time.Time) bool {
	return sb.Lease > 0 && !now.Before(sb.LeasedTo)
}

// RenewSandbox says that a sandbox's owner lives: it is not ended for want of one until its
// lease from now has passed. It does not count as use. A lease that has run out can not be
// renewed any more, which is hutch.ErrSandboxGone; one that never was is
// hutch.ErrInvalidState.
func (c *Control) RenewSandbox(ctx context.Context, p hutch.ProjectID, id hutch.SandboxID) (sb hutch.Sandbox, err error) {
	defer func() { c.metrics.Operation("renew", err) }()
	if sb, err = c.alive(ctx, p, id); err != nil {
		return sb, err
	}
	ctx, cancel := finish(ctx, finishTimeout)
	defer cancel()
	return c.mutate(ctx, sb, func(s *hutch.Sandbox) error {
		now := time.Now()
		switch {
		case s.State == hutch.StateDead:
			return goneError(*s)
		case s.Lease == 0:
			return hutch.Errorf(hutch.CodeInvalidState, "sandbox %s has no lease to renew: create it with lease_seconds", id)
		case lapsed(*s, now):
			return &hutch.Error{
				Code: hutch.CodeSandboxGone, Reason: string(hutch.EndOwnerGone),
				Message: fmt.Sprintf("the lease of sandbox %s ran out before this renewal: it is being ended", id),
			}
		}
		s.LeasedTo = leaseFrom(now, s.Lease)
		return nil
	})
}

// errRenewed says that an owner was in time after all.
var errRenewed = errors.New("the lease was renewed")

// ownerGone makes sure that a lease has run out and stays so. Renewals and this are changes
// of one record, so they come one after the other: whoever renews later finds that it is too late.
func (c *Control) ownerGone(ctx context.Context, sb hutch.Sandbox) bool {
	_, err := c.mutate(ctx, sb, func(s *hutch.Sandbox) error {
		if s.State == hutch.StateDead || !lapsed(*s, time.Now()) {
			return errRenewed
		}
		return nil
	})
	if err != nil && !errors.Is(err, errRenewed) && ctx.Err() == nil {
		c.log.Error("look at a lease", "sandbox", sb.ID, "op", "reap", "error", err)
	}
	return err == nil
}

// endOwnerless ends a sandbox whose lease has run out, unless it was renewed or an earlier
// sweep is at it.
func (c *Control) endOwnerless(ctx context.Context, sb hutch.Sandbox) {
	if !c.ownerGone(ctx, sb) {
		return
	}
	c.endDue(ctx, sb.ID, owedEnd{sb.Epoch, hutch.EndOwnerGone, "its owner did not renew the lease"})
}

// renewAfterOutage gives every owner a whole lease after a restart: while the server was away
// nobody could renew, and nobody's work is ended for an outage of ours.
func (c *Control) renewAfterOutage(ctx context.Context, sb hutch.Sandbox) error {
	if sb.Lease == 0 {
		return nil
	}
	_, err := c.mutate(ctx, sb, func(s *hutch.Sandbox) error {
		if s.State == hutch.StateDead {
			return errAlready
		}
		s.LeasedTo = leaseFrom(time.Now(), s.Lease)
		return nil
	})
	if err != nil && !errors.Is(err, errAlready) {
		return fmt.Errorf("renew the lease of %s after a restart: %w", sb.ID, err)
	}
	return nil
}
