package sqlite

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	sqlite3 "modernc.org/sqlite"

	"hutch.dev/hutch"
)

// shell opens the file as another program would.
func shell(t *testing.T, path string) *sql.DB {
	t.Helper()
	c, err := sqlite3.NewConnector(path)
	if err != nil {
		t.Fatal(err)
	}
	db := sql.OpenDB(c)
	t.Cleanup(func() { _ = db.Close() })
	return db
}

func run(t *testing.T, db interface {
	ExecContext(context.Context, string, ...any) (sql.Result, error)
}, query string,
) {
	t.Helper()
	if _, err := db.ExecContext(t.Context(), query); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
}

// file makes a closed database with one sandbox in it.
func file(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	s := open(t, dir)
	if err := s.CreateSandbox(t.Context(), hutch.Sandbox{ID: "i1"}); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, "hutch.db")
}

func TestOpenRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(t *testing.T, path string)
		want  error
	}{
		"a file that is no database": {func(t *testing.T, path string) {
			write(t, path, bytes.Repeat([]byte("not a database\n"), 1000))
		}, ErrCorrupt},
		"a damaged header": {func(t *testing.T, path string) {
			b := read(t, path)
			copy(b[16:100], bytes.Repeat([]byte{0xff}, 84))
			write(t, path, b)
		}, ErrCorrupt},
		"a damaged schema": {func(t *testing.T, path string) {
			b := read(t, path)
			copy(b[100:4096], bytes.Repeat([]byte{0xff}, 3996))
			write(t, path, b)
		}, ErrCorrupt},
		"a file cut short": {func(t *testing.T, path string) {
			write(t, path, read(t, path)[:5000])
		}, ErrCorrupt},
		"a newer schema": {func(t *testing.T, path string) {
			run(t, shell(t, path), `INSERT INTO goose_db_version (version_id, is_applied) VALUES (9999, 1)`)
		}, ErrNewerSchema},
		"another program's database": {func(t *testing.T, path string) {
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
			run(t, shell(t, path), `CREATE TABLE songs (title TEXT)`)
		}, ErrForeign},
		"another program's mark": {func(t *testing.T, path string) {
			run(t, shell(t, path), `PRAGMA application_id = 77`)
		}, ErrForeign},
		"a directory": {func(t *testing.T, path string) {
			if err := errors.Join(os.Remove(path), os.Mkdir(path, 0o700)); err != nil {
				t.Fatal(err)
			}
		}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			path := file(t)
			c.spoil(t, path)
			s, err := Open(t.Context(), path)
			if err == nil {
				_ = s.Close()
				t.Fatal("Open took it")
			}
			if c.want != nil && !errors.Is(err, c.want) {
				t.Errorf("Open: got %v, want %v", err, c.want)
			}
			if !strings.Contains(err.Error(), path) {
				t.Errorf("%q does not say which file", err)
			}
			noDriverError(t, err)
		})
	}
}

func TestOpenMissingDirectory(t *testing.T) {
	_, err := Open(t.Context(), filepath.Join(t.TempDir(), "none", "hutch.db"))
	if !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Open in a directory that is not there: got %v", err)
	}
}

func noDriverError(t *testing.T, err error) {
	t.Helper()
	var e *sqlite3.Error
	if errors.As(err, &e) || errors.Is(err, sql.ErrNoRows) || errors.Is(err, sql.ErrConnDone) {
		t.Errorf("%v still has the driver's error in it", err)
	}
}

func TestOpenOddPaths(t *testing.T) {
	for _, name := range []string{"with space", "question?mark", "hash#mark", "per%20cent", "ümlaut", "a&b=c;d", `quote"'`, "file:x", "colon:memory:"} {
		dir := filepath.Join(t.TempDir(), name)
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		s := open(t, dir)
		if err := s.CreateSandbox(t.Context(), hutch.Sandbox{ID: "i1"}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if err := s.Close(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if fi, err := os.Stat(filepath.Join(dir, "hutch.db")); err != nil || fi.Size() == 0 {
			t.Errorf("%s: the database is somewhere else: %v, %v", name, fi, err)
		}
	}
}

// They hold secrets: also those of a file that an administrator has copied carelessly.
func TestFilesAreOursAlone(t *testing.T) {
	path := file(t)
	for _, p := range []string{path, path + keySuffix} {
		if err := os.Chmod(p, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	s := open(t, filepath.Dir(path))
	defer s.Close()
	if err := s.CreateSandbox(t.Context(), hutch.Sandbox{ID: "i2"}); err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{path, path + "-wal", path + "-shm", path + keySuffix} {
		fi, err := os.Stat(p)
		if err != nil {
			t.Fatal(err)
		}
		if fi.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %v, want 0600", filepath.Base(p), fi.Mode().Perm())
		}
	}
}

func TestConnectionsAreSetUp(t *testing.T) {
	s := open(t, t.TempDir())
	defer s.Close()
	for query, want := range map[string]string{
		"PRAGMA journal_mode":  "wal",
		"PRAGMA synchronous":   "2", // FULL
		"PRAGMA foreign_keys":  "1",
		"PRAGMA secure_delete": "1",
	} {
		var got string
		if err := s.write.conn.QueryRowContext(t.Context(), query).Scan(&got); err != nil || got != want {
			t.Errorf("writer, %s: got %q, %v; want %q", query, got, err, want)
		}
	}
	if _, err := s.read.ExecContext(t.Context(), `DELETE FROM sandboxes`); err == nil {
		t.Error("a reader's connection can write")
	}
}

// A process that holds the file for longer than we wait makes calls fail with what to
// do, and spoils nothing: once it lets go, all is well.
func TestBusy(t *testing.T) {
	path := file(t)
	s, err := openBusy(t.Context(), path, 20*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	other, err := shell(t, path).Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	run(t, other, "BEGIN IMMEDIATE")
	err = s.CreateSandbox(t.Context(), hutch.Sandbox{ID: "i2"})
	if !errors.Is(err, hutch.ErrUnavailable) || !strings.Contains(err.Error(), "another process") {
		t.Errorf("a write while another process writes: got %v, want ErrUnavailable that says why", err)
	}
	noDriverError(t, err)
	if _, err := s.Sandbox(t.Context(), "i1"); err != nil {
		t.Errorf("a read while another process writes: %v", err)
	}
	run(t, other, "COMMIT")
	if err := s.CreateSandbox(t.Context(), hutch.Sandbox{ID: "i2"}); err != nil {
		t.Errorf("a write afterwards: %v", err)
	}
}

func TestBusyAtOpen(t *testing.T) {
	path := file(t)
	db := shell(t, path)
	other, err := db.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	run(t, other, "PRAGMA locking_mode = EXCLUSIVE")
	run(t, other, "BEGIN EXCLUSIVE")
	if _, err := openBusy(t.Context(), path, 20*time.Millisecond); !errors.Is(err, hutch.ErrUnavailable) {
		t.Errorf("Open of a file that another process keeps locked: got %v, want ErrUnavailable", err)
	}
}

func TestFullDisk(t *testing.T) {
	s := open(t, t.TempDir())
	defer s.Close()
	create := func(id hutch.SandboxID, size int) error {
		return s.CreateSandbox(t.Context(), hutch.Sandbox{ID: id, EndDetail: strings.Repeat("x", size)})
	}
	if err := create("i1", 1); err != nil {
		t.Fatal(err)
	}
	// A limit on the pages of the file fails the way a full disk does.
	var pages int
	if err := s.write.conn.QueryRowContext(t.Context(), "PRAGMA page_count").Scan(&pages); err != nil {
		t.Fatal(err)
	}
	if _, err := s.write.conn.ExecContext(t.Context(), "PRAGMA max_page_count = "+strconv.Itoa(pages+2)); err != nil {
		t.Fatal(err)
	}
	err := create("i2", 1<<20)
	if !errors.Is(err, hutch.ErrUnavailable) || !strings.Contains(err.Error(), "disk space") {
		t.Errorf("a write to a full disk: got %v, want ErrUnavailable that says why", err)
	}
	noDriverError(t, err)
	if _, err := s.Sandbox(t.Context(), "i1"); err != nil {
		t.Errorf("a read on a full disk: %v", err)
	}
	if _, err := s.write.conn.ExecContext(t.Context(), "PRAGMA max_page_count = 1000000"); err != nil {
		t.Fatal(err)
	}
	if err := create("i2", 1<<20); err != nil {
		t.Errorf("a write after room was made: %v", err)
	}
}

func TestCheck(t *testing.T) {
	path := file(t)
	s := open(t, filepath.Dir(path))
	if err := s.Check(t.Context()); err != nil {
		t.Errorf("Check of a sound file: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := s.Check(t.Context()); !errors.Is(err, hutch.ErrUnavailable) {
		t.Errorf("Check after Close: got %v, want ErrUnavailable", err)
	}

	// Spoil the pages behind the schema, which Open does not read.
	b := read(t, path)
	for i := 4096 * 8; i < len(b); i++ {
		b[i] ^= 0x5a
	}
	write(t, path, b)
	s, err := Open(t.Context(), path)
	if err != nil {
		if !errors.Is(err, ErrCorrupt) {
			t.Fatalf("Open: got %v, want nil or ErrCorrupt", err)
		}
		return
	}
	defer s.Close()
	if err := s.Check(t.Context()); !errors.Is(err, ErrCorrupt) {
		t.Errorf("Check of a damaged file: got %v, want ErrCorrupt", err)
	}
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func write(t *testing.T, path string, b []byte) {
	t.Helper()
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
}
