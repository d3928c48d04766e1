package guestclient

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/guestapi"
	"hutch.dev/hutch/internal/x/duplex"
)

const (
	// closeTime is how long a connection that was closed has to get its last bytes through.
	closeTime = 5 * time.Second

	maxListeners = 1024
	maxShells    = 64
)

var (
	_ hutch.Ports  = (*Client)(nil)
	_ hutch.Shells = (*Client)(nil)
)

// DialPort connects to a server inside. ctx bounds the connecting only.
func (c *Client) DialPort(ctx context.Context, port int) (hutch.PortConn, error) {
	if port < 1 || port > 65535 {
		return nil, hutch.FieldErrorf("port", "must be between 1 and 65535")
	}
	select {
	case c.ports <- struct{}{}:
	default:
		return nil, hutch.Errorf(hutch.CodeUnavailable, "the sandbox has %d connections to its ports already", guestapi.MaxPortConns)
	}
	conn, err := c.dialPort(ctx, port)
	if err != nil && ctx.Err() == nil && isBroken(err) {
		conn, err = c.dialPort(ctx, port)
	}
	if err != nil {
		<-c.ports
		return nil, callError(ctx, "dial port", err)
	}
	go func() {
		conn.run()
		<-c.ports
	}()
	return conn, nil
}

func (c *Client) dialPort(ctx context.Context, port int) (*portConn, error) {
	life, cancel := context.WithCancel(context.WithoutCancel(ctx))
	connected := context.AfterFunc(ctx, cancel)
	body, w := io.Pipe()
	req := request{op: "dial port", method: http.MethodPost, path: fmt.Sprintf("%s/%d/connect", guestapi.PathPorts, port)}
	type answer struct {
		resp *http.Response
		err  error
	}
	done := make(chan answer, 1)
	go func() {
		resp, err := c.sendReader(life, req, body) //nolint:bodyclose // the connection is it, and closes it
		done <- answer{resp, err}
	}()
	var a answer
	select {
	case a = <-done:
	case <-ctx.Done(): // what is stuck in the transport goes on by itself
		a.err = context.Cause(ctx)
	}
	if a.err == nil && !connected() {
		a.err = context.Cause(ctx)
	}
	if a.err != nil {
		cancel()
		return nil, a.err
	}
	p := &portConn{answer: a.resp.Body, request: w}
	p.cut = func() {
		cancel()
		_ = w.CloseWithError(net.ErrClosed) // the transport looks at a body under way, not at its context
	}
	p.Conn = duplex.New(a.resp.Body, func(frame []byte) error {
		_, err := w.Write(frame)
		return err
	})
	return p, nil
}

// portConn is a connection to a server inside.
type portConn struct {
	*duplex.Conn
	cut     func()
	answer  io.ReadCloser
	request *io.PipeWriter
}

// run serves the connection until it is over.
func (p *portConn) run() {
	_ = p.Run() // how it ended is in what reads say
	p.cut()
	_ = p.answer.Close()
}

// Read implements io.Reader.
func (p *portConn) Read(b []byte) (int, error) {
	n, err := p.Conn.Read(b)
	return n, portError(err)
}

// Write implements io.Writer.
func (p *portConn) Write(b []byte) (int, error) {
	n, err := p.Conn.Write(b)
	return n, portError(err)
}

// CloseWrite ends what is written.
func (p *portConn) CloseWrite() error { return portError(p.Conn.CloseWrite()) }

// Close ends both directions. It does not wait for what was written, which has closeTime to
// arrive.
func (p *portConn) Close() error {
	p.Abandon()
	stop := time.AfterFunc(closeTime, p.cut)
	go func() {
		if p.Conn.Close() == nil {
			_ = p.request.Close()
		}
		<-p.Over()
		stop.Stop()
	}()
	return nil
}

// portError is the error of a connection: what was done to it by either end as it is, and
// anything else as the guest's failure.
func portError(err error) error {
	switch {
	case err == nil, errors.Is(err, io.EOF), errors.Is(err, net.ErrClosed):
		return err
	case errors.Is(err, duplex.ErrReset):
		return hutch.Wrap(hutch.CodeUnavailable, err, "the server in the sandbox reset the connection")
	case errors.Is(err, io.ErrClosedPipe):
		return net.ErrClosed
	}
	return hutch.Wrap(hutch.CodeGuestUnresponsive, err, "%s", hutch.ErrGuestUnresponsive.Message)
}

type listenerList struct{ capped[hutch.Listener] }

// UnmarshalJSON implements json.Unmarshaler.
func (l *listenerList) UnmarshalJSON(b []byte) error { return l.decode(b, maxListeners) }

// Listeners lists the ports that something listens on inside, lowest first.
func (c *Client) Listeners(ctx context.Context) ([]hutch.Listener, error) {
	var w struct{ Listeners listenerList }
	err := c.call(ctx, request{op: "list ports", method: http.MethodGet, path: guestapi.PathPorts, limit: guestapi.MaxBody / 64, repeat: true}, &w)
	if err != nil {
		return nil, err
	}
	list := make([]hutch.Listener, 0, len(w.Listeners.capped))
	for _, l := range w.Listeners.capped {
		if _, err := netip.ParseAddr(l.Address); err != nil || l.Port < 1 || l.Port > 65535 {
			return nil, nonsense("list ports: no address")
		}
		l.PID = max(0, l.PID)
		l.Command = cleanText(l.Command, maxCommand)
		list = append(list, l)
	}
	return list, nil
}

// DiskUsage measures the file system that the sandbox's root is on.
func (c *Client) DiskUsage(ctx context.Context) (hutch.DiskUsage, error) {
	var u hutch.DiskUsage
	err := c.call(ctx, request{op: "measure disk", method: http.MethodGet, path: guestapi.PathDisk, limit: smallBody, repeat: true}, &u)
	if err == nil && (u.Used < 0 || u.Total < 0) {
		err = nonsense("measure disk: a negative size")
	}
	return u, err
}
