package node

import (
	"context"
	"errors"
	"fmt"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/x/failpoint"
)

// PauseSandbox freezes a sandbox in memory.
func (n *Node) PauseSandbox(ctx context.Context, id hutch.SandboxID, e hutch.Epoch) error {
	b, err := n.box(id, e)
	if err != nil {
		return err
	}
	was := b.isPaused()
	b.setPaused(true) // first, so that no call is begun that the frozen guest can't answer
	if err := b.sb.Pause(ctx); err != nil {
		b.setPaused(was)
		return fmt.Errorf("pause %s: %w", id, err)
	}
	n.tellEpoch(ctx, b)
	return nil
}

// ResumeSandbox lets a paused sandbox go on, and puts its guest's clock right before
// it returns. If the guest does not answer the sandbox is paused again. Of one that runs
// it finds out whether the guest answers.
func (n *Node) ResumeSandbox(ctx context.Context, id hutch.SandboxID, e hutch.Epoch) error {
	b, err := n.box(id, e)
	if err != nil {
		return err
	}
	if err := b.sb.Resume(ctx); err != nil {
		return fmt.Errorf("resume %s: %w", id, err)
	}
	was := b.isPaused()
	b.setPaused(false)
	err = n.call(ctx, b.sayHello)
	if err != nil {
		if was && b.sb.Pause(ctx) == nil {
			b.setPaused(true)
		}
		return b.whyGone(err)
	}
	n.tellEpoch(ctx, b)
	// Of a sandbox that was adopted while paused the commands are not known yet.
	n.wg.Go(func() { n.adoptExecs(b) })
	return nil
}

// tellEpoch passes a new epoch on to the keeper. It needs it only to refuse older ones,
// and a keeper that has just died is given it when it is filled again: no act on a
// sandbox fails for it.
func (n *Node) tellEpoch(ctx context.Context, b *box) {
	if err := n.keeper.SetDeadline(ctx, b.id, b.currentEpoch(), b.currentDeadline()); err != nil {
		n.log.Warn("the keeper was not told of a new epoch", "sandbox", b.id, "op", "epoch", "error", err)
	}
}

// KillSandbox ends a sandbox, one that is being started too, and returns once nothing of
// it is left on this host and the ends of its commands are reported. One that is not here
// is hutch.ErrSandboxGone.
func (n *Node) KillSandbox(ctx context.Context, id hutch.SandboxID, e hutch.Epoch) error {
	if err := n.abortStart(ctx, id, e); err != nil {
		return err
	}
	b := n.find(id)
	if b == nil {
		return hutch.Errorf(hutch.CodeSandboxGone, "sandbox %s is not running here", id)
	}
	if err := b.fence(e); err != nil {
		return err
	}
	b.beginEnding(hutch.EndKilled, "")
	if err := b.sb.Kill(ctx); err != nil {
		return fmt.Errorf("kill %s: %w", id, err)
	}
	select {
	case <-b.done:
	case <-n.work.Done(): // nobody watches any more: the keeper has a note for the next node
		return context.Cause(n.work)
	case <-ctx.Done():
		return fmt.Errorf("kill %s: %w", id, context.Cause(ctx))
	}
	if b.isUntold() {
		return context.Cause(n.work)
	}
	return nil
}

// SetDeadline changes when the sandbox is ended, here and in the keeper.
func (n *Node) SetDeadline(ctx context.Context, id hutch.SandboxID, e hutch.Epoch, t time.Time) error {
	b, err := n.box(id, e)
	if err != nil {
		return err
	}
	err = n.keeper.SetDeadline(ctx, id, e, t)
	if errors.Is(err, hutch.ErrNotFound) { // a new keeper, which has not been given it yet
		b.setDeadline(t) // first: who gives it what there is meanwhile looks whether that has changed
		err = n.keeper.Put(ctx, id, e, b.sb.Handles(), t)
	}
	if err != nil {
		return fmt.Errorf("set deadline of %s: %w", id, err)
	}
	failpoint.At(failpoint.DeadlineKept)
	b.setDeadline(t)
	return nil
}
