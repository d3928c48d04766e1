package files

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/guestapi"
)

// Names of files that a write puts beside its target until it is whole. A watch must not
// report them, and must know of the last ones whether they replaced something; a listing
// leaves them out.
const (
	tempPrefix   = ".hutch-"
	tempNew      = tempPrefix + "new-"    // will be a file where there is none
	tempOld      = tempPrefix + "old-"    // will replace one
	tempUpload   = tempPrefix + "upload-" // the parts of an upload so far
	tempCopy     = tempPrefix + "copy-"   // a tree on its way to another file system
	tempIDLength = 32
)

// isTemp reports whether a name is one of those.
func isTemp(name string) bool {
	if !strings.HasPrefix(name, tempPrefix) {
		return false
	}
	for _, kind := range []string{tempNew, tempOld, tempUpload, tempCopy} {
		if id, ok := strings.CutPrefix(name, kind); ok {
			return len(id) == tempIDLength && strings.Trim(id, "0123456789abcdef") == ""
		}
	}
	return false
}

func tempName(kind string) string {
	var id [tempIDLength / 2]byte
	_, _ = rand.Read(id[:]) // it cannot fail
	return kind + hex.EncodeToString(id[:])
}

// writing is a write under way.
type writing struct {
	*actor
	ctx   context.Context
	q     guestapi.WriteFile
	abs   string // the path as it was asked for
	owner ownership

	to  place        // where the file will be
	old *unix.Stat_t // the file it replaces; nil if there is none

	temp string   // name of the file beside it; empty when there is none any more
	file *os.File // that file
}

// write puts bytes into a file.
func (a *actor) write(ctx context.Context, q guestapi.WriteFile, content io.Reader) (guestapi.WriteReply, error) {
	w := &writing{actor: a, ctx: ctx, q: q}
	var err error
	if w.abs, err = a.absolute(q.Name()); err != nil {
		return guestapi.WriteReply{}, err
	}
	if err = w.check(); err != nil {
		return guestapi.WriteReply{}, err
	}
	if err = a.do(ctx, w.locate); err != nil {
		return guestapi.WriteReply{}, a.explain(err, w.abs)
	}
	defer w.to.Close()
	var reply guestapi.WriteReply
	if q.Upload != "" {
		reply, err = w.part(content)
	} else {
		reply, err = w.whole(content)
	}
	return reply, a.explain(err, w.abs)
}

// check refuses what no write can be.
func (w *writing) check() (err error) {
	if strings.HasSuffix(w.q.Name(), "/") {
		return badPath("%s ends in a slash: it names a directory", shown(w.q.Name()))
	}
	switch up := w.q.Upload; {
	case up == "" && w.q.Offset != 0:
		return hutch.FieldErrorf("offset", "must be 0 without upload")
	case w.q.Offset < 0:
		return hutch.FieldErrorf("offset", "must not be negative")
	case len(up) > 64 || strings.ContainsFunc(up, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '_' && r != '-'
	}):
		return hutch.FieldErrorf("upload", "must be 1 to 64 of A to Z, a to z, 0 to 9, _ and -")
	}
	if w.q.Metadata, err = checkMetadata(w.q.Metadata); err != nil {
		return err
	}
	w.owner, err = w.ownership(w.q.Owner, w.q.Group, w.q.Mode)
	return err
}

// locate finds where the file will be, makes its parents, and asks the kernel whether what
// is there may be changed.
func (w *writing) locate() error {
	p, err := w.place(w.abs)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
		if err = w.parents(w.abs); err != nil {
			return err
		}
		p, err = w.place(w.abs)
	}
	if err != nil {
		return err
	}
	if !w.q.Excl { // else a link in the way is in the way, wherever it leads
		if p, err = w.follow(p); err != nil {
			return err
		}
	}
	w.to = p
	if err := w.examine(); err != nil {
		p.Close()
		return err
	}
	return nil
}

// examine looks at what is in the file's place.
func (w *writing) examine() error {
	st, err := w.to.lstat()
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return err
	}
	switch kind := st.Mode & unix.S_IFMT; {
	case kind == unix.S_IFDIR:
		return unix.EISDIR
	case w.q.Excl:
		return unix.EEXIST
	case kind != unix.S_IFREG:
		return notRegular(w.abs)
	}
	// A rename over it would not ask whether the file itself may be written.
	if err := unix.Faccessat(w.to.fd(), w.to.name, unix.W_OK, unix.AT_EACCESS|unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	if w.q.Mode != nil && !w.root() && st.Uid != w.user.UID {
		return unix.EPERM // as chmod says who is not its owner
	}
	w.old = &st
	return nil
}

// whole writes a file in one call.
func (w *writing) whole(content io.Reader) (reply guestapi.WriteReply, err error) {
	kind := tempNew
	if w.old != nil {
		kind = tempOld
	}
	err = w.do(w.ctx, func() (err error) {
		w.temp = tempName(kind)
		w.file, err = w.open(w.to.fd(), w.temp, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW, 0o600)
		return err
	})
	if err != nil {
		return reply, err
	}
	defer w.file.Close()
	defer w.discard(&err)
	n, err := copyIn(w.file, content)
	if err != nil {
		return reply, err
	}
	return w.finish(n)
}

// discard removes the file beside the target if *err says that it came to nothing.
func (w *writing) discard(err *error) {
	if *err == nil || w.temp == "" {
		return
	}
	ctx := context.WithoutCancel(w.ctx)
	_ = w.do(ctx, func() error { return unix.Unlinkat(w.to.fd(), w.temp, 0) })
}

// copyIn writes all of content to f and says how much it was.
func copyIn(f io.Writer, content io.Reader) (int64, error) {
	buf := chunks.Get().(*[]byte)
	defer chunks.Put(buf)
	var sum int64
	for {
		n, err := fill(content, *buf)
		if n > 0 {
			m, err := f.Write((*buf)[:n])
			sum += int64(m)
			if err != nil {
				return sum, err
			}
		}
		if errors.Is(err, io.EOF) {
			return sum, nil
		}
		if err != nil {
			return sum, cutShort(err)
		}
	}
}

// fill reads until buf is full or r has no more, and returns the reader's own error: that of
// io.ReadFull does not tell an end from one that came too early.
func fill(r io.Reader, buf []byte) (n int, err error) {
	for n < len(buf) && err == nil {
		var m int
		m, err = r.Read(buf[n:])
		n += m
	}
	return n, err
}

// cutShort is content whose sender left before its end.
func cutShort(err error) error {
	return hutch.Wrap(hutch.CodeCancelled, err, "the content ended before it was whole: nothing was changed")
}

// finish gives the file beside the target everything it is to have and puts it in its
// place, size bytes long.
func (w *writing) finish(size int64) (reply guestapi.WriteReply, err error) {
	fd := int(w.file.Fd())
	err = w.do(w.ctx, func() error { return writeMetadata(fd, w.q.Metadata) })
	if err == nil {
		err = w.chown(fd)
	}
	if err == nil {
		err = w.file.Sync()
	}
	if err != nil {
		return reply, err
	}
	err = w.do(w.ctx, func() error {
		if err := w.rename(); err != nil {
			return err
		}
		w.temp = "" // it has its name
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil {
			return err
		}
		info := w.describe(w.abs, st)
		info.Metadata = w.q.Metadata
		reply = guestapi.WriteReply{WriteResult: hutch.WriteResult{Info: &info, Offset: size}}
		return nil
	})
	if err == nil {
		w.syncDir()
	}
	return reply, err
}

// chown gives the file its owner, group and mode: what was asked for by the user's own
// rights, and what the file had that it replaces by the agent's, since whoever may write a
// file leaves it its owner.
func (w *writing) chown(fd int) error {
	mode := uint32(fileMode)
	if w.old != nil {
		if err := unix.Fchown(fd, int(w.old.Uid), int(w.old.Gid)); err != nil {
			return err
		}
		mode = w.old.Mode & allBits
		if !w.root() {
			mode &^= unix.S_ISUID | unix.S_ISGID // as the kernel does when somebody writes
		}
	}
	if w.owner.uid >= 0 || w.owner.gid >= 0 {
		err := w.do(w.ctx, func() error { return unix.Fchown(fd, w.owner.uid, w.owner.gid) })
		if err != nil {
			return err
		}
	}
	if w.q.Mode != nil {
		mode = *w.q.Mode
		return w.do(w.ctx, func() error { return unix.Fchmod(fd, mode) })
	}
	return unix.Fchmod(fd, mode)
}

// rename puts the file in its place.
func (w *writing) rename() error {
	if w.q.Excl {
		return unix.Renameat2(w.to.fd(), w.temp, w.to.fd(), w.to.name, unix.RENAME_NOREPLACE)
	}
	return unix.Renameat(w.to.fd(), w.temp, w.to.fd(), w.to.name)
}

// syncDir makes the new name last. It is the agent that opens the directory: the user need
// not be allowed to read it.
func (w *writing) syncDir() {
	d, err := open(w.to.fd(), ".", unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return // the file is there all the same
	}
	defer d.Close()
	_ = d.Sync() // not every file system can
}
