package sqlite

import (
	"context"
	"io/fs"
	"path/filepath"
	"testing"

	"github.com/pressly/goose/v3"

	"hutch.dev/hutch"
)

// A database of the first schema, with records in it, is brought up to date and loses
// nothing.
func TestMigrateFromTheFirstSchema(t *testing.T) {
	path := filepath.Join(t.TempDir(), "hutch.db")
	old := shell(t, path)
	if err := claim(t.Context(), old); err != nil {
		t.Fatal(err)
	}
	dir, err := fs.Sub(migrations, "migrations")
	if err != nil {
		t.Fatal(err)
	}
	p, err := goose.NewProvider(goose.DialectSQLite3, old, dir, goose.WithDisableGlobalRegistry(true))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.UpTo(context.Background(), 1); err != nil {
		t.Fatal(err)
	}
	run(t, old, `INSERT INTO sandboxes (id, project, template, image, build_id, hostname, state, transition, epoch,
		milli_cpu, memory_mb, disk_mb, disk_tier, pids, metadata_json, defaults_json, ttl, idle_timeout,
		created_at, expires_at, end_reason, end_detail, boot_mode, boot, env_json)
		VALUES ('i1', 'p1', 'base', 'sha256:1', 'b1', 'h', 'running', '', 3,
		1000, 64, 64, 'disk', 64, '{"k":"v"}', '{}', 1, 0, 1, 2, '', '', 'cold', 5, '{}')`)
	run(t, old, `INSERT INTO execs (id, sandbox, project, spec_json, pid, created_at) VALUES ('e1', 'i1', 'p1', '{"cmd":"true"}', 7, 1)`)
	run(t, old, `INSERT INTO templates (name, build_id, image, size_bytes, recipe, defaults_json, resources_json, created_at)
		VALUES ('base', 'b1', 'sha256:1', 9, 'r', '{}', '{}', 1)`)
	if err := old.Close(); err != nil {
		t.Fatal(err)
	}

	s, err := Open(t.Context(), path)
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	defer func() { _ = s.Close() }()
	sb, err := s.Sandbox(t.Context(), "i1")
	if err != nil || sb.State != hutch.StateRunning || sb.Epoch != 3 || sb.Metadata["k"] != "v" || sb.Access.Surface != "" || sb.Access.Ports != nil ||
		sb.Profile != hutch.ProfileRoot || sb.Lease != 0 || !sb.LeasedTo.IsZero() || sb.Budget != (hutch.Budget{}) {
		t.Errorf("the sandbox: %+v, %v", sb, err)
	}
	if x, err := s.Exec(t.Context(), "e1"); err != nil || x.PID != 7 || x.Spec.Cmd != "true" {
		t.Errorf("the command: %+v, %v", x, err)
	}
	tpl, err := s.Template(t.Context(), "base")
	if err != nil || tpl.SizeBytes != 9 || len(tpl.Aliases) != 0 || len(tpl.Entrypoint) != 0 || tpl.Profile != "" {
		t.Errorf("the template: %+v, %v", tpl, err)
	}
	tpl.Aliases = []string{"python"}
	if err := s.PutTemplate(t.Context(), tpl); err != nil {
		t.Errorf("PutTemplate: %v", err)
	}
	if _, err := s.UpdateSandbox(t.Context(), "i1", 3, func(sb *hutch.Sandbox) error {
		sb.Access.Secure = true
		return nil
	}); err != nil {
		t.Errorf("UpdateSandbox: %v", err)
	}
	if err := s.Check(t.Context()); err != nil {
		t.Errorf("Check: %v", err)
	}
}
