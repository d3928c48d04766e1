package sqlite

import (
	"context"
	"database/sql"
	"errors"

	"hutch.dev/hutch"
)

const templateColumns = `name, build_id, image, size_bytes, recipe, defaults_json, resources_json, created_at,
	aliases_json, description, entrypoint_json, profile`

func templateDest(t *hutch.Template) []any {
	return []any{
		&t.Name, &t.BuildID, &t.Image, &t.SizeBytes, &t.Recipe,
		asJSON(&t.Defaults), asJSON(&t.Resources), (*instant)(&t.CreatedAt),
		asJSON(&t.Aliases), &t.Description, asJSON(&t.Entrypoint), &t.Profile,
	}
}

const putTemplate = `INSERT INTO templates (` + templateColumns + `) VALUES (?,?,?,?,?,?,?,?,?,?,?,?)
	ON CONFLICT (name) DO UPDATE SET build_id = excluded.build_id, image = excluded.image,
		size_bytes = excluded.size_bytes, recipe = excluded.recipe, defaults_json = excluded.defaults_json,
		resources_json = excluded.resources_json, created_at = excluded.created_at,
		aliases_json = excluded.aliases_json, description = excluded.description,
		entrypoint_json = excluded.entrypoint_json, profile = excluded.profile`

// PutTemplate implements store.Templates.
func (s *Store) PutTemplate(ctx context.Context, t hutch.Template) error {
	err := s.write.Do(ctx, func(x *tx) error {
		if err := x.free(`SELECT count(*) FROM template_aliases WHERE alias = ?`, t.Name); err != nil {
			return err
		}
		if err := x.exec(putTemplate,
			t.Name, t.BuildID, t.Image, t.SizeBytes, t.Recipe,
			asJSON(&t.Defaults), asJSON(&t.Resources), instant(t.CreatedAt),
			asJSON(&t.Aliases), t.Description, asJSON(&t.Entrypoint), t.Profile); err != nil {
			return err
		}
		if err := x.exec(`DELETE FROM template_aliases WHERE template = ?`, t.Name); err != nil {
			return err
		}
		for _, alias := range t.Aliases {
			if err := x.free(`SELECT count(*) FROM templates WHERE name = ?`, alias); err != nil {
				return err
			}
			n, err := x.changes(`INSERT INTO template_aliases (alias, template) VALUES (?,?) ON CONFLICT (alias) DO NOTHING`, alias, t.Name)
			if err == nil && n == 0 {
				err = takenName(alias)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
	return s.fail(ctx, err, "store template %s", t.Name)
}

// free refuses a name that query finds.
func (t *tx) free(query, name string) error {
	var n int
	if err := t.row(query, []any{name}, []any{&n}); err != nil {
		return err
	}
	if n > 0 {
		return takenName(name)
	}
	return nil
}

func takenName(name string) error {
	return hutch.Errorf(hutch.CodeConflict, "a template answers to the name %q already: choose another", name)
}

// Template implements store.Templates.
func (s *Store) Template(ctx context.Context, name string) (hutch.Template, error) {
	var t hutch.Template
	err := s.readRow(ctx, `SELECT `+templateColumns+` FROM templates
		WHERE name = ?1 OR name = (SELECT template FROM template_aliases WHERE alias = ?1)`, name).Scan(templateDest(&t)...)
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
		err = r.Scan(templateDest(&t)...)
		return t, err
	})
	return list, s.fail(ctx, err, "list templates")
}

// DeleteTemplate implements store.Templates. Its aliases go by their foreign key.
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
