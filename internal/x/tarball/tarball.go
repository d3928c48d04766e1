// Package tarball packs a directory of this machine into a tar stream, and unpacks one
// below a directory.
//
// It owns what may happen on the way: nothing is written outside of the directory, whatever
// names and links the stream has; every directory, file and link is there afterwards, or named
// in the list of what was skipped. It knows no owners: files become the caller's own, and
// lose the bits that lend an owner's rights.
//
// Start with [Pack] and [Unpack].
package tarball

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"
)

// Pack writes what is in dir to w, names relative to it, but for what matches a pattern of
// path.Match by its name or its path within. It lists what cannot be packed: sockets and devices.
func Pack(w io.Writer, dir string, exclude []string) (skipped []string, err error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	defer func() { _ = root.Close() }()
	tw := tar.NewWriter(w)
	err = fs.WalkDir(root.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case name == ".":
			return nil
		}
		out, err := excluded(exclude, name)
		switch {
		case err != nil:
			return err
		case out && d.IsDir():
			return fs.SkipDir
		case out:
			return nil
		case !d.IsDir() && !d.Type().IsRegular() && d.Type() != fs.ModeSymlink:
			skipped = append(skipped, fmt.Sprintf("%s (%s)", name, kind(d.Type())))
			return nil
		}
		return pack(tw, root, name, d)
	})
	if err != nil {
		return skipped, err
	}
	return skipped, tw.Close()
}

func excluded(patterns []string, name string) (bool, error) {
	for _, p := range patterns {
		for _, s := range []string{name, path.Base(name)} {
			ok, err := path.Match(p, s)
			if err != nil {
				return false, fmt.Errorf("pattern %q: %w", p, err)
			}
			if ok {
				return true, nil
			}
		}
	}
	return false, nil
}

func kind(m fs.FileMode) string {
	switch {
	case m&fs.ModeSocket != 0:
		return "a socket"
	case m&fs.ModeNamedPipe != 0:
		return "a pipe"
	}
	return "a device"
}

// pack writes one entry.
func pack(tw *tar.Writer, root *os.Root, name string, d fs.DirEntry) error {
	info, err := d.Info()
	if err != nil {
		return err
	}
	link := ""
	if d.Type() == fs.ModeSymlink {
		if link, err = root.Readlink(name); err != nil {
			return err
		}
	}
	h, err := tar.FileInfoHeader(info, link)
	if err != nil {
		return err
	}
	h.Name = name
	if info.IsDir() {
		h.Name += "/"
	}
	h.Uid, h.Gid, h.Uname, h.Gname = 0, 0, "", ""
	if !info.Mode().IsRegular() {
		return tw.WriteHeader(h)
	}
	f, err := root.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := tw.WriteHeader(h); err != nil {
		return err
	}
	n, err := io.Copy(tw, io.LimitReader(f, h.Size))
	if err == nil && n < h.Size {
		err = fmt.Errorf("%s became shorter while it was read", name)
	}
	return err
}

// Unpack writes the entries of r below dir, which is made if it is not there. What is in
// the way of a file or link is replaced. It lists what it does not make: devices, pipes.
func Unpack(r io.Reader, dir string) (skipped []string, err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	defer func() { _ = root.Close() }()
	u := unpacking{root: root}
	tr := tar.NewReader(r)
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return u.skipped, u.finish()
		}
		if err != nil {
			return u.skipped, fmt.Errorf("read the archive: %w", err)
		}
		if err := u.entry(h, tr); err != nil {
			return u.skipped, fmt.Errorf("unpack %q: %w", h.Name, err)
		}
	}
}

type unpacking struct {
	root    *os.Root
	dirs    []dir // made, whose modes and times come last: a read-only one takes no files
	skipped []string
}

type dir struct {
	name string
	mode fs.FileMode
	time time.Time
}

func (u *unpacking) entry(h *tar.Header, r io.Reader) error {
	name := filepath.Clean(h.Name)
	if !filepath.IsLocal(name) {
		return errors.New("its name leads out of the directory")
	}
	if name == "." {
		return nil
	}
	mode := h.FileInfo().Mode().Perm()
	if parent := filepath.Dir(name); parent != "." {
		if err := u.root.MkdirAll(parent, 0o755); err != nil {
			return err
		}
	}
	switch h.Typeflag {
	case tar.TypeDir:
		err := u.root.Mkdir(name, 0o755)
		if errors.Is(err, fs.ErrExist) {
			st, serr := u.root.Stat(name)
			if serr != nil {
				return serr
			}
			if st.IsDir() {
				err = nil
			}
		}
		u.dirs = append(u.dirs, dir{name, mode, h.ModTime})
		return err
	case tar.TypeReg:
		return u.file(name, mode, h.ModTime, r)
	case tar.TypeSymlink:
		if err := u.clear(name); err != nil {
			return err
		}
		return u.root.Symlink(h.Linkname, name)
	case tar.TypeLink:
		if !filepath.IsLocal(h.Linkname) {
			return errors.New("it links to what is outside of the directory")
		}
		if err := u.clear(name); err != nil {
			return err
		}
		return u.root.Link(h.Linkname, name)
	}
	u.skipped = append(u.skipped, strings.TrimSuffix(h.Name, "/")+" (no file, directory or link)")
	return nil
}

// clear removes what is in the way of a new name, unless it is a directory that holds
// something.
func (u *unpacking) clear(name string) error {
	err := u.root.Remove(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

func (u *unpacking) file(name string, mode fs.FileMode, at time.Time, r io.Reader) error {
	if err := u.clear(name); err != nil {
		return err
	}
	f, err := u.root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, r)
	if err == nil {
		err = f.Chmod(mode)
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return err
	}
	return u.root.Chtimes(name, at, at)
}

// finish gives directories their modes and times, the innermost first.
func (u *unpacking) finish() error {
	for i := len(u.dirs) - 1; i >= 0; i-- {
		d := u.dirs[i]
		if err := u.root.Chmod(d.name, d.mode); err != nil {
			return err
		}
		if err := u.root.Chtimes(d.name, d.time, d.time); err != nil {
			return err
		}
	}
	return nil
}
