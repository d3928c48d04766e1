package node

import (
	"context"
	"fmt"

	"hutch.dev/hutch"
)

// PauseSandbox freezes a sandbox in memory.
func (n *Node) PauseSandbox(ctx context.Context, id hutch.SandboxID, e hutch.Epoch) error {
	b, err := n.box(id, e)
	if err != nil {
		return err
	}
	was := b.isPaused()
	b.setPaused(true) // first, so that no call is begun that the frozen guest can't answer
	// Before it stands still: the keeper must not take it for idle if this process dies now.
	n.tellEpoch(ctx, b)
	if err := b.sb.Pause(ctx); err != nil {
		b.setPaused(was)
		n.tellEpoch(ctx, b)
		return fmt.Errorf("pause %s: %w", id, err)
	}
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
