package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	sqlite3 "modernc.org/sqlite"

	"hutch.dev/hutch/internal/store"
)

var _ store.Store = (*Store)(nil)

// The settings of the connections.
const (
	// busyTimeout is how long a statement waits for another process (a backup, a
	// person with a shell) to let go of the file. Within this process nobody waits:
	// there is one writer, and readers of a write-ahead log block nobody.
	busyTimeout = 5 * time.Second

	// readers is how many reads run at once. A read is tens of microseconds of CPU, so
	// more than a few connections only cost memory (a page cache each, of 2 MiB).
	readers = 4

	// walLimit is what the log file is cut back to after a checkpoint; one very large
	// transaction would leave it that long for good.
	walLimit = 64 << 20
)

// Store is the records in one SQLite file.
type Store struct {
	busy    time.Duration // busyTimeout, shorter in tests
	write   *writer
	wdb     *sql.DB  // holds the writer's one connection
	read    *sql.DB  // connections that cannot write
	stmts   sync.Map // *sql.Stmt of read, by query; see readRow
	seal    *sealer
	closed  atomic.Bool
	changes atomic.Uint64 // see SandboxChanges
	ended   chan struct{} // closed when the first Close is through
	end     error         // what it returned; valid after ended
}

// Open opens the database at path, or makes it, and brings its schema up to date. ctx
// bounds the opening only. A damaged file is [ErrCorrupt], one of a later version
// [ErrNewerSchema], one of another program [ErrForeign]; one that another process keeps
// locked is hutch.ErrUnavailable after five seconds. The caller sees to it that one
// process at a time has the file open: a second one would only be slow, not wrong,
// but what the rest of the server keeps in memory would not be shared.
func Open(ctx context.Context, path string) (*Store, error) {
	return openBusy(ctx, path, busyTimeout)
}

func openBusy(ctx context.Context, path string, busy time.Duration) (*Store, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("open records: %w", err)
	}
	if err := private(path); err != nil {
		return nil, fmt.Errorf("open records: %w", err)
	}
	s := &Store{busy: busy, ended: make(chan struct{})}
	if err := s.open(ctx, path); err != nil {
		return nil, errors.Join(s.fail(ctx, err, "open records in %s", path), s.closeFiles())
	}
	go s.write.run()
	return s, nil
}

func (s *Store) open(ctx context.Context, path string) error {
	var err error
	if s.wdb, err = s.connect(path, nil, []string{
		"journal_mode(WAL)",
		"synchronous(FULL)", // a commit is on the disk when it returns
		"secure_delete(ON)", // purged environments do not stay in free pages
		fmt.Sprintf("journal_size_limit(%d)", walLimit),
	}); err != nil {
		return err
	}
	s.wdb.SetMaxOpenConns(1)
	if err := migrate(ctx, s.wdb); err != nil {
		return err
	}
	conn, err := s.wdb.Conn(ctx)
	if err != nil {
		return err
	}
	s.write = newWriter(conn, func() error { return syncFile(path + "-wal") })
	if s.read, err = s.connect(path, url.Values{"mode": {"ro"}}, []string{"query_only(ON)"}); err != nil {
		return err
	}
	s.read.SetMaxOpenConns(readers)
	s.read.SetMaxIdleConns(readers)
	return s.unlock(ctx, path+keySuffix)
}

// unlock makes the sealer from the key in file.
func (s *Store) unlock(ctx context.Context, file string) error {
	key, err := loadKey(file, func() (sealed bool, err error) {
		err = s.read.QueryRowContext(ctx, `SELECT EXISTS (SELECT 1 FROM sandboxes
			WHERE instr(env_json, ?) > 0 OR instr(metadata_json, ?) > 0)`, sealMark, sealMark).Scan(&sealed)
		return sealed, err
	})
	if err == nil {
		s.seal, err = newSealer(key)
	}
	return err
}

// connect makes a pool over path. It does no I/O yet.
func (s *Store) connect(path string, query url.Values, pragmas []string) (*sql.DB, error) {
	if query == nil {
		query = url.Values{}
	}
	query["_pragma"] = append([]string{
		fmt.Sprintf("busy_timeout(%d)", s.busy.Milliseconds()), // first: the others may have to wait
		"foreign_keys(ON)",
	}, pragmas...)
	dsn := url.URL{Scheme: "file", Path: path, RawQuery: query.Encode()}
	c, err := sqlite3.NewConnector(dsn.String())
	if err != nil {
		return nil, err
	}
	return sql.OpenDB(c), nil
}

// readRow reads one row. Query is one of the few that are asked for on every call: it is parsed
// once for each connection, which is half of its cost.
func (s *Store) readRow(ctx context.Context, query string, args ...any) *sql.Row {
	if st, ok := s.stmts.Load(query); ok {
		return st.(*sql.Stmt).QueryRowContext(ctx, args...)
	}
	st, err := s.read.PrepareContext(ctx, query)
	if err != nil {
		return s.read.QueryRowContext(ctx, query, args...) // which fails too, and says why
	}
	if old, ok := s.stmts.LoadOrStore(query, st); ok {
		_ = st.Close() //nolint:sqlclosecheck // the other one is kept
		st = old.(*sql.Stmt)
	}
	return st.QueryRowContext(ctx, args...)
}

// syncFile makes durable what was written to a file, by whomever. That it is gone is no error: its
// content is in the database then.
func syncFile(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// private sees to it that only our user can read the files. SQLite gives the log files the
// mode of the database.
func private(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	for _, p := range []string{path, path + "-wal", path + "-shm", path + keySuffix} {
		if err := os.Chmod(p, 0o600); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// Close implements store.Store: writes already accepted are made, later calls fail, and
// the log is folded into the database file.
func (s *Store) Close() error {
	if s.closed.Swap(true) {
		<-s.ended
		return s.end
	}
	defer close(s.ended)
	s.write.Close()
	if err := s.closeFiles(); err != nil {
		s.end = classify(err, "close records")
	}
	return s.end
}

func (s *Store) closeFiles() error {
	var errs []error
	// Readers first: whoever closes last folds the log in, and a reader may not write.
	if s.read != nil {
		errs = append(errs, s.read.Close())
	}
	if s.write != nil {
		errs = append(errs, s.write.conn.Close())
	}
	if s.wdb != nil {
		errs = append(errs, s.wdb.Close())
	}
	return errors.Join(errs...)
}

// Check reads the whole file and says whether it is sound: nil, or ErrCorrupt with the
// first things found. It takes seconds per gigabyte and blocks nobody.
func (s *Store) Check(ctx context.Context) error {
	rows, err := s.read.QueryContext(ctx, "PRAGMA quick_check(10)")
	if err != nil {
		return s.fail(ctx, err, "check records")
	}
	found, err := collect(rows, func(r *sql.Rows) (line string, err error) {
		err = r.Scan(&line)
		return line, err
	})
	if err != nil {
		return s.fail(ctx, err, "check records")
	}
	if len(found) == 1 && found[0] == "ok" {
		return nil
	}
	return fmt.Errorf("%w (%q)", ErrCorrupt, found)
}

// collect reads all rows and closes them.
func collect[T any](rows *sql.Rows, scan func(*sql.Rows) (T, error)) ([]T, error) {
	defer func() { _ = rows.Close() }() // rows.Err has what went wrong
	var out []T
	for rows.Next() {
		v, err := scan(rows)
		if err != nil {
			return nil, err
		}
		out = append(out, v)
	}
	return out, rows.Err()
}
