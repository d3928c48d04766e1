package guestclient

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/guestapi"
)

// FollowOptions says what of a command's output is wanted.
type FollowOptions struct {
	Stdout int64 // offset to begin at
	Stderr int64
	// Budgeted asks for no more of each stream than the command's output budget: the
	// head live, the tail at the end. Else every byte is sent.
	Budgeted bool
	// Budget is that budget, to hold the guest to. 0 stands for hutch.MaxOutputBytes.
	Budget int
	NoWait bool // end after what there is now; else when the command has ended
	// Live asks for what is written from now on, and Last bytes of each stream before
	// that. Stdout and Stderr are 0 then, and Budgeted is not set.
	Live bool
	Last int64
}

// Follow reads the output of one command. It is for one goroutine at a time.
type Follow struct {
	ctx    context.Context
	cancel context.CancelFunc
	op     string
	check  *frameCheck
	frames chan guestapi.Frame
	err    error // what ended it, for the caller; read it once frames is closed

	status guestapi.ExecStatus // after the end frame
	ended  bool
}

// Follow begins to read a command's output. Cancelling ctx ends the Follow too.
// Close it.
func (c *Client) Follow(ctx context.Context, id hutch.ExecID, o FollowOptions) (*Follow, error) {
	req := request{op: "follow exec", method: http.MethodGet, path: execPath(id, "/follow") + "?" + o.query().Encode(), repeat: true}
	f, answer, err := c.follow(ctx, ctx, req, o.check(id)) //nolint:bodyclose // run does
	if err != nil {
		return nil, callError(ctx, req.op, err)
	}
	go f.run(answer)
	return f, nil
}

// StartFollow is StartExec and Follow in one: the follow has begun when the command does. It lives
// as long as life, while ctx is of the start only. It is nil if the guest does not offer that,
// or the command has ended already.
func (c *Client) StartFollow(ctx, life context.Context, s guestapi.StartExec, o FollowOptions) (guestapi.ExecStatus, *Follow, error) {
	q := o.query()
	q.Set("follow", "1")
	req := request{op: "start exec", method: http.MethodPost, path: guestapi.PathExec + "?" + q.Encode(), body: s, repeat: true}
	f, answer, err := c.follow(ctx, life, req, o.check(s.ID))
	if err != nil {
		return guestapi.ExecStatus{}, nil, callError(ctx, req.op, err)
	}
	if head := answer.Header.Get(guestapi.HeaderExec); head != "" {
		b, err := base64.StdEncoding.DecodeString(head)
		var st guestapi.ExecStatus
		if err == nil {
			st, err = decodeStatus(b, 0)
		}
		if err == nil && (st.ID != s.ID || st.Result != nil) {
			err = errors.New("start exec: the answer is about another command")
		}
		if err != nil {
			f.cancel()
			_ = answer.Body.Close()
			return st, nil, callError(ctx, req.op, nonsense("%w", err))
		}
		go f.run(answer)
		return st, f, nil
	}
	defer f.cancel()
	defer func() { _ = answer.Body.Close() }()
	b, err := c.exchange(ctx, func() ([]byte, error) { return readAnswer(answer, resultBody(f.check.budget)) })
	if err != nil {
		return guestapi.ExecStatus{}, nil, callError(ctx, req.op, err)
	}
	st, err := decodeStatus(b, f.check.budget)
	if err == nil && st.ID != s.ID {
		err = nonsense("start exec: the answer is about another command")
	}
	return st, nil, err
}

func (o FollowOptions) query() url.Values {
	q := url.Values{
		"stdout": {fmt.Sprint(o.Stdout)},
		"stderr": {fmt.Sprint(o.Stderr)},
		"budget": {bit(o.Budgeted)},
		"wait":   {bit(!o.NoWait)},
	}
	if o.Live {
		q.Set("live", "1")
		q.Set("last", fmt.Sprint(o.Last))
	}
	return q
}

func (o FollowOptions) check(id hutch.ExecID) *frameCheck {
	check := &frameCheck{id: id, budgeted: o.Budgeted, budget: o.Budget, live: o.Live, next: [2]int64{o.Stdout, o.Stderr}}
	if check.budget <= 0 || check.budget > hutch.MaxOutputBytes {
		check.budget = hutch.MaxOutputBytes
	}
	return check
}

// follow asks for a follow that lives as long as life, and returns the answer to it, which is good
// and whose body is unread. It returns when ctx ends, even if the transport is stuck.
func (c *Client) follow(ctx, life context.Context, req request, check *frameCheck) (*Follow, *http.Response, error) {
	body, err := req.bytes()
	if err != nil {
		return nil, nil, err
	}
	streamCtx, cancel := context.WithCancel(life)
	f := &Follow{ctx: streamCtx, cancel: cancel, op: req.op, check: check, frames: make(chan guestapi.Frame)}
	type answer struct {
		resp *http.Response
		err  error
	}
	opened := make(chan answer, 1)
	go func() {
		resp, err := c.send(streamCtx, req, body) //nolint:bodyclose // whoever is given it does
		if err != nil && isBroken(err) && streamCtx.Err() == nil {
			resp, err = c.send(streamCtx, req, body) //nolint:bodyclose // as above
		}
		opened <- answer{resp, err}
	}()
	select {
	case a := <-opened:
		if a.err != nil {
			cancel()
		}
		return f, a.resp, a.err
	case <-ctx.Done():
		cancel()
		go func() {
			if a := <-opened; a.err == nil {
				_ = a.resp.Body.Close()
			}
		}()
		return nil, nil, context.Cause(ctx)
	}
}

// run passes on what comes, until it ends.
func (f *Follow) run(answer *http.Response) {
	if f.err = f.pump(f.ctx, answer.Body, f.check); !errors.Is(f.err, io.EOF) {
		f.err = callError(f.ctx, f.op, f.err)
	}
	close(f.frames)
	_ = answer.Body.Close()
}

// pump passes frames on until the end frame or a failure.
func (f *Follow) pump(ctx context.Context, body io.Reader, check *frameCheck) error {
	for {
		frame, err := guestapi.ReadFrameBudget(body, check.budget)
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF // the end frame comes first
		}
		if err == nil {
			err = check.frame(frame)
		}
		if err != nil {
			return err
		}
		if check.skipped {
			continue
		}
		if frame.Type == guestapi.FrameEnd {
			f.status = check.end
		}
		select {
		case f.frames <- frame:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if frame.Type == guestapi.FrameEnd {
			return io.EOF
		}
	}
}

// Next returns the next frame: data and gaps in the order of each stream, without a
// hole between them, keepalives, then the end frame, then io.EOF. What is live begins at
// the offset of its first frame. It
// is hutch.ErrGuestUnresponsive when the stream broke or made no sense: begin again
// at the offsets reached. When ctx ends the Follow lives on.
func (f *Follow) Next(ctx context.Context) (guestapi.Frame, error) {
	if f.ended {
		return guestapi.Frame{}, io.EOF
	}
	select {
	case frame, ok := <-f.frames:
		if !ok {
			return guestapi.Frame{}, f.err
		}
		f.ended = frame.Type == guestapi.FrameEnd
		return frame, nil
	case <-ctx.Done():
		return guestapi.Frame{}, contextError(ctx, "follow exec")
	}
}

// Status returns the status in the end frame, checked. It is valid once Next has
// returned that frame.
func (f *Follow) Status() guestapi.ExecStatus { return f.status }

// Close ends the Follow. The command goes on.
func (f *Follow) Close() error {
	f.cancel()
	return nil
}

// DecodeStatus decodes and checks the payload of an end frame.
func DecodeStatus(payload []byte) (guestapi.ExecStatus, error) {
	return decodeStatus(payload, hutch.MaxOutputBytes)
}

func decodeStatus(payload []byte, budget int) (guestapi.ExecStatus, error) {
	var w wireStatus
	if err := decode("follow exec", payload, &w); err != nil {
		return guestapi.ExecStatus{}, err
	}
	return w.status(budget)
}

// frameCheck checks the frames of one follow answer.
type frameCheck struct {
	id       hutch.ExecID
	budgeted bool     // data is held to budget
	budget   int      // bytes a stream
	live     bool     // a gap before anything else on a stream says where it begins
	skipped  bool     // the last frame was such a gap
	next     [2]int64 // offset of the next byte of stdout and stderr
	sent     [2]int64 // bytes of data seen
	end      guestapi.ExecStatus
}

// frame checks the next frame.
func (c *frameCheck) frame(f guestapi.Frame) error {
	c.skipped = false
	switch f.Type {
	case guestapi.FrameStdout, guestapi.FrameStderr:
		s := int(f.Type - guestapi.FrameStdout)
		n := int64(len(f.Payload))
		if n == 0 || f.Offset != c.next[s] || f.Offset+n < f.Offset {
			return nonsense("follow: %d bytes at %d of a stream that is at %d", n, f.Offset, c.next[s])
		}
		c.next[s] += n
		if c.sent[s] += n; c.budgeted && c.sent[s] > int64(c.budget) {
			return nonsense("follow: more than the budget of %d bytes", c.budget)
		}
	case guestapi.FrameGap:
		return c.gap(f.Payload)
	case guestapi.FrameEnd:
		st, err := decodeStatus(f.Payload, c.budget)
		if err == nil && st.ID != c.id {
			err = nonsense("follow: the end is about another command")
		}
		c.end = st
		return err
	case guestapi.FrameKeepalive:
		if len(f.Payload) > 0 {
			return nonsense("follow: a keepalive with a payload")
		}
	}
	return nil
}

func (c *frameCheck) gap(payload []byte) error {
	var g guestapi.Gap
	if err := json.Unmarshal(payload, &g); err != nil {
		return nonsense("follow: a malformed gap: %w", err)
	}
	s, ok := map[string]int{"stdout": 0, "stderr": 1}[g.Stream]
	if !ok || g.From != c.next[s] || g.To <= g.From {
		return nonsense("follow: a gap from %d to %d where the stream is at %d", g.From, g.To, c.next[s])
	}
	c.skipped = c.live && c.next[s] == 0
	c.next[s] = g.To
	return nil
}
