package cluster

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/keeper"
	"hutch.dev/hutch/internal/node"
	"hutch.dev/hutch/internal/runtime"
	"hutch.dev/hutch/internal/store"
)

// errInjected is what a fault makes of a call.
var errInjected = errors.New("injected")

// errCrashed is what the ports of a server that was killed answer: nothing of it
// reaches the world any more.
var errCrashed = errors.New("this server's process is dead")

// faults makes calls through a port fail, before or after they were made, or wait.
type faults struct {
	mu    sync.Mutex
	dead  bool
	rules map[string]*rule
	calls map[string]int
}

// rule is what is to happen to the next calls of an operation.
type rule struct {
	skip  int  // so many calls go through first
	times int  // then so many fail; negative = all
	after bool // once they were made
	gate  chan struct{}
	seen  chan struct{} // closed when a call waits at the gate
}

func newFaults() *faults { return &faults{rules: map[string]*rule{}, calls: map[string]int{}} }

// fail makes the next calls of op fail before they are made; negative = all, 0 = heal.
func (f *faults) fail(op string, times int) { f.set(op, &rule{times: times}) }

// failNth makes the n-th call of op from now on fail; n counts from 1.
func (f *faults) failNth(op string, n int) { f.set(op, &rule{skip: n - 1, times: 1}) }

// failAfter makes the next calls of op fail though they were made.
func (f *faults) failAfter(op string, times int) { f.set(op, &rule{times: times, after: true}) }

// block makes calls of op wait until release. The channel is closed once one does.
func (f *faults) block(op string) (reached <-chan struct{}, release func()) {
	r := &rule{gate: make(chan struct{}), seen: make(chan struct{})}
	f.set(op, r)
	return r.seen, sync.OnceFunc(func() {
		f.set(op, nil)
		close(r.gate)
	})
}

func (f *faults) set(op string, r *rule) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rules[op] = r
}

// kill makes every call fail from now on.
func (f *faults) kill() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.dead = true
}

func (f *faults) count(op string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls[op]
}

// do makes the call fn of op, or lets it fail.
func (f *faults) do(op string, fn func() error) error {
	f.mu.Lock()
	f.calls[op]++
	r := f.rules[op]
	if r != nil && r.gate != nil {
		select {
		case <-r.seen:
		default:
			close(r.seen)
		}
		f.mu.Unlock()
		<-r.gate
		f.mu.Lock()
	}
	hit := f.hitLocked(op)
	dead, after := f.dead, r != nil && r.after
	f.mu.Unlock()
	switch {
	case dead:
		return errCrashed
	case hit && !after:
		return errInjected
	}
	err := fn()
	if err == nil && hit {
		return errInjected
	}
	return err
}

func (f *faults) hitLocked(op string) bool {
	r := f.rules[op]
	switch {
	case r == nil || r.times == 0:
		return false
	case r.skip > 0:
		r.skip--
		return false
	case r.times > 0:
		r.times--
	}
	return true
}

// faultyStore is a store in which calls fail on request.
type faultyStore struct {
	store.Store
	*faults
}

func (s faultyStore) CreateSandbox(ctx context.Context, sb hutch.Sandbox, ev ...hutch.Event) error {
	return s.do("CreateSandbox", func() error { return s.Store.CreateSandbox(ctx, sb, ev...) })
}

func (s faultyStore) Sandbox(ctx context.Context, id hutch.SandboxID) (sb hutch.Sandbox, err error) {
	err = s.do("Sandbox", func() (err error) { sb, err = s.Store.Sandbox(ctx, id); return err })
	return sb, err
}

func (s faultyStore) UpdateSandbox(ctx context.Context, id hutch.SandboxID, e hutch.Epoch, fn func(*hutch.Sandbox) error, ev ...hutch.Event) (sb hutch.Sandbox, err error) {
	err = s.do("UpdateSandbox", func() (err error) { sb, err = s.Store.UpdateSandbox(ctx, id, e, fn, ev...); return err })
	return sb, err
}

func (s faultyStore) PutExec(ctx context.Context, x hutch.Exec, ev ...hutch.Event) error {
	op := "PutExec"
	if x.Result != nil {
		op = "PutResult"
	}
	return s.do(op, func() error { return s.Store.PutExec(ctx, x, ev...) })
}

func (s faultyStore) ExecsOf(ctx context.Context, f store.ExecFilter, p store.Page) (l []hutch.Exec, next string, err error) {
	err = s.do("ExecsOf", func() (err error) { l, next, err = s.Store.ExecsOf(ctx, f, p); return err })
	return l, next, err
}

func (s faultyStore) Template(ctx context.Context, name string) (t hutch.Template, err error) {
	err = s.do("Template", func() (err error) { t, err = s.Store.Template(ctx, name); return err })
	return t, err
}

func (s faultyStore) PutTemplate(ctx context.Context, t hutch.Template) error {
	return s.do("PutTemplate", func() error { return s.Store.PutTemplate(ctx, t) })
}

func (s faultyStore) PutBuild(ctx context.Context, b hutch.Build) error {
	return s.do("PutBuild", func() error { return s.Store.PutBuild(ctx, b) })
}

func (s faultyStore) AppendBuildLog(ctx context.Context, id string, lines ...hutch.LogLine) error {
	return s.do("AppendBuildLog", func() error { return s.Store.AppendBuildLog(ctx, id, lines...) })
}

func (s faultyStore) AppendAudit(ctx context.Context, entries ...hutch.AuditEntry) error {
	return s.do("AppendAudit", func() error { return s.Store.AppendAudit(ctx, entries...) })
}

func (s faultyStore) AppendUsage(ctx context.Context, rows ...hutch.Usage) error {
	return s.do("AppendUsage", func() error { return s.Store.AppendUsage(ctx, rows...) })
}

func (s faultyStore) ReadUsage(ctx context.Context, read func(store.UsageReader) error) error {
	return s.do("ReadUsage", func() error { return s.Store.ReadUsage(ctx, read) })
}

func (s faultyStore) UsageBySandbox(ctx context.Context, f store.UsageFilter, p store.Page) (l []hutch.SandboxUsage, next string, err error) {
	err = s.do("UsageBySandbox", func() (err error) { l, next, err = s.Store.UsageBySandbox(ctx, f, p); return err })
	return l, next, err
}

// keeperPort is the real keeper as the node wants it, as in cmd/hutch.
type keeperPort struct {
	c *keeper.Client
	*faults
}

func (k keeperPort) Put(ctx context.Context, id hutch.SandboxID, e hutch.Epoch, h runtime.Handles, l hutch.Lifetime) error {
	return k.do("Put", func() error { return k.c.Put(ctx, id, e, h, l) })
}

func (k keeperPort) SetLifetime(ctx context.Context, id hutch.SandboxID, e hutch.Epoch, l hutch.Lifetime) error {
	return k.do("SetLifetime", func() error { return k.c.SetLifetime(ctx, id, e, l) })
}

func (k keeperPort) Get(ctx context.Context, id hutch.SandboxID) (kept node.Kept, err error) {
	err = k.do("Get", func() error {
		got, err := k.c.Get(ctx, id)
		kept = node.Kept{Handles: got.Handles, Killed: got.KilledAt, Why: got.End(), Exited: got.ExitedAt, UsedAt: got.UsedAt}
		return err
	})
	return kept, err
}

func (k keeperPort) Delete(ctx context.Context, id hutch.SandboxID) error {
	return k.do("Delete", func() error { return k.c.Delete(ctx, id) })
}

func (k keeperPort) List(ctx context.Context) (all []hutch.Trace, err error) {
	err = k.do("List", func() error {
		got, err := k.c.List(ctx)
		for _, e := range got {
			all = append(all, hutch.Trace{Kind: hutch.TraceKeeper, Name: string(e.Name), Sandbox: e.Name, Noted: !e.KilledAt.IsZero() || !e.ExitedAt.IsZero()})
		}
		return err
	})
	return all, err
}

// gateway is an egress gateway that serves nobody. It really holds the links, as the real
// one does, and outlives the server.
type gateway struct {
	mu    sync.Mutex
	links map[hutch.SandboxID]int // duplicates of descriptors
}

func (g *gateway) attached() []hutch.SandboxID {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Sorted(maps.Keys(g.links))
}

func (g *gateway) attach(id hutch.SandboxID, f *os.File) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	fd, derr := -1, error(nil)
	if err := raw.Control(func(p uintptr) { fd, derr = syscall.Dup(int(p)) }); err != nil {
		return err
	}
	if derr != nil {
		return derr
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if old, ok := g.links[id]; ok {
		_ = syscall.Close(old)
	}
	g.links[id] = fd
	return nil
}

func (g *gateway) detach(id hutch.SandboxID) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if fd, ok := g.links[id]; ok {
		_ = syscall.Close(fd)
		delete(g.links, id)
	}
}

// egressPort is one server's connection to the gateway.
type egressPort struct {
	g *gateway
	*faults
}

func (p egressPort) Attach(_ context.Context, id hutch.SandboxID, _ hutch.Epoch, _ runtime.LinkKind, f *os.File) error {
	return p.do("Attach", func() error { return p.g.attach(id, f) })
}

func (p egressPort) Detach(_ context.Context, id hutch.SandboxID) error {
	return p.do("Detach", func() error { p.g.detach(id); return nil })
}

func (p egressPort) List(context.Context) (all []hutch.Trace, err error) {
	err = p.do("List", func() error {
		for _, id := range p.g.attached() {
			all = append(all, hutch.Trace{Kind: hutch.TraceLink, Name: string(id), Sandbox: id})
		}
		return nil
	})
	return all, err
}

// tally counts what control reports as metrics, over all servers of a world.
type tally struct {
	mu        sync.Mutex
	sandboxes map[hutch.SandboxEnd]int
	phases    map[string]int // operations that went well
	execs     map[hutch.ExecEnd]int
	queue     int
}

func newTally() *tally {
	return &tally{sandboxes: map[hutch.SandboxEnd]int{}, phases: map[string]int{}, execs: map[hutch.ExecEnd]int{}}
}

func (*tally) CreateStage(string, time.Duration) {}

// Operation counts what went well.
func (m *tally) Operation(phase string, err error) {
	if err != nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.phases[phase]++
}

// operations is how many operations of a kind went well.
func (m *tally) operations(phase string) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.phases[phase]
}

func (m *tally) ExecEnded(end hutch.ExecEnd, _ time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.execs[end]++
}

func (m *tally) SandboxEnded(why hutch.SandboxEnd) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.sandboxes[why]++
}

func (m *tally) QueueLength(n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.queue = n
}

func (m *tally) queued() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.queue
}

// wantEnds checks how many sandboxes ended, for which reasons. They are counted a moment
// after they are on record.
func (m *tally) wantEnds(t testing.TB, want map[hutch.SandboxEnd]int) {
	t.Helper()
	eventually(t, "the ends are counted", func() error {
		m.mu.Lock()
		defer m.mu.Unlock()
		if !maps.Equal(m.sandboxes, want) {
			return fmt.Errorf("%v, want %v", m.sandboxes, want)
		}
		return nil
	})
}

// wantExecs checks how many commands ended so.
func (m *tally) wantExecs(t testing.TB, end hutch.ExecEnd, want int) {
	t.Helper()
	eventually(t, "the ends of commands are counted", func() error {
		m.mu.Lock()
		defer m.mu.Unlock()
		if n := m.execs[end]; n != want {
			return fmt.Errorf("%d ended by %s, want %d", n, end, want)
		}
		return nil
	})
}

func closeHandles(h runtime.Handles) {
	for _, f := range append(h.Procs, h.Guest, h.Link) {
		if f != nil {
			_ = f.Close()
		}
	}
}
