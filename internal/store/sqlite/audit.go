package sqlite

import (
	"context"
	"database/sql"
	"strings"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/store"
)

// AppendAudit implements store.Audit.
func (s *Store) AppendAudit(ctx context.Context, entries ...hutch.AuditEntry) error {
	if len(entries) == 0 {
		return nil
	}
	err := s.write.Do(ctx, func(t *tx) error {
		for i := range entries {
			e := &entries[i]
			if err := t.exec(`INSERT INTO audit (at, project, key, request_id, method, route, sandbox, status) VALUES (?,?,?,?,?,?,?,?)`,
				instant(e.At), e.Project, e.Key, e.RequestID, e.Method, e.Route, e.Sandbox, e.Status); err != nil {
				return err
			}
		}
		return nil
	})
	return s.fail(ctx, err, "store audit entries")
}

// AuditEntries implements store.Audit.
func (s *Store) AuditEntries(ctx context.Context, f store.AuditFilter) ([]hutch.AuditEntry, error) {
	where, args := []string{"true"}, []any{}
	if f.Project != "" {
		where, args = append(where, "project = ?"), append(args, f.Project)
	}
	if !f.Since.IsZero() {
		where, args = append(where, "at >= ?"), append(args, instant(f.Since))
	}
	rows, err := s.read.QueryContext(ctx, `SELECT id, at, project, key, request_id, method, route, sandbox, status
		FROM audit WHERE `+strings.Join(where, " AND ")+` ORDER BY id DESC LIMIT ?`, append(args, pageLimit(f.Limit))...)
	if err != nil {
		return nil, s.fail(ctx, err, "list audit entries")
	}
	list, err := collect(rows, func(r *sql.Rows) (e hutch.AuditEntry, err error) {
		return e, r.Scan(&e.ID, (*instant)(&e.At), &e.Project, &e.Key, &e.RequestID, &e.Method, &e.Route, &e.Sandbox, &e.Status)
	})
	return list, s.fail(ctx, err, "list audit entries")
}

// PurgeAudit implements store.Audit.
func (s *Store) PurgeAudit(ctx context.Context, t time.Time) (int, error) {
	n, err := s.chunks(ctx, orphanChunk, func(x *tx) (int64, error) {
		return x.changes(`DELETE FROM audit WHERE id IN (SELECT id FROM audit WHERE at < ? LIMIT ?)`, instant(t), orphanChunk)
	})
	return n, s.fail(ctx, err, "purge audit entries")
}
