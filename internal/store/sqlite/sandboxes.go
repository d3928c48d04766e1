package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/store"
)

// sandboxColumns in the order of sandboxArgs and sandboxDest.
const sandboxColumns = `id, project, template, image, build_id, hostname,
	state, transition, epoch,
	milli_cpu, memory_mb, disk_mb, disk_tier, pids,
	env_json, metadata_json, defaults_json, ttl, idle_timeout,
	created_at, started_at, expires_at, active_at,
	end_reason, end_detail, ended_at, boot_mode, boot, access_json,
	profile, lease, leased_to, budget_json`

func sandboxArgs(sb *hutch.Sandbox) []any {
	return []any{
		sb.ID, sb.Project, sb.Template, sb.Image, sb.BuildID, sb.Hostname,
		sb.State, sb.Transition, int64(sb.Epoch),
		sb.Resources.MilliCPU, sb.Resources.MemoryMB, sb.Resources.DiskMB, sb.Resources.DiskTier, sb.Resources.Pids,
		pairs{&sb.Env},
		pairs{&sb.Metadata},
		asJSON(&sb.Defaults), int64(sb.TTL), int64(sb.IdleTimeout),
		instant(sb.CreatedAt), instant(sb.StartedAt), instant(sb.ExpiresAt), instant(sb.ActiveAt),
		sb.EndReason, sb.EndDetail, instant(sb.EndedAt), sb.BootMode, int64(sb.Boot), asJSON(&sb.Access),
		sb.Profile, int64(sb.Lease), instant(sb.LeasedTo), asJSON(&sb.Budget),
	}
}

func sandboxDest(sb *hutch.Sandbox) []any {
	return []any{
		&sb.ID, &sb.Project, &sb.Template, &sb.Image, &sb.BuildID, &sb.Hostname,
		&sb.State, &sb.Transition, &sb.Epoch,
		&sb.Resources.MilliCPU, &sb.Resources.MemoryMB, &sb.Resources.DiskMB, &sb.Resources.DiskTier, &sb.Resources.Pids,
		pairs{&sb.Env},
		pairs{&sb.Metadata},
		asJSON(&sb.Defaults), &sb.TTL, &sb.IdleTimeout,
		(*instant)(&sb.CreatedAt), (*instant)(&sb.StartedAt), (*instant)(&sb.ExpiresAt), (*instant)(&sb.ActiveAt),
		&sb.EndReason, &sb.EndDetail, (*instant)(&sb.EndedAt), &sb.BootMode, &sb.Boot, asJSON(&sb.Access),
		&sb.Profile, &sb.Lease, (*instant)(&sb.LeasedTo), asJSON(&sb.Budget),
	}
}

const insertSandbox = `INSERT INTO sandboxes (` + sandboxColumns + `)
	VALUES (?,?,?,?,?,?, ?,?,?, ?,?,?,?,?, ?,?,?,?,?, ?,?,?,?, ?,?,?,?,?,?, ?,?,?,?)
	ON CONFLICT (id) DO NOTHING RETURNING seq`

// CreateSandbox implements store.Sandboxes.
func (s *Store) CreateSandbox(ctx context.Context, sb hutch.Sandbox, ev ...hutch.Event) error {
	defer s.changing()()
	row := s.seal.record(sb)
	err := s.write.Do(ctx, func(t *tx) error {
		var seq int64
		err := t.row(insertSandbox, sandboxArgs(&row), []any{&seq})
		if errors.Is(err, sql.ErrNoRows) {
			return hutch.Errorf(hutch.CodeConflict, "a sandbox with the id %s exists already", sb.ID)
		}
		if err != nil {
			return err
		}
		if err := t.index(seq, sb.Metadata, s.seal); err != nil {
			return err
		}
		return t.events(ev)
	})
	return s.fail(ctx, err, "create sandbox %s", sb.ID)
}

// index stores the metadata pairs that filters look for.
func (t *tx) index(seq int64, metadata map[string]string, seal *sealer) error {
	for k, v := range metadata {
		if err := t.exec(`INSERT INTO sandbox_metadata (key, value, sandbox) VALUES (?,?,?)`, k, seal.indexed(k, v), seq); err != nil {
			return err
		}
	}
	return nil
}

// SandboxChanges implements store.Changes.
func (s *Store) SandboxChanges() uint64 { return s.changes.Load() }

// changing counts a write of a sandbox's record before it is made, and, by done, after.
func (s *Store) changing() (done func()) {
	s.changes.Add(1)
	return func() { s.changes.Add(1) }
}

// Sandbox implements store.Sandboxes.
func (s *Store) Sandbox(ctx context.Context, id hutch.SandboxID) (hutch.Sandbox, error) {
	sb, _, err := s.sandbox(ctx, id)
	return sb, s.fail(ctx, err, "read sandbox %s", id)
}

// version is which writing of a record was read.
type version struct{ seq, rev int64 }

func (s *Store) sandbox(ctx context.Context, id hutch.SandboxID) (sb hutch.Sandbox, v version, err error) {
	row := s.readRow(ctx, `SELECT seq, rev, `+sandboxColumns+` FROM sandboxes WHERE id = ?`, id)
	err = row.Scan(append([]any{&v.seq, &v.rev}, sandboxDest(&sb)...)...)
	if errors.Is(err, sql.ErrNoRows) {
		err = hutch.Errorf(hutch.CodeNotFound, "there is no sandbox %s", id)
	}
	if err == nil {
		err = s.seal.open(&sb)
	}
	if err != nil {
		return hutch.Sandbox{}, version{}, err
	}
	return sb, v, nil
}

// Sandboxes implements store.Sandboxes.
func (s *Store) Sandboxes(ctx context.Context, f store.SandboxFilter, p store.Page) ([]hutch.Sandbox, string, error) {
	kind, order := cursorSandboxes, ` ORDER BY seq DESC LIMIT ?`
	if f.Oldest {
		kind, order = cursorOldest, ` ORDER BY seq LIMIT ?`
	}
	from, err := decodeCursor(kind, p.Cursor)
	if err != nil {
		return nil, "", err
	}
	if f.Oldest && p.Cursor == "" {
		from = 0
	}
	where, args := s.sandboxWhere(f, from)
	limit := pageLimit(p.Limit)
	// One more than asked for tells whether there is another page.
	rows, err := s.read.QueryContext(ctx, `SELECT seq, `+sandboxColumns+` FROM sandboxes WHERE `+where+order, append(args, limit+1)...)
	if err != nil {
		return nil, "", s.fail(ctx, err, "list sandboxes")
	}
	var seqs []int64
	list, err := collect(rows, func(r *sql.Rows) (sb hutch.Sandbox, err error) {
		var seq int64
		err = r.Scan(append([]any{&seq}, sandboxDest(&sb)...)...)
		seqs = append(seqs, seq)
		if err == nil {
			err = s.seal.open(&sb)
		}
		return sb, err
	})
	if err != nil {
		return nil, "", s.fail(ctx, err, "list sandboxes")
	}
	if len(list) <= limit {
		return list, "", nil
	}
	return list[:limit], encodeCursor(kind, seqs[limit-1]), nil
}

// sandboxWhere is the condition of a listing that goes on after the record from.
func (s *Store) sandboxWhere(f store.SandboxFilter, from int64) (string, []any) {
	where, args := []string{"seq < ?"}, []any{from}
	if f.Oldest {
		where[0] = "seq > ?"
	}
	if !f.Since.IsZero() {
		where, args = append(where, "created_at >= ?"), append(args, instant(f.Since))
	}
	if f.Project != "" {
		where, args = append(where, "project = ?"), append(args, f.Project)
	}
	if f.Template != "" {
		where, args = append(where, "template = ?"), append(args, f.Template)
	}
	if len(f.States) > 0 {
		where = append(where, "state IN (?"+strings.Repeat(",?", len(f.States)-1)+")")
		for _, st := range f.States {
			args = append(args, st)
		}
	}
	for k, v := range f.Metadata {
		where = append(where, "seq IN (SELECT sandbox FROM sandbox_metadata WHERE key = ? AND value = ?)")
		args = append(args, k, s.seal.indexed(k, v))
	}
	return strings.Join(where, " AND "), args
}

// errOvertaken is that the record was written between our read and our write.
var errOvertaken = errors.New("overtaken")

// UpdateSandbox implements store.Sandboxes. fn runs on the caller's goroutine over what
// was just read; the write then holds only if nobody wrote in between, else both are
// done again. So a slow fn, one that panics, or one that calls the store keeps nobody
// else from writing. Of the updates that meet, one always gets through.
func (s *Store) UpdateSandbox(ctx context.Context, id hutch.SandboxID, epoch hutch.Epoch,
	fn func(*hutch.Sandbox) error, ev ...hutch.Event,
) (hutch.Sandbox, error) {
	for {
		sb, v, err := s.sandbox(ctx, id)
		if err != nil {
			return hutch.Sandbox{}, s.fail(ctx, err, "update sandbox %s", id)
		}
		if sb.Epoch != epoch {
			return hutch.Sandbox{}, fmt.Errorf("update sandbox %s at epoch %d, now %d: %w", id, epoch, sb.Epoch, hutch.ErrStale)
		}
		was := sb
		was.Metadata = maps.Clone(sb.Metadata)
		if err := fn(&sb); err != nil {
			return hutch.Sandbox{}, err
		}
		if sb.ID != was.ID || sb.Project != was.Project || !sb.CreatedAt.Equal(was.CreatedAt) {
			return hutch.Sandbox{}, hutch.Wrap(hutch.CodeInternal,
				fmt.Errorf("update sandbox %s: its id, project and time of creation cannot change", id), "internal error")
		}
		do := s.write.Do
		if store.Lazy(ctx) {
			do = s.write.DoLazily
		}
		changed := s.changing()
		err = do(ctx, func(t *tx) error { return t.replace(v, change{&was, &sb, s.seal}, ev) })
		changed()
		if errors.Is(err, errOvertaken) {
			continue
		}
		if err != nil {
			return hutch.Sandbox{}, s.fail(ctx, err, "update sandbox %s", id)
		}
		return storedSandbox(sb), nil
	}
}

const replaceSandbox = `UPDATE sandboxes SET (rev, ` + sandboxColumns + `) =
	(rev + 1, ?,?,?,?,?,?, ?,?,?, ?,?,?,?,?, ?,?,?,?,?, ?,?,?,?, ?,?,?,?,?,?, ?,?,?,?)
	WHERE seq = ? AND rev = ?`

// change is what a record was and what it is to be.
type change struct {
	was, sb *hutch.Sandbox
	seal    *sealer
}

// replace stores a change of the version v.
func (t *tx) replace(v version, c change, ev []hutch.Event) error {
	row := c.seal.record(*c.sb)
	n, err := t.changes(replaceSandbox, append(sandboxArgs(&row), v.seq, v.rev)...)
	if err != nil {
		return err
	}
	if n == 0 {
		return errOvertaken
	}
	if !maps.Equal(c.was.Metadata, c.sb.Metadata) {
		if err := t.exec(`DELETE FROM sandbox_metadata WHERE sandbox = ?`, v.seq); err != nil {
			return err
		}
		if err := t.index(v.seq, c.sb.Metadata, c.seal); err != nil {
			return err
		}
	}
	return t.events(ev)
}

// storedSandbox is sb as a read would return it, sharing no map with the caller's fn.
func storedSandbox(sb hutch.Sandbox) hutch.Sandbox {
	for _, t := range []*time.Time{&sb.CreatedAt, &sb.StartedAt, &sb.ExpiresAt, &sb.ActiveAt, &sb.LeasedTo, &sb.EndedAt} {
		*t = stored(*t)
	}
	for _, m := range []*map[string]string{&sb.Env, &sb.Metadata, &sb.Defaults.Env} {
		if *m = maps.Clone(*m); len(*m) == 0 {
			*m = nil
		}
	}
	if sb.Access.Ports = maps.Clone(sb.Access.Ports); len(sb.Access.Ports) == 0 {
		sb.Access.Ports = nil
	}
	return sb
}

// What goes in one transaction of a purge, because other writes wait meanwhile: the
// commands of one sandbox can hold megabytes, an event a few hundred bytes.
const (
	purgeChunk  = 50
	orphanChunk = 5000
)

// PurgeSandboxes implements store.Sandboxes.
func (s *Store) PurgeSandboxes(ctx context.Context, t time.Time) (int, error) {
	total, err := s.chunks(ctx, purgeChunk, func(x *tx) (int64, error) {
		n, err := x.purge(t)
		if n > 0 { // most find nothing, each minute
			s.changes.Add(1)
		}
		return n, err
	})
	if total > 0 {
		s.changes.Add(1)
	}
	if err == nil {
		_, err = s.chunks(ctx, orphanChunk, func(x *tx) (int64, error) { return x.purgeOrphans(t) })
	}
	return total, s.fail(ctx, err, "purge sandboxes")
}

// chunks repeats do, each time in a transaction of its own, until it removes less than
// a full chunk, and returns how much it removed in all.
func (s *Store) chunks(ctx context.Context, full int64, do func(*tx) (int64, error)) (int, error) {
	total := 0
	for {
		var n int64
		err := s.write.Do(ctx, func(x *tx) (err error) {
			n, err = do(x)
			return err
		})
		if err != nil {
			return total, err
		}
		total += int(n)
		if n < full {
			return total, nil
		}
	}
}

const doomed = `SELECT id FROM sandboxes WHERE state = 'dead' AND ended_at < ? ORDER BY ended_at, seq LIMIT ?`

// purge removes a chunk of sandboxes. Commands and metadata go by their foreign keys;
// events have none.
func (t *tx) purge(before time.Time) (int64, error) {
	if err := t.exec(`DELETE FROM events WHERE sandbox IN (`+doomed+`)`, instant(before), purgeChunk); err != nil {
		return 0, err
	}
	return t.changes(`DELETE FROM sandboxes WHERE id IN (`+doomed+`)`, instant(before), purgeChunk)
}

// purgeOrphans removes a chunk of events about sandboxes that were refused before they
// had a record, or were purged before the event came.
func (t *tx) purgeOrphans(before time.Time) (int64, error) {
	return t.changes(`DELETE FROM events WHERE seq IN (
		SELECT seq FROM events AS e WHERE at < ? AND sandbox <> ''
		AND NOT EXISTS (SELECT 1 FROM sandboxes WHERE id = e.sandbox) LIMIT ?)`, instant(before), orphanChunk)
}
