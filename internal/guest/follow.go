package guest

import (
	"encoding/json"
	"net/http"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/guest/output"
	"hutch.dev/hutch/internal/guest/process"
	"hutch.dev/hutch/internal/guestapi"
)

const (
	// frameSize is the largest payload of a data frame: large enough that framing costs
	// nothing, small enough that two streams and other calls take turns.
	frameSize = 64 << 10
	// keepalive is how long a follow answer is silent at most.
	keepalive = 10 * time.Second
)

// follower sends the output of a command to one reader.
type follower struct {
	exec    *process.Exec
	w       http.ResponseWriter
	streams [2]followed
	budget  bool   // no more than the result would show
	wait    bool   // until the command has ended
	done    func() // to be called when the reader has left
	buf     [frameSize]byte
}

// followed is one of the two streams.
type followed struct {
	*output.Stream
	name string
	kind guestapi.FrameType
	off  int64 // of the next byte to send
	// skipTo is where to begin, all before it being a gap; 0 = no such thing.
	skipTo int64
	reader *output.Reader // set when a lossless command has to wait for this reader
}

// followOptions is what a reader wants.
type followOptions struct {
	budget, wait, live bool
	last               int64    // bytes before now, with live
	from               [2]int64 // offsets of stdout and stderr to begin at
}

func readFollow(r *http.Request) (o followOptions, err error) {
	for name, into := range map[string]*bool{"budget": &o.budget, "wait": &o.wait, "live": &o.live} {
		if *into, err = flag(r, name); err != nil {
			return o, err
		}
	}
	for name, into := range map[string]*int64{"last": &o.last, "stdout": &o.from[0], "stderr": &o.from[1]} {
		if *into, err = number(r, name); err != nil {
			return o, err
		}
	}
	switch {
	case o.last > 0 && !o.live:
		return o, hutch.FieldErrorf("last", "goes with live only")
	case o.live && o.budget:
		return o, hutch.FieldErrorf("live", "cannot be held to a budget, which begins at the start")
	case o.live && o.from[0] > 0:
		return o, hutch.FieldErrorf("stdout", "has no meaning for what is live")
	case o.live && o.from[1] > 0:
		return o, hutch.FieldErrorf("stderr", "has no meaning for what is live")
	}
	return o, nil
}

func (a *Agent) follow(w http.ResponseWriter, r *http.Request) {
	e, err := a.found(r)
	if err != nil {
		writeError(w, err)
		return
	}
	o, err := readFollow(r)
	if err != nil {
		writeError(w, err)
		return
	}
	f, err := newFollower(w, e, o)
	if err != nil {
		writeError(w, err)
		return
	}
	f.serve(r)
}

func newFollower(w http.ResponseWriter, e *process.Exec, o followOptions) (*follower, error) {
	done, ok := e.Read()
	if !ok {
		return nil, hutch.Errorf(hutch.CodeNotFound, "the output of this command is not kept any more")
	}
	f := &follower{exec: e, w: w, done: done, budget: o.budget, wait: o.wait}
	f.streams[0] = followed{Stream: e.Stdout(), name: "stdout", kind: guestapi.FrameStdout}
	f.streams[1] = followed{Stream: e.Stderr(), name: "stderr", kind: guestapi.FrameStderr}
	for i := range f.streams {
		s := &f.streams[i]
		s.off = o.from[i]
		if o.live {
			s.skipTo = s.kept(s.Total() - o.last)
		}
	}
	return f, nil
}

// serve sends it all, up to the end frame or until the reader leaves.
func (f *follower) serve(r *http.Request) {
	defer f.done()
	if f.wait && !f.budget {
		for i := range f.streams {
			s := &f.streams[i]
			s.reader = s.Attach(max(s.off, s.skipTo))
			defer s.reader.Leave()
		}
	}
	f.w.Header().Set("Content-Type", guestapi.FollowType)
	_ = f.run(r) // the reader left: nobody to tell
}

// took says that the reader has everything below off, or never will.
func (s *followed) took(off int64) {
	s.off = off
	if s.reader != nil {
		s.reader.Took(off)
	}
}

// kept is the offset of the first byte from off on that is there to be read.
func (s *followed) kept(off int64) int64 {
	off = max(0, off)
	for {
		n, next := s.ReadAt(make([]byte, 1), off)
		if n > 0 || next <= off {
			return off
		}
		off = next
	}
}

// run sends what there is, and if it is to wait what comes, up to the end frame.
func (f *follower) run(r *http.Request) error {
	silence := time.NewTimer(keepalive)
	defer silence.Stop()
	for {
		// In this order: whatever is written before the end is seen before it.
		ended := f.ended()
		changed := [2]<-chan struct{}{f.streams[0].Changed(), f.streams[1].Changed()}
		sent, err := f.sendAll(ended)
		if err != nil {
			return err
		}
		if sent {
			silence.Reset(keepalive)
			continue
		}
		if ended || !f.wait {
			return f.sendEnd()
		}
		if err := f.flush(); err != nil {
			return err
		}
		// The end of the streams comes with the result: after one of them has changed for
		// the last time the other is not needed, and a closed channel must not spin.
		select {
		case <-changed[0]:
		case <-changed[1]:
		case <-f.exec.Done():
		case <-silence.C:
			silence.Reset(keepalive)
			if err := guestapi.WriteFrame(f.w, guestapi.Frame{Type: guestapi.FrameKeepalive}); err != nil {
				return err
			}
			if err := f.flush(); err != nil {
				return err
			}
		case <-r.Context().Done():
			return r.Context().Err()
		}
	}
}

func (f *follower) ended() bool {
	select {
	case <-f.exec.Done():
		return true
	default:
		return false
	}
}

// sendAll sends one frame of each stream that has something.
func (f *follower) sendAll(ended bool) (sent bool, err error) {
	for i := range f.streams {
		ok, err := f.sendOne(&f.streams[i], ended)
		if err != nil {
			return sent, err
		}
		sent = sent || ok
	}
	return sent, nil
}

// sendOne sends the next frame of a stream: data, or the gap that is in its place.
func (f *follower) sendOne(s *followed, ended bool) (bool, error) {
	if s.off < s.skipTo {
		return true, f.sendGap(s, s.skipTo)
	}
	limit := s.Total()
	if f.budget {
		if !ended {
			limit = s.LiveLimit()
		} else if head, tail, _ := s.Bounds(); s.off < head {
			limit = head
		} else if s.off < tail {
			return true, f.sendGap(s, tail)
		}
	}
	if s.off >= limit {
		return false, nil
	}
	n, next := s.ReadAt(f.buf[:min(frameSize, limit-s.off)], s.off)
	switch {
	case n > 0:
		err := guestapi.WriteFrame(f.w, guestapi.Frame{Type: s.kind, Offset: s.off, Payload: f.buf[:n]})
		s.took(s.off + int64(n))
		return true, err
	case next > s.off:
		return true, f.sendGap(s, next)
	}
	return false, nil
}

func (f *follower) sendGap(s *followed, to int64) error {
	b, err := json.Marshal(guestapi.Gap{Stream: s.name, From: s.off, To: to})
	if err != nil {
		return err
	}
	s.took(to)
	return guestapi.WriteFrame(f.w, guestapi.Frame{Type: guestapi.FrameGap, Payload: b})
}

func (f *follower) sendEnd() error {
	b, err := json.Marshal(f.exec.Status(true))
	if err != nil {
		return err
	}
	if err := guestapi.WriteFrame(f.w, guestapi.Frame{Type: guestapi.FrameEnd, Payload: b}); err != nil {
		return err
	}
	return f.flush()
}

func (f *follower) flush() error { return http.NewResponseController(f.w).Flush() }
