package fake

import (
	"encoding/json"
	"net/http"
	"strconv"
	"time"

	"hutch.dev/hutch/internal/guestapi"
)

// serveFollow answers GET /v1/exec/{id}/follow.
func (g *Guest) serveFollow(w http.ResponseWriter, r *http.Request) {
	if err := g.admit(r); err != nil {
		refuse(w, err)
		return
	}
	g.mu.Lock()
	e, err := g.findLocked(r)
	g.mu.Unlock()
	if err != nil {
		refuse(w, err)
		return
	}
	g.follow(w, r, e)
}

// follow sends what a command writes, as the query asks.
func (g *Guest) follow(w http.ResponseWriter, r *http.Request, e *execution) {
	q := r.URL.Query()
	f := &follow{g: g, e: e, budgeted: q.Get("budget") == "1", wait: q.Get("wait") != "0"}
	for i, name := range []string{"stdout", "stderr"} {
		n, err := strconv.ParseInt(q.Get(name), 10, 64)
		if q.Get(name) != "" && (err != nil || n < 0) {
			w.WriteHeader(http.StatusBadRequest)
			_ = json.NewEncoder(w).Encode(guestapi.Error{Error: name + ": an offset in bytes", Code: "bad_request", Field: name})
			return
		}
		f.at[i] = n
	}
	f.serve(w, r)
}

// follow is one reader of a command's output.
type follow struct {
	g        *Guest
	e        *execution
	budgeted bool
	wait     bool
	at       [2]int64 // how far it has read stdout and stderr
}

func (f *follow) serve(w http.ResponseWriter, r *http.Request) {
	tick := time.NewTicker(keepalive)
	defer tick.Stop()
	flush := http.NewResponseController(w).Flush
	for {
		f.g.thaw()
		f.g.mu.Lock()
		frames := f.readyLocked()
		over := f.e.Result != nil || !f.wait
		if over {
			b, _ := json.Marshal(f.e.status()) // a status can always be encoded
			frames = append(frames, guestapi.Frame{Type: guestapi.FrameEnd, Payload: b})
		}
		if len(frames) == 0 && f.g.waitLocked(r, tick.C) {
			frames = append(frames, guestapi.Frame{Type: guestapi.FrameKeepalive})
		}
		f.g.mu.Unlock()
		f.g.mustLive()
		if r.Context().Err() != nil {
			return
		}
		for _, fr := range frames {
			if guestapi.WriteFrame(w, fr) != nil {
				return
			}
		}
		if over {
			return
		}
		if flush() != nil {
			return
		}
	}
}

// readyLocked returns what can be sent now, and moves on past it.
func (f *follow) readyLocked() (frames []guestapi.Frame) {
	ended := f.e.Result != nil
	for i, stream := range [][]byte{f.e.Stdout, f.e.Stderr} {
		kind, name := guestapi.FrameStdout, "stdout"
		if i == 1 {
			kind, name = guestapi.FrameStderr, "stderr"
		}
		total := int64(len(stream))
		upTo, budget := total, int64(f.e.budget())
		if f.budgeted && !ended {
			upTo = min(total, budget/4)
		}
		if tail := total - (budget - budget/4); f.budgeted && ended && total > budget && f.at[i] < tail {
			// The head first, if this reader has not had it; then the gap.
			frames = f.data(frames, kind, i, stream, min(budget/4, tail))
			b, _ := json.Marshal(guestapi.Gap{Stream: name, From: f.at[i], To: tail})
			if f.at[i] < tail {
				frames = append(frames, guestapi.Frame{Type: guestapi.FrameGap, Payload: b})
				f.at[i] = tail
			}
		}
		frames = f.data(frames, kind, i, stream, upTo)
	}
	return frames
}

// data adds frames with what stream i holds up to an offset.
func (f *follow) data(frames []guestapi.Frame, kind guestapi.FrameType, i int, stream []byte, upTo int64) []guestapi.Frame {
	for f.at[i] < upTo {
		n := min(upTo-f.at[i], guestapi.MaxFrame)
		frames = append(frames, guestapi.Frame{Type: kind, Offset: f.at[i], Payload: stream[f.at[i] : f.at[i]+n]})
		f.at[i] += n
	}
	return frames
}
