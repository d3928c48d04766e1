package node

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/runtime"
	"hutch.dev/hutch/internal/runtime/fake"
	"hutch.dev/hutch/internal/x/fdpass"
	"hutch.dev/hutch/internal/x/id"
)

// shelf is a keeper in memory. It really holds duplicates of the handles: nothing else
// would show that the node can live on them.
type shelf struct {
	mu   sync.Mutex
	kept map[hutch.SandboxID]*shelved
	fail error
	look func() // called at each Get, without the lock

	onSet func() // called at each SetLifetime, without the lock
}

type shelved struct {
	Kept
	epoch    hutch.Epoch
	lifetime hutch.Lifetime
}

func (s *shelf) Put(_ context.Context, id hutch.SandboxID, e hutch.Epoch, h runtime.Handles, l hutch.Lifetime) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fail != nil {
		return s.fail
	}
	if l.ExpiresAt.IsZero() {
		return hutch.FieldErrorf("deadline", "every sandbox ends some time")
	}
	dup, err := duplicates(h)
	if err != nil {
		return err
	}
	if old := s.kept[id]; old != nil {
		closeHandles(old.Handles)
	}
	s.kept[id] = &shelved{Kept{Handles: dup}, e, l}
	return nil
}

func (s *shelf) SetLifetime(_ context.Context, id hutch.SandboxID, e hutch.Epoch, l hutch.Lifetime) error {
	if s.onSet != nil {
		s.onSet()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.kept[id]
	switch {
	case s.fail != nil:
		return s.fail
	case k == nil:
		return hutch.ErrNotFound
	case e < k.epoch:
		return hutch.ErrStale
	}
	k.epoch, k.lifetime = e, l
	return nil
}

func (s *shelf) Get(_ context.Context, id hutch.SandboxID) (Kept, error) {
	if s.look != nil {
		s.look()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.kept[id]
	switch {
	case s.fail != nil:
		return Kept{}, s.fail
	case k == nil:
		return Kept{}, hutch.ErrNotFound
	}
	dup, err := duplicates(k.Handles)
	return Kept{Handles: dup, Killed: k.Killed, Why: k.Why, Exited: k.Exited, UsedAt: k.lifetime.UsedAt}, err
}

func (s *shelf) Delete(_ context.Context, id hutch.SandboxID) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if k := s.kept[id]; k != nil {
		closeHandles(k.Handles)
		delete(s.kept, id)
	}
	return s.fail
}

func (s *shelf) List(context.Context) ([]hutch.Trace, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []hutch.Trace
	for id := range s.kept {
		all = append(all, hutch.Trace{Kind: hutch.TraceKeeper, Name: string(id), Sandbox: id})
	}
	return all, s.fail
}

func (s *shelf) set(fail error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fail = fail
}

// knows reports whether the keeper has a sandbox under an epoch.
func (s *shelf) knows(id hutch.SandboxID, e hutch.Epoch) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.kept[id] != nil && s.kept[id].epoch == e
}

func (s *shelf) has(id hutch.SandboxID) *shelved {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.kept[id]
}

func duplicates(h runtime.Handles) (runtime.Handles, error) {
	fds, err := fdpass.DupAll(append([]*os.File{h.Guest, h.Link}, h.Procs...))
	if err != nil {
		return runtime.Handles{}, err
	}
	files := fdpass.Files(fds, "kept")
	return runtime.Handles{Guest: files[0], Link: files[1], LinkKind: h.LinkKind, Procs: files[2:]}, nil
}

// links is a gateway that only notes what it is told.
type links struct {
	mu   sync.Mutex
	on   map[hutch.SandboxID]bool
	fail error
}

func (l *links) Attach(_ context.Context, id hutch.SandboxID, _ hutch.Epoch, kind runtime.LinkKind, f *os.File) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.fail != nil || kind == "" || f == nil {
		return errors.Join(l.fail, hutch.ErrBadRequest)
	}
	l.on[id] = true
	return nil
}

func (l *links) Detach(_ context.Context, id hutch.SandboxID) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.on, id)
	return nil
}

func (l *links) List(context.Context) ([]hutch.Trace, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var all []hutch.Trace
	for id := range l.on {
		all = append(all, hutch.Trace{Kind: hutch.TraceLink, Name: string(id), Sandbox: id})
	}
	return all, l.fail
}

// reports notes what a node tells, in order.
type reports struct {
	mu     sync.Mutex
	told   []string
	ends   map[hutch.ExecID]hutch.ExecResult
	fail   error // of ExecEnded
	news   chan struct{}
	detail string
	used   time.Duration // CPU, of the sandbox that ended last
}

// SandboxUsed is no news that a test waits for: it comes before each end.
func (r *reports) SandboxUsed(_ context.Context, _ hutch.SandboxID, _ time.Time, cpu time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.used = cpu
}

func (r *reports) note(s string) {
	r.told = append(r.told, s)
	select {
	case r.news <- struct{}{}:
	default:
	}
}

func (r *reports) SandboxEnded(_ context.Context, _ hutch.SandboxID, _ hutch.Epoch, why hutch.SandboxEnd, detail string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.detail = detail
	r.note("sandbox " + string(why))
}

func (r *reports) SandboxSilent(_ context.Context, _ hutch.SandboxID, _ hutch.Epoch, silent bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.note(map[bool]string{true: "silent", false: "answers"}[silent])
}

func (r *reports) ExecFound(_ context.Context, _ hutch.SandboxID, x hutch.ExecID, pid int, at time.Time) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if pid > 0 && !at.IsZero() {
		r.note("found " + string(x))
	}
	return nil
}

func (r *reports) ExecEnded(_ context.Context, _ hutch.SandboxID, x hutch.ExecID, res hutch.ExecResult) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.fail != nil {
		r.note("refused " + string(x))
		return r.fail
	}
	r.ends[x] = res
	r.note("exec " + string(res.End))
	return nil
}

func (r *reports) set(fail error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.fail = fail
}

func (r *reports) forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.told = nil
}

// until waits until something was told.
func (r *reports) until(t *testing.T, want string) {
	t.Helper()
	deadline := time.After(20 * time.Second)
	for {
		r.mu.Lock()
		ok := slices.ContainsFunc(r.told, func(s string) bool { return strings.HasPrefix(s, want) })
		told := slices.Clone(r.told)
		r.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-r.news:
		case <-deadline:
			t.Fatalf("%q was not told, only %q", want, told)
		}
	}
}

// aBusyMachines is how long a short call may take in a test that waits for one which is not
// answered: no call that is answered takes as long, on a machine whose CPUs are all taken.
const aBusyMachines = time.Second

// bench is a host with what a node needs on it.
type bench struct {
	t       *testing.T
	host    *fake.Host
	rt      *fake.Runtime
	shelf   *shelf
	links   *links
	reports *reports
	cfg     Config
	deaf    bool // its guests do not answer now
	*Node
}

func newBench(t *testing.T, tune ...func(*Config)) *bench {
	b := &bench{
		t: t, host: fake.NewHost(),
		shelf: &shelf{kept: map[hutch.SandboxID]*shelved{}}, links: &links{on: map[hutch.SandboxID]bool{}},
		cfg: Config{
			Guest: "/guest", ImagePath: func(string) (string, error) { return "/image", nil },
			Log: slog.New(slog.DiscardHandler), CallTimeout: 5 * time.Second, StopSlack: 50 * time.Millisecond,
		},
	}
	for _, f := range tune {
		f(&b.cfg)
	}
	t.Cleanup(b.host.Close)
	b.restart()
	t.Cleanup(func() { b.crash() })
	return b
}

// crash ends the node as a kill of its process would.
func (b *bench) crash() {
	if b.Node != nil {
		b.rt.Crash()
		b.Close()
		b.Node = nil
	}
}

// restart is a new node on the same host.
func (b *bench) restart() {
	b.crash()
	b.rt = fake.New(b.host)
	b.reports = &reports{ends: map[hutch.ExecID]hutch.ExecResult{}, news: make(chan struct{}, 1)}
	b.Node = New(b.cfg, b.rt, b.shelf, b.links, b.reports)
}

func (b *bench) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	b.t.Cleanup(cancel)
	return ctx
}

func record() hutch.Sandbox {
	return hutch.Sandbox{
		ID: hutch.SandboxID(id.NewSandbox()), Image: "sha256:1", State: hutch.StateRunning, Epoch: 3, ExpiresAt: time.Now().Add(time.Hour), Hostname: "h",
		Resources: hutch.Resources{MilliCPU: 1000, MemoryMB: 64, DiskMB: 64, DiskTier: hutch.TierDisk, Pids: 64},
	}
}

func (b *bench) start() hutch.Sandbox {
	b.t.Helper()
	rec := record()
	if _, err := b.StartSandbox(b.ctx(), rec); err != nil {
		b.t.Fatalf("start: %v", err)
	}
	return rec
}

func (b *bench) exec(rec hutch.Sandbox, spec hutch.ExecSpec) hutch.ExecID {
	b.t.Helper()
	x := hutch.ExecID(id.NewExec())
	if _, _, err := b.StartExec(b.ctx(), rec.ID, rec.Epoch, x, spec); err != nil {
		b.t.Fatalf("exec: %v", err)
	}
	return x
}

func wantError(t *testing.T, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: got %v, want %v", what, err, want)
	}
}

func TestStartStages(t *testing.T) {
	b := newBench(t)
	rec := record()
	stages, err := b.StartSandbox(b.ctx(), rec)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []string{"machine", "start", "guest"} {
		if stages[s] <= 0 {
			t.Errorf("stage %s took %s", s, stages[s])
		}
	}
	if k := b.shelf.has(rec.ID); k == nil || k.epoch != 3 || !k.lifetime.ExpiresAt.Equal(rec.ExpiresAt) {
		t.Errorf("kept: %+v", k)
	}
	h := b.host.Guest(rec.ID).Hello()
	if h.Sandbox != rec.ID || h.Epoch != 3 || h.Hostname != "h" || h.CPUs != 1 || h.Pids != 64 || h.DiskMB != 64 || len(h.Seed) != 64 {
		t.Errorf("the guest was told %+v", h)
	}
	_, err = b.StartSandbox(b.ctx(), rec)
	wantError(t, "start it again", err, hutch.ErrConflict)
	if b.Count() != 1 {
		t.Errorf("%d sandboxes", b.Count())
	}
}

func TestStartWithoutImage(t *testing.T) {
	b := newBench(t, func(c *Config) { c.ImagePath = func(string) (string, error) { return "", hutch.ErrNotFound } })
	_, err := b.StartSandbox(b.ctx(), record())
	wantError(t, "start", err, hutch.ErrNotFound)
	if b.Count() != 0 || b.host.Calls(fake.OpCreate) != 0 {
		t.Error("something is left")
	}
}

func TestKillStopsAStart(t *testing.T) {
	b := newBench(t)
	blocked := b.host.Blocked()
	release := b.host.Block(fake.OpStart)
	defer release()
	rec := record()
	got := make(chan error, 1)
	go func() {
		_, err := b.StartSandbox(b.ctx(), rec)
		got <- err
	}()
	<-blocked
	wantError(t, "kill by an older run", b.KillSandbox(b.ctx(), rec.ID, 2), hutch.ErrStale)
	wantError(t, "kill", b.KillSandbox(b.ctx(), rec.ID, 4), hutch.ErrSandboxGone)
	wantError(t, "the start", <-got, hutch.ErrSandboxGone)
	if left, err := b.rt.List(b.ctx()); err != nil || len(left) != 0 || b.shelf.has(rec.ID) != nil || b.Count() != 0 {
		t.Errorf("left: %v, %v, %d", left, err, b.Count())
	}
}

func TestCrashIsReportedAfterItsCommands(t *testing.T) {
	b := newBench(t)
	rec := b.start()
	for range 3 {
		b.exec(rec, hutch.ExecSpec{Cmd: "hang"})
	}
	b.host.Guest(rec.ID).OOM()
	b.reports.until(t, "sandbox")
	want := []string{"exec sandbox_gone", "exec sandbox_gone", "exec sandbox_gone", "sandbox oom"}
	if !slices.Equal(b.reports.told, want) {
		t.Errorf("told: %q, want %q", b.reports.told, want)
	}
	_, _, err := b.StartExec(b.ctx(), rec.ID, rec.Epoch, "e", hutch.ExecSpec{Cmd: "true"})
	wantError(t, "exec", err, hutch.ErrSandboxGone)
}

func TestReportsAreRepeated(t *testing.T) {
	b := newBench(t)
	rec := b.start()
	b.reports.set(hutch.ErrUnavailable)
	x := b.exec(rec, hutch.ExecSpec{Cmd: "echo kept"})
	b.reports.until(t, "refused "+string(x))
	// The sandbox's end waits for what its command has to tell.
	b.host.Guest(rec.ID).Crash()
	b.reports.set(nil)
	b.reports.until(t, "sandbox crashed")
	if res := b.reports.ends[x]; res.End != hutch.ExecExit || string(res.Stdout.Head) != "kept\n" {
		t.Errorf("reported: %+v", res)
	}
	// What can never be recorded is not told for ever.
	rec = b.start()
	b.reports.set(hutch.ErrNotFound)
	y := b.exec(rec, hutch.ExecSpec{Cmd: "true"})
	b.reports.until(t, "refused "+string(y))
	if err := b.KillSandbox(b.ctx(), rec.ID, rec.Epoch); err != nil {
		t.Errorf("kill: %v", err)
	}
}

func TestCloseLeavesWhatIsNotTold(t *testing.T) {
	b := newBench(t)
	rec := b.start()
	b.reports.set(hutch.ErrUnavailable)
	x := b.exec(rec, hutch.ExecSpec{Cmd: "hang"})
	b.host.Guest(rec.ID).Crash()
	b.reports.until(t, "refused "+string(x))
	killed := make(chan error, 1)
	n, ctx := b.Node, b.ctx()
	go func() { killed <- n.KillSandbox(ctx, rec.ID, rec.Epoch) }()
	b.Close()
	if err := <-killed; err == nil {
		t.Error("a kill was done whose command's end nobody was told")
	}
	for _, s := range b.reports.told {
		if strings.HasPrefix(s, "sandbox") {
			t.Errorf("told %q before its command's end", s)
		}
	}
	if b.shelf.has(rec.ID) == nil {
		t.Error("the keeper's note is gone, and the end is on record nowhere")
	}
}

// TestCloseDuringAKill must not leave the kill waiting for a watch that has ended.
func TestCloseDuringAKill(t *testing.T) {
	b := newBench(t)
	rec := b.start()
	blocked, release := b.host.Blocked(), b.host.Block(fake.OpKill)
	killed := make(chan error, 1)
	n, ctx := b.Node, b.ctx()
	go func() { killed <- n.KillSandbox(ctx, rec.ID, rec.Epoch) }()
	<-blocked
	b.Close()
	release()
	wantError(t, "the kill", <-killed, hutch.ErrUnavailable)
}

// One that is due and that another has ended, as the keeper may while this process stands
// still, did not crash.
func TestDeadlineHeldByAnother(t *testing.T) {
	b := newBench(t)
	due, early := b.start(), b.start()
	if err := b.SetDeadline(b.ctx(), due.ID, due.Epoch, time.Now()); err != nil {
		t.Fatal(err)
	}
	b.host.Guest(due.ID).Crash()
	b.reports.until(t, "sandbox expired")
	b.host.Guest(early.ID).Crash()
	b.reports.until(t, "sandbox crashed")
}

func TestDeadline(t *testing.T) {
	b := newBench(t)
	rec := b.start()
	b.endExpired(rec.ExpiresAt.Add(-time.Second))
	if b.Count() != 1 {
		t.Error("it was ended before its time")
	}
	at := time.Now().Add(2 * time.Hour)
	if err := b.SetDeadline(b.ctx(), rec.ID, rec.Epoch, at); err != nil {
		t.Fatal(err)
	}
	for _, id := range []hutch.SandboxID{rec.ID, b.start().ID} { // one that was changed, and one that was not
		if d := b.find(id).lifetime().ExpiresAt; d != d.Round(0) {
			t.Errorf("%v holds by the monotonic clock: a step of the wall clock, and a suspended host, would not be seen", d)
		}
	}
	b.endExpired(rec.ExpiresAt)
	if k := b.shelf.has(rec.ID); k == nil || !k.lifetime.ExpiresAt.Equal(at) {
		t.Errorf("the keeper has %+v", k)
	}
	// A new keeper that does not know the sandbox yet is given it.
	if err := b.shelf.Delete(b.ctx(), rec.ID); err != nil {
		t.Fatal(err)
	}
	if err := b.SetDeadline(b.ctx(), rec.ID, rec.Epoch, at); err != nil {
		t.Errorf("with a keeper that holds nothing: %v", err)
	}
	if k := b.shelf.has(rec.ID); k == nil || !k.lifetime.ExpiresAt.Equal(at) || len(k.Handles.Procs) == 0 {
		t.Errorf("the new keeper has %+v", k)
	}
	b.shelf.set(hutch.ErrUnavailable)
	wantError(t, "a keeper that fails", b.SetDeadline(b.ctx(), rec.ID, rec.Epoch, at.Add(time.Hour)), hutch.ErrUnavailable)
	b.shelf.set(nil)
	// A kill that fails is tried again.
	b.host.Fail(fake.OpKill, hutch.ErrInternal)
	b.endExpired(at)
	b.endExpired(at)
	b.host.Fail(fake.OpKill, nil)
	b.reports.until(t, "sandbox expired")
}

func TestEpochs(t *testing.T) {
	b := newBench(t)
	rec := b.start()
	wantError(t, "an older run", b.PauseSandbox(b.ctx(), rec.ID, 2), hutch.ErrStale)
	if err := b.PauseSandbox(b.ctx(), rec.ID, 7); err != nil {
		t.Fatal(err)
	}
	wantError(t, "the run before", b.ResumeSandbox(b.ctx(), rec.ID, 6), hutch.ErrStale)
	if k := b.shelf.has(rec.ID); k.epoch != 7 {
		t.Errorf("the keeper has epoch %d", k.epoch)
	}
	_, _, err := b.StartExec(b.ctx(), rec.ID, 7, "e", hutch.ExecSpec{Cmd: "true"})
	wantError(t, "exec while paused", err, hutch.ErrInvalidState)
	if err := b.ResumeSandbox(b.ctx(), rec.ID, 8); err != nil {
		t.Fatal(err)
	}
	if e := b.host.Guest(rec.ID).Hello().Epoch; e != 8 {
		t.Errorf("the guest was told epoch %d", e)
	}
	wantError(t, "one that is not here", b.KillSandbox(b.ctx(), "inothing", 1), hutch.ErrSandboxGone)
}
