package guestlink

import (
	"net"
	"os"
	"sync"
	"time"
)

// session is one session at the guest's end. The listener's goroutine offers it what
// arrived, in the listener's own buffer, and waits until it is taken.
type session struct {
	l       *Listener
	nonce   nonce
	offered chan struct{} // signalled when there is something in in
	taken   chan struct{} // signalled when there is nothing left in it
	done    chan struct{} // closed when the session ends

	timer *time.Timer // of deliver; nil until it had to wait

	rd, wd deadline

	mu  sync.Mutex
	in  []byte // offered and not yet taken; part of the listener's buffer
	err error  // why the session ended
}

var _ net.Conn = (*session)(nil)

// deliver offers data to the session's readers, and returns once it is taken, the
// session has ended, or nobody read for stallTicks times stall, which ends it too.
func (s *session) deliver(data []byte, stall time.Duration) {
	s.mu.Lock()
	if s.err != nil {
		s.mu.Unlock()
		return
	}
	s.in = data
	s.mu.Unlock()
	signal(s.offered)

	select { // a timer only if it is needed
	case <-s.taken:
		return
	case <-s.done:
		return
	default:
	}
	if s.timer == nil {
		s.timer = time.NewTimer(stall)
	} else {
		s.timer.Reset(stall)
	}
	defer s.timer.Stop()
	for range stallTicks {
		select {
		case <-s.taken:
			return
		case <-s.done: // end has taken the offer back
			return
		case <-s.timer.C:
			s.timer.Reset(stall)
		}
	}
	s.l.abandon(s)
}

// end ends the session with err and takes back what was offered. It reports whether
// the session was alive.
func (s *session) end(err error) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return false
	}
	s.err = err
	s.in = nil // the buffer is the listener's again once done is closed
	close(s.done)
	return true
}

func (s *session) cause() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// Read implements net.Conn.
func (s *session) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	for {
		if s.rd.passed() {
			return 0, os.ErrDeadlineExceeded
		}
		n, err := s.take(p)
		if n > 0 || err != nil {
			return n, err
		}
		select {
		case <-s.offered:
		case <-s.done:
		case <-s.rd.wait():
		}
	}
}

// take copies what is offered.
func (s *session) take(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return 0, s.err
	}
	if len(s.in) == 0 {
		return 0, nil
	}
	n := copy(p, s.in)
	if s.in = s.in[n:]; len(s.in) == 0 {
		signal(s.taken)
	} else {
		signal(s.offered) // for another reader
	}
	return n, nil
}

// Write implements net.Conn. A write that is interrupted half-way ends the session,
// because the node has half of it.
func (s *session) Write(p []byte) (n int, err error) {
	if s.wd.passed() {
		return 0, os.ErrDeadlineExceeded
	}
	select {
	case s.l.wtok <- struct{}{}:
		defer func() { <-s.l.wtok }()
	case <-s.done:
		return 0, writeError(s.cause())
	case <-s.wd.wait():
		return 0, os.ErrDeadlineExceeded
	}
	for n < len(p) {
		if err := s.cause(); err != nil {
			return n, writeError(err)
		}
		chunk := p[n:min(len(p), n+writeChunk)]
		if sent, err := writeEscaped(s.l.rw, chunk); err != nil {
			if sent > 0 || !isTimeout(err) {
				s.end(err)
			}
			if cause := s.cause(); cause != nil {
				err = writeError(cause)
			}
			return n, err
		}
		n += len(chunk)
	}
	return n, nil
}

// Close implements net.Conn.
func (s *session) Close() error {
	if s.end(net.ErrClosed) {
		s.l.interrupt(s)
		s.l.sendEnd(s)
	}
	return nil
}

// SetDeadline implements net.Conn.
func (s *session) SetDeadline(t time.Time) error {
	s.rd.set(t)
	return s.SetWriteDeadline(t)
}

// SetReadDeadline implements net.Conn.
func (s *session) SetReadDeadline(t time.Time) error {
	s.rd.set(t)
	return nil
}

// SetWriteDeadline implements net.Conn; see NewListener.
func (s *session) SetWriteDeadline(t time.Time) error {
	s.wd.set(t)
	s.l.mu.Lock()
	defer s.l.mu.Unlock()
	if s.l.cur == s {
		s.l.setWriteDeadline(t)
	}
	return nil
}

// LocalAddr implements net.Conn.
func (s *session) LocalAddr() net.Addr { return addr("guest") }

// RemoteAddr implements net.Conn.
func (s *session) RemoteAddr() net.Addr { return addr("host") }

// signal leaves one mark in c.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
