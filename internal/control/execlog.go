package control

import (
	"context"
	"log/slog"
	"sync"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/store"
)

// execLog writes the records of commands behind the answers. What is on its way to the
// store is read from here, so readers see every write at once. Writes go out side by
// side: the store makes one commit of them.
type execLog struct {
	store store.Execs
	log   *slog.Logger

	mu      sync.Mutex
	entries map[hutch.ExecID]*execEntry
	wg      sync.WaitGroup
}

// execEntry is a command that runs, or whose last write is not done.
type execEntry struct {
	rec     hutch.Exec
	ended   chan struct{} // closed when rec has a result
	version int           // of rec
	stored  int           // version that the store has
	writing bool
	events  []hutch.Event // to store with the next write
	idle    chan struct{} // closed when no write is under way or due; remade by put
}

func newExecLog(st store.Execs, log *slog.Logger) *execLog {
	return &execLog{store: st, log: log, entries: map[hutch.ExecID]*execEntry{}}
}

// put takes a record and writes it soon. A record with a result stays final.
func (l *execLog) put(x hutch.Exec, ev ...hutch.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.entries[x.ID]
	if e == nil {
		e = &execEntry{ended: make(chan struct{}), idle: make(chan struct{})}
		l.entries[x.ID] = e
	}
	if e.rec.Result != nil {
		return
	}
	e.rec = x
	e.version++
	e.events = append(e.events, ev...)
	if x.Result != nil {
		close(e.ended)
	}
	if !e.writing {
		e.writing = true
		l.wg.Go(func() { l.write(e) })
	}
}

// write stores the entry until the store has its newest version. A store that fails is
// tried again with the next put; until then the guest keeps the result.
func (l *execLog) write(e *execEntry) {
	for {
		l.mu.Lock()
		rec, v, ev := e.rec, e.version, e.events
		e.events = nil
		l.mu.Unlock()
		err := l.store.PutExec(context.Background(), rec, ev...)
		l.mu.Lock()
		if err != nil {
			l.log.Error("record of a command could not be stored", "exec", rec.ID, "sandbox", rec.Sandbox, "error", err)
			e.events = append(ev, e.events...)
		} else {
			e.stored = v
		}
		if err == nil && e.version != v {
			l.mu.Unlock()
			continue
		}
		e.writing = false
		close(e.idle)
		e.idle = make(chan struct{})
		if err == nil && rec.Result != nil {
			delete(l.entries, rec.ID)
		}
		l.mu.Unlock()
		return
	}
}

// get returns a record that is not settled in the store yet.
func (l *execLog) get(id hutch.ExecID) (hutch.Exec, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if e := l.entries[id]; e != nil {
		return e.rec, true
	}
	return hutch.Exec{}, false
}

// ended returns a channel that is closed at the command's end, nil if it is not known here.
func (l *execLog) ended(id hutch.ExecID) <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if e := l.entries[id]; e != nil {
		return e.ended
	}
	return nil
}

// settle waits until the store has the newest version of the command, and says whether it has.
func (l *execLog) settle(ctx context.Context, id hutch.ExecID) error {
	for {
		l.mu.Lock()
		e := l.entries[id]
		if e == nil || e.stored == e.version {
			l.mu.Unlock()
			return nil
		}
		if !e.writing {
			l.mu.Unlock()
			return hutch.Errorf(hutch.CodeUnavailable, "the records cannot be written")
		}
		idle := e.idle
		l.mu.Unlock()
		select {
		case <-idle:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// settleAll waits for every write under way that concerns a sandbox; empty = all.
func (l *execLog) settleAll(ctx context.Context, sb hutch.SandboxID) error {
	l.mu.Lock()
	var ids []hutch.ExecID
	for id, e := range l.entries {
		if sb == "" || e.rec.Sandbox == sb {
			ids = append(ids, id)
		}
	}
	l.mu.Unlock()
	for _, id := range ids {
		if err := l.settle(ctx, id); err != nil {
			return err
		}
	}
	return nil
}

// close waits for the writes under way.
func (l *execLog) close() { l.wg.Wait() }
