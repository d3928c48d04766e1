package e2bapi

import (
	"net/http"
	"strconv"
	"sync"
	"time"

	"connectrpc.com/connect"
)

// HeaderKeepalive names the longest silence of a stream that its client wants, in seconds.
const HeaderKeepalive = "Keepalive-Ping-Interval"

// keepalive returns the longest silence of a stream.
func (a *API) keepalive(h http.Header) time.Duration {
	n, err := strconv.Atoi(h.Get(HeaderKeepalive))
	if err != nil || n < 1 || n > 3600 {
		return a.cfg.Keepalive
	}
	return time.Duration(n) * time.Second
}

// frames writes a stream's messages, each at once, and breaks its silence.
type frames[Res any] struct {
	stream *connect.ServerStream[Res]
	idle   time.Duration

	mu     sync.Mutex // one writer at a time; guards what follows
	timer  *time.Timer
	ping   *Res // nil = silence is not broken yet
	err    error
	closed bool
}

func newFrames[Res any](s *connect.ServerStream[Res], idle time.Duration) *frames[Res] {
	return &frames[Res]{stream: s, idle: idle}
}

// send writes a message. An error means that the client has gone.
func (f *frames[Res]) send(m *Res) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.sendLocked(m)
}

func (f *frames[Res]) sendLocked(m *Res) error {
	if f.err == nil {
		f.err = f.stream.Send(m)
	}
	if f.timer != nil {
		f.timer.Reset(f.idle)
	}
	return f.err
}

// breakSilence sends ping from now on whenever nothing was sent for a while.
func (f *frames[Res]) breakSilence(ping *Res) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ping = ping
	f.timer = time.AfterFunc(f.idle, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		if !f.closed {
			_ = f.sendLocked(f.ping) // kept for the next who sends
		}
	})
}

// close ends the pings. Nothing is sent afterwards: the end of the stream is the library's.
func (f *frames[Res]) close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = true
	if f.timer != nil {
		f.timer.Stop()
	}
}
