// Package guestclient is the node's side of package guestapi: typed calls to one
// sandbox's guest agent over package guestlink.
//
// It owns what stands between the node and a guest that may be hostile: every body
// is bounded before it is decoded, every list is cut, every number and name is
// checked, every text is cleaned, and every call returns when its context ends,
// whatever the guest does. It does not own policy: when to say hello, how long to
// wait, what to do with a guest that does not answer.
//
// Errors are *hutch.Error:
//   - what the guest refused, with its code if that is one a guest may use and its
//     text cleaned; [ErrNotIdentified] for a call before Hello;
//   - hutch.ErrCancelled if the caller's context was cancelled;
//   - hutch.ErrGuestUnresponsive for everything else: no answer in time, a broken
//     stream, nonsense. The cause is wrapped, for the log only.
//
// Calls that change nothing when they are made twice are made again, once, if the
// connection breaks under them: a stream that is cut by a restore or a hand-over
// costs no caller an error.
//
// Start with [New] and [Client.Hello], then check.go for what is checked.
package guestclient

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"sync"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/guestapi"
	"hutch.dev/hutch/internal/guestlink"
)

// ErrNotIdentified is a call that the guest refused because Hello has not been said
// since its start or restore.
var ErrNotIdentified = &hutch.Error{Code: guestapi.CodeNotIdentified, Message: "the guest has not been told its identity yet"}

const (
	// maxStdinCalls is how many bodies of input may be under way to one guest at once,
	// and stdinChunk how long one is. All of them may stay unread, because no command
	// takes its input; together they leave a quarter of the guest's connection window
	// for other calls. A call is repeated from the guest's offset if the stream breaks,
	// so a chunk is kept until it is taken.
	maxStdinCalls = 48
	stdinChunk    = 64 << 10

	// smallBody bounds answers that hold no output and no list.
	smallBody = 64 << 10
)

// chunks holds buffers for Stdin and AppendStdin.
var chunks = sync.Pool{New: func() any { b := make([]byte, guestapi.MaxInput); return &b }}

// Client makes calls to one guest. Its methods are safe for concurrent use.
type Client struct {
	http  *guestlink.Transport // nil if err is set
	err   error                // why there is no transport: every call's error
	stdin chan struct{}        // tokens: bodies of input under way
	ports chan struct{}        // tokens: connections to ports

	uploads chan struct{} // tokens: contents of files under way
}

// New returns a Client of the guest at the other end of stream. It works on a
// duplicate; stream stays the caller's. If the stream is of no use, the calls say so.
// The first call begins a session, which ends the session of any other Client on that
// stream.
func New(stream *os.File) *Client {
	c := &Client{stdin: make(chan struct{}, maxStdinCalls), ports: make(chan struct{}, guestapi.MaxPortConns), uploads: make(chan struct{}, maxUploads)}
	if stream == nil {
		c.err = os.ErrInvalid
		return c
	}
	h, err := guestlink.NewHost(stream)
	if err != nil {
		c.err = err
		return c
	}
	c.http = guestlink.NewTransport(h)
	return c
}

// Close ends every call and gives the stream up. The guest and its commands go on.
func (c *Client) Close() error {
	if c.http == nil {
		return nil
	}
	return c.http.Close()
}

// Unread reports whether the guest has sent something that has not come to be read yet.
func (c *Client) Unread() bool { return c.http != nil && c.http.Unread() }

// Hello tells the guest who it is. It must be the first call after every start,
// restore and adoption.
func (c *Client) Hello(ctx context.Context, h guestapi.Hello) (guestapi.HelloReply, error) {
	var r guestapi.HelloReply
	err := c.call(ctx, request{op: "hello", method: http.MethodPost, path: guestapi.PathHello, body: h, limit: smallBody, repeat: true}, &r)
	if err == nil {
		err = checkHello(&r)
	}
	return r, err
}

// seedBytes is how much randomness a guest is given.
const seedBytes = 64

// Greet is Hello to the guest of a sandbox of that size which was just started by hand, without
// a node: at its first epoch, named hostname, with a fresh seed.
func (c *Client) Greet(ctx context.Context, sb hutch.SandboxID, hostname string, res hutch.Resources) (guestapi.HelloReply, error) {
	seed := make([]byte, seedBytes)
	if _, err := rand.Read(seed); err != nil {
		return guestapi.HelloReply{}, fmt.Errorf("make a seed: %w", err)
	}
	return c.Hello(ctx, guestapi.Hello{
		Protocol: guestapi.ProtocolVersion, Sandbox: sb, Epoch: 1, Hostname: hostname,
		Time: time.Now().UnixNano(), Seed: seed, CPUs: res.CPUs(), Pids: res.Pids, DiskMB: res.DiskMB,
	})
}

// Health asks for a sign of life.
func (c *Client) Health(ctx context.Context) (guestapi.Health, error) {
	var r guestapi.Health
	err := c.call(ctx, request{op: "health", method: http.MethodGet, path: guestapi.PathHealth, limit: smallBody, repeat: true}, &r)
	if err == nil && (r.Execs < 0 || r.Zombies < 0) {
		err = nonsense("health: negative counts")
	}
	return r, err
}

// StartExec starts a command. Starting an id that exists starts nothing and returns
// what is.
func (c *Client) StartExec(ctx context.Context, s guestapi.StartExec) (guestapi.ExecStatus, error) {
	return c.status(ctx, request{op: "start exec", method: http.MethodPost, path: guestapi.PathExec, body: s, repeat: true}, s.ID, s.Spec.MaxOutputBytes)
}

// Exec returns a command's status.
func (c *Client) Exec(ctx context.Context, id hutch.ExecID) (guestapi.ExecStatus, error) {
	return c.status(ctx, request{op: "get exec", method: http.MethodGet, path: execPath(id, ""), repeat: true}, id, 0)
}

// Stop ends a command and returns once it has ended.
func (c *Client) Stop(ctx context.Context, id hutch.ExecID, s guestapi.Stop) (guestapi.ExecStatus, error) {
	return c.status(ctx, request{op: "stop exec", method: http.MethodPost, path: execPath(id, "/stop"), body: s, repeat: true}, id, 0)
}

// Execs lists what the guest still knows, at most maxExecs of it. Results come
// without output.
func (c *Client) Execs(ctx context.Context) (guestapi.ExecList, error) {
	var w execList
	var l guestapi.ExecList
	err := c.call(ctx, request{op: "list execs", method: http.MethodGet, path: guestapi.PathExec, limit: guestapi.MaxBody, repeat: true}, &w)
	if err != nil {
		return l, err
	}
	for _, s := range w.Execs.capped {
		st, err := s.listed()
		if err != nil {
			return guestapi.ExecList{}, err
		}
		l.Execs = append(l.Execs, st)
	}
	return l, nil
}

// Signal sends a signal. It is never repeated.
func (c *Client) Signal(ctx context.Context, id hutch.ExecID, s guestapi.Signal) error {
	return c.call(ctx, request{op: "signal exec", method: http.MethodPost, path: execPath(id, "/signal"), body: s, limit: smallBody}, nil)
}

// Delete makes the guest forget an ended command.
func (c *Client) Delete(ctx context.Context, id hutch.ExecID) error {
	return c.call(ctx, request{op: "delete exec", method: http.MethodDelete, path: execPath(id, ""), limit: smallBody, repeat: true}, nil)
}

// Processes lists what runs inside, at most maxProcesses of it.
func (c *Client) Processes(ctx context.Context) (guestapi.ProcessList, error) {
	var w processList
	err := c.call(ctx, request{op: "list processes", method: http.MethodGet, path: guestapi.PathProcesses, limit: guestapi.MaxBody / 8, repeat: true}, &w)
	return guestapi.ProcessList{Processes: cleanProcesses(w.Processes)}, err
}

// Relieve makes the guest end one command to free memory. It is hutch.ErrNotFound if
// there is none. It is never repeated.
func (c *Client) Relieve(ctx context.Context) (guestapi.ExecStatus, error) {
	return c.status(ctx, request{op: "relieve", method: http.MethodPost, path: guestapi.PathRelieve}, "", 0)
}

// Stdin gives a command everything r holds, beginning at offset of its input, and then
// closes its input if end is set. It returns how many bytes the command has been
// given in all. What is below the guest's own offset is skipped, so a caller that
// does not know how much arrived may begin again from an earlier offset, or ask by
// giving nothing.
func (c *Client) Stdin(ctx context.Context, id hutch.ExecID, offset int64, r io.Reader, end bool) (guestapi.StdinReply, error) {
	reply := guestapi.StdinReply{Offset: offset}
	chunk := chunks.Get().(*[]byte)
	defer chunks.Put(chunk)
	buf := (*chunk)[:stdinChunk]
	for first := true; ; first = false {
		n, err := io.ReadFull(r, buf)
		last := errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
		if err != nil && !last {
			return reply, hutch.Wrap(hutch.CodeBadRequest, err, "the input could not be read to its end")
		}
		if n == 0 && !end && !first {
			return reply, nil
		}
		reply, err = c.stdinChunk(ctx, id, offset, buf[:n], last && end)
		if err != nil {
			return reply, err
		}
		offset += int64(n)
		if reply.Offset < offset && !reply.Closed {
			return reply, nonsense("stdin: the guest took %d of %d bytes", reply.Offset, offset)
		}
		if last || reply.Closed {
			return reply, nil
		}
	}
}

// stdinChunk sends one piece of input.
func (c *Client) stdinChunk(ctx context.Context, id hutch.ExecID, offset int64, p []byte, end bool) (guestapi.StdinReply, error) {
	q := url.Values{"offset": {fmt.Sprint(offset)}, "close": {bit(end)}}
	return c.sendStdin(ctx, request{path: execPath(id, "/stdin") + "?" + q.Encode(), raw: bytes.Clone(p), repeat: true})
}

// sendStdin makes the call req, which has a part of a command's input, once there is room.
func (c *Client) sendStdin(ctx context.Context, req request) (guestapi.StdinReply, error) {
	var r guestapi.StdinReply
	select {
	case c.stdin <- struct{}{}:
		defer func() { <-c.stdin }()
	case <-ctx.Done():
		return r, contextError(ctx, "write stdin")
	}
	req.op, req.method, req.limit = "write stdin", http.MethodPost, smallBody
	err := c.call(ctx, req, &r)
	if err == nil && r.Offset < 0 {
		err = nonsense("stdin: a negative offset")
	}
	return r, err
}

// status makes a call that is answered with an ExecStatus, of the command id unless
// that is empty, with at most budget bytes of output a stream (0: hutch.MaxOutputBytes).
func (c *Client) status(ctx context.Context, req request, id hutch.ExecID, budget int) (guestapi.ExecStatus, error) {
	if budget <= 0 || budget > hutch.MaxOutputBytes {
		budget = hutch.MaxOutputBytes
	}
	req.limit = resultBody(budget)
	var w wireStatus
	if err := c.call(ctx, req, &w); err != nil {
		return guestapi.ExecStatus{}, err
	}
	st, err := w.status(budget)
	if err == nil && id != "" && st.ID != id {
		err = nonsense("%s: the answer is about another command", req.op)
	}
	if err != nil {
		return guestapi.ExecStatus{}, err
	}
	return st, nil
}

// resultBody bounds an answer that holds two streams of a budget, in base64.
func resultBody(budget int) int64 {
	return min(guestapi.MaxBody, 2*int64(budget)*4/3+1<<20)
}

func execPath(id hutch.ExecID, rest string) string {
	return guestapi.PathExec + "/" + url.PathEscape(string(id)) + rest
}

func bit(b bool) string {
	if b {
		return "1"
	}
	return "0"
}

// decode decodes an answer.
func decode(op string, body []byte, into any) error {
	if into == nil {
		return nil
	}
	if err := json.Unmarshal(body, into); err != nil {
		var he *hutch.Error
		if errors.As(err, &he) {
			return he
		}
		return hutch.Wrap(hutch.CodeGuestUnresponsive, fmt.Errorf("%s: %w", op, err), "the sandbox gave an answer that makes no sense")
	}
	return nil
}
