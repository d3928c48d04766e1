package files

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"sync"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/guestapi"
)

// maxEvents is how many events wait for a reader who is slow, as Linux has it by default.
// What comes after is lost, and said to be.
const maxEvents = 16 << 10

// maxEventBytes bounds their names: with long paths they, not the events, take memory.
const maxEventBytes = 1 << 20

// happening is an event that waits for the reader.
type happening struct {
	op  hutch.FileOp
	rel string
}

// events are those that wait. The kernel's own queue has no bound in some kernels, so it is
// emptied at once and the bound is here.
type events struct {
	mu    sync.Mutex
	queue []happening
	bytes int           // of the names in queue
	lost  bool          // the last of queue is an overflow
	ended bool          // no more will come
	err   error         // why
	news  chan struct{} // holds a token when there is something to look at
}

// put adds an event. Writes to a file of which the last event tells too are one.
func (e *events) put(op hutch.FileOp, rel string) {
	e.mu.Lock()
	h := happening{op, rel}
	switch n := len(e.queue); {
	case n > 0 && e.queue[n-1] == h && (op == hutch.OpWrite || op == hutch.OpChmod || op == hutch.OpOverflow):
	case e.lost: // the reader must look anew in any case
	case n >= maxEvents || e.bytes+len(rel) > maxEventBytes:
		e.queue, e.lost = append(e.queue, happening{op: hutch.OpOverflow}), true
	default:
		e.queue, e.bytes = append(e.queue, h), e.bytes+len(rel)
	}
	e.mu.Unlock()
	e.wake()
}

// end says that no more will come, and why.
func (e *events) end(err error) {
	e.mu.Lock()
	e.ended, e.err = true, err
	e.mu.Unlock()
	e.wake()
}

func (e *events) wake() {
	select {
	case e.news <- struct{}{}:
	default:
	}
}

// take takes all events that wait.
func (e *events) take() (queue []happening, ended bool, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	queue, e.queue, e.bytes, e.lost = e.queue, nil, 0, false
	return queue, e.ended, e.err
}

func (s *Service) serveWatch(w http.ResponseWriter, r *http.Request) error {
	var q guestapi.WatchFiles
	if err := decode(r.Body, &q); err != nil {
		return err
	}
	a, err := s.actor(q.User)
	if err != nil {
		return err
	}
	abs, err := a.absolute(q.Name())
	if err != nil {
		return err
	}
	select {
	case s.watches <- struct{}{}:
		defer func() { <-s.watches }()
	default:
		return hutch.Errorf(hutch.CodeUnavailable, "%d directories are watched already: end a watch first", maxWatches)
	}
	ctx, cancel := context.WithCancel(r.Context())
	evs := &events{news: make(chan struct{}, 1)}
	armed := make(chan error, 1)
	drained := make(chan struct{})
	go func() {
		defer close(drained)
		t := &tree{actor: a, ctx: ctx, abs: abs, recursive: q.Recursive, emit: evs.put}
		err := t.guard(armed)
		evs.end(err)
		select {
		case armed <- err: // it never came to that
		default:
		}
	}()
	defer func() {
		cancel()
		<-drained
	}()
	if err := <-armed; err != nil {
		return a.explain(err, abs)
	}
	out := newFrames(w)
	if out.json(guestapi.FileHead, struct{}{}) != nil {
		return nil
	}
	out.end(a.explain(send(ctx, a, evs, out, watched{abs, q.Entry}), abs), guestapi.FileEnd{})
	return nil
}

// guard runs a watch with the user's rights. It is not the goroutine of a call, in which
// net/http would catch a panic: this one would end the sandbox.
func (t *tree) guard(armed chan<- error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = hutch.Wrap(hutch.CodeInternal, fmt.Errorf("watch: %v", p), "the guest agent met an internal error")
		}
	}()
	return t.actor.user.Do(func() error { return t.run(t.ctx, armed) })
}

// run watches until ctx or the directory is gone. It says on armed when nothing can be
// missed any more, or why not.
func (t *tree) run(ctx context.Context, armed chan<- error) error {
	err := t.arm()
	if err != nil {
		armed <- err
		return err
	}
	var mu sync.Mutex // guards t.queue, which an overflow replaces, against the end of ctx
	stop := context.AfterFunc(ctx, func() {
		mu.Lock()
		defer mu.Unlock()
		t.queue.Close()
	})
	defer stop()
	defer func() {
		mu.Lock()
		defer mu.Unlock()
		t.queue.Close()
	}()
	armed <- nil
	for {
		batch, err := t.queue.read()
		if err != nil {
			if ctx.Err() != nil || errors.Is(err, os.ErrClosed) {
				return context.Cause(ctx)
			}
			return err
		}
		mu.Lock()
		for _, e := range batch {
			// The end of ctx closes the queue, whose number may be another file's from then on.
			if err = context.Cause(ctx); err == nil {
				err = t.handle(e)
			}
			if err != nil {
				break
			}
		}
		mu.Unlock()
		if err == nil {
			err = context.Cause(ctx) // it may have ended while the queue was replaced
		}
		if err != nil {
			return err
		}
	}
}

// watched is what the reader of a watch wants.
type watched struct {
	abs   string
	entry bool
}

// send sends events as they come.
func send(ctx context.Context, a *actor, evs *events, out frames, w watched) error {
	for {
		queue, ended, err := evs.take()
		for _, h := range queue {
			e := hutch.FileEvent{Op: h.op}
			e.Name, e.RawName = lossless(h.rel)
			if w.entry && (h.op == hutch.OpCreate || h.op == hutch.OpWrite || h.op == hutch.OpChmod) {
				e.Entry = a.entryNow(ctx, join(w.abs, h.rel))
			}
			if err := out.json(guestapi.FileItem, e); err != nil {
				return err
			}
		}
		if ended {
			return err
		}
		if len(queue) > 0 {
			if err := out.flush(); err != nil {
				return err
			}
		}
		select {
		case <-evs.news:
		case <-ctx.Done():
			return errLeft
		}
	}
}

// entryNow is what stat says of a path, if it is still there.
func (a *actor) entryNow(ctx context.Context, abs string) *hutch.FileInfo {
	var info hutch.FileInfo
	err := a.do(ctx, func() (err error) {
		info, err = a.stat(abs)
		return err
	})
	if err != nil {
		return nil
	}
	return &info
}
