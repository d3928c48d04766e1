package httpapi

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/api"
	"hutch.dev/hutch/internal/x/id"
)

// watchFiles streams what happens in a directory. The answer begins once nothing can be
// missed any more.
func (a *API) watchFiles(w http.ResponseWriter, r *http.Request) error {
	q := newQuery(r)
	want := hutch.WatchFiles{FileRef: q.fileRef(), Recursive: q.flag("recursive", false), Entry: q.flag("entry", false)}
	if err := q.check(); err != nil {
		return err
	}
	g, done, err := a.guest(r)
	if err != nil {
		return err
	}
	defer done()
	var out *eventStream
	defer func() {
		if out != nil {
			out.close()
		}
	}()
	err = g.WatchFiles(r.Context(), want, func() error {
		out = newEventStream(w, a.cfg.Keepalive)
		return out.send(api.EventReady, "", api.WatchReady{Path: want.Path})
	}, func(ev hutch.FileEvent) error {
		return out.send(api.EventChange, "", showChange(ev))
	})
	switch {
	case out == nil:
		return err
	case err == nil || errors.Is(err, errClientGone):
		return nil
	}
	return ignoreGone(out.send(api.EventError, "", errorBody(r, err)))
}

func showChange(ev hutch.FileEvent) api.FileChange {
	out := api.FileChange{Op: ev.Op, Name: ev.Name, RawName: ev.RawName}
	if ev.Entry != nil {
		f := showFile(*ev.Entry, true)
		out.File = &f
	}
	return out
}

// Bounds of polled watchers.
const (
	maxWatchers    = 64     // of one project
	maxChanges     = 10_000 // kept for one watcher
	maxChangeBytes = 2 << 20
	maxChangesPage = 1000
	maxPoll        = 20 * time.Second // under the 30 s that clients wait for a first byte
)

// watchers are the watches of callers who ask for their news instead of holding a
// stream. They are this process's: after a restart their callers get not_found and make
// new ones, looking anew as after an overflow.
type watchers struct {
	keep time.Duration

	mu     sync.Mutex
	all    map[string]*watcher
	closed bool
	wg     sync.WaitGroup // the goroutines that watch
}

func newWatchers(keep time.Duration) *watchers {
	return &watchers{keep: keep, all: make(map[string]*watcher)}
}

// watcher is one of them. Its lock and that of the table are never held together.
type watcher struct {
	id      string
	project hutch.ProjectID
	sandbox hutch.SandboxID
	stop    context.CancelFunc
	idle    *time.Timer // ends it when nobody asks

	mu      sync.Mutex
	changes []api.FileChange
	bytes   int           // of changes, about
	before  int64         // how many changes came before changes[0]
	more    chan struct{} // closed and replaced when there are more, or it has ended
	err     error         // why it ended
}

// add takes w in, unless the project has too many.
func (ws *watchers) add(w *watcher) error {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	n := 0
	for _, o := range ws.all {
		if o.project == w.project {
			n++
		}
	}
	switch {
	case ws.closed:
		return hutch.Errorf(hutch.CodeUnavailable, "the server is stopping: ask again in a moment")
	case n >= maxWatchers:
		return hutch.Errorf(hutch.CodeRateLimited, "this project has %d watchers, which is the most: close those that are not needed", n)
	}
	ws.all[w.id] = w
	ws.wg.Add(1)
	w.idle = time.AfterFunc(ws.keep, func() { ws.remove(w.id) })
	return nil
}

func (ws *watchers) get(id string) *watcher {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	return ws.all[id]
}

func (ws *watchers) remove(id string) {
	ws.mu.Lock()
	w := ws.all[id]
	delete(ws.all, id)
	ws.mu.Unlock()
	if w != nil {
		w.idle.Stop()
		w.stop()
	}
}

func (ws *watchers) close() {
	ws.mu.Lock()
	ws.closed = true
	var ids []string
	for id := range ws.all {
		ids = append(ids, id)
	}
	ws.mu.Unlock()
	for _, id := range ids {
		ws.remove(id)
	}
	ws.wg.Wait()
}

// news wakes those who wait.
func (w *watcher) newsLocked() {
	close(w.more)
	w.more = make(chan struct{})
}

func (w *watcher) event(ev hutch.FileEvent) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	c := showChange(ev)
	w.bytes += changeSize(c)
	for len(w.changes) == maxChanges || len(w.changes) > 0 && w.bytes > maxChangeBytes {
		w.forgetLocked(1)
	}
	w.changes = append(w.changes, c)
	w.newsLocked()
	return nil
}

// forgetLocked drops the n oldest changes.
func (w *watcher) forgetLocked(n int) {
	for _, c := range w.changes[:n] {
		w.bytes -= changeSize(c)
	}
	w.changes = w.changes[n:]
	w.before += int64(n)
}

// changeSize is about what a change takes in memory.
func changeSize(c api.FileChange) int {
	n := 256 + len(c.Name) + len(c.RawName)
	if f := c.File; f != nil {
		n += 512 + 3*len(f.Path) + len(f.LinkTarget)
		for k, v := range f.Metadata {
			n += 64 + len(k) + len(v)
		}
	}
	return n
}

func (w *watcher) ended(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.err = err
	w.newsLocked()
}

// after returns what came after cursor and forgets what came before it, which the caller
// has. When there is nothing yet, more is closed at the next news.
func (w *watcher) after(cursor int64) (out api.Changes, more <-chan struct{}, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if cursor > w.before+int64(len(w.changes)) {
		return out, nil, hutch.FieldErrorf("cursor", "is not from this watcher")
	}
	out = api.Changes{Changes: []api.FileChange{}}
	if cursor < w.before {
		out.Changes = append(out.Changes, api.FileChange{Op: hutch.OpOverflow})
	} else {
		w.forgetLocked(int(cursor - w.before))
	}
	page := w.changes[:min(len(w.changes), maxChangesPage)]
	out.Changes = append(out.Changes, page...)
	out.Cursor = w.before + int64(len(page))
	if len(out.Changes) == 0 && w.err != nil {
		return out, nil, w.err
	}
	return out, w.more, nil
}

// createWatcher begins a watch and answers once nothing can be missed any more.
func (a *API) createWatcher(w http.ResponseWriter, r *http.Request) error {
	body, err := a.bodyWithoutQuery(w, r)
	if err != nil {
		return err
	}
	var in api.CreateWatcher
	if err := decode(body, &in); err != nil {
		return err
	}
	if err := checkPath("path", in.Path); err != nil {
		return err
	}
	g, done, err := a.guest(r)
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(context.WithoutCancel(r.Context()))
	wt := &watcher{id: id.NewExec(), project: project(r), sandbox: sandboxID(r), stop: stop, more: make(chan struct{})}
	if err := a.watch.add(wt); err != nil {
		stop()
		done()
		return err
	}
	ready, failed := make(chan struct{}), make(chan error, 1)
	go func() { // ends with its watch, which remove and close stop
		defer a.watch.wg.Done()
		defer done()
		want := hutch.WatchFiles{FileRef: hutch.FileRef{Path: in.Path, User: in.User}, Recursive: in.Recursive, Entry: in.Entry}
		err := g.WatchFiles(ctx, want, func() error { close(ready); return nil }, wt.event)
		if ctx.Err() != nil { // removed: who waits for its news has not left, as err says
			err = hutch.Errorf(hutch.CodeNotFound, "the watcher was closed")
		}
		wt.ended(err)
		failed <- err
	}()
	select {
	case <-ready:
		return writeJSON(w, http.StatusCreated, api.Watcher{WatcherID: wt.id, SandboxID: wt.sandbox, Path: in.Path})
	case err = <-failed:
	case <-r.Context().Done():
		err = context.Cause(r.Context())
	}
	a.watch.remove(wt.id)
	return err
}

// watcherOf is the watcher a path names.
func (a *API) watcherOf(r *http.Request) (*watcher, error) {
	wt := a.watch.get(r.PathValue("watcher"))
	if wt == nil || wt.project != project(r) || wt.sandbox != sandboxID(r) {
		return nil, hutch.Errorf(hutch.CodeNotFound, "there is no such watcher: nobody asked it for %s, or the server has been started anew. Make another, and look at the directory", a.cfg.WatcherKeep)
	}
	return wt, nil
}

func (a *API) watcherEvents(w http.ResponseWriter, r *http.Request) error {
	q := newQuery(r)
	cursor, wait := q.num("cursor", 0), q.seconds("wait_seconds", 0, maxPoll)
	if err := q.check(); err != nil {
		return err
	}
	wt, err := a.watcherOf(r)
	if err != nil {
		return err
	}
	wt.idle.Reset(a.cfg.WatcherKeep + wait)
	limit := time.NewTimer(wait)
	defer limit.Stop()
	for {
		out, more, err := wt.after(cursor)
		if err != nil {
			return err
		}
		if len(out.Changes) > 0 {
			return writeJSON(w, http.StatusOK, out)
		}
		select {
		case <-more:
		case <-limit.C:
			return writeJSON(w, http.StatusOK, out)
		case <-r.Context().Done():
			return context.Cause(r.Context())
		}
	}
}

func (a *API) closeWatcher(w http.ResponseWriter, r *http.Request) error {
	if err := readNothing(w, r); err != nil {
		return err
	}
	wt, err := a.watcherOf(r)
	switch {
	case err == nil:
		a.watch.remove(wt.id)
	case !repeated(r):
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}
