package control

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/store"
	"hutch.dev/hutch/internal/x/backoff"
)

const (
	// auditPause is how long entries are gathered before they are written together.
	auditPause = 100 * time.Millisecond
	// maxAuditWaiting bounds the entries that wait for the store: what comes while it takes
	// none is counted and said in the log, and lost.
	maxAuditWaiting = 10_000
	// auditBatch is how many entries go in one write.
	auditBatch = 500
	// defaultAudit and maxAudit are how many entries a query returns.
	defaultAudit, maxAudit = 200, 1000
)

// auditLog writes audited calls behind the answers. It has a goroutine only while entries
// wait.
type auditLog struct {
	store store.Audit
	log   *slog.Logger
	wg    sync.WaitGroup
	stop  chan struct{} // closed by close: what waits is written at once

	mu      sync.Mutex
	waiting []hutch.AuditEntry
	idle    chan struct{} // closed when write returns; nil while it does not run
	lost    int
}

func newAuditLog(st store.Audit, log *slog.Logger) *auditLog {
	return &auditLog{store: st, log: log, stop: make(chan struct{})}
}

func (a *auditLog) add(e hutch.AuditEntry) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.waiting) >= maxAuditWaiting {
		a.lost++
		return
	}
	a.waiting = append(a.waiting, e)
	if a.idle == nil {
		a.idle = make(chan struct{})
		a.wg.Go(a.write)
	}
}

// auditRetry spaces the tries while the store takes none, each of which is in the log.
var auditRetry = backoff.Policy{Base: 2 * auditPause, Cap: 10 * time.Second}

// write stores what waits until nothing does.
func (a *auditLog) write() {
	pause := auditPause
	for failed := 0; ; {
		t := time.NewTimer(pause)
		select {
		case <-t.C:
		case <-a.stop:
			t.Stop()
		}
		batch, lost := a.take()
		if len(batch) == 0 {
			return
		}
		if lost > 0 {
			a.log.Error("audited calls were lost: the records could not be written as fast as they came", "op", "audit", "calls", lost)
		}
		if err := a.store.AppendAudit(context.Background(), batch...); err != nil {
			a.log.Error("audited calls could not be stored", "op", "audit", "calls", len(batch), "error", err)
			if a.putBack(batch) {
				return
			}
			pause = auditRetry.Ceiling(failed)
			failed++
			continue
		}
		pause, failed = auditPause, 0
	}
}

func (a *auditLog) take() (batch []hutch.AuditEntry, lost int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	n := min(len(a.waiting), auditBatch)
	batch = a.waiting[:n:n]
	if a.waiting = a.waiting[n:]; len(a.waiting) == 0 {
		a.waiting = nil // give the memory back
	}
	lost, a.lost = a.lost, 0
	if n == 0 {
		a.endLocked()
	}
	return batch, lost
}

// endLocked says that write is about to return.
func (a *auditLog) endLocked() {
	close(a.idle)
	a.idle = nil
}

// putBack keeps entries that could not be stored for the next try. After close there is
// none, and it says so.
func (a *auditLog) putBack(batch []hutch.AuditEntry) (over bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	select {
	case <-a.stop:
		a.endLocked()
		return true
	default:
	}
	a.waiting = append(batch, a.waiting...)
	if over := len(a.waiting) - maxAuditWaiting; over > 0 {
		a.waiting, a.lost = a.waiting[:maxAuditWaiting], a.lost+over
	}
	return false
}

// flush waits until what was added has been written, or could not be for a while.
func (a *auditLog) flush(ctx context.Context) {
	a.mu.Lock()
	idle := a.idle
	a.mu.Unlock()
	if idle == nil {
		return
	}
	select {
	case <-idle:
	case <-ctx.Done():
	case <-time.After(10 * auditPause):
	}
}

// close writes what waits.
func (a *auditLog) close() {
	close(a.stop)
	a.wg.Wait()
}

// RecordAudit notes a call for the audit log. It does not wait for the store.
func (c *Control) RecordAudit(e hutch.AuditEntry) {
	if e.At.IsZero() {
		e.At = time.Now()
	}
	c.audit.add(e)
}

// Audit returns a project's audited calls, newest first.
func (c *Control) Audit(ctx context.Context, q hutch.AuditQuery) ([]hutch.AuditEntry, error) {
	limit := q.Limit
	if limit == 0 {
		limit = defaultAudit
	}
	if limit < 1 || limit > maxAudit {
		return nil, hutch.FieldErrorf("limit", "must be from 1 to %d", maxAudit)
	}
	c.audit.flush(ctx)
	l, err := c.store.AuditEntries(ctx, store.AuditFilter{Project: q.Project, Since: q.Since, Limit: limit})
	if err != nil {
		return nil, fmt.Errorf("list audited calls: %w", err)
	}
	return l, nil
}
