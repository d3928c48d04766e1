package files

import (
	"context"
	"path"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/guestapi"
)

// lossless puts a name into a form that JSON can carry: shown is UTF-8, and raw the exact
// bytes if that is not the same.
func lossless(name string) (shown string, raw []byte) {
	if utf8.ValidString(name) {
		return name, nil
	}
	return strings.ToValidUTF8(name, "\uFFFD"), []byte(name)
}

// statFile describes a path, links not followed.
func (a *actor) statFile(ctx context.Context, f guestapi.FileRef) (info hutch.FileInfo, err error) {
	abs, err := a.absolute(f.Name())
	if err != nil {
		return info, err
	}
	err = a.do(ctx, func() error {
		info, err = a.stat(abs)
		return err
	})
	return info, a.explain(err, abs)
}

// stat describes an absolute path.
func (a *actor) stat(abs string) (hutch.FileInfo, error) {
	p, err := a.place(abs)
	if err != nil {
		return hutch.FileInfo{}, err
	}
	defer p.Close()
	st, err := p.lstat()
	if err != nil {
		return hutch.FileInfo{}, err
	}
	return a.info(p, abs, st), nil
}

// info describes p, of which lstat said st, under the name abs. What can only be told in
// part (a link that may not be followed) is told in part.
func (a *actor) info(p place, abs string, st unix.Stat_t) hutch.FileInfo {
	info := a.describe(abs, st)
	if info.Type == hutch.TypeSymlink {
		if target, err := readlink(p.fd(), p.name); err == nil {
			info.LinkTarget, _ = lossless(target)
		}
		info.Target = a.target(p)
		return info
	}
	if info.Type != hutch.TypeOther {
		info.Metadata = readMetadata(abs)
	}
	return info
}

// describe is what st says of a file under the name abs.
func (a *actor) describe(abs string, st unix.Stat_t) hutch.FileInfo {
	info := hutch.FileInfo{
		Type:    typeOf(st.Mode),
		Size:    st.Size,
		Mode:    st.Mode & allBits,
		UID:     st.Uid,
		GID:     st.Gid,
		Owner:   a.names().User(st.Uid),
		Group:   a.names().Group(st.Gid),
		ModTime: time.Unix(st.Mtim.Unix()).UTC(),
	}
	info.Path, info.RawPath = lossless(abs)
	info.Name, _ = lossless(path.Base(abs))
	return info
}

// target is what the link p leads to in the end.
func (a *actor) target(p place) *hutch.FileTarget {
	f, err := a.open(p.fd(), p.name, unix.O_PATH, 0)
	if err != nil {
		return nil
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return nil
	}
	name, err := realPath(f)
	if err != nil {
		return nil
	}
	name, _ = lossless(name)
	return &hutch.FileTarget{Path: name, Type: typeOf(st.Mode), Mode: st.Mode & allBits}
}

func typeOf(mode uint32) hutch.FileType {
	switch mode & unix.S_IFMT {
	case unix.S_IFREG:
		return hutch.TypeFile
	case unix.S_IFDIR:
		return hutch.TypeDirectory
	case unix.S_IFLNK:
		return hutch.TypeSymlink
	default:
		return hutch.TypeOther
	}
}
