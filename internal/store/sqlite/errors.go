package sqlite

import (
	"context"
	"errors"
	"fmt"

	sqlite3 "modernc.org/sqlite"
	sqlite3lib "modernc.org/sqlite/lib"

	"hutch.dev/hutch"
)

// What can be wrong with a file that Open is given. Match with errors.Is; the texts are
// for the operator. ErrCorrupt can come from any other call too.
var (
	// ErrCorrupt is a file that is damaged or no SQLite database at all.
	ErrCorrupt = errors.New("the database file is damaged: stop the server, restore the file from a backup (or move it away to start empty), and start again")
	// ErrNewerSchema is a file that a later version of Hutch has written.
	ErrNewerSchema = errors.New("the database was written by a newer version of hutch: run that version, or restore the backup made before the upgrade")
	// ErrForeign is a sound SQLite database of some other program.
	ErrForeign = errors.New("the file is the database of another program: choose another path")
	// ErrKey is a sound database whose key is missing or another's. It can come from other
	// calls too.
	ErrKey = errors.New("the environments of sandboxes in the database cannot be read: put the file with its key back")
)

// fail turns what the driver said while doing into an error of the port. No driver type
// stays in the chain; the text does, for the operator.
func (s *Store) fail(ctx context.Context, err error, doing string, args ...any) error {
	if err == nil {
		return nil
	}
	doing = fmt.Sprintf(doing, args...)
	var own *hutch.Error
	if errors.As(err, &own) || errors.Is(err, ErrNewerSchema) || errors.Is(err, ErrForeign) || errors.Is(err, ErrKey) {
		return fmt.Errorf("%s: %w", doing, err)
	}
	if cause := ctx.Err(); cause != nil {
		return fmt.Errorf("%s: %w", doing, cause)
	}
	if s.closed.Load() {
		// Whatever the driver calls it, it is because of Close.
		return hutch.Wrap(hutch.CodeUnavailable, errors.New(doing+": the store is closed"), "the server is shutting down: try again")
	}
	return classify(err, doing)
}

func classify(err error, doing string) error {
	// Flattened on purpose: nobody may switch on a driver's error.
	cause := fmt.Errorf("%s: %s", doing, err) //nolint:errorlint // see above
	var e *sqlite3.Error
	if !errors.As(err, &e) {
		return hutch.Wrap(hutch.CodeInternal, cause, "the records cannot be read or written")
	}
	switch e.Code() & 0xff { // the rest of the code is detail
	case sqlite3lib.SQLITE_CORRUPT, sqlite3lib.SQLITE_NOTADB:
		return hutch.Wrap(hutch.CodeInternal, fmt.Errorf("%w (%w)", ErrCorrupt, cause), "the records are damaged: the operator has to restore them")
	case sqlite3lib.SQLITE_BUSY, sqlite3lib.SQLITE_LOCKED:
		return hutch.Wrap(hutch.CodeUnavailable, cause, "the records are in use by another process: try again, and if it stays so, stop the other process")
	case sqlite3lib.SQLITE_FULL:
		return hutch.Wrap(hutch.CodeUnavailable, cause, "the server has no disk space left for records: try again when the operator has made room")
	case sqlite3lib.SQLITE_TOOBIG:
		return hutch.Wrap(hutch.CodeTooLarge, cause, "the record is larger than the store takes")
	default:
		return hutch.Wrap(hutch.CodeInternal, cause, "the records cannot be read or written")
	}
}
