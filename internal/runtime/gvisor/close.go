package gvisor

import (
	"errors"
	"fmt"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// nullNetNS is the mount that runsc makes once for a state directory and shares between
// its sandboxes: an empty network namespace.
const nullNetNS = "null-netns"

// Close gives back what the runtime holds beside its sandboxes, so that StateDir can be
// removed. It must not be called while one of them lives.
func (r *Runtime) Close() error {
	err := unix.Unmount(filepath.Join(r.rootDir(), nullNetNS), unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
	if err == nil || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) { // never made
		return nil
	}
	return fmt.Errorf("unmount %s: %w", nullNetNS, err)
}
