package node

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/guestapi"
	"hutch.dev/hutch/internal/guestclient"
	"hutch.dev/hutch/internal/runtime"
	"hutch.dev/hutch/internal/x/failpoint"
	"hutch.dev/hutch/internal/x/pidfd"
)

// prepared is a machine that runs, made before anybody asked for it, whose guest agent knows its
// id and that it is nobody's. It becomes the sandbox of that id, or is removed; nothing else ever
// becomes of it.
type prepared struct {
	spec   runtime.Spec
	sb     runtime.Sandbox
	guest  *guestclient.Client // with the session that the sandbox goes on with
	hello  guestapi.Hello      // what the guest was told
	since  time.Time
	stages map[string]time.Duration // of its start, which is no part of the sandbox's

	fills        fills // when it was given to the keeper and the gateway, under epoch 0
	kept, linked bool  // those are the ones that there are now; valid once it is taken
}

// Prepare makes a machine for a sandbox like rec, which nobody has asked for yet: what counts
// of rec is its id, image, resources and profile; if all that a guest is told of rec comes true, it
// need not be told again. StartSandbox of that id takes it. Until then it is held like a sandbox,
// and the keeper and the gateway have it, so that they need not be given it while somebody waits.
// A process that dies leaves it to the next one's sweep all the same.
func (n *Node) Prepare(ctx context.Context, rec hutch.Sandbox) error {
	ctx, cancel := context.WithTimeout(ctx, n.cfg.StartTimeout)
	defer cancel()
	ctx, c, err := n.reserve(ctx, rec)
	if err != nil {
		return err
	}
	defer n.release(c)
	spec, err := n.spec(rec)
	if err != nil {
		return err
	}
	sb, err := n.rt.Create(ctx, spec)
	if err != nil {
		return fmt.Errorf("prepare machine: %w", err)
	}
	p := &prepared{spec: spec, sb: sb, guest: guestclient.New(sb.Handles().Guest), hello: helloOf(rec)}
	if err := p.start(ctx); err != nil {
		n.dispose(ctx, rec.ID, p)
		return err
	}
	p.fills = c.fills
	if err := n.entrust(ctx, rec.ID, p); err != nil {
		n.dispose(ctx, rec.ID, p)
		return err
	}
	failpoint.At(failpoint.PrepareMade)
	p.since, p.stages = time.Now(), stagesOf(sb)
	if !n.shelve(rec.ID, p) {
		n.dispose(ctx, rec.ID, p)
		return context.Cause(n.work)
	}
	failpoint.At(failpoint.PrepareShelved)
	return nil
}

// start starts the machine, tells its guest what is known by now, and warms it up.
func (p *prepared) start(ctx context.Context) error {
	if err := p.sb.Start(ctx, runtime.StartOptions{}); err != nil {
		return fmt.Errorf("start prepared machine: %w", err)
	}
	if err := greet(ctx, p.guest, p.hello, 0); err != nil {
		return fmt.Errorf("greet the guest of a prepared machine: %w", err)
	}
	if p.hello.Profile == hutch.ProfileLocked {
		return nil // to whom it is to be confined is not known yet, and nothing runs before it is
	}
	if err := p.warmUp(ctx); err != nil {
		return fmt.Errorf("warm up a prepared machine: %w", err)
	}
	return nil
}

// standsFor is how long a prepared machine lives at most, whether a node is there to remove it or
// not. It is far longer than any is kept for.
const standsFor = time.Hour

// entrust gives the keeper its handles and the gateway its link.
func (n *Node) entrust(ctx context.Context, id hutch.SandboxID, p *prepared) error {
	h := p.sb.Handles()
	if err := n.keeper.Put(ctx, id, 0, h, hutch.Lifetime{ExpiresAt: time.Now().Add(standsFor)}); err != nil {
		return fmt.Errorf("store handles of a prepared machine: %w", err)
	}
	if err := n.egress.Attach(ctx, id, 0, h.LinkKind, h.Link); err != nil {
		return fmt.Errorf("attach link of a prepared machine: %w", err)
	}
	return nil
}

// shelve keeps p for StartSandbox, unless the node is being closed.
func (n *Node) shelve(id hutch.SandboxID, p *prepared) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.work.Err() != nil {
		return false
	}
	n.ready[id] = p
	return true
}

// Prepared names the machines that stand ready. One whose process has ended is not among them.
func (n *Node) Prepared() map[hutch.SandboxID]bool {
	n.mu.Lock()
	all := maps.Clone(n.ready)
	n.mu.Unlock()
	ids := make(map[hutch.SandboxID]bool, len(all))
	for id, p := range all {
		if p.stands() {
			ids[id] = true
		}
	}
	return ids
}

// Discard removes a prepared machine that nobody needs; one that is not there, or is being
// taken by now, is left alone.
func (n *Node) Discard(ctx context.Context, id hutch.SandboxID) error {
	n.mu.Lock()
	p := n.ready[id]
	if p == nil {
		n.mu.Unlock()
		return nil
	}
	_, c := n.comeLocked(ctx, hutch.Sandbox{ID: id}) // held until nothing is left
	n.mu.Unlock()
	defer n.release(c)
	if err := p.sb.Kill(ctx); err != nil {
		n.shelve(id, p) // still there, and still ours
		return fmt.Errorf("discard machine %s: %w", id, err)
	}
	failpoint.At(failpoint.PrepareDiscarded)
	_ = p.guest.Close()
	return n.forget(ctx, id)
}

// emptyShelf removes every prepared machine.
func (n *Node) emptyShelf() {
	n.mu.Lock()
	all := n.ready
	n.ready = map[hutch.SandboxID]*prepared{}
	n.mu.Unlock()
	for id, p := range all {
		n.dispose(context.Background(), id, p)
	}
}

// dispose removes a machine, whatever became of ctx.
func (n *Node) dispose(ctx context.Context, id hutch.SandboxID, p *prepared) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
	defer cancel()
	_ = p.guest.Close()
	if err := errors.Join(p.sb.Kill(ctx), n.forget(ctx, id)); err != nil {
		n.log.Error("a prepared machine could not be removed; the next sweep will try again", "op", "discard", "sandbox", id, "error", err)
	}
	failpoint.At(failpoint.PrepareDisposed)
}

// machine returns the machine that a sandbox is to be: p, which runs, if there is one and it is what
// spec asks for, else a new one, once nothing of p is left.
func (n *Node) machine(ctx context.Context, spec runtime.Spec, p *prepared) (sb runtime.Sandbox, fromP bool, err error) {
	if p.fits(spec) {
		return p.sb, true, nil
	}
	if p != nil {
		n.dispose(ctx, spec.ID, p)
	}
	sb, err = n.rt.Create(ctx, spec)
	if err != nil {
		err = fmt.Errorf("create machine: %w", err)
	}
	return sb, false, err
}

// client is of the guest, nil without a machine.
func (p *prepared) client() *guestclient.Client {
	if p == nil {
		return nil
	}
	return p.guest
}

// knows reports whether the guest has been told everything that a hello would tell it, but for the
// epoch: it hears of that with its next one, and nobody else can have said one since. A locked
// one waits for its own.
func (p *prepared) knows(h guestapi.Hello) bool {
	return p != nil && h.Profile != hutch.ProfileLocked && reflect.DeepEqual(p.hello, h)
}

// fits reports whether the machine is alive and what spec asks for. Its name inside does not
// count: the guest is told it with its first hello.
func (p *prepared) fits(spec runtime.Spec) bool {
	if p == nil {
		return false
	}
	spec.Hostname = p.spec.Hostname
	return spec == p.spec && p.stands()
}

// stands reports whether all of the machine's processes are alive.
func (p *prepared) stands() bool {
	for _, f := range p.sb.Handles().Procs {
		if !pidfd.Alive(f) {
			return false
		}
	}
	return true
}

// booked returns how long an isolator's parts of a start took: without those of the machine's
// making, if it was not made for this start.
func (p *prepared) booked(sb runtime.Sandbox) map[string]time.Duration {
	all := stagesOf(sb)
	if p == nil {
		return all
	}
	maps.DeleteFunc(all, func(name string, _ time.Duration) bool {
		_, before := p.stages[name]
		return before
	})
	return all
}

// stagesOf is what an isolator says of the time its calls took.
func stagesOf(sb runtime.Sandbox) map[string]time.Duration {
	if s, ok := sb.(interface {
		Stages() map[string]time.Duration
	}); ok {
		return s.Stages()
	}
	return nil
}
