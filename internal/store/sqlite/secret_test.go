package sqlite

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"time"

	"hutch.dev/hutch"
)

const secret = "tenant-s3cret-value"

// inFiles says in which files of dir b occurs.
func inFiles(t *testing.T, dir, b string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, e := range entries {
		if bytes.Contains(read(t, filepath.Join(dir, e.Name())), []byte(b)) {
			found = append(found, e.Name())
		}
	}
	return found
}

// The values of a command's environment never reach the disk.
func TestExecEnvironmentIsNotOnDisk(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	if err := s.CreateSandbox(t.Context(), hutch.Sandbox{ID: "i1"}); err != nil {
		t.Fatal(err)
	}
	e := hutch.Exec{ID: "e1", Sandbox: "i1", Spec: hutch.ExecSpec{Cmd: "visible", Env: map[string]string{"TOKEN": secret}}}
	if err := s.PutExec(t.Context(), e); err != nil {
		t.Fatal(err)
	}
	if found := inFiles(t, dir, "visible"); len(found) == 0 {
		t.Fatal("the search finds nothing: not even the command")
	}
	if found := inFiles(t, dir, secret); len(found) != 0 {
		t.Errorf("the value of an environment is in %q", found)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if found := inFiles(t, dir, secret); len(found) != 0 {
		t.Errorf("after Close the value of an environment is in %q", found)
	}
}

// A sandbox's environment is in its own column and nowhere else, and overwritten when
// the sandbox is purged.
func TestSandboxEnvironmentStaysApart(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	ended := time.Unix(1, 0)
	sb := hutch.Sandbox{ID: "i1", State: hutch.StateDead, EndedAt: ended, Env: map[string]string{"TOKEN": secret}}
	if err := s.CreateSandbox(t.Context(), sb, hutch.Event{Sandbox: "i1", Type: "made"}); err != nil {
		t.Fatal(err)
	}
	for _, query := range []string{
		`SELECT count(*) FROM events WHERE data_json LIKE '%s3cret%' OR type LIKE '%s3cret%'`,
		`SELECT count(*) FROM sandbox_metadata WHERE key LIKE '%s3cret%' OR value LIKE '%s3cret%'`,
		`SELECT count(*) FROM sandboxes WHERE metadata_json || defaults_json || hostname || end_detail LIKE '%s3cret%'`,
		`SELECT 1 - count(*) FROM sandboxes WHERE env_json LIKE '%s3cret%'`,
	} {
		var n int
		if err := s.read.QueryRowContext(t.Context(), query).Scan(&n); err != nil || n != 0 {
			t.Errorf("%s: %d, %v; want 0", query, n, err)
		}
	}
	if _, err := s.PurgeSandboxes(t.Context(), ended.Add(1)); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if found := inFiles(t, dir, secret); len(found) != 0 {
		t.Errorf("after the purge the environment is still in %q", found)
	}
}
