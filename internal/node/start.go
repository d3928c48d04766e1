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
	"hutch.dev/hutch/internal/x/failpoint"
)

// undoTimeout bounds the undoing of a half-done start: a kill takes 4 ms, and on a
// machine with every CPU taken has been seen to take half a second.
const undoTimeout = 20 * time.Second

// StartSandbox makes a sandbox's machine and returns once its guest answers, with how
// long each stage took. If it fails, nothing of the sandbox is left on this host. It may
// be called once for an id. KillSandbox ends it, in which case it is hutch.ErrSandboxGone. A
// machine that was prepared for the id is used if it is alive and fits; then there is a stage
// hutch.BootPrepared, which is how long it had stood.
func (n *Node) StartSandbox(ctx context.Context, rec hutch.Sandbox) (map[string]time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, n.cfg.StartTimeout)
	defer cancel()
	ctx, c, p, err := n.take(ctx, rec)
	if err != nil {
		return nil, err
	}
	defer n.release(c)
	if p != nil {
		failpoint.At(failpoint.PrepareTaken)
	}
	b, stages, err := n.start(ctx, rec, p)
	if errors.Is(err, errDiedReady) && ctx.Err() == nil { // nothing is left of it
		n.log.Warn("a prepared machine died as it was taken; another one is made", "op", "start", "sandbox", rec.ID, "error", err)
		b, stages, err = n.start(ctx, rec, nil)
	}
	if err != nil {
		if errors.Is(context.Cause(ctx), errAborted) {
			return nil, hutch.Errorf(hutch.CodeSandboxGone, "sandbox %s was ended while it was being started", rec.ID)
		}
		return nil, err
	}
	n.hold(ctx, b, c)
	return stages, nil
}

// errDiedReady is why a start has failed whose prepared machine was dead by the time that its guest
// was greeted.
var errDiedReady = errors.New("the prepared machine is dead")

// start makes the machine and greets its guest, or leaves nothing of it.
func (n *Node) start(ctx context.Context, rec hutch.Sandbox, p *prepared) (*box, map[string]time.Duration, error) {
	spec, err := n.spec(rec)
	if err != nil {
		if p != nil {
			n.dispose(ctx, rec.ID, p)
		}
		return nil, nil, err
	}
	begun, stages := time.Now(), map[string]time.Duration{}
	lap := stopwatch(stages)
	sb, ahead, err := n.machine(ctx, spec, p)
	if err != nil {
		return nil, nil, err
	}
	undo := cleanup.New(func() { n.undoCreate(ctx, rec.ID, sb) })
	defer undo.Run()
	lap("machine")
	if ahead {
		stages[hutch.BootPrepared] = begun.Sub(p.since)
	} else {
		p = nil
	}

	b := newBox(n, rec, sb, p.client())
	undo.Add(func() { _ = b.guest.Close() })
	if err := n.bringUp(ctx, b, p, lap); err != nil {
		// Its stream broke, and not for want of patience.
		if ahead && errors.Is(err, hutch.ErrGuestUnresponsive) && ctx.Err() == nil {
			err = errors.Join(errDiedReady, err)
		}
		return nil, nil, err
	}
	failpoint.At(failpoint.StartUp)
	for k, d := range p.booked(sb) {
		stages["machine."+k] = d
	}
	undo.Release()
	return b, stages, nil
}

// bringUp starts the machine, unless it was prepared, and greets its guest, unless that knows
// all of it, while its handles go to the keeper and its link to the gateway: none of them needs another.
func (n *Node) bringUp(ctx context.Context, b *box, p *prepared, lap func(stage string)) error {
	h := b.sb.Handles()
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		if err := n.give(gctx, b, p); err != nil {
			return fmt.Errorf("store handles: %w", err)
		}
		failpoint.At(failpoint.StartKept)
		return nil
	})
	g.Go(func() error {
		if p == nil || !p.linked {
			if err := n.egress.Attach(gctx, b.id, b.epoch, h.LinkKind, h.Link); err != nil {
				return fmt.Errorf("attach link: %w", err)
			}
		}
		failpoint.At(failpoint.StartLinked)
		return nil
	})
	g.Go(func() error {
		if p == nil {
			if err := b.sb.Start(gctx, runtime.StartOptions{}); err != nil {
				return fmt.Errorf("start machine: %w", err)
			}
		}
		failpoint.At(failpoint.StartRuns)
		lap("start")
		if !p.knows(b.hello) {
			if err := b.sayHello(gctx); err != nil {
				return fmt.Errorf("greet guest: %w", err)
			}
		}
		failpoint.At(failpoint.StartGreeted)
		lap("guest")
		return nil
	})
	if err := g.Wait(); err != nil || !p.knows(b.hello) || p.stands() {
		return err
	}
	return hutch.Errorf(hutch.CodeGuestUnresponsive, "the machine has ended")
}

// give makes the keeper hold a sandbox's handles, of which it may have those of the prepared
// machine, and its lifetime.
func (n *Node) give(ctx context.Context, b *box, p *prepared) error {
	if p != nil && p.kept {
		switch err := n.keeper.SetLifetime(ctx, b.id, b.epoch, b.lifetime()); {
		case errors.Is(err, hutch.ErrSandboxGone): // it has seen the machine's end
			return hutch.Wrap(hutch.CodeGuestUnresponsive, err, "the machine has ended")
		case !errors.Is(err, hutch.ErrNotFound):
			return err
		}
	}
	return n.keeper.Put(ctx, b.id, b.epoch, b.sb.Handles(), b.lifetime())
}

func (n *Node) spec(rec hutch.Sandbox) (runtime.Spec, error) {
	image, err := n.cfg.ImagePath(rec.Image)
	if err != nil {
		return runtime.Spec{}, fmt.Errorf("find root image: %w", err)
	}
	return n.specOf(rec, image), nil
}

func (n *Node) specOf(rec hutch.Sandbox, image string) runtime.Spec {
	return runtime.Spec{
		ID: rec.ID, Image: image, Guest: n.cfg.Guest,
		Resources: rec.Resources, Hostname: rec.Hostname, Profile: rec.Profile,
	}
}

// undoCreate takes a half-started sandbox off the host, whatever became of ctx.
func (n *Node) undoCreate(ctx context.Context, id hutch.SandboxID, sb runtime.Sandbox) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
	defer cancel()
	killed := sb.Kill(ctx)
	failpoint.At(failpoint.UndoKilled)
	if err := errors.Join(killed, n.forget(ctx, id)); err != nil {
		n.log.Error("a half-started sandbox could not be removed; the next sweep will try again", "op", "start", "sandbox", id, "error", err)
	}
}

// coming is a sandbox that is being started, taken over or swept.
type coming struct {
	id    hutch.SandboxID
	epoch hutch.Epoch
	abort context.CancelCauseFunc
	fills fills         // when it began
	done  chan struct{} // closed once it is in service, or nothing is left of it
}

// errAborted is the cause of a start's end by a kill.
var errAborted = errors.New("ended while being started")

// reserve takes a sandbox's place until release. The context it returns ends if the
// sandbox is killed meanwhile.
func (n *Node) reserve(ctx context.Context, rec hutch.Sandbox) (context.Context, *coming, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.boxes[rec.ID] != nil || n.comes[rec.ID] != nil || n.ready[rec.ID] != nil {
		return nil, nil, hutch.Errorf(hutch.CodeConflict, "sandbox %s is here already", rec.ID)
	}
	ctx, c := n.comeLocked(ctx, rec)
	return ctx, c, nil
}

// take is reserve for a sandbox for which a machine may have been prepared, which is then the
// caller's.
func (n *Node) take(ctx context.Context, rec hutch.Sandbox) (context.Context, *coming, *prepared, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.boxes[rec.ID] != nil || n.comes[rec.ID] != nil {
		return nil, nil, nil, hutch.Errorf(hutch.CodeConflict, "sandbox %s is here already", rec.ID)
	}
	p := n.ready[rec.ID]
	if p != nil {
		p.kept, p.linked = p.fills.keeper == n.fills.keeper, p.fills.egress == n.fills.egress
	}
	ctx, c := n.comeLocked(ctx, rec)
	return ctx, c, p, nil
}

// comeLocked takes the place, and from the shelf what stands there under the same id.
func (n *Node) comeLocked(ctx context.Context, rec hutch.Sandbox) (context.Context, *coming) {
	ctx, abort := context.WithCancelCause(ctx)
	c := &coming{id: rec.ID, epoch: rec.Epoch, abort: abort, fills: n.fills, done: make(chan struct{})}
	n.comes[rec.ID] = c
	delete(n.ready, rec.ID)
	return ctx, c
}

func (n *Node) release(c *coming) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.comes, c.id)
	c.abort(nil)
	close(c.done)
}

// abortStart ends a start under way and waits until it has ended, one way or the other.
func (n *Node) abortStart(ctx context.Context, id hutch.SandboxID, e hutch.Epoch) error {
	n.mu.Lock()
	c := n.comes[id]
	n.mu.Unlock()
	switch {
	case c == nil:
		return nil
	case e < c.epoch:
		return hutch.ErrStale
	}
	c.abort(errAborted)
	select {
	case <-c.done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("end the start of %s: %w", id, context.Cause(ctx))
	}
}

// hold takes the box into service and begins to watch it. A companion that was replaced since
// its coming began was given what was in service then, and is given this one now.
func (n *Node) hold(ctx context.Context, b *box, c *coming) {
	n.mu.Lock()
	n.boxes[b.id] = b
	now := n.fills
	n.mu.Unlock()
	n.wg.Go(func() { n.watch(b) })
	var errs []error
	if now.keeper != c.fills.keeper {
		errs = append(errs, n.keep(ctx, b))
	}
	if now.egress != c.fills.egress {
		errs = append(errs, n.link(ctx, b))
	}
	if err := errors.Join(errs...); err != nil {
		n.log.Error("a new companion was not given a sandbox that was coming", "sandbox", b.id, "op", "refill", "error", err)
	}
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
