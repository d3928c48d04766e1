package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/coder/websocket"

	"hutch.dev/hutch"
	"hutch.dev/hutch/api"
)

// TerminalOptions says what terminal to open.
type TerminalOptions struct {
	Size      api.Terminal // zero = 24 by 80
	Cmd       string       // empty = a login shell
	Cwd, User string
	Keep      *time.Duration // how long it outlives its last client; nil = the server's own time
}

// Terminal is a connection to a terminal. Its methods may be called concurrently, but for
// Read.
type Terminal struct {
	ID   hutch.ExecID // the command that runs in it
	conn *websocket.Conn
}

// maxTerminalFrame bounds one message from the server.
const maxTerminalFrame = 4 << 20

// OpenTerminal starts a command in a terminal of its own and connects to it.
func (c *Client) OpenTerminal(ctx context.Context, sb hutch.SandboxID, o TerminalOptions) (*Terminal, error) {
	q := sizeQuery(o.Size)
	for name, v := range map[string]string{"cmd": o.Cmd, "cwd": o.Cwd, "user": o.User} {
		if v != "" {
			q.Set(name, v)
		}
	}
	if o.Keep != nil {
		q.Set("keep_seconds", strconv.FormatFloat(o.Keep.Seconds(), 'f', -1, 64))
	}
	return c.terminal(ctx, pathOf("sandboxes", string(sb), "exec", "pty"), q)
}

// AttachTerminal connects to the terminal of a command that runs, beside whoever else is
// connected, and begins with the last replay bytes that it wrote.
func (c *Client) AttachTerminal(ctx context.Context, id hutch.ExecID, replay int, size api.Terminal) (*Terminal, error) {
	q := sizeQuery(size)
	if replay > 0 {
		q.Set("replay", strconv.Itoa(replay))
	}
	return c.terminal(ctx, pathOf("execs", string(id), "terminal"), q)
}

func sizeQuery(s api.Terminal) url.Values {
	q := url.Values{}
	if s.Rows > 0 {
		q.Set("rows", strconv.Itoa(s.Rows))
	}
	if s.Cols > 0 {
		q.Set("cols", strconv.Itoa(s.Cols))
	}
	return q
}

func (c *Client) terminal(ctx context.Context, path string, q url.Values) (*Terminal, error) {
	h := http.Header{"User-Agent": {c.userAgent}}
	if c.key != "" {
		h.Set("Authorization", "Bearer "+c.key)
	}
	// A WebSocket needs HTTP/1.1, which http.Transport keeps apart by itself.
	conn, res, err := websocket.Dial(ctx, c.base+path+"?"+q.Encode(), &websocket.DialOptions{ //nolint:bodyclose // Dial has read it
		HTTPClient: c.http, HTTPHeader: h, CompressionMode: websocket.CompressionDisabled,
	})
	if err != nil {
		if res != nil && res.StatusCode >= 400 && res.Body != nil {
			return nil, readError(res)
		}
		return nil, &lostError{err}
	}
	conn.SetReadLimit(maxTerminalFrame)
	return &Terminal{ID: hutch.ExecID(res.Header.Get(api.HeaderExecID)), conn: conn}, nil
}

// TerminalEnd is how a terminal's command ended. It is Read's error then.
type TerminalEnd struct{ ExitCode int } //nolint:errname // an end, as io.EOF is one, not a fault

// Error says it in a sentence.
func (e *TerminalEnd) Error() string {
	return fmt.Sprintf("the terminal's command ended with exit code %d", e.ExitCode)
}

// Read returns what the terminal writes, as it comes. Its error is a [*TerminalEnd] once the
// command has ended, an [*Error] if the server says why not, and otherwise a connection
// that broke: the command may go on, see [Client.AttachTerminal].
func (t *Terminal) Read(ctx context.Context) ([]byte, error) {
	for {
		kind, b, err := t.conn.Read(ctx)
		if err != nil {
			return nil, &lostError{err}
		}
		if kind == websocket.MessageBinary {
			return b, nil
		}
		var n api.TerminalNotice
		if err := json.Unmarshal(b, &n); err != nil {
			return nil, &lostError{err}
		}
		switch {
		case n.Exit != nil:
			return nil, &TerminalEnd{*n.Exit}
		case n.Error != "":
			return nil, &Error{Code: n.Code, Message: n.Error}
		}
	}
}

// Write types p.
func (t *Terminal) Write(ctx context.Context, p []byte) error {
	return t.conn.Write(ctx, websocket.MessageBinary, p)
}

// Resize gives the terminal another size; what runs in it is told by SIGWINCH.
func (t *Terminal) Resize(ctx context.Context, size api.Terminal) error {
	b, err := json.Marshal(api.TerminalInput{Resize: &size})
	if err != nil {
		return err
	}
	return t.conn.Write(ctx, websocket.MessageText, b)
}

// Close leaves the terminal. What runs in it is ended some time after its last client has
// left, unless it was started otherwise.
func (t *Terminal) Close() error {
	err := t.conn.Close(websocket.StatusNormalClosure, "")
	var closed websocket.CloseError
	if errors.As(err, &closed) {
		return nil // the server was first
	}
	return err
}

// Lost reports whether err is a connection that broke, so that attaching again may help.
func Lost(err error) bool {
	var lost *lostError
	return errors.As(err, &lost)
}
