package node

import (
	"context"
	"fmt"
	"sync"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/runtime"
)

// Usage measures a sandbox from outside, paused or not, and returns the CPU time it has used
// since its start. Memory is all that the host charges, its kernel's own too, which MemoryMax,
// the size that was asked for, does not count. The percentage is the caller's to make of two of
// them; the disk is the sandbox's writable layer as the host accounts it, see DiskUsage of
// [Node.Guest] for what it looks like from inside.
func (n *Node) Usage(ctx context.Context, id hutch.SandboxID, e hutch.Epoch) (hutch.Sample, time.Duration, error) {
	b, err := n.box(id, e)
	if err != nil {
		return hutch.Sample{}, 0, err
	}
	st, err := b.stats(ctx)
	if err != nil {
		return hutch.Sample{}, 0, fmt.Errorf("measure %s: %w", id, err)
	}
	return hutch.Sample{
		At: time.Now(), CPUs: b.cpus, Memory: st.Memory, WorkingSet: st.WorkingSet, MemoryMax: b.memoryMax,
		Disk: st.Disk, DiskMax: b.diskMax,
	}, st.CPU, nil
}

// What is known of a sandbox is good for stillFor if meanwhile it has had less CPU time than
// still, which its own kernel and agent take when nothing happens. All figures take ten reads of
// files, and CPU time one, which counts where hundreds of sandboxes do nothing.
const (
	still    = time.Millisecond
	stillFor = 5 * time.Minute
)

// measured is what a sandbox's host said of it last.
type measured struct {
	mu sync.Mutex
	at time.Time
	st runtime.Stats
}

// stats is what the host says of a sandbox, of which all but the CPU time may be from the last
// time, if hardly anything has run since.
func (b *box) stats(ctx context.Context) (runtime.Stats, error) {
	m := &b.measured
	m.mu.Lock()
	at, st := m.at, m.st
	m.mu.Unlock()
	if !at.IsZero() && time.Since(at) < stillFor {
		if cpu := b.cpu(); cpu != unknown && cpu-st.CPU < still {
			st.CPU = cpu
			return st, nil
		}
	}
	at = time.Now()
	st, err := b.sb.Stats(ctx)
	if err == nil {
		m.mu.Lock()
		m.at, m.st = at, st
		m.mu.Unlock()
	}
	return st, err
}

// tellUsed tells what an ended sandbox had used.
func (n *Node) tellUsed(b *box, st runtime.Stats) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(n.work), n.cfg.CallTimeout)
	defer cancel()
	n.reports.SandboxUsed(ctx, b.id, time.Now(), st.CPU)
}

// ResizeExec changes the size of a command's terminal.
func (n *Node) ResizeExec(ctx context.Context, id hutch.SandboxID, e hutch.Epoch, x hutch.ExecID, size hutch.TerminalSize) error {
	b, err := n.box(id, e)
	if err != nil {
		return err
	}
	return b.whyGone(n.answered(ctx, b, func(ctx context.Context) error {
		return b.ask(ctx, func(ctx context.Context) error { return b.guest.ResizeExec(ctx, x, size) })
	}))
}
