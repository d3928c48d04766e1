package sqlite

import (
	"bytes"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/store"
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

// The values of a sandbox's environment, and of metadata that is never read back, are on
// the disk sealed only, in the record and in the index; they come back as they were, to a
// later Open too, and are found by.
func TestSandboxSecretsAreSealed(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	env := map[string]string{"TOKEN": secret, "EMPTY": "", "ODD": sealMark + secret}
	meta := map[string]string{"visible": "plain-to-see", "secret.key": secret, "odd": sealMark + "x"}
	sb := hutch.Sandbox{ID: "i1", State: hutch.StateRunning, Epoch: 1, Env: env, Metadata: meta}
	if err := s.CreateSandbox(t.Context(), sb, hutch.Event{Sandbox: "i1", Type: "made"}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.UpdateSandbox(t.Context(), "i1", 1, func(sb *hutch.Sandbox) error {
		sb.Metadata["secret.more"] = secret
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	meta["secret.more"] = secret
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if found := inFiles(t, dir, secret); len(found) != 0 {
		t.Errorf("a secret is in %q", found)
	}
	if found := inFiles(t, dir, "plain-to-see"); len(found) == 0 {
		t.Error("the search finds nothing: not even what is no secret")
	}
	s = open(t, dir)
	for q, want := range map[*map[string]string]int{{"secret.key": secret}: 1, {"secret.key": "other"}: 0, {"secret.more": secret, "visible": "plain-to-see"}: 1} {
		list, _, err := s.Sandboxes(t.Context(), store.SandboxFilter{Metadata: *q}, store.Page{})
		if err != nil || len(list) != want {
			t.Errorf("by %v: %d sandboxes, %v; want %d", *q, len(list), err, want)
		}
		for _, sb := range list {
			if !maps.Equal(sb.Env, env) || !maps.Equal(sb.Metadata, meta) {
				t.Errorf("came back with %q, %q", sb.Env, sb.Metadata)
			}
		}
	}
	if st, err := os.Stat(filepath.Join(dir, "hutch.db"+keySuffix)); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("the file of the key: %v, %v", st, err)
	}
}

// A sealed value opens nowhere but in its place, and what was stored before there were seals
// is read as it is.
func TestSealsAreBound(t *testing.T) {
	s := open(t, t.TempDir())
	for _, id := range []hutch.SandboxID{"i1", "i2"} {
		sb := hutch.Sandbox{ID: id, State: hutch.StateRunning, Env: map[string]string{"A": "of " + string(id), "B": "b"}}
		if err := s.CreateSandbox(t.Context(), sb); err != nil {
			t.Fatal(err)
		}
	}
	exec := func(q string, args ...any) {
		t.Helper()
		if err := s.write.Do(t.Context(), func(x *tx) error { return x.exec(q, args...) }); err != nil {
			t.Fatal(err)
		}
	}
	exec(`UPDATE sandboxes SET env_json = '{"A":"old"}' WHERE id = 'i2'`)
	if sb, err := s.Sandbox(t.Context(), "i2"); err != nil || sb.Env["A"] != "old" {
		t.Errorf("a value from before: %q, %v", sb.Env, err)
	}
	exec(`UPDATE sandboxes SET env_json = (SELECT env_json FROM sandboxes WHERE id = 'i1') WHERE id = 'i2'`)
	if sb, err := s.Sandbox(t.Context(), "i2"); !errors.Is(err, ErrKey) {
		t.Errorf("values of another sandbox: %q, %v; want ErrKey", sb.Env, err)
	}
	exec(`UPDATE sandboxes SET env_json = json_object('B', json_extract(env_json, '$.A')) WHERE id = 'i1'`)
	if sb, err := s.Sandbox(t.Context(), "i1"); !errors.Is(err, ErrKey) {
		t.Errorf("the value of another name: %q, %v; want ErrKey", sb.Env, err)
	}
}

// Records that are sealed with a key that is gone are not opened with a new one.
func TestLostKeyIsSaid(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "hutch.db"+keySuffix)
	s := open(t, dir)
	if err := errors.Join(s.Close(), os.Remove(file)); err != nil {
		t.Fatal(err)
	}
	s = open(t, dir) // nothing is sealed yet: a new key is as good
	if err := errors.Join(s.CreateSandbox(t.Context(), hutch.Sandbox{ID: "i1", Env: map[string]string{"A": "b"}}), s.Close()); err != nil {
		t.Fatal(err)
	}
	key, err := os.ReadFile(file)
	if err := errors.Join(err, os.WriteFile(file+".old", key, 0o600)); err != nil {
		t.Fatal(err)
	}
	for name, damage := range map[string]func() error{
		"missing": func() error { return os.Remove(file) },
		"cut":     func() error { return os.WriteFile(file, []byte("short"), 0o600) },
	} {
		if err := damage(); err != nil {
			t.Fatal(err)
		}
		if s, err := Open(t.Context(), filepath.Join(dir, "hutch.db")); !errors.Is(err, ErrKey) || !strings.Contains(err.Error(), file) {
			t.Errorf("%s: %v, %v; want ErrKey that names the file", name, s, err)
		}
		if _, err := os.Stat(file); name == "missing" && err == nil {
			t.Error("a new key was made over the missing one's place")
		}
		if err := errors.Join(os.RemoveAll(file), restore(file)); err != nil {
			t.Fatal(err)
		}
	}
	s = open(t, dir)
	if sb, err := s.Sandbox(t.Context(), "i1"); err != nil || sb.Env["A"] != "b" {
		t.Errorf("with the key back: %q, %v", sb.Env, err)
	}
}

// restore puts the key back that was kept beside its place.
func restore(file string) error {
	b, err := os.ReadFile(file + ".old")
	if err != nil {
		return err
	}
	return os.WriteFile(file, b, 0o600)
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
	var sealed string
	row := s.read.QueryRowContext(t.Context(), `SELECT json_extract(env_json, '$.TOKEN') FROM sandboxes`)
	if err := row.Scan(&sealed); err != nil || !strings.HasPrefix(sealed, sealMark) {
		t.Fatalf("stored as %q, %v", sealed, err)
	}
	if _, err := s.PurgeSandboxes(t.Context(), ended.Add(1)); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if found := inFiles(t, dir, sealed); len(found) != 0 {
		t.Errorf("after the purge the environment is still in %q", found)
	}
}
