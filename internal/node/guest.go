package node

import (
	"context"
	"errors"
	"io"
	"time"

	"hutch.dev/hutch"
)

// Guest returns what the running sandbox can be asked for besides commands. It is good for
// this run of the sandbox: after a pause, or any other change of epoch, its calls are
// refused with hutch.ErrStale, and another one has to be asked for.
//
// Whatever is under way ends when the sandbox is paused (hutch.ErrInvalidState) or ended
// (hutch.ErrSandboxGone), connections to its ports too, at once: nobody waits for a peer
// that does not run. A guest that stops answering is noticed in every call, short or long.
func (n *Node) Guest(_ context.Context, id hutch.SandboxID, e hutch.Epoch) (hutch.Guest, error) {
	b, err := n.box(id, e)
	if err != nil {
		return nil, err
	}
	g := &guest{n: n, b: b, epoch: e}
	if _, err := g.run(); err != nil {
		return nil, err
	}
	return g, nil
}

// guest is a sandbox's guest under one epoch.
type guest struct {
	n     *Node
	b     *box
	epoch hutch.Epoch
}

var _ hutch.Guest = (*guest)(nil)

// run returns the context of the sandbox's present run, if that is still this guest's.
func (g *guest) run() (context.Context, error) {
	b := g.b
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case g.n.work.Err() != nil:
		return nil, context.Cause(g.n.work)
	case b.ending != "":
		return nil, b.goneLocked(nil)
	case b.paused:
		return nil, hutch.Errorf(hutch.CodeInvalidState, "sandbox %s is paused: resume it first", b.id)
	case g.epoch < b.epoch:
		return nil, hutch.ErrStale
	}
	return b.run, nil
}

// begin starts a call. The context that it returns also ends with the sandbox's run, and if
// the guest stops answering, of which it is asked after quiet; done must be called.
func (g *guest) begin(ctx context.Context, quiet time.Duration) (_ context.Context, done func(), err error) {
	run, err := g.run()
	if err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	cut := context.AfterFunc(run, func() { cancel(context.Cause(run)) })
	stop := g.b.await(quiet, cancel)
	return ctx, func() {
		cut()
		stop()
		cancel(nil)
	}, nil
}

// call makes a call that may be made twice and has no time limit of its own.
func (g *guest) call(ctx context.Context, f func(context.Context, hutch.Guest) error) error {
	return g.callQuiet(ctx, eagerAfter, f)
}

// callQuiet is call for what need not say anything for as long as quiet.
func (g *guest) callQuiet(ctx context.Context, quiet time.Duration, f func(context.Context, hutch.Guest) error) error {
	ctx, done, err := g.begin(ctx, quiet)
	if err != nil {
		return err
	}
	defer done()
	return g.why(ctx, g.b.ask(ctx, func(ctx context.Context) error { return f(ctx, g.b.calls) }))
}

// short is call for what a guest answers at once, or not at all.
func (g *guest) short(ctx context.Context, f func(context.Context, hutch.Guest) error) error {
	return g.call(ctx, func(ctx context.Context, c hutch.Guest) error {
		return g.n.call(ctx, func(ctx context.Context) error { return f(ctx, c) })
	})
}

// once is call for what carries content that cannot be read a second time.
func (g *guest) once(ctx context.Context, f func(context.Context, hutch.Guest) error) error {
	ctx, done, err := g.begin(ctx, eagerAfter)
	if err != nil {
		return err
	}
	defer done()
	if err := g.n.identified(ctx, g.b); err != nil {
		return g.why(ctx, err)
	}
	return g.why(ctx, f(ctx, g.b.calls))
}

// identified makes sure that the guest has been greeted.
func (n *Node) identified(ctx context.Context, b *box) error {
	return n.call(ctx, func(ctx context.Context) error {
		return b.ask(ctx, func(ctx context.Context) error {
			_, err := b.guest.Health(ctx)
			return err
		})
	})
}

// why is the error of a call under ctx as its caller is to see it.
func (g *guest) why(ctx context.Context, err error) error {
	if err == nil || errors.Is(err, io.EOF) {
		return err
	}
	if cut := cutBy(ctx); cut != nil {
		err = cut
	}
	return g.b.whyGone(err)
}

// cutBy is why somebody with a reason ended ctx; nil if nobody did.
func cutBy(ctx context.Context) error {
	if e, ok := errors.AsType[*hutch.Error](context.Cause(ctx)); ok {
		return e
	}
	return nil
}

// goneLocked is the error of a call to a sandbox that is being ended, or has been.
func (b *box) goneLocked(cause error) *hutch.Error {
	e := &hutch.Error{
		Code: hutch.CodeSandboxGone, Reason: string(b.ending), Err: cause,
		Message: "sandbox " + string(b.id) + " has ended (" + string(b.ending) + ")",
	}
	if b.detail != "" {
		e.Message += ": " + b.detail
	}
	return e
}

// goneError is goneLocked for who does not hold the lock.
func (b *box) goneError() *hutch.Error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.goneLocked(nil)
}
