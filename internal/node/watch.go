package node

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/runtime"
	"hutch.dev/hutch/internal/x/backoff"
	"hutch.dev/hutch/internal/x/failpoint"
)

// deadlineInterval is how often deadlines are compared with the clock. A TTL is given
// in seconds; half of one is as late as a sandbox may end.
const deadlineInterval = 500 * time.Millisecond

// stoodStillFor is how late Run may come to look before this process counts as having stood still.
const stoodStillFor = 4 * deadlineInterval

// Run holds deadlines and idle timeouts, minds the guests' signs of life and weighs the sandboxes
// by what CPU they take, until ctx ends. The
// wall clock is read anew each time, so a step of the clock or a suspended host delays an end by
// no more than one interval. Whether a sandbox was used while this process stood still nobody can
// say: after that it is given the time to hear of it.
func (n *Node) Run(ctx context.Context) error {
	var weighing sync.WaitGroup
	weighing.Go(func() { n.weighSandboxes(ctx) })
	defer weighing.Wait()
	t := time.NewTicker(deadlineInterval)
	defer t.Stop()
	last := time.Now()
	heard := last
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
			now := time.Now()
			n.endExpired(now)
			if now.Sub(last) > stoodStillFor {
				heard = now.Add(n.cfg.IdleSlack)
			}
			if !now.Before(heard) {
				n.endIdle(now)
			}
			n.tick(now.Sub(last))
			last = now
		}
	}
}

// end kills the sandbox for a reason of the node's own, however often it takes.
func (n *Node) end(b *box, why hutch.SandboxEnd, detail string) {
	b.beginEnding(why, detail)
	for tries := 0; ; tries++ {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(n.work), undoTimeout)
		err := b.sb.Kill(ctx)
		cancel()
		if err == nil {
			return
		}
		n.log.Error("kill", "sandbox", b.id, "op", "end", "reason", string(why), "error", err)
		if backoff.Sleep(n.work, retryPolicy.Delay(tries, rand.Float64)) != nil {
			return
		}
	}
}

// watch follows one sandbox to its end, removes what is left of it, reports it and its
// commands, and takes it out of service: in this order, so that whoever finds it gone can
// rely on its records.
func (n *Node) watch(b *box) {
	exit, ok := n.followEvents(b)
	if !ok {
		return // the node is stopping; the sandbox goes on
	}
	n.clear(b)
	failpoint.At(failpoint.EndCleared)
	used := n.stats(b)
	why, detail := b.whyEnded(exit, used)
	close(b.gone)
	_ = b.guest.Close()
	defer close(b.done)
	n.tellUsed(b, used)
	if !b.awaitExecs() {
		return // the node is stopping: the keeper has a note for the next one
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(n.work), undoTimeout)
	defer cancel()
	if why != hutch.EndKilled { // that one is reported by the call that asked for it
		n.reports.SandboxEnded(ctx, b.id, b.currentEpoch(), why, detail)
	}
	failpoint.At(failpoint.EndTold)
	// Last, because until the end is on record the keeper's note on it is the only one.
	if err := n.keeper.Delete(ctx, b.id); err != nil {
		n.log.Error("the keeper still has a note on an ended sandbox", "sandbox", b.id, "op", "end", "error", err)
	}
	failpoint.At(failpoint.EndForgotten)
	n.drop(b.id)
}

// clear takes an exited sandbox off the host. Kill is what removes the remains of a
// machine that died by itself.
func (n *Node) clear(b *box) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(n.work), undoTimeout)
	defer cancel()
	if err := errors.Join(b.sb.Kill(ctx), n.egress.Detach(ctx, b.id)); err != nil {
		n.log.Error("remains of an ended sandbox are left for the next sweep", "sandbox", b.id, "op", "end", "error", err)
	}
}

func (n *Node) drop(id hutch.SandboxID) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.boxes, id)
}

// stats is what a sandbox uses, or has used if it is gone; zero if that cannot be had.
func (n *Node) stats(b *box) runtime.Stats {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(n.work), n.cfg.CallTimeout)
	defer cancel()
	st, err := b.sb.Stats(ctx)
	if err != nil {
		n.log.Warn("what a sandbox uses is not known", "sandbox", b.id, "op", "measure", "error", err)
	}
	b.noteOOMKills(st.OOMKills)
	return st
}

// whyEnded says why the sandbox ended, of whose use last is the final account.
func (b *box) whyEnded(exit runtime.Event, last runtime.Stats) (hutch.SandboxEnd, string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	limit, detail := limitOf(exit, last, b.memoryMax)
	switch {
	case b.ending != "":
	case limit != "":
		b.ending, b.detail = limit, detail
	// The keeper came first, of a sandbox that was due for long, or while this process stood still.
	case b.expiredLocked(now):
		b.ending, b.detail = hutch.EndExpired, "it was ended at its deadline"
	case b.idledLocked(now):
		b.ending, b.detail = hutch.EndIdle, idledDetail
	default:
		b.ending, b.detail = hutch.EndCrashed, "its kernel or its guest agent ended unasked"
	}
	b.endRun(b.goneLocked(nil))
	return b.ending, b.detail
}

// limitOf says which limit ended a sandbox of so much memory, empty if none did.
func limitOf(exit runtime.Event, last runtime.Stats, memoryMax int64) (why hutch.SandboxEnd, detail string) {
	switch {
	case exit.OOM:
		return hutch.EndOOM, "it was ended over its memory limit: " + memoryUse(last, memoryMax)
	case exit.Pids:
		return hutch.EndPidsLimit, fmt.Sprintf("it was ended over its cap of processes and threads on the host: at most %d, its limit %d", last.PidsPeak, last.PidsLimit)
	}
	return "", ""
}

// memoryUse says how much memory a sandbox was given and has used, in bytes. What it was
// given is the size that was asked for; the host allows its kernel some more, and counts that in.
func memoryUse(st runtime.Stats, memoryMax int64) string {
	return fmt.Sprintf("at most %d bytes with its kernel's, its limit %d of which %d its own", st.MemoryPeak, st.MemoryLimit, memoryMax)
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
				n.wg.Go(func() { n.stats(b) })
			case runtime.KindMemoryHigh:
				n.wg.Go(func() { n.relieve(b) })
			}
		}
	}
}

// relieve asks the guest to end its largest command before the kernel ends everything. Where
// the kernel has come first there is nothing to save any more, and whoever is the largest now is
// not who took the memory.
func (n *Node) relieve(b *box) {
	if st := n.stats(b); st.WorkingSet < st.MemoryLimit/2 {
		return
	}
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
