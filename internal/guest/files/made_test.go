package files

import (
	"context"
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"hutch.dev/hutch"
)

// raced is a directory in which somebody else puts links to a secret in the place of what
// root has just made.
type raced struct {
	root   *actor
	dir    *os.File
	secret string
}

func newRaced(t *testing.T) raced {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("acting for others needs root")
	}
	r := raced{root: &actor{}, secret: t.TempDir() + "/secret"}
	if err := os.Mkdir(r.secret, 0o700); err != nil {
		t.Fatal(err)
	}
	var err error
	if r.dir, err = os.Open(t.TempDir()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.dir.Close() })
	return r
}

// swap puts a link to the secret in the place of a name.
func (r raced) swap(t *testing.T, p place) {
	t.Helper()
	_ = unix.Unlinkat(p.fd(), p.name, unix.AT_REMOVEDIR)
	_ = unix.Unlinkat(p.fd(), p.name, 0)
	if err := unix.Symlinkat(r.secret, p.fd(), p.name); err != nil {
		t.Fatal(err)
	}
}

// untouched fails the test if the secret is no longer what it was.
func (r raced) untouched(t *testing.T) {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(r.secret, &st); err != nil || st.Mode != unix.S_IFDIR|0o700 || st.Uid != 0 {
		t.Errorf("the secret has mode %#o and owner %d: %v", st.Mode, st.Uid, err)
	}
}

func TestWhatIsMadeIsNotFoundByName(t *testing.T) {
	const stranger = 61001
	mode := uint32(0o777)
	asked := ownership{uid: stranger, gid: stranger, mode: &mode}
	st := unix.Stat_t{Mode: unix.S_IFDIR | 0o777, Uid: stranger, Gid: stranger}

	t.Run("a directory, swapped while it is open", func(t *testing.T) {
		r := newRaced(t)
		p := place{r.dir, "x"}
		if err := unix.Mkdirat(p.fd(), p.name, 0o700); err != nil {
			t.Fatal(err)
		}
		f, err := r.root.openDir(p)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		r.swap(t, p)
		if err := r.root.settle(made{f}, asked, mode); err != nil {
			t.Error(err)
		}
		r.untouched(t)
	})
	t.Run("a copy, swapped while it is open", func(t *testing.T) {
		r := newRaced(t)
		p := place{r.dir, "x"}
		if err := unix.Mkdirat(p.fd(), p.name, 0o700); err != nil {
			t.Fatal(err)
		}
		f, err := r.root.openDir(p)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		r.swap(t, p)
		c := copier{actor: r.root, ctx: t.Context()}
		if err := c.likeness(made{f}, st); err != nil {
			t.Error(err)
		}
		r.untouched(t)
	})
	t.Run("a directory, swapped before it is opened", func(t *testing.T) {
		r := newRaced(t)
		p := place{r.dir, "x"}
		r.swap(t, p)
		for name, o := range map[string]ownership{"asked": asked, "not": {uid: -1, gid: -1}} {
			next, err := r.root.makeOne(p, o)
			if err == nil {
				next.Close()
			}
			if !errors.Is(err, hutch.ErrBadRequest) {
				t.Errorf("%s: %v", name, err)
			}
		}
		r.untouched(t)
	})
	t.Run("somebody else's directory", func(t *testing.T) {
		r := newRaced(t)
		if err := os.Chown(r.secret, stranger, stranger); err != nil {
			t.Fatal(err)
		}
		f, err := os.Open(r.secret)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if err := r.root.settle(made{f}, ownership{uid: 0, gid: 0}, mode); !errors.Is(err, hutch.ErrConflict) {
			t.Errorf("mkdir: %v", err)
		}
		if err := (&copier{actor: r.root, ctx: t.Context()}).likeness(made{f}, st); !errors.Is(err, hutch.ErrConflict) {
			t.Errorf("move: %v", err)
		}
		if got, err := os.Stat(r.secret); err != nil || got.Mode().Perm() != 0o700 {
			t.Errorf("it has mode %v now: %v", got.Mode(), err)
		}
	})
	t.Run("a directory from an archive, swapped before its mode is set", func(t *testing.T) {
		r := newRaced(t)
		above, err := os.Open(r.secret + "/..")
		if err != nil {
			t.Fatal(err)
		}
		defer above.Close()
		u := unpacker{actor: r.root, ctx: t.Context(), root: above}
		f, err := u.directory("x")
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		var was unix.Stat_t
		if err := unix.Fstat(int(f.Fd()), &was); err != nil {
			t.Fatal(err)
		}
		_ = unix.Unlinkat(int(above.Fd()), "x", unix.AT_REMOVEDIR)
		if err := unix.Symlinkat("secret", int(above.Fd()), "x"); err != nil {
			t.Fatal(err)
		}
		if err := u.finishDir(lateDir{name: "x", dev: was.Dev, ino: was.Ino, mode: 0o777}); err != nil {
			t.Error(err)
		}
		r.untouched(t)
	})
}

// Racing for real, as a program inside would: root makes a directory where another thread
// swaps whatever is there for a link.
func TestMakingDirectoriesIsNotWonByLinks(t *testing.T) {
	r := newRaced(t)
	p := place{r.dir, "x"}
	ctx, cancel := context.WithCancel(t.Context())
	racing := make(chan struct{})
	go func() {
		defer close(racing)
		for ctx.Err() == nil {
			if unix.Unlinkat(p.fd(), p.name, unix.AT_REMOVEDIR) == nil {
				_ = unix.Symlinkat(r.secret, p.fd(), p.name)
			}
		}
	}()
	mode := uint32(0o777)
	for range 20_000 {
		next, err := r.root.makeOne(p, ownership{uid: -1, gid: -1, mode: &mode})
		if err == nil {
			next.Close()
		}
		_ = unix.Unlinkat(p.fd(), p.name, 0)
	}
	cancel()
	<-racing
	r.untouched(t)
}
