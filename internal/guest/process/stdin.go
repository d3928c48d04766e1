package process

import (
	"context"
	"errors"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/guestapi"
)

// stdin is the agent's end of a command's standard input.
type stdin struct {
	pipe     *os.File
	terminal *terminal // whose input it is; nil for a pipe

	turn chan struct{} // a token: one writer at a time. It guards what follows
	// taken is how many bytes were given to the command, without the end of file that is
	// typed at a terminal.
	taken  int64
	last   byte // the last of them; a new line before the first
	closed bool
}

func newStdin(pipe *os.File, t *terminal) *stdin {
	return &stdin{pipe: pipe, terminal: t, turn: make(chan struct{}, 1), last: '\n'}
}

// Input is a part of a command's input.
type Input struct {
	Offset int64 // of its first byte in the whole input; what was given before is skipped
	Append bool  // Offset has no meaning: it comes after whatever was given so far
	Last   bool  // nothing follows
}

// WriteStdin gives the command what r holds, which should be no more than
// guestapi.MaxInput bytes, with nobody else's between them, then closes the input if it is
// the last. What was given before its offset is skipped, so a call that was cut off can be
// repeated; not so one that appends. It waits for the command to take the bytes. A
// command that has closed its input, or has ended, is no error: the reply says so.
func (e *Exec) WriteStdin(ctx context.Context, in Input, r io.Reader) (guestapi.StdinReply, error) {
	s := e.stdin
	if s == nil {
		return guestapi.StdinReply{}, hutch.Errorf(hutch.CodeInvalidState, "the command was started without stdin: set stdin_open")
	}
	// Read before it is its turn, and before the command takes it: bytes that come slowly
	// keep no other caller out, and bytes that nobody takes do not fill the window that all
	// calls share.
	piece, more, err := readPiece(r)
	if err != nil {
		return guestapi.StdinReply{}, err
	}
	if in.Append && more {
		return guestapi.StdinReply{}, hutch.Errorf(hutch.CodeTooLarge, "at most %d bytes can be appended at once", guestapi.MaxInput)
	}
	if err := s.take(ctx); err != nil {
		return guestapi.StdinReply{}, err
	}
	defer s.give()
	// A caller who leaves must not keep the next one out, nor cut it off.
	cut := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(cut)
		_ = s.pipe.SetWriteDeadline(time.Unix(1, 0))
	})
	defer func() {
		if !stop() {
			<-cut                                    // else it would come after what follows
			_ = s.pipe.SetWriteDeadline(time.Time{}) // fails on a closed pipe only
		}
	}()
	if in.Append {
		in.Offset = s.taken
	}
	if in.Offset < 0 || in.Offset > s.taken {
		return s.reply(), hutch.FieldErrorf("offset", "the command was given %d bytes so far: go on from there", s.taken)
	}
	for off := in.Offset; err == nil && !s.closed; {
		known := min(int64(len(piece)), s.taken-off)
		off += int64(len(piece))
		if err = s.write(piece[known:]); err != nil || !more {
			break
		}
		piece, more, err = readPiece(r)
	}
	if err == nil && in.Last && !s.closed {
		err = s.finish()
	}
	return s.reply(), err
}

// readPiece reads as much input as is given in one piece, and a byte over; more says that
// there was one.
func readPiece(r io.Reader) (piece []byte, more bool, err error) {
	piece, err = io.ReadAll(io.LimitReader(r, guestapi.MaxInput+1))
	if err != nil {
		return nil, false, hutch.Wrap(hutch.CodeCancelled, err, "the input ended early")
	}
	return piece, len(piece) > guestapi.MaxInput, nil
}

// take waits for the caller's turn.
func (s *stdin) take(ctx context.Context) error {
	select {
	case s.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return hutch.Wrap(hutch.CodeCancelled, context.Cause(ctx), "the caller left while others gave the command its input")
	}
}

func (s *stdin) give() { <-s.turn }

func (s *stdin) reply() guestapi.StdinReply {
	return guestapi.StdinReply{Offset: s.taken, Closed: s.closed}
}

// write writes b to the pipe. That nobody reads it any more closes it.
func (s *stdin) write(b []byte) error {
	if len(b) == 0 {
		return nil // on some kernels such a write, too, needs room
	}
	n, err := s.pipe.Write(b)
	if n > 0 {
		s.taken += int64(n)
		s.last = b[n-1]
	}
	switch {
	case errors.Is(err, unix.EPIPE), errors.Is(err, os.ErrClosed), s.terminal != nil && errors.Is(err, unix.EIO):
		s.shut()
	case err != nil:
		return hutch.Wrap(hutch.CodeCancelled, err, "the caller left while the command did not take its input")
	}
	return nil
}

// finish ends the input: of a pipe by closing it, of a terminal as a person would.
func (s *stdin) finish() error {
	if s.terminal == nil {
		s.shut()
		return nil
	}
	taken := s.taken
	err := s.write(s.terminal.endOfFile(s.last))
	s.taken = taken
	s.closed = s.closed || err == nil
	return err
}

func (s *stdin) shut() {
	s.closed = true
	_ = s.pipe.Close() // twice is harmless
}

// close ends the input when the command has ended. A write that waits is cut off first.
func (s *stdin) close() {
	_ = s.pipe.Close()
	s.turn <- struct{}{}
	defer s.give()
	s.closed = true
}
