package httpapi

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/coder/websocket"

	"hutch.dev/hutch"
)

// Bounds on clients of WebSockets.
const (
	maxFrame   = 4 << 20   // of one message, which is passed on as it comes
	maxText    = 256 << 10 // of one that must be whole to be understood
	maxSockets = 1000      // of one project
)

// errLongText refuses a text frame; the reason of a closing has room for a short sentence.
var errLongText = hutch.Errorf(hutch.CodeTooLarge, "text frames are at most %d bytes; send input in binary frames", maxText)

// socket is a WebSocket whose client is asked now and then whether it is there. Its
// methods may be called concurrently, but for read.
type socket struct {
	conn    *websocket.Conn
	leave   func()        // gives its place back
	timeout time.Duration // of one write
	wg      sync.WaitGroup
	ctx     context.Context //nolint:containedctx // ends when the client is known to be gone
	stop    context.CancelFunc
}

// checkUpgrade refuses what asks for no WebSocket, before anything is begun for it.
func checkUpgrade(r *http.Request) error {
	has := func(name, token string) bool {
		for _, v := range r.Header.Values(name) {
			for part := range strings.SplitSeq(v, ",") {
				if strings.EqualFold(strings.TrimSpace(part), token) {
					return true
				}
			}
		}
		return false
	}
	ok := r.Method == http.MethodGet && r.ProtoMajor == 1 && has("Connection", "upgrade") && has("Upgrade", "websocket") &&
		r.Header.Get("Sec-WebSocket-Version") == "13" && r.Header.Get("Sec-WebSocket-Key") != ""
	if !ok {
		return hutch.Errorf(hutch.CodeBadRequest, "this endpoint is a WebSocket: connect with a WebSocket client, with ws:// or wss:// in place of http:// or https://")
	}
	return nil
}

// openSocket carries out the upgrade. close must be called.
func (a *API) openSocket(w http.ResponseWriter, r *http.Request) (*socket, error) {
	leave, ok := a.sockets.Enter(project(r))
	if !ok {
		return nil, hutch.Errorf(hutch.CodeRateLimited, "this project has %d WebSockets open, which is the most: close those that are not needed", maxSockets)
	}
	conn, err := websocket.Accept(w, r, &websocket.AcceptOptions{
		InsecureSkipVerify: true, // any origin: keys are sent by hand, never by a browser on its own
		CompressionMode:    websocket.CompressionDisabled,
	})
	if err != nil {
		leave()
		return nil, clientGone(err) // it has been answered
	}
	conn.SetReadLimit(maxFrame)
	ctx, stop := context.WithCancel(context.WithoutCancel(r.Context()))
	s := &socket{conn: conn, leave: leave, timeout: a.cfg.WriteTimeout, ctx: ctx, stop: stop}
	s.wg.Go(func() { s.ping(ctx, a.cfg.PingInterval) })
	return s, nil
}

// ping makes sure that the client is there, and keeps balancers from thinking that
// nobody is: every interval, and a client that does not answer by the next one but one is gone.
func (s *socket) ping(ctx context.Context, every time.Duration) {
	t := time.NewTicker(every)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		ctx, cancel := context.WithTimeout(ctx, 2*every)
		err := s.conn.Ping(ctx)
		cancel()
		if err != nil {
			_ = s.conn.CloseNow() // ends read
			s.stop()
			return
		}
	}
}

func (s *socket) write(typ websocket.MessageType, p []byte) error {
	ctx, cancel := context.WithTimeout(context.Background(), s.timeout)
	defer cancel()
	return clientGone(s.conn.Write(ctx, typ, p))
}

func (s *socket) writeText(v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // only types of package api come here, and those encode
	}
	return s.write(websocket.MessageText, b)
}

// closeNormally carries out the closing handshake; reason is at most 123 bytes.
func (s *socket) closeNormally() { _ = s.conn.Close(websocket.StatusNormalClosure, "") }

// refuse ends the conversation because of what the client sent.
func (s *socket) refuse(sentence string) { _ = s.conn.Close(websocket.StatusPolicyViolation, sentence) }

// close lets go of everything. No goroutine of s is left then.
func (s *socket) close() {
	s.stop()
	_ = s.conn.CloseNow()
	s.wg.Wait()
	s.leave()
}

// endWith closes the socket when the server stops.
func (s *socket) endWith(ctx context.Context) (release func() bool) {
	return context.AfterFunc(ctx, func() { _ = s.conn.Close(websocket.StatusGoingAway, "the server is stopping: come back in a moment") })
}
