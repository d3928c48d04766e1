package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/store"
)

// idle is a writer on the database of s that nobody runs: what asks stays in the queue.
func idle(s *Store) *writer { return newWriter(s.write.conn, s.write.syncLog) }

func insertEvent(typ string) func(*tx) error {
	return func(t *tx) error { return t.events([]hutch.Event{{Type: typ}}) }
}

// queued starts n calls of Do and returns once all are in the queue.
func queued(t *testing.T, w *writer, n int, ctx context.Context, do func(i int) func(*tx) error) <-chan error {
	t.Helper()
	errs := make(chan error, n)
	for i := range n {
		go func() { errs <- w.Do(ctx, do(i)) }()
		for {
			<-w.wake // one token at least a request
			w.mu.Lock()
			have := len(w.queue)
			w.mu.Unlock()
			if have == i+1 {
				break
			}
		}
	}
	return errs
}

func eventTypes(t *testing.T, s *Store) string {
	t.Helper()
	rows, err := s.read.QueryContext(t.Context(), `SELECT type FROM events ORDER BY seq`)
	if err != nil {
		t.Fatal(err)
	}
	all, err := collect(rows, func(r *sql.Rows) (typ string, err error) { return typ, r.Scan(&typ) })
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(all, " ")
}

func TestWaitingWritesShareATransaction(t *testing.T) {
	s := open(t, t.TempDir())
	defer s.Close()
	w := idle(s)
	boom := errors.New("boom")
	inside := 0
	errs := queued(t, w, 10, t.Context(), func(i int) func(*tx) error {
		return func(x *tx) error {
			// Nothing of the batch is visible before all of it is.
			if got := eventTypes(t, s); got != "" {
				t.Errorf("while part %d runs, a reader sees %q", i, got)
			}
			inside++
			if err := insertEvent(fmt.Sprint(i))(x); err != nil {
				return err
			}
			if i%2 == 1 {
				return boom
			}
			return nil
		}
	})
	batch, _ := w.take()
	w.commit(batch)
	if len(batch) != 10 || inside != 10 {
		t.Fatalf("a batch of %d, %d parts ran; want 10", len(batch), inside)
	}
	failed := 0
	for range 10 {
		if err := <-errs; errors.Is(err, boom) {
			failed++
		} else if err != nil {
			t.Error(err)
		}
	}
	if failed != 5 {
		t.Errorf("%d parts failed, want the 5 that meant to", failed)
	}
	if got := eventTypes(t, s); got != "0 2 4 6 8" {
		t.Errorf("stored: %q", got)
	}
}

// What is lazy waits for no sync, unless it shares a transaction with what is not.
func TestLazyWritesAreNotSynced(t *testing.T) {
	s := open(t, t.TempDir())
	defer s.Close()
	mode := func() (n int) {
		t.Helper()
		if err := s.write.conn.QueryRowContext(t.Context(), "PRAGMA synchronous").Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	const normal, full = 1, 2
	w := idle(s)
	firm := func() *request { return &request{do: insertEvent("firm"), done: make(chan struct{})} }
	lazy := func() *request { return &request{do: insertEvent("lazy"), lazy: true, done: make(chan struct{})} }
	for _, c := range []struct {
		batch []*request
		want  int
	}{
		{[]*request{lazy()}, normal},
		{[]*request{lazy(), lazy()}, normal},
		{[]*request{lazy(), firm()}, full},
		{[]*request{lazy()}, normal},
		{[]*request{firm()}, full},
		{[]*request{firm()}, full},
	} {
		w.commit(c.batch)
		for _, r := range c.batch {
			if <-r.done; r.err != nil {
				t.Fatal(r.err)
			}
		}
		if got := mode(); got != c.want {
			t.Errorf("%d parts, the last one lazy %v: synchronous is %d, want %d", len(c.batch), c.batch[len(c.batch)-1].lazy, got, c.want)
		}
	}
	if got := eventTypes(t, s); got != "lazy lazy lazy lazy firm lazy firm firm" {
		t.Errorf("on record: %s", got)
	}
}

// News that a loss of power would overtake anyway is one of them.
func TestLazyUpdatesAreNotSynced(t *testing.T) {
	s := open(t, t.TempDir())
	defer s.Close()
	sb := hutch.Sandbox{ID: "i1", Project: "p1", Epoch: 1, CreatedAt: time.Now()}
	if err := s.CreateSandbox(t.Context(), sb); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		ctx  context.Context
		lazy bool
	}{{store.Lazily(t.Context()), true}, {t.Context(), false}} {
		if _, err := s.UpdateSandbox(c.ctx, sb.ID, 1, func(sb *hutch.Sandbox) error { sb.Hostname += "x"; return nil }); err != nil {
			t.Fatal(err)
		}
		if s.write.lazy != c.lazy { // it rests, so nobody else looks
			t.Errorf("an update that is lazy (%v) was synced: %v", c.lazy, !s.write.lazy)
		}
	}
	if got, err := s.Sandbox(t.Context(), sb.ID); err != nil || got.Hostname != "xx" {
		t.Errorf("on record: %+v, %v", got, err)
	}
}

// Nor are commands, whose guest knows better as long as it lives.
func TestLazyCommandsAreNotSynced(t *testing.T) {
	s := open(t, t.TempDir())
	defer s.Close()
	if err := s.CreateSandbox(t.Context(), hutch.Sandbox{ID: "i1", Project: "p1", Epoch: 1, CreatedAt: time.Now()}); err != nil {
		t.Fatal(err)
	}
	for _, ctx := range []context.Context{store.Lazily(t.Context()), t.Context()} {
		if err := s.PutExec(ctx, hutch.Exec{ID: "x1", Sandbox: "i1", Project: "p1", CreatedAt: time.Now()}); err != nil {
			t.Fatal(err)
		}
		if s.write.lazy != store.Lazy(ctx) {
			t.Errorf("the record of a command, lazy %v, was synced: %v", store.Lazy(ctx), !s.write.lazy)
		}
	}
}

// What was written lazily is synced even if nothing else is written; if it can't be, the next
// write is.
func TestLazyWritesAreSyncedSoon(t *testing.T) {
	s := open(t, t.TempDir())
	defer s.Close()
	synced := make(chan struct{})
	w := newWriter(s.write.conn, func() error { synced <- struct{}{}; return errors.New("the disk is broken") })
	go w.run()
	write := func() {
		if err := w.DoLazily(t.Context(), insertEvent("lazy")); err != nil {
			t.Fatal(err)
		}
	}
	write()
	<-synced
	if err := s.write.syncLog(); err != nil {
		t.Errorf("the store's own sync: %v", err)
	}
	w.syncing.Wait()
	write()
	w.Close()
	if w.lazy || !w.behind.IsZero() {
		t.Error("a write after a sync that failed was not synced")
	}
}

func TestABatchIsBounded(t *testing.T) {
	s := open(t, t.TempDir())
	defer s.Close()
	w := idle(s)
	errs := queued(t, w, maxBatch+3, t.Context(), func(i int) func(*tx) error { return insertEvent(fmt.Sprint(i)) })
	for _, want := range []int{maxBatch, 3, 0} {
		batch, last := w.take()
		if len(batch) != want || last {
			t.Errorf("a batch of %d, last = %v; want %d", len(batch), last, want)
		}
		w.commit(batch)
	}
	for range maxBatch + 3 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
}

func TestACommitThatFailsFailsAll(t *testing.T) {
	s := open(t, t.TempDir())
	defer s.Close()
	w := idle(s)
	errs := queued(t, w, 3, t.Context(), func(i int) func(*tx) error {
		return func(x *tx) error {
			if i == 1 {
				// A foreign key that is checked at the commit: nothing fails before it.
				if err := x.exec(`PRAGMA defer_foreign_keys = ON`); err != nil {
					return err
				}
				return x.exec(`INSERT INTO sandbox_metadata (key, value, sandbox) VALUES ('k', 'v', 4711)`)
			}
			return insertEvent(fmt.Sprint(i))(x)
		}
	})
	batch, _ := w.take()
	w.commit(batch)
	for range 3 {
		if err := <-errs; err == nil {
			t.Error("a write returned nil though its transaction was not committed")
		}
	}
	if got := eventTypes(t, s); got != "" {
		t.Errorf("stored: %q", got)
	}
	if err := s.AppendEvents(t.Context(), hutch.Event{Type: "after"}); err != nil {
		t.Errorf("the next transaction: %v", err)
	}
}

func TestAWaitingWriteCanBeWithdrawn(t *testing.T) {
	s := open(t, t.TempDir())
	defer s.Close()
	w := idle(s)
	ctx, cancel := context.WithCancel(t.Context())
	errs := queued(t, w, 2, ctx, func(int) func(*tx) error { return insertEvent("withdrawn") })
	cancel()
	for range 2 {
		if err := <-errs; !errors.Is(err, context.Canceled) {
			t.Errorf("Do: got %v, want context.Canceled", err)
		}
	}
	if batch, _ := w.take(); len(batch) != 0 {
		t.Errorf("%d withdrawn writes are still in the queue", len(batch))
	}
}

func TestAWriteUnderWayIsWaitedFor(t *testing.T) {
	s := open(t, t.TempDir())
	defer s.Close()
	w := idle(s)
	ctx, cancel := context.WithCancel(t.Context())
	errs := queued(t, w, 1, ctx, func(int) func(*tx) error { return insertEvent("made") })
	batch, _ := w.take()
	cancel()
	w.commit(batch)
	if err := <-errs; err != nil {
		t.Errorf("Do of a write that was made: %v", err)
	}
	if got := eventTypes(t, s); got != "made" {
		t.Errorf("stored: %q", got)
	}
}

// A transaction that the database gave up in the middle leaves no part behind, and the
// parts that had run already are told.
func TestABrokenTransactionFailsAll(t *testing.T) {
	s := open(t, t.TempDir())
	defer s.Close()
	w := idle(s)
	errs := queued(t, w, 3, t.Context(), func(i int) func(*tx) error {
		return func(x *tx) error {
			if i == 1 {
				if err := x.exec("ROLLBACK"); err != nil { // as SQLite does when the disk is full
					return err
				}
				return errors.New("the disk is full")
			}
			return insertEvent(fmt.Sprint(i))(x)
		}
	})
	batch, _ := w.take()
	w.commit(batch)
	for range 3 {
		if err := <-errs; err == nil {
			t.Error("a write of a broken transaction returned nil")
		}
	}
	if got := eventTypes(t, s); got != "" {
		t.Errorf("stored: %q", got)
	}
	if err := s.AppendEvents(t.Context(), hutch.Event{Type: "after"}); err != nil {
		t.Errorf("the next transaction: %v", err)
	}
}
