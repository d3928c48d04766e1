package files

import (
	"archive/tar"
	"errors"
	"io"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"hutch.dev/hutch"
)

// clear removes what is in the place of an entry that is no directory, so that nothing is
// written through a link or into a file with other names.
func (p place) clear() error {
	err := unix.Unlinkat(p.fd(), p.name, 0)
	if errors.Is(err, unix.EISDIR) || errors.Is(err, unix.EPERM) {
		if st, statErr := p.lstat(); statErr == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR {
			err = unix.Unlinkat(p.fd(), p.name, unix.AT_REMOVEDIR) // an empty one is no loss
		}
	}
	if errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, unix.EEXIST) {
		return hutch.Errorf(hutch.CodeConflict, "%s is a directory here and none in the archive", shown(p.name))
	}
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}

func (u *unpacker) file(p place, h *tar.Header, content io.Reader) (err error) {
	kind := tempNew
	if st, err := p.lstat(); err == nil {
		kind = tempOld
		if st.Mode&unix.S_IFMT == unix.S_IFDIR {
			if err := p.clear(); err != nil {
				return err
			}
		}
	}
	// Beside its place until it is whole: what is there stays if the archive breaks off.
	temp := tempName(kind)
	f, err := u.open(p.fd(), temp, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if cerr := f.Close(); err == nil {
			err = cerr
		}
		if err == nil {
			err = unix.Renameat(p.fd(), temp, p.fd(), p.name)
		}
		if err != nil {
			_ = unix.Unlinkat(p.fd(), temp, 0)
		}
	}()
	// Written here, read there: what the disk says must be told from what the archive says.
	src := &archived{r: content}
	n, err := io.CopyBuffer(struct{ io.Writer }{f}, src, u.buf)
	u.result.Bytes += n
	if src.err != nil {
		return malformed(src.err)
	}
	if err != nil {
		return err
	}
	fd := int(f.Fd())
	if err := writeMetadata(fd, attrsOf(h)); err != nil {
		return err
	}
	if u.keep {
		if err := unix.Fchown(fd, h.Uid, h.Gid); err != nil {
			return err
		}
	}
	if err := unix.Fchmod(fd, uint32(h.Mode)&allBits); err != nil {
		return err
	}
	return times(fd, h.ModTime)
}

// archived remembers why its reader could not be read on.
type archived struct {
	r   io.Reader
	err error
}

// Read implements io.Reader.
func (a *archived) Read(p []byte) (int, error) {
	n, err := a.r.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		a.err = err
	}
	return n, err
}

// attrsOf is the metadata in an entry, if it could be a file's.
func attrsOf(h *tar.Header) map[string]string {
	found := map[string]string{}
	for k, v := range h.PAXRecords {
		if key, ok := strings.CutPrefix(k, attrRecord+hutch.MetadataPrefix); ok {
			found[key] = v
		}
	}
	checked, err := checkMetadata(found)
	if err != nil {
		return nil
	}
	return checked
}

// symlink makes a link, wherever it leads: only what goes through it is refused.
func (u *unpacker) symlink(p place, h *tar.Header) error {
	if err := p.clear(); err != nil {
		return err
	}
	if err := unix.Symlinkat(h.Linkname, p.fd(), p.name); err != nil {
		return err
	}
	if u.keep {
		return unix.Fchownat(p.fd(), p.name, h.Uid, h.Gid, unix.AT_SYMLINK_NOFOLLOW)
	}
	return nil
}

// link gives a file that is there another name.
func (u *unpacker) link(p place, h *tar.Header) error {
	name, err := entryName(h.Linkname)
	if err != nil {
		return err
	}
	dir, err := u.beneath(path.Dir(name), unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	defer dir.Close()
	old := place{dir, path.Base(name)}
	st, err := old.lstat()
	if err != nil {
		return err
	}
	if now, err := p.lstat(); err == nil && now.Dev == st.Dev && now.Ino == st.Ino {
		return nil // it has both names already
	}
	if err := p.clear(); err != nil {
		return err
	}
	return unix.Linkat(old.fd(), old.name, p.fd(), p.name, 0)
}
