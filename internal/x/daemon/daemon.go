// Package daemon starts processes that outlive the one that starts them, at most one of
// a kind in a directory, and finds those that run already.
//
// It owns the lock file, the hand-shake of a start and what a detached process inherits:
// a session of its own, no terminal, no parent-death signal, an almost empty
// environment, a log file. It does not watch or restart: a daemon's client notices its
// end by the connection.
//
// Start with [Start] on the one side, [Claim] and [Claimed.Ready] on the other.
package daemon

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"hutch.dev/hutch/internal/x/failpoint"
)

// readyEnv names the descriptor on which a daemon says how its start went.
const readyEnv = "HUTCH_READY_FD"

// What a daemon says there.
const (
	saysReady   = "ready\n"
	saysRunning = "running\n"
)

// Where another process is just coming or going, a start is tried again this often.
const (
	firstRetry = 10 * time.Millisecond
	lastRetry  = 500 * time.Millisecond
)

// startTime bounds a start, for callers that set no deadline of their own.
const startTime = 30 * time.Second

// ErrRunning says that another process of this kind runs in this directory.
var ErrRunning = errors.New("another one is running in this directory")

// Spec says how to start a daemon.
type Spec struct {
	Exe  string
	Args []string // without the program's name
	Env  []string // on top of PATH; nothing else is inherited, and secrets stay behind
	Log  string   // file that its output is appended to
}

// Start returns what dial connects to: the daemon that runs, else one that it starts. A
// dial that fails with fs.ErrNotExist means that none runs; any other failure is
// returned. It gives up when ctx ends, or after half a minute; a daemon that was started meanwhile runs on.
func Start[T any](ctx context.Context, spec Spec, dial func(context.Context) (T, error)) (T, error) {
	var none T
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	for pause := firstRetry; ; pause = min(2*pause, lastRetry) {
		c, err := dial(ctx)
		if !errors.Is(err, fs.ErrNotExist) {
			return c, err
		}
		// ErrRunning: another one has the lock, and either is about to listen or has
		// stopped to and is about to end.
		if err = spawn(ctx, spec); err != nil && !errors.Is(err, ErrRunning) {
			return none, err
		}
		if err == nil {
			return dial(ctx)
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return none, fmt.Errorf("%w, and does not answer: %w", err, context.Cause(ctx))
		}
	}
}

// spawn starts the daemon and waits for its word.
func spawn(ctx context.Context, spec Spec) error {
	out, err := os.OpenFile(spec.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = out.Close() }()
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer func() { _ = r.Close() }()

	cmd := exec.CommandContext(context.WithoutCancel(ctx), spec.Exe, spec.Args...)
	cmd.Dir = "/"
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), readyEnv + "=3"}, spec.Env...)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.ExtraFiles = []*os.File{w}
	cmd.SysProcAttr = &unix.SysProcAttr{Setsid: true}
	err = cmd.Start()
	_ = w.Close()
	if err != nil {
		return fmt.Errorf("start %s: %w", spec.Exe, err)
	}
	failpoint.At(failpoint.DaemonSpawned)
	// Its exit is nobody's business but must be collected; if this process ends first,
	// init does it.
	go func() { _ = cmd.Wait() }()

	stop := context.AfterFunc(ctx, func() { _ = r.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	said, err := io.ReadAll(io.LimitReader(r, 64))
	switch {
	case err != nil:
		return fmt.Errorf("start %s: wait until it is ready: %w", spec.Exe, errors.Join(context.Cause(ctx), err))
	case bytes.Equal(said, []byte(saysReady)):
		return nil
	case bytes.Equal(said, []byte(saysRunning)):
		return ErrRunning
	}
	return fmt.Errorf("start %s: it ended before it was ready; see %s", spec.Exe, spec.Log)
}

// Claimed is the right to be the one daemon of its kind in a directory.
type Claimed struct{ lock, ready *os.File }

// Claim takes the lock file at path, which the system releases when the process ends,
// however that happens. If another process has it, that is ErrRunning, and whoever
// started this one is told.
func Claim(path string) (*Claimed, error) {
	c := &Claimed{ready: readyFile()}
	lock, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		c.say("")
		return nil, err
	}
	rc, err := lock.SyscallConn()
	if err != nil {
		return nil, err
	}
	var lockErr error
	if err := rc.Control(func(fd uintptr) { lockErr = unix.Flock(int(fd), unix.LOCK_EX|unix.LOCK_NB) }); err != nil {
		return nil, err
	}
	if lockErr != nil {
		_ = lock.Close()
		if errors.Is(lockErr, unix.EWOULDBLOCK) {
			c.say(saysRunning)
			return nil, ErrRunning
		}
		c.say("")
		return nil, os.NewSyscallError("flock", lockErr)
	}
	c.lock = lock
	return c, nil
}

// Ready tells whoever started this process that it can be called.
func (c *Claimed) Ready() { c.say(saysReady) }

// Release gives the claim up.
func (c *Claimed) Release() {
	c.say("")
	_ = c.lock.Close()
}

// say sends the one word there is to say and closes the pipe; a failure means that
// nobody listens any more.
func (c *Claimed) say(word string) {
	if c.ready == nil {
		return
	}
	_, _ = io.WriteString(c.ready, word)
	_ = c.ready.Close()
	c.ready = nil
}

// readyFile is the pipe to whoever started this process; nil if it asked for no word.
func readyFile() *os.File {
	n, err := strconv.Atoi(os.Getenv(readyEnv))
	if err != nil || n < 3 {
		return nil
	}
	_ = os.Unsetenv(readyEnv) // not for children, nor for a second claim
	unix.CloseOnExec(n)
	return os.NewFile(uintptr(n), "ready")
}
