// Package pidfd names processes by file descriptors, which, unlike numbers, never come
// to mean another process.
//
// Waiting costs a parked goroutine, no thread: the descriptors are watched by Go's own
// poller. For that they are put in non-blocking mode, which everybody who shares one
// sees (waitid(2) on it then answers EAGAIN rather than wait).
//
// Start with [Open] and [Wait].
package pidfd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Open returns a file for the process pid, closed on exec. That there is none is
// os.ErrProcessDone. The process must not have been reaped meanwhile, or the file may be
// another's: open one for a child of one's own, or check afterwards.
func Open(pid int) (*os.File, error) {
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if errors.Is(err, unix.ESRCH) {
		return nil, fmt.Errorf("open process %d: %w", pid, os.ErrProcessDone)
	}
	if err != nil {
		return nil, fmt.Errorf("open process %d: %w", pid, os.NewSyscallError("pidfd_open", err))
	}
	return os.NewFile(uintptr(fd), "pidfd"), nil
}

// Signal sends sig to the process; 0 only asks whether it can be sent. A process that
// is gone is os.ErrProcessDone; a file that is not a process EBADF.
func Signal(f *os.File, sig unix.Signal) error {
	err := control(f, func(fd int) error {
		return os.NewSyscallError("pidfd_send_signal", unix.PidfdSendSignal(fd, sig, nil, 0))
	})
	if errors.Is(err, unix.ESRCH) {
		return os.ErrProcessDone
	}
	return err
}

// Alive reports whether the process has not exited. One that exited and was not yet
// reaped is not alive.
func Alive(f *os.File) bool {
	exited := false
	err := control(f, func(fd int) (err error) {
		exited, err = hasExited(fd)
		return err
	})
	return err == nil && !exited
}

// Wait returns nil once the process has exited, or why ctx ended before. f may be closed
// meanwhile.
func Wait(ctx context.Context, f *os.File) error {
	dup, err := duplicate(f)
	if err != nil {
		return fmt.Errorf("watch process: %w", err)
	}
	defer func() { _ = dup.Close() }()
	return wait(ctx, dup)
}

// wait is Wait on a file that nobody else uses.
func wait(ctx context.Context, dup *os.File) error {
	stop := context.AfterFunc(ctx, func() { _ = dup.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	rc, err := dup.SyscallConn()
	if err != nil {
		return err
	}
	var pollErr error
	err = rc.Read(func(fd uintptr) (done bool) {
		done, pollErr = hasExited(int(fd))
		return done || pollErr != nil
	})
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return context.Cause(ctx)
	case err != nil:
		return fmt.Errorf("watch process: %w", err)
	case pollErr != nil:
		return fmt.Errorf("watch process: %w", pollErr)
	}
	return nil
}

// Exited returns a channel that is closed once the process has exited; it never is if
// ctx ends before. f may be closed meanwhile.
func Exited(ctx context.Context, f *os.File) (<-chan struct{}, error) {
	dup, err := duplicate(f) // now, so that f may be closed as soon as this returns
	if err != nil {
		return nil, fmt.Errorf("watch process: %w", err)
	}
	ch := make(chan struct{})
	go func() {
		defer func() { _ = dup.Close() }()
		if wait(ctx, dup) == nil {
			close(ch)
		}
	}()
	return ch, nil
}

// hasExited asks without waiting.
func hasExited(fd int) (bool, error) {
	p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	for {
		_, err := unix.Poll(p, 0)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return false, os.NewSyscallError("poll", err)
		default:
			return p[0].Revents&(unix.POLLIN|unix.POLLHUP|unix.POLLERR) != 0, nil
		}
	}
}

// duplicate returns a second, pollable file for the process of f.
func duplicate(f *os.File) (*os.File, error) {
	var dup *os.File
	err := control(f, func(fd int) error {
		n, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			return os.NewSyscallError("fcntl", err)
		}
		if err := unix.SetNonblock(n, true); err != nil {
			_ = unix.Close(n)
			return os.NewSyscallError("fcntl", err)
		}
		dup = os.NewFile(uintptr(n), "pidfd")
		return nil
	})
	return dup, err
}

func control(f *os.File, do func(fd int) error) error {
	rc, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var doErr error
	if err := rc.Control(func(fd uintptr) { doErr = do(int(fd)) }); err != nil {
		return err
	}
	return doErr
}
