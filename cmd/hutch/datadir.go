package main

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"hutch.dev/hutch/internal/template"
)

// cgroupParent names the control groups of a data directory's sandboxes. It is the same
// after a restart, and another for another directory: a server takes what is in its groups
// and not in its records for remains, and removes it.
func cgroupParent(dataDir string) string {
	if abs, err := filepath.Abs(dataDir); err == nil {
		dataDir = abs
	}
	sum := sha256.Sum256([]byte(dataDir))
	return "hutch-" + hex.EncodeToString(sum[:6])
}

// removeHalfWritten removes what a server that was killed left of files that it was writing in
// dirs. Nobody else writes there, and whoever calls it has the data directory's lock.
func removeHalfWritten(dirs ...string) error {
	for _, dir := range dirs {
		halves, err := template.HalfWritten(dir)
		if err != nil {
			return err
		}
		for _, h := range halves {
			if err := os.Remove(h.Name); err != nil {
				return err
			}
		}
	}
	return nil
}

// lockDir makes sure that one server works in a data directory. The lock goes with the process.
func lockDir(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, lockFile), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	// Who only looks whether a server runs (doctor, leaks) has it for a moment too.
	for tries := 0; ; tries++ {
		if err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err == nil {
			return f, nil
		}
		if tries == lockTries {
			_ = f.Close()
			return nil, fmt.Errorf("another hutch serve works in %s: stop it, or choose another --data-dir", dir)
		}
		<-time.After(lockPause)
	}
}

// A server's lock is tried for this often, with this between two tries.
const (
	lockTries = 10
	lockPause = 20 * time.Millisecond
)
