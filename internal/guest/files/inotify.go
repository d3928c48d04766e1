package files

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// rawEvent is one event as the kernel tells it.
type rawEvent struct {
	wd     int32
	mask   uint32
	cookie uint32 // the same in both halves of a rename
	name   string // of what it happened to, in the directory wd; empty = that directory
}

// wanted is what is asked of a directory. Only directories are watched, and no link to one.
const wanted = unix.IN_CREATE | unix.IN_MODIFY | unix.IN_ATTRIB | unix.IN_DELETE | unix.IN_MOVED_FROM | unix.IN_MOVED_TO |
	unix.IN_DELETE_SELF | unix.IN_MOVE_SELF | unix.IN_ONLYDIR | unix.IN_EXCL_UNLINK

// inotify is the kernel's queue of events.
type inotify struct {
	fd   int      // that of file; kept apart, since asking for it makes the file a blocking one
	file *os.File // waits in the runtime's poller, so that Close ends a Read
	buf  [16 << 10]byte
}

func newInotify() (*inotify, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, err
	}
	return &inotify{fd: fd, file: os.NewFile(uintptr(fd), "inotify")}, nil
}

// read waits for events. os.ErrClosed is the end.
func (n *inotify) read() ([]rawEvent, error) {
	m, err := n.file.Read(n.buf[:])
	if err != nil {
		return nil, err
	}
	return parseEvents(n.buf[:m]), nil
}

// parseEvents takes apart what was read.
func parseEvents(b []byte) (events []rawEvent) {
	for len(b) >= unix.SizeofInotifyEvent {
		e := rawEvent{
			wd:     int32(binary.NativeEndian.Uint32(b)),
			mask:   binary.NativeEndian.Uint32(b[4:]),
			cookie: binary.NativeEndian.Uint32(b[8:]),
		}
		n := binary.NativeEndian.Uint32(b[12:])
		b = b[unix.SizeofInotifyEvent:]
		if uint64(n) > uint64(len(b)) {
			return events
		}
		name, _, _ := bytes.Cut(b[:n], []byte{0}) // filled up with zero bytes
		e.name = string(name)
		b = b[n:]
		events = append(events, e)
	}
	return events
}

// add watches an open directory: by its descriptor, since a path may lead elsewhere by now.
func (n *inotify) add(dir *os.File) (int32, error) {
	path := "/proc/self/fd/" + strconv.Itoa(int(dir.Fd()))
	for {
		wd, err := unix.InotifyAddWatch(n.fd, path, wanted)
		if !errors.Is(err, unix.EINTR) {
			return int32(wd), err
		}
	}
}

func (n *inotify) remove(wd int32) { _, _ = unix.InotifyRmWatch(n.fd, uint32(wd)) } // gone with the directory

func (n *inotify) Close() { _ = n.file.Close() }
