package control

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/store"
)

// memAudit is a store that can be made to fail or stall.
type memAudit struct {
	store.Audit
	mu      sync.Mutex
	err     error
	stall   chan struct{}
	entries []hutch.AuditEntry
	writes  int
}

func (m *memAudit) AppendAudit(_ context.Context, e ...hutch.AuditEntry) error {
	m.mu.Lock()
	stall := m.stall
	m.mu.Unlock()
	if stall != nil {
		<-stall
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.writes++
	if m.err == nil {
		m.entries = append(m.entries, e...)
	}
	return m.err
}

func (m *memAudit) set(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.err = err
}

func (m *memAudit) check(t *testing.T, what string, entries, writes int) {
	t.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.entries) != entries || m.writes != writes {
		t.Errorf("%s: %d entries in %d writes, want %d in %d", what, len(m.entries), m.writes, entries, writes)
	}
	for i, e := range m.entries {
		if e.Status != i {
			t.Fatalf("%s: entry %d is the %d. one", what, i, e.Status)
		}
	}
}

func TestAuditLogGathers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &memAudit{}
		a := newAuditLog(m, slog.New(slog.DiscardHandler))
		for i := range 700 {
			a.add(hutch.AuditEntry{Status: i})
		}
		m.check(t, "at once", 0, 0)
		a.flush(t.Context())
		m.check(t, "flushed", 700, 2)
		a.flush(t.Context()) // of nothing
		a.add(hutch.AuditEntry{Status: 700})
		a.close()
		m.check(t, "closed", 701, 3)
	})
}

func TestAuditLogOutlivesAFailingStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &memAudit{err: errDisk}
		a := newAuditLog(m, slog.New(slog.DiscardHandler))
		defer a.close()
		for i := range 10 {
			a.add(hutch.AuditEntry{Status: i})
		}
		time.Sleep(10 * auditPause) // of the bubble's clock: nobody waits
		a.add(hutch.AuditEntry{Status: 10})
		m.set(nil)
		a.flush(t.Context())
		m.mu.Lock()
		m.writes = 0
		m.mu.Unlock()
		m.check(t, "once it works", 11, 0)
	})
}

// A store that takes none for an hour is asked now and then, not all the time.
func TestAuditLogIsPatient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &memAudit{err: errDisk}
		a := newAuditLog(m, slog.New(slog.DiscardHandler))
		a.add(hutch.AuditEntry{})
		time.Sleep(time.Hour) // of the bubble's clock
		if m.mu.Lock(); m.writes < 300 || m.writes > 400 {
			t.Errorf("%d tries in an hour", m.writes)
		}
		m.err, m.writes = nil, 0
		m.mu.Unlock()
		time.Sleep(auditRetry.Cap)
		m.check(t, "once it works", 1, 1)
		a.close()
	})
}

// What nobody can store is bounded, and the first ones are kept.
func TestAuditLogIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &memAudit{stall: make(chan struct{})}
		a := newAuditLog(m, slog.New(slog.DiscardHandler))
		for i := range 3 * maxAuditWaiting {
			a.add(hutch.AuditEntry{Status: i})
		}
		if len(a.waiting) != maxAuditWaiting || a.lost != 2*maxAuditWaiting {
			t.Errorf("%d wait, %d are lost", len(a.waiting), a.lost)
		}
		close(m.stall)
		a.close()
		m.check(t, "closed", maxAuditWaiting, maxAuditWaiting/auditBatch)
	})
}

func TestAuditLogGivesUpAfterClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &memAudit{err: errDisk}
		a := newAuditLog(m, slog.New(slog.DiscardHandler))
		a.add(hutch.AuditEntry{})
		a.close()
		m.check(t, "closed", 0, 1)
	})
}
