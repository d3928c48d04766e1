package guestlink

import (
	"errors"
	"io"
	"net"
	"time"
)

// hostConn is one session at the node's end. It reads straight from the stream into
// its caller's buffer and decodes there, so an idle sandbox costs no buffer.
type hostConn struct {
	h     *Host
	nonce nonce
	done  chan struct{} // closed when the session ends

	err error // why it ended; guarded by h.mu

	// Of the reader: guarded by h.rtok.
	pre   []byte // read by Dial, still encoded
	stray int    // control messages that meant nothing
}

var _ net.Conn = (*hostConn)(nil)

// Read implements net.Conn.
func (c *hostConn) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	select {
	case c.h.rtok <- struct{}{}:
		defer func() { <-c.h.rtok }()
	case <-c.done:
		return 0, c.cause()
	}
	for {
		if err := c.cause(); err != nil {
			return 0, err
		}
		var raw []byte
		if len(c.pre) > 0 {
			raw = p[:copy(p, c.pre)]
			c.pre = c.pre[len(raw):]
		} else {
			n, err := c.h.f.Read(p)
			if err != nil {
				return 0, c.failed(orEOF(err))
			}
			raw = p[:n]
		}
		if n := c.decode(p, raw); n > 0 {
			return n, nil
		}
	}
}

// decode takes raw, which lies at the start of p, apart, and returns how many bytes
// of p are now the session's data. It ends the session if raw says so.
func (c *hostConn) decode(p, raw []byte) (n int) {
	d := &c.h.dec
	over := false // what follows is of no session
	for len(raw) > 0 {
		data, rest, ev := d.step(raw)
		if !over {
			n += copy(p[n:], data)
		}
		raw = rest
		switch {
		case ev == evNone || over:
		case ev == evBroken:
			_ = c.h.end(c, ErrBroken)
			over = true
		case d.msg.kind == kindEnd && d.msg.nonce == c.nonce:
			_ = c.h.end(c, io.EOF)
			over = true
		default:
			if c.stray++; c.stray > maxStray {
				_ = c.h.end(c, ErrBroken)
				over = true
			}
		}
	}
	return n
}

// Write implements net.Conn. A write that is interrupted half-way ends the session,
// because the guest has half of it.
func (c *hostConn) Write(p []byte) (n int, err error) {
	select {
	case c.h.wtok <- struct{}{}:
		defer func() { <-c.h.wtok }()
	case <-c.done:
		return 0, writeError(c.cause())
	}
	for n < len(p) {
		if err := c.cause(); err != nil {
			return n, writeError(err)
		}
		chunk := p[n:min(len(p), n+writeChunk)]
		sent, err := writeEscaped(c.h.f, chunk)
		if err != nil && (sent > 0 || !isTimeout(err)) {
			return n, writeError(c.h.end(c, err))
		}
		if err != nil {
			return n, writeError(c.failed(err))
		}
		n += len(chunk)
	}
	return n, nil
}

// Close implements net.Conn. It tells the guest if that takes no waiting to speak of;
// a guest that has not read what was sent so far learns of it with the next hello.
func (c *hostConn) Close() error {
	if c.over() {
		return nil
	}
	select {
	case c.h.wtok <- struct{}{}:
		if c.setDeadline(c.h.f.SetWriteDeadline, time.Now().Add(endTimeout)) == nil {
			_, _ = c.h.f.Write(control{kind: kindEnd, version: version, nonce: c.nonce}.wire())
		}
		<-c.h.wtok
	default: // a write is stuck: the next hello will tell
	}
	_ = c.h.end(c, net.ErrClosed) // or what it had ended with before
	return nil
}

func (c *hostConn) over() bool {
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}

// cause is why the session ended; nil while it lives.
func (c *hostConn) cause() error {
	c.h.mu.Lock()
	defer c.h.mu.Unlock()
	return c.err
}

// failed is the error of an I/O call that failed with err: a deadline of the
// session's own leaves it alive, one that drove us out is not what the caller should
// see, anything else ends the session.
func (c *hostConn) failed(err error) error {
	if cause := c.cause(); cause != nil {
		return cause
	}
	if isTimeout(err) {
		return err
	}
	return c.h.end(c, err)
}

func (c *hostConn) setDeadline(set func(time.Time) error, t time.Time) error {
	c.h.mu.Lock()
	defer c.h.mu.Unlock()
	if c.err != nil {
		return c.err
	}
	return set(t)
}

// SetDeadline implements net.Conn.
func (c *hostConn) SetDeadline(t time.Time) error { return c.setDeadline(c.h.f.SetDeadline, t) }

// SetReadDeadline implements net.Conn.
func (c *hostConn) SetReadDeadline(t time.Time) error { return c.setDeadline(c.h.f.SetReadDeadline, t) }

// SetWriteDeadline implements net.Conn.
func (c *hostConn) SetWriteDeadline(t time.Time) error {
	return c.setDeadline(c.h.f.SetWriteDeadline, t)
}

// LocalAddr implements net.Conn.
func (c *hostConn) LocalAddr() net.Addr { return addr("host") }

// RemoteAddr implements net.Conn.
func (c *hostConn) RemoteAddr() net.Addr { return addr("guest") }

// addr is an end of a stream: there is exactly one of each name.
type addr string

func (addr) Network() string  { return "guestlink" }
func (a addr) String() string { return string(a) }

// writeError is the error of a write to a session that ended with err.
func writeError(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrClosedPipe
	}
	return err
}
