package ociimage

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"

	"hutch.dev/hutch"
)

// files is the files of an archive, by names relative to it.
type files interface {
	// open opens a regular file and tells its size; fs.ErrNotExist if there is none.
	open(name string) (io.ReadCloser, int64, error)
	size(name string) (int64, bool)
	has(name string) bool
	Close() error
}

// openFiles opens a directory or a tar archive.
func openFiles(ctx context.Context, name string) (files, error) {
	info, err := os.Stat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, hutch.Wrap(hutch.CodeNotFound, err, "there is no archive of that name on the server")
	}
	if err != nil {
		return nil, fmt.Errorf("open archive: %w", err)
	}
	if info.IsDir() {
		root, err := os.OpenRoot(name)
		if err != nil {
			return nil, fmt.Errorf("open archive: %w", err)
		}
		return directory{root}, nil
	}
	if !info.Mode().IsRegular() {
		return nil, hutch.Errorf(hutch.CodeBadRequest, "the archive is neither a file nor a directory")
	}
	return indexTar(ctx, name)
}

// directory is an archive that lies unpacked. Links in it lead nowhere else.
type directory struct{ root *os.Root }

func (d directory) open(name string) (io.ReadCloser, int64, error) {
	f, err := d.root.Open(path.Clean(name))
	if err != nil {
		return nil, 0, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fs.ErrNotExist
	}
	if err != nil {
		f.Close()
		return nil, 0, err
	}
	return f, info.Size(), nil
}

func (d directory) size(name string) (int64, bool) {
	info, err := d.root.Stat(path.Clean(name))
	if err != nil || !info.Mode().IsRegular() {
		return 0, false
	}
	return info.Size(), true
}

func (d directory) has(name string) bool {
	_, ok := d.size(name)
	return ok
}

func (d directory) Close() error { return d.root.Close() }

// maxFiles bounds the files of a tar archive; each blob and tag is one.
const maxFiles = 100_000

// tarball is an archive in one file, with where its files are in it.
type tarball struct {
	f     *os.File
	parts map[string]part
}

// part is a file in a tarball, or a link to one.
type part struct {
	offset, size int64
	link         string // relative to the directory it is in; older archives share layers so
}

// indexTar finds out where the files of a tar archive are. It reads headers only.
func indexTar(ctx context.Context, name string) (*tarball, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("open archive: %w", err)
	}
	t := &tarball{f: f, parts: map[string]part{}}
	if err := t.index(ctx); err != nil {
		f.Close()
		return nil, err
	}
	return t, nil
}

func (t *tarball) index(ctx context.Context) error {
	var head [2]byte
	if _, err := t.f.ReadAt(head[:], 0); err == nil && isGzip(head[:]) {
		return hutch.Errorf(hutch.CodeBadRequest, "the archive is compressed; decompress it (gunzip) and try again")
	}
	// The reader seeks over contents and reads nothing ahead, so that after Next the
	// file's position is where the content begins.
	tr := tar.NewReader(t.f)
	for {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		hdr, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return hutch.Errorf(hutch.CodeBadRequest, "the archive is no whole tar archive: %w", err)
		}
		if len(t.parts) == maxFiles {
			return hutch.Errorf(hutch.CodeTooLarge, "the archive has more than %d files", maxFiles)
		}
		offset, err := t.f.Seek(0, io.SeekCurrent)
		if err != nil {
			return fmt.Errorf("read archive: %w", err)
		}
		name := path.Clean(strings.TrimPrefix(hdr.Name, "/"))
		switch {
		case hdr.Typeflag == tar.TypeReg && !isSparse(hdr):
			t.parts[name] = part{offset: offset, size: hdr.Size}
		case hdr.Typeflag == tar.TypeSymlink:
			t.parts[name] = part{link: hdr.Linkname}
		}
	}
}

// isSparse reports whether a file's content lies in the archive with its holes left out.
// No tool writes archives of images so.
func isSparse(hdr *tar.Header) bool {
	for key := range hdr.PAXRecords {
		if strings.HasPrefix(key, "GNU.sparse.") {
			return true
		}
	}
	return false
}

// find follows links to a file.
func (t *tarball) find(name string) (part, bool) {
	for range 10 {
		name = path.Clean(name)
		p, ok := t.parts[name]
		if !ok || p.link == "" {
			return p, ok
		}
		name = path.Join(path.Dir(name), p.link)
	}
	return part{}, false
}

func (t *tarball) open(name string) (io.ReadCloser, int64, error) {
	p, ok := t.find(name)
	if !ok {
		return nil, 0, fs.ErrNotExist
	}
	return io.NopCloser(io.NewSectionReader(t.f, p.offset, p.size)), p.size, nil
}

func (t *tarball) size(name string) (int64, bool) {
	p, ok := t.find(name)
	return p.size, ok
}

func (t *tarball) has(name string) bool {
	_, ok := t.find(name)
	return ok
}

func (t *tarball) Close() error { return t.f.Close() }
