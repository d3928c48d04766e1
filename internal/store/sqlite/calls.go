package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/store"
)

const selectCall = `SELECT project, key, request, ref, status, body, created_at FROM calls WHERE project = ? AND key = ?`

func callDest(c *store.IdempotentCall) []any {
	return []any{&c.Project, &c.Key, &c.Request, &c.Ref, &c.Status, &c.Body, (*instant)(&c.CreatedAt)}
}

// BeginCall implements store.Idempotency.
func (s *Store) BeginCall(ctx context.Context, c store.IdempotentCall) (got store.IdempotentCall, existed bool, err error) {
	err = s.write.DoLazily(ctx, func(t *tx) error {
		n, err := t.changes(`INSERT INTO calls (project, key, request, ref, status, body, created_at)
			VALUES (?,?,?,?,?,?,?) ON CONFLICT (project, key) DO NOTHING`,
			c.Project, c.Key, c.Request, c.Ref, c.Status, c.Body, instant(c.CreatedAt))
		if err != nil {
			return err
		}
		existed = n == 0
		return t.row(selectCall, []any{c.Project, c.Key}, callDest(&got))
	})
	if err != nil {
		return store.IdempotentCall{}, false, s.fail(ctx, err, "begin idempotent call")
	}
	return got, existed, nil
}

// FinishCall implements store.Idempotency.
func (s *Store) FinishCall(ctx context.Context, c store.IdempotentCall) error {
	if c.Status == 0 {
		return hutch.Wrap(hutch.CodeInternal, errors.New("finish idempotent call: it has no status"), "internal error")
	}
	err := s.write.DoLazily(ctx, func(t *tx) error {
		n, err := t.changes(`UPDATE calls SET status = ?, body = ? WHERE project = ? AND key = ? AND status = 0`,
			c.Status, c.Body, c.Project, c.Key)
		if err != nil || n == 1 {
			return err
		}
		var old store.IdempotentCall
		err = t.row(selectCall, []any{c.Project, c.Key}, callDest(&old))
		if errors.Is(err, sql.ErrNoRows) {
			return hutch.Errorf(hutch.CodeNotFound, "no call under this Idempotency-Key is under way")
		}
		if err != nil {
			return err
		}
		return hutch.Errorf(hutch.CodeConflict, "the call under this Idempotency-Key has its answer already")
	})
	return s.fail(ctx, err, "finish idempotent call")
}

// ForgetCall implements store.Idempotency.
func (s *Store) ForgetCall(ctx context.Context, p hutch.ProjectID, key string) error {
	err := s.write.Do(ctx, func(t *tx) error {
		return t.exec(`DELETE FROM calls WHERE project = ? AND key = ? AND status = 0`, p, key)
	})
	return s.fail(ctx, err, "forget idempotent call")
}

// PurgeCalls implements store.Idempotency.
func (s *Store) PurgeCalls(ctx context.Context, t time.Time) (int, error) {
	var n int64
	err := s.write.Do(ctx, func(x *tx) (err error) {
		n, err = x.changes(`DELETE FROM calls WHERE created_at < ?`, instant(t))
		return err
	})
	if err != nil {
		return 0, s.fail(ctx, err, "purge idempotent calls")
	}
	return int(n), nil
}
