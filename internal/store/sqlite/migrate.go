package sqlite

import (
	"context"
	"database/sql"
	"embed"
	"fmt"
	"io/fs"

	"github.com/pressly/goose/v3"
)

//go:embed migrations/*.sql
var migrations embed.FS

// applicationID marks the file as ours in its header: "Htch".
const applicationID = 0x48746368

// migrate brings the schema up to date, each step in a transaction of its own.
func migrate(ctx context.Context, db *sql.DB) error {
	if err := claim(ctx, db); err != nil {
		return err
	}
	dir, err := fs.Sub(migrations, "migrations")
	if err != nil {
		return err
	}
	p, err := goose.NewProvider(goose.DialectSQLite3, db, dir, goose.WithDisableGlobalRegistry(true))
	if err != nil {
		return fmt.Errorf("read migrations: %w", err)
	}
	have, want, err := p.GetVersions(ctx)
	if err != nil {
		return fmt.Errorf("read schema version: %w", err)
	}
	if have > want {
		return fmt.Errorf("%w (it has schema %d, this version knows %d)", ErrNewerSchema, have, want)
	}
	if _, err := p.Up(ctx); err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	return nil
}

// claim refuses the database of another program and marks an empty one as ours. It is
// also the first read of the file, so it finds what is no database at all.
func claim(ctx context.Context, db *sql.DB) error {
	var id, tables int64
	if err := db.QueryRowContext(ctx, "PRAGMA application_id").Scan(&id); err != nil {
		return fmt.Errorf("read header: %w", err)
	}
	if err := db.QueryRowContext(ctx, "SELECT count(*) FROM sqlite_schema").Scan(&tables); err != nil {
		return fmt.Errorf("read schema: %w", err)
	}
	switch {
	case id == applicationID:
		return nil
	case id != 0 || tables != 0:
		return ErrForeign
	}
	if _, err := db.ExecContext(ctx, fmt.Sprintf("PRAGMA application_id = %d", applicationID)); err != nil {
		return fmt.Errorf("mark the database as ours: %w", err)
	}
	return nil
}
