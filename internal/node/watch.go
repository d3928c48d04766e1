package node

import (
	"context"
	"errors"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/runtime"
)

// deadlineInterval is how often deadlines are compared with the clock. A TTL is given
// in seconds; half of one is as late as a sandbox may end.
const deadlineInterval = 500 * time.Millisecond

// Run holds deadlines until ctx ends. The wall clock is read anew each time, so a step
// of the clock or a suspended host delays an end by no more than one interval.
func (n *Node) Run(ctx context.Context) error {
	t := time.NewTicker(deadlineInterval)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
			n.endExpired(time.Now())
		}
	}
}

func (n *Node) endExpired(now time.Time) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, b := range n.boxes {
		if b != nil && b.expired(now) {
			n.wg.Go(func() { n.end(b, hutch.EndExpired, "its time to live was over") })
		}
	}
}

// expired reports whether the deadline has passed and nobody ends the box yet.
func (b *box) expired(now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.ending == "" && !b.deadline.IsZero() && !now.Before(b.deadline)
}

// end kills the sandbox for a reason of the node's own.
func (n *Node) end(b *box, why hutch.SandboxEnd, detail string) {
	b.beginEnding(why, detail)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(n.work), undoTimeout)
	defer cancel()
	if err := b.sb.Kill(ctx); err != nil {
		n.log.Error("kill", "sandbox", b.id, "op", "end", "reason", string(why), "error", err)
	}
}

// watch follows one sandbox to its end, takes it out of service and reports it.
func (n *Node) watch(b *box) {
	n.adoptExecs(b)
	exit, ok := n.followEvents(b)
	if !ok {
		return // the node is stopping; the sandbox goes on
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(n.work), undoTimeout)
	defer cancel()
	// Kill is what removes the remains of a machine that died by itself.
	if err := errors.Join(b.sb.Kill(ctx), n.forget(ctx, b.id)); err != nil {
		n.log.Error("remains of an ended sandbox are left for the next sweep", "sandbox", b.id, "op", "end", "error", err)
	}
	b.mu.Lock()
	why, detail, epoch := b.ending, b.detail, b.epoch
	b.mu.Unlock()
	if why == "" {
		why, detail = hutch.EndCrashed, "its kernel or its guest agent ended unasked"
		if exit.OOM {
			why, detail = hutch.EndOOM, "it was ended over its memory limit"
		}
	}
	close(b.gone)
	_ = b.guest.Close()
	n.release(b.id)
	b.awaitExecs()
	close(b.done)
	if why != hutch.EndKilled { // that one is reported by the call that asked for it
		n.reports.SandboxEnded(ctx, b.id, epoch, why, detail)
	}
}

// followEvents acts on what happens to the sandbox until it has exited.
func (n *Node) followEvents(b *box) (runtime.Event, bool) {
	last := runtime.Event{Kind: runtime.KindExited}
	for {
		select {
		case <-n.work.Done():
			return last, false
		case ev, ok := <-b.sb.Events():
			if !ok {
				return last, true
			}
			switch ev.Kind {
			case runtime.KindExited:
				last = ev
			case runtime.KindOOMKill:
				b.noteOOMKill()
			case runtime.KindMemoryHigh:
				n.wg.Go(func() { n.relieve(b) })
			}
		}
	}
}

// relieve asks the guest to end its largest command before the kernel ends everything.
func (n *Node) relieve(b *box) {
	err := n.call(n.work, func(ctx context.Context) error {
		return b.ask(ctx, func(ctx context.Context) error {
			_, err := b.guest.Relieve(ctx)
			return err
		})
	})
	if err != nil && !errors.Is(err, hutch.ErrNotFound) {
		n.log.Warn("memory is short and the guest could not free any", "sandbox", b.id, "op", "relieve", "error", err)
	}
}
