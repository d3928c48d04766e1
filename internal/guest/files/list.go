package files

import (
	"context"
	"encoding/base64"
	"errors"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/guestapi"
)

// maxPage is how many bytes of paths a page may hold: one of fewer entries than asked for
// says where it goes on, as any other.
const maxPage = 4 << 20

// list lists a page of a directory. Nothing is remembered between the pages: a cursor is the
// path of the last entry, and the next page begins with what comes after it then.
func (a *actor) list(ctx context.Context, q guestapi.ListFiles) (page hutch.FileList, err error) {
	abs, err := a.absolute(q.Name())
	if err != nil {
		return page, err
	}
	l := lister{actor: a, ctx: ctx, limit: q.Limit}
	if l.after, err = parseCursor(q.Cursor); err != nil {
		return page, err
	}
	if l.limit == 0 {
		l.limit = hutch.DefaultListLimit
	}
	if l.limit < 0 || l.limit > hutch.MaxListLimit {
		return page, hutch.FieldErrorf("limit", "must be between 1 and %d", hutch.MaxListLimit)
	}
	depth := q.Depth
	if depth == 0 {
		depth = 1
	}
	if depth < 0 || depth > hutch.MaxListDepth {
		return page, hutch.FieldErrorf("depth", "must be between 1 and %d", hutch.MaxListDepth)
	}
	err = a.do(ctx, func() error {
		dir, err := a.open(unix.AT_FDCWD, abs, unix.O_RDONLY|unix.O_DIRECTORY, 0)
		if errors.Is(err, unix.ENOTDIR) {
			return a.notDirectory(abs)
		}
		if err != nil {
			return err
		}
		defer dir.Close()
		return l.dir(dir, position{abs: abs, depth: depth, after: l.after})
	})
	if err != nil {
		return page, a.explain(err, abs)
	}
	page = hutch.FileList{Entries: l.entries}
	if l.more {
		page.Next = makeCursor(l.last)
	}
	if page.Entries == nil {
		page.Entries = []hutch.FileInfo{}
	}
	return page, nil
}

// notDirectory says why a path cannot be opened as a directory: because of its last name,
// or of one before it.
func (a *actor) notDirectory(abs string) error {
	p, err := a.place(abs)
	if err != nil {
		return err
	}
	p.Close()
	return badPath("%s is not a directory", shown(abs))
}

// lister gathers a page.
type lister struct {
	*actor
	ctx   context.Context
	limit int
	after []string // the names on the way to the last entry of the page before

	entries []hutch.FileInfo
	last    string // path of the last entry, relative to the directory listed
	bytes   int
	more    bool // there is something after it
}

// position is where in a tree a lister is.
type position struct {
	abs   string // of the directory
	rel   string // the same, from the directory listed; empty there
	depth int    // levels still to go
	after []string
}

// below is the position of a directory in the one of p.
func (p position) below(name string) position {
	return position{abs: join(p.abs, name), rel: join(p.rel, name), depth: p.depth - 1}
}

// dir lists an open directory and what is below it.
func (l *lister) dir(dir *os.File, at position) error {
	after := ""
	if len(at.after) > 0 {
		// Of the entry itself the page before has told, of what is below it perhaps not.
		after = at.after[0]
		down := at.below(after)
		down.after = at.after[1:]
		if err := l.descend(dir, after, down); err != nil || l.more {
			return err
		}
	}
	for {
		names, more, err := namesAfter(dir, after, min(l.limit-len(l.entries)+1, batch))
		if err != nil {
			return err
		}
		for _, name := range names {
			if l.full() {
				l.more = true
				return nil
			}
			if err := l.entry(dir, name, at.below(name)); err != nil || l.more {
				return err
			}
			after = name
		}
		if !more {
			return nil
		}
	}
}

func (l *lister) full() bool { return len(l.entries) >= l.limit || l.bytes >= maxPage }

// entry takes in one entry of dir and what is below it.
func (l *lister) entry(dir *os.File, name string, at position) error {
	if err := l.ctx.Err(); err != nil {
		return err
	}
	p := place{dir, name}
	st, err := p.lstat()
	if gone(err) {
		return nil // it was there a moment ago
	}
	if err != nil {
		return err
	}
	info := l.info(p, at.abs, st)
	l.entries = append(l.entries, info)
	l.last = at.rel
	l.bytes += weight(info)
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return nil
	}
	return l.descend(dir, name, at)
}

// weight is what an entry takes of a page, without what JSON makes of it.
func weight(info hutch.FileInfo) int {
	n := 300 + 2*len(info.Path) + len(info.LinkTarget)
	if info.Target != nil {
		n += len(info.Target.Path)
	}
	for k, v := range info.Metadata {
		n += len(k) + len(v)
	}
	return n
}

// descend lists the directory name in dir, if that is one, may be read and is wanted.
func (l *lister) descend(dir *os.File, name string, at position) error {
	if at.depth <= 0 || len(at.abs) >= hutch.MaxPathBytes-1 {
		return nil
	}
	f, err := l.openDir(place{dir, name})
	switch {
	case gone(err), errors.Is(err, unix.EACCES), errors.Is(err, unix.ELOOP):
		return nil
	case err != nil:
		return err
	}
	defer f.Close()
	if err = l.dir(f, at); errors.Is(err, unix.EACCES) {
		return nil // its names may be read, and nothing more
	}
	return err
}

// join joins a name to a path that may be empty.
func join(dir, name string) string {
	if dir == "" || strings.HasSuffix(dir, "/") {
		return dir + name
	}
	return dir + "/" + name
}

func makeCursor(rel string) string { return base64.RawURLEncoding.EncodeToString([]byte(rel)) }

// parseCursor is the names in a cursor.
func parseCursor(cursor string) ([]string, error) {
	if cursor == "" {
		return nil, nil
	}
	refused := hutch.FieldErrorf("cursor", "is none that a listing gave")
	if len(cursor) > base64.RawURLEncoding.EncodedLen(2*hutch.MaxPathBytes) {
		return nil, refused
	}
	rel, err := base64.RawURLEncoding.Strict().DecodeString(cursor)
	if err != nil || makeCursor(string(rel)) != cursor { // it does not mind line ends
		return nil, refused
	}
	names := strings.Split(string(rel), "/")
	for _, name := range names {
		if name == "" || name == "." || name == ".." || strings.IndexByte(name, 0) >= 0 {
			return nil, refused
		}
	}
	if len(names) > hutch.MaxListDepth {
		return nil, refused
	}
	return names, nil
}
