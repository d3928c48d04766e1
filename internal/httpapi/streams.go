package httpapi

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"hutch.dev/hutch"
	"hutch.dev/hutch/api"
)

// maxChunk bounds the bytes in one event.
const maxChunk = 32 << 10

// execStream starts a command and streams its output.
func (a *API) execStream(w http.ResponseWriter, r *http.Request) error {
	q := newQuery(r)
	opt := hutch.FollowOptions{Budgeted: q.flag("budget", true)}
	if err := q.check(); err != nil {
		return err
	}
	body, err := readBody(w, r, maxExecBody)
	if err != nil {
		return err
	}
	want, err := decodeExec(body, true)
	if err != nil {
		return err
	}
	x, err := a.startExec(r, want)
	if err != nil {
		return err
	}
	return a.stream(w, r, x, opt, false)
}

// followExec streams a command's output from byte offsets on.
func (a *API) followExec(w http.ResponseWriter, r *http.Request) error {
	q := newQuery(r)
	opt := hutch.FollowOptions{
		Stdout: q.num("stdout", 0), Stderr: q.num("stderr", 0),
		Budgeted: q.flag("budget", false), NoWait: !q.flag("wait", true),
	}
	if err := q.check(); err != nil {
		return err
	}
	if id := r.Header.Get("Last-Event-ID"); id != "" {
		var err error
		if opt.Stdout, opt.Stderr, err = parseEventID(id); err != nil {
			return err
		}
	}
	x, err := a.execOf(r)
	if err != nil {
		return err
	}
	return a.stream(w, r, x, opt, true)
}

// stream answers with a command's output as events, ended by "exit" or "error". Once
// it has begun it never returns an error that is to be answered.
func (a *API) stream(w http.ResponseWriter, r *http.Request, x hutch.Exec, opt hutch.FollowOptions, following bool) error {
	w.Header().Set(api.HeaderExecID, string(x.ID))
	out := newEventStream(w, a.cfg.Keepalive)
	defer out.close()
	c := newChunker(opt, func(p piece) error { return sendPiece(out, p, following) })
	ended, err := a.svc.Execs.FollowExec(r.Context(), project(r), x.Sandbox, x.ID, opt, c.event)
	if err == nil {
		err = c.flush()
	}
	switch {
	case errors.Is(err, errClientGone):
		return nil
	case err != nil:
		return ignoreGone(out.send(api.EventError, "", errorBody(r, err)))
	case ended.Result == nil && following && opt.NoWait:
		return ignoreGone(out.send(api.EventExit, c.id(), api.ExecEnd{ExecID: x.ID, StdoutBytes: c.next[hutch.Stdout], StderrBytes: c.next[hutch.Stderr]}))
	case ended.Result == nil:
		return ignoreGone(out.send(api.EventError, "", errorBody(r, hutch.ErrUnavailable)))
	}
	return ignoreGone(out.send(api.EventExit, "", showStreamEnd(ended)))
}

func ignoreGone(err error) error {
	if errors.Is(err, errClientGone) {
		return nil
	}
	return err
}

// sendPiece sends a piece of output. Clients of the compatible stream know text only,
// so there a gap is a marker in the text; a follower gets an event of its own.
func sendPiece(out *eventStream, p piece, following bool) error {
	if p.gapTo > 0 {
		gap := api.OutputGap{Stream: p.stream, From: p.offset, To: p.gapTo}
		if following {
			return out.send(api.EventGap, p.id, gap)
		}
		return out.send(p.stream, "", api.OutputChunk{Chunk: gapText(p), Offset: p.offset, Gap: &gap})
	}
	id := ""
	if following {
		id = p.id
	}
	return out.sendChunk(p.stream, id, p.offset, p.data)
}

// gapText stands for a gap where there is only text.
func gapText(p piece) string {
	return fmt.Sprintf("\n[hutch: %d bytes of %s dropped here; the exit event's output_path names a file in the sandbox that has them, if one does]\n", p.gapTo-p.offset, p.stream)
}

// piece is output that can be shown on its own: whole characters, or a gap.
type piece struct {
	stream string
	offset int64
	data   []byte
	gapTo  int64
	id     string // the event id: where each stream goes on after this piece
}

// chunker cuts output into pieces that split no character: the bytes of an unfinished
// one wait for the rest, until a gap or the end shows that there is none.
type chunker struct {
	emit func(piece) error
	next map[string]int64  // offset after the last byte emitted
	held map[string][]byte // the start of a character, at most three bytes
}

func newChunker(opt hutch.FollowOptions, emit func(piece) error) *chunker {
	return &chunker{
		emit: emit,
		next: map[string]int64{hutch.Stdout: opt.Stdout, hutch.Stderr: opt.Stderr},
		held: make(map[string][]byte),
	}
}

// event takes one step of following a command.
func (c *chunker) event(ev hutch.OutputEvent) error {
	switch {
	case ev.Keepalive: // the stream keeps itself alive
		return nil
	case ev.GapTo > 0:
		if err := c.flushStream(ev.Stream); err != nil {
			return err
		}
		c.next[ev.Stream] = ev.GapTo
		return c.emit(piece{stream: ev.Stream, offset: ev.Offset, gapTo: ev.GapTo, id: c.id()})
	}
	held := c.held[ev.Stream]
	if len(held) > 0 && ev.Offset != c.next[ev.Stream]+int64(len(held)) {
		if err := c.flushStream(ev.Stream); err != nil {
			return err
		}
		held = nil
	}
	at, data := ev.Offset-int64(len(held)), ev.Data
	if len(held) > 0 {
		data = append(held, data...)
	}
	c.held[ev.Stream] = nil
	for len(data) > 0 {
		n := min(len(data), maxChunk)
		n = wholeRunes(data[:n])
		if n == 0 {
			break
		}
		if err := c.put(ev.Stream, at, data[:n]); err != nil {
			return err
		}
		at, data = at+int64(n), data[n:]
	}
	c.next[ev.Stream] = at
	c.held[ev.Stream] = append([]byte(nil), data...)
	return nil
}

func (c *chunker) put(stream string, at int64, data []byte) error {
	c.next[stream] = at + int64(len(data))
	return c.emit(piece{stream: stream, offset: at, data: data, id: c.id()})
}

// flush emits what waited for more, now that there is none.
func (c *chunker) flush() error {
	return errors.Join(c.flushStream(hutch.Stdout), c.flushStream(hutch.Stderr))
}

func (c *chunker) flushStream(stream string) error {
	held := c.held[stream]
	if len(held) == 0 {
		return nil
	}
	c.held[stream] = nil
	return c.put(stream, c.next[stream], held)
}

// id names the present place in both streams, for Last-Event-ID.
func (c *chunker) id() string {
	return fmt.Sprintf("%d-%d", c.next[hutch.Stdout], c.next[hutch.Stderr])
}

// parseEventID is the inverse of chunker.id.
func parseEventID(id string) (stdout, stderr int64, err error) {
	a, b, ok := strings.Cut(id, "-")
	x, errX := strconv.ParseUint(a, 10, 63)
	y, errY := strconv.ParseUint(b, 10, 63)
	if !ok || errX != nil || errY != nil {
		return 0, 0, hutch.FieldErrorf("Last-Event-ID", "is not an id from this stream")
	}
	return int64(x), int64(y), nil
}
