package sqlite

import (
	"context"
	"database/sql"
	"strings"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/store"
)

// events stores ev in the order given. There is one writer, so numbers become visible
// in order: who has read up to one never misses a lower one that comes later.
func (t *tx) events(ev []hutch.Event) error {
	for i := range ev {
		e := &ev[i]
		if err := t.exec(`INSERT INTO events (at, project, sandbox, exec, type, data_json) VALUES (?,?,?,?,?,?)`,
			instant(e.At), e.Project, e.Sandbox, e.Exec, e.Type, pairs{&e.Data}); err != nil {
			return err
		}
	}
	return nil
}

// AppendEvents implements store.Events.
func (s *Store) AppendEvents(ctx context.Context, ev ...hutch.Event) error {
	if len(ev) == 0 {
		return nil
	}
	err := s.write.Do(ctx, func(t *tx) error { return t.events(ev) })
	return s.fail(ctx, err, "store events")
}

// Events implements store.Events.
func (s *Store) Events(ctx context.Context, f store.EventFilter) ([]hutch.Event, error) {
	where, args := []string{"seq > ?"}, []any{f.After}
	if f.Project != "" {
		where, args = append(where, "project = ?"), append(args, f.Project)
	}
	if f.Sandbox != "" {
		where, args = append(where, "sandbox = ?"), append(args, f.Sandbox)
	}
	rows, err := s.read.QueryContext(ctx, `SELECT seq, at, project, sandbox, exec, type, data_json FROM events WHERE `+
		strings.Join(where, " AND ")+` ORDER BY seq LIMIT ?`, append(args, pageLimit(f.Limit))...)
	if err != nil {
		return nil, s.fail(ctx, err, "list events")
	}
	list, err := collect(rows, func(r *sql.Rows) (e hutch.Event, err error) {
		return e, r.Scan(&e.Seq, (*instant)(&e.At), &e.Project, &e.Sandbox, &e.Exec, &e.Type, pairs{&e.Data})
	})
	return list, s.fail(ctx, err, "list events")
}
