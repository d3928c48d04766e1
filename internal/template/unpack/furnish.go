package unpack

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"hutch.dev/hutch"
)

// AddDir makes a directory of root, and those above it, unless there is one; added says
// whether there was none. Links are followed in the tree. What is there and is no
// directory is hutch.ErrBadRequest.
func (t *Tree) AddDir(name string, mode uint32) (added bool, err error) {
	name = strings.TrimPrefix(path.Clean("/"+name), "/")
	fd, err := t.openDir(name)
	if err == nil {
		return false, unix.Close(fd)
	}
	if !errors.Is(err, unix.ENOENT) {
		return false, dirError(name, err)
	}
	t.touched = map[[16]byte]struct{}{} // of no layer
	if err := t.makeDirs(name, maxHops); err != nil {
		return false, dirError(name, err)
	}
	if fd, err = t.openDir(name); err != nil {
		return false, dirError(name, err)
	}
	defer unix.Close(fd)
	if err := unix.Fchmodat(fd, ".", mode, 0); err != nil {
		return false, fmt.Errorf("set the mode of /%s: %w", name, err)
	}
	return true, nil
}

// AddFile writes a file of root with mode 0644 unless something has its name.
func (t *Tree) AddFile(name string, data []byte) (added bool, err error) {
	dir, base, err := splitName(name)
	if err != nil || base == "" {
		return false, errors.Join(err, fmt.Errorf("add file %q", name))
	}
	if _, err := t.AddDir(dir, 0o755); err != nil {
		return false, err
	}
	fd, err := t.openDir(dir)
	if err != nil {
		return false, dirError(dir, err)
	}
	defer unix.Close(fd)
	file, err := unix.Openat(fd, base, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o644)
	if errors.Is(err, unix.EEXIST) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("make /%s: %w", name, err)
	}
	f := os.NewFile(uintptr(file), base)
	_, err = f.Write(data)
	err = errors.Join(err, f.Chmod(0o644), f.Close(), setTime(fd, base, time.Unix(0, 0)))
	if err != nil {
		return false, fmt.Errorf("write /%s: %w", name, err)
	}
	return true, nil
}

// ReadFile returns up to limit bytes of a regular file of the tree, nil if there is none.
// Links are followed in the tree.
func (t *Tree) ReadFile(name string, limit int64) ([]byte, error) {
	how := unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_NONBLOCK | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV,
	}
	fd, err := unix.Openat2(t.root, strings.TrimPrefix(name, "/"), &how)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("open /%s: %w", name, err)
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, err
	}
	data, err := io.ReadAll(io.LimitReader(f, limit))
	if err != nil {
		return nil, fmt.Errorf("read /%s: %w", name, err)
	}
	return data, nil
}

// Check refuses a tree in which the name of a directory that is needed belongs to
// something else, however many links lead there.
func (t *Tree) Check(name string) error {
	fd, err := t.openDir(strings.TrimPrefix(name, "/"))
	switch {
	case err == nil:
		return unix.Close(fd)
	case errors.Is(err, unix.ENOENT):
		return nil
	}
	return hutch.Errorf(hutch.CodeBadRequest, "the image has something else than a directory at /%s, where sandboxes need one: %w", strings.TrimPrefix(name, "/"), err)
}
