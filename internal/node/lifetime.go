package node

import (
	"context"
	"errors"
	"fmt"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/x/failpoint"
)

// SetDeadline changes when the sandbox is ended, here and in the keeper.
func (n *Node) SetDeadline(ctx context.Context, id hutch.SandboxID, e hutch.Epoch, t time.Time) error {
	b, err := n.box(id, e)
	if err != nil {
		return err
	}
	b.telling.Lock()
	defer b.telling.Unlock()
	l := b.lifetime()
	l.ExpiresAt = t
	err = n.keeper.SetLifetime(ctx, id, e, l)
	if errors.Is(err, hutch.ErrNotFound) { // a new keeper, which has not been given it yet
		err = n.keeper.Put(ctx, id, e, b.sb.Handles(), l)
	}
	if err != nil {
		return fmt.Errorf("set deadline of %s: %w", id, err)
	}
	failpoint.At(failpoint.DeadlineKept)
	b.setDeadline(t)
	return nil
}

// Used says when a sandbox was last used, or when at the latest that ends which goes on in it
// now. What is said last holds. When it returns nil the keeper knows too.
func (n *Node) Used(ctx context.Context, id hutch.SandboxID, at time.Time) error {
	b := n.find(id)
	if b == nil {
		return hutch.Errorf(hutch.CodeSandboxGone, "sandbox %s is not running here", id)
	}
	b.setUsed(at)
	if err := n.tellLifetime(ctx, b); err != nil {
		return fmt.Errorf("note the use of %s: %w", id, err)
	}
	return nil
}

// LastUse is what Used was last told, also by an earlier process; zero if the sandbox is not here.
func (n *Node) LastUse(id hutch.SandboxID) time.Time {
	b := n.find(id)
	if b == nil {
		return time.Time{}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.used
}

// keep gives the keeper a sandbox's handles and its lifetime.
func (n *Node) keep(ctx context.Context, b *box) error {
	b.telling.Lock()
	defer b.telling.Unlock()
	return n.keeper.Put(ctx, b.id, b.currentEpoch(), b.sb.Handles(), b.lifetime())
}

// tellLifetime passes a sandbox's epoch and lifetime on to the keeper.
func (n *Node) tellLifetime(ctx context.Context, b *box) error {
	b.telling.Lock()
	defer b.telling.Unlock()
	return n.keeper.SetLifetime(ctx, b.id, b.currentEpoch(), b.lifetime())
}

// tellEpoch is tellLifetime for an act that does not fail for it: a keeper that has just died is
// given both when it is filled again.
func (n *Node) tellEpoch(ctx context.Context, b *box) {
	if err := n.tellLifetime(ctx, b); err != nil {
		n.log.Warn("the keeper was not told of a new epoch", "sandbox", b.id, "op", "epoch", "error", err)
	}
}

func (n *Node) endExpired(now time.Time) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, b := range n.boxes {
		if b.expired(now) {
			n.wg.Go(func() { n.end(b, hutch.EndExpired, "its time to live was over") })
		}
	}
}

// endIdle ends what was not used for its idle timeout, where nobody else has.
func (n *Node) endIdle(now time.Time) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, b := range n.boxes {
		if b.idled(now) {
			n.wg.Go(func() { n.end(b, hutch.EndIdle, idledDetail) })
		}
	}
}

const idledDetail = "it was not used for its idle timeout"

// expired reports whether the deadline has passed and nobody ends the box yet.
func (b *box) expired(now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.ending == "" && b.expiredLocked(now)
}

func (b *box) expiredLocked(now time.Time) bool {
	return !b.deadline.IsZero() && !now.Before(b.deadline)
}

// idled reports whether the box was not used for too long and nobody ends it yet.
func (b *box) idled(now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.ending == "" && b.idledLocked(now)
}

func (b *box) idledLocked(now time.Time) bool {
	at := b.lifetimeLocked().IdlesAt()
	return !at.IsZero() && !now.Before(at)
}

// lifetime is what others are told of when the box is to be ended.
func (b *box) lifetime() hutch.Lifetime {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.lifetimeLocked()
}

// lifetimeLocked leaves a paused box the time to its deadline: it can't be used.
func (b *box) lifetimeLocked() hutch.Lifetime {
	l := hutch.Lifetime{ExpiresAt: b.deadline, UsedAt: b.used, Idle: b.idle}
	if b.paused {
		l.Idle = 0
	}
	return l
}

func (b *box) setDeadline(t time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.deadline = wall(t)
}

func (b *box) setUsed(t time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.used = t
}
