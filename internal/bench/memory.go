package bench

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// Peak is the most memory that the server's process had in use at once while files of a
// size went through it.
type Peak struct {
	Bytes int64 `json:"bytes"` // of each file
	KB    int64 `json:"kb"`    // resident set at its largest
}

// resetPeak has the kernel forget what the peak of a process's resident set was.
func resetPeak(pid int) error {
	// "5" is the reset of the peak; see proc_pid_clear_refs(5).
	if err := os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", pid), []byte("5"), 0); err != nil {
		return fmt.Errorf("reset the server's peak of memory: %w", err)
	}
	return nil
}

// readPeak is the peak since then, in KiB.
func readPeak(pid int) (int64, error) {
	text := strings.TrimSuffix(field(fmt.Sprintf("/proc/%d/status", pid), "VmHWM"), " kB")
	kb, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("read the server's peak of memory: %w", err)
	}
	return kb, nil
}

// peakOf is the server's peak while f runs; nil if the server's process is not ours to look at.
func peakOf(pid int, bytes int64, f func() error) (*Peak, error) {
	if pid == 0 {
		return nil, f()
	}
	if err := resetPeak(pid); err != nil {
		return nil, err
	}
	if err := f(); err != nil {
		return nil, err
	}
	kb, err := readPeak(pid)
	return &Peak{Bytes: bytes, KB: kb}, err
}
