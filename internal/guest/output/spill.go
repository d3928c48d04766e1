package output

import (
	"errors"
	"io"

	"golang.org/x/sys/unix"
)

// minFile is the least a file is worth: with less room than this left for it on a full
// disk it is removed, so that the command's own writes get what there is. It is also the
// smallest cap, well above one write.
const minFile = 1 << 20

// moveBuffer is how much is moved at once when the older half of a file is dropped.
const moveBuffer = 256 << 10

// file is a stream's file: bytes [base,end) of the stream. Only the stream's writer
// changes it, under Stream.fileMu.
type file struct {
	f         *File // nil: there is none (yet, or any more)
	path      string
	base, end int64
	cap       int64
	full      bool // the disk was full
}

// startSpill opens the file and writes what is in memory, which is everything so far.
func (s *Stream) startSpill() {
	s.spilling = true
	if s.opt.Open == nil {
		return
	}
	f, err := s.opt.Open()
	if err != nil {
		s.fileMu.Lock()
		s.file.full = diskFull(err)
		s.fileMu.Unlock()
		return
	}
	s.fileMu.Lock()
	s.file = file{f: f, path: f.path, cap: max(minFile, s.opt.FileCap)}
	s.fileMu.Unlock()
	// Without mu: only this goroutine changes the chunks.
	for _, c := range s.first {
		s.spill(c)
	}
}

// spill appends b to the file. Without one it does nothing.
func (s *Stream) spill(b []byte) {
	for len(b) > 0 && s.file.f != nil {
		size := s.file.end - s.file.base
		if size+int64(len(b)) > s.file.cap {
			s.awaitReaders(s.file.end - s.file.cap/2)
			s.shrink(s.file.cap / 2)
			continue
		}
		n, err := s.file.f.f.WriteAt(b, size)
		b = b[n:]
		s.fileMu.Lock()
		s.file.end += int64(n)
		s.file.full = s.file.full || diskFull(err)
		s.fileMu.Unlock()
		if err == nil {
			continue
		}
		// A full disk is a cap like the other: go on with the newer half, until that
		// is too little to be of use. Any other error ends the file.
		if keep := (s.file.end - s.file.base) / 2; diskFull(err) && keep >= minFile {
			s.awaitReaders(s.file.end - keep)
			s.shrink(keep)
			continue
		}
		s.awaitReaders(s.inMemoryFrom())
		s.fileMu.Lock()
		s.file.discard()
		s.fileMu.Unlock()
	}
}

// inMemoryFrom is the offset from which on memory has everything, but for what it has of
// the head.
func (s *Stream) inMemoryFrom() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.restAt
}

// shrink drops all but the last keep bytes of the file, in place: that needs no room on
// the disk, and the file is a contiguous tail again when it returns.
func (s *Stream) shrink(keep int64) {
	s.fileMu.Lock()
	defer s.fileMu.Unlock()
	from := s.file.end - s.file.base - keep
	buf := make([]byte, moveBuffer)
	for to := int64(0); to < keep; {
		n, err := s.file.f.f.ReadAt(buf[:min(int64(len(buf)), keep-to)], from+to)
		if n > 0 {
			_, err = s.file.f.f.WriteAt(buf[:n], to)
		}
		if n == 0 || err != nil && !errors.Is(err, io.EOF) {
			s.file.discard() // someone inside cut the file short, or the disk is broken
			return
		}
		to += int64(n)
	}
	if err := s.file.f.f.Truncate(keep); err != nil {
		s.file.discard()
		return
	}
	s.file.base = s.file.end - keep
}

// discard gives the file up, and its room back.
func (f *file) discard() {
	f.f.remove()
	f.f, f.path, f.base, f.end = nil, "", 0, 0
}

func (f *file) close() {
	if f.f != nil {
		f.f.close()
	}
	f.f = nil
}

// readAt reads from offset off of the stream. n 0 with next > off: the file begins there.
func (f *file) readAt(b []byte, off int64) (n int, next int64) {
	if f.f == nil || off >= f.end {
		return 0, 0
	}
	if off < f.base {
		return 0, f.base
	}
	b = b[:min(int64(len(b)), f.end-off)]
	n, _ = f.f.f.ReadAt(b, off-f.base) // short when somebody inside cut the file: a gap
	return n, 0
}

// summary is the path of the file and how much of the start of the stream it lacks.
func (f *file) summary(total int64) (path string, dropped int64) {
	if f.path == "" {
		return "", total
	}
	return f.path, f.base
}

func diskFull(err error) bool {
	return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT)
}
