package keeper

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// alarm rings at an instant of the wall clock, and when that clock is set. A timer of
// package time does neither: it counts monotonic time, which stands still in suspend.
type alarm struct{ f *os.File }

func newAlarm() (*alarm, error) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_REALTIME, unix.TFD_CLOEXEC|unix.TFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("make timer: %w", os.NewSyscallError("timerfd_create", err))
	}
	return &alarm{f: os.NewFile(uintptr(fd), "timerfd")}, nil
}

// set makes the alarm ring at ns, in Unix nanoseconds: at once if that is past, never
// if it is 0.
func (a *alarm) set(ns int64) error {
	if ns != 0 {
		ns = max(ns, 1) // zero would disarm, a negative instant is not allowed
	}
	spec := unix.ItimerSpec{Value: unix.NsecToTimespec(ns)}
	rc, err := a.f.SyscallConn()
	if err != nil {
		return err
	}
	var setErr error
	if err := rc.Control(func(fd uintptr) {
		setErr = unix.TimerfdSettime(int(fd), unix.TFD_TIMER_ABSTIME|unix.TFD_TIMER_CANCEL_ON_SET, &spec, nil)
	}); err != nil {
		return err
	}
	return os.NewSyscallError("timerfd_settime", setErr)
}

// wait returns when the alarm rings or the clock was set. The alarm must then be set
// anew. After close it returns os.ErrClosed.
func (a *alarm) wait() error {
	var count [8]byte
	_, err := a.f.Read(count[:])
	if errors.Is(err, unix.ECANCELED) { // the clock was set
		return nil
	}
	return err
}

func (a *alarm) close() { _ = a.f.Close() }
