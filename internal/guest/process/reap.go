package process

import (
	"context"
	"encoding/binary"
	"errors"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// exit is how a leader ended.
type exit struct {
	status syscall.WaitStatus
	usage  usage
	at     time.Time
}

// usage is what the kernel says a process used, with those of its children it waited for.
type usage struct {
	cpu    time.Duration
	memory int64 // bytes, the most of any one process
}

func usageOf(r *unix.Rusage) usage {
	return usage{
		cpu:    time.Duration(r.Utime.Nano() + r.Stime.Nano()),
		memory: r.Maxrss << 10, // KiB on Linux
	}
}

// reaper waits for every child, those started here and orphans that were handed down.
//
// mu is what makes it exact: whoever starts a child holds it from before the fork until
// the child is registered, and the reaper holds it while it reaps one and looks it up.
type reaper struct {
	mu    sync.Mutex
	exits map[int]chan<- exit // by pid; each has room for its one exit
}

// run reaps whenever a child ends. Signals merge, so each one reaps all there are.
func (r *reaper) run(ctx context.Context) error {
	sig := make(chan os.Signal, 1)
	signal.Notify(sig, unix.SIGCHLD)
	defer signal.Stop(sig)
	for {
		for r.reapOne() {
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-sig:
		}
	}
}

// reapOne reaps one child that has ended; false if there is none.
func (r *reaper) reapOne() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	var status unix.WaitStatus
	var ru unix.Rusage
	pid, err := unix.Wait4(-1, &status, unix.WNOHANG, &ru)
	if errors.Is(err, unix.EINTR) {
		return true
	}
	if err != nil || pid <= 0 {
		return false
	}
	if c, ok := r.exits[pid]; ok {
		delete(r.exits, pid)
		c <- exit{status: syscall.WaitStatus(status), usage: usageOf(&ru), at: time.Now()}
	}
	return true
}

// start forks with f and registers the child that it returns.
func (r *reaper) start(f func() (pid int, err error)) (int, <-chan exit, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	pid, err := f()
	if err != nil {
		return 0, nil, err
	}
	c := make(chan exit, 1)
	r.exits[pid] = c
	return pid, c, nil
}

// signal sends sig to a child that was started here, unless it has been reaped: its pid
// could be another process's by then.
func (r *reaper) signal(pid int, sig syscall.Signal) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, ok := r.exits[pid]; !ok {
		return unix.ESRCH
	}
	return unix.Kill(pid, sig)
}

// pending reports whether a child has ended and is not reaped yet.
func (r *reaper) pending() bool {
	var info [128]byte // siginfo_t, whose si_pid stays 0 if there is none
	_, _, e := unix.Syscall6(unix.SYS_WAITID, unix.P_ALL, 0, uintptr(unsafe.Pointer(&info)), unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, 0, 0)
	return e == 0 && binary.NativeEndian.Uint32(info[siPID:]) != 0
}

// siPID is where si_pid is in a siginfo_t of SIGCHLD on 64-bit machines.
const siPID = 16
