package daemon

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// RaiseFileLimit lets this process open as many as want files, or as many as it may
// without privilege, and returns how many that is. Fewer than least is an error.
func RaiseFileLimit(least, want int) (int, error) {
	var r unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &r); err != nil {
		return 0, os.NewSyscallError("getrlimit", err)
	}
	raised := []unix.Rlimit{
		{Cur: max(r.Cur, uint64(want)), Max: max(r.Max, uint64(want))}, // root may
		{Cur: r.Max, Max: r.Max},
	}
	for _, try := range raised {
		if unix.Setrlimit(unix.RLIMIT_NOFILE, &try) == nil {
			r = try
			break
		}
	}
	if r.Cur < uint64(least) {
		return 0, fmt.Errorf("only %d files may be open: raise the limit (LimitNOFILE) to %d or more", r.Cur, want)
	}
	return int(min(r.Cur, uint64(want))), nil
}
