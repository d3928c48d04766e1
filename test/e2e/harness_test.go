package e2e

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"hutch.dev/hutch"
	"hutch.dev/hutch/api"
	"hutch.dev/hutch/client"
	"hutch.dev/hutch/internal/egress"
	"hutch.dev/hutch/internal/keeper"
	"hutch.dev/hutch/internal/rootfs"
	"hutch.dev/hutch/internal/x/cgroup"
)

// grace is what an answer may come later than its limit on a machine that is busy with
// other tests. It bounds hangs; speed is measured elsewhere.
const grace = 10 * time.Second

// server is a running `hutch serve` with a data directory of its own.
type server struct {
	dir    string
	cmd    *exec.Cmd
	log    *syncBuffer
	client *client.Client
	exited chan error
	base   string // URL
	key    string
}

var shared struct {
	once sync.Once
	s    *server
	err  error
}

func TestMain(m *testing.M) {
	code := m.Run()
	if shared.s != nil {
		if err := shared.s.tearDown(); err != nil {
			fmt.Fprintln(os.Stderr, "tear down the shared server:", err)
			code = 1
		}
	}
	os.Exit(code)
}

// hutchBinary is the binary under test.
func hutchBinary() (string, error) {
	exe := os.Getenv("HUTCH_EXE")
	if exe == "" {
		exe = filepath.Join("..", "..", "bin", "hutch")
	}
	exe, err := filepath.Abs(exe)
	if err != nil {
		return "", err
	}
	if _, err := os.Stat(exe); err != nil {
		return "", fmt.Errorf("the binary under test is missing; run `make build base`: %w", err)
	}
	return exe, nil
}

// common returns the server that tests share which neither stop nor count.
func common(t *testing.T) *server {
	t.Helper()
	shared.once.Do(func() { shared.s, shared.err = startServer() })
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	return shared.s
}

// own returns a server that is torn down with the test.
func own(t *testing.T, args ...string) *server {
	t.Helper()
	s, err := startServer(args...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.tearDown(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Logf("server's log:\n%s", s.log.String())
		}
	})
	return s
}

func startServer(args ...string) (*server, error) {
	// Not t.TempDir: the path must be short, as sockets live below it.
	dir, err := os.MkdirTemp("", "hutch-e2e")
	if err != nil {
		return nil, err
	}
	s := &server{dir: dir}
	if err := s.start(args...); err != nil {
		if s.exited != nil { // it ran, and may have left what it started
			err = errors.Join(err, s.tearDown())
		}
		return nil, err
	}
	return s, nil
}

// start runs the server and waits until it is ready.
func (s *server) start(args ...string) error {
	exe, err := hutchBinary()
	if err != nil {
		return err
	}
	listen := filepath.Join(s.dir, "listen")
	if err := os.Remove(listen); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	s.log = &syncBuffer{}
	args = append([]string{
		"serve", "--data-dir", s.dir, "--cache-dir", rootfs.CacheDir(), "--listen", "127.0.0.1:0",
		"--prepare", "0",
	}, args...) // tests count what is on the host
	s.cmd = exec.Command(exe, args...)
	s.cmd.Stderr = s.log
	if err := s.cmd.Start(); err != nil {
		return err
	}
	s.exited = make(chan error, 1)
	go func(c *exec.Cmd, done chan<- error) { done <- c.Wait(); close(done) }(s.cmd, s.exited)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return poll(ctx, "the server is ready", func() (bool, error) {
		select {
		case err := <-s.exited:
			return false, fmt.Errorf("the server ended: %w\n%s", err, s.log.String())
		default:
		}
		addr, err := os.ReadFile(listen)
		if err != nil {
			return false, nil
		}
		key, err := os.ReadFile(filepath.Join(s.dir, "admin.key"))
		if err != nil {
			return false, nil
		}
		s.base, s.key = "http://"+strings.TrimSpace(string(addr)), strings.TrimSpace(string(key))
		res, err := http.Get(s.base + "/readyz")
		if err != nil {
			return false, nil
		}
		_ = res.Body.Close()
		if res.StatusCode != http.StatusOK {
			return false, nil
		}
		s.client, err = client.New(s.base, client.WithKey(s.key))
		return err == nil, err
	})
}

// kill9 ends the server as a crash would.
func (s *server) kill9(t *testing.T) {
	t.Helper()
	if err := s.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-s.exited
}

// tearDown ends every sandbox, the server and its companions, and removes the directory.
// It is an error if anything of it is left on the host.
func (s *server) tearDown() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var errs []error
	if s.client != nil {
		for sb, err := range s.client.Sandboxes(ctx, client.SandboxFilter{}) {
			if err != nil {
				break // it has been killed by the test
			}
			errs = append(errs, s.client.Kill(ctx, sb.ID))
		}
	}
	if s.client != nil && s.cmd.Process.Signal(syscall.Signal(0)) == nil {
		errs = append(errs, poll(ctx, "no process of the server is defunct", func() (bool, error) {
			n, err := defunct(s.cmd.Process.Pid)
			return n == 0, err
		}))
	}
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err == nil {
		if err := <-s.exited; err != nil {
			errs = append(errs, fmt.Errorf("the server ended: %w\n%s", err, s.log.String()))
		}
	}
	if k, err := keeper.Dial(ctx, s.dir); err == nil {
		errs = append(errs, k.Stop(ctx, true))
		<-k.Done()
	}
	if e, err := egress.Dial(ctx, s.dir); err == nil {
		errs = append(errs, e.Stop(ctx))
		<-e.Done()
	}
	errs = append(errs, poll(ctx, "nothing of the server is left", func() (bool, error) {
		return len(s.processes()) == 0, nil
	}))
	// The isolator keeps a mount for a data directory, an empty network namespace, which first
	// creates side by side may make twice.
	for unix.Unmount(filepath.Join(s.dir, "run", "runsc", "null-netns"), unix.MNT_DETACH) == nil {
	}
	// A server that was killed, not stopped, left the group that its sandboxes were in.
	if tree, err := cgroup.Detect(s.cgroup()); err == nil {
		errs = append(errs, tree.Remove())
	}
	return errors.Join(append(errs, os.RemoveAll(s.dir))...)
}

// processes returns the command lines of host processes that belong to this server.
func (s *server) processes() []string {
	var found []string
	procs, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, p := range procs {
		b, err := os.ReadFile(p)
		if err == nil && bytes.Contains(b, []byte(s.dir+"/")) || bytes.Contains(b, []byte(s.dir+"\x00")) {
			found = append(found, strings.ReplaceAll(string(b), "\x00", " "))
		}
	}
	return found
}

// sandboxProcesses counts this server's sentries and gofers on the host.
func (s *server) sandboxProcesses() int {
	n := 0
	for _, p := range s.processes() {
		if strings.HasPrefix(p, "runsc-") {
			n++
		}
	}
	return n
}

// create makes a sandbox that ends with the test.
func (s *server) create(t *testing.T, req api.CreateSandbox) api.Sandbox {
	t.Helper()
	if req.Template == "" {
		req.Template = "base"
	}
	if req.MemoryMB == nil {
		req.MemoryMB = ptr(512)
	}
	sb, err := s.client.CreateSandbox(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := s.client.Kill(ctx, sb.ID); err != nil && !errors.Is(err, hutch.ErrSandboxGone) && !errors.Is(err, hutch.ErrNotFound) {
			t.Error(err)
		}
	})
	return sb
}

// run runs a shell command and returns how it ended.
func (s *server) run(t *testing.T, sb hutch.SandboxID, cmd string, opts ...func(*api.ExecRequest)) api.ExecResult {
	t.Helper()
	req := api.ExecRequest{Cmd: cmd}
	for _, o := range opts {
		o(&req)
	}
	res, err := s.client.Exec(t.Context(), sb, req)
	if err != nil {
		t.Fatalf("exec %.60q: %v", cmd, err)
	}
	return res
}

// out runs a command that must succeed and returns what it printed, trimmed.
func (s *server) out(t *testing.T, sb hutch.SandboxID, cmd string, opts ...func(*api.ExecRequest)) string {
	t.Helper()
	res := s.run(t, sb, cmd, opts...)
	if res.ExitCode != 0 {
		t.Fatalf("exec %.60q: exit code %d, %s, stderr %q", cmd, res.ExitCode, res.EndReason, res.Stderr)
	}
	return strings.TrimSpace(res.Stdout)
}

// background starts a command and returns at once.
func (s *server) background(t *testing.T, sb hutch.SandboxID, cmd string, opts ...func(*api.ExecRequest)) hutch.ExecID {
	t.Helper()
	req := api.ExecRequest{Cmd: cmd, Background: true}
	for _, o := range opts {
		o(&req)
	}
	x, err := s.client.StartExec(t.Context(), sb, req)
	if err != nil {
		t.Fatalf("start %.60q: %v", cmd, err)
	}
	return x.ExecID
}

// ended waits for a command's end.
func (s *server) ended(t *testing.T, id hutch.ExecID) api.Exec {
	t.Helper()
	var x api.Exec
	eventually(t, "command "+string(id)+" has ended", func() bool {
		var err error
		if x, err = s.client.ExecRecord(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		return x.Result != nil
	})
	return x
}

// alive counts processes inside whose command line matches, as pgrep -f does.
func (s *server) alive(t *testing.T, sb hutch.SandboxID, pattern string) int {
	t.Helper()
	// The pattern is put together inside, so that the counting commands do not match it.
	script := fmt.Sprintf(`n=0; for p in /proc/[0-9]*; do if tr '\0' ' ' <$p/cmdline 2>/dev/null | grep -q -- "%s""%s"; then n=$((n+1)); fi; done; echo $n`,
		pattern[:len(pattern)/2], pattern[len(pattern)/2:])
	n, err := strconv.Atoi(s.out(t, sb, script))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func timeout(seconds float64) func(*api.ExecRequest) {
	return func(r *api.ExecRequest) { r.TimeoutSeconds = &seconds }
}

func budget(n int) func(*api.ExecRequest) { return func(r *api.ExecRequest) { r.MaxOutputBytes = &n } }

func asUser(name string) func(*api.ExecRequest) {
	return func(r *api.ExecRequest) { r.User = name }
}

func ptr[T any](v T) *T { return &v }

// within fails the test if f takes longer than limit and what a busy machine may add.
func within(t *testing.T, limit time.Duration, what string, f func()) {
	t.Helper()
	began := time.Now()
	f()
	if d := time.Since(began); d > limit+grace {
		t.Errorf("%s took %v, the limit is %v", what, d, limit)
	}
}

// eventually waits until cond holds, and fails the test if it does not for a minute.
func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := poll(ctx, what, func() (bool, error) { return cond(), nil }); err != nil {
		t.Fatal(err)
	}
}

// received waits for what a channel brings, or for its end, and fails the test if neither
// comes for a minute.
func received[T any](t *testing.T, what string, ch <-chan T) T {
	t.Helper()
	select {
	case v := <-ch:
		return v
	case <-time.After(time.Minute):
		t.Fatalf("waited in vain until %s", what)
		panic("unreachable")
	}
}

// poll asks often at first, and seldom of what takes long: many conditions are looked for in every
// process of the host, or inside, and their cost is not to be what they wait for.
func poll(ctx context.Context, what string, cond func() (bool, error)) error {
	const most = 100 * time.Millisecond
	for wait := 10 * time.Millisecond; ; wait = min(wait*5/4, most) {
		ok, err := cond()
		if err != nil || ok {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waited in vain until %s", what)
		case <-time.After(wait):
		}
	}
}

// syncBuffer is a log that is read while it is written.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

func itoa(n int) string { return strconv.Itoa(n) }

// companions counts this server's processes of a kind, "keeper" or "egress".
func (s *server) companions(name string) int { return len(s.companionPIDs(name)) }

func (s *server) companionPIDs(name string) []int {
	var pids []int
	procs, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, p := range procs {
		b, err := os.ReadFile(p)
		if err == nil && bytes.Contains(b, []byte("\x00"+name+"\x00")) && bytes.Contains(b, []byte(s.dir+"\x00")) {
			if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(p))); err == nil {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

// killCompanion ends the process of a kind as a crash would, and returns once it is gone.
func (s *server) killCompanion(t *testing.T, name string) int {
	t.Helper()
	pids := s.companionPIDs(name)
	for _, pid := range pids {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the old "+name+" is gone", func() bool {
			_, err := os.Stat(filepath.Join("/proc", itoa(pid), "exe"))
			return err != nil
		})
	}
	return len(pids)
}

// cgroup is the name of the group that this server's sandboxes are in.
func (s *server) cgroup() string {
	sum := sha256.Sum256([]byte(s.dir))
	return "hutch-" + hex.EncodeToString(sum[:])[:12]
}
