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

// Close gives back what the runtime holds beside its sandboxes: the mount, so that StateDir
// can be removed, and the parent of the sandboxes' control groups. It must not be called
// while one of them lives.
func (r *Runtime) Close() error {
	var err error
	for err == nil { // creates side by side have been seen to make it twice
		err = unix.Unmount(filepath.Join(r.rootDir(), nullNetNS), unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
	}
	if !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) { // not there, or no more
		return fmt.Errorf("unmount %s: %w", nullNetNS, err)
	}
	tree, err := r.tree()
	if err != nil {
		return err
	}
	return tree.Remove()
}
