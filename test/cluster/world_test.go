package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	goruntime "runtime"
	"runtime/pprof"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/control"
	"hutch.dev/hutch/internal/keeper"
	"hutch.dev/hutch/internal/node"
	"hutch.dev/hutch/internal/runtime"
	"hutch.dev/hutch/internal/runtime/fake"
	"hutch.dev/hutch/internal/store/sqlite"
	"hutch.dev/hutch/internal/x/id"
)

const (
	project = hutch.DefaultProject
	// limit tells a hang from a busy machine, and is never waited for by a test that passes:
	// ten thousand lines of a log took 22 s on two CPUs with ten times their work.
	limit = time.Minute
	// impatient is how long a server waits for a guest in tests whose guest falls silent. One
	// that is well answers within it, however busy the machine.
	impatient = 2 * time.Second
)

// world is one machine. Its host, keeper, gateway and database outlive the server.
type world struct {
	t       *testing.T
	log     *logBuffer
	host    *fake.Host
	db      *sqlite.Store
	egress  *gateway
	tally   *tally
	keepers string // directory of the keeper
	watch   *keeper.Client

	control control.Config
	node    node.Config
	budgets map[hutch.ProjectID]hutch.ProjectBudget
	*server

	next     hutch.SandboxID // that a fault walk makes
	nextExec hutch.ExecID
}

// server is one run of the server on a world.
type server struct {
	rt     *fake.Runtime
	store  faultyStore
	keeper keeperPort
	links  egressPort
	c      *control.Control
	n      *node.Node
	stop   context.CancelFunc
	runs   sync.WaitGroup
}

// newWorld makes a machine with a server on it that is ready. When the test ends nothing
// may be left of it, not a goroutine.
func newWorld(t *testing.T, tune ...func(*world)) *world {
	t.Helper()
	noGoroutines(t)
	w := &world{
		t: t, log: &logBuffer{}, host: fake.NewHost(),
		egress: &gateway{links: map[hutch.SandboxID]int{}}, tally: newTally(), keepers: t.TempDir(),
		control: control.Config{SweepInterval: 50 * time.Millisecond, Creates: 8, Queue: 64},
		node: node.Config{
			Guest: "/guest", ImagePath: func(digest string) (string, error) { return "/images/" + digest, nil },
			StartTimeout: limit, CallTimeout: 5 * time.Second, StopSlack: 100 * time.Millisecond, Silence: 5 * time.Second,
		},
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("server log:\n%s", w.log)
		}
	})
	for _, f := range tune {
		f(w)
	}
	t.Cleanup(w.host.Close)
	w.startKeeper()
	file := filepath.Join(t.TempDir(), "hutch.db")
	empty, err := emptyDatabase()
	if err == nil {
		err = os.WriteFile(file, empty, 0o600)
	}
	if err == nil {
		w.db, err = sqlite.Open(w.ctx(), file)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.db.Close() })
	tpl := hutch.Template{Name: "base", BuildID: "build-1", Image: "sha256:1", CreatedAt: time.Now()}
	if err := w.db.PutTemplate(w.ctx(), tpl); err != nil {
		t.Fatal(err)
	}
	w.start()
	t.Cleanup(func() { w.kill() })
	return w
}

// emptyDatabase is the file of a database without records. To make its tables takes longer than most
// tests, and is tested beside the store.
var emptyDatabase = sync.OnceValues(func() (content []byte, err error) {
	dir, err := os.MkdirTemp("", "hutch-cluster")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	file := filepath.Join(dir, "hutch.db")
	db, err := sqlite.Open(context.Background(), file)
	if err != nil {
		return nil, err
	}
	if err := db.Close(); err != nil {
		return nil, err
	}
	return os.ReadFile(file)
})

// ctx ends with the test, or with its patience.
func (w *world) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	w.t.Cleanup(cancel)
	return ctx
}

// startKeeper serves a real keeper, as its process does.
func (w *world) startKeeper() {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- keeper.Serve(ctx, keeper.Config{Dir: w.keepers, Build: "test", Log: w.logger()}) }()
	w.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			w.t.Errorf("keeper: %v", err)
		}
	})
	w.watch = w.dialKeeper()
	w.t.Cleanup(w.watch.Close)
}

func (w *world) dialKeeper() *keeper.Client {
	w.t.Helper()
	var c *keeper.Client
	eventually(w.t, "the keeper answers", func() (err error) {
		c, err = keeper.Dial(w.ctx(), w.keepers)
		return err
	})
	return c
}

// begin starts a server that has not recovered yet.
func (w *world) begin() {
	w.t.Helper()
	s := &server{rt: fake.New(w.host)}
	w.server = s
	s.store = faultyStore{w.db, newFaults()}
	s.keeper = keeperPort{w.dialKeeper(), newFaults()}
	if err := s.keeper.c.Attach(w.ctx()); err != nil {
		w.t.Fatal(err)
	}
	s.links = egressPort{w.egress, newFaults()}
	s.c = control.New(w.control, s.store, w.tally, w.logger())
	if err := s.c.SetProjectBudgets(w.budgets); err != nil {
		w.t.Fatal(err)
	}
	cfg := w.node
	cfg.Log = w.logger()
	s.n = node.New(cfg, s.rt, s.keeper, s.links, s.c)
	s.c.Attach(s.n)
}

// start starts a server and returns once it is ready.
func (w *world) start() {
	w.t.Helper()
	w.begin()
	if err := w.c.Recover(w.ctx()); err != nil {
		w.t.Fatalf("recover: %v", err)
	}
	w.run()
}

// run lets a server do what it does by itself.
func (w *world) run() {
	ctx, cancel := context.WithCancel(context.Background())
	s := w.server
	s.stop = cancel
	s.runs.Go(func() { _ = s.n.Run(ctx) })
	s.runs.Go(func() { _ = s.c.Run(ctx) })
}

// kill is kill -9 of the server: from one moment on nothing of it reaches the database,
// the keeper, the gateway or a sandbox, whatever it was doing.
func (w *world) kill() {
	if s := w.server; s != nil {
		w.cut()
		w.bury(s)
	}
}

// cut is the moment of the kill.
func (w *world) cut() {
	s := w.server
	w.server = nil
	for _, f := range []*faults{s.store.faults, s.keeper.faults, s.links.faults} {
		f.kill()
	}
	s.rt.Crash()
	s.keeper.c.Close()
	if s.stop != nil {
		s.stop()
	}
}

// bury is not part of the story: it ends the goroutines of a process that is gone.
func (w *world) bury(s *server) {
	s.runs.Wait()
	s.n.Close()
	s.c.Close()
}

func (w *world) restart() {
	w.t.Helper()
	w.kill()
	w.start()
}

func (w *world) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(w.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// logBuffer keeps the log for when the test fails.
type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func newID() hutch.SandboxID { return hutch.SandboxID(id.NewSandbox()) }

func newExecID() hutch.ExecID { return hutch.ExecID(id.NewExec()) }

func specOf(id hutch.SandboxID) runtime.Spec {
	return runtime.Spec{
		ID: id, Image: "/image", Guest: "/guest", Hostname: "orphan",
		Resources: hutch.Resources{MilliCPU: 1000, MemoryMB: 64, DiskMB: 64, DiskTier: hutch.TierDisk, Pids: 64},
	}
}

func request() hutch.CreateSandbox {
	return hutch.CreateSandbox{Project: project, Template: "base"}
}

// create makes a sandbox.
func (w *world) create(tune ...func(*hutch.CreateSandbox)) hutch.Sandbox {
	w.t.Helper()
	req := request()
	for _, f := range tune {
		f(&req)
	}
	sb, err := w.c.CreateSandbox(w.ctx(), req)
	if err != nil {
		w.t.Fatalf("create: %v", err)
	}
	return sb
}

// exec starts a command.
func (w *world) exec(sb hutch.Sandbox, cmd string, tune ...func(*hutch.ExecRequest)) hutch.Exec {
	w.t.Helper()
	req := hutch.ExecRequest{Spec: hutch.ExecSpec{Cmd: cmd}}
	for _, f := range tune {
		f(&req)
	}
	x, err := w.c.StartExec(w.ctx(), project, sb.ID, req)
	if err != nil {
		w.t.Fatalf("exec %q: %v", cmd, err)
	}
	return x
}

// wait returns a command once it has ended.
func (w *world) wait(x hutch.Exec) hutch.Exec {
	w.t.Helper()
	x, err := w.c.WaitExec(w.ctx(), project, x.Sandbox, x.ID)
	if err != nil {
		w.t.Fatalf("wait for %s: %v", x.ID, err)
	}
	return x
}

// wantEnd waits for a command and checks its end and output.
func (w *world) wantEnd(x hutch.Exec, end hutch.ExecEnd, code int, stdout string) hutch.Exec {
	w.t.Helper()
	x = w.wait(x)
	if r := x.Result; r.End != end || r.ExitCode != code || string(r.Stdout.Head) != stdout {
		w.t.Errorf("%q ended %s with %d and %.60q, want %s with %d and %.60q", x.Spec.Cmd, r.End, r.ExitCode, r.Stdout.Head, end, code, stdout)
	}
	return x
}

// sees waits until a command has written want to stdout.
func (w *world) sees(x hutch.Exec, want string) {
	w.t.Helper()
	eventually(w.t, fmt.Sprintf("%s wrote %q", x.ID, want), func() error {
		got := ""
		_, err := w.c.FollowExec(w.ctx(), project, x.Sandbox, x.ID, hutch.FollowOptions{NoWait: true}, collect(&got))
		if err == nil && !strings.Contains(got, want) {
			err = fmt.Errorf("it wrote %q so far", got)
		}
		return err
	})
}

// collect is a sink that adds what comes on stdout to s.
func collect(s *string) func(hutch.OutputEvent) error {
	return func(ev hutch.OutputEvent) error {
		if ev.Stream == hutch.Stdout {
			*s += string(ev.Data)
		}
		return nil
	}
}

// guest returns the guest of a sandbox as soon as there is one.
func (w *world) guest(id hutch.SandboxID) *fake.Guest {
	w.t.Helper()
	var g *fake.Guest
	eventually(w.t, "there is a guest", func() error {
		if g = w.host.Guest(id); g == nil {
			return errors.New("not yet")
		}
		return nil
	})
	return g
}

// wantError checks an error's code.
func wantError(t testing.TB, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: got %v, want %v", what, err, want)
	}
}

// eventually polls until f is content: often at first, and seldom what takes long, since questions
// cost what the server is waited for to use.
func eventually(t testing.TB, what string, f func() error) {
	t.Helper()
	deadline := time.NewTimer(limit)
	defer deadline.Stop()
	for wait := 2 * time.Millisecond; ; wait = min(wait*5/4, 50*time.Millisecond) {
		err := f()
		if err == nil {
			return
		}
		select {
		case <-time.After(wait):
		case <-deadline.C:
			t.Fatalf("%s: not in %s: %v", what, limit, err)
		}
	}
}

// within waits for a channel.
func within[T any](t testing.TB, what string, ch <-chan T) T {
	t.Helper()
	select {
	case v := <-ch:
		return v
	case <-time.After(limit):
		t.Fatalf("%s: not in %s", what, limit)
		panic("unreachable")
	}
}

// worldLabel is on every goroutine that comes of a world, those of timers excepted: what TestMain
// counts in the end are all.
const worldLabel = "world"

var worlds atomic.Int64

// noGoroutines sees to it that nothing that the test starts from now on is left when it ends.
// Other tests may run beside it.
func noGoroutines(t testing.TB) {
	name := strconv.FormatInt(worlds.Add(1), 10)
	pprof.SetGoroutineLabels(pprof.WithLabels(t.Context(), pprof.Labels(worldLabel, name)))
	t.Cleanup(func() {
		pprof.SetGoroutineLabels(context.Background())
		if t.Failed() {
			return // what failed may well have left some
		}
		eventually(t, "no goroutine is left", func() error {
			left, err := labelled(fmt.Sprintf("%q:%q", worldLabel, name))
			if err == nil && left != "" {
				err = errors.New(left)
			}
			return err
		})
	})
}

// labelled returns the stacks of the goroutines that have a label, as the profile shows it.
func labelled(label string) (string, error) {
	var b strings.Builder
	if err := pprof.Lookup("goroutine").WriteTo(&b, 1); err != nil {
		return "", err
	}
	var found []string
	for record := range strings.SplitSeq(b.String(), "\n\n") {
		if strings.Contains(record, label) {
			found = append(found, record)
		}
	}
	return strings.Join(found, "\n\n"), nil
}

func TestMain(m *testing.M) {
	// The first use of os/signal, which the keeper makes, leaves a goroutine for good.
	ch := make(chan os.Signal, 1)
	signal.Notify(ch, syscall.SIGUSR2)
	signal.Stop(ch)
	before := goruntime.NumGoroutine()
	code := m.Run()
	for end := time.Now().Add(limit); code == 0 && goruntime.NumGoroutine() > before; <-time.After(time.Millisecond) {
		if time.Now().After(end) {
			_ = pprof.Lookup("goroutine").WriteTo(os.Stderr, 1)
			fmt.Fprintf(os.Stderr, "%d goroutines are left, %d were there before\n", goruntime.NumGoroutine(), before)
			code = 1
		}
	}
	os.Exit(code)
}
