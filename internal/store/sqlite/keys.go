package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"hutch.dev/hutch"
)

const keyColumns = `prefix, hash, project, name, scope, created_at, expires_at, revoked_at`

func keyDest(k *hutch.APIKey) []any {
	return []any{
		&k.Prefix, &k.Hash, &k.Project, &k.Name, &k.Scope,
		(*instant)(&k.CreatedAt), (*instant)(&k.ExpiresAt), (*instant)(&k.RevokedAt),
	}
}

// CreateKey implements store.Keys.
func (s *Store) CreateKey(ctx context.Context, k hutch.APIKey) error {
	err := s.write.Do(ctx, func(x *tx) error {
		n, err := x.changes(`INSERT INTO keys (`+keyColumns+`) VALUES (?,?,?,?,?,?,?,?) ON CONFLICT (prefix) DO NOTHING`,
			k.Prefix, k.Hash, k.Project, k.Name, k.Scope,
			instant(k.CreatedAt), instant(k.ExpiresAt), instant(k.RevokedAt))
		if err == nil && n == 0 {
			err = hutch.Errorf(hutch.CodeConflict, "a key with the prefix %s exists already", k.Prefix)
		}
		return err
	})
	return s.fail(ctx, err, "create key %s", k.Prefix)
}

// Key implements store.Keys.
func (s *Store) Key(ctx context.Context, prefix string) (hutch.APIKey, error) {
	var k hutch.APIKey
	err := s.read.QueryRowContext(ctx, `SELECT `+keyColumns+` FROM keys WHERE prefix = ?`, prefix).Scan(keyDest(&k)...)
	if errors.Is(err, sql.ErrNoRows) {
		err = noKey(prefix)
	}
	if err != nil {
		return hutch.APIKey{}, s.fail(ctx, err, "read key %s", prefix)
	}
	return k, nil
}

// Keys implements store.Keys.
func (s *Store) Keys(ctx context.Context) ([]hutch.APIKey, error) {
	rows, err := s.read.QueryContext(ctx, `SELECT `+keyColumns+` FROM keys ORDER BY seq DESC`)
	if err != nil {
		return nil, s.fail(ctx, err, "list keys")
	}
	list, err := collect(rows, func(r *sql.Rows) (k hutch.APIKey, err error) {
		err = r.Scan(keyDest(&k)...)
		return k, err
	})
	return list, s.fail(ctx, err, "list keys")
}

// RevokeKey implements store.Keys.
func (s *Store) RevokeKey(ctx context.Context, prefix string, t time.Time) error {
	err := s.write.Do(ctx, func(x *tx) error {
		n, err := x.changes(`UPDATE keys SET revoked_at = coalesce(revoked_at, ?) WHERE prefix = ?`, instant(t), prefix)
		if err == nil && n == 0 {
			err = noKey(prefix)
		}
		return err
	})
	return s.fail(ctx, err, "revoke key %s", prefix)
}

func noKey(prefix string) error {
	return hutch.Errorf(hutch.CodeNotFound, "there is no key with the prefix %q", prefix)
}
