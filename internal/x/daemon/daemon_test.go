package daemon_test

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"hutch.dev/hutch/internal/x/daemon"
	"hutch.dev/hutch/internal/x/pidfd"
)

// Roles of the test binary.
const (
	roleServe = "daemon-serve" // be a daemon in a directory
	roleStart = "daemon-start" // start one, say its number, and wait to be killed
	roleFail  = "daemon-fail"  // end before being ready
	roleHang  = "daemon-hang"  // never be ready
)

func TestMain(m *testing.M) {
	if len(os.Args) == 3 {
		switch os.Args[1] {
		case roleServe:
			os.Exit(serveDaemon(os.Args[2]))
		case roleStart:
			ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
			defer cancel()
			pid, err := start(ctx, os.Args[2])
			if err != nil {
				os.Exit(1)
			}
			os.Stdout.WriteString(strconv.Itoa(pid) + "\n")
			select {}
		case roleFail:
			os.Stderr.WriteString("no reason\n")
			os.Exit(3)
		case roleHang:
			c := make(chan os.Signal, 1)
			signal.Notify(c, unix.SIGTERM)
			<-c
			os.Exit(0)
		}
	}
	os.Exit(m.Run())
}

// serveDaemon tells its process number and its session to whoever connects, until TERM.
func serveDaemon(dir string) int {
	claim, err := daemon.Claim(filepath.Join(dir, "lock"))
	if err != nil {
		return 1
	}
	l, err := net.Listen("unix", filepath.Join(dir, "sock"))
	if err != nil {
		return 1
	}
	ctx, cancel := signal.NotifyContext(context.Background(), unix.SIGTERM)
	defer cancel()
	context.AfterFunc(ctx, func() { _ = l.Close() })
	claim.Ready()
	sid, _ := unix.Getsid(0)
	for {
		c, err := l.Accept()
		if err != nil {
			claim.Release()
			return 0
		}
		_, _ = io.WriteString(c, strconv.Itoa(os.Getpid())+" "+strconv.Itoa(sid)+" "+strings.Join(os.Environ(), ","))
		_ = c.Close()
	}
}

func dial(dir string) func(context.Context) (string, error) {
	return func(ctx context.Context) (string, error) {
		c, err := (&net.Dialer{}).DialContext(ctx, "unix", filepath.Join(dir, "sock"))
		if errors.Is(err, unix.ECONNREFUSED) {
			return "", os.ErrNotExist
		}
		if err != nil {
			return "", err
		}
		defer c.Close()
		b, err := io.ReadAll(c)
		return string(b), err
	}
}

func spec(dir, role string) daemon.Spec {
	exe, err := os.Executable()
	if err != nil {
		panic(err)
	}
	return daemon.Spec{Exe: exe, Args: []string{role, dir}, Env: []string{"EXTRA=1"}, Log: filepath.Join(dir, "log")}
}

// start returns the number of the daemon of dir.
func start(ctx context.Context, dir string) (int, error) {
	said, err := daemon.Start(ctx, spec(dir, roleServe), dial(dir))
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.Fields(said)[0])
}

// reap ends the daemon pid when the test ends, and returns once it is gone.
func reap(t *testing.T, pid int) {
	t.Helper()
	f, err := pidfd.Open(pid)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = pidfd.Signal(f, unix.SIGKILL)
		if err := pidfd.Wait(context.Background(), f); err != nil {
			t.Error(err)
		}
		_ = f.Close()
	})
}

func TestStartFindsTheOneThatRuns(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("HUTCH_TEST_SECRET", "x")
	said, err := daemon.Start(t.Context(), spec(dir, roleServe), dial(dir))
	if err != nil {
		t.Fatal(err)
	}
	words := strings.Fields(said)
	pid, _ := strconv.Atoi(words[0])
	reap(t, pid)
	if words[0] != words[1] {
		t.Errorf("daemon %s is in session %s: not detached", words[0], words[1])
	}
	env := strings.Split(words[2], ",")
	for _, e := range env {
		if name, _, _ := strings.Cut(e, "="); name != "PATH" && name != "EXTRA" {
			t.Errorf("daemon inherited %s", name)
		}
	}
	again, err := start(t.Context(), dir)
	if err != nil || again != pid {
		t.Errorf("second start: process %d, %v; want %d", again, err, pid)
	}
}

func TestStartAtOnceStartsOne(t *testing.T) {
	dir := t.TempDir()
	pids := make([]int, 4)
	var wg sync.WaitGroup
	for i := range pids {
		wg.Go(func() {
			var err error
			if pids[i], err = start(t.Context(), dir); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	reap(t, pids[0])
	for _, pid := range pids {
		if pid != pids[0] {
			t.Fatalf("several daemons: %v", pids)
		}
	}
}

// The daemon outlives a kill of the process that started it, and of its whole group.
func TestDaemonOutlivesItsStarter(t *testing.T) {
	dir := t.TempDir()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe, roleStart, dir)
	cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line := make([]byte, 32)
	n, err := out.Read(line)
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(line[:n])))
	if err != nil {
		t.Fatal(err)
	}
	reap(t, pid)
	if err := unix.Kill(-cmd.Process.Pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if again, err := start(t.Context(), dir); err != nil || again != pid {
		t.Errorf("after the kill: process %d, %v; want %d", again, err, pid)
	}
}

func TestStartSaysWhatWentWrong(t *testing.T) {
	dir := t.TempDir()
	_, err := daemon.Start(t.Context(), spec(dir, roleFail), dial(dir))
	if err == nil || !strings.Contains(err.Error(), "ended before it was ready") {
		t.Errorf("a daemon that fails: %v", err)
	}
	if log, err := os.ReadFile(filepath.Join(dir, "log")); err != nil || string(log) != "no reason\n" {
		t.Errorf("log: %q, %v", log, err)
	}
}

func TestStartEndsWithItsContext(t *testing.T) {
	dir := t.TempDir()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err := daemon.Start(ctx, spec(dir, roleHang), dial(dir))
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a daemon that never is ready: got %v, want DeadlineExceeded", err)
	}
	killChildren(t, roleHang)
	// Somebody holds the lock and never listens.
	claim, err := daemon.Claim(filepath.Join(dir, "lock"))
	if err != nil {
		t.Fatal(err)
	}
	defer claim.Release()
	defer killChildren(t, roleServe) // before the release: one that is slow would get the lock, and stay
	ctx, cancel = context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if _, err := daemon.Start(ctx, spec(dir, roleServe), dial(dir)); !errors.Is(err, daemon.ErrRunning) && !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a lock without a daemon: got %v", err)
	}
}

// killChildren ends the children of this process that run role.
func killChildren(t *testing.T, role string) {
	t.Helper()
	tasks, err := filepath.Glob("/proc/self/task/*/children")
	if err != nil {
		t.Fatal(err)
	}
	for _, task := range tasks {
		b, err := os.ReadFile(task)
		if err != nil {
			continue
		}
		for _, word := range strings.Fields(string(b)) {
			cmdline, _ := os.ReadFile("/proc/" + word + "/cmdline")
			if pid, err := strconv.Atoi(word); err == nil && strings.Contains(string(cmdline), role) {
				_ = unix.Kill(pid, unix.SIGTERM)
			}
		}
	}
}

func TestClaimIsExclusive(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	c, err := daemon.Claim(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := daemon.Claim(path); !errors.Is(err, daemon.ErrRunning) {
		t.Errorf("second claim: got %v, want ErrRunning", err)
	}
	c.Release()
	if c, err = daemon.Claim(path); err != nil {
		t.Errorf("claim after a release: %v", err)
	} else {
		c.Release()
	}
}

func TestRaiseFileLimit(t *testing.T) {
	n, err := daemon.RaiseFileLimit(16, 2000)
	if err != nil || n != 2000 {
		t.Errorf("RaiseFileLimit: %d, %v", n, err)
	}
	if _, err := daemon.RaiseFileLimit(1<<40, 1<<40); err == nil {
		t.Error("a limit that cannot be is granted")
	}
}
