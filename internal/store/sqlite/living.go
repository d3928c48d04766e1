package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"

	"hutch.dev/hutch"
)

// Living reads from the database at path which sandboxes it has as living, for who looks
// while no server has it open: it changes nothing, not even its schema. Of each record it
// returns what a look needs: ID, State, Transition, CreatedAt and StartedAt. That there is no
// database is fs.ErrNotExist, one of another program [ErrForeign].
func Living(ctx context.Context, path string) (_ []hutch.Sandbox, err error) {
	if path, err = filepath.Abs(path); err != nil {
		return nil, fmt.Errorf("read records: %w", err)
	}
	if _, err := os.Stat(path); err != nil {
		return nil, fmt.Errorf("read records: %w", err)
	}
	s := &Store{busy: busyTimeout}
	db, err := s.connect(path, url.Values{"mode": {"ro"}}, []string{"query_only(ON)"})
	if err != nil {
		return nil, fmt.Errorf("read records: %w", err)
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	var id int64
	if err := db.QueryRowContext(ctx, "PRAGMA application_id").Scan(&id); err != nil {
		return nil, s.fail(ctx, err, "read records in %s", path)
	}
	if id != applicationID {
		return nil, fmt.Errorf("read records in %s: %w", path, ErrForeign)
	}
	rows, err := db.QueryContext(ctx, `SELECT id, state, transition, created_at, started_at FROM sandboxes WHERE state <> ? ORDER BY seq`, hutch.StateDead)
	if err != nil {
		return nil, s.fail(ctx, err, "read records in %s", path)
	}
	list, err := collect(rows, func(r *sql.Rows) (sb hutch.Sandbox, err error) {
		err = r.Scan(&sb.ID, &sb.State, &sb.Transition, (*instant)(&sb.CreatedAt), (*instant)(&sb.StartedAt))
		return sb, err
	})
	return list, s.fail(ctx, err, "read records in %s", path)
}
