package fdpass

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"
)

// Bounds of a server.
const (
	maxSessions = 64 // connections at once; a host has one node agent and now and then a tool
	maxOp       = 32 // bytes of an unknown operation's name that are sent back
	replyTime   = 5 * time.Second
)

// Codes of the errors this layer makes itself.
const (
	CodeBadRequest  = "bad_request"
	CodeUnsupported = "unsupported"
	CodeInternal    = "internal"
)

// opHello is the call every session begins with; the server answers it by itself.
const opHello = "hello"

// Hello says who answers.
type Hello struct {
	Service string `json:"service"` // what it is: a client of another service goes away
	Version int    `json:"version"` // of its operations; grows with each addition
	Build   string `json:"build"`   // of its program, for people and for deciding to replace it
	PID     int    `json:"pid"`
}

type request struct {
	ID   uint64          `json:"id"`
	Op   string          `json:"op"`
	Body json.RawMessage `json:"body,omitempty"`
}

type reply struct {
	ID    uint64          `json:"id"`
	Error *RemoteError    `json:"error,omitempty"`
	Body  json.RawMessage `json:"body,omitempty"`
}

// RemoteError is a failure the other side reported.
type RemoteError struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

func (e *RemoteError) Error() string { return e.Code + ": " + e.Message }

// Session is one client's connection; it tells clients apart.
type Session struct{ ID uint64 }

// Call is one request. Its files belong to the server unless the handler takes them.
type Call struct {
	Session Session
	Op      string
	Body    json.RawMessage
	msg     *Message
}

// Decode fills in from the request's body. Fields that in lacks are ignored: a newer
// client may talk to an older server.
func (c *Call) Decode(in any) error {
	if err := json.Unmarshal(c.Body, in); err != nil {
		return &RemoteError{Code: CodeBadRequest, Message: "the body of " + c.Op + " is not what was expected"}
	}
	return nil
}

// FDs returns the descriptors that came along; they stay the server's.
func (c *Call) FDs() []int { return c.msg.FDs }

// TakeFDs returns the descriptors that came along and makes the caller their owner.
func (c *Call) TakeFDs() []int { return c.msg.Take() }

// Handler answers a server's calls. Calls of one session come one after the other,
// those of several at once.
type Handler interface {
	// Handle answers c with a value that is sent as JSON and descriptors that are sent
	// along and then closed. A [RemoteError] in err's chain is sent as it is, any
	// other error as an internal one, without its text. An unknown operation is
	// answered with [Unsupported].
	Handle(ctx context.Context, c *Call) (out any, fds []int, err error)
	// Closed says that a session, known or not, will make no more calls.
	Closed(s Session)
}

// Unsupported is the answer to an operation that a handler does not know.
func Unsupported(op string) error {
	return &RemoteError{Code: CodeUnsupported, Message: fmt.Sprintf("operation %.*q is not known here", maxOp, op)}
}

// Server answers calls of processes of the same user, or of root.
type Server struct {
	Hello   Hello
	Handler Handler
	Log     *slog.Logger
}

// Serve accepts connections on l until ctx ends or l fails, and closes l. When it
// returns, every session has ended. It returns nil if ctx ended.
func (s *Server) Serve(ctx context.Context, l *net.UnixListener) error {
	// Sessions outlive the listener: whoever sees one end and dials again must not reach
	// this server once more.
	sessions, end := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		_ = l.Close()
		end()
	})
	defer stop()

	var wg sync.WaitGroup
	defer wg.Wait()
	defer func() {
		_ = l.Close()
		end()
	}()
	slots := make(chan struct{}, maxSessions)
	for id := uint64(1); ; id++ {
		c, err := l.AcceptUnix()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("accept: %w", err)
		}
		conn := NewConn(c)
		if err := s.admit(conn); err != nil {
			s.Log.Warn("connection refused", "error", err)
			_ = conn.Close()
			continue
		}
		select {
		case slots <- struct{}{}:
		default:
			s.Log.Warn("connection refused", "error", "too many at once")
			_ = conn.Close()
			continue
		}
		wg.Go(func() {
			defer func() { <-slots }()
			s.session(sessions, Session{ID: id}, conn)
		})
	}
}

// admit refuses a peer that is neither root nor this user. The socket's mode says the
// same; this holds also where somebody changed that.
func (s *Server) admit(c *Conn) error {
	uid, err := c.PeerUID()
	if err != nil {
		return fmt.Errorf("read peer's user: %w", err)
	}
	if uid != 0 && int(uid) != os.Geteuid() {
		return fmt.Errorf("peer is user %d", uid)
	}
	return nil
}

func (s *Server) session(ctx context.Context, id Session, c *Conn) {
	stop := context.AfterFunc(ctx, func() { _ = c.Close() })
	defer stop()
	defer func() { _ = c.Close() }()
	defer s.Handler.Closed(id)
	for {
		m, err := c.Recv()
		if err != nil && !errors.Is(err, ErrFilesLost) && !errors.Is(err, ErrTooLarge) {
			if !errors.Is(err, io.EOF) && ctx.Err() == nil {
				s.Log.Debug("session broke", "error", err)
			}
			return
		}
		if err := s.answer(ctx, id, c, &m, err); err != nil {
			if ctx.Err() == nil {
				s.Log.Warn("session ended", "error", err)
			}
			return
		}
	}
}

// answer handles one message; recvErr is what went wrong while receiving it. An error
// ends the session.
func (s *Server) answer(ctx context.Context, id Session, c *Conn, m *Message, recvErr error) error {
	defer m.Close()
	req, err := decodeRequest(m.Data)
	if err != nil {
		return errors.Join(err, recvErr) // without an id there is nobody to answer
	}
	var out any
	var fds []int
	switch {
	case recvErr != nil:
		err = &RemoteError{Code: CodeBadRequest, Message: recvErr.Error()}
	case req.Op == opHello:
		out = s.Hello
	default:
		out, fds, err = s.Handler.Handle(ctx, &Call{Session: id, Op: req.Op, Body: req.Body, msg: m})
	}
	defer CloseAll(fds)
	r := reply{ID: req.ID}
	if err == nil {
		r.Body, err = json.Marshal(out)
	}
	if err != nil {
		r.Error = s.remote(req.Op, err)
	}
	data, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("encode reply to %s: %w", req.Op, err)
	}
	if err := c.Send(time.Now().Add(replyTime), data, fds...); err != nil {
		return fmt.Errorf("send reply to %s: %w", req.Op, err)
	}
	return nil
}

// remote turns an error into what may be sent.
func (s *Server) remote(op string, err error) *RemoteError {
	if re, ok := errors.AsType[*RemoteError](err); ok {
		return re
	}
	s.Log.Error("call failed", "op", op, "error", err)
	return &RemoteError{Code: CodeInternal, Message: op + " did not work; the log of the process that serves it says why"}
}

// decodeRequest parses a request. It is the first thing to touch a client's bytes.
func decodeRequest(data []byte) (request, error) {
	var r request
	if err := json.Unmarshal(data, &r); err != nil {
		return request{}, fmt.Errorf("parse request: %w", err)
	}
	return r, nil
}
