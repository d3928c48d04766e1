package unpack

import (
	"errors"
	"fmt"
	"os"
	"path"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"hutch.dev/hutch"
)

// parent is an open directory of the tree.
type parent struct {
	name string // as entries spell it; "" is the root
	fd   int    // O_PATH; -1 = none
	ino  uint64
}

// splitName takes an entry's name apart: the directory it is in ("" is the root) and its
// own name, which is empty for the root itself. A leading slash or "./" means nothing.
func splitName(name string) (dir, base string, err error) {
	if len(name) > maxName {
		return "", "", hutch.Errorf(hutch.CodeBadRequest, "the layer has a name of %d bytes; Linux takes %d", len(name), maxName)
	}
	if strings.ContainsRune(name, 0) {
		return "", "", hutch.Errorf(hutch.CodeBadRequest, "the layer has a name with a zero byte in it: %q", clip(name))
	}
	for part := range strings.SplitSeq(name, "/") {
		if part == ".." {
			return "", "", hutch.Errorf(hutch.CodeBadRequest, "the layer has a name that climbs: %q", clip(name))
		}
	}
	clean := strings.TrimPrefix(path.Clean("/"+name), "/")
	if clean == "" {
		return "", "", nil
	}
	dir, base = path.Split(clean)
	return strings.TrimSuffix(dir, "/"), base, nil
}

// clip shortens a name for a message.
func clip(name string) string {
	if len(name) > 200 {
		return name[:200] + "…"
	}
	return name
}

// openDir opens a directory by its name, with the tree as the root of every link on the
// way. The caller closes it. What is not there is ENOENT, what is no directory ENOTDIR.
func (t *Tree) openDir(name string) (int, error) {
	how := unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV,
	}
	if name == "" {
		name = "."
	}
	for {
		fd, err := unix.Openat2(t.root, name, &how)
		if !errors.Is(err, unix.EINTR) && !errors.Is(err, unix.EAGAIN) {
			return fd, err
		}
	}
}

// enter makes the directory of that name the current parent. make says whether to make
// it, and those above, where there is none; else it is ENOENT.
func (t *Tree) enter(name string, make bool) (parent, error) {
	if t.parent.fd >= 0 && t.parent.name == name && !t.stale {
		return t.parent, nil
	}
	t.forgetParent()
	fd, err := t.openDir(name)
	if errors.Is(err, unix.ENOENT) && make {
		if err = t.makeDirs(name, maxHops); err == nil {
			fd, err = t.openDir(name)
		}
	}
	if err != nil {
		return parent{fd: -1}, dirError(name, err)
	}
	if err := t.checkDepth(name, fd); err != nil {
		unix.Close(fd)
		return parent{fd: -1}, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		unix.Close(fd)
		return parent{fd: -1}, fmt.Errorf("look at /%s: %w", clip(name), err)
	}
	t.parent = parent{name: name, fd: fd, ino: st.Ino}
	return t.parent, nil
}

// forgetParent closes the current parent: a directory or a link on its way may be
// another one from here on.
func (t *Tree) forgetParent() {
	if t.parent.fd >= 0 {
		unix.Close(t.parent.fd)
	}
	t.parent, t.stale = parent{fd: -1}, false
}

// dirError says what is wrong with the directory an entry is in.
func dirError(name string, err error) error {
	switch {
	case errors.Is(err, unix.ENOTDIR):
		return hutch.Errorf(hutch.CodeBadRequest, "the layer puts something into /%s, which is no directory: %w", clip(name), err)
	case errors.Is(err, unix.ELOOP):
		return hutch.Errorf(hutch.CodeBadRequest, "the links on the way to /%s go in a circle: %w", clip(name), err)
	case errors.Is(err, unix.ENAMETOOLONG):
		return hutch.Errorf(hutch.CodeBadRequest, "a part of the name /%s is longer than Linux takes: %w", clip(name), err)
	case errors.Is(err, unix.ENOSYS):
		return fmt.Errorf("unpacking images needs openat2, of Linux 5.6 and newer: %w", err)
	}
	var e *hutch.Error
	if errors.As(err, &e) {
		return err
	}
	return fmt.Errorf("open /%s: %w", clip(name), err)
}

// checkDepth refuses a directory that links made deeper than any path could name.
func (t *Tree) checkDepth(name string, fd int) error {
	real, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
	if err != nil {
		return fmt.Errorf("resolve /%s: %w", clip(name), err)
	}
	if len(real)-len(t.path) > maxDepth {
		return hutch.Errorf(hutch.CodeBadRequest, "the directory /%s is nested too deeply (%d bytes of path, %d are allowed)", clip(name), len(real)-len(t.path), maxDepth)
	}
	return nil
}

// makeDirs makes what is missing of a directory's way, as 0755 of root. A link to
// something that is not there yet is followed in the tree, and its target made.
func (t *Tree) makeDirs(name string, hops int) error {
	if hops == 0 {
		return unix.ELOOP
	}
	done := ""
	for part := range strings.SplitSeq(name, "/") {
		here := path.Join(done, part)
		fd, err := t.openDir(here)
		if err == nil {
			unix.Close(fd)
			done = here
			continue
		}
		if !errors.Is(err, unix.ENOENT) {
			return err
		}
		if err := t.makeDir(done, part, hops); err != nil {
			return err
		}
		done = here
	}
	return nil
}

// makeDir makes one directory, or what the dangling link of that name leads to.
func (t *Tree) makeDir(dir, base string, hops int) error {
	fd, err := t.openDir(dir)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	err = unix.Mkdirat(fd, base, 0o755)
	if errors.Is(err, unix.EEXIST) {
		target, err := readlinkat(fd, base)
		if err != nil {
			return err
		}
		if !path.IsAbs(target) {
			target = path.Join(dir, target)
		}
		return t.makeDirs(strings.TrimPrefix(path.Clean("/"+target), "/"), hops-1)
	}
	if err != nil {
		return err
	}
	if err := unix.Fchmodat(fd, base, 0o755, 0); err != nil { // whatever the umask
		return err
	}
	if err := t.count(); err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Fstatat(fd, base, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	t.times[st.Ino] = time.Unix(0, 0)
	var above unix.Stat_t
	if err := unix.Fstat(fd, &above); err != nil {
		return err
	}
	t.touch(above.Ino, base)
	return nil
}

func readlinkat(fd int, name string) (string, error) {
	buf := make([]byte, maxName+1)
	n, err := unix.Readlinkat(fd, name, buf)
	if errors.Is(err, unix.EINVAL) {
		return "", unix.ENOTDIR // no link: a file
	}
	if err != nil {
		return "", err
	}
	return string(buf[:n]), nil
}
