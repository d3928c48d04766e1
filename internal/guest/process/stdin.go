package process

import (
	"context"
	"errors"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/guestapi"
)

// stdin is the agent's end of a command's standard input.
type stdin struct {
	pipe *os.File

	mu     sync.Mutex // one writer at a time
	taken  int64      // bytes given to the command
	closed bool
}

// WriteStdin gives the command what r holds, which begins at offset of its input, then
// closes the input if last. What was given before is skipped, so a call that was cut off
// can be repeated. It waits for the command to take the bytes. A command that has closed
// its input, or has ended, is no error: the reply says so and the rest is not read.
func (e *Exec) WriteStdin(ctx context.Context, offset int64, r io.Reader, last bool) (guestapi.StdinReply, error) {
	s := e.stdin
	if s == nil {
		return guestapi.StdinReply{}, hutch.Errorf(hutch.CodeInvalidState, "the command was started without stdin: set stdin_open")
	}
	// A caller who leaves must not keep the next one out.
	stop := context.AfterFunc(ctx, func() { _ = s.pipe.SetWriteDeadline(time.Unix(1, 0)) })
	s.mu.Lock()
	defer s.mu.Unlock()
	defer func() {
		if !stop() {
			_ = s.pipe.SetWriteDeadline(time.Time{}) // fails on a closed pipe only
		}
	}()
	if offset < 0 || offset > s.taken {
		return s.replyLocked(), hutch.FieldErrorf("offset", "the command was given %d bytes so far: go on from there", s.taken)
	}
	if _, err := io.CopyN(io.Discard, r, s.taken-offset); err != nil && !errors.Is(err, io.EOF) {
		return s.replyLocked(), hutch.Wrap(hutch.CodeCancelled, err, "the input ended early")
	}
	if err := s.copyLocked(r); err != nil {
		return s.replyLocked(), err
	}
	if last {
		s.closeLocked()
	}
	return s.replyLocked(), nil
}

func (s *stdin) replyLocked() guestapi.StdinReply {
	return guestapi.StdinReply{Offset: s.taken, Closed: s.closed}
}

// copyLocked writes r to the pipe. That nobody reads it any more closes it.
func (s *stdin) copyLocked(r io.Reader) error {
	buf := buffers.Get().(*[readSize]byte)
	defer buffers.Put(buf)
	for !s.closed {
		n, readErr := r.Read(buf[:])
		k, err := s.pipe.Write(buf[:n])
		s.taken += int64(max(k, 0))
		switch {
		case errors.Is(err, unix.EPIPE), errors.Is(err, os.ErrClosed):
			s.closeLocked()
		case err != nil:
			return hutch.Wrap(hutch.CodeCancelled, err, "the caller left while the command did not take its input")
		case errors.Is(readErr, io.EOF):
			return nil
		case readErr != nil:
			return hutch.Wrap(hutch.CodeCancelled, readErr, "the input ended early")
		}
	}
	return nil
}

func (s *stdin) closeLocked() {
	s.closed = true
	_ = s.pipe.Close() // twice is harmless
}

// close ends the input when the command has ended. A write that waits is cut off first.
func (s *stdin) close() {
	_ = s.pipe.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
}
