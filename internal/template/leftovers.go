package template

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/x/atomicfile"
)

// Leftovers names what builds left that were killed: directories that no build under way
// works in, and files that are not in their place yet. The next build removes the
// directories.
func (b *Builder) Leftovers(context.Context) ([]hutch.Trace, error) {
	var out []hutch.Trace
	entries, err := os.ReadDir(b.workDir())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list build directories: %w", err)
	}
	for _, e := range entries {
		owner, _, _ := strings.Cut(e.Name(), "-")
		used, err := b.underWay(owner)
		if err != nil {
			return nil, err
		}
		if !used {
			out = append(out, temp(b.workDir(), e))
		}
	}
	halves, err := HalfWritten(b.buildsDir())
	return append(out, halves...), err
}

// underWay reports whether a build of key is under way, by its lock. It does not make the
// lock's file, and is not in the way of a build for longer than the call takes.
func (b *Builder) underWay(key string) (bool, error) {
	f, err := os.Open(filepath.Join(b.locksDir(), key))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look at the lock of a build: %w", err)
	}
	defer f.Close()
	err = unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("look at the lock of a build: %w", err)
	}
	return false, nil
}

// HalfWritten names the files in dir that are being written or were left so: who is sure
// that nobody writes there takes them for remains.
func HalfWritten(dir string) ([]hutch.Trace, error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list files: %w", err)
	}
	var out []hutch.Trace
	for _, e := range entries {
		if ok, _ := filepath.Match(atomicfile.TempPattern, e.Name()); ok {
			out = append(out, temp(dir, e))
		}
	}
	return out, nil
}

func temp(dir string, e fs.DirEntry) hutch.Trace {
	t := hutch.Trace{Kind: hutch.TraceTemp, Name: filepath.Join(dir, e.Name())}
	if fi, err := e.Info(); err == nil {
		t.Since = fi.ModTime()
	}
	return t
}
