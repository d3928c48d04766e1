package sqlite

import "context"

// KeepSetting implements store.Settings.
func (s *Store) KeepSetting(ctx context.Context, name string, value []byte) (kept []byte, err error) {
	err = s.write.Do(ctx, func(t *tx) error {
		if err := t.exec(`INSERT INTO settings (name, value) VALUES (?,?) ON CONFLICT (name) DO NOTHING`, name, value); err != nil {
			return err
		}
		return t.row(`SELECT value FROM settings WHERE name = ?`, []any{name}, []any{&kept})
	})
	if err != nil {
		return nil, s.fail(ctx, err, "keep setting %s", name)
	}
	return kept, nil
}
