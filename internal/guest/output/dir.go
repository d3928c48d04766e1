package output

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// Dir is the directory that holds the output files, one directory per command in it.
// Whoever is root in the sandbox can put anything there, so no component of the path
// is followed if it is a link, and files are always new ones.
type Dir struct {
	Path string // absolute
}

// Owner is whose files they are.
type Owner struct {
	UID, GID int
}

// File is an output file. Its directory is held open, so that it can be removed by
// that whatever the path has become.
type File struct {
	f    *os.File
	dir  int
	name string
	path string
}

// Create makes the file name in the directory of command id, readable by everybody and
// owned by o.
func (d Dir) Create(id, name string, o Owner) (*File, error) {
	parent, err := openDirs(d.Path)
	if err != nil {
		return nil, fmt.Errorf("open output directory: %w", err)
	}
	defer unix.Close(parent)
	dir, err := openOrMake(parent, id)
	if err != nil {
		return nil, fmt.Errorf("open output directory of %s: %w", id, err)
	}
	if err := unix.Fchown(dir, o.UID, o.GID); err != nil {
		unix.Close(dir)
		return nil, fmt.Errorf("change owner of output directory of %s: %w", id, err)
	}
	fd, err := createAt(dir, name, o)
	if err != nil {
		unix.Close(dir)
		return nil, fmt.Errorf("create output file of %s: %w", id, err)
	}
	return &File{f: os.NewFile(uintptr(fd), name), dir: dir, name: name, path: d.Path + "/" + id + "/" + name}, nil
}

// close closes the file, which stays.
func (f *File) close() {
	_ = f.f.Close() // nothing buffered: every write was checked
	unix.Close(f.dir)
}

// remove gives the file's room back, closes it and takes its name away.
func (f *File) remove() {
	_ = f.f.Truncate(0)                 // of no use to anybody any more
	_ = unix.Unlinkat(f.dir, f.name, 0) // may be gone already
	f.close()
}

func createAt(dir int, name string, o Owner) (int, error) {
	if err := unix.Unlinkat(dir, name, 0); err != nil && !errors.Is(err, unix.ENOENT) {
		return -1, err
	}
	fd, err := unix.Openat(dir, name, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o644)
	if err != nil {
		return -1, err
	}
	if err := unix.Fchown(fd, o.UID, o.GID); err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// openDirs opens the absolute path component by component, making what is missing.
func openDirs(path string) (int, error) {
	fd, err := unix.Open("/", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	for name := range strings.SplitSeq(strings.Trim(path, "/"), "/") {
		next, err := openOrMake(fd, name)
		unix.Close(fd)
		if err != nil {
			return -1, err
		}
		fd = next
	}
	return fd, nil
}

// openOrMake opens the directory name in parent, or makes it.
func openOrMake(parent int, name string) (int, error) {
	fd, err := openDir(parent, name)
	if !errors.Is(err, unix.ENOENT) {
		return fd, err
	}
	if err := unix.Mkdirat(parent, name, 0o755); err != nil && !errors.Is(err, unix.EEXIST) {
		return -1, err
	}
	return openDir(parent, name)
}

// openDir opens a directory that is not behind a link. It does not ask for O_DIRECTORY,
// with which gVisor follows the link all the same, and looks itself; O_NONBLOCK is for a
// pipe that somebody put there.
func openDir(parent int, name string) (int, error) {
	fd, err := unix.Openat(parent, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFDIR {
		unix.Close(fd)
		return -1, errors.Join(err, unix.ENOTDIR)
	}
	return fd, nil
}

// Free is how many bytes are left on the file system of path for everybody, and false if
// that cannot be told.
func Free(path string) (int64, bool) {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil || st.Blocks == 0 {
		return 0, false
	}
	return int64(st.Bavail) * st.Bsize, true
}
