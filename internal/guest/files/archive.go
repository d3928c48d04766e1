package files

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"path"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/guestapi"
)

const (
	// maxExclude is how many patterns may leave things out of an archive.
	maxExclude = 1000
	// maxHardLinks is how many files with several names are remembered, so that the second
	// name becomes a link in the archive. What is over is stored once more.
	maxHardLinks = 20_000
	// attrRecord is what GNU tar stores an extended attribute under.
	attrRecord = "SCHILY.xattr."
)

// archiver writes a tree as a tar stream.
type archiver struct {
	*actor
	ctx     context.Context
	exclude []string
	root    string // absolute path of the tree
	tar     *tar.Writer
	links   map[inode]string // first name of each file that has several
	buf     []byte
}

type inode struct{ dev, ino uint64 }

func (s *Service) serveArchive(w http.ResponseWriter, r *http.Request) error {
	var q guestapi.ReadArchive
	if err := decode(r.Body, &q); err != nil {
		return err
	}
	a, err := s.actor(q.User)
	if err != nil {
		return err
	}
	abs, err := a.absolute(q.Name())
	if err != nil {
		return err
	}
	if err := checkPatterns(q.Exclude); err != nil {
		return err
	}
	begun := false
	err = a.doTree(r.Context(), func() error {
		dir, st, err := a.openTree(abs)
		if err != nil {
			return err
		}
		defer dir.Close()
		begun = true
		out := newFrames(w)
		if err := out.json(guestapi.FileHead, a.describe(abs, st)); err != nil {
			return nil // the reader left
		}
		ar := archiver{actor: a, ctx: r.Context(), exclude: q.Exclude, root: abs}
		out.end(a.explain(ar.write(dir, st, out, q.Gzip), abs), guestapi.FileEnd{})
		return nil
	})
	if begun {
		return nil
	}
	return a.explain(err, abs)
}

func checkPatterns(patterns []string) error {
	if len(patterns) > maxExclude {
		return hutch.FieldErrorf("exclude", "has more than %d patterns", maxExclude)
	}
	for _, p := range patterns {
		if _, err := path.Match(p, ""); err != nil || len(p) > maxPattern {
			return hutch.FieldErrorf("exclude", "%.80q is not a pattern: %v", p, path.ErrBadPattern)
		}
	}
	return nil
}

// write writes the whole archive of an open directory.
func (ar *archiver) write(dir *os.File, st unix.Stat_t, out frames, zip bool) error {
	buf := chunks.Get().(*[]byte)
	defer chunks.Put(buf)
	copyBuf := chunks.Get().(*[]byte)
	defer chunks.Put(copyBuf)
	frame := &dataWriter{frames: out, buf: *buf, n: frameSpace}
	ar.buf, ar.links = *copyBuf, map[inode]string{}
	var to io.Writer = frame
	var gz *gzip.Writer
	if zip {
		gz, _ = gzip.NewWriterLevel(frame, gzip.BestSpeed) // the level is one
		to = gz
	}
	ar.tar = tar.NewWriter(to)
	w := walker{actor: ar.actor, ctx: ar.ctx, visit: ar.visit, skip: func(rel string, err error) error {
		return ar.explain(err, join(ar.root, rel))
	}}
	if err := w.below(dir, "", st.Dev, 0); err != nil {
		return err
	}
	if err := ar.tar.Close(); err != nil {
		return err
	}
	if gz != nil {
		if err := gz.Close(); err != nil {
			return err
		}
	}
	return frame.drain()
}

// visit puts one file into the archive.
func (ar *archiver) visit(p place, rel string, st unix.Stat_t) (bool, error) {
	if excluded(ar.exclude, rel, p.name) || st.Mode&unix.S_IFMT == unix.S_IFSOCK {
		return false, nil // a socket is nothing without who listens on it
	}
	h := &tar.Header{
		Name:    rel,
		Mode:    int64(st.Mode & allBits),
		Uid:     int(st.Uid),
		Gid:     int(st.Gid),
		Uname:   ar.names().User(st.Uid),
		Gname:   ar.names().Group(st.Gid),
		ModTime: time.Unix(st.Mtim.Unix()),
		Format:  tar.FormatPAX,
	}
	err := ar.entry(h, p, st)
	return true, ar.explain(err, join(ar.root, rel))
}

func excluded(patterns []string, rel, name string) bool {
	for _, p := range patterns {
		for _, what := range []string{rel, name} {
			if ok, _ := path.Match(p, what); ok { // the pattern has been checked
				return true
			}
		}
	}
	return false
}

// entry writes the header of p, completed, and the content.
func (ar *archiver) entry(h *tar.Header, p place, st unix.Stat_t) error {
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		return ar.file(h, p, st)
	case unix.S_IFDIR:
		h.Typeflag = tar.TypeDir
		h.Name += "/"
		h.PAXRecords = attrRecords(readMetadata(join(ar.root, strings.TrimSuffix(h.Name, "/"))))
	case unix.S_IFLNK:
		target, err := readlink(p.fd(), p.name)
		if err != nil {
			return err
		}
		h.Typeflag, h.Linkname = tar.TypeSymlink, target
	case unix.S_IFIFO:
		h.Typeflag = tar.TypeFifo
	case unix.S_IFBLK, unix.S_IFCHR:
		h.Typeflag = tar.TypeChar
		if st.Mode&unix.S_IFMT == unix.S_IFBLK {
			h.Typeflag = tar.TypeBlock
		}
		h.Devmajor, h.Devminor = int64(unix.Major(st.Rdev)), int64(unix.Minor(st.Rdev))
	default:
		return nil
	}
	return ar.tar.WriteHeader(h)
}

// file writes a regular file, or a link to the name it is already in the archive under.
func (ar *archiver) file(h *tar.Header, p place, st unix.Stat_t) error {
	id := inode{st.Dev, st.Ino}
	if first, ok := ar.links[id]; ok {
		h.Typeflag, h.Linkname = tar.TypeLink, first
		return ar.tar.WriteHeader(h)
	}
	f, err := ar.open(p.fd(), p.name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		if errors.Is(err, unix.ENOENT) {
			return nil // removed since
		}
		return err
	}
	defer f.Close()
	// What has been opened counts: another file may have taken the name.
	if err := unix.Fstat(int(f.Fd()), &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
		return err
	}
	h.Typeflag, h.Size, h.Mode = tar.TypeReg, st.Size, int64(st.Mode&allBits)
	h.PAXRecords = attrRecords(readMetadata(join(ar.root, h.Name)))
	if err := ar.tar.WriteHeader(h); err != nil {
		return err
	}
	if st.Nlink > 1 && len(ar.links) < maxHardLinks {
		ar.links[id] = h.Name
	}
	// No more than the header says: logs grow while they are read.
	n, err := io.CopyBuffer(struct{ io.Writer }{ar.tar}, io.LimitReader(untilDone{ar.ctx, f}, st.Size), ar.buf)
	if err == nil && n < st.Size {
		return hutch.Errorf(hutch.CodeConflict, "%s became shorter while it was read", shown(join(ar.root, h.Name)))
	}
	return err
}

func attrRecords(metadata map[string]string) map[string]string {
	if len(metadata) == 0 {
		return nil
	}
	records := make(map[string]string, len(metadata))
	for k, v := range metadata {
		if !strings.Contains(k, "=") { // which would end the record's name
			records[attrRecord+hutch.MetadataPrefix+k] = v
		}
	}
	return records
}
