package unpack

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"hutch.dev/hutch"
)

// How layers say that something below is gone: a file of this prefix and the name of
// what is gone, or one of the whole name opaque for everything in its directory. The
// image specification reserves other names of the form metaPrefix; they mean nothing.
const (
	whiteoutPrefix = ".wh."
	metaPrefix     = whiteoutPrefix + whiteoutPrefix
	opaque         = metaPrefix + ".opq"
)

// whiteout removes what lower layers have under a name, or in a whole directory, and
// spares what the layer under way has made, before or after.
func (t *Tree) whiteout(dir, base string) error {
	if base != opaque && strings.HasPrefix(base, metaPrefix) {
		return nil
	}
	gone := strings.TrimPrefix(base, whiteoutPrefix)
	if base != opaque && (gone == "" || gone == "." || gone == "..") {
		return hutch.Errorf(hutch.CodeBadRequest, "the layer has a whiteout of %q, which is no name", gone)
	}
	p, err := t.enter(dir, false)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return err
	}
	if base == opaque {
		_, err = t.prune(p.fd)
	} else {
		_, err = t.pruneName(p.fd, p.ino, gone)
	}
	t.forgetParent()
	if err != nil {
		return fmt.Errorf("remove what the layer hides in /%s: %w", clip(dir), err)
	}
	return nil
}

// prune removes what is in the directory fd, but what the layer under way has made, and
// reports whether it is empty then.
func (t *Tree) prune(fd int) (empty bool, err error) {
	names, ino, err := list(fd)
	if err != nil {
		return false, err
	}
	empty = true
	for _, name := range names {
		gone, err := t.pruneName(fd, ino, name)
		if err != nil {
			return false, err
		}
		empty = empty && gone
	}
	return empty, nil
}

// pruneName removes one name, whose directory is fd with that inode, but what the layer
// under way has made of it or below it. gone says whether nothing is left.
func (t *Tree) pruneName(fd int, ino uint64, name string) (gone bool, err error) {
	var st unix.Stat_t
	if err := unix.Fstatat(fd, name, &st, unix.AT_SYMLINK_NOFOLLOW); errors.Is(err, unix.ENOENT) {
		return true, nil
	} else if err != nil {
		return false, err
	}
	touched := t.isTouched(ino, name)
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		if touched {
			return false, nil
		}
		return true, unix.Unlinkat(fd, name, 0)
	}
	sub, err := unix.Openat(fd, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return false, err
	}
	empty, err := t.prune(sub)
	unix.Close(sub)
	if err != nil || !empty || touched {
		return false, err
	}
	return true, unix.Unlinkat(fd, name, unix.AT_REMOVEDIR)
}

// remove removes what has a name, whoever made it.
func (t *Tree) remove(dir, base string) error {
	p, err := t.enter(dir, false)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return err
	}
	return t.removeAt(p.fd, base)
}

// removeAt removes what has a name in the directory fd, with all that is in it.
func (t *Tree) removeAt(fd int, base string) error {
	err := unix.Unlinkat(fd, base, 0)
	if !errors.Is(err, unix.EISDIR) && !errors.Is(err, unix.EPERM) {
		if errors.Is(err, unix.ENOENT) {
			return nil
		}
		t.stale = true
		return err
	}
	t.stale = true
	sub, err := unix.Openat(fd, base, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	names, _, err := list(sub)
	for _, name := range names {
		if err == nil {
			err = t.removeAt(sub, name)
		}
	}
	unix.Close(sub)
	if err != nil {
		return err
	}
	return unix.Unlinkat(fd, base, unix.AT_REMOVEDIR)
}

// list returns the names in a directory and its inode; fd may be opened with O_PATH.
func list(fd int) ([]string, uint64, error) {
	dir, ino, err := readable(fd)
	if err != nil {
		return nil, 0, err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	return names, ino, err
}

// readable opens the directory fd, which may be opened with O_PATH, for listing.
func readable(fd int) (*os.File, uint64, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, 0, err
	}
	dir, err := unix.Openat(fd, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, 0, err
	}
	return os.NewFile(uintptr(dir), "."), st.Ino, nil
}
