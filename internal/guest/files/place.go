package files

import (
	"errors"
	"os"
	"path"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"hutch.dev/hutch"
)

// maxLinks is how many links in a row the last name of a path may lead through, as Linux
// has it.
const maxLinks = 40

// absolute makes what a caller asked for an absolute path without "." and "..".
func (a *actor) absolute(name string) (string, error) {
	switch {
	case name == "":
		return "", badPath("is empty")
	case strings.IndexByte(name, 0) >= 0:
		return "", badPath("has a zero byte")
	case len(name) >= hutch.MaxPathBytes: // the kernel counts the zero byte at the end
		return "", badPath("is longer than %d bytes", hutch.MaxPathBytes-1)
	}
	switch home := a.user.Home; {
	case name[0] == '/':
	case name == "~":
		name = home
	case strings.HasPrefix(name, "~/"):
		name = home + name[1:]
	case name[0] == '~':
		return "", badPath("%s: only ~ and ~/… are known; for another user's home give the whole path, for a file of that name ./%s", shown(name), name)
	default:
		name = home + "/" + name
	}
	if name = path.Clean(name); len(name) >= hutch.MaxPathBytes {
		return "", badPath("is longer than %d bytes", hutch.MaxPathBytes-1)
	}
	return name, nil
}

// open opens a path relative to the directory dir, or an absolute one. Links are followed
// unless flags forbid it, but none of the kernel's own (/proc/…/fd, cwd, root, exe): the
// agent's threads may follow those of the agent where a process of the user may not.
func open(dir int, name string, flags uint64, mode uint64) (*os.File, error) {
	return asFile(name)(openFD(dir, name, flags, mode))
}

// openFD is open for callers who need no os.File, which asks the kernel what it has been
// given, and may have a poller watch it.
func openFD(dir int, name string, flags uint64, mode uint64) (int, error) {
	resolve := uint64(unix.RESOLVE_NO_MAGICLINKS)
	if flags&unix.O_NOFOLLOW != 0 {
		// gVisor follows a link in spite of O_NOFOLLOW if O_DIRECTORY is there too.
		resolve |= unix.RESOLVE_NO_SYMLINKS
	}
	return openat2(dir, name, unix.OpenHow{Flags: flags, Mode: mode, Resolve: resolve})
}

func openat2(dir int, name string, how unix.OpenHow) (int, error) {
	how.Flags |= unix.O_CLOEXEC
	for {
		fd, err := unix.Openat2(dir, name, &how)
		if !errors.Is(err, unix.EINTR) && !errors.Is(err, unix.EAGAIN) {
			return fd, err
		}
	}
}

// asFile makes an os.File of what was opened under a name.
func asFile(name string) func(fd int, err error) (*os.File, error) {
	return func(fd int, err error) (*os.File, error) {
		if err != nil {
			return nil, err
		}
		return os.NewFile(uintptr(fd), name), nil
	}
}

// open is open, without what lies about the agent itself.
func (a *actor) open(dir int, name string, flags uint64, mode uint64) (*os.File, error) {
	return asFile(name)(a.openFD(dir, name, flags, mode))
}

// openFD is openFD, without what lies about the agent itself.
func (a *actor) openFD(dir int, name string, flags uint64, mode uint64) (int, error) {
	fd, err := openFD(dir, name, flags, mode)
	if err == nil && !a.root() {
		if err = aboutAgent(fd); err != nil {
			unix.Close(fd)
			return -1, err
		}
	}
	return fd, err
}

// aboutAgent refuses what the kernel shows of the agent's process. A thread may look into
// its own process's fd directory and memory map whatever its ids are.
func aboutAgent(fd int) error {
	var st unix.Statfs_t
	if err := unix.Fstatfs(fd, &st); err != nil || st.Type != unix.PROC_SUPER_MAGIC {
		return err
	}
	name, err := pathOf(fd)
	if err != nil {
		return err
	}
	for part := range strings.SplitSeq(name, "/") {
		if _, err := strconv.ParseUint(part, 10, 31); err != nil {
			continue
		}
		// A thread's number is as good as its process's: the kernel shows the same there.
		if err := unix.Access("/proc/self/task/"+part, unix.F_OK); err == nil {
			return unix.EACCES
		}
	}
	return nil
}

// realPath is where an open file is, with no links left.
func realPath(f *os.File) (string, error) { return pathOf(int(f.Fd())) }

func pathOf(fd int) (string, error) {
	return readlink(unix.AT_FDCWD, "/proc/self/fd/"+strconv.Itoa(fd))
}

func readlink(dir int, name string) (string, error) {
	buf := make([]byte, hutch.MaxPathBytes)
	n, err := unix.Readlinkat(dir, name, buf)
	if err != nil {
		return "", err
	}
	return string(buf[:n]), nil
}

// place is a name in a directory that is open. Close gives the directory back.
type place struct {
	dir  *os.File
	name string // "." is the directory itself
}

func (p place) fd() int { return int(p.dir.Fd()) }
func (p place) Close()  { _ = p.dir.Close() }

// lstat describes what is there, links not followed.
func (p place) lstat() (st unix.Stat_t, err error) {
	err = unix.Fstatat(p.fd(), p.name, &st, unix.AT_SYMLINK_NOFOLLOW)
	return st, err
}

// place opens the directory in which an absolute path's last name is. That name need not
// exist, and is not followed if it is a link.
func (a *actor) place(abs string) (place, error) {
	dir, name := path.Split(abs)
	if name == "" {
		name = "."
	}
	f, err := a.open(unix.AT_FDCWD, dir, unix.O_PATH|unix.O_DIRECTORY, 0)
	return place{f, name}, err
}

// follow is where p leads if it is a link, and p itself if it is not: to a name that is no
// link, or to one that does not exist yet. It takes p.
func (a *actor) follow(p place) (place, error) {
	for range maxLinks {
		next, err := a.followOnce(p)
		if err != nil || next.dir == p.dir {
			if err != nil {
				p.Close()
			}
			return p, err
		}
		p.Close()
		p = next
	}
	p.Close()
	return p, unix.ELOOP
}

// followOnce is where p leads if it is a link, else p.
func (a *actor) followOnce(p place) (place, error) {
	st, err := p.lstat()
	if errors.Is(err, unix.ENOENT) {
		return p, nil
	}
	if err != nil || st.Mode&unix.S_IFMT != unix.S_IFLNK {
		return p, err
	}
	target, err := readlink(p.fd(), p.name)
	if err != nil {
		return p, err
	}
	dir, name := path.Split(target)
	if name == "" || name == "." || name == ".." { // it can only be a directory
		dir, name = target, "."
	}
	if !strings.HasPrefix(dir, "/") {
		dir = "./" + dir
	}
	f, err := a.open(p.fd(), dir, unix.O_PATH|unix.O_DIRECTORY, 0)
	return place{f, name}, err
}
