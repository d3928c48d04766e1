// Package ports reaches the TCP servers of a sandbox from inside: it finds them ([List]),
// connects to them ([Dial]) and passes a connection on ([Splice]). It knows nothing of HTTP,
// and refuses to reach anything but the sandbox's own loopback.
//
// Start with [Dial].
package ports

import (
	"context"
	"errors"
	"io"
	"net"
	"strconv"
	"syscall"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/x/duplex"
)

// dialTime bounds the connecting to a server whose queue is full.
const dialTime = 5 * time.Second

// sendBuffer bounds what the kernel keeps for a server that does not read.
const sendBuffer = 128 << 10

// Dial connects to a port of the loopback: IPv4 first, since most servers listen there, then
// IPv6. Nothing listening is hutch.ErrPortClosed.
func Dial(ctx context.Context, port int) (*net.TCPConn, error) {
	if port < 1 || port > 65535 {
		return nil, hutch.FieldErrorf("port", "must be between 1 and 65535")
	}
	ctx, cancel := context.WithTimeout(ctx, dialTime)
	defer cancel()
	d := net.Dialer{KeepAlive: -1} // both ends are in this sandbox
	for _, host := range []string{"127.0.0.1", "::1"} {
		conn, err := d.DialContext(ctx, "tcp", net.JoinHostPort(host, strconv.Itoa(port)))
		if err == nil {
			tcp := conn.(*net.TCPConn) //nolint:forcetypeassert // what dialling tcp gives
			_ = tcp.SetWriteBuffer(sendBuffer)
			return tcp, nil
		}
		if ctx.Err() != nil {
			return nil, hutch.Wrap(hutch.CodeUnavailable, err, "the server on port %d does not accept connections", port)
		}
	}
	return nil, hutch.Errorf(hutch.CodePortClosed, "nothing in the sandbox listens on port %d", port)
}

// Splice passes bytes between a connection from outside and one to a server, both ways, until
// both ways have ended or one of the two is cut, and then cuts or closes the other. It
// closes server, and sends nothing to peer after it has returned. peer's Run must be under
// way.
func Splice(peer *duplex.Conn, server *net.TCPConn) {
	inward := make(chan struct{})
	go func() {
		defer close(inward)
		pumpIn(peer, server)
	}()
	// The end of peer must not leave us in a read of a server that is silent.
	go func() {
		<-peer.Over()
		<-inward
		_ = server.Close()
	}()
	_, err := io.Copy(plainWriter{peer}, plainReader{server})
	switch {
	case err == nil:
		_ = peer.CloseWrite()
		<-inward
	case errors.Is(err, syscall.EPIPE):
		<-inward // nobody wants the answer, but the question is to arrive
	case errors.Is(err, syscall.ECONNRESET):
		_ = peer.Reset()
	}
	peer.Abandon()
	_ = server.Close()
	<-inward
}

// pumpIn passes on what comes from outside, and then how it ended.
func pumpIn(peer *duplex.Conn, server *net.TCPConn) {
	_, err := io.Copy(plainWriter{server}, plainReader{peer})
	var failed *net.OpError
	switch {
	case err == nil && peer.Deaf():
		_ = server.Close() // the end of both ways
	case err == nil:
		_ = server.CloseWrite()
	case errors.As(err, &failed):
		// The server takes no more: what it sends, or its reset, is still to come. What comes
		// for it is thrown away.
		_, _ = io.Copy(io.Discard, plainReader{peer})
	default:
		_ = server.SetLinger(0) // cut outside: cut inside
		_ = server.Close()
	}
}

// plainWriter and plainReader hide what io.Copy would use in place of its buffer: a splice
// of a socket into something that is none.
type (
	plainWriter struct{ io.Writer }
	plainReader struct{ io.Reader }
)
