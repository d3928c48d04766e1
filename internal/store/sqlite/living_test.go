package sqlite

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"hutch.dev/hutch"
)

func TestLiving(t *testing.T) {
	path := filepath.Join(t.TempDir(), "hutch.db")
	if _, err := Living(t.Context(), path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without a database: %v", err)
	}
	s, err := Open(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now().UTC().Round(0)
	for _, sb := range []hutch.Sandbox{
		{ID: "i1", State: hutch.StateRunning, CreatedAt: now, StartedAt: now.Add(time.Second), Env: map[string]string{"A": "secret"}},
		{ID: "i2", State: hutch.StateDead, CreatedAt: now},
		{ID: "i3", State: hutch.StateNew, Transition: hutch.Starting, CreatedAt: now},
	} {
		if err := s.CreateSandbox(t.Context(), sb); err != nil {
			t.Fatal(err)
		}
	}
	check := func(when string) {
		t.Helper()
		got, err := Living(t.Context(), path)
		if err != nil || len(got) != 2 || got[0].ID != "i1" || got[1].ID != "i3" {
			t.Fatalf("%s: %+v, %v", when, got, err)
		}
		if a := got[0]; a.State != hutch.StateRunning || !a.StartedAt.Equal(now.Add(time.Second)) || !a.CreatedAt.Equal(now) {
			t.Errorf("%s: %+v", when, a)
		}
		if b := got[1]; b.State != hutch.StateNew || b.Transition != hutch.Starting || !b.StartedAt.IsZero() {
			t.Errorf("%s: %+v", when, b)
		}
	}
	check("beside a server") // its log holds what is not in the file yet, as after a crash
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	check("after it")
	before, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	check("again")
	if after, err := os.ReadFile(path); err != nil || string(before) != string(after) {
		t.Errorf("the file was changed by a look at it: %v", err)
	}
}

func TestLivingRefusesWhatIsNotOurs(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.db")
	for name, content := range map[string]string{"empty": "", "no database": "this is a text of more than sixteen bytes"} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Living(t.Context(), path); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
