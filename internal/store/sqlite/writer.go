package sqlite

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"hutch.dev/hutch/internal/x/failpoint"
)

// maxBatch bounds how many writes share a transaction, and so how long the first of
// them waits for the last. 32 writers at once fill a quarter of it; beyond a few
// dozen, one more in the batch saves next to nothing of the fsync they share.
const maxBatch = 128

// syncAfter is how long what was written lazily waits for a sync at the longest. Once in a tenth
// of a second is not much for any disk, and a machine that loses its power loses no more than that.
const syncAfter = 100 * time.Millisecond

// writer makes all writes, one transaction at a time, on the one connection that may
// write. Whatever asks while a transaction is being made durable goes into the next
// one together, so that n writers at once cost about one fsync, not n.
type writer struct {
	conn *sql.Conn
	wake chan struct{} // holds one token when there may be something to do
	done chan struct{} // closed when run has returned

	// Both are run's. There are as many statements as there are query constants.
	stmts  map[string]*sql.Stmt
	lazy   bool      // the connection does not sync the log on a commit
	behind time.Time // when the first commit was made that has not been synced; zero if there is none

	syncLog func() error // makes durable what has been committed, and may run beside a commit
	syncing sync.WaitGroup
	failed  atomic.Bool // a sync did: the next commit syncs itself, and says so if it can't

	mu     sync.Mutex
	queue  []*request
	closed bool
}

// request is one caller's write.
type request struct {
	do   func(*tx) error
	lazy bool          // see DoLazily
	done chan struct{} // closed once err is final

	err   error // valid after done
	taken bool  // guarded by writer.mu: it is in a batch, and cannot be withdrawn
}

func newWriter(conn *sql.Conn, syncLog func() error) *writer {
	return &writer{
		conn:    conn,
		wake:    make(chan struct{}, 1),
		done:    make(chan struct{}),
		stmts:   make(map[string]*sql.Stmt),
		syncLog: syncLog,
	}
}

// Do runs do in a transaction and returns once that is durable, or nothing of do was
// written and the error says why. A ctx that ends while the write waits its turn
// withdraws it; once it is under way Do waits for the outcome, so the answer never
// leaves open whether the write was made. do runs on the writer's goroutine and does
// nothing but its own statements.
func (w *writer) Do(ctx context.Context, do func(*tx) error) error {
	return w.ask(ctx, &request{do: do, done: make(chan struct{})})
}

// DoLazily is Do for what is worth no sync of its own: it returns once that is written and
// survives this process. The next write through Do makes it durable, or a sync after [syncAfter].
// A machine that loses its power before loses it, with everything that was written later.
func (w *writer) DoLazily(ctx context.Context, do func(*tx) error) error {
	return w.ask(ctx, &request{do: do, lazy: true, done: make(chan struct{})})
}

func (w *writer) ask(ctx context.Context, r *request) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	w.mu.Lock()
	if w.closed {
		w.mu.Unlock()
		return sql.ErrConnDone
	}
	w.queue = append(w.queue, r)
	w.mu.Unlock()
	w.signal()

	select {
	case <-r.done:
		return r.err
	case <-ctx.Done():
	}
	if w.withdraw(r) {
		return ctx.Err()
	}
	<-r.done
	return r.err
}

// Close refuses new writes, waits for those already accepted and ends run.
func (w *writer) Close() {
	w.mu.Lock()
	w.closed = true
	w.mu.Unlock()
	w.signal()
	<-w.done
}

func (w *writer) signal() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

func (w *writer) withdraw(r *request) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if r.taken {
		return false
	}
	for i, q := range w.queue {
		if q == r {
			w.queue = append(w.queue[:i], w.queue[i+1:]...)
			break
		}
	}
	return true
}

// take removes the next batch from the queue. last is true when the queue is empty for good.
func (w *writer) take() (batch []*request, last bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := min(len(w.queue), maxBatch)
	batch = append(batch, w.queue[:n]...)
	w.queue = append(w.queue[:0], w.queue[n:]...)
	clear(w.queue[len(w.queue):cap(w.queue)])
	for _, r := range batch {
		r.taken = true
	}
	return batch, w.closed && n == 0
}

// run makes batches until the writer is closed and the queue empty.
func (w *writer) run() {
	defer close(w.done)
	defer w.syncing.Wait()
	for {
		batch, last := w.take()
		switch {
		case last:
			for _, s := range w.stmts {
				_ = s.Close() // the connection is about to go; nothing depends on it
			}
			return
		case len(batch) == 0:
			w.rest()
		default:
			w.commit(batch)
		}
	}
}

// rest waits until there may be something to do. What was written lazily is synced meanwhile, if it
// gets that far, and nobody waits for that.
func (w *writer) rest() {
	if w.behind.IsZero() {
		<-w.wake
		return
	}
	due := time.NewTimer(time.Until(w.behind.Add(syncAfter)))
	defer due.Stop()
	select {
	case <-w.wake:
	case <-due.C:
		w.behind = time.Time{}
		w.syncing.Go(func() {
			if w.syncLog() != nil {
				w.failed.Store(true)
			}
		})
	}
}

// commit makes one transaction of batch and tells every caller how its part went.
func (w *writer) commit(batch []*request) {
	err := w.transact(batch)
	for _, r := range batch {
		if err != nil {
			r.err = err // nothing of the batch is durable, whatever each part said
		}
		close(r.done)
	}
}

// transact runs the batch. A part that fails is undone alone: its error is in the part.
// An error here is everybody's.
func (w *writer) transact(batch []*request) error {
	if err := w.sync(batch); err != nil {
		return err
	}
	t := &tx{w: w}
	if err := t.exec("BEGIN IMMEDIATE"); err != nil {
		return err
	}
	for _, r := range batch {
		r.err = t.part(r.do)
		if t.broken != nil {
			break
		}
	}
	if t.broken == nil {
		failpoint.At(failpoint.RecordsWritten)
		t.broken = t.exec("COMMIT")
	}
	if t.broken != nil {
		// Some errors (a full disk, say) have ended the transaction already; then this
		// one fails, and that is as good.
		_ = t.exec("ROLLBACK")
		return t.broken
	}
	switch {
	case !w.lazy:
		w.behind = time.Time{}
	case w.behind.IsZero():
		w.behind = time.Now()
	}
	failpoint.At(failpoint.RecordsCommitted)
	return nil
}

// sync has the next commit sync the log, unless every part of the batch is lazy and none before
// has been so for too long.
func (w *writer) sync(batch []*request) error {
	lazy := !slices.ContainsFunc(batch, func(r *request) bool { return !r.lazy })
	if late := !w.behind.IsZero() && time.Since(w.behind) > syncAfter; late || w.failed.Swap(false) {
		lazy = false
	}
	if lazy == w.lazy {
		return nil
	}
	mode := map[bool]string{true: "NORMAL", false: "FULL"}[lazy]
	// Not as a statement that is kept: it is done when it is prepared.
	if _, err := w.conn.ExecContext(context.Background(), "PRAGMA synchronous = "+mode); err != nil {
		return err
	}
	w.lazy = lazy
	return nil
}

// tx is the transaction under way, as one part of a batch sees it.
type tx struct {
	w      *writer
	broken error // the transaction itself cannot go on
}

// part runs do between a savepoint and its release, or undoes it.
func (t *tx) part(do func(*tx) error) error {
	if t.broken = t.exec("SAVEPOINT part"); t.broken != nil {
		return t.broken
	}
	err := do(t)
	if err != nil {
		if undo := t.exec("ROLLBACK TO part"); undo != nil {
			t.broken = fmt.Errorf("undo a failed write: %w (it failed because: %w)", undo, err)
			return err
		}
	}
	t.broken = t.exec("RELEASE part")
	return err
}

// stmt prepares query once in the connection's life. Queries are constants, so the map
// stays small.
func (t *tx) stmt(query string) (*sql.Stmt, error) {
	if s, ok := t.w.stmts[query]; ok {
		return s, nil
	}
	s, err := t.w.conn.PrepareContext(context.Background(), query)
	if err != nil {
		return nil, err
	}
	t.w.stmts[query] = s
	return s, nil
}

func (t *tx) exec(query string, args ...any) error {
	_, err := t.changes(query, args...)
	return err
}

// changes runs query and says how many rows it inserted, changed or removed. The
// context is the background's: a statement half done because one caller left would
// spoil the transaction of all.
func (t *tx) changes(query string, args ...any) (int64, error) {
	s, err := t.stmt(query) //nolint:sqlclosecheck // it is kept: run closes it
	if err != nil {
		return 0, err
	}
	r, err := s.ExecContext(context.Background(), args...)
	if err != nil {
		return 0, err
	}
	return r.RowsAffected()
}

// row reads one row into dest; sql.ErrNoRows if there is none.
func (t *tx) row(query string, args, dest []any) error {
	s, err := t.stmt(query) //nolint:sqlclosecheck // it is kept: run closes it
	if err != nil {
		return err
	}
	return s.QueryRowContext(context.Background(), args...).Scan(dest...)
}
