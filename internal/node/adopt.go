package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/runtime"
	"hutch.dev/hutch/internal/x/failpoint"
)

// Adopt takes over a sandbox that an earlier process of this node ran. It returns
// hutch.ErrSandboxGone, after removing what was left of its machine, if it is not there any
// more; why is then what the keeper saw, which Sweep makes it forget. One that the node has in
// hand is hutch.ErrConflict, and is not touched.
func (n *Node) Adopt(ctx context.Context, rec hutch.Sandbox) (why hutch.SandboxEnd, err error) {
	ctx, c, err := n.reserve(ctx, rec)
	if err != nil {
		return "", err
	}
	defer n.release(c)
	kept, err := n.keeper.Get(ctx, rec.ID)
	switch {
	case errors.Is(err, hutch.ErrNotFound):
		return hutch.EndLost, n.gone(ctx, rec.ID, "its handles are lost")
	case err != nil:
		return n.notTaken(ctx, rec, fmt.Errorf("fetch handles of %s: %w", rec.ID, err))
	}
	if why, detail := n.seenEnd(ctx, rec, kept); why != "" {
		closeHandles(kept.Handles)
		return why, n.gone(ctx, rec.ID, detail)
	}
	spec, err := n.spec(rec)
	if err != nil {
		// Its image is mounted already: that its name is not known any more costs it nothing.
		n.log.Warn("the root image of a running sandbox is not found", "sandbox", rec.ID, "op", "adopt", "error", err)
		spec = n.specOf(rec, "")
	}
	failpoint.At(failpoint.AdoptFetched)
	// The link first: if that fails nothing has been taken over yet, and it can be tried again.
	if err := n.attachLink(ctx, rec, kept.Handles); err != nil {
		closeHandles(kept.Handles)
		return n.notTaken(ctx, rec, err)
	}
	failpoint.At(failpoint.AdoptLinked)
	sb, err := n.rt.Adopt(ctx, spec, kept.Handles)
	if err != nil {
		return n.notTaken(ctx, rec, fmt.Errorf("adopt %s: %w", rec.ID, err))
	}
	failpoint.At(failpoint.AdoptMade)
	b := newBox(n, rec, sb, nil)
	if !kept.UsedAt.IsZero() {
		b.setUsed(kept.UsedAt)
	}
	n.stats(b) // what the kernel has ended so far is no coming command's end
	// The record may have a later deadline and epoch than the process before came to tell.
	n.tellEpoch(ctx, b)
	failpoint.At(failpoint.AdoptTold)
	n.hold(ctx, b, c)
	n.wg.Go(func() { n.adoptExecs(b) })
	return "", nil
}

// seenEnd says how a sandbox ended that the keeper saw end; empty for one that lives, for all the
// keeper knows.
func (n *Node) seenEnd(ctx context.Context, rec hutch.Sandbox, kept Kept) (why hutch.SandboxEnd, detail string) {
	const due = "it was ended at its deadline"
	at := kept.Killed
	switch {
	case !kept.Killed.IsZero() && kept.Why == hutch.EndIdle:
		why, detail = hutch.EndIdle, idledDetail
	case !kept.Killed.IsZero():
		why, detail = hutch.EndExpired, due
	case kept.Exited.IsZero():
		return "", ""
	default:
		at = kept.Exited
		idle := rec.State == hutch.StateRunning && rec.IdleTimeout > 0 && !kept.UsedAt.IsZero() && at.Sub(kept.UsedAt) >= rec.IdleTimeout
		switch {
		// If it was due, the process before ended it, and did not come to record that.
		case !rec.ExpiresAt.IsZero() && !at.Before(rec.ExpiresAt):
			why, detail = hutch.EndExpired, due
		case idle:
			why, detail = hutch.EndIdle, idledDetail
		default:
			why, detail = n.autopsy(ctx, rec, at)
			why, detail = cmp.Or(why, hutch.EndCrashed), cmp.Or(detail, "it exited while no node agent ran")
		}
	}
	n.reports.SandboxUsed(ctx, rec.ID, at, 0)
	return why, detail
}

// attachLink makes the gateway serve the link of a sandbox that is being taken over.
func (n *Node) attachLink(ctx context.Context, rec hutch.Sandbox, h runtime.Handles) error {
	if h.Link == nil {
		return nil // there is no adopting it, as the isolator will say
	}
	if err := n.egress.Attach(ctx, rec.ID, rec.Epoch, h.LinkKind, h.Link); err != nil {
		return fmt.Errorf("attach link of %s: %w", rec.ID, err)
	}
	return nil
}

// notTaken says what a sandbox that could not be taken over is: gone, or, if what failed is
// ours, alive for all that is known.
func (n *Node) notTaken(ctx context.Context, rec hutch.Sandbox, err error) (why hutch.SandboxEnd, _ error) {
	switch {
	case errors.Is(context.Cause(ctx), errAborted):
		return hutch.EndKilled, n.gone(context.WithoutCancel(ctx), rec.ID, "it was ended while it was taken over")
	case errors.Is(err, hutch.ErrSandboxGone):
		n.log.Warn("a sandbox cannot be taken over", "sandbox", rec.ID, "op", "adopt", "error", err)
		why, detail := n.lastEnd(ctx, rec)
		return why, n.gone(ctx, rec.ID, detail)
	}
	return "", err
}

// exitWait is how long one that is not found is given until the keeper has seen it exit.
const exitWait = 2 * time.Second

// lastEnd says how a sandbox ended that the isolator does not find. One that died only just now
// may have no exit yet: its sockets are closed first, and its memory is freed between the two.
func (n *Node) lastEnd(ctx context.Context, rec hutch.Sandbox) (why hutch.SandboxEnd, detail string) {
	if why, detail = n.autopsy(ctx, rec, time.Now()); why != "" {
		return why, detail
	}
	limit := time.NewTimer(exitWait)
	defer limit.Stop()
	look := time.NewTicker(10 * time.Millisecond)
	defer look.Stop()
	for {
		kept, err := n.keeper.Get(ctx, rec.ID)
		if err == nil {
			closeHandles(kept.Handles)
			if why, detail = n.seenEnd(ctx, rec, kept); why != "" {
				return why, detail
			}
		}
		select {
		case <-look.C:
			continue
		case <-limit.C:
		case <-ctx.Done():
		}
		return hutch.EndLost, "it was gone when the node agent came back"
	}
}

// autopsy says which limit ended a sandbox that exited while nobody watched it, by what is left of
// it on this host; empty if none did, or nothing tells.
func (n *Node) autopsy(ctx context.Context, rec hutch.Sandbox, at time.Time) (hutch.SandboxEnd, string) {
	c, ok := n.rt.(runtime.Coroner)
	if !ok {
		return "", ""
	}
	exit, last, err := c.Ended(ctx, n.specOf(rec, ""), at)
	if err != nil {
		n.log.Warn("how a sandbox ended is not known", "sandbox", rec.ID, "op", "adopt", "error", err)
		return "", ""
	}
	return limitOf(exit, last, int64(rec.Resources.MemoryMB)<<20)
}

// gone removes what is left of a sandbox's machine and says that it is gone. The keeper's
// note on how it ended stays until Sweep: if this process dies before that is on record, the
// next one still finds it.
func (n *Node) gone(ctx context.Context, id hutch.SandboxID, detail string) error {
	if err := n.rt.Sweep(ctx, id); err != nil {
		return fmt.Errorf("sweep %s: %w", id, err)
	}
	if err := n.egress.Detach(ctx, id); err != nil {
		return fmt.Errorf("detach link of %s: %w", id, err)
	}
	failpoint.At(failpoint.AdoptGone)
	return hutch.Errorf(hutch.CodeSandboxGone, "sandbox %s is gone: %s", id, detail)
}

// Sweep removes whatever is left on this host of a sandbox that the node does not have in
// hand. One that it starts, takes over or runs is hutch.ErrConflict, and is not touched; nor
// can it be started until Sweep returns.
func (n *Node) Sweep(ctx context.Context, id hutch.SandboxID) error {
	ctx, c, err := n.reserve(ctx, hutch.Sandbox{ID: id})
	if err != nil {
		return err
	}
	defer n.release(c)
	if err := n.rt.Sweep(ctx, id); err != nil {
		return fmt.Errorf("sweep %s: %w", id, err)
	}
	return n.forget(ctx, id)
}

// forget makes the gateway and the keeper drop what they hold of a sandbox.
func (n *Node) forget(ctx context.Context, id hutch.SandboxID) error {
	if err := n.egress.Detach(ctx, id); err != nil {
		return fmt.Errorf("detach link of %s: %w", id, err)
	}
	failpoint.At(failpoint.SweepNoLink)
	if err := n.keeper.Delete(ctx, id); err != nil {
		return fmt.Errorf("drop handles of %s: %w", id, err)
	}
	return nil
}

func closeHandles(h runtime.Handles) {
	for _, f := range append(h.Procs, h.Guest, h.Link) {
		if f != nil {
			_ = f.Close()
		}
	}
}
