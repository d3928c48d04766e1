package node

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/runtime"
	"hutch.dev/hutch/internal/x/cleanup"
)

// undoTimeout bounds the undoing of a half-done start: a kill takes 4 ms, and on a
// machine with every CPU taken has been seen to take half a second.
const undoTimeout = 20 * time.Second

// StartSandbox makes a sandbox's machine and returns once its guest answers, with how
// long each stage took. If it
// fails, nothing of the sandbox is left on this host. It may be called once for an id.
func (n *Node) StartSandbox(ctx context.Context, rec hutch.Sandbox) (map[string]time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, n.cfg.StartTimeout)
	defer cancel()
	spec, err := n.spec(rec)
	if err != nil {
		return nil, err
	}
	if err := n.reserve(rec.ID); err != nil {
		return nil, err
	}
	undo := cleanup.New(func() { n.release(rec.ID) })
	defer undo.Run()

	stages := map[string]time.Duration{}
	lap := stopwatch(stages)
	sb, err := n.rt.Create(ctx, spec)
	if err != nil {
		return nil, fmt.Errorf("create machine: %w", err)
	}
	undo.Add(func() { n.undoCreate(ctx, rec.ID, sb) })
	lap("machine")

	b := newBox(rec, sb)
	undo.Add(func() { _ = b.guest.Close() })
	if err := n.bringUp(ctx, b); err != nil {
		return nil, err
	}
	lap("start")
	if _, err := b.sayHello(ctx); err != nil {
		return nil, fmt.Errorf("greet guest: %w", err)
	}
	lap("guest")
	if s, ok := sb.(interface {
		Stages() map[string]time.Duration
	}); ok {
		for k, d := range s.Stages() {
			stages["machine."+k] = d
		}
	}
	undo.Release()
	n.hold(b)
	return stages, nil
}

// bringUp starts the machine while its handles go to the keeper and its link to the
// gateway: neither needs the other.
func (n *Node) bringUp(ctx context.Context, b *box) error {
	h := b.sb.Handles()
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		if err := n.keeper.Put(gctx, b.id, b.epoch, h, b.deadline); err != nil {
			return fmt.Errorf("store handles: %w", err)
		}
		return nil
	})
	g.Go(func() error {
		if err := n.egress.Attach(gctx, b.id, b.epoch, h.LinkKind, h.Link); err != nil {
			return fmt.Errorf("attach link: %w", err)
		}
		return nil
	})
	g.Go(func() error {
		if err := b.sb.Start(gctx, runtime.StartOptions{}); err != nil {
			return fmt.Errorf("start machine: %w", err)
		}
		return nil
	})
	return g.Wait()
}

func (n *Node) spec(rec hutch.Sandbox) (runtime.Spec, error) {
	image, err := n.cfg.ImagePath(rec.Image)
	if err != nil {
		return runtime.Spec{}, fmt.Errorf("find root image: %w", err)
	}
	return runtime.Spec{
		ID: rec.ID, Image: image, Guest: n.cfg.Guest,
		Resources: rec.Resources, Hostname: rec.Hostname,
	}, nil
}

// undoCreate takes a half-started sandbox off the host, whatever became of ctx.
func (n *Node) undoCreate(ctx context.Context, id hutch.SandboxID, sb runtime.Sandbox) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
	defer cancel()
	if err := errors.Join(sb.Kill(ctx), n.forget(ctx, id)); err != nil {
		n.log.Error("a half-started sandbox could not be removed; the next sweep will try again", "op", "start", "sandbox", id, "error", err)
	}
}

func (n *Node) reserve(id hutch.SandboxID) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if _, ok := n.boxes[id]; ok {
		return hutch.Errorf(hutch.CodeConflict, "sandbox %s is here already", id)
	}
	n.boxes[id] = nil
	return nil
}

func (n *Node) release(id hutch.SandboxID) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.boxes, id)
}

// hold takes the box into service and begins to watch it.
func (n *Node) hold(b *box) {
	n.mu.Lock()
	n.boxes[b.id] = b
	n.mu.Unlock()
	n.wg.Go(func() { n.watch(b) })
}

// stopwatch returns a function that books the time since its last call under a name.
func stopwatch(s map[string]time.Duration) func(string) {
	last := time.Now()
	return func(name string) {
		now := time.Now()
		s[name] = now.Sub(last)
		last = now
	}
}

// Adopt takes over a sandbox that an earlier process of this node ran. It returns
// hutch.ErrSandboxGone, after removing what was left of it, if it is not there any
// more; why is then what the keeper saw.
func (n *Node) Adopt(ctx context.Context, rec hutch.Sandbox) (why hutch.SandboxEnd, err error) {
	kept, err := n.keeper.Get(ctx, rec.ID)
	if err != nil {
		if errors.Is(err, hutch.ErrNotFound) {
			return hutch.EndLost, n.gone(ctx, rec.ID, "its handles are lost")
		}
		return "", fmt.Errorf("fetch handles of %s: %w", rec.ID, err)
	}
	switch {
	case !kept.Killed.IsZero():
		closeHandles(kept.Handles)
		return hutch.EndExpired, n.gone(ctx, rec.ID, "it was ended at its deadline")
	case !kept.Exited.IsZero():
		closeHandles(kept.Handles)
		return hutch.EndCrashed, n.gone(ctx, rec.ID, "it exited while no node agent ran")
	}
	spec, err := n.spec(rec)
	if err != nil {
		closeHandles(kept.Handles)
		return "", err
	}
	if err := n.reserve(rec.ID); err != nil {
		closeHandles(kept.Handles)
		return "", err
	}
	undo := cleanup.New(func() { n.release(rec.ID) })
	defer undo.Run()
	sb, err := n.rt.Adopt(ctx, spec, kept.Handles)
	if err != nil {
		return hutch.EndLost, n.gone(ctx, rec.ID, "it was gone when the node agent came back")
	}
	b := newBox(rec, sb)
	h := sb.Handles()
	if err := n.egress.Attach(ctx, b.id, b.epoch, h.LinkKind, h.Link); err != nil {
		return "", fmt.Errorf("attach link of %s: %w", rec.ID, err)
	}
	undo.Release()
	n.hold(b)
	return "", nil
}

// gone removes what is left of a sandbox and says that it is gone.
func (n *Node) gone(ctx context.Context, id hutch.SandboxID, detail string) error {
	if err := n.Sweep(ctx, id); err != nil {
		return err
	}
	return hutch.Errorf(hutch.CodeSandboxGone, "sandbox %s is gone: %s", id, detail)
}

// Sweep removes whatever is left on this host of a sandbox the node does not run.
func (n *Node) Sweep(ctx context.Context, id hutch.SandboxID) error {
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
	if err := n.keeper.Delete(ctx, id); err != nil {
		return fmt.Errorf("drop handles of %s: %w", id, err)
	}
	return nil
}

// Leftovers names sandboxes of which something is on this host that the node does not run.
func (n *Node) Leftovers(ctx context.Context) ([]hutch.SandboxID, error) {
	all, err := n.rt.List(ctx)
	if err != nil {
		return nil, fmt.Errorf("list machines: %w", err)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	var left []hutch.SandboxID
	for _, id := range all {
		if _, ok := n.boxes[id]; !ok {
			left = append(left, id)
		}
	}
	return left, nil
}

func closeHandles(h runtime.Handles) {
	for _, f := range append(h.Procs, h.Guest, h.Link) {
		if f != nil {
			_ = f.Close()
		}
	}
}
