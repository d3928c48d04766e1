package sqlite

import (
	"path/filepath"
	"testing"

	"hutch.dev/hutch/internal/store"
	"hutch.dev/hutch/internal/store/storetest"
)

func TestStore(t *testing.T) {
	storetest.Run(t, func(t *testing.T) store.Store { return open(t, t.TempDir()) })
}

func TestStoreDurable(t *testing.T) {
	storetest.RunDurable(t, func(t *testing.T, dir string) store.Store { return open(t, dir) })
}

// open opens the database in dir and leaves the closing to the test.
func open(t testing.TB, dir string) *Store {
	t.Helper()
	s, err := Open(t.Context(), filepath.Join(dir, "hutch.db"))
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	return s
}
