package control

import (
	"context"
	"sync"

	"hutch.dev/hutch"
)

// admission lets a bounded number of creates start at once; a bounded number more waits
// in order. On few CPUs more starts at once only make each slower: with 100 at once on
// 2 CPUs the median create took 2.3 s, with 4 at once 64 ms.
type admission struct {
	slots   chan struct{}
	maxWait int
	report  func(int)

	most int // sandboxes alive at once

	mu      sync.Mutex
	waiting int
	alive   map[hutch.SandboxID]struct{} // has a machine, or is being given one
}

func newAdmission(cfg Config, report func(int)) *admission {
	return &admission{slots: make(chan struct{}, cfg.Creates), maxWait: cfg.Queue, most: cfg.MaxSandboxes, report: report, alive: map[hutch.SandboxID]struct{}{}}
}

// reserve takes a place among the living, until unreserve.
func (a *admission) reserve(id hutch.SandboxID) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, taken := a.alive[id]; taken { // a start that came to nothing, and is not cleared yet
		return hutch.Errorf(hutch.CodeConflict, "sandbox %s is being removed: choose another id, or try again later", id)
	}
	if len(a.alive) >= a.most {
		return noCapacity("all %d sandboxes this server allows are taken: end one, or try again later", a.most)
	}
	a.alive[id] = struct{}{}
	return nil
}

// restore counts a sandbox that is alive already, limit or not.
func (a *admission) restore(id hutch.SandboxID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.alive[id] = struct{}{}
}

// unreserve gives a place back, once: whoever sees a sandbox end may call it.
func (a *admission) unreserve(id hutch.SandboxID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.alive, id)
}

// enter waits for a slot and returns the function that gives it back. A caller who
// leaves while waiting is dropped; a full queue is hutch.ErrNoCapacity.
func (a *admission) enter(ctx context.Context) (leave func(), err error) {
	select {
	case a.slots <- struct{}{}:
		return a.leave, nil
	default:
	}
	if err := a.wait(1); err != nil {
		return nil, err
	}
	defer func() { _ = a.wait(-1) }()
	select {
	case a.slots <- struct{}{}:
		return a.leave, nil
	case <-ctx.Done():
		return nil, hutch.Wrap(hutch.CodeCancelled, context.Cause(ctx), "the caller left while the create was queued: nothing was made")
	}
}

func (a *admission) leave() { <-a.slots }

func (a *admission) wait(n int) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if n > 0 && a.waiting+n > a.maxWait {
		return noCapacity("%d creates are waiting already: try again in %s", a.waiting, retryAfter)
	}
	a.waiting += n
	a.report(a.waiting)
	return nil
}

// ready says whether another create would be let in or queued.
func (a *admission) ready() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.waiting >= a.maxWait {
		return noCapacity("the create queue is full (%d)", a.waiting)
	}
	if len(a.alive) >= a.most {
		return noCapacity("all %d sandboxes this server allows are taken", a.most)
	}
	return nil
}

// noCapacity refuses a create and says when to come back.
func noCapacity(format string, args ...any) error {
	e := hutch.Errorf(hutch.CodeNoCapacity, format, args...)
	e.RetryAfter = retryAfter
	return e
}
