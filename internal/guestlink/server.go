package guestlink

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
)

// requestWindow is how much of one request's body may lie unread in the guest, for the
// reason that streamWindow has. The connection's window, 4 MiB less one, which is as
// much as net/http takes, fits three of them. So no body may be left unread while its
// handler waits for a program of the tenant's: what such a program takes goes in calls
// whose bodies are short.
const requestWindow = 1 << 20

// Serve answers HTTP/2 calls with handler on the guest's end rw of a stream, session
// after session, until ctx ends (it then returns nil) or the stream does. A session
// that ends cancels the contexts of its requests. Serve closes rw if it can be closed.
func Serve(ctx context.Context, rw io.ReadWriter, handler http.Handler) error {
	var p http.Protocols
	p.SetUnencryptedHTTP2(true)
	l := NewListener(rw)
	srv := &http.Server{
		Handler:     handler,
		Protocols:   &p,
		BaseContext: func(net.Listener) context.Context { return ctx },
		ErrorLog:    slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug), // the guest's standard error is nobody's
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams:          maxCalls,
			MaxReadFrameSize:              maxFrame,
			MaxReceiveBufferPerConnection: 4<<20 - 1,
			MaxReceiveBufferPerStream:     requestWindow,
		},
	}
	stop := context.AfterFunc(ctx, func() { _ = srv.Close() })
	defer stop()
	err := srv.Serve(l)
	_ = srv.Close()
	if ctx.Err() != nil {
		return nil
	}
	if errors.Is(err, net.ErrClosed) {
		return net.ErrClosed
	}
	return err
}
