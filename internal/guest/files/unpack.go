package files

import (
	"archive/tar"
	"bufio"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/guestapi"
)

const (
	// maxSkipped is how many entries are named that cannot be files here.
	maxSkipped = 100
	// maxLateDirs is how many directories get their times and modes at the end, when
	// nothing is put into them any more. What is over gets them at once.
	maxLateDirs = 50_000
)

// unpacker unpacks a tar stream below a directory. The kernel resolves every name beneath
// it (RESOLVE_BENEATH), so no name and no link in it leads out, whatever else is changed
// there meanwhile. An os.Root does not do: in gVisor the opens it makes follow links.
type unpacker struct {
	*actor
	ctx    context.Context
	abs    string
	root   *os.File
	keep   bool // owners as the archive has them
	late   []lateDir
	result hutch.ArchiveResult
	buf    []byte
}

// lateDir is a directory that has not got its mode and time yet.
type lateDir struct {
	name     string
	dev, ino uint64 // it may not be what has the name by then
	mode     uint32
	time     time.Time
}

// unpack unpacks an archive.
func (a *actor) unpack(ctx context.Context, q guestapi.WriteArchive, content io.Reader) (hutch.ArchiveResult, error) {
	u := &unpacker{actor: a, ctx: ctx, keep: q.KeepOwner}
	var err error
	if u.abs, err = a.absolute(q.Name()); err != nil {
		return u.result, err
	}
	if q.KeepOwner && !a.root() {
		return u.result, hutch.Errorf(hutch.CodeForbidden, "only root may give files to others: unpack as root, or without keeping the owners")
	}
	err = a.doTree(ctx, func() error {
		if err := a.parents(join(u.abs, ".")); err != nil {
			return err
		}
		var err error
		if u.root, _, err = a.openTree(u.abs); err != nil {
			return err
		}
		defer u.root.Close()
		return u.all(content)
	})
	return u.result, a.explain(err, u.abs)
}

// all unpacks every entry.
func (u *unpacker) all(content io.Reader) error {
	buf := chunks.Get().(*[]byte)
	defer chunks.Put(buf)
	u.buf = *buf
	plain, err := decompressed(content)
	if err != nil {
		return err
	}
	archive := tar.NewReader(plain)
	for {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return malformed(err)
		}
		if err := u.ctx.Err(); err != nil {
			return err
		}
		if err := u.entry(h, archive); err != nil {
			return u.explain(err, join(u.abs, h.Name))
		}
	}
	// To the end, where gzip has its checksum and a sender who left is noticed.
	if _, err := io.CopyBuffer(io.Discard, plain, u.buf); err != nil {
		return malformed(err)
	}
	return u.finishDirs()
}

// decompressed is content without the gzip around it, if there is one.
func decompressed(content io.Reader) (io.Reader, error) {
	r := bufio.NewReaderSize(content, chunkSize)
	if magic, _ := r.Peek(2); len(magic) < 2 || magic[0] != 0x1f || magic[1] != 0x8b {
		return r, nil
	}
	z, err := gzip.NewReader(r)
	if err != nil {
		return nil, malformed(err)
	}
	return z, nil
}

// malformed is an archive that cannot be read on.
func malformed(err error) error {
	if errors.Is(err, tar.ErrHeader) || errors.Is(err, gzip.ErrHeader) || errors.Is(err, gzip.ErrChecksum) || errors.Is(err, io.ErrUnexpectedEOF) {
		return hutch.Wrap(hutch.CodeBadRequest, err, "the content is not a whole tar archive, plain or compressed with gzip")
	}
	return hutch.Wrap(hutch.CodeBadRequest, err, "the archive could not be read to its end")
}

// entryName is the name of an entry relative to where it is unpacked; "." is that directory.
// One that would lead out of it is refused.
func entryName(name string) (string, error) {
	switch {
	case strings.IndexByte(name, 0) >= 0 || name == "":
		return "", hutch.Errorf(hutch.CodeBadRequest, "the archive has an entry with an impossible name, %s", shown(name))
	case strings.HasPrefix(name, "/"):
		return "", hutch.Errorf(hutch.CodeBadRequest, "the archive has an absolute name, %s: make it with relative names", shown(name))
	}
	for part := range strings.SplitSeq(name, "/") {
		if part == ".." {
			return "", hutch.Errorf(hutch.CodeBadRequest, "the archive has a name that leads out of its directory, %s", shown(name))
		}
	}
	return path.Clean(name), nil
}

// entry unpacks one entry.
func (u *unpacker) entry(h *tar.Header, content io.Reader) error {
	if h.Typeflag == tar.TypeXGlobalHeader {
		return nil
	}
	name, err := entryName(h.Name)
	if err != nil {
		return err
	}
	if h.Typeflag == tar.TypeDir {
		return u.dir(name, h)
	}
	if name == "." {
		return u.skip(h, "it has the name of the directory itself")
	}
	p, err := u.parent(name)
	if err != nil {
		return err
	}
	defer p.Close()
	switch h.Typeflag {
	case tar.TypeReg:
		err = u.file(p, h, content)
	case tar.TypeSymlink:
		if h.Linkname == "" || strings.IndexByte(h.Linkname, 0) >= 0 {
			return u.skip(h, "it is a link to nothing")
		}
		err = u.symlink(p, h)
	case tar.TypeLink:
		err = u.link(p, h)
	case tar.TypeChar, tar.TypeBlock, tar.TypeFifo:
		return u.skip(h, "it is a device or a pipe")
	default:
		return u.skip(h, fmt.Sprintf("its type %q is not known", h.Typeflag))
	}
	if err == nil {
		u.result.Files++
	}
	return err
}

// beneath opens what a name leads to, within the directory that is unpacked into.
func (u *unpacker) beneath(name string, flags uint64) (*os.File, error) {
	f, err := asFile(name)(openat2(int(u.root.Fd()), name, unix.OpenHow{Flags: flags, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_MAGICLINKS}))
	switch {
	case errors.Is(err, unix.EXDEV):
		err = hutch.Wrap(hutch.CodeBadRequest, err, "the archive has a name that leads out of its directory by a link, %s", shown(name))
	case errors.Is(err, unix.ENOTDIR):
		err = hutch.Wrap(hutch.CodeConflict, err, "a part of %s is a file here and a directory in the archive", shown(name))
	}
	return f, err
}

// directory opens the directory of a name, and makes it and its parents if they lack.
func (u *unpacker) directory(name string) (*os.File, error) {
	f, err := u.beneath(name, unix.O_PATH|unix.O_DIRECTORY)
	if name == "." || !errors.Is(err, unix.ENOENT) {
		return f, err
	}
	parent, err := u.directory(path.Dir(name))
	if err != nil {
		return nil, err
	}
	defer parent.Close()
	next, err := u.makeOne(place{parent, path.Base(name)}, ownership{uid: -1, gid: -1})
	if err != nil {
		return nil, err
	}
	return next.dir, nil // that very one, whatever has its name by now
}

// parent is the place of a name in its directory.
func (u *unpacker) parent(name string) (place, error) {
	dir, err := u.directory(path.Dir(name))
	return place{dir, path.Base(name)}, err
}

// skip notes an entry that cannot be a file here.
func (u *unpacker) skip(h *tar.Header, why string) error {
	if len(u.result.Skipped) < maxSkipped {
		name, _ := lossless(h.Name)
		u.result.Skipped = append(u.result.Skipped, fmt.Sprintf("%.300s: %s", name, why))
	}
	return nil
}

// dir makes a directory, or takes the one that is there.
func (u *unpacker) dir(name string, h *tar.Header) error {
	f, err := u.directory(name)
	if err != nil {
		return err
	}
	defer f.Close()
	if name == "." {
		return nil // whose it is was decided before
	}
	if u.keep {
		if err := unix.Fchownat(int(f.Fd()), "", h.Uid, h.Gid, unix.AT_EMPTY_PATH); err != nil {
			return err
		}
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return err
	}
	late := lateDir{name, st.Dev, st.Ino, uint32(h.Mode) & allBits, h.ModTime}
	if len(u.late) < maxLateDirs {
		u.late = append(u.late, late)
		return nil
	}
	return u.finishDir(late)
}

// finishDirs gives directories what would keep others from being put into them, the inner
// ones first.
func (u *unpacker) finishDirs() error {
	for i := len(u.late) - 1; i >= 0; i-- {
		if err := u.finishDir(u.late[i]); err != nil {
			return err
		}
	}
	return nil
}

func (u *unpacker) finishDir(d lateDir) error {
	f, err := u.beneath(d.name, unix.O_RDONLY|unix.O_DIRECTORY)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, hutch.ErrConflict) {
		return nil // a later entry put something else there
	}
	if err != nil {
		return err
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil || st.Dev != d.dev || st.Ino != d.ino {
		return err // another one is nobody's to change
	}
	if err := unix.Fchmod(int(f.Fd()), d.mode); err != nil {
		return err
	}
	return times(int(f.Fd()), d.time)
}

// times sets when an open file was changed; an archive need not say.
func times(fd int, t time.Time) error {
	if t.IsZero() || t.Unix() == 0 {
		return nil
	}
	ts, err := unix.TimeToTimespec(t)
	if err != nil {
		return nil //nolint:nilerr // a time that no file can have
	}
	return unix.UtimesNanoAt(fd, "", []unix.Timespec{ts, ts}, unix.AT_EMPTY_PATH)
}
