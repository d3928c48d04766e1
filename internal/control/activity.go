package control

import (
	"sync"
	"time"

	"hutch.dev/hutch"
)

// activity remembers when each sandbox was last used, and how many of its commands run and
// calls into it are under way: these count as use, however silent they are. What of it others
// are told, and what comes back from them after a restart, is in idle.go.
type activity struct {
	mu sync.Mutex
	m  map[hutch.SandboxID]*use
}

type use struct {
	last    time.Time // zero: before this server came, and not known when
	running int
	told    time.Time // what the node was told of it; zero: nothing yet
}

func newActivity() *activity { return &activity{m: map[hutch.SandboxID]*use{}} }

// touch notes a use of the sandbox now.
func (a *activity) touch(id hutch.SandboxID) { a.add(id, 0) }

// add notes a use and that delta more commands run.
func (a *activity) add(id hutch.SandboxID, delta int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	u := a.ofLocked(id)
	u.last = time.Now()
	u.running = max(0, u.running+delta)
}

// resume counts a command that runs since before this server came; its start was use.
func (a *activity) resume(id hutch.SandboxID, since time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	u := a.ofLocked(id)
	u.last = later(u.last, since)
	u.running++
}

// restore notes a use that an earlier server saw.
func (a *activity) restore(id hutch.SandboxID, last time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	u := a.ofLocked(id)
	u.last = later(u.last, last)
}

func (a *activity) ofLocked(id hutch.SandboxID) *use {
	u := a.m[id]
	if u == nil {
		u = &use{}
		a.m[id] = u
	}
	return u
}

// begin counts somebody who works in the sandbox, until done is called. Calling it twice
// counts once, and of a sandbox that has ended meanwhile nothing is noted.
func (a *activity) begin(id hutch.SandboxID) (done func()) {
	a.add(id, +1)
	return sync.OnceFunc(func() { a.release(id) })
}

// release is add(id, -1), unless the sandbox has ended.
func (a *activity) release(id hutch.SandboxID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if u := a.m[id]; u != nil {
		u.last = time.Now()
		u.running = max(0, u.running-1)
	}
}

// forget drops a sandbox that has ended.
func (a *activity) forget(id hutch.SandboxID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.m, id)
}

// idle returns how long the sandbox has not been used; 0 while a command runs.
func (a *activity) idle(id hutch.SandboxID, now time.Time) time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	u := a.ofLocked(id)
	if u.last.IsZero() { // nobody knows: it begins now
		u.last = now
	}
	if u.running > 0 {
		return 0
	}
	return now.Sub(u.last)
}

// lastUse returns when the sandbox was last used, zero if not since the start.
func (a *activity) lastUse(id hutch.SandboxID) time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	if u := a.m[id]; u != nil {
		return u.last
	}
	return time.Time{}
}
