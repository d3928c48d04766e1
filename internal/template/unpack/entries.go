package unpack

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"hutch.dev/hutch"
)

// paxXattr is how tar headers of container images name extended attributes.
const paxXattr = "SCHILY.xattr."

// entry does what one header says.
func (t *Tree) entry(hdr *tar.Header, content io.Reader) error {
	if hdr.Typeflag == tar.TypeXGlobalHeader {
		return nil
	}
	dir, base, err := splitName(hdr.Name)
	if err != nil {
		return err
	}
	if err := t.count(); err != nil {
		return err
	}
	if t.names += int64(len(hdr.Name)); t.names > maxNames {
		return hutch.Errorf(hutch.CodeTooLarge, "the names in the layers have more than %d MiB", maxNames>>20)
	}
	if strings.HasPrefix(base, whiteoutPrefix) {
		return t.whiteout(dir, base)
	}
	if base == "" { // the root itself: it is there
		if hdr.Typeflag != tar.TypeDir {
			return hutch.Errorf(hutch.CodeBadRequest, "the layer would make the root of the image something else than a directory")
		}
		return t.rootEntry(hdr)
	}
	name := filepath.Join(dir, base)
	if why := unsupported(hdr.Typeflag); why != "" {
		t.skip(name, why)
		// Its name is taken all the same: what a lower layer has there is covered.
		return t.remove(dir, base)
	}
	p, err := t.enter(dir, true)
	if err != nil {
		return err
	}
	if err := t.make(p, base, hdr, content); err != nil {
		return entryError(name, err)
	}
	t.noteAttributes(name, hdr)
	return nil
}

// entryError says what is wrong with an entry, where that is the layer's fault.
func entryError(name string, err error) error {
	var e *hutch.Error
	switch {
	case errors.As(err, &e):
		return err
	case errors.Is(err, unix.ENAMETOOLONG):
		return hutch.Errorf(hutch.CodeBadRequest, "the name /%s is longer than Linux takes: %w", clip(name), err)
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return hutch.Errorf(hutch.CodeDiskFull, "no room for the image where templates are built: %w", err)
	}
	return fmt.Errorf("unpack /%s: %w", clip(name), err)
}

// count counts one more entry.
func (t *Tree) count() error {
	if t.report.Entries >= t.limits.Entries {
		return hutch.Errorf(hutch.CodeTooLarge, "the layers have more than %d files, directories and links", t.limits.Entries)
	}
	t.report.Entries++
	return nil
}

// unsupported says why an entry of that type is skipped; empty = it is not.
func unsupported(typeflag byte) string {
	switch typeflag {
	case tar.TypeChar, tar.TypeBlock:
		return "a device: sandboxes have a /dev of their own"
	case tar.TypeFifo:
		return "a FIFO: root images hold none"
	}
	return ""
}

// make makes an entry in the directory p, in the place of what has its name.
func (t *Tree) make(p parent, base string, hdr *tar.Header, content io.Reader) error {
	owner, err := ownerOf(hdr)
	if err != nil {
		return err
	}
	switch hdr.Typeflag {
	case tar.TypeDir:
		err = t.makeDirEntry(p, base)
	case tar.TypeReg, tar.TypeGNUSparse:
		err = t.makeFile(p, base, hdr.Size, content)
	case tar.TypeSymlink:
		err = t.makeSymlink(p, base, hdr.Linkname)
	case tar.TypeLink:
		// The link has the owner, mode and time of what it links to.
		return t.makeLink(p, base, hdr)
	default:
		return hutch.Errorf(hutch.CodeBadRequest, "the layer has an entry of the unknown type %q: /%s", hdr.Typeflag, clip(hdr.Name))
	}
	if err != nil {
		return err
	}
	t.touch(p.ino, base)
	return t.dress(p.fd, base, hdr, owner)
}

// owner is who an entry belongs to.
type owner struct{ uid, gid int }

func ownerOf(hdr *tar.Header) (owner, error) {
	// The largest number is none: the kernel takes it for "leave unchanged".
	if hdr.Uid < 0 || hdr.Gid < 0 || int64(hdr.Uid) >= math.MaxUint32 || int64(hdr.Gid) >= math.MaxUint32 {
		return owner{}, hutch.Errorf(hutch.CodeBadRequest, "/%s belongs to %d:%d, which are no user and group", clip(hdr.Name), hdr.Uid, hdr.Gid)
	}
	return owner{hdr.Uid, hdr.Gid}, nil
}

// dress gives what was made its owner, mode and time, in this order: a change of owner
// clears setuid.
func (t *Tree) dress(dir int, base string, hdr *tar.Header, o owner) error {
	if err := unix.Fchownat(dir, base, o.uid, o.gid, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	if hdr.Typeflag != tar.TypeSymlink {
		if err := unix.Fchmodat(dir, base, uint32(hdr.Mode)&0o7777, 0); err != nil {
			return err
		}
	}
	when := clampTime(hdr.ModTime)
	if hdr.Typeflag == tar.TypeDir {
		var st unix.Stat_t
		if err := unix.Fstatat(dir, base, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return err
		}
		t.times[st.Ino] = when
	} else if err := setTime(dir, base, when); err != nil {
		return err
	}
	if when.After(t.report.Newest) {
		t.report.Newest = when
	}
	return nil
}

// clampTime keeps times to what every file system can hold: 1970 to 2106.
func clampTime(when time.Time) time.Time {
	switch s := when.Unix(); {
	case s < 0:
		return time.Unix(0, 0)
	case s > math.MaxUint32:
		return time.Unix(math.MaxUint32, 0)
	}
	return when
}

func setTime(dir int, base string, when time.Time) error {
	ts, err := unix.TimeToTimespec(when)
	if err != nil {
		return err
	}
	return unix.UtimesNanoAt(dir, base, []unix.Timespec{ts, ts}, unix.AT_SYMLINK_NOFOLLOW)
}

// makeDirEntry makes a directory, or keeps the one that is there with what is in it.
func (t *Tree) makeDirEntry(p parent, base string) error {
	var st unix.Stat_t
	err := unix.Fstatat(p.fd, base, &st, unix.AT_SYMLINK_NOFOLLOW)
	if err == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR {
		return nil
	}
	if err := t.removeAt(p.fd, base); err != nil {
		return err
	}
	return unix.Mkdirat(p.fd, base, 0o700)
}

func (t *Tree) makeFile(p parent, base string, size int64, content io.Reader) error {
	if err := t.reserve(size); err != nil {
		return err
	}
	if err := t.removeAt(p.fd, base); err != nil {
		return err
	}
	fd, err := unix.Openat(p.fd, base, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), base)
	_, err = io.CopyN(f, content, size)
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		f.Close()
		return malformed(err)
	}
	return f.Close()
}

func (t *Tree) makeSymlink(p parent, base, target string) error {
	if target == "" || len(target) > maxName || strings.ContainsRune(target, 0) {
		return hutch.Errorf(hutch.CodeBadRequest, "the link /%s leads to %q, which is no name", clip(filepath.Join(p.name, base)), clip(target))
	}
	if err := t.removeAt(p.fd, base); err != nil {
		return err
	}
	t.stale = true
	return unix.Symlinkat(target, p.fd, base)
}

// makeLink makes another name for what is in the tree already. One for something that
// was skipped is skipped too.
func (t *Tree) makeLink(p parent, base string, hdr *tar.Header) error {
	dir, old, err := splitName(hdr.Linkname)
	if err != nil {
		return err
	}
	fd, err := t.openDir(dir)
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return dirError(dir, err)
	}
	if err == nil {
		defer unix.Close(fd)
	}
	var st, have unix.Stat_t
	if err == nil && old != "" {
		err = unix.Fstatat(fd, old, &st, unix.AT_SYMLINK_NOFOLLOW)
	}
	switch {
	case errors.Is(err, unix.ENOENT):
		t.skip(filepath.Join(p.name, base), "a hard link to /"+clip(hdr.Linkname)+", which is not in the image")
		return nil
	case err != nil:
		return err
	case old == "" || st.Mode&unix.S_IFMT == unix.S_IFDIR:
		return hutch.Errorf(hutch.CodeBadRequest, "the layer has a hard link to a directory: /%s", clip(hdr.Name))
	}
	t.touch(p.ino, base)
	if unix.Fstatat(p.fd, base, &have, unix.AT_SYMLINK_NOFOLLOW) == nil && have.Ino == st.Ino {
		return nil // to itself, or made before
	}
	if err := t.removeAt(p.fd, base); err != nil {
		return err
	}
	t.stale = true // what is linked may be a symbolic link
	return unix.Linkat(fd, old, p.fd, base, 0)
}

// rootEntry gives the tree's own directory an owner, a mode and a time.
func (t *Tree) rootEntry(hdr *tar.Header) error {
	o, err := ownerOf(hdr)
	if err != nil {
		return err
	}
	return t.dress(t.root, ".", hdr, o)
}

// noteAttributes reports the extended attributes that an entry would have.
func (t *Tree) noteAttributes(name string, hdr *tar.Header) {
	for key := range hdr.PAXRecords {
		switch attr, ok := strings.CutPrefix(key, paxXattr); {
		case !ok:
		case attr == "security.capability":
			t.skip(name, "its file capabilities: root images hold none (it runs with those of its caller)")
		default:
			t.skip(name, "its extended attribute "+clip(attr))
		}
	}
}

// setTimes sets the times of all directories below the one open as fd, and its own, from
// the inside out. It keeps no list of them: names can be long, and there can be many.
func (t *Tree) setTimes(fd int) error {
	dir, ino, err := readable(fd)
	if err != nil {
		return err
	}
	defer dir.Close()
	for {
		names, err := dir.Readdirnames(1000)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		for _, name := range names {
			sub, err := unix.Openat(fd, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
			if errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
				continue
			}
			if err == nil {
				err = t.setTimes(sub)
				unix.Close(sub)
			}
			if err != nil {
				return err
			}
		}
	}
	when, ok := t.times[ino]
	if !ok {
		when = time.Unix(0, 0)
	}
	return setTime(fd, ".", when)
}
