package guestlink

import (
	"io"
	"net"
	"sync"
	"time"
)

const (
	// readBuffer is the guest's one buffer for what arrives, and bulkBuffer what it
	// becomes once much has arrived at a time: every read costs a call into gVisor's
	// kernel, and one of 32 KiB costs half as much as one of 256 KiB.
	readBuffer = 32 << 10
	bulkBuffer = 256 << 10

	// A session may leave what arrived unread for stallTicks times stallTick before it
	// is ended. Whatever reads a session reads it all the time (HTTP/2 has its own flow
	// control above); one that does not would keep the next hello from being read. The
	// time is counted in ticks, so that a machine which was paused or saved meanwhile
	// is not taken for a slow one.
	stallTick  = 500 * time.Millisecond
	stallTicks = 6
)

// Listener is the guest's end of a stream. Accept returns one session after the
// other; a new one ends the one before. Its methods are safe for concurrent use.
type Listener struct {
	rw     io.ReadWriter
	stall  time.Duration // stallTick, but in tests
	start  sync.Once
	accept chan *session // holds the newest session until it is accepted
	done   chan struct{} // closed when nothing will be accepted any more
	wtok   chan struct{} // token: may write rw

	mu  sync.Mutex
	cur *session // the live session; nil if there is none
	err error    // why done was closed
}

var _ net.Listener = (*Listener)(nil)

// NewListener returns the guest's end of the stream rw. It reads nothing before the
// first Accept. rw may be a file in blocking mode, as a first process finds it on its
// standard input. A write that blocks in rw can be interrupted, by a deadline or a
// Close, only if rw has a SetWriteDeadline that works; otherwise it ends when the
// node's end reads on, as it does with every hello.
func NewListener(rw io.ReadWriter) *Listener {
	return &Listener{
		rw:     rw,
		stall:  stallTick,
		accept: make(chan *session, 1),
		done:   make(chan struct{}),
		wtok:   make(chan struct{}, 1),
	}
}

// Accept waits for the node to begin a session. It fails with io.EOF once the node's
// end of the stream is closed, and with net.ErrClosed after Close.
func (l *Listener) Accept() (net.Conn, error) {
	l.start.Do(func() { go l.readLoop() })
	select {
	case s := <-l.accept:
		return s, nil
	case <-l.done:
		l.mu.Lock()
		defer l.mu.Unlock()
		return nil, l.err
	}
}

// Close ends the session and the listener. It closes rw if rw can be closed, so that
// no read stays behind.
func (l *Listener) Close() error {
	l.shut(net.ErrClosed)
	if c, ok := l.rw.(io.Closer); ok {
		return c.Close()
	}
	return nil
}

// Addr implements net.Listener.
func (l *Listener) Addr() net.Addr { return addr("guest") }

// shut ends everything with err, once.
func (l *Listener) shut(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return
	}
	l.err = err
	close(l.done)
	if l.cur != nil {
		l.cur.end(orEOF(err))
		l.cur = nil
	}
}

// readLoop takes the stream apart. It is the one reader of rw.
func (l *Listener) readLoop() {
	var d decoder
	var s *session // the live one; only this goroutine begins one
	buf := make([]byte, readBuffer)
	for {
		n, err := l.rw.Read(buf)
		full := n == len(buf)
		for raw := buf[:n]; len(raw) > 0; {
			data, rest, ev := d.step(raw)
			if s != nil && len(data) > 0 {
				s.deliver(data, l.stall)
			}
			raw = rest
			switch {
			case ev == evBroken && s != nil:
				l.abandon(s)
			case ev != evControl:
			case d.msg.kind == kindHello && (s == nil || d.msg.nonce != s.nonce):
				s = l.begin(d.msg)
			case d.msg.kind == kindEnd && s != nil && d.msg.nonce == s.nonce:
				s.end(io.EOF)
			}
		}
		if err != nil {
			l.shut(err)
			return
		}
		if full && n < bulkBuffer {
			buf = make([]byte, bulkBuffer)
		}
	}
}

// begin answers a hello with a new session, in place of the live one.
func (l *Listener) begin(hello control) *session {
	s := &session{
		l:       l,
		nonce:   hello.nonce,
		offered: make(chan struct{}, 1),
		taken:   make(chan struct{}, 1),
		done:    make(chan struct{}),
	}
	l.mu.Lock()
	if l.err != nil {
		l.mu.Unlock()
		s.end(l.err)
		return s
	}
	if l.cur != nil {
		l.cur.end(ErrReplaced)
		l.setWriteDeadline(past)
	}
	l.cur = s
	l.mu.Unlock()

	// A write of the old session that is stuck is driven out by the deadline, or goes
	// on as soon as the node, which reads and drops until the ack, has read enough.
	if err := l.write(control{kind: kindAck, version: min(version, hello.version), nonce: s.nonce}.wire()); err != nil {
		l.shut(err)
		return s
	}
	select {
	case old := <-l.accept:
		old.end(ErrReplaced) // never accepted
	default:
	}
	l.accept <- s
	return s
}

// abandon ends a session whose stream was damaged, and tells the node.
func (l *Listener) abandon(s *session) {
	if s.end(ErrBroken) {
		l.sendEnd(s)
	}
}

// sendEnd tells the node that s is over, unless a newer session has begun by then. It
// does not wait: the stream may be stuck until the node's end is served again, and
// there is one session at a time to wait for.
func (l *Listener) sendEnd(s *session) {
	go func() {
		select {
		case l.wtok <- struct{}{}:
			defer func() { <-l.wtok }()
		case <-l.done:
			return
		}
		l.mu.Lock()
		live := l.cur == s && l.err == nil
		l.mu.Unlock()
		if live {
			l.setWriteDeadline(time.Time{})
			_, _ = l.rw.Write(control{kind: kindEnd, version: version, nonce: s.nonce}.wire()) // a dead stream ends readLoop
		}
	}()
}

// interrupt drives the writers of s out of the stream, if it has deadlines.
func (l *Listener) interrupt(s *session) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cur == s {
		l.setWriteDeadline(past)
	}
}

// write writes p as it is, alone.
func (l *Listener) write(p []byte) error {
	l.wtok <- struct{}{}
	defer func() { <-l.wtok }()
	l.setWriteDeadline(time.Time{}) // a session may have left one
	_, err := l.rw.Write(p)
	return err
}

// setWriteDeadline sets the deadline of writes on the stream, if it can have one.
func (l *Listener) setWriteDeadline(t time.Time) {
	if d, ok := l.rw.(interface{ SetWriteDeadline(time.Time) error }); ok {
		_ = d.SetWriteDeadline(t) // a file in blocking mode refuses: see NewListener
	}
}
