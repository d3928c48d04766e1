package guestlink

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"
)

// The bounds of the node's HTTP/2 client. They hold against a guest that does its
// worst: what it can make the node keep is, for each call the node itself has
// opened, streamWindow of body and maxHeaders of headers.
const (
	// streamWindow is how much of one answer may lie unread: what the guest sends while
	// word of what was read is on its way to it. With less, a transfer waits for that
	// word, which takes most of a millisecond when both ends must be woken. The window
	// of the whole connection is left wide open, so that answers which nobody reads hold
	// up no others; the sum is bounded by the calls the node opens.
	streamWindow = 1 << 20

	// maxFrame is the longest frame that either end accepts: 256 KiB of a body, with a
	// header of the call's own. Each frame costs the guest one system call and four
	// switches between goroutines, whatever its length. It is also the size of a read
	// buffer that a connection keeps once it has carried such a frame.
	maxFrame = 256<<10 + 1<<10

	// maxHeaders bounds the headers of one answer. A guest agent sends some 100 bytes.
	maxHeaders = 32 << 10

	// writeTimeout ends a connection on which the guest has read nothing for so long
	// while something was to be written. It is longer than any pause of the guest that
	// does not come from Pause, and calls to a paused guest are not made.
	writeTimeout = 30 * time.Second

	// maxCalls is how many calls a guest agent serves at once.
	maxCalls = 1000

	// minCalls is how many calls the node counts on. A connection that refuses a call
	// with fewer under way takes none any more.
	minCalls = 100
)

// Transport is HTTP/2 to the guest over a [Host]: an http.RoundTripper with one
// connection, made when it is needed. When that connection fails, the next call
// makes a new one with a new session, which resynchronises the stream.
//
// A call ends with its request's context, except while its body is read or closed:
// there the writeTimeout bounds it.
type Transport struct {
	host *Host
	http *http.Transport

	dialing chan struct{} // token: one connection is made at a time
	disarm  func() bool   // guarded by dialing: stops the context from ending the new connection

	mu     sync.Mutex
	conn   *http.ClientConn // nil until the first call
	closed bool
}

var _ http.RoundTripper = (*Transport)(nil)

// NewTransport returns a Transport over h, which it owns from now on.
func NewTransport(h *Host) *Transport {
	t := &Transport{host: h, dialing: make(chan struct{}, 1)}
	var p http.Protocols
	p.SetUnencryptedHTTP2(true)
	t.http = &http.Transport{
		Protocols:              &p,
		DialContext:            t.dial,
		DisableCompression:     true, // an answer may not grow on its way
		MaxResponseHeaderBytes: maxHeaders,
		HTTP2: &http.HTTP2Config{
			StrictMaxConcurrentRequests: true,
			MaxReadFrameSize:            maxFrame,
			MaxReceiveBufferPerStream:   streamWindow,
			WriteByteTimeout:            writeTimeout,
		},
	}
	return t
}

// RoundTrip implements http.RoundTripper. The request's host is of no matter.
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	c, err := t.connect(req.Context())
	if err != nil {
		if req.Body != nil {
			_ = req.Body.Close()
		}
		return nil, err
	}
	return c.RoundTrip(req)
}

// connect returns the connection, or makes one. If it returns one, a place for one
// call is reserved on it, or the connection is full and the call will wait.
func (t *Transport) connect(ctx context.Context) (*http.ClientConn, error) {
	if c, err := t.reserve(); c != nil || err != nil {
		return c, err
	}
	select {
	case t.dialing <- struct{}{}:
		defer func() { <-t.dialing }()
	case <-ctx.Done():
		return nil, fmt.Errorf("connect to the guest: %w", context.Cause(ctx))
	}
	if c, err := t.reserve(); c != nil || err != nil {
		return c, err // somebody else made it meanwhile
	}
	c, err := t.http.NewClientConn(ctx, "http", "guest:80")
	if t.disarm != nil && !t.disarm() && err == nil {
		err = context.Cause(ctx)
		_ = c.Close()
	}
	t.disarm = nil
	if err != nil {
		return nil, fmt.Errorf("connect to the guest: %w", err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		_ = c.Close()
		return nil, net.ErrClosed
	}
	t.conn = c
	_ = c.Reserve()
	return c, nil
}

// reserve returns the connection if it is of use, and nil if a new one must be made.
func (t *Transport) reserve() (*http.ClientConn, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil, net.ErrClosed
	}
	c := t.conn
	if c == nil {
		return nil, nil
	}
	if c.Err() == nil && (c.Reserve() == nil || c.InFlight() >= minCalls) {
		return c, nil
	}
	// It failed, or the guest takes no more calls on it (GOAWAY). Calls that still
	// run on it could not outlive the new session.
	_ = c.Close()
	t.conn = nil
	return nil, nil
}

// dial begins a session for a new connection. The preface that is then written to it
// must not wait for longer than ctx either.
func (t *Transport) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	c, err := t.host.Dial(ctx)
	if err != nil {
		return nil, err
	}
	t.disarm = context.AfterFunc(ctx, func() { _ = c.SetDeadline(past) })
	return newScreen(c), nil
}

// Unread is [Host.Unread].
func (t *Transport) Unread() bool { return t.host.Unread() }

// Close ends the connection, with every call on it, and the stream's Host.
func (t *Transport) Close() error {
	t.mu.Lock()
	c, closed := t.conn, t.closed
	t.closed = true
	t.mu.Unlock()
	if closed {
		return nil
	}
	err := t.host.Close() // first, so that nothing below waits for the guest
	if c != nil {
		_ = c.Close()
	}
	t.http.CloseIdleConnections()
	return err
}
