package sqlite

import (
	"context"
	"database/sql"
	"errors"

	"hutch.dev/hutch"
)

const templateColumns = `name, build_id, image, size_bytes, recipe, defaults_json, resources_json, created_at`

func templateDest(t *hutch.Template) []any {
	return []any{
		&t.Name, &t.BuildID, &t.Image, &t.SizeBytes, &t.Recipe,
		asJSON(&t.Defaults), asJSON(&t.Resources), (*instant)(&t.CreatedAt),
	}
}

// PutTemplate implements store.Templates.
func (s *Store) PutTemplate(ctx context.Context, t hutch.Template) error {
	err := s.write.Do(ctx, func(x *tx) error {
		return x.exec(`INSERT OR REPLACE INTO templates (`+templateColumns+`) VALUES (?,?,?,?,?,?,?,?)`,
			t.Name, t.BuildID, t.Image, t.SizeBytes, t.Recipe,
			asJSON(&t.Defaults), asJSON(&t.Resources), instant(t.CreatedAt))
	})
	return s.fail(ctx, err, "store template %s", t.Name)
}

// Template implements store.Templates.
func (s *Store) Template(ctx context.Context, name string) (hutch.Template, error) {
	var t hutch.Template
	err := s.read.QueryRowContext(ctx, `SELECT `+templateColumns+` FROM templates WHERE name = ?`, name).Scan(templateDest(&t)...)
	if err != nil {
		return hutch.Template{}, s.fail(ctx, noTemplate(err, name), "read template %s", name)
	}
	return t, nil
}

// Templates implements store.Templates.
func (s *Store) Templates(ctx context.Context) ([]hutch.Template, error) {
	rows, err := s.read.QueryContext(ctx, `SELECT `+templateColumns+` FROM templates ORDER BY name`)
	if err != nil {
		return nil, s.fail(ctx, err, "list templates")
	}
	list, err := collect(rows, func(r *sql.Rows) (t hutch.Template, err error) {
		return t, r.Scan(templateDest(&t)...)
	})
	return list, s.fail(ctx, err, "list templates")
}

// DeleteTemplate implements store.Templates.
func (s *Store) DeleteTemplate(ctx context.Context, name string) error {
	err := s.write.Do(ctx, func(x *tx) error {
		n, err := x.changes(`DELETE FROM templates WHERE name = ?`, name)
		if err == nil && n == 0 {
			err = sql.ErrNoRows
		}
		return noTemplate(err, name)
	})
	return s.fail(ctx, err, "delete template %s", name)
}

func noTemplate(err error, name string) error {
	if errors.Is(err, sql.ErrNoRows) {
		return hutch.Errorf(hutch.CodeNotFound, "there is no template %q", name)
	}
	return err
}
