package e2bapi

import (
	"context"
	"errors"
	"io/fs"
	"path"
	"strings"
	"time"

	"connectrpc.com/connect"

	"hutch.dev/hutch"
)

// The messages of filesystem.Filesystem.
type (
	pathMessage struct {
		Path string `json:"path"`
	}
	moveMessage struct {
		Source      string `json:"source"`
		Destination string `json:"destination"`
	}
	listMessage struct {
		Path  string `json:"path"`
		Depth uint32 `json:"depth"`
	}
	entryAnswer struct {
		Entry entryInfo `json:"entry"`
	}
	listAnswer struct {
		Entries []entryInfo `json:"entries"`
	}
	entryInfo struct {
		Name         string            `json:"name"`
		Type         string            `json:"type"`
		Path         string            `json:"path"`
		Size         int64             `json:"size,string"`
		Mode         uint32            `json:"mode"`
		Permissions  string            `json:"permissions"`
		Owner        string            `json:"owner"`
		Group        string            `json:"group"`
		ModifiedTime string            `json:"modifiedTime"`
		Target       string            `json:"symlinkTarget,omitempty"`
		Metadata     map[string]string `json:"metadata,omitempty"`
	}
)

// fileTypes are the types of files as their enumeration names them.
var fileTypes = map[hutch.FileType]string{
	hutch.TypeFile:      "FILE_TYPE_FILE",
	hutch.TypeDirectory: "FILE_TYPE_DIRECTORY",
	hutch.TypeSymlink:   "FILE_TYPE_SYMLINK",
	hutch.TypeOther:     "FILE_TYPE_UNSPECIFIED",
}

// showEntry describes a file. Of a link the type and the mode are those of what it leads to,
// the size and the permissions its own.
func showEntryInfo(f hutch.FileInfo) entryInfo {
	e := entryInfo{
		Name: f.Name, Type: fileTypes[f.Type], Path: f.Path, Size: f.Size, Mode: f.Mode & 0o777,
		Permissions: permissions(f), Owner: f.Owner, Group: f.Group,
		ModifiedTime: f.ModTime.UTC().Format(time.RFC3339Nano), Metadata: f.Metadata,
	}
	if f.Type != hutch.TypeSymlink {
		return e
	}
	if e.Target = f.Path; f.Target != nil {
		e.Target, e.Type, e.Mode = f.Target.Path, fileTypes[f.Target.Type], f.Target.Mode&0o777
	}
	return e
}

// permissions are written as fs.FileMode writes them: "Lrwxrwxrwx", "dtrwxrwxrwx".
func permissions(f hutch.FileInfo) string {
	mode := fs.FileMode(f.Mode & 0o777)
	for _, bit := range []struct {
		in  uint32
		out fs.FileMode
	}{{0o4000, fs.ModeSetuid}, {0o2000, fs.ModeSetgid}, {0o1000, fs.ModeSticky}} {
		if f.Mode&bit.in != 0 {
			mode |= bit.out
		}
	}
	switch f.Type {
	case hutch.TypeDirectory:
		mode |= fs.ModeDir
	case hutch.TypeSymlink:
		mode |= fs.ModeSymlink
	case hutch.TypeOther:
		mode |= fs.ModeIrregular
	case hutch.TypeFile:
	}
	return mode.String()
}

// fileRef names a file as the guest does. Nothing is the directory where processes start.
func fileRef(ctx context.Context, name string) (hutch.FileRef, error) {
	acc := accountOf(ctx)
	if strings.HasPrefix(name, "~") && name != "~" && !strings.HasPrefix(name, "~/") {
		return hutch.FileRef{}, hutch.Errorf(hutch.CodeBadRequest, "path %.200q begins with another user's home: name it in full", name)
	}
	if name == "" {
		if name = acc.sb.Defaults.Cwd; name == "" {
			name = "~"
		}
	}
	return hutch.FileRef{Path: name, User: acc.user}, nil
}

// onFile runs fn for a call about one path, with the rights that [API.act] finds.
func (a *API) onFile(ctx context.Context, name string, fn func(g hutch.Guest, ref hutch.FileRef, own owner) error) error {
	ref, err := fileRef(ctx, name)
	if err != nil {
		return err
	}
	return a.guest(ctx, func(g hutch.Guest, _ account) error {
		return a.act(ctx, g, ref, func(ref hutch.FileRef, own owner) error { return fn(g, ref, own) })
	})
}

func (a *API) stat(ctx context.Context, m *pathMessage) (*entryAnswer, error) {
	out := &entryAnswer{}
	err := a.onFile(ctx, m.Path, func(g hutch.Guest, ref hutch.FileRef, _ owner) error {
		info, err := g.StatFile(ctx, ref)
		out.Entry = showEntryInfo(info)
		return err
	})
	return out, err
}

func (a *API) makeDir(ctx context.Context, m *pathMessage) (*entryAnswer, error) {
	out := &entryAnswer{}
	err := a.onFile(ctx, m.Path, func(g hutch.Guest, ref hutch.FileRef, own owner) error {
		info, err := g.MakeDir(ctx, hutch.MakeDir{FileRef: ref, Owner: own.user, Group: own.group})
		out.Entry = showEntryInfo(info)
		return err
	})
	return out, err
}

func (a *API) move(ctx context.Context, m *moveMessage) (*entryAnswer, error) {
	if m.Source == "" || m.Destination == "" {
		return nil, rpcError(connect.CodeInvalidArgument, "source and destination must both be given")
	}
	out := &entryAnswer{}
	to, err := fileRef(ctx, m.Destination)
	if err != nil {
		return nil, err
	}
	err = a.onFile(ctx, m.Source, func(g hutch.Guest, from hutch.FileRef, own owner) error {
		dest := to.Path
		if from.User != to.User { // as root, to whom "~" is another place
			home, err := g.StatFile(ctx, hutch.FileRef{Path: "~", User: to.User})
			if err != nil {
				return err
			}
			dest = absolute(to.Path, home.Path)
			parent := hutch.MakeDir{FileRef: hutch.FileRef{Path: path.Dir(dest), User: from.User}, Owner: own.user, Group: own.group, Exists: true}
			if _, err := g.MakeDir(ctx, parent); err != nil {
				return err
			}
		}
		info, err := g.MoveFile(ctx, hutch.MoveFile{From: from.Path, To: dest, User: from.User})
		out.Entry = showEntryInfo(info)
		return err
	})
	return out, err
}

func (a *API) listDir(ctx context.Context, m *listMessage) (*listAnswer, error) {
	if m.Depth > hutch.MaxListDepth {
		return nil, rpcError(connect.CodeInvalidArgument, "depth: directories are listed to 64 levels at most")
	}
	out := &listAnswer{Entries: []entryInfo{}}
	select {
	case a.listing <- struct{}{}:
		defer func() { <-a.listing }()
	case <-ctx.Done():
		return nil, hutch.Wrap(hutch.CodeCancelled, context.Cause(ctx), "the caller left")
	}
	room := maxListBytes
	err := a.onFile(ctx, m.Path, func(g hutch.Guest, ref hutch.FileRef, _ owner) error {
		q := hutch.ListFiles{FileRef: ref, Depth: int(max(m.Depth, 1)), Limit: hutch.MaxListLimit}
		for {
			page, err := g.ListFiles(ctx, q)
			if err != nil {
				return err
			}
			for _, f := range page.Entries {
				out.Entries = append(out.Entries, showEntryInfo(f))
				room -= eventSize(hutch.FileEvent{Name: f.Name, Entry: &f})
			}
			if room < 0 {
				return hutch.Errorf(hutch.CodeTooLarge, "the listing is longer than %d MiB: list a part of it, or to a smaller depth", maxListBytes>>20)
			}
			if q.Cursor = page.Next; page.Next == "" {
				return nil
			}
		}
	})
	return out, err
}

// Bounds on listings, whose answers have no pages: what one takes in memory before it is
// text, about, and how many are gathered at once.
const (
	maxListBytes = 48 << 20
	maxListings  = 4
)

func (a *API) remove(ctx context.Context, m *pathMessage) (*empty, error) {
	if m.Path == "" {
		return nil, rpcError(connect.CodeInvalidArgument, "path must be given")
	}
	err := a.onFile(ctx, m.Path, func(g hutch.Guest, ref hutch.FileRef, _ owner) error {
		err := g.RemoveFile(ctx, hutch.RemoveFile{FileRef: ref, Recursive: true, Missing: true})
		if errors.Is(err, hutch.ErrNotFound) {
			return nil
		}
		return err
	})
	return &empty{}, err
}
