// Package duplex makes a connection out of two byte streams that can each end only once:
// the body of a request and the body of its answer.
//
// It owns what such bodies lack: an end of one direction that leaves the other open, a
// reset that is told from an end, and a window for each direction, so that neither end
// has to keep more than [Window] bytes, and a body is always read, whoever does not take
// what came in it. It knows nothing of HTTP.
//
// Both ends speak in frames: type (1 byte), length of the payload (4 bytes, big endian),
// payload. Data is bytes of the connection; Taken has a count (4 bytes, big endian) of
// bytes that the sender has taken and that the receiver may therefore send anew; End says
// that no data follows; Close says that, and that none is read any more; Reset
// that the connection was cut and is over.
//
// Invariants: no more than Window bytes are on their way or kept for each direction;
// whoever sends frames holds the send lock over one whole frame; state is guarded by mu,
// which is not held while sending. Start with [New].
package duplex

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"syscall"
)

const (
	// Window is how many bytes of each direction may be on their way, or kept by the
	// receiver. It is enough for some 100 MB a second when an answer takes a millisecond.
	Window = 128 << 10
	// MaxFrame is the longest payload of a frame.
	MaxFrame = 32 << 10
)

const header = 1 + 4

// The frames.
const (
	frameData  = 1
	frameTaken = 2
	frameEnd   = 3
	frameClose = 4
	frameReset = 5
)

// Errors of a connection.
var (
	// ErrReset is that the other end cut the connection.
	ErrReset = fmt.Errorf("connection reset: %w", syscall.ECONNRESET)
	// ErrFrame is that the other end does not keep to the protocol.
	ErrFrame = errors.New("malformed frame")
)

// Conn is one end of a connection. Read and Write are for one goroutine each; the other
// methods are safe for concurrent use.
type Conn struct {
	r    io.Reader
	send sync.Mutex // over the writing of one frame
	w    func([]byte) error

	mu      sync.Mutex
	changed chan struct{} // closed at the next change; nil while nobody waits
	buf     ring          // came and was not read yet
	taken   int           // was read and the other end was not told yet
	credit  int           // may be sent
	ended   bool          // the other end sends no more
	deaf    bool          // the other end reads no more
	done    bool          // this end sends no more
	err     error         // the connection is over; io.EOF = the streams ended as they may
	closed  bool          // this end was closed

	over chan struct{} // closed once r gives no more frames

	closing  sync.Once
	closeErr error
}

// New makes a connection that reads frames from r, until it ends, and sends each with one
// call of w, which must not keep it. [Conn.Run] must be called.
func New(r io.Reader, w func([]byte) error) *Conn {
	return &Conn{r: r, w: w, credit: Window, over: make(chan struct{})}
}

// Run reads frames until there are no more, or one makes no sense, and returns why: nil if
// both ends had said that they were done.
func (c *Conn) Run() error {
	defer close(c.over)
	scratch := make([]byte, 0, 512)
	for {
		var h [header]byte
		if _, err := io.ReadFull(c.r, h[:]); err != nil {
			return c.fail(err)
		}
		n := int(binary.BigEndian.Uint32(h[1:]))
		if n > MaxFrame {
			return c.fail(fmt.Errorf("%w: %d bytes", ErrFrame, n))
		}
		if n > cap(scratch) {
			scratch = make([]byte, 0, MaxFrame)
		}
		p := scratch[:n]
		if _, err := io.ReadFull(c.r, p); err != nil {
			return c.fail(err)
		}
		if err := c.frame(h[0], p); err != nil {
			return c.fail(err)
		}
	}
}

// Over is closed when Run has returned.
func (c *Conn) Over() <-chan struct{} { return c.over }

// frame takes in one frame.
func (c *Conn) frame(kind byte, p []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	defer c.wakeLocked()
	switch kind {
	case frameData:
		if c.ended || c.buf.len()+c.taken+len(p) > Window {
			return fmt.Errorf("%w: %d bytes that were not asked for", ErrFrame, len(p))
		}
		if c.closed {
			return nil // on its way when this end was closed
		}
		c.buf.write(p)
	case frameTaken:
		if len(p) != 4 || binary.BigEndian.Uint32(p) > uint32(Window-c.credit) {
			return fmt.Errorf("%w: more was taken than was sent", ErrFrame)
		}
		c.credit += int(binary.BigEndian.Uint32(p))
	case frameEnd, frameClose:
		c.ended, c.deaf = true, c.deaf || kind == frameClose
	case frameReset:
		return ErrReset
	default:
		return fmt.Errorf("%w: type %d", ErrFrame, kind)
	}
	return nil
}

// fail ends the connection with err, which is what its reads and writes say from now on. The
// end of the streams after both ends were done is no failure.
func (c *Conn) fail(err error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	defer c.wakeLocked()
	if errors.Is(err, io.EOF) && c.ended && c.done {
		c.err = io.EOF
		return nil
	}
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	if c.err == nil {
		c.err = err
	}
	return err
}

func (c *Conn) wakeLocked() {
	if c.changed != nil {
		close(c.changed)
		c.changed = nil
	}
}

// waitLocked waits for the next change.
func (c *Conn) waitLocked() {
	if c.changed == nil {
		c.changed = make(chan struct{})
	}
	changed := c.changed
	c.mu.Unlock()
	<-changed
	c.mu.Lock()
}

// Read implements io.Reader. What came before an end or a failure is read first.
func (c *Conn) Read(p []byte) (int, error) {
	c.mu.Lock()
	for c.buf.len() == 0 {
		switch {
		case c.closed:
			c.mu.Unlock()
			return 0, net.ErrClosed
		case c.ended:
			c.mu.Unlock()
			return 0, io.EOF
		case c.err != nil:
			defer c.mu.Unlock()
			return 0, c.err
		case len(p) == 0:
			c.mu.Unlock()
			return 0, nil
		}
		c.waitLocked()
	}
	n := c.buf.read(p)
	c.taken += n
	tell := 0
	if c.taken >= Window/4 && !c.ended {
		tell, c.taken = c.taken, 0
	}
	c.mu.Unlock()
	if tell > 0 {
		var count [4]byte
		binary.BigEndian.PutUint32(count[:], uint32(tell))
		_ = c.sendFrame(frameTaken, count[:]) // a failure is Run's to find
	}
	return n, nil
}

// Write implements io.Writer. It waits until the other end has room.
func (c *Conn) Write(p []byte) (n int, err error) {
	for len(p) > 0 {
		k, err := c.reserve(len(p))
		if err != nil {
			return n, err
		}
		if err := c.sendFrame(frameData, p[:k]); err != nil {
			return n, c.fail(err)
		}
		n += k
		p = p[k:]
	}
	return n, nil
}

// reserve waits until some of n bytes may be sent, and says how many.
func (c *Conn) reserve(n int) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		switch {
		case c.closed || c.done:
			return 0, net.ErrClosed
		case c.err != nil && !errors.Is(c.err, io.EOF):
			return 0, c.err
		case c.deaf || c.err != nil:
			return 0, fmt.Errorf("nobody reads any more: %w", syscall.EPIPE)
		case c.credit > 0:
			k := min(n, c.credit, MaxFrame)
			c.credit -= k
			return k, nil
		}
		c.waitLocked()
	}
}

// CloseWrite says that nothing more will be written. What the other end sends can still be
// read.
func (c *Conn) CloseWrite() error {
	if !c.finish() {
		return nil
	}
	return c.sendFrame(frameEnd, nil)
}

// finish notes that this end sends no more data; false if it was so already.
func (c *Conn) finish() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.done {
		return false
	}
	c.done = true
	c.wakeLocked()
	return true
}

// Close says that this end neither writes nor reads any more. What was written still
// arrives.
func (c *Conn) Close() error {
	c.Abandon()
	c.closing.Do(func() { c.closeErr = c.sendFrame(frameClose, nil) })
	return c.closeErr
}

// Abandon ends the reads and writes of this end and makes new ones fail. It is the part of
// Close that does not wait for anything.
func (c *Conn) Abandon() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed, c.done = true, true
	c.buf = ring{}
	c.wakeLocked()
}

// Reset cuts the connection: the other end gets [ErrReset] after what was sent before.
func (c *Conn) Reset() error {
	c.finish()
	return c.sendFrame(frameReset, nil)
}

// Deaf reports whether the other end reads no more, and has sent all it will.
func (c *Conn) Deaf() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.deaf
}

func (c *Conn) sendFrame(kind byte, p []byte) error {
	f := frames.Get().(*[header + MaxFrame]byte)
	defer frames.Put(f)
	f[0] = kind
	binary.BigEndian.PutUint32(f[1:], uint32(len(p)))
	n := header + copy(f[header:], p)
	c.send.Lock()
	defer c.send.Unlock()
	return c.w(f[:n])
}

// frames holds buffers for one whole frame.
var frames = sync.Pool{New: func() any { return new([header + MaxFrame]byte) }}
