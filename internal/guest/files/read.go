package files

import (
	"errors"
	"io"
	"net/http"
	"os"

	"golang.org/x/sys/unix"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/guestapi"
)

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
	var f *os.File
	var info hutch.FileInfo
	err = a.do(r.Context(), func() error {
		f, info, err = a.openRead(abs)
		return err
	})
	if err != nil {
		return a.explain(err, abs)
	}
	defer f.Close()
	if err := seek(f, q, info.Size); err != nil {
		return a.explain(err, abs)
	}
	out := newFrames(w)
	if err := out.json(guestapi.FileHead, info); err != nil {
		return nil // the reader left
	}
	length := q.Length
	if length == 0 {
		length = -1
	}
	out.end(a.explain(copyOut(out, f, length), abs), guestapi.FileEnd{})
	return nil
}

// openRead opens a regular file, links followed.
func (a *actor) openRead(abs string) (*os.File, hutch.FileInfo, error) {
	var info hutch.FileInfo
	// Without blocking: a pipe that nobody writes to must not hold the thread.
	f, err := a.open(unix.AT_FDCWD, abs, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if errors.Is(err, unix.ENXIO) {
		return nil, info, notRegular(abs)
	}
	if err != nil {
		return nil, info, err
	}
	var st unix.Stat_t
	err = unix.Fstat(int(f.Fd()), &st)
	switch {
	case err == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR:
		err = unix.EISDIR
	case err == nil && st.Mode&unix.S_IFMT != unix.S_IFREG:
		err = notRegular(abs)
	}
	if err != nil {
		f.Close()
		return nil, info, err
	}
	info = a.describe(abs, st)
	if name, err := realPath(f); err == nil {
		info.Metadata = readMetadata(name)
	}
	return f, info, nil
}

func notRegular(abs string) error {
	return badPath("%s is a device, a socket or a pipe, not a file with content", shown(abs))
}

// seek goes to where reading begins.
func seek(f *os.File, q guestapi.ReadFile, size int64) error {
	switch {
	case q.Offset < 0:
		return hutch.FieldErrorf("offset", "must not be negative")
	case q.Length < 0:
		return hutch.FieldErrorf("length", "must not be negative")
	case q.Offset > size:
		return hutch.FieldErrorf("offset", "%d is behind the end of the file, which has %d bytes", q.Offset, size)
	}
	_, err := f.Seek(q.Offset, io.SeekStart)
	return err
}

// copyOut sends length bytes of f, or all up to its end if length is negative.
func copyOut(out frames, f *os.File, length int64) error {
	buf := chunks.Get().(*[]byte)
	defer chunks.Put(buf)
	b := *buf
	for length != 0 {
		room := b[frameSpace:]
		if length > 0 && length < int64(len(room)) {
			room = room[:length]
		}
		n, err := f.Read(room)
		if n > 0 {
			if err := out.data(b[:frameSpace+n]); err != nil {
				return err
			}
			if length > 0 {
				length -= int64(n)
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
	return nil
}
