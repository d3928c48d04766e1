package files

import (
	"context"
	"errors"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/guestapi"
)

// move renames a file or a directory.
func (a *actor) move(ctx context.Context, m guestapi.MoveFile) (info hutch.FileInfo, err error) {
	from, err := a.absolute(m.From.Name())
	if err != nil {
		return info, aboutField(err, "from")
	}
	to, err := a.absolute(m.To.Name())
	if err != nil {
		return info, aboutField(err, "to")
	}
	switch {
	case from == "/":
		return info, hutch.FieldErrorf("from", "the root directory cannot be moved")
	case strings.HasPrefix(to, from+"/"):
		return info, hutch.FieldErrorf("to", "%s is inside of %s, which is to be moved", shown(to), shown(from))
	}
	about, field := from, "from"
	err = a.do(ctx, func() error {
		src, err := a.place(from)
		if err != nil {
			return err
		}
		defer src.Close()
		if _, err := src.lstat(); err != nil {
			return err
		}
		about, field = to, "to"
		dst, err := a.place(to)
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
			if err := a.parents(to); err != nil {
				return err
			}
			dst, err = a.place(to)
		}
		if err != nil {
			return err
		}
		defer dst.Close()
		if err := a.rename(ctx, src, dst, m.Excl); err != nil {
			return err
		}
		info, err = a.stat(to)
		return err
	})
	return info, aboutField(a.explain(err, about), field)
}

// aboutField makes a bad_request about the path one about field, which is what the path is
// called in this call.
func aboutField(err error, field string) error {
	var he *hutch.Error
	if errors.As(err, &he) && he.Field == "path" {
		he.Field = field
		he.Message = field + strings.TrimPrefix(he.Message, "path")
	}
	return err
}

// rename renames, and copies where the kernel does not: between file systems, and for
// directories of the image that lie below the sandbox's own layer.
func (a *actor) rename(ctx context.Context, src, dst place, excl bool) error {
	var flags uint
	if excl {
		flags = unix.RENAME_NOREPLACE
	}
	err := unix.Renameat2(src.fd(), src.name, dst.fd(), dst.name, flags)
	if !errors.Is(err, unix.EXDEV) {
		return err
	}
	if _, err := dst.lstat(); err == nil && excl {
		return unix.EEXIST // before all of it is copied
	}
	temp := place{dst.dir, tempName(tempCopy)}
	c := copier{actor: a, ctx: ctx}
	if err := c.copy(src, temp, 0); err != nil {
		_ = a.removeAt(context.WithoutCancel(ctx), temp, true)
		return err
	}
	if err := unix.Renameat2(temp.fd(), temp.name, dst.fd(), dst.name, flags); err != nil {
		_ = a.removeAt(context.WithoutCancel(ctx), temp, true)
		return err
	}
	return a.removeAt(context.WithoutCancel(ctx), src, true)
}

// copier copies a tree as mv(1) does between file systems: with modes, times, links and
// metadata, and with owners as far as the user may give them.
type copier struct {
	*actor
	ctx context.Context
}

// copy copies src to dst, which does not exist.
func (c *copier) copy(src, dst place, depth int) error {
	if err := c.ctx.Err(); err != nil {
		return err
	}
	st, err := src.lstat()
	if err != nil {
		return err
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		return c.file(src, dst, st)
	case unix.S_IFDIR:
		return c.dir(src, dst, st, depth)
	case unix.S_IFLNK:
		var target string
		if target, err = readlink(src.fd(), src.name); err == nil {
			err = unix.Symlinkat(target, dst.fd(), dst.name)
		}
	case unix.S_IFSOCK:
		return hutch.Errorf(hutch.CodeUnsupported, "%s is a socket: it cannot be moved to another file system", shown(src.name))
	default:
		err = unix.Mknodat(dst.fd(), dst.name, st.Mode, int(st.Rdev))
	}
	if err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT == unix.S_IFLNK {
		return linkLikeness(dst, st)
	}
	f, err := c.open(dst.fd(), dst.name, unix.O_PATH|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	return c.likeness(made{f}, st)
}

// linkLikeness gives a copy of a link its owner and times; it has no mode. It goes by the
// name, but never to where a link leads: gVisor's calls on the descriptor of one do.
func linkLikeness(p place, st unix.Stat_t) error {
	err := unix.Fchownat(p.fd(), p.name, int(st.Uid), int(st.Gid), unix.AT_SYMLINK_NOFOLLOW)
	if err != nil && !errors.Is(err, unix.EPERM) {
		return err
	}
	return unix.UtimesNanoAt(p.fd(), p.name, []unix.Timespec{st.Atim, st.Mtim}, unix.AT_SYMLINK_NOFOLLOW)
}

// likeness gives a copy, which is no link, the owner, mode and times of what it is a copy of.
func (c *copier) likeness(m made, st unix.Stat_t) error {
	if _, err := m.of(c.actor, st.Mode&unix.S_IFMT); err != nil {
		return err
	}
	mode := st.Mode & allBits
	err := m.chown(int(st.Uid), int(st.Gid))
	if errors.Is(err, unix.EPERM) { // it is the user's own then, and does not run as another
		mode &^= unix.S_ISUID | unix.S_ISGID
	} else if err != nil {
		return err
	}
	if err := m.chmod(mode); err != nil {
		return err
	}
	return m.times(st)
}

func (c *copier) file(src, dst place, st unix.Stat_t) error {
	in, err := c.open(src.fd(), src.name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := c.open(dst.fd(), dst.name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	defer out.Close()
	buf := chunks.Get().(*[]byte)
	defer chunks.Put(buf)
	// Not by the file's own ReadFrom, which would not end with the context.
	if _, err := io.CopyBuffer(struct{ io.Writer }{out}, untilDone{c.ctx, in}, *buf); err != nil {
		return err
	}
	name, err := realPath(in)
	if err != nil {
		return err
	}
	if err := writeMetadata(int(out.Fd()), readMetadata(name)); err != nil {
		return err
	}
	if err := out.Sync(); err != nil {
		return err
	}
	return c.likeness(made{out}, st)
}

// untilDone is a file that is not read further when a context has ended.
type untilDone struct {
	ctx context.Context
	f   *os.File
}

// Read implements io.Reader.
func (u untilDone) Read(p []byte) (int, error) {
	if err := u.ctx.Err(); err != nil {
		return 0, err
	}
	return u.f.Read(p)
}

func (c *copier) dir(src, dst place, st unix.Stat_t, depth int) error {
	if depth > maxWalkDepth {
		return hutch.Errorf(hutch.CodeBadRequest, "directories are nested more than %d levels deep", maxWalkDepth)
	}
	in, err := c.openDir(src)
	if err != nil {
		return err
	}
	defer in.Close()
	if err := unix.Mkdirat(dst.fd(), dst.name, 0o700); err != nil {
		return err
	}
	out, err := c.openDir(dst)
	if err != nil {
		return err
	}
	defer out.Close()
	if _, err := (made{out}).of(c.actor, unix.S_IFDIR); err != nil {
		return err
	}
	if name, err := realPath(in); err == nil {
		if err := writeMetadata(int(out.Fd()), readMetadata(name)); err != nil {
			return err
		}
	}
	after := ""
	for {
		names, more, err := namesAfter(in, after, batch)
		if err != nil {
			return err
		}
		for _, name := range names {
			if err := c.copy(place{in, name}, place{out, name}, depth+1); err != nil {
				return err
			}
			after = name
		}
		if !more {
			return c.likeness(made{out}, st)
		}
	}
}
