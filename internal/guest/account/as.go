package account

import (
	"fmt"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Do runs fn with the rights of u, on an operating system thread whose effective ids are
// the user's; what fn opens it may go on using afterwards. fn must not start goroutines
// that need those rights, or processes. Only the effective ids change: with the real and
// saved ones still root's, no process of the user can signal or trace the thread, and the
// thread can return to what it was.
func (u User) Do(fn func() error) error {
	if u.UID == 0 && u.GID == 0 && len(u.Groups) == 0 {
		return fn()
	}
	runtime.LockOSThread()
	if unix.Gettid() == unix.Getpid() {
		// The first thread's ids are what the process shows to others. It stays as it is,
		// and while it is held here fn gets another.
		defer runtime.UnlockOSThread()
		return u.doElsewhere(fn)
	}
	if err := u.enter(); err != nil {
		u.leave()
		return fmt.Errorf("take on user %s: %w", u.Name, err)
	}
	defer u.leave()
	return fn()
}

// doElsewhere is Do on another thread than the caller's.
func (u User) doElsewhere(fn func() error) (err error) {
	done := make(chan any, 1)
	go func() {
		defer func() { done <- recover() }()
		err = u.Do(fn)
	}()
	if p := <-done; p != nil {
		panic(p)
	}
	return err
}

// unchanged is the id that leaves an id as it is.
const unchanged = ^uintptr(0)

// enter changes the effective ids of the calling thread alone, which the functions of the
// standard library take care not to do.
func (u User) enter() error {
	if err := setgroups(u.Groups); err != nil {
		return err
	}
	if _, _, e := syscall.RawSyscall(unix.SYS_SETRESGID, unchanged, uintptr(u.GID), unchanged); e != 0 {
		return e
	}
	if _, _, e := syscall.RawSyscall(unix.SYS_SETRESUID, unchanged, uintptr(u.UID), unchanged); e != 0 {
		return e
	}
	return nil
}

// leave makes the calling thread root's again. One that cannot be is not used any more:
// it stays locked to its goroutine and ends with it.
func (User) leave() {
	if _, _, e := syscall.RawSyscall(unix.SYS_SETRESUID, unchanged, 0, unchanged); e != 0 {
		return
	}
	if _, _, e := syscall.RawSyscall(unix.SYS_SETRESGID, unchanged, 0, unchanged); e != 0 {
		return
	}
	if setgroups(nil) != nil {
		return
	}
	runtime.UnlockOSThread()
}

// setgroups sets the supplementary groups of the calling thread alone.
func setgroups(groups []uint32) error {
	_, _, e := syscall.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(groups)), uintptr(unsafe.Pointer(unsafe.SliceData(groups))), 0)
	if e != 0 {
		return e
	}
	return nil
}
