package sqlite

import (
	"context"
	"database/sql"
	"math"
	"strings"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/store"
)

const putUsage = `INSERT INTO usage (project, sandbox, from_at, to_at, state, cpu, memory, disk, egress) VALUES (?,?,?,?,?,?,?,?,?)
	ON CONFLICT (sandbox, from_at) DO UPDATE SET project = excluded.project, to_at = excluded.to_at, state = excluded.state,
		cpu = excluded.cpu, memory = excluded.memory, disk = excluded.disk, egress = excluded.egress
		WHERE excluded.to_at >= usage.to_at`

// AppendUsage implements store.UsageLog.
func (s *Store) AppendUsage(ctx context.Context, rows ...hutch.Usage) error {
	if len(rows) == 0 {
		return nil
	}
	err := s.write.Do(ctx, func(t *tx) error {
		for i := range rows {
			u := &rows[i]
			if err := t.exec(putUsage, u.Project, u.Sandbox, instant(u.From), instant(u.To), u.State,
				int64(u.CPU), u.Memory, u.Disk, u.Egress); err != nil {
				return err
			}
		}
		return nil
	})
	return s.fail(ctx, err, "store usage")
}

// queryer is what reads are made on: the pool, or a transaction of one connection.
type queryer interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// usageReader reads usage on q.
type usageReader struct {
	s *Store
	q queryer
}

var _ store.UsageReader = usageReader{}

// ReadUsage implements store.UsageLog.
func (s *Store) ReadUsage(ctx context.Context, read func(store.UsageReader) error) error {
	t, err := s.read.BeginTx(ctx, &sql.TxOptions{ReadOnly: true})
	if err != nil {
		return s.fail(ctx, err, "read usage")
	}
	defer func() { _ = t.Rollback() }() // it wrote nothing
	return read(usageReader{s, t})
}

// Usage implements store.UsageLog.
func (s *Store) Usage(ctx context.Context, f store.UsageFilter, p store.Page) ([]hutch.Usage, string, error) {
	return usageReader{s, s.read}.Usage(ctx, f, p)
}

// UsageTotal implements store.UsageLog.
func (s *Store) UsageTotal(ctx context.Context, f store.UsageFilter) (hutch.UsageTotal, error) {
	return usageReader{s, s.read}.UsageTotal(ctx, f)
}

// UsageBySandbox implements store.UsageLog.
func (s *Store) UsageBySandbox(ctx context.Context, f store.UsageFilter, p store.Page) ([]hutch.SandboxUsage, string, error) {
	return usageReader{s, s.read}.UsageBySandbox(ctx, f, p)
}

// usageWhere is the condition of f.
func usageWhere(f store.UsageFilter) (string, []any) {
	where, args := []string{"true"}, []any{}
	if f.Project != "" {
		column := "project"
		if f.Sandbox != "" { // whose rows are found by its id: those of a project are too many to look through
			column = "+project"
		}
		where, args = append(where, column+" = ?"), append(args, f.Project)
	}
	if f.Sandbox != "" {
		where, args = append(where, "sandbox = ?"), append(args, f.Sandbox)
	}
	if !f.From.IsZero() {
		where, args = append(where, "to_at > ?"), append(args, instant(f.From))
	}
	if !f.To.IsZero() {
		where, args = append(where, "from_at < ?"), append(args, instant(f.To))
	}
	return strings.Join(where, " AND "), args
}

// after is the number after which a listing that goes up goes on.
func after(kind byte, p store.Page) (int64, error) {
	if p.Cursor == "" {
		return 0, nil
	}
	return decodeCursor(kind, p.Cursor)
}

// Usage implements store.UsageReader.
func (r usageReader) Usage(ctx context.Context, f store.UsageFilter, p store.Page) ([]hutch.Usage, string, error) {
	from, err := after(cursorUsage, p)
	if err != nil {
		return nil, "", err
	}
	where, args := usageWhere(f)
	limit := pageLimit(p.Limit)
	rows, err := r.q.QueryContext(ctx, `SELECT seq, project, sandbox, from_at, to_at, state, cpu, memory, disk, egress
		FROM usage WHERE `+where+` AND seq > ? ORDER BY seq LIMIT ?`, append(args, from, limit+1)...)
	if err != nil {
		return nil, "", r.s.fail(ctx, err, "list usage")
	}
	var seqs []int64
	list, err := collect(rows, func(row *sql.Rows) (u hutch.Usage, err error) {
		var seq int64
		err = row.Scan(&seq, &u.Project, &u.Sandbox, (*instant)(&u.From), (*instant)(&u.To), &u.State, &u.CPU, &u.Memory, &u.Disk, &u.Egress)
		seqs = append(seqs, seq)
		return u, err
	})
	if err != nil {
		return nil, "", r.s.fail(ctx, err, "list usage")
	}
	if len(list) <= limit {
		return list, "", nil
	}
	return list[:limit], encodeCursor(cursorUsage, seqs[limit-1]), nil
}

// cutUsage is the rows of a filter with begin and end cut at its bounds, and with them
// part, the nanoseconds that are left of whole, and what was used and sent in that. Its first
// two arguments are the bounds.
const cutUsage = `WITH bound AS (SELECT coalesce(?, -1 << 63) AS low, coalesce(?, ~(-1 << 63)) AS high),
	timed AS (SELECT *, to_at - from_at AS whole, max(from_at, low) AS begun, min(to_at, high) AS ended,
		min(to_at, high) - max(from_at, low) AS part FROM usage, bound),
	cut AS (SELECT *, CASE part WHEN whole THEN cpu ELSE CAST(cpu * (CAST(part AS REAL) / whole) AS INTEGER) END AS used,
		CASE part WHEN whole THEN egress ELSE CAST(egress * (CAST(part AS REAL) / whole) AS INTEGER) END AS sent
		FROM timed WHERE `

// sumUsage is the columns of a total, for usageTotal to scan. What a part of an interval
// used is in proportion; whole ones are summed as integers, exactly. Sums of times are in two
// columns, as SQLite has an error for one that does not fit: nanoseconds of all sandboxes
// reach that in 292 years, which a thousand of them live through in four months.
const sumUsage = `coalesce(sum(part >> 30), 0), coalesce(sum(part & 0x3fffffff), 0),
	coalesce(sum(CASE state WHEN 'paused' THEN part >> 30 END), 0), coalesce(sum(CASE state WHEN 'paused' THEN part & 0x3fffffff END), 0),
	coalesce(sum(used >> 30), 0), coalesce(sum(used & 0x3fffffff), 0),
	coalesce(sum(CAST(memory AS REAL) * part), 0.0), coalesce(sum(CAST(disk AS REAL) * part), 0.0), coalesce(sum(sent), 0)`

// wideSum is a sum of times in its two columns.
type wideSum struct{ high, low int64 }

// duration is the longest there is where the sum is longer.
func (w wideSum) duration() time.Duration {
	if high := w.high + w.low>>30; high > math.MaxInt64>>30 {
		return math.MaxInt64
	}
	return time.Duration(w.high<<30 + w.low)
}

// usageTotal scans sumUsage.
type usageTotal struct {
	wall, paused, cpu wideSum
	memory, disk      float64 // bytes times nanoseconds
	egress            int64
}

func (t *usageTotal) dest() []any {
	return []any{&t.wall.high, &t.wall.low, &t.paused.high, &t.paused.low, &t.cpu.high, &t.cpu.low, &t.memory, &t.disk, &t.egress}
}

func (t *usageTotal) total() hutch.UsageTotal {
	const gibHour = (1 << 30) * float64(time.Hour)
	return hutch.UsageTotal{
		Wall: t.wall.duration(), Paused: t.paused.duration(), CPU: t.cpu.duration(),
		MemoryGiBHours: t.memory / gibHour, DiskGiBHours: t.disk / gibHour, EgressBytes: t.egress,
	}
}

// UsageTotal implements store.UsageReader.
func (r usageReader) UsageTotal(ctx context.Context, f store.UsageFilter) (hutch.UsageTotal, error) {
	where, args := usageWhere(f)
	var t usageTotal
	err := r.q.QueryRowContext(ctx, cutUsage+where+`) SELECT `+sumUsage+` FROM cut`,
		append([]any{instant(f.From), instant(f.To)}, args...)...).Scan(t.dest()...)
	if err != nil {
		return hutch.UsageTotal{}, r.s.fail(ctx, err, "sum usage")
	}
	return t.total(), nil
}

// UsageBySandbox implements store.UsageReader.
func (r usageReader) UsageBySandbox(ctx context.Context, f store.UsageFilter, p store.Page) ([]hutch.SandboxUsage, string, error) {
	from, err := after(cursorBySandbox, p)
	if err != nil {
		return nil, "", err
	}
	where, args := usageWhere(f)
	args = append([]any{instant(f.From), instant(f.To)}, args...)
	limit := pageLimit(p.Limit)
	rows, err := r.q.QueryContext(ctx, cutUsage+where+`) SELECT min(seq) AS first, project, sandbox, min(begun), max(ended), `+sumUsage+`
		FROM cut GROUP BY project, sandbox HAVING first > ? ORDER BY first LIMIT ?`, append(args, from, limit+1)...)
	if err != nil {
		return nil, "", r.s.fail(ctx, err, "sum usage by sandbox")
	}
	var firsts []int64
	list, err := collect(rows, func(row *sql.Rows) (u hutch.SandboxUsage, err error) {
		var first int64
		var t usageTotal
		err = row.Scan(append([]any{&first, &u.Project, &u.Sandbox, (*instant)(&u.From), (*instant)(&u.To)}, t.dest()...)...)
		u.Total, firsts = t.total(), append(firsts, first)
		return u, err
	})
	if err != nil {
		return nil, "", r.s.fail(ctx, err, "sum usage by sandbox")
	}
	if len(list) <= limit {
		return list, "", nil
	}
	return list[:limit], encodeCursor(cursorBySandbox, firsts[limit-1]), nil
}

// PurgeUsage implements store.UsageLog.
func (s *Store) PurgeUsage(ctx context.Context, t time.Time) (int, error) {
	n, err := s.chunks(ctx, orphanChunk, func(x *tx) (int64, error) {
		return x.changes(`DELETE FROM usage WHERE seq IN (
			SELECT seq FROM usage AS u WHERE to_at < ?
			AND NOT EXISTS (SELECT 1 FROM sandboxes WHERE id = u.sandbox AND state <> 'dead') LIMIT ?)`, instant(t), orphanChunk)
	})
	return n, s.fail(ctx, err, "purge usage")
}
