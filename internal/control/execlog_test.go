package control

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/store"
)

// memExecs is the part of a store that an exec log writes to. It can fail and stall.
type memExecs struct {
	mu     sync.Mutex
	recs   map[hutch.ExecID]hutch.Exec
	events []string
	writes int
	trims  []int64       // the bounds of TrimOutput
	err    error         // of every write
	late   bool          // the write is made all the same
	stall  chan struct{} // writes wait for it; nil = they don't
}

func newMemExecs() *memExecs { return &memExecs{recs: map[hutch.ExecID]hutch.Exec{}} }

func (m *memExecs) PutExec(_ context.Context, x hutch.Exec, ev ...hutch.Event) error {
	m.mu.Lock()
	stall := m.stall
	m.mu.Unlock()
	if stall != nil {
		<-stall
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.writes++
	if m.err == nil || m.late {
		if old := m.recs[x.ID]; old.Result == nil || x.Result != nil {
			m.recs[x.ID] = x
			for _, e := range ev {
				m.events = append(m.events, e.Type)
			}
		}
	}
	return m.err
}

func (m *memExecs) Exec(_ context.Context, id hutch.ExecID) (hutch.Exec, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if x, ok := m.recs[id]; ok {
		return x, nil
	}
	return hutch.Exec{}, hutch.ErrNotFound
}

func (m *memExecs) TrimOutput(_ context.Context, _ hutch.SandboxID, most int64) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.trims = append(m.trims, most)
	return 0, nil
}

func (m *memExecs) ExecsOf(context.Context, store.ExecFilter, store.Page) ([]hutch.Exec, string, error) {
	return nil, "", nil
}

func (m *memExecs) set(err error, late bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.err, m.late = err, late
}

func (m *memExecs) written() (writes int, events []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.writes, append([]string(nil), m.events...)
}

var errDisk = errors.New("the disk is full")

func newTestLog(m *memExecs) (*execLog, *int) {
	woken := new(int)
	var mu sync.Mutex
	return newExecLog(m, slog.New(slog.DiscardHandler), func() {
		mu.Lock()
		defer mu.Unlock()
		*woken++
	}), woken
}

// adopt takes in a command of which the store knows nothing.
func adopt(l *execLog) {
	l.begin(testExec)
	l.resume(testExec, startEvent())
}

func startEvent() hutch.Event { return hutch.Event{Type: execStarted} }

func endEvent(hutch.Exec) hutch.Event { return hutch.Event{Type: "exec.ended"} }

var testExec = hutch.Exec{ID: "e1", Sandbox: "i1", Spec: hutch.ExecSpec{Cmd: "true"}}

func TestExecLogWritesStartAndEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemExecs()
		l, woken := newTestLog(m)
		defer l.close()
		if first, _ := l.begin(testExec); !first {
			t.Fatal("a new command is not new")
		}
		if _, ok := l.get("e1"); ok {
			t.Error("a command is seen before it was started")
		}
		if got := l.started("e1", 7, testExec.CreatedAt, startEvent()); got.PID != 7 || got.Spec.Cmd != "true" {
			t.Errorf("started: %+v", got)
		}
		time.Sleep(shortCommand) // which an end would have come within
		synctest.Wait()
		if got := m.recs["e1"]; got.PID != 7 || got.Result != nil {
			t.Errorf("stored: %+v", got)
		}
		first, err := l.finish(t.Context(), "e1", hutch.ExecResult{ExitCode: 3}, endEvent)
		if !first || err != nil {
			t.Errorf("finish: %v, %v", first, err)
		}
		if err := l.settle(t.Context(), "e1"); err != nil {
			t.Errorf("settle: %v", err)
		}
		if got := m.recs["e1"]; got.Result == nil || got.Result.ExitCode != 3 {
			t.Errorf("stored: %+v", got)
		}
		if _, ok := l.get("e1"); ok {
			t.Error("what is stored is still held")
		}
		if _, err := l.finish(t.Context(), "e1", hutch.ExecResult{}, endEvent); !errors.Is(err, hutch.ErrNotFound) {
			t.Errorf("finish what is stored: %v", err)
		}
		if _, ev := m.written(); len(ev) != 2 || ev[0] != execStarted || *woken != 2 {
			t.Errorf("events %v, %d wakes", ev, *woken)
		}
	})
}

// TestExecLogWritesAShortCommandOnce: while it runs nothing is written, unless somebody waits for it.
func TestExecLogWritesAShortCommandOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemExecs()
		l, woken := newTestLog(m)
		defer l.close()
		begin := func(id hutch.ExecID) {
			x := testExec
			x.ID = id
			l.begin(x)
			l.started(id, 7, x.CreatedAt, startEvent())
			synctest.Wait()
			if _, ev := m.written(); len(m.recs) != 0 && m.recs[id].ID != "" || len(ev) > 2 {
				t.Errorf("of %s is written %+v, %v", id, m.recs[id], ev)
			}
		}
		begin("e1")
		if _, err := l.finish(t.Context(), "e1", hutch.ExecResult{}, endEvent); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if _, ev := m.written(); m.recs["e1"].Result == nil || len(ev) != 2 || *woken != 1 {
			t.Errorf("stored %+v, events %v, %d wakes", m.recs["e1"], ev, *woken)
		}
		begin("e2")
		at := time.Now()
		if err := l.settle(t.Context(), "e2"); err != nil || m.recs["e2"].PID != 7 || time.Since(at) != 0 {
			t.Errorf("settle: %v after %s, stored %+v", err, time.Since(at), m.recs["e2"])
		}
	})
}

func TestExecLogEndWaitsForTheStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemExecs()
		l, _ := newTestLog(m)
		defer l.close()
		l.begin(testExec)
		done := make(chan error)
		go func() {
			_, err := l.finish(t.Context(), "e1", hutch.ExecResult{ExitCode: 3}, endEvent)
			done <- err
		}()
		synctest.Wait()
		select {
		case err := <-done:
			t.Fatalf("an end was taken before its start: %v", err)
		default:
		}
		got := l.started("e1", 7, testExec.CreatedAt, startEvent())
		if err := <-done; err != nil || got.PID != 7 {
			t.Errorf("finish: %v, started as %d", err, got.PID)
		}
		synctest.Wait()
		if _, ev := m.written(); len(ev) != 2 || ev[0] != execStarted {
			t.Errorf("events %v", ev)
		}
		if got := m.recs["e1"]; got.PID != 7 || got.Result == nil || got.Spec.Cmd != "true" {
			t.Errorf("stored: %+v", got)
		}

		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		l.begin(hutch.Exec{ID: "e2"})
		if _, err := l.finish(ctx, "e2", hutch.ExecResult{}, endEvent); !errors.Is(err, context.Canceled) {
			t.Errorf("finish, and the caller leaves: %v", err)
		}
		l.abandon("e2")
	})
}

func TestExecLogAbandonedStart(t *testing.T) {
	m := newMemExecs()
	l, _ := newTestLog(m)
	defer l.close()
	l.begin(testExec)
	first, decided := l.begin(testExec)
	if first {
		t.Error("one id was begun twice")
	}
	l.abandon("e1")
	<-decided
	if _, err := l.finish(t.Context(), "e1", hutch.ExecResult{}, endEvent); !errors.Is(err, hutch.ErrNotFound) {
		t.Errorf("finish what was abandoned: %v", err)
	}
	if first, _ := l.begin(testExec); !first {
		t.Error("what was abandoned cannot be begun again")
	}
	l.abandon("e1")
	if n, _ := m.written(); n != 0 {
		t.Errorf("%d writes", n)
	}
}

func TestExecLogFirstEndStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemExecs()
		m.stall = make(chan struct{})
		l, _ := newTestLog(m)
		defer l.close()
		l.track(testExec)
		ended, _ := l.ended("e1")
		for i := range 3 {
			first, err := l.finish(t.Context(), "e1", hutch.ExecResult{ExitCode: i}, endEvent)
			if err != nil || first != (i == 0) {
				t.Errorf("end %d: first %v, %v", i, first, err)
			}
		}
		<-ended
		l.track(testExec) // late news of its start
		if got, ok := l.get("e1"); !ok || got.Result == nil || got.Result.ExitCode != 0 {
			t.Errorf("readers see %+v", got)
		}
		if ids := l.running("i1"); len(ids) != 0 {
			t.Errorf("running: %v", ids)
		}
		close(m.stall)
		synctest.Wait()
		if n, ev := m.written(); n != 1 || len(ev) != 1 {
			t.Errorf("%d writes, events %v", n, ev)
		}
	})
}

func TestExecLogTrackWritesNothing(t *testing.T) {
	m := newMemExecs()
	l, _ := newTestLog(m)
	l.track(testExec)
	if err := l.settleAll(t.Context(), ""); err != nil {
		t.Errorf("settle: %v", err)
	}
	if ids := l.running("i1"); len(ids) != 1 || len(l.running("i2")) != 0 {
		t.Errorf("running: %v", ids)
	}
	l.close()
	if n, _ := m.written(); n != 0 {
		t.Errorf("%d writes of what the store has", n)
	}
}

func TestExecLogTriesAgain(t *testing.T) {
	for name, late := range map[string]bool{"not written": false, "written, answer lost": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := newMemExecs()
				m.set(errDisk, late)
				l, _ := newTestLog(m)
				defer l.close()
				adopt(l)
				if err := l.settle(t.Context(), "e1"); !errors.Is(err, hutch.ErrUnavailable) {
					t.Errorf("settle while writes fail: %v", err)
				}
				if _, err := l.finish(t.Context(), "e1", hutch.ExecResult{ExitCode: 3}, endEvent); err != nil {
					t.Fatal(err)
				}
				if got, ok := l.get("e1"); !ok || got.Result == nil {
					t.Error("readers do not see what can't be written")
				}
				if err := l.settleAll(t.Context(), "i1"); !errors.Is(err, hutch.ErrUnavailable) {
					t.Errorf("settle while writes fail: %v", err)
				}
				if err := l.settleAll(t.Context(), "i2"); err != nil {
					t.Errorf("settle another sandbox: %v", err)
				}
				m.set(nil, false)
				if err := l.settle(t.Context(), "e1"); err != nil { // tries at once
					t.Errorf("settle when writes work: %v", err)
				}
				if got := m.recs["e1"]; got.Result == nil {
					t.Errorf("stored: %+v", got)
				}
				if _, ev := m.written(); len(ev) != 2 || ev[0] != execStarted || ev[1] != "exec.ended" {
					t.Errorf("events %v", ev)
				}
			})
		})
	}
}

func TestExecLogTriesAgainByItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemExecs()
		m.set(errDisk, false)
		l, _ := newTestLog(m)
		defer l.close()
		adopt(l)
		synctest.Wait()
		m.set(nil, false)
		for range 3 * 40 { // the clock moves when everybody waits
			if _, err := m.Exec(t.Context(), "e1"); err == nil {
				return
			}
			if err := l.settle(t.Context(), "other"); err != nil {
				t.Fatal(err)
			}
			waitAMoment(t)
		}
		t.Error("a write that failed is not made again")
	})
}

func waitAMoment(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), rewrite.Base)
	defer cancel()
	<-ctx.Done()
}

func TestExecLogGivesUpOnWhatHasNoSandbox(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemExecs()
		m.set(hutch.ErrNotFound, false)
		l, _ := newTestLog(m)
		defer l.close()
		adopt(l)
		if _, err := l.finish(t.Context(), "e1", hutch.ExecResult{}, endEvent); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if err := l.settle(t.Context(), "e1"); err != nil {
			t.Errorf("settle: %v", err)
		}
		if _, ok := l.get("e1"); ok {
			t.Error("it is held for ever")
		}
	})
}

func TestExecLogCloses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemExecs()
		m.set(errDisk, false)
		l, _ := newTestLog(m)
		adopt(l)
		synctest.Wait()
		l.close() // returns, though the write still fails
		if err := l.settle(t.Context(), "e1"); !errors.Is(err, hutch.ErrUnavailable) {
			t.Errorf("settle after close: %v", err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		m2 := newMemExecs()
		m2.stall = make(chan struct{})
		l2, _ := newTestLog(m2)
		adopt(l2)
		if err := l2.settle(ctx, "e1"); !errors.Is(err, context.Canceled) {
			t.Errorf("settle, and the caller leaves: %v", err)
		}
		close(m2.stall)
		l2.close()
	})
}

// Whenever so much output has gone on record of a sandbox, what is too old is dropped.
func TestExecLogTrimsOutput(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemExecs()
		l, _ := newTestLog(m)
		defer l.close()
		end := func(id hutch.ExecID, bytes int) {
			x := testExec
			x.ID = id
			l.begin(x)
			l.resume(x, startEvent())
			if _, err := l.finish(t.Context(), id, hutch.ExecResult{Stderr: hutch.Output{Tail: make([]byte, bytes)}}, endEvent); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		end("e1", trimAfter-1)
		if len(m.trims) != 0 {
			t.Errorf("trimmed after %d bytes", trimAfter-1)
		}
		end("e2", 1)
		end("e3", 10)
		if len(m.trims) != 1 || m.trims[0] != maxOutputOnRecord {
			t.Errorf("trimmed to %v, want once to %d", m.trims, maxOutputOnRecord)
		}
	})
}
