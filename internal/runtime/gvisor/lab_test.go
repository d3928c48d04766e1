package gvisor

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/rootfs"
	"hutch.dev/hutch/internal/runtime"
	"hutch.dev/hutch/internal/template"
)

// The tests here run real sandboxes. What they need besides root:
var (
	exeFile   = os.Getenv("HUTCH_EXE") // a plain build of cmd/hutch
	rootImage = testImage()            // the base template's root image
)

// testImage is HUTCH_TEST_IMAGE, else the base template's in the cache that `make base`
// fills; empty if there is none.
func testImage() string {
	if image := os.Getenv("HUTCH_TEST_IMAGE"); image != "" {
		return image
	}
	images := rootfs.New(rootfs.Config{Dir: rootfs.CacheDir()})
	builder := template.New(template.Config{Dir: filepath.Join(rootfs.CacheDir(), "builds")}, images, slog.New(slog.DiscardHandler))
	base, err := builder.Recipe("base")
	if err != nil {
		return ""
	}
	built, err := builder.Lookup(base)
	if err != nil {
		return ""
	}
	return built.Image.Path
}

// guestImage is made from testdata/guest, once.
var guestImage string

var cgroupParent = fmt.Sprintf("hutch-gvisor-test-%d", os.Getpid())

func TestMain(m *testing.M) {
	os.Exit(testMain(m))
}

func testMain(m *testing.M) int {
	dir, err := os.MkdirTemp("", "gvtest")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	defer removeParents()
	if guestImage, err = buildGuest(dir); err != nil {
		fmt.Fprintln(os.Stderr, "build test guest:", err)
		return 1
	}
	return m.Run()
}

func buildGuest(dir string) (string, error) {
	tree := filepath.Join(dir, "tree")
	build := exec.Command("go", "build", "-trimpath", "-o", filepath.Join(tree, "hutch-guest"), "./testdata/guest")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	image := filepath.Join(dir, "guest.erofs")
	for _, cmd := range []*exec.Cmd{build, exec.Command("mkfs.erofs", "-Enoinline_data", image, tree)} {
		if out, err := cmd.CombinedOutput(); err != nil {
			return "", fmt.Errorf("%s: %w\n%s", cmd, err, out)
		}
	}
	return image, nil
}

// removeParents removes the empty directories that the tests' groups were made in.
func removeParents() {
	dirs, _ := filepath.Glob("/sys/fs/cgroup/*/" + cgroupParent)
	for _, d := range append(dirs, filepath.Join("/sys/fs/cgroup", cgroupParent)) {
		_ = unix.Rmdir(d)
	}
}

// newRuntime returns a Runtime with a state directory of its own, and fails the test
// if anything of its sandboxes is left at the end.
func newRuntime(t *testing.T) *Runtime {
	t.Helper()
	if exeFile == "" || rootImage == "" {
		t.Fatal("tests on real sandboxes need HUTCH_EXE (bin/hutch) and HUTCH_TEST_IMAGE or HUTCH_CACHE_DIR (the base template): run `make test`")
	}
	dir, err := os.MkdirTemp("", "gv") //nolint:usetesting // t.TempDir is too long for sockets
	if err != nil {
		t.Fatal(err)
	}
	r := again(dir)
	t.Cleanup(func() {
		sweepAll(t, r)
		// runsc mounts an empty network namespace there, and again if two of the
		// first creates meet.
		for unix.Unmount(filepath.Join(r.rootDir(), "null-netns"), unix.MNT_DETACH) == nil {
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return r
}

// again returns another Runtime on the same state directory, as another process would.
func again(stateDir string) *Runtime {
	return New(Config{StateDir: stateDir, Exe: exeFile, CgroupParent: cgroupParent, Log: slog.New(slog.NewTextHandler(testWriter{}, nil))})
}

// testWriter drops logs: the tests' own messages say what went wrong.
type testWriter struct{}

func (testWriter) Write(b []byte) (int, error) { return len(b), nil }

func sweepAll(t *testing.T, r *Runtime) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	ids, err := r.List(ctx)
	if err != nil {
		t.Error(err)
	}
	for _, id := range ids {
		if err := r.Sweep(ctx, id); err != nil {
			t.Error(err)
		}
	}
}

var lastID atomic.Int64

// newSpec returns the spec of a small sandbox with a fresh id on the given tier.
func newSpec(tier hutch.DiskTier) runtime.Spec {
	return runtime.Spec{
		ID:    hutch.SandboxID(fmt.Sprintf("i%07d%013d", os.Getpid(), lastID.Add(1))),
		Image: rootImage, Guest: guestImage, Hostname: "lab",
		Resources: hutch.Resources{MilliCPU: 1000, MemoryMB: 256, DiskMB: 512, DiskTier: tier, Pids: 256},
	}
}

var tiers = []hutch.DiskTier{hutch.TierDisk, hutch.TierMemory}

// create makes a sandbox that is killed at the end of the test.
func create(t *testing.T, r *Runtime, spec runtime.Spec) *sandbox {
	t.Helper()
	sb, err := r.Create(t.Context(), spec)
	if err != nil {
		t.Fatalf("create: %v", detail(err))
	}
	t.Cleanup(func() { kill(t, sb) })
	return sb.(*sandbox)
}

func kill(t *testing.T, sb runtime.Sandbox) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if err := sb.Kill(ctx); err != nil {
		t.Errorf("kill: %v", detail(err))
	}
}

// start makes a sandbox, starts it and returns it with its guest, which answers.
func start(t *testing.T, r *Runtime, spec runtime.Spec) (*sandbox, *guest) {
	t.Helper()
	s := create(t, r, spec)
	if err := s.Start(t.Context(), runtime.StartOptions{}); err != nil {
		t.Fatalf("start: %v", detail(err))
	}
	g := attach(t, s)
	g.ping(t)
	return s, g
}

// detail is the operator's side of an error.
func detail(err error) string {
	var e *hutch.Error
	if errors.As(err, &e) && e.Err != nil {
		return fmt.Sprintf("%v (%v)", err, e.Err)
	}
	return err.Error()
}

// guest talks to testdata/guest.
type guest struct {
	conn net.Conn
	mu   sync.Mutex
	next int
	wait map[int]chan reply
	done chan struct{}
}

type reply struct {
	ID   int
	Out  string
	Code int
	Err  string
}

// attach opens the guest stream anew; what an earlier one half read is lost.
func attach(t *testing.T, s *sandbox) *guest {
	t.Helper()
	conn, err := net.FileConn(s.Handles().Guest)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	g := &guest{conn: conn, wait: map[int]chan reply{}, done: make(chan struct{}), next: int(lastID.Add(1)) * 1000}
	go g.read()
	if _, err := conn.Write([]byte("\n")); err != nil { // ends a line that was cut
		t.Fatal(err)
	}
	return g
}

// detach lets go of the stream, and returns once nothing reads from it any more.
func (g *guest) detach() {
	g.conn.Close()
	<-g.done
}

func (g *guest) read() {
	defer close(g.done)
	in := bufio.NewScanner(g.conn)
	in.Buffer(nil, 64<<20)
	for in.Scan() {
		var r reply
		if json.Unmarshal(in.Bytes(), &r) != nil {
			continue
		}
		g.mu.Lock()
		if ch := g.wait[r.ID]; ch != nil {
			ch <- r
			delete(g.wait, r.ID)
		}
		g.mu.Unlock()
	}
}

// send begins a command; the answer comes on the channel.
func (g *guest) send(t *testing.T, background bool, argv ...string) <-chan reply {
	t.Helper()
	g.mu.Lock()
	g.next++
	id := g.next
	ch := make(chan reply, 1)
	g.wait[id] = ch
	g.mu.Unlock()
	b, err := json.Marshal(map[string]any{"ID": id, "Argv": argv, "Go": background})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := g.conn.Write(append(b, '\n')); err != nil {
		t.Fatalf("send to guest: %v", err)
	}
	return ch
}

func (g *guest) await(t *testing.T, ch <-chan reply) reply {
	t.Helper()
	select {
	case r := <-ch:
		if r.Err != "" {
			t.Fatalf("guest: %s", r.Err)
		}
		return r
	case <-time.After(60 * time.Second):
		t.Fatal("the guest did not answer in a minute")
		return reply{}
	}
}

func (g *guest) ping(t *testing.T) { t.Helper(); g.await(t, g.send(t, false)) }

// sh runs a shell command and returns its output; it must succeed.
func (g *guest) sh(t *testing.T, script string) string {
	t.Helper()
	r := g.try(t, script)
	if r.Code != 0 {
		t.Fatalf("in sandbox: %s\nexit code %d\n%s", script, r.Code, r.Out)
	}
	return strings.TrimSpace(r.Out)
}

// try runs a shell command that may fail.
func (g *guest) try(t *testing.T, script string) reply {
	t.Helper()
	return g.await(t, g.send(t, false, "/bin/sh", "-c", script))
}

// spawn starts a shell command and leaves it running.
func (g *guest) spawn(t *testing.T, script string) {
	t.Helper()
	g.await(t, g.send(t, true, "/bin/sh", "-c", script))
}

// until polls a condition until it holds.
func until(t *testing.T, what string, holds func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(30 * time.Second)
	for !holds() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("half a minute has passed without: %s", what)
		}
	}
}

// leftovers returns everything on the host that has to do with id.
func leftovers(t *testing.T, r *Runtime, id hutch.SandboxID) []string {
	t.Helper()
	var left []string
	procs, err := r.scan()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range procs {
		if p.id == id {
			left = append(left, fmt.Sprintf("process %d", p.pid))
		}
	}
	for _, root := range []string{"/sys/fs/cgroup/*/", "/sys/fs/cgroup/"} { // version 1, version 2
		groups, err := filepath.Glob(root + cgroupParent + "/" + string(id))
		if err != nil {
			t.Fatal(err)
		}
		left = append(left, groups...)
	}
	err = filepath.WalkDir(r.cfg.StateDir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && strings.Contains(path, string(id)) {
			left = append(left, path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return left
}

func mustBeGone(t *testing.T, r *Runtime, id hutch.SandboxID) {
	t.Helper()
	if left := leftovers(t, r, id); len(left) > 0 {
		t.Errorf("left of %s: %v", id, left)
	}
}
