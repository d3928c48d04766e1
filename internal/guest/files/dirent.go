package files

import (
	"errors"
	"io"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// batch is how many names of a directory are held at once. A directory that has more is
// read once for each batch.
const batch = 16 << 10

// openDir opens a directory below another for reading. A link is not followed.
func (a *actor) openDir(p place) (*os.File, error) {
	return a.open(p.fd(), p.name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
}

// namesAfter are the first k names of a directory in their order that come after a given
// one, and whether there are more. It holds no more than twice as many.
func namesAfter(dir *os.File, after string, k int) (names []string, more bool, err error) {
	if _, err := dir.Seek(0, io.SeekStart); err != nil {
		return nil, false, err
	}
	buf := chunks.Get().(*[]byte)
	defer chunks.Put(buf)
	var read []string
	full := false // names has the k smallest so far
	for {
		n, err := unix.ReadDirent(int(dir.Fd()), *buf)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return nil, false, err
		}
		if n <= 0 {
			break
		}
		_, _, read = unix.ParseDirent((*buf)[:n], -1, read[:0])
		for _, name := range read {
			if name <= after || isTemp(name) {
				continue
			}
			if full && name >= names[k-1] {
				more = true
				continue
			}
			if names = append(names, name); len(names) == 2*k {
				slices.Sort(names)
				names, full, more = names[:k], true, true
			}
		}
	}
	slices.Sort(names)
	if len(names) > k {
		names, more = names[:k], true
	}
	return names, more, nil
}

// hidden reports whether a name is one that ls(1) does not show.
func hidden(name string) bool { return strings.HasPrefix(name, ".") }
