// Package syscalls counts system calls, for tests that hold something to how many it makes.
// It knows only what Linux counts for each thread by itself.
package syscalls

import (
	"fmt"
	"os"
	"runtime"
	"strings"
)

// Reads is how many read system calls, of any kind, f makes that the kernel counts as such. f
// must do its work on the goroutine that it is called on. A kernel that does not count them is an
// error; f is then not called.
func Reads(f func()) (int64, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before, err := reads()
	if err != nil {
		return 0, err
	}
	itself, err := reads() // to count takes reads too
	if err != nil {
		return 0, err
	}
	f()
	after, err := reads()
	return after - itself - (itself - before), err
}

// reads is how many the calling thread has made so far.
func reads() (n int64, err error) {
	b, err := os.ReadFile("/proc/thread-self/io")
	if err != nil {
		return 0, fmt.Errorf("count system calls: %w", err)
	}
	for line := range strings.Lines(string(b)) {
		if _, err := fmt.Sscanf(line, "syscr: %d", &n); err == nil {
			return n, nil
		}
	}
	return 0, fmt.Errorf("count system calls: the kernel does not")
}
