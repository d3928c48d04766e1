package pidfd_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"hutch.dev/hutch/internal/x/pidfd"
)

// sleeper starts a process that would run for long, and returns a file for it.
func sleeper(t *testing.T) (*exec.Cmd, *os.File) {
	t.Helper()
	cmd := exec.Command("sleep", "120")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	f, err := pidfd.Open(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return cmd, f
}

func TestWaitReturnsAtExit(t *testing.T) {
	_, f := sleeper(t)
	if !pidfd.Alive(f) {
		t.Fatal("a running process is not alive")
	}
	got := make(chan error, 1)
	go func() { got <- pidfd.Wait(t.Context(), f) }()
	if err := pidfd.Signal(f, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := <-got; err != nil {
		t.Fatalf("Wait: %v", err)
	}
	if pidfd.Alive(f) {
		t.Error("a process that exited and was not reaped is alive")
	}
	if err := pidfd.Wait(t.Context(), f); err != nil {
		t.Errorf("Wait after the exit: %v", err)
	}
}

func TestSignalAfterReapingIsProcessDone(t *testing.T) {
	cmd, f := sleeper(t)
	if err := pidfd.Signal(f, 0); err != nil {
		t.Fatalf("signal 0 to a living process: %v", err)
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	if err := pidfd.Signal(f, unix.SIGKILL); !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("Signal after reaping: got %v, want ErrProcessDone", err)
	}
	if _, err := pidfd.Open(cmd.Process.Pid); !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("Open after reaping: got %v, want ErrProcessDone", err)
	}
}

func TestSignalNeedsAProcess(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	if err := pidfd.Signal(r, 0); !errors.Is(err, unix.EBADF) {
		t.Errorf("Signal through a pipe: got %v, want EBADF", err)
	}
}

func TestWaitEndsWithItsContext(t *testing.T) {
	_, f := sleeper(t)
	cause := errors.New("changed my mind")
	ctx, cancel := context.WithCancelCause(t.Context())
	got := make(chan error, 1)
	go func() { got <- pidfd.Wait(ctx, f) }()
	cancel(cause)
	if err := <-got; !errors.Is(err, cause) {
		t.Errorf("Wait: got %v, want the cause", err)
	}
	if err := pidfd.Signal(f, 0); err != nil {
		t.Errorf("the file is of no use after a cancelled Wait: %v", err)
	}
}

func TestWaitSurvivesClosingTheFile(t *testing.T) {
	cmd, f := sleeper(t)
	exited, err := pidfd.Exited(t.Context(), f)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-exited
}

// Five hundred sandboxes must not cost five hundred threads. They begin to wait a few at a
// time: begun at once, each would be in a system call on its way to waiting, and what
// Go then takes in threads says how loaded the machine is, not what a wait costs.
func TestWaitingTakesNoThread(t *testing.T) {
	_, f := sleeper(t)
	const waits = 500
	const beginning = 10 // at once; it leaves room for files of the tests before that are still being closed
	ctx, cancel := context.WithCancel(t.Context())
	before, files := threads(t), entries(t, "/proc/self/fd")
	ended := make(chan error, waits)
	for i := range waits {
		go func() { ended <- pidfd.Wait(ctx, f) }()
		// Each duplicates f before it waits, so that many open files show that they do.
		eventually(t, "it waits", func() bool { return entries(t, "/proc/self/fd") > files+i-beginning })
	}
	if after := threads(t); after > before+20 {
		t.Errorf("%d waits took %d threads", waits, after-before)
	}
	cancel()
	for range waits {
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Fatalf("Wait: %v", err)
		}
	}
}

func threads(t *testing.T) int { return entries(t, "/proc/self/task") }

func entries(t *testing.T, dir string) int {
	t.Helper()
	e, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	return len(e)
}

// eventually polls a condition, for ten seconds at most.
func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	deadline := time.After(10 * time.Second)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("not within ten seconds: %s", what)
		}
	}
}
