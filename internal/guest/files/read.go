package files

import (
	"errors"
	"net/http"

	"golang.org/x/sys/unix"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/guestapi"
)

// A small file is what is asked for most, also of a sandbox whose CPUs are all busy, where each
// system call of the agent waits its turn. So one is read by six: the two that [account.Cache]
// makes, and open, fstat, flistxattr, pread and close; and it goes back in one piece.
func (s *Service) serveRead(w http.ResponseWriter, r *http.Request) error {
	var q guestapi.ReadFile
	if err := decode(r.Body, &q); err != nil {
		return err
	}
	a, err := s.actor(q.User)
	if err != nil {
		return err
	}
	abs, err := a.absolute(q.Name())
	if err != nil {
		return err
	}
	var fd int
	var info hutch.FileInfo
	err = a.do(r.Context(), func() error {
		fd, info, err = a.openRead(abs)
		return err
	})
	if err != nil {
		return a.explain(err, abs)
	}
	defer unix.Close(fd)
	from, err := part(fd, q, info.Size)
	if err != nil {
		return err
	}
	head, err := guestapi.FileFrameJSON(guestapi.FileHead, info)
	if err != nil {
		return err
	}
	out := newFrames(w)
	out.end(a.explain(copyOut(out, head, from), abs), guestapi.FileEnd{})
	return nil
}

// openRead opens a regular file, links followed.
func (a *actor) openRead(abs string) (int, hutch.FileInfo, error) {
	var info hutch.FileInfo
	// Without blocking: a pipe that nobody writes to must not hold the thread.
	fd, err := a.openFD(unix.AT_FDCWD, abs, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if errors.Is(err, unix.ENXIO) {
		return -1, info, notRegular(abs)
	}
	if err != nil {
		return -1, info, err
	}
	var st unix.Stat_t
	err = unix.Fstat(fd, &st)
	switch {
	case err == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR:
		err = unix.EISDIR
	case err == nil && st.Mode&unix.S_IFMT != unix.S_IFREG:
		err = notRegular(abs)
	}
	if err != nil {
		unix.Close(fd)
		return -1, info, err
	}
	info = a.describe(abs, st)
	info.Metadata = openMetadata(fd)
	return fd, info, nil
}

func notRegular(abs string) error {
	return badPath("%s is a device, a socket or a pipe, not a file with content", shown(abs))
}

// extent is a part of an open file that is still to be read.
type extent struct {
	fd   int
	off  int64 // where it begins
	left int64 // its length; negative: up to the end of the file
	size int64 // of the file as it was opened; 0 also if the kernel makes up what it has
}

// part is what of the file is asked for.
func part(fd int, q guestapi.ReadFile, size int64) (extent, error) {
	e := extent{fd: fd, off: q.Offset, left: q.Length, size: size}
	switch {
	case q.Offset < 0:
		return e, hutch.FieldErrorf("offset", "must not be negative")
	case q.Length < 0:
		return e, hutch.FieldErrorf("length", "must not be negative")
	case q.Offset > size:
		return e, hutch.FieldErrorf("offset", "%d is behind the end of the file, which has %d bytes", q.Offset, size)
	case q.Length == 0:
		e.left = -1
	}
	return e, nil
}

// read reads the next bytes into b, and says whether they are the last.
func (e *extent) read(b []byte) (n int, last bool, err error) {
	if e.left >= 0 && e.left < int64(len(b)) {
		b = b[:e.left]
	}
	for {
		if n, err = unix.Pread(e.fd, b, e.off); !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		return 0, false, err
	}
	e.off += int64(n)
	if e.left > 0 {
		e.left -= int64(n)
	}
	// A short read is the end, but in a file that the kernel makes up. There is nothing but
	// the end behind what the file had when it was opened, unless it has grown: then the
	// read was not short.
	return n, n == 0 || e.left == 0 || n < len(b) && e.size > 0 && e.off >= e.size, nil
}

// copyOut sends the head and what there is in from.
func copyOut(out frames, head []byte, from extent) error {
	buf := chunks.Get().(*[]byte)
	defer chunks.Put(buf)
	b := *buf
	if len(head) > len(b)/2 {
		if err := out.raw(head); err != nil {
			return err
		}
		head = nil
	}
	for {
		at := copy(b, head)
		head = nil
		n, last, err := from.read(b[at+frameSpace:])
		end := at
		if n > 0 {
			end += frameSpace + n
			guestapi.PutFileFrame(b[at:end], guestapi.FileData)
		}
		if end > 0 {
			if err := out.raw(b[:end]); err != nil {
				return err
			}
		}
		if err != nil || last {
			return err
		}
	}
}
