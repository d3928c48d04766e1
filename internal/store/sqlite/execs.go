package sqlite

import (
	"context"
	"database/sql"
	"errors"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/store"
)

// pageBytes ends a page of commands early: with the largest budgets a thousand of them
// would be 32 GiB of output.
const pageBytes = 16 << 20

const execColumns = `id, sandbox, project, spec_json, pid, created_at, result_json,
	stdout_head, stdout_tail, stderr_head, stderr_tail`

// briefExecColumns are execColumns without the output.
const briefExecColumns = `id, sandbox, project, spec_json, pid, created_at, result_json, NULL, NULL, NULL, NULL`

// execRow is a command as it is stored: the result's bytes apart, because JSON would
// make them a third longer.
type execRow struct {
	exec   hutch.Exec
	result sql.Null[string]
	out    [4][]byte // stdout head, tail; stderr head, tail
}

func (r *execRow) args() ([]any, error) {
	e := r.exec
	e.Spec.Env = namesOnly(e.Spec.Env)
	if e.Result != nil {
		res := *e.Result
		r.out = [4][]byte{res.Stdout.Head, res.Stdout.Tail, res.Stderr.Head, res.Stderr.Tail}
		res.Stdout.Head, res.Stdout.Tail, res.Stderr.Head, res.Stderr.Tail = nil, nil, nil, nil
		v, err := asJSON(&res).Value()
		if err != nil {
			return nil, err
		}
		r.result = sql.Null[string]{V: v.(string), Valid: true}
	}
	return []any{
		e.ID, e.Sandbox, e.Project, asJSON(&e.Spec), e.PID, instant(e.CreatedAt), r.result,
		r.out[0], r.out[1], r.out[2], r.out[3],
	}, nil
}

func (r *execRow) dest() []any {
	e := &r.exec
	return []any{
		&e.ID, &e.Sandbox, &e.Project, asJSON(&e.Spec), &e.PID, (*instant)(&e.CreatedAt), &r.result,
		&r.out[0], &r.out[1], &r.out[2], &r.out[3],
	}
}

// value is the record once dest has been filled.
func (r *execRow) value() (hutch.Exec, error) {
	if r.result.Valid {
		res := new(hutch.ExecResult)
		if err := asJSON(res).Scan(r.result.V); err != nil {
			return hutch.Exec{}, err
		}
		res.StartedAt, res.EndedAt = stored(res.StartedAt), stored(res.EndedAt)
		res.Stdout.Head, res.Stdout.Tail, res.Stderr.Head, res.Stderr.Tail = r.out[0], r.out[1], r.out[2], r.out[3]
		r.exec.Result = res
	}
	return r.exec, nil
}

// bytes is what the record weighs in a page.
func (r *execRow) bytes() int {
	n := len(r.result.V)
	for _, b := range r.out {
		n += len(b)
	}
	return n
}

// namesOnly is env without its values, which are secrets of the tenant.
func namesOnly(env map[string]string) map[string]string {
	if len(env) == 0 {
		return nil
	}
	names := make(map[string]string, len(env))
	for k := range env {
		names[k] = ""
	}
	return names
}

const putExec = `INSERT INTO execs (` + execColumns + `) VALUES (?,?,?,?,?,?,?,?,?,?,?)
	ON CONFLICT (id) DO UPDATE SET sandbox = excluded.sandbox, project = excluded.project,
		spec_json = excluded.spec_json, pid = excluded.pid, created_at = excluded.created_at,
		result_json = excluded.result_json, stdout_head = excluded.stdout_head,
		stdout_tail = excluded.stdout_tail, stderr_head = excluded.stderr_head,
		stderr_tail = excluded.stderr_tail
	WHERE excluded.result_json IS NOT NULL OR execs.result_json IS NULL`

// PutExec implements store.Execs.
func (s *Store) PutExec(ctx context.Context, e hutch.Exec, ev ...hutch.Event) error {
	r := execRow{exec: e}
	args, err := r.args()
	if err != nil {
		return s.fail(ctx, err, "store command %s", e.ID)
	}
	do := s.write.Do
	if store.Lazy(ctx) {
		do = s.write.DoLazily
	}
	err = do(ctx, func(t *tx) error {
		var one int
		err := t.row(`SELECT 1 FROM sandboxes WHERE id = ?`, []any{e.Sandbox}, []any{&one})
		if errors.Is(err, sql.ErrNoRows) {
			return hutch.Errorf(hutch.CodeNotFound, "there is no sandbox %s", e.Sandbox)
		}
		if err != nil {
			return err
		}
		n, err := t.changes(putExec, args...)
		if err != nil || n == 0 {
			return err // n == 0: late news of a command whose end is known; its events are late too
		}
		return t.events(ev)
	})
	return s.fail(ctx, err, "store command %s", e.ID)
}

// Exec implements store.Execs.
func (s *Store) Exec(ctx context.Context, id hutch.ExecID) (hutch.Exec, error) {
	var r execRow
	err := s.readRow(ctx, `SELECT `+execColumns+` FROM execs WHERE id = ?`, id).Scan(r.dest()...)
	if errors.Is(err, sql.ErrNoRows) {
		err = hutch.Errorf(hutch.CodeNotFound, "there is no command %s", id)
	}
	if err != nil {
		return hutch.Exec{}, s.fail(ctx, err, "read command %s", id)
	}
	e, err := r.value()
	return e, s.fail(ctx, err, "read command %s", id)
}

// ExecsOf implements store.Execs.
func (s *Store) ExecsOf(ctx context.Context, f store.ExecFilter, p store.Page) ([]hutch.Exec, string, error) {
	kind, query := cursorExecs, ` FROM execs WHERE sandbox = ? AND seq < ?`
	order := ` ORDER BY seq DESC LIMIT ?`
	if f.Oldest {
		kind, query = cursorOldExecs, ` FROM execs WHERE sandbox = ? AND seq > ?`
		order = ` ORDER BY seq LIMIT ?`
	}
	from, err := decodeCursor(kind, p.Cursor)
	if err != nil {
		return nil, "", err
	}
	if f.Oldest && p.Cursor == "" {
		from = 0
	}
	columns := execColumns
	if f.Brief {
		columns = briefExecColumns
	}
	if f.Running {
		query += ` AND result_json IS NULL`
	}
	limit := pageLimit(p.Limit)
	rows, err := s.read.QueryContext(ctx, `SELECT seq, `+columns+query+order, f.Sandbox, from, limit+1)
	if err != nil {
		return nil, "", s.fail(ctx, err, "list commands of %s", f.Sandbox)
	}
	list, next, err := execPage(rows, kind, limit)
	return list, next, s.fail(ctx, err, "list commands of %s", f.Sandbox)
}

// execPage reads rows until the page is full by number or by weight.
func execPage(rows *sql.Rows, kind byte, limit int) (list []hutch.Exec, next string, err error) {
	defer func() { _ = rows.Close() }() // rows.Err has what went wrong
	var last int64
	for weight := 0; rows.Next(); {
		if len(list) == limit || weight > pageBytes {
			return list, encodeCursor(kind, last), nil
		}
		var r execRow
		if err := rows.Scan(append([]any{&last}, r.dest()...)...); err != nil {
			return nil, "", err
		}
		e, err := r.value()
		if err != nil {
			return nil, "", err
		}
		list, weight = append(list, e), weight+r.bytes()
	}
	return list, "", rows.Err()
}

// outputBytes is how much output a command's row holds. SQLite knows the length of a BLOB
// without reading it.
const outputBytes = `coalesce(length(stdout_head), 0) + coalesce(length(stdout_tail), 0) +
	coalesce(length(stderr_head), 0) + coalesce(length(stderr_tail), 0)`

const trimOutput = `UPDATE execs SET stdout_head = NULL, stdout_tail = NULL, stderr_head = NULL, stderr_tail = NULL,
		result_json = json_set(result_json,
			'$.stdout.dropped', json_extract(result_json, '$.stdout.total'),
			'$.stderr.dropped', json_extract(result_json, '$.stderr.total'))
	WHERE seq IN (SELECT seq FROM (
		SELECT seq, n, sum(n) OVER (ORDER BY seq DESC) AS upto
		FROM (SELECT seq, ` + outputBytes + ` AS n FROM execs WHERE sandbox = ? AND result_json IS NOT NULL)
	) WHERE n > 0 AND upto > ?)`

// TrimOutput implements store.Execs.
func (s *Store) TrimOutput(ctx context.Context, sb hutch.SandboxID, most int64) (int, error) {
	var n int64
	err := s.write.Do(ctx, func(t *tx) (err error) {
		n, err = t.changes(trimOutput, sb, most)
		return err
	})
	return int(n), s.fail(ctx, err, "trim the output of %s", sb)
}
