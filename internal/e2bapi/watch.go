package e2bapi

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"sync"
	"time"

	"connectrpc.com/connect"

	"hutch.dev/hutch"
)

// The messages of filesystem.Filesystem that watch.
type (
	// watchMessage asks for events. Network mounts may be watched or not: sandboxes have
	// none.
	watchMessage struct {
		Path      string `json:"path"`
		Recursive bool   `json:"recursive"`
		Entry     bool   `json:"includeEntry"`
	}
	watchAnswer struct {
		Start      *empty     `json:"start,omitempty"`
		Filesystem *fileEvent `json:"filesystem,omitempty"`
		Keepalive  *empty     `json:"keepalive,omitempty"`
	}
	fileEvent struct {
		Name  string     `json:"name"`
		Type  string     `json:"type"`
		Entry *entryInfo `json:"entry,omitempty"`
	}
	watcherMessage struct {
		ID string `json:"watcherId"`
	}
	watcherEvents struct {
		Events []fileEvent `json:"events"`
	}
)

// eventTypes are the kinds of events as their enumeration names them.
var eventTypes = map[hutch.FileOp]string{
	hutch.OpCreate: "EVENT_TYPE_CREATE",
	hutch.OpWrite:  "EVENT_TYPE_WRITE",
	hutch.OpRemove: "EVENT_TYPE_REMOVE",
	hutch.OpRename: "EVENT_TYPE_RENAME",
	hutch.OpChmod:  "EVENT_TYPE_CHMOD",
}

// errOverflow ends a watch that has missed something, for which there is no event.
var errOverflow = rpcError(connect.CodeDataLoss, "more happened than could be told: look at the directory anew, then watch it again")

// showEvent turns an event into theirs; an error if it has none.
func showEvent(ev hutch.FileEvent) (fileEvent, error) {
	typ, ok := eventTypes[ev.Op]
	if !ok {
		return fileEvent{}, errOverflow
	}
	out := fileEvent{Name: ev.Name, Type: typ}
	if ev.Entry != nil {
		e := showEntryInfo(*ev.Entry)
		out.Entry = &e
	}
	return out, nil
}

func (a *API) watchDir(ctx context.Context, m *watchMessage, out *frames[watchAnswer]) error {
	return a.onFile(ctx, m.Path, func(g hutch.Guest, ref hutch.FileRef, _ owner) error {
		ready := func() error {
			if err := out.send(&watchAnswer{Start: &empty{}}); err != nil {
				return hutch.ErrCancelled
			}
			out.breakSilence(&watchAnswer{Keepalive: &empty{}})
			return nil
		}
		return g.WatchFiles(ctx, hutch.WatchFiles{FileRef: ref, Recursive: m.Recursive, Entry: m.Entry}, ready, func(ev hutch.FileEvent) error {
			shown, err := showEvent(ev)
			if err != nil {
				return err
			}
			if err := out.send(&watchAnswer{Filesystem: &shown}); err != nil {
				return hutch.ErrCancelled
			}
			return nil
		})
	})
}

// Bounds on watchers whose events are fetched: each holds a stream into its sandbox, and what
// nobody has fetched.
const (
	maxWatchers = 128   // of one sandbox
	maxEvents   = 10000 // of one watcher, not fetched yet

	maxEventBytes = 2 << 20 // of those, about
)

// watchers are those that clients made, to fetch events from.
type watchers struct {
	ctx  context.Context // ends with the API
	stop context.CancelFunc
	wg   sync.WaitGroup

	mu sync.Mutex
	of map[hutch.SandboxID]map[string]*eventLog
}

func newWatchers() *watchers {
	w := &watchers{of: make(map[hutch.SandboxID]map[string]*eventLog)}
	w.ctx, w.stop = context.WithCancel(context.Background())
	return w
}

func (w *watchers) close() {
	w.stop()
	w.wg.Wait()
}

// add makes room for a watcher; an error if the sandbox has too many.
func (w *watchers) add(sb hutch.SandboxID, l *eventLog) (string, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	of := w.of[sb]
	if len(of) >= maxWatchers {
		return "", hutch.Errorf(hutch.CodeRateLimited, "the sandbox has %d watchers: stop those that are not needed any more", maxWatchers)
	}
	if of == nil {
		of = make(map[string]*eventLog)
		w.of[sb] = of
	}
	var b [16]byte
	_, _ = rand.Read(b[:]) // never returns an error
	id := hex.EncodeToString(b[:])
	of[id] = l
	return id, nil
}

func (w *watchers) get(sb hutch.SandboxID, id string) *eventLog {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.of[sb][id]
}

// remove takes a watcher out; nil if there is none.
func (w *watchers) remove(sb hutch.SandboxID, id string) *eventLog {
	w.mu.Lock()
	defer w.mu.Unlock()
	l := w.of[sb][id]
	delete(w.of[sb], id)
	if len(w.of[sb]) == 0 {
		delete(w.of, sb)
	}
	return l
}

// forget stops the watchers of a sandbox that has gone.
func (w *watchers) forget(sb hutch.SandboxID) {
	w.mu.Lock()
	of := w.of[sb]
	delete(w.of, sb)
	w.mu.Unlock()
	for _, l := range of {
		l.stop()
	}
}

// eventLog is what a watcher has seen and nobody has fetched.
type eventLog struct {
	stop context.CancelFunc

	mu     sync.Mutex
	events []fileEvent
	bytes  int   // of events, about
	err    error // ends it, after the events before it
}

func (l *eventLog) add(ev hutch.FileEvent) error {
	shown, err := showEvent(ev)
	l.mu.Lock()
	defer l.mu.Unlock()
	size := eventSize(ev)
	if err == nil && (len(l.events) >= maxEvents || l.bytes+size > maxEventBytes && len(l.events) > 0) {
		err = errOverflow
	}
	if err != nil {
		return err
	}
	l.events, l.bytes = append(l.events, shown), l.bytes+size
	return nil
}

// eventSize is about what an event takes in memory.
func eventSize(ev hutch.FileEvent) int {
	n := 128 + len(ev.Name)
	if e := ev.Entry; e != nil {
		n += 384 + 3*len(e.Path) + len(e.LinkTarget)
		for k, v := range e.Metadata {
			n += 64 + len(k) + len(v)
		}
	}
	return n
}

func (l *eventLog) fail(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.err = err
}

// take returns the events since the last take. The error comes once they are all taken.
func (l *eventLog) take() ([]fileEvent, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.events) == 0 && l.err != nil {
		return nil, l.err
	}
	out := l.events
	l.events, l.bytes = nil, 0
	return out, nil
}

// readyTimeout bounds how long a watcher takes to be ready.
const readyTimeout = 30 * time.Second

// createWatcher returns once nothing can be missed any more. The watcher goes on after the
// call, until it is removed or its sandbox ends.
func (a *API) createWatcher(ctx context.Context, m *watchMessage) (*watcherMessage, error) {
	sb := accountOf(ctx).sb
	own, stop := context.WithCancel(context.WithValue(a.watchers.ctx, accountKey{}, accountOf(ctx)))
	l := &eventLog{stop: stop}
	id, err := a.watchers.add(sb.ID, l)
	if err != nil {
		stop()
		return nil, err
	}
	began := make(chan error, 2) // ready, then the end
	a.watchers.wg.Go(func() {
		defer stop()
		err := a.onFile(own, m.Path, func(g hutch.Guest, ref hutch.FileRef, _ owner) error {
			return g.WatchFiles(own, hutch.WatchFiles{FileRef: ref, Recursive: m.Recursive, Entry: m.Entry},
				func() error { began <- nil; return nil }, l.add)
		})
		if err == nil {
			err = hutch.ErrUnavailable
		}
		l.fail(err)
		began <- err
		if errors.Is(err, hutch.ErrSandboxGone) {
			a.watchers.remove(sb.ID, id)
		}
	})
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	select {
	case err = <-began:
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err != nil {
		a.watchers.remove(sb.ID, id)
		stop()
		return nil, err
	}
	return &watcherMessage{ID: id}, nil
}

func (a *API) watcherEvents(ctx context.Context, m *watcherMessage) (*watcherEvents, error) {
	l := a.watchers.get(accountOf(ctx).sb.ID, m.ID)
	if l == nil {
		return nil, noWatcher(m.ID)
	}
	events, err := l.take()
	if events == nil {
		events = []fileEvent{}
	}
	return &watcherEvents{Events: events}, err
}

func (a *API) removeWatcher(ctx context.Context, m *watcherMessage) (*empty, error) {
	l := a.watchers.remove(accountOf(ctx).sb.ID, m.ID)
	if l == nil {
		return nil, noWatcher(m.ID)
	}
	l.stop()
	return &empty{}, nil
}

func noWatcher(id string) error {
	return rpcError(connect.CodeNotFound, "watcher with id "+clipped(id)+" not found")
}

// clipped is a string of a client's as it is repeated to it.
func clipped(s string) string { return s[:min(len(s), 64)] }
