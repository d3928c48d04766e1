package sqlite

import (
	"context"
	"database/sql"
	"maps"
	"net/netip"
	"slices"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/store"
)

const insertNetwork = `INSERT INTO network_log
	(sandbox, gateway, origin, at, count, proto, name, addr, port, allowed, rule, reason, sent, got, took)
	SELECT seq, ?,?,?,?,?,?,?,?,?,?,?,?,?,? FROM sandboxes WHERE id = ?
	ON CONFLICT (gateway, origin) DO NOTHING`

// trimNetwork drops all but the latest entries of a sandbox: those up to the first too many.
const trimNetwork = `DELETE FROM network_log WHERE sandbox = (SELECT seq FROM sandboxes WHERE id = ?1) AND seq <= (
	SELECT seq FROM network_log WHERE sandbox = (SELECT seq FROM sandboxes WHERE id = ?1) ORDER BY seq DESC LIMIT 1 OFFSET ?2)`

// AppendNetwork implements store.NetworkLog.
func (s *Store) AppendNetwork(ctx context.Context, keep int, entries []hutch.NetworkEntry, ev ...hutch.Event) error {
	if len(entries)+len(ev) == 0 {
		return nil
	}
	err := s.write.Do(ctx, func(t *tx) error {
		grown := map[hutch.SandboxID]bool{}
		for i := range entries {
			e := &entries[i]
			addr := ""
			if e.Addr.IsValid() {
				addr = e.Addr.String()
			}
			n, err := t.changes(insertNetwork, e.Origin.Gateway, e.Origin.Seq, instant(e.At), e.Count, e.Proto, e.Name, addr, int64(e.Port),
				e.Allowed, e.Rule, e.Reason, e.Out, e.In, int64(e.Took), e.Sandbox)
			if err != nil {
				return err
			}
			if n > 0 {
				grown[e.Sandbox] = true
			}
		}
		for _, id := range slices.Sorted(maps.Keys(grown)) {
			if err := t.exec(trimNetwork, id, keep); err != nil {
				return err
			}
		}
		return t.events(ev)
	})
	return s.fail(ctx, err, "store network entries")
}

// NetworkEntries implements store.NetworkLog.
func (s *Store) NetworkEntries(ctx context.Context, f store.NetworkFilter) ([]hutch.NetworkEntry, error) {
	where := ""
	if f.Denied {
		where = " AND NOT allowed"
	}
	rows, err := s.read.QueryContext(ctx, `SELECT seq, gateway, origin, at, count, proto, name, addr, port, allowed, rule, reason, sent, got, took
		FROM network_log WHERE sandbox = (SELECT seq FROM sandboxes WHERE id = ?) AND seq > ?`+where+` ORDER BY seq LIMIT ?`,
		f.Sandbox, f.After, pageLimit(f.Limit))
	if err != nil {
		return nil, s.fail(ctx, err, "list network entries of %s", f.Sandbox)
	}
	list, err := collect(rows, func(r *sql.Rows) (hutch.NetworkEntry, error) {
		e, addr := hutch.NetworkEntry{Sandbox: f.Sandbox}, ""
		err := r.Scan(&e.Seq, &e.Origin.Gateway, &e.Origin.Seq, (*instant)(&e.At), &e.Count, &e.Proto, &e.Name, &addr, &e.Port,
			&e.Allowed, &e.Rule, &e.Reason, &e.Out, &e.In, &e.Took)
		if err == nil && addr != "" {
			e.Addr, err = netip.ParseAddr(addr)
		}
		return e, err
	})
	return list, s.fail(ctx, err, "list network entries of %s", f.Sandbox)
}
