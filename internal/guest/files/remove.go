package files

import (
	"context"
	"errors"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/guestapi"
)

// remove removes what is at a path.
func (a *actor) remove(ctx context.Context, q guestapi.RemoveFile) (struct{}, error) {
	var none struct{}
	abs, err := a.absolute(q.Name())
	if err != nil {
		return none, err
	}
	if abs == "/" {
		return none, badPath("the root directory cannot be removed")
	}
	err = a.do(ctx, func() error {
		p, err := a.place(abs)
		if err != nil {
			return err
		}
		defer p.Close()
		return a.removeAt(ctx, p, q.Recursive)
	})
	if q.Missing && gone(err) {
		return none, nil
	}
	return none, a.explain(err, abs)
}

// removeAt removes p, and what is in it if that is wanted.
func (a *actor) removeAt(ctx context.Context, p place, recursive bool) error {
	err := unix.Unlinkat(p.fd(), p.name, 0)
	if err == nil || errors.Is(err, unix.ENOENT) {
		return err
	}
	st, statErr := p.lstat()
	if statErr != nil || st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return err
	}
	if !recursive {
		return unix.Unlinkat(p.fd(), p.name, unix.AT_REMOVEDIR)
	}
	return a.removeTree(ctx, p, 0)
}

// removeTree removes the directory p with all that can be removed in it, and says what
// could not be first. It holds one directory open for each level.
func (a *actor) removeTree(ctx context.Context, p place, depth int) error {
	if depth > maxWalkDepth {
		return hutch.Errorf(hutch.CodeBadRequest, "directories are nested more than %d levels deep: remove them from inside", maxWalkDepth)
	}
	err := unix.Unlinkat(p.fd(), p.name, unix.AT_REMOVEDIR)
	if err == nil || errors.Is(err, unix.ENOENT) {
		return nil
	}
	dir, openErr := a.openDir(p)
	if openErr != nil {
		return openErr
	}
	err = a.empty(ctx, dir, depth)
	dir.Close()
	if err != nil {
		return err
	}
	if err = unix.Unlinkat(p.fd(), p.name, unix.AT_REMOVEDIR); errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}

// empty removes what is in a directory. Removing while it reads could make it miss names, so
// it begins again until it has seen that none are left, or none that it could remove.
func (a *actor) empty(ctx context.Context, dir *os.File, depth int) error {
	buf := chunks.Get().(*[]byte)
	defer chunks.Put(buf)
	var names []string
	for {
		var failed error
		removed := 0
		if _, err := dir.Seek(0, io.SeekStart); err != nil {
			return err
		}
		for {
			n, err := unix.ReadDirent(int(dir.Fd()), *buf)
			if err != nil && !errors.Is(err, unix.EINTR) {
				return err
			}
			if n <= 0 && err == nil {
				break
			}
			_, _, names = unix.ParseDirent((*buf)[:max(n, 0)], -1, names[:0])
			for _, name := range names {
				if err := ctx.Err(); err != nil {
					return err
				}
				err := a.removeOne(ctx, place{dir, name}, depth)
				if err == nil {
					removed++
				} else if failed == nil {
					failed = err
				}
			}
		}
		if removed == 0 {
			return failed
		}
	}
}

// removeOne removes one name in a directory that is being emptied.
func (a *actor) removeOne(ctx context.Context, p place, depth int) error {
	err := unix.Unlinkat(p.fd(), p.name, 0)
	if errors.Is(err, unix.EISDIR) || errors.Is(err, unix.EPERM) {
		st, statErr := p.lstat()
		if statErr == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR {
			return a.removeTree(ctx, p, depth+1)
		}
	}
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}
