package account

import (
	"errors"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// maxFile is the most that is read of either file: room for tens of thousands of users.
	maxFile = 4 << 20
	// maxKept is the longest file that is kept in memory: a thousand users, in a sandbox that
	// has a few dozen.
	maxKept = 64 << 10
	// settled is how long ago a file must have been changed for what is read of it to be kept.
	// With a younger one the next change could bear the same time, on a kernel whose clock for
	// files ticks slowly.
	settled = time.Second
)

// Cache keeps what the two files said when they were read last. In a sandbox whose CPUs are
// all busy each system call of the agent waits its turn, and to read both files takes fourteen:
// to see that they are still the same takes two. The zero value is empty. Its methods are
// safe for concurrent use.
type Cache struct {
	mu   sync.Mutex
	kept map[string]kept // by path

	now func() time.Time // nil: time.Now
}

// kept is what a file says, and how it was known by then.
type kept struct {
	stamp
	data []byte
}

// stamp changes with a file's bytes, whoever writes them: programs can set the other times of a file,
// and not this one. (What they write through shared memory no stamp shows in gVisor. Nobody
// edits a list of users so, and whoever does fools his own sandbox only.)
type stamp struct {
	dev, ino uint64
	size     int64
	changed  unix.Timespec
}

func stampOf(st *unix.Stat_t) stamp {
	return stamp{dev: st.Dev, ino: st.Ino, size: st.Size, changed: st.Ctim}
}

// read is readFile, from memory where that is the same.
func (c *Cache) read(path string) ([]byte, error) {
	if c == nil {
		data, _, err := readFile(path)
		return data, err
	}
	c.mu.Lock()
	old, ok := c.kept[path]
	c.mu.Unlock()
	if ok {
		var st unix.Stat_t
		if err := unix.Stat(path, &st); err == nil && stampOf(&st) == old.stamp {
			return old.data, nil
		}
	}
	data, stamp, err := readFile(path)
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now
	if c.now != nil {
		now = c.now
	}
	if age := now().Sub(time.Unix(stamp.changed.Unix())); err != nil || len(data) > maxKept || age < settled {
		delete(c.kept, path)
		return data, err
	}
	if c.kept == nil {
		c.kept = map[string]kept{}
	}
	c.kept[path] = kept{stamp, data}
	return data, nil
}

// look is one look at the files: each is read when it is first asked for, and once.
type look struct {
	users, groups func() ([]byte, error)
}

func (d Database) look() *look {
	return &look{
		users:  sync.OnceValues(func() ([]byte, error) { return d.Cache.read(d.Passwd) }),
		groups: sync.OnceValues(func() ([]byte, error) { return d.Cache.read(d.Group) }),
	}
}

// errNotRegular says that a file which should list users or groups is something else.
var errNotRegular = errors.New("not a regular file")

// readFile reads a bounded part of a regular file, or of the one a link leads to, by as few
// system calls as it can be done. It never waits: a pipe in the file's place, which nobody
// writes to, is opened without blocking and then refused with errNotRegular.
func readFile(path string) ([]byte, stamp, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, stamp{}, err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, stamp{}, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, stamp{}, errNotRegular
	}
	data, err := readAll(fd, st.Size)
	return data, stampOf(&st), err
}

// readAll reads up to maxFile bytes, of which there seem to be size.
func readAll(fd int, size int64) ([]byte, error) {
	// One byte more than there should be: a read that is short is the end, but in a file that
	// the kernel makes up, which says it has none.
	b := make([]byte, min(max(size, 511)+1, maxFile))
	n := 0
	for {
		k, err := unix.Read(fd, b[n:])
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return nil, err
		}
		n += k
		if k == 0 || size > 0 && n < len(b) && int64(n) >= size || n == maxFile {
			return b[:n], nil
		}
		if n == len(b) {
			more := make([]byte, min(2*n, maxFile))
			copy(more, b)
			b = more
		}
	}
}
