package node

import (
	"context"
	"fmt"
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
	st, err := b.sb.Stats(ctx)
	if err != nil {
		return hutch.Sample{}, 0, fmt.Errorf("measure %s: %w", id, err)
	}
	return hutch.Sample{
		At: time.Now(), CPUs: b.cpus, Memory: st.Memory, WorkingSet: st.WorkingSet, MemoryMax: b.memoryMax,
		Disk: st.Disk, DiskMax: b.diskMax,
	}, st.CPU, nil
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
