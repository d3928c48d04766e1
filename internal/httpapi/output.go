package httpapi

import (
	"errors"
	"net/http"
	"strconv"

	"hutch.dev/hutch"
	"hutch.dev/hutch/api"
)

// errGapAhead ends a raw answer before bytes that nobody has.
var errGapAhead = errors.New("the next bytes are not kept")

// execOutput answers with the bytes of one stream of a command, from an offset on. Raw
// bytes have no room for a gap, so an answer begins behind a leading one, and ends before one
// that comes later; headers and trailers say which bytes it held and whether that was all.
func (a *API) execOutput(w http.ResponseWriter, r *http.Request) error {
	q := newQuery(r)
	stream, offset, wait := q.str("stream"), q.num("offset", 0), q.flag("follow", false)
	if err := q.check(); err != nil {
		return err
	}
	opt := hutch.FollowOptions{NoWait: !wait}
	const skip = int64(1) << 62 // from here on: nothing of the other stream
	switch stream {
	case "":
		stream = hutch.Stdout
		fallthrough
	case hutch.Stdout:
		opt.Stdout, opt.Stderr = offset, skip
	case hutch.Stderr:
		opt.Stdout, opt.Stderr = skip, offset
	default:
		return hutch.FieldErrorf("stream", "must be stdout or stderr")
	}
	x, err := a.execOf(r)
	if err != nil {
		return err
	}
	out := rawOutput{w: w, live: newLiveWriter(w), stream: stream, next: offset}
	w.Header().Set(api.HeaderExecID, string(x.ID))
	ended, err := a.svc.Execs.FollowExec(r.Context(), project(r), x.Sandbox, x.ID, opt, out.event)
	switch {
	case errors.Is(err, errGapAhead):
		out.begin()
		out.end(false)
		return nil
	case err != nil:
		return err // an answer that has begun is broken off by the caller of this handler
	}
	out.begin()
	out.end(ended.Result != nil)
	return nil
}

type rawOutput struct {
	w      http.ResponseWriter
	live   *liveWriter
	stream string
	next   int64
	begun  bool
}

func (o *rawOutput) event(ev hutch.OutputEvent) error {
	switch {
	case ev.Keepalive || ev.Stream != o.stream:
		return nil
	case ev.GapTo > 0 && o.begun:
		return errGapAhead
	case ev.GapTo > 0:
		o.next = ev.GapTo
		return nil
	}
	o.begin()
	if err := o.live.write(ev.Data); err != nil {
		return clientGone(err)
	}
	o.next += int64(len(ev.Data))
	return nil
}

// begin sends the headers, once.
func (o *rawOutput) begin() {
	if o.begun {
		return
	}
	o.begun = true
	h := o.w.Header()
	h.Set("Content-Type", "application/octet-stream")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Trailer", api.TrailerNextOffset+", "+api.TrailerComplete)
	h.Set(api.HeaderOutputOffset, strconv.FormatInt(o.next, 10))
	o.w.WriteHeader(http.StatusOK)
}

func (o *rawOutput) end(complete bool) {
	o.w.Header().Set(api.TrailerNextOffset, strconv.FormatInt(o.next, 10))
	o.w.Header().Set(api.TrailerComplete, strconv.FormatBool(complete))
}
