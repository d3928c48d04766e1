// Package atomicfile puts files in place whole: whoever opens the path sees the old
// content or the new, never a part, also after a power loss.
//
// It owns the order of the steps (write, sync the file, rename, sync the directory)
// and the removal of what it began when a step fails. It does not lock: of two
// writers to one path the last rename wins.
//
// Start with [Write]; use [Install] for a file that is already on the disk.
package atomicfile

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"hutch.dev/hutch/internal/x/failpoint"
)

// TempPattern matches (path.Match) the names of the files that an interrupted Write
// leaves beside its target. Sweep a directory of them only while nobody writes there.
const TempPattern = ".*.atomic-*"

// Write puts data at path with exactly the mode perm, whatever the umask. It returns
// once the data would survive a power loss.
func Write(path string, data []byte, perm fs.FileMode) error {
	return WriteFrom(path, perm, func(w io.Writer) error {
		_, err := w.Write(data)
		return err
	})
}

// WriteFrom is Write for content that fill produces. If fill fails nothing is
// changed and its error is returned.
func WriteFrom(path string, perm fs.FileMode, fill func(io.Writer) error) (err error) {
	dir, name := filepath.Split(path)
	if dir == "" {
		dir = "."
	}
	f, err := os.CreateTemp(dir, "."+name+".atomic-*")
	if err != nil {
		return fmt.Errorf("create temporary file for %s: %w", name, err)
	}
	defer func() {
		if err != nil {
			f.Close() // closing twice is harmless
			os.Remove(f.Name())
		}
	}()
	if err := fill(f); err != nil {
		return err
	}
	if err := f.Chmod(perm); err != nil {
		return fmt.Errorf("set mode of %s: %w", name, err)
	}
	if err := f.Sync(); err != nil {
		return fmt.Errorf("sync %s: %w", name, err)
	}
	if err := f.Close(); err != nil {
		return fmt.Errorf("close %s: %w", name, err)
	}
	return rename(f.Name(), path)
}

// Install moves the file src to path, on the same file system, with mode perm, and
// returns once that would survive a power loss. If it fails, src is still there.
func Install(src, path string, perm fs.FileMode) error {
	f, err := os.Open(src)
	if err != nil {
		return fmt.Errorf("open %s: %w", filepath.Base(src), err)
	}
	defer f.Close()
	if err := f.Chmod(perm); err != nil {
		return fmt.Errorf("set mode of %s: %w", filepath.Base(src), err)
	}
	if err := f.Sync(); err != nil {
		return fmt.Errorf("sync %s: %w", filepath.Base(src), err)
	}
	return rename(src, path)
}

// SyncDir makes the names in dir durable: those added, renamed and removed.
func SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("open directory %s: %w", filepath.Base(dir), err)
	}
	defer d.Close()
	if err := d.Sync(); err != nil {
		return fmt.Errorf("sync directory %s: %w", filepath.Base(dir), err)
	}
	return nil
}

func rename(src, path string) error {
	failpoint.At(failpoint.FileWritten)
	if err := os.Rename(src, path); err != nil {
		return fmt.Errorf("put %s in place: %w", filepath.Base(path), err)
	}
	failpoint.At(failpoint.FileRenamed)
	return SyncDir(filepath.Dir(path))
}
