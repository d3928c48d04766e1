package gvisor

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// consoleSize is how much of what the first process inside writes to its standard
// output and error is kept.
const consoleSize = 64 << 10

// newConsole returns a file for the first process's standard output and error: in
// memory, of a fixed size, the rest is refused. So whatever the sandbox writes fills
// no disk, needs nobody to read it, and never blocks.
func newConsole() (*os.File, error) {
	fd, err := unix.MemfdCreate("console", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("make console: %w", err)
	}
	f := os.NewFile(uintptr(fd), "console")
	if err := f.Truncate(consoleSize); err != nil {
		f.Close()
		return nil, fmt.Errorf("size console: %w", err)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_GROW|unix.F_SEAL_SHRINK|unix.F_SEAL_SEAL); err != nil {
		f.Close()
		return nil, fmt.Errorf("seal console: %w", err)
	}
	return f, nil
}
