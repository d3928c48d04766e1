package guestlink

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// Errors of a session, beside io.EOF (the guest ended it), net.ErrClosed (this end
// closed it) and os.ErrDeadlineExceeded.
var (
	// ErrReplaced is a session that ended because a newer one began.
	ErrReplaced = errors.New("the session was replaced by a newer one")
	// ErrBroken is a session whose stream was cut or damaged.
	ErrBroken = errors.New("the stream was cut")
	// ErrVersion is a guest that speaks another version of the link layer.
	ErrVersion = errors.New("the guest speaks another link version")
	// ErrNoAck is a guest that sent maxDropped bytes without acknowledging the hello.
	ErrNoAck = errors.New("the guest sends without end and acknowledges nothing")
)

const (
	// helloInterval is how often an unanswered hello is sent again: often enough that
	// a guest which came up late costs little, seldom enough to fill no socket buffer
	// while a guest takes minutes to wake.
	helloInterval = 500 * time.Millisecond

	// maxDropped bounds what Dial reads and drops while it waits for an ack. What can
	// lawfully be in the way is a socket buffer and what the guest wrote until it read
	// the hello; the bound only keeps a hostile guest from burning CPU until ctx ends.
	maxDropped = 256 << 20

	// endTimeout bounds how long Close waits to tell the guest of it: the message
	// fits any socket buffer that is not full.
	endTimeout = 20 * time.Millisecond

	// maxStray is how many control messages that mean nothing a session puts up with.
	// A lawful guest sends none.
	maxStray = 64

	// writeChunk is how much is encoded and written at once: an HTTP/2 frame of
	// maxFrame with its header, so that it costs one system call.
	writeChunk = maxFrame + 1<<10
)

// past is a deadline that is over.
var past = time.Unix(1, 0)

// Host is the node's end of a stream. Its methods are safe for concurrent use.
type Host struct {
	f *os.File // our own duplicate, non-blocking

	dialing chan struct{} // token: one Dial at a time
	rtok    chan struct{} // token: may read f; guards dec
	wtok    chan struct{} // token: may write f
	dec     decoder

	mu     sync.Mutex
	cur    *hostConn // the live session; nil if there is none
	closed bool
}

// NewHost returns the node's end of the stream f. It works on a duplicate: f stays
// the caller's. The stream is put into non-blocking mode, for every duplicate of it.
func NewHost(f *os.File) (*Host, error) {
	dup, err := duplicate(f)
	if err != nil {
		return nil, fmt.Errorf("duplicate the guest stream: %w", err)
	}
	return &Host{
		f:       dup,
		dialing: make(chan struct{}, 1),
		rtok:    make(chan struct{}, 1),
		wtok:    make(chan struct{}, 1),
	}, nil
}

// duplicate returns a duplicate of f that the runtime's poller waits on.
func duplicate(f *os.File) (*os.File, error) {
	rc, err := f.SyscallConn()
	if err != nil {
		return nil, err
	}
	var dup *os.File
	var opErr error
	err = rc.Control(func(fd uintptr) {
		n, _, errno := syscall.Syscall(syscall.SYS_FCNTL, fd, syscall.F_DUPFD_CLOEXEC, 0)
		if errno != 0 {
			opErr = errno
			return
		}
		if err := syscall.SetNonblock(int(n), true); err != nil {
			_ = syscall.Close(int(n))
			opErr = err
			return
		}
		dup = os.NewFile(n, "guest stream")
	})
	return dup, errors.Join(err, opErr)
}

// Dial begins a new session, ending the one before. It returns once the guest has
// acknowledged, however long that takes: ctx bounds it. Everything the guest sent
// before is dropped.
func (h *Host) Dial(ctx context.Context) (net.Conn, error) {
	select {
	case h.dialing <- struct{}{}:
		defer func() { <-h.dialing }()
	case <-ctx.Done():
		return nil, fmt.Errorf("dial the guest: %w", context.Cause(ctx))
	}
	c, err := h.dial(ctx)
	if err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return nil, fmt.Errorf("dial the guest: %w", err)
	}
	return c, nil
}

func (h *Host) dial(ctx context.Context) (*hostConn, error) {
	h.mu.Lock()
	if h.cur != nil {
		h.endLocked(h.cur, ErrReplaced)
	}
	h.mu.Unlock()

	// endLocked has driven the session's readers and writers out of f: the tokens
	// come free at once.
	h.rtok <- struct{}{}
	defer func() { <-h.rtok }()
	h.wtok <- struct{}{}
	defer func() { <-h.wtok }()

	if err := h.f.SetDeadline(time.Time{}); err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = h.f.SetDeadline(past) })
	defer stop()

	n := newNonce()
	acked := make(chan struct{})
	sent := make(chan error, 1)
	go func() { sent <- h.sendHellos(n, acked) }()
	pre, err := h.awaitAck(n)
	if err != nil {
		_ = h.f.SetDeadline(past) // drives the sender out
	}
	close(acked)
	// A hello under way must be whole before the session's own bytes follow it.
	if werr := <-sent; err == nil && werr != nil {
		err = fmt.Errorf("send hello: %w", werr)
	}
	if err != nil {
		return nil, err
	}
	if !stop() {
		return nil, context.Cause(ctx)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return nil, net.ErrClosed
	}
	h.cur = &hostConn{h: h, nonce: n, pre: pre, done: make(chan struct{})}
	return h.cur, nil
}

// sendHellos sends a hello now and then until acked.
func (h *Host) sendHellos(n nonce, acked <-chan struct{}) error {
	hello := control{kind: kindHello, version: version, nonce: n}.wire()
	tick := time.NewTicker(helloInterval)
	defer tick.Stop()
	for {
		if _, err := h.f.Write(hello); err != nil {
			return err
		}
		select {
		case <-acked:
			return nil
		case <-tick.C:
		}
	}
}

// awaitAck reads and drops until the ack with nonce n, and returns the bytes that
// came in one read with it, still encoded.
func (h *Host) awaitAck(n nonce) (pre []byte, err error) {
	buf := make([]byte, 16<<10) // an idle stream has nothing to drop: 16 KiB is for the busy ones
	for dropped := 0; dropped < maxDropped; {
		m, err := h.f.Read(buf)
		if err != nil {
			return nil, err
		}
		dropped += m
		for raw := buf[:m]; len(raw) > 0; {
			var ev event
			_, raw, ev = h.dec.step(raw)
			if ev != evControl || h.dec.msg.kind != kindAck || h.dec.msg.nonce != n {
				continue
			}
			if v := h.dec.msg.version; v != version {
				return nil, fmt.Errorf("%w: %d, we speak %d", ErrVersion, v, version)
			}
			return append([]byte(nil), raw...), nil
		}
	}
	return nil, ErrNoAck
}

// endLocked ends session c with err, once, and drives its readers and writers out of f.
func (h *Host) endLocked(c *hostConn, err error) {
	if c.err != nil {
		return
	}
	c.err = err
	close(c.done)
	if h.cur == c {
		h.cur = nil
		_ = h.f.SetDeadline(past) // fails on a closed file only
	}
}

// end is endLocked for those who do not hold the lock. It returns what the session
// ended with: err, unless it had ended before.
func (h *Host) end(c *hostConn, err error) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.endLocked(c, err)
	return c.err
}

// Unread reports whether the guest has sent something that this end has not come to read.
// Of a stream that is no socket that is not known.
func (h *Host) Unread() bool {
	rc, err := h.f.SyscallConn()
	if err != nil {
		return false
	}
	unread := false
	err = rc.Control(func(fd uintptr) {
		var one [1]byte
		n, _, err := syscall.Recvfrom(int(fd), one[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		unread = err == nil && n > 0
	})
	return unread && err == nil
}

// Close ends the session and gives the stream up. The guest keeps its end.
func (h *Host) Close() error {
	h.mu.Lock()
	cur, closed := h.cur, h.closed
	h.closed = true
	h.mu.Unlock()
	if closed {
		return nil
	}
	if cur != nil {
		_ = cur.Close()
	}
	return h.f.Close()
}

// isTimeout reports whether err is a deadline that passed.
func isTimeout(err error) bool { return errors.Is(err, os.ErrDeadlineExceeded) }

// orEOF makes a stream whose other end is gone an io.ErrUnexpectedEOF: the session
// was not ended, it was lost.
func orEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
