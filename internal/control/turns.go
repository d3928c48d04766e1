package control

import (
	"context"
	"sync"

	"hutch.dev/hutch"
)

// turns lets those who ask for the same turn of a sandbox while it is being made share what
// comes of it, success or failure: that fifty ask at once to resume a sandbox is one resume, and if
// it fails it does not fail fifty times, one after the other. The zero value is ready.
type turns struct {
	mu sync.Mutex
	m  map[turnOf]*turn
}

// turnOf names a turn.
type turnOf struct {
	id hutch.SandboxID
	t  hutch.Transition
}

// turn is one under way.
type turn struct {
	over chan struct{} // closed when it is; then sb and err say how
	sb   hutch.Sandbox
	err  error
}

// join makes a turn, which is not given up if ctx ends, or waits for who is at it, which is.
func (ts *turns) join(ctx context.Context, of turnOf, do func() (hutch.Sandbox, error)) (hutch.Sandbox, error) {
	u, mine := ts.take(of)
	if mine {
		defer ts.end(of, u)
		u.sb, u.err = do()
		return u.sb, u.err
	}
	select {
	case <-u.over:
		return u.sb, u.err
	case <-ctx.Done():
		return hutch.Sandbox{}, hutch.Wrap(hutch.CodeCancelled, context.Cause(ctx), "the caller left while sandbox %s was %s", of.id, of.t)
	}
}

func (ts *turns) take(of turnOf) (u *turn, mine bool) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	if u := ts.m[of]; u != nil {
		return u, false
	}
	if ts.m == nil {
		ts.m = map[turnOf]*turn{}
	}
	u = &turn{over: make(chan struct{}), err: hutch.ErrInternal} // which stays if making it panics
	ts.m[of] = u
	return u, true
}

func (ts *turns) end(of turnOf, u *turn) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	delete(ts.m, of)
	close(u.over)
}
