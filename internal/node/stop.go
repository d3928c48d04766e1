package node

import (
	"context"
	"fmt"
	"time"

	"hutch.dev/hutch"
)

// PauseSandbox freezes a sandbox in memory.
func (n *Node) PauseSandbox(ctx context.Context, id hutch.SandboxID, e hutch.Epoch) error {
	b, err := n.box(id, e)
	if err != nil {
		return err
	}
	if err := b.sb.Pause(ctx); err != nil {
		return fmt.Errorf("pause %s: %w", id, err)
	}
	b.setPaused(true)
	return n.keeper.SetDeadline(ctx, id, e, b.currentDeadline())
}

// ResumeSandbox lets a paused sandbox go on, and puts its guest's clock right before
// it returns.
func (n *Node) ResumeSandbox(ctx context.Context, id hutch.SandboxID, e hutch.Epoch) error {
	b, err := n.box(id, e)
	if err != nil {
		return err
	}
	if err := b.sb.Resume(ctx); err != nil {
		return fmt.Errorf("resume %s: %w", id, err)
	}
	b.setPaused(false)
	if err := n.keeper.SetDeadline(ctx, id, e, b.currentDeadline()); err != nil {
		return err
	}
	err = n.call(ctx, func(ctx context.Context) error {
		_, err := b.sayHello(ctx)
		return err
	})
	if err != nil {
		return b.whyGone(err)
	}
	// Of a sandbox that was adopted while paused the commands are not known yet.
	n.wg.Go(func() { n.adoptExecs(b) })
	return nil
}

// KillSandbox ends a sandbox and returns once nothing of it is left on this host and the
// ends of its commands are reported. One
// that is not here is hutch.ErrSandboxGone.
func (n *Node) KillSandbox(ctx context.Context, id hutch.SandboxID, e hutch.Epoch) error {
	b, err := n.box(id, e)
	if err != nil {
		return err
	}
	b.beginEnding(hutch.EndKilled, "")
	if err := b.sb.Kill(ctx); err != nil {
		return fmt.Errorf("kill %s: %w", id, err)
	}
	select {
	case <-b.done:
		return nil
	case <-n.work.Done():
		return context.Cause(n.work)
	case <-ctx.Done():
		return fmt.Errorf("kill %s: %w", id, context.Cause(ctx))
	}
}

// SetDeadline changes when the sandbox is ended, here and in the keeper.
func (n *Node) SetDeadline(ctx context.Context, id hutch.SandboxID, e hutch.Epoch, t time.Time) error {
	b, err := n.box(id, e)
	if err != nil {
		return err
	}
	if err := n.keeper.SetDeadline(ctx, id, e, t); err != nil {
		return fmt.Errorf("set deadline of %s: %w", id, err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.deadline = t
	return nil
}

func (b *box) setPaused(p bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.paused = p
}

func (b *box) isPaused() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.paused
}

func (b *box) currentDeadline() time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.deadline
}
