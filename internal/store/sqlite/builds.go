package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/store"
)

const buildColumns = `id, project, template, source, status, step, error, size_bytes, started_at, ended_at`

func buildDest(b *hutch.Build) []any {
	return []any{
		&b.ID, &b.Project, &b.Template, &b.Source, &b.Status, &b.Step, &b.Error, &b.SizeBytes,
		(*instant)(&b.StartedAt), (*instant)(&b.EndedAt),
	}
}

const putBuild = `INSERT INTO builds (` + buildColumns + `) VALUES (?,?,?,?,?,?,?,?,?,?)
	ON CONFLICT (id) DO UPDATE SET project = excluded.project, template = excluded.template,
		source = excluded.source, status = excluded.status, step = excluded.step, error = excluded.error,
		size_bytes = excluded.size_bytes, started_at = excluded.started_at, ended_at = excluded.ended_at`

// PutBuild implements store.Builds.
func (s *Store) PutBuild(ctx context.Context, b hutch.Build) error {
	err := s.write.Do(ctx, func(t *tx) error {
		return t.exec(putBuild, b.ID, b.Project, b.Template, b.Source, b.Status, b.Step, b.Error, b.SizeBytes,
			instant(b.StartedAt), instant(b.EndedAt))
	})
	return s.fail(ctx, err, "store build %s", b.ID)
}

// Build implements store.Builds.
func (s *Store) Build(ctx context.Context, id string) (hutch.Build, error) {
	var b hutch.Build
	err := s.read.QueryRowContext(ctx, `SELECT `+buildColumns+` FROM builds WHERE id = ?`, id).Scan(buildDest(&b)...)
	if err != nil {
		return hutch.Build{}, s.fail(ctx, noBuild(err, id), "read build %s", id)
	}
	return b, nil
}

// Builds implements store.Builds.
func (s *Store) Builds(ctx context.Context, f store.BuildFilter) ([]hutch.Build, error) {
	where, args := []string{"true"}, []any{}
	if f.Project != "" {
		where, args = append(where, "project = ?"), append(args, f.Project)
	}
	if f.Open {
		where, args = append(where, "status IN (?,?)"), append(args, hutch.BuildQueued, hutch.BuildRunning)
	}
	rows, err := s.read.QueryContext(ctx, `SELECT `+buildColumns+` FROM builds WHERE `+strings.Join(where, " AND ")+
		` ORDER BY seq DESC LIMIT ?`, append(args, pageLimit(f.Limit))...)
	if err != nil {
		return nil, s.fail(ctx, err, "list builds")
	}
	list, err := collect(rows, func(r *sql.Rows) (b hutch.Build, err error) {
		err = r.Scan(buildDest(&b)...)
		return b, err
	})
	return list, s.fail(ctx, err, "list builds")
}

// PurgeBuilds implements store.Builds. The logs go by their foreign key.
func (s *Store) PurgeBuilds(ctx context.Context, t time.Time) (int, error) {
	n, err := s.chunks(ctx, buildChunk, func(x *tx) (int64, error) {
		return x.changes(`DELETE FROM builds WHERE seq IN (SELECT seq FROM builds WHERE ended_at < ? LIMIT ?)`, instant(t), buildChunk)
	})
	return n, s.fail(ctx, err, "purge builds")
}

// buildChunk is how many builds go in one transaction of a purge: each has a log of
// thousands of lines.
const buildChunk = 5

// AppendBuildLog implements store.BuildLogs.
func (s *Store) AppendBuildLog(ctx context.Context, id string, lines ...hutch.LogLine) error {
	err := s.write.Do(ctx, func(t *tx) error {
		var seq, next int64
		err := t.row(`SELECT seq, (SELECT coalesce(max(n) + 1, 0) FROM build_log WHERE build = seq) FROM builds WHERE id = ?`,
			[]any{id}, []any{&seq, &next})
		if err != nil {
			return noBuild(err, id)
		}
		for i := range lines {
			if err := t.exec(`INSERT INTO build_log (build, n, at, text) VALUES (?,?,?,?)`,
				seq, next+int64(i), instant(lines[i].At), lines[i].Text); err != nil {
				return err
			}
		}
		return nil
	})
	return s.fail(ctx, err, "add to the log of build %s", id)
}

// BuildLog implements store.BuildLogs.
func (s *Store) BuildLog(ctx context.Context, id string, from, limit int) ([]hutch.LogLine, error) {
	rows, err := s.read.QueryContext(ctx, `SELECT at, text FROM build_log
		WHERE build = (SELECT seq FROM builds WHERE id = ?) AND n >= ? ORDER BY n LIMIT ?`, id, from, pageLimit(limit))
	if err != nil {
		return nil, s.fail(ctx, err, "read the log of build %s", id)
	}
	list, err := collect(rows, func(r *sql.Rows) (l hutch.LogLine, err error) {
		return l, r.Scan((*instant)(&l.At), &l.Text)
	})
	return list, s.fail(ctx, err, "read the log of build %s", id)
}

func noBuild(err error, id string) error {
	if errors.Is(err, sql.ErrNoRows) {
		return hutch.Errorf(hutch.CodeNotFound, "there is no build %q", id)
	}
	return err
}
