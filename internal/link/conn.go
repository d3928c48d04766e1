package link

import (
	"context"
	"errors"
	"io"
	"net"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/waiter"
)

// Bounds of what the stack buffers for a connection, each way, in bytes. A packet is up to MTU
// bytes, and a connection that is alone on its link gets the full speed of the link with
// maxBuffer.
const (
	minBuffer   = 4 << 10
	firstBuffer = 64 << 10 // before it is known how many there are
	maxBuffer   = 1 << 20
)

const (
	// timeWait is how long a connection that ended well is remembered. On a link nothing
	// arrives late but what is sent again.
	timeWait = 100 * time.Millisecond
	// lingerTime is how long the guest has to take the rest of a connection that was closed
	// here, and to close it too.
	lingerTime = 5 * time.Second
)

// bufferFor is what the nth connection of a link may buffer each way, so that all together
// stay below 64 MiB.
func bufferFor(n int) int {
	switch {
	case n <= 16:
		return maxBuffer
	case n <= 64:
		return maxBuffer / 4
	case n <= 256:
		return maxBuffer / 16
	}
	return maxBuffer / 32
}

// Request is a connection that waits to be accepted or refused. Its methods are for the
// goroutine that was given it.
type Request struct {
	flow      Flow
	ctx       context.Context
	forwarder *tcp.ForwarderRequest
	buffer    int
	conn      *Conn // once accepted
}

// Flow says where the connection goes.
func (r *Request) Flow() Flow { return r.flow }

// Context ends with the link.
func (r *Request) Context() context.Context { return r.ctx }

// Accept completes the handshake. It fails if the guest has given up, or the link ends. It
// must be called once at most.
func (r *Request) Accept() (*Conn, error) {
	var wq waiter.Queue
	ep, err := r.forwarder.CreateEndpoint(&wq)
	if err != nil {
		return nil, stackError("accept", err)
	}
	ep.SocketOptions().SetReceiveBufferSize(int64(r.buffer), true)
	ep.SocketOptions().SetSendBufferSize(int64(r.buffer), true)
	r.forwarder.Complete(false)
	r.conn = &Conn{TCPConn: gonet.NewTCPConn(&wq, ep), ep: ep, wq: &wq}
	return r.conn, nil
}

// end refuses a connection that was not accepted, and sees one that was to its end.
func (r *Request) end() {
	if r.conn == nil {
		r.forwarder.Complete(true)
		return
	}
	r.conn.finish(r.ctx)
}

// Conn is an accepted connection. It is safe for concurrent use like any net.Conn.
type Conn struct {
	*gonet.TCPConn
	ep tcpip.Endpoint
	wq *waiter.Queue
}

var (
	_ net.Conn    = (*Conn)(nil)
	_ io.WriterTo = (*Conn)(nil)
)

// Abort ends the connection with a reset; what was not sent yet is lost. Reads and writes
// under way fail.
func (c *Conn) Abort() { c.ep.Abort() }

// WriteTo copies what the guest sends to w until it sends no more. It holds a buffer only while
// there is something to copy, so a connection that idles costs none. Deadlines do not apply.
func (c *Conn) WriteTo(w io.Writer) (int64, error) {
	entry, readable := waiter.NewChannelEntry(waiter.ReadableEvents)
	c.wq.EventRegister(&entry)
	defer c.wq.EventUnregister(&entry)
	var total int64
	for {
		n, err := c.copyOnce(w)
		total += int64(n)
		switch {
		case errors.Is(err, errNothingYet):
			<-readable
		case errors.Is(err, io.EOF):
			return total, nil
		case err != nil:
			return total, err
		}
	}
}

var errNothingYet = errors.New("nothing to read yet")

// copyOnce copies what is there.
func (c *Conn) copyOnce(w io.Writer) (int, error) {
	b := buffers.Get().(*[]byte)
	defer buffers.Put(b)
	dst := tcpip.SliceWriter(*b)
	res, err := c.ep.Read(&dst, tcpip.ReadOptions{})
	switch err.(type) {
	case nil:
		return w.Write((*b)[:res.Count])
	case *tcpip.ErrWouldBlock:
		return 0, errNothingYet
	case *tcpip.ErrClosedForReceive:
		return 0, io.EOF
	}
	return 0, stackError("read", err)
}

// finish closes the connection and returns once the guest has too, or has been reset because
// it did not.
func (c *Conn) finish(ctx context.Context) {
	entry, ended := waiter.NewChannelEntry(waiter.EventHUp)
	c.wq.EventRegister(&entry)
	defer c.wq.EventUnregister(&entry)
	_ = c.Close()
	patience := time.NewTimer(lingerTime)
	defer patience.Stop()
	for !c.ended() {
		select {
		case <-ended:
		case <-patience.C:
			c.ep.Abort()
			return
		case <-ctx.Done():
			return
		}
	}
}

// ended reports whether nothing of the connection is left in the stack.
func (c *Conn) ended() bool {
	s := tcp.EndpointState(c.ep.State())
	return s == tcp.StateClose || s == tcp.StateError || s == tcp.StateInitial
}
