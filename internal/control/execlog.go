package control

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/store"
	"hutch.dev/hutch/internal/x/backoff"
	"hutch.dev/hutch/internal/x/failpoint"
)

// execLog writes the records of commands behind the answers. What is on its way to the
// store is read from here, so readers see every write at once. Writes go out side by
// side: the store makes one commit of them. A write that fails is made again until it
// succeeds; a command's result is its guest's to keep until then.
//
// Every command that runs has an entry here, from before its start is asked for until
// its end is stored.
type execLog struct {
	store store.Execs
	log   *slog.Logger
	wake  func()                             // called when events were stored
	onEnd func(hutch.ExecEnd, time.Duration) // called when an end was stored; may be nil

	work   context.Context // ends with close: writes that fail are given up then
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu      sync.Mutex
	entries map[hutch.ExecID]*execEntry
	output  map[hutch.SandboxID]int // bytes that went on record since the last look
}

// execEntry is a command that runs, or whose last write is not done.
type execEntry struct {
	rec    hutch.Exec
	endsBy time.Time     // when it ends at the latest, by the monotonic clock
	begun  chan struct{} // closed when its start is noted, or was abandoned
	ended  chan struct{} // closed when rec has a result
	events []hutch.Event // to store with the next write

	fresh   bool // its start, just asked for, is the first thing to write
	version int  // of rec
	stored  int  // version that the store has
	writing bool // a goroutine writes it
	failed  bool // the last write did

	tries int           // writes made
	tried chan struct{} // closed after each write; remade
	again chan struct{} // asks for a write that waits to be made now
}

// shortCommand is how long the record of a start waits for an end that comes with it: what runs
// no longer is written once, and while it runs the CPUs are its own. If this server dies meanwhile
// the guest tells the next one of the command, as it does of one whose start was just asked for.
const shortCommand = 25 * time.Millisecond

// rewrite spaces the tries to write a record.
var rewrite = backoff.Policy{Base: 50 * time.Millisecond, Cap: 2 * time.Second}

func newExecLog(st store.Execs, log *slog.Logger, wake func()) *execLog {
	work, cancel := context.WithCancel(context.Background())
	return &execLog{store: st, log: log, wake: wake, work: work, cancel: cancel, entries: map[hutch.ExecID]*execEntry{}, output: map[hutch.SandboxID]int{}}
}

func newExecEntry(x hutch.Exec) *execEntry {
	return &execEntry{
		rec: x, endsBy: endsBy(x, time.Now()), begun: make(chan struct{}), ended: make(chan struct{}),
		tried: make(chan struct{}), again: make(chan struct{}, 1),
	}
}

// begin takes the place of a command that is about to be started. If it has one, begin
// returns false and a channel that is closed when that start is decided.
func (l *execLog) begin(x hutch.Exec) (first bool, decided <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if e := l.entries[x.ID]; e != nil {
		return false, e.begun
	}
	e := newExecEntry(x)
	l.entries[x.ID] = e
	return true, e.begun
}

// started notes that a command which begin was called for runs, or has run, and writes it
// soon. Its end waits for that.
func (l *execLog) started(id hutch.ExecID, pid int, at time.Time, ev hutch.Event) hutch.Exec {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.entries[id]
	e.rec.PID, e.rec.CreatedAt, e.fresh = pid, at, true
	close(e.begun)
	l.changedLocked(e, ev)
	return e.rec
}

// resume is started for a command that an earlier process started: x is what the store
// has of it, or, with the event of its start, what it is to have.
func (l *execLog) resume(x hutch.Exec, ev ...hutch.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.entries[x.ID]
	e.rec, e.endsBy = x, endsBy(x, time.Now())
	close(e.begun)
	if len(ev) > 0 {
		l.changedLocked(e, ev...)
	}
}

// abandon forgets a command that could not be started.
func (l *execLog) abandon(id hutch.ExecID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	close(l.entries[id].begun)
	delete(l.entries, id)
}

// track takes in a command that runs, as the store has it, unless it is known.
func (l *execLog) track(x hutch.Exec) (first bool) {
	if first, _ = l.begin(x); first {
		l.resume(x)
	}
	return first
}

// finish gives a command its result and writes it soon. First is false if it has one
// already, which stays. A command that is not known is hutch.ErrNotFound.
func (l *execLog) finish(ctx context.Context, id hutch.ExecID, r hutch.ExecResult, event func(hutch.Exec) hutch.Event) (first bool, err error) {
	l.mu.Lock()
	e := l.entries[id]
	l.mu.Unlock()
	if e == nil {
		return false, hutch.ErrNotFound
	}
	select {
	case <-e.begun:
	case <-ctx.Done():
		return false, context.Cause(ctx)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.entries[id] != e:
		return false, hutch.ErrNotFound
	case e.rec.Result != nil:
		return false, nil
	}
	e.rec.Result = &r
	close(e.ended)
	l.changedLocked(e, event(e.rec))
	return true, nil
}

// changedLocked sees to it that the newest version of e is written.
func (l *execLog) changedLocked(e *execEntry, ev ...hutch.Event) {
	e.version++
	e.events = append(e.events, ev...)
	if !e.writing {
		e.writing = true
		l.wg.Go(func() { l.write(e) })
	}
}

// linger waits for the end of a command that is short, unless somebody waits for its record.
func (l *execLog) linger(e *execEntry) {
	t := time.NewTimer(shortCommand)
	defer t.Stop()
	select {
	case <-e.ended:
	case <-e.again:
	case <-t.C:
	case <-l.work.Done():
	}
}

// write stores the entry until the store has its newest version.
func (l *execLog) write(e *execEntry) {
	if e.fresh {
		l.linger(e)
	}
	for tries := 0; ; tries++ {
		l.mu.Lock()
		rec, v, ev := e.rec, e.version, e.events
		e.events = nil
		l.mu.Unlock()
		if tries > 0 {
			ev = l.unsaid(rec.ID, ev)
		}
		err := l.store.PutExec(store.Lazily(context.Background()), rec, ev...)
		if err == nil && len(ev) > 0 {
			failpoint.At(failpoint.ExecRecorded)
			l.wake()
		}
		if r := rec.Result; err == nil && r != nil {
			if l.onEnd != nil {
				l.onEnd(r.End, r.EndedAt.Sub(r.StartedAt))
			}
			l.trim(rec.Sandbox, len(r.Stdout.Head)+len(r.Stdout.Tail)+len(r.Stderr.Head)+len(r.Stderr.Tail))
		}
		if err != nil && tries == 0 {
			l.log.Error("record of a command could not be stored", "exec", rec.ID, "sandbox", rec.Sandbox, "op", "record", "error", err)
		}
		if l.written(e, v, ev, err) {
			return
		}
		if err == nil {
			tries = -1
			continue
		}
		select {
		case <-e.again:
		case <-time.After(rewrite.Delay(tries, rand.Float64)):
		case <-l.work.Done():
		}
	}
}

const (
	// maxOutputOnRecord is how much output of a sandbox's commands is kept on record: what
	// is beyond it is the oldest's, and dropped.
	maxOutputOnRecord = 256 << 20
	// trimAfter is how much comes between two looks at it.
	trimAfter = 16 << 20
)

// trim notes that n bytes of output went on record, and drops old ones if there are too many.
func (l *execLog) trim(sb hutch.SandboxID, n int) {
	l.mu.Lock()
	l.output[sb] += n
	due := l.output[sb] >= trimAfter
	if due {
		delete(l.output, sb)
	}
	l.mu.Unlock()
	if !due {
		return
	}
	if _, err := l.store.TrimOutput(context.Background(), sb, maxOutputOnRecord); err != nil && l.work.Err() == nil {
		l.log.Error("old output on record could not be dropped", "sandbox", sb, "op", "record", "error", err)
	}
}

// forget drops what is counted of a sandbox that has ended.
func (l *execLog) forget(sb hutch.SandboxID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.output, sb)
}

// unsaid is what is left to tell after a write that failed: it may have been made all the
// same, if the failure came after the commit. A record and its events are one write.
func (l *execLog) unsaid(id hutch.ExecID, ev []hutch.Event) []hutch.Event {
	old, err := l.store.Exec(context.Background(), id)
	switch {
	case err != nil:
		return ev
	case old.Result != nil:
		return nil
	}
	return slices.DeleteFunc(slices.Clone(ev), func(e hutch.Event) bool { return e.Type == execStarted })
}

// written notes what became of a write, and reports whether it was the last one due.
func (l *execLog) written(e *execEntry, v int, ev []hutch.Event, err error) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	e.tries++
	e.failed = err != nil
	defer func() {
		close(e.tried)
		e.tried = make(chan struct{})
	}()
	if errors.Is(err, hutch.ErrNotFound) { // its sandbox's record is gone, and it with it
		e.failed, err = false, nil
		v = e.version
	}
	if err != nil {
		e.events = append(ev, e.events...)
		e.writing = l.work.Err() == nil
		return !e.writing
	}
	e.stored = v
	if e.version != v {
		return false
	}
	e.writing = false
	if e.rec.Result != nil {
		delete(l.entries, e.rec.ID)
	}
	return true
}

// get returns a record that is not settled in the store yet.
func (l *execLog) get(id hutch.ExecID) (hutch.Exec, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.entries[id]
	if e == nil || !e.isBegun() { // nobody was told of it yet
		return hutch.Exec{}, false
	}
	return e.rec, true
}

func (e *execEntry) isBegun() bool {
	select {
	case <-e.begun:
		return true
	default:
		return false
	}
}

// ended returns a channel that is closed at the command's end; nil if it is not known here. Whether
// it is may be undecided: then undecided is closed when that is over. Who has taken its place
// just to find out that it has ended already will never say that it ends.
func (l *execLog) ended(id hutch.ExecID) (ended, undecided <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.entries[id]
	switch {
	case e == nil:
		return nil, nil
	case !e.isBegun():
		return nil, e.begun
	}
	return e.ended, nil
}

// running returns the commands of a sandbox that were started and have no result.
func (l *execLog) running(sb hutch.SandboxID) (all []hutch.Exec) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range l.entries {
		if e.rec.Sandbox == sb && e.isBegun() && e.rec.Result == nil {
			all = append(all, e.rec)
		}
	}
	return all
}

// unsettled names the commands of a sandbox, empty = all, of which a write is due.
func (l *execLog) unsettled(sb hutch.SandboxID) (ids []hutch.ExecID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for id, e := range l.entries {
		if (sb == "" || e.rec.Sandbox == sb) && e.stored != e.version {
			ids = append(ids, id)
		}
	}
	return ids
}

// settle waits until the store has the newest version of the command. If it has not been
// able to take it, and is not now, the error is hutch.ErrUnavailable.
func (l *execLog) settle(ctx context.Context, id hutch.ExecID) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.entries[id]
	if e == nil {
		return nil
	}
	for before := e.tries; e.stored != e.version; {
		if e.failed && (e.tries > before || !e.writing) {
			return hutch.Errorf(hutch.CodeUnavailable, "the records cannot be written")
		}
		if !e.writing { // it is not begun yet, or there is nothing to store of it before its end
			return nil
		}
		select { // it may be waiting for an end, or to try again
		case e.again <- struct{}{}:
		default:
		}
		tried := e.tried
		l.mu.Unlock()
		var err error
		select {
		case <-tried:
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
		l.mu.Lock()
		if err != nil {
			return err
		}
	}
	return nil
}

// settleAll waits for every write under way that concerns a sandbox; empty = all.
func (l *execLog) settleAll(ctx context.Context, sb hutch.SandboxID) error {
	for _, id := range l.unsettled(sb) {
		if err := l.settle(ctx, id); err != nil {
			return err
		}
	}
	return nil
}

// close waits for the writes under way. What they can't store is told of again by the
// guests after the next start.
func (l *execLog) close() {
	l.cancel()
	l.wg.Wait()
}
