package files

import (
	"context"
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// maxWalkDepth bounds how many directories a walk has open at once.
const maxWalkDepth = 512

// visit is what a walk shows of each file: where it is, and its path from where the walk
// began. What it returns says whether to go into a directory.
type visit func(p place, rel string, st unix.Stat_t) (into bool, err error)

// walker walks a tree, each directory before what is in it, in the order of the names.
// Links are not followed. File systems that the kernel makes up (proc, sys, …) are not
// walked into from others.
type walker struct {
	*actor
	ctx   context.Context
	visit visit
	// skip is told of a file or directory that cannot be looked at, and may end the walk.
	skip func(rel string, err error) error
}

// below walks what is in an open directory on the device dev.
func (w *walker) below(dir *os.File, rel string, dev uint64, depth int) error {
	after := ""
	for {
		names, more, err := namesAfter(dir, after, batch)
		if err != nil {
			return w.skip(rel, err)
		}
		for _, name := range names {
			if err := w.ctx.Err(); err != nil {
				return err
			}
			if err := w.one(place{dir, name}, join(rel, name), dev, depth); err != nil {
				return err
			}
			after = name
		}
		if !more {
			return nil
		}
	}
}

// one walks one file and what is below it.
func (w *walker) one(p place, rel string, dev uint64, depth int) error {
	st, err := p.lstat()
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return w.skip(rel, err)
	}
	into, err := w.visit(p, rel, st)
	if err != nil || !into || st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return err
	}
	if depth >= maxWalkDepth {
		return w.skip(rel, unix.ENAMETOOLONG)
	}
	f, err := w.openDir(p)
	if err != nil {
		if errors.Is(err, unix.ENOENT) {
			return nil
		}
		return w.skip(rel, err)
	}
	defer f.Close()
	if st.Dev != dev && madeUp(f) {
		return nil
	}
	return w.below(f, rel, st.Dev, depth+1)
}

// madeUp reports whether a directory is on a file system without files that anybody wrote.
func madeUp(f *os.File) bool {
	var st unix.Statfs_t
	if unix.Fstatfs(int(f.Fd()), &st) != nil {
		return false
	}
	switch st.Type {
	case unix.PROC_SUPER_MAGIC, unix.SYSFS_MAGIC, unix.CGROUP_SUPER_MAGIC, unix.CGROUP2_SUPER_MAGIC,
		unix.DEVPTS_SUPER_MAGIC, unix.DEBUGFS_MAGIC, unix.TRACEFS_MAGIC, unix.SECURITYFS_MAGIC, unix.BPF_FS_MAGIC:
		return true
	}
	return false
}

// openTree opens a directory that a walk begins with, links followed, and says on which
// device it is.
func (a *actor) openTree(abs string) (*os.File, unix.Stat_t, error) {
	var st unix.Stat_t
	f, err := a.open(unix.AT_FDCWD, abs, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if errors.Is(err, unix.ENOTDIR) {
		return nil, st, a.notDirectory(abs)
	}
	if err != nil {
		return nil, st, err
	}
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		f.Close()
		return nil, st, err
	}
	return f, st, nil
}
