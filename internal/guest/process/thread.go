package process

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// setgroups sets the supplementary groups of the calling thread alone.
func setgroups(groups []uint32) error {
	_, _, e := syscall.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(groups)), uintptr(unsafe.Pointer(unsafe.SliceData(groups))), 0)
	if e != 0 {
		return e
	}
	return nil
}
