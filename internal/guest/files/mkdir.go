package files

import (
	"context"
	"errors"
	"path"

	"golang.org/x/sys/unix"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/guestapi"
)

// Modes of what nobody gave one.
const (
	dirMode  = 0o755
	fileMode = 0o644
	allBits  = 0o7777
)

// ownership is what a request says of owner, group and mode.
type ownership struct {
	uid, gid int // -1 = not said
	mode     *uint32
}

// ownership reads a request's owner, group and mode.
func (a *actor) ownership(owner, group string, mode *uint32) (o ownership, err error) {
	o = ownership{uid: -1, gid: -1, mode: mode}
	if mode != nil && *mode > allBits {
		return o, hutch.FieldErrorf("mode", "%#o has bits beyond 07777", *mode)
	}
	if owner != "" {
		uid, err := a.svc.cfg.Accounts.UserID("owner", owner)
		if err != nil {
			return o, err
		}
		o.uid = int(uid)
	}
	if group != "" {
		gid, err := a.svc.cfg.Accounts.GroupID("group", group)
		if err != nil {
			return o, err
		}
		o.gid = int(gid)
	}
	return o, nil
}

// mkdir makes a directory and its parents.
func (a *actor) mkdir(ctx context.Context, m guestapi.MakeDir) (info hutch.FileInfo, err error) {
	abs, err := a.absolute(m.Name())
	if err != nil {
		return info, err
	}
	o, err := a.ownership(m.Owner, m.Group, m.Mode)
	if err != nil {
		return info, err
	}
	err = a.do(ctx, func() error {
		made, err := a.mkdirAll(abs, o)
		if err != nil {
			return err
		}
		if !made && !m.Exists {
			return unix.EEXIST
		}
		info, err = a.stat(abs)
		return err
	})
	return info, a.explain(err, abs)
}

// parents makes the directories that lack above an absolute path, as all directories are
// that nobody said more about.
func (a *actor) parents(abs string) error {
	_, err := a.mkdirAll(path.Dir(abs), ownership{uid: -1, gid: -1})
	return err
}

// mkdirAll makes the directories of an absolute path that lack, and says whether there were
// any. If one cannot be made as it was asked for, those that were are removed again.
func (a *actor) mkdirAll(abs string, o ownership) (made bool, err error) {
	var lack []string
	for dir := abs; ; dir = path.Dir(dir) {
		f, err := a.open(unix.AT_FDCWD, dir, unix.O_PATH|unix.O_DIRECTORY, 0)
		if err == nil {
			err = a.makeBelow(place{f, "."}, lack, o)
			return len(lack) > 0, err
		}
		if errors.Is(err, unix.ENOTDIR) {
			return false, badPath("%s is not a directory", shown(dir))
		}
		if !errors.Is(err, unix.ENOENT) || dir == "/" {
			return false, err
		}
		lack = append(lack, path.Base(dir))
	}
}

// makeBelow makes the directories lack, the last one first, each in the one before. It
// takes at.
func (a *actor) makeBelow(at place, lack []string, o ownership) error {
	made := make([]place, 0, len(lack))
	defer func() {
		at.Close()
		for _, p := range made {
			p.Close()
		}
	}()
	for i := len(lack) - 1; i >= 0; i-- {
		p := place{at.dir, lack[i]}
		next, err := a.makeOne(p, o)
		if err != nil {
			for ; len(made) > 0; made = made[:len(made)-1] {
				last := made[len(made)-1]
				_ = unix.Unlinkat(last.fd(), last.name, unix.AT_REMOVEDIR) // somebody uses it: it stays
				last.Close()
			}
			return err
		}
		made = append(made, p)
		at = next
	}
	return nil
}

// makeOne makes the directory p, and opens it.
func (a *actor) makeOne(p place, o ownership) (place, error) {
	mode := uint32(dirMode)
	if o.mode != nil {
		mode = *o.mode
	}
	err := unix.Mkdirat(p.fd(), p.name, mode)
	exists := errors.Is(err, unix.EEXIST) // made by somebody else meanwhile, or a link that leads nowhere
	if err != nil && !exists {
		return place{}, err
	}
	// Whoever may write to the directory above can have put something else there since.
	f, err := a.open(p.fd(), p.name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ELOOP) {
		err = badPath("%s is in the way and is not a directory", shown(p.name))
	}
	if exists || err != nil {
		return place{f, "."}, err
	}
	if err := a.settle(made{f}, o, mode); err != nil {
		f.Close()
		_ = unix.Unlinkat(p.fd(), p.name, unix.AT_REMOVEDIR)
		return place{}, err
	}
	return place{f, "."}, nil
}

// settle gives a directory that was just made its owner, group and mode.
func (a *actor) settle(m made, o ownership, mode uint32) error {
	st, err := m.of(a, unix.S_IFDIR)
	if err != nil {
		return err
	}
	if o.uid >= 0 || o.gid >= 0 {
		if err := m.chown(o.uid, o.gid); err != nil {
			return err
		}
	}
	if st.Mode&allBits == mode && o.uid < 0 && o.gid < 0 {
		return nil
	}
	return m.chmod(mode) // also when nobody asked: the mode so far is what the umask left of it
}
