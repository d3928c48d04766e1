package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/api"
	"hutch.dev/hutch/internal/x/sse"
)

// Exec runs a command and returns its result once it has ended. That it failed is in
// the result, not an error. Cancelling ctx leaves the command running: see [Client.Cancel].
func (c *Client) Exec(ctx context.Context, sb hutch.SandboxID, req api.ExecRequest) (api.ExecResult, error) {
	req.Background = false
	var out api.ExecResult
	_, err := c.retry(ctx, change(http.MethodPost, pathOf("sandboxes", string(sb), "exec"), req), func(res *http.Response) error {
		out = api.ExecResult{}
		if err := decodeAnswer(res, &out); err != nil {
			return err
		}
		if out.Code != "" { // it failed after the answer had begun
			return &Error{Code: out.Code, Message: out.Error}
		}
		return nil
	})
	return out, err
}

// StartExec starts a command in the background and returns its record.
func (c *Client) StartExec(ctx context.Context, sb hutch.SandboxID, req api.ExecRequest) (api.Exec, error) {
	req.Background = true
	var out api.Exec
	err := c.do(ctx, change(http.MethodPost, pathOf("sandboxes", string(sb), "exec"), req), &out)
	return out, err
}

// ExecRecord returns the record of a command, which outlives its sandbox.
func (c *Client) ExecRecord(ctx context.Context, id hutch.ExecID) (api.Exec, error) {
	var out api.Exec
	err := c.do(ctx, get(pathOf("execs", string(id)), nil), &out)
	return out, err
}

// Execs lists a sandbox's commands, newest first, without their output.
func (c *Client) Execs(ctx context.Context, sb hutch.SandboxID, running bool) iter.Seq2[api.Exec, error] {
	q := url.Values{}
	if running {
		q.Set("running", "1")
	}
	return pages[api.Exec](ctx, c, pathOf("sandboxes", string(sb), "execs"), q)
}

// Cancel ends a command with all it started and returns its record. A nil grace is the
// command's own.
func (c *Client) Cancel(ctx context.Context, id hutch.ExecID, grace *time.Duration) (api.Exec, error) {
	var req api.CancelExec
	if grace != nil {
		s := grace.Seconds()
		req.GraceSeconds = &s
	}
	var out api.Exec
	err := c.do(ctx, change(http.MethodPost, pathOf("execs", string(id), "cancel"), req), &out)
	return out, err
}

// Signal sends a signal by name ("INT") to a command's first process, or to all with tree.
func (c *Client) Signal(ctx context.Context, id hutch.ExecID, signal string, tree bool) error {
	return c.do(ctx, change(http.MethodPost, pathOf("execs", string(id), "signal"), api.SignalExec{Signal: signal, Tree: tree}), nil)
}

// Resize changes the size of a command's terminal.
func (c *Client) Resize(ctx context.Context, id hutch.ExecID, size api.Terminal) error {
	return c.do(ctx, change(http.MethodPost, pathOf("execs", string(id), "resize"), size), nil)
}

// WriteStdin gives a command the bytes of r as they come, as those from offset on, and
// with end set closes its stdin behind them. It is not tried again, because r cannot be read twice.
func (c *Client) WriteStdin(ctx context.Context, id hutch.ExecID, offset int64, r io.Reader, end bool) (api.StdinReply, error) {
	q := call{method: http.MethodPost, path: pathOf("execs", string(id), "stdin"), query: url.Values{"offset": {strconv.FormatInt(offset, 10)}}}
	if end {
		q.query.Set("close", "1")
	}
	var out api.StdinReply
	req, err := c.request(ctx, q, io.NopCloser(r)) // its closing is the caller's
	if err != nil {
		return out, err
	}
	res, err := c.answer(req)
	if err != nil {
		return out, err
	}
	defer func() { _ = res.Body.Close() }()
	err = decodeAnswer(res, &out)
	return out, err
}

// Output is a piece of a command's output: bytes of a stream, or a gap.
type Output struct {
	Stream string // hutch.Stdout or hutch.Stderr
	Offset int64  // of the first byte
	Data   []byte
	GapTo  int64 // > 0: the bytes [Offset, GapTo) are not delivered
}

// StreamOptions says how to stream a command.
type StreamOptions struct {
	Stdout, Stderr int64 // byte offsets to start from; only for Follow
	// Budgeted keeps to the command's output budget: the head as it comes, a gap, the
	// tail at the end. Otherwise every byte is delivered.
	Budgeted bool
	// Started, when set, is called once with the command's id, before any output.
	Started func(hutch.ExecID)
}

// Stream runs a command and hands its output to sink. It returns how the command ended;
// a broken connection is taken up again where it broke. An error of sink ends the
// streaming, not the command, and is returned. Cancelling ctx also leaves the command running.
func (c *Client) Stream(ctx context.Context, sb hutch.SandboxID, req api.ExecRequest, opt StreamOptions, sink func(Output) error) (api.ExecEnd, error) {
	opt.Stdout, opt.Stderr = 0, 0
	q := change(http.MethodPost, pathOf("sandboxes", string(sb), "exec", "stream"), req)
	q.query = url.Values{"budget": {strconv.FormatBool(opt.Budgeted)}}
	return c.follow(ctx, &follower{opt: opt, sink: sink, first: &q})
}

// Follow hands the output of a command that was started before to sink, as Stream does.
func (c *Client) Follow(ctx context.Context, id hutch.ExecID, opt StreamOptions, sink func(Output) error) (api.ExecEnd, error) {
	return c.follow(ctx, &follower{opt: opt, sink: sink, id: id})
}

// follower is one stream over however many connections it takes.
type follower struct {
	opt   StreamOptions // its offsets move on with the output
	sink  func(Output) error
	first *call // starts the command; nil once its id is known
	id    hutch.ExecID
	moved bool // something came since the last failure, or the connection held for long
	seen  bool // the server has answered for the command
}

// call is what to ask next.
func (f *follower) call() call {
	if f.first != nil {
		return *f.first
	}
	return get(pathOf("execs", string(f.id), "follow"), url.Values{
		"stdout": {strconv.FormatInt(f.opt.Stdout, 10)}, "stderr": {strconv.FormatInt(f.opt.Stderr, 10)},
		"budget": {strconv.FormatBool(f.opt.Budgeted)},
	})
}

func (c *Client) follow(ctx context.Context, f *follower) (api.ExecEnd, error) {
	if f.id != "" {
		f.begun(f.id)
	}
	for n := 0; ; n++ {
		var end api.ExecEnd
		res, err := c.send(ctx, f.call())
		if err == nil {
			began := c.now()
			end, err = f.read(res)
			_ = res.Body.Close()
			f.moved = f.moved || c.now().Sub(began) > lastsLong
		}
		if err == nil {
			return end, nil
		}
		if f.moved {
			n, f.moved = 0, false
		}
		if !c.again(ctx, n, f.temporary(err)) {
			return api.ExecEnd{}, err
		}
	}
}

// temporary is err as a failure to be tried again if it can be no more than that: a server
// that was killed just after a start, and is back, learns of the command from its sandbox a
// moment later. Until then it knows none, though it has answered for it before.
func (f *follower) temporary(err error) error {
	var e *Error
	if f.seen && errors.As(err, &e) && e.Code == hutch.CodeNotFound {
		return &lostError{errors.New(e.Error())} // no longer a refusal
	}
	return err
}

func (f *follower) begun(id hutch.ExecID) {
	f.id, f.first = id, nil
	if f.opt.Started != nil {
		f.opt.Started(id)
		f.opt.Started = nil
	}
}

// maxEvent bounds one event: 32 KiB of output where each byte takes six, and as base64;
// an exit lists processes.
const maxEvent = 4 << 20

// read takes events from one connection, until the exit.
func (f *follower) read(res *http.Response) (api.ExecEnd, error) {
	f.seen = true
	if id := res.Header.Get(api.HeaderExecID); id != "" {
		f.begun(hutch.ExecID(id))
	}
	in := sse.NewReader(res.Body, maxEvent)
	for {
		ev, err := in.Next()
		if err != nil {
			return api.ExecEnd{}, &lostError{fmt.Errorf("the stream of command %s broke: %w", f.id, err)}
		}
		switch ev.Name {
		case api.EventStdout, api.EventStderr, api.EventGap:
			out, err := outputOf(ev)
			if err != nil {
				return api.ExecEnd{}, err
			}
			if err := f.deliver(out); err != nil {
				return api.ExecEnd{}, err
			}
		case api.EventExit:
			var end api.ExecEnd
			err := decodeEvent(ev, &end)
			return end, err
		case api.EventError:
			var e api.Error
			if err := decodeEvent(ev, &e); err != nil {
				return api.ExecEnd{}, err
			}
			return api.ExecEnd{}, errorOf(e)
		}
	}
}

// deliver hands on what is new of out, and moves the offsets.
func (f *follower) deliver(out Output) error {
	at := &f.opt.Stdout
	if out.Stream == hutch.Stderr {
		at = &f.opt.Stderr
	}
	end := max(out.GapTo, out.Offset+int64(len(out.Data)))
	if end <= *at {
		return nil
	}
	if skip := *at - out.Offset; skip > 0 { // a repeated start begins from 0 again
		out.Offset = *at
		if out.GapTo == 0 {
			out.Data = out.Data[skip:]
		}
	}
	*at, f.moved = end, true
	return f.sink(out)
}

func outputOf(ev sse.Event) (Output, error) {
	if ev.Name == api.EventGap {
		var g api.OutputGap
		err := decodeEvent(ev, &g)
		return Output{Stream: g.Stream, Offset: g.From, GapTo: g.To}, err
	}
	var chunk api.OutputChunk
	if err := decodeEvent(ev, &chunk); err != nil {
		return Output{}, err
	}
	out := Output{Stream: ev.Name, Offset: chunk.Offset}
	switch {
	case chunk.Gap != nil:
		out.GapTo = chunk.Gap.To
	case chunk.Base64 != nil:
		out.Data = chunk.Base64
	default:
		out.Data = []byte(chunk.Chunk)
	}
	return out, nil
}

func decodeEvent(ev sse.Event, v any) error {
	if err := json.Unmarshal([]byte(ev.Data), v); err != nil {
		return &lostError{fmt.Errorf("decode event %q: %w", ev.Name, err)}
	}
	return nil
}

// Events hands a sandbox's events with a higher seq than after to sink, those to come
// too, until the sandbox ends, sink fails or ctx ends. With an empty id they are the project's.
func (c *Client) Events(ctx context.Context, id hutch.SandboxID, after int64, sink func(api.Event) error) error {
	path := pathOf("events")
	if id != "" {
		path = pathOf("sandboxes", string(id), "events")
	}
	for n := 0; ; n++ {
		moved := false
		res, err := c.send(ctx, get(path, url.Values{"follow": {"1"}, "after": {strconv.FormatInt(after, 10)}}))
		if err == nil {
			began := c.now()
			err = readEvents(res.Body, func(ev api.Event) error {
				after, moved = ev.Seq, true
				return sink(ev)
			})
			_ = res.Body.Close()
			moved = moved || c.now().Sub(began) > lastsLong
		}
		if err == nil {
			return nil
		}
		if moved {
			n = 0
		}
		if !c.again(ctx, n, err) {
			return err
		}
	}
}

func readEvents(r io.Reader, sink func(api.Event) error) error {
	in := sse.NewReader(r, maxEvent)
	for {
		ev, err := in.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return &lostError{err}
		}
		switch ev.Name {
		case api.EventEvent:
			var e api.Event
			if err := decodeEvent(ev, &e); err != nil {
				return err
			}
			if err := sink(e); err != nil {
				return err
			}
		case api.EventError:
			var e api.Error
			if err := decodeEvent(ev, &e); err != nil {
				return err
			}
			return errorOf(e)
		}
	}
}

// stdinChunk is how much of stdin one call of FeedStdin carries.
const stdinChunk = 256 << 10

// FeedStdin gives a command the bytes of r as they come and then closes its stdin. Unlike
// one long WriteStdin it survives broken connections: what may not have arrived is sent again
// under its offset. A command that ends without reading all of it is no error.
func (c *Client) FeedStdin(ctx context.Context, id hutch.ExecID, r io.Reader) error {
	var (
		buf = make([]byte, stdinChunk)
		at  int64
	)
	for {
		n, err := r.Read(buf)
		if err != nil && err != io.EOF {
			return fmt.Errorf("read stdin: %w", err)
		}
		last := err == io.EOF
		if n == 0 && !last {
			continue
		}
		if err := c.feed(ctx, id, at, buf[:n], last); err != nil {
			if errors.Is(err, hutch.ErrInvalidState) || errors.Is(err, hutch.ErrSandboxGone) {
				return nil // it has ended: its end tells the caller more
			}
			return err
		}
		at += int64(n)
		if last {
			return nil
		}
	}
}

func (c *Client) feed(ctx context.Context, id hutch.ExecID, at int64, b []byte, last bool) error {
	for n := 0; ; n++ {
		_, err := c.WriteStdin(ctx, id, at, bytes.NewReader(b), last)
		if err == nil || !c.again(ctx, n, err) {
			return err
		}
	}
}
