package guestclient

import (
	"encoding/json"
	"path"
	"strings"
	"unicode/utf8"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/guestapi"
	"hutch.dev/hutch/internal/x/pattern"
)

// Bounds of what a guest says about files. A lawful one stays below, whatever the files are
// called: JSON makes at most six bytes of one.
const (
	maxFileInfo   = 192 << 10 // of one file, as JSON
	maxFileList   = 32 << 20  // of a page, as JSON
	maxCursor     = 12 << 10
	maxShownPath  = 3 * hutch.MaxPathBytes // each byte that is not UTF-8 is shown as three
	maxShownMeta  = 3 * hutch.MaxMetadataBytes
	maxAccount    = 256
	maxSkippedTar = 100
)

var fileCursor = pattern.New(`^[A-Za-z0-9_-]*$`)

// wireFileInfo is a FileInfo that has not been checked, and not been decoded either if it is
// too long.
type wireFileInfo struct{ hutch.FileInfo }

// UnmarshalJSON implements json.Unmarshaler.
func (w *wireFileInfo) UnmarshalJSON(b []byte) error {
	if len(b) > maxFileInfo {
		return nonsense("file: a description of %d bytes", len(b))
	}
	return json.Unmarshal(b, &w.FileInfo)
}

// info checks what a guest says of a file. Names stay as they are, whatever is in them:
// they are needed to ask for the file.
func (w *wireFileInfo) info() (hutch.FileInfo, error) {
	i := w.FileInfo
	switch {
	case !absolutePath(i.Path) || !rawPath(i.RawPath, i.Path):
		return hutch.FileInfo{}, nonsense("file: a malformed path")
	case i.Name != path.Base(i.Path):
		return hutch.FileInfo{}, nonsense("file: a name that is not the path's")
	case !fileTypes[i.Type]:
		return hutch.FileInfo{}, nonsense("file: a type that is none")
	case i.Size < 0 || i.Mode > 0o7777:
		return hutch.FileInfo{}, nonsense("file: an impossible size or mode")
	case len(i.LinkTarget) > maxShownPath || i.Type != hutch.TypeSymlink && (i.LinkTarget != "" || i.Target != nil):
		return hutch.FileInfo{}, nonsense("file: an impossible link")
	}
	if t := i.Target; t != nil && (!absolutePath(t.Path) || !fileTypes[t.Type] || t.Type == hutch.TypeSymlink || t.Mode > 0o7777) {
		return hutch.FileInfo{}, nonsense("file: a link to something that cannot be")
	}
	sum := 0
	for k, v := range i.Metadata {
		if k == "" || len(k) > hutch.MaxMetadataKey {
			return hutch.FileInfo{}, nonsense("file: a malformed metadata key")
		}
		sum += len(k) + len(v)
	}
	if sum > maxShownMeta {
		return hutch.FileInfo{}, nonsense("file: %d bytes of metadata", sum)
	}
	i.Owner, i.Group = cleanText(i.Owner, maxAccount), cleanText(i.Group, maxAccount)
	i.ModTime = cleanTime(i.ModTime)
	return i, nil
}

var fileTypes = map[hutch.FileType]bool{
	hutch.TypeFile: true, hutch.TypeDirectory: true, hutch.TypeSymlink: true, hutch.TypeOther: true,
}

func absolutePath(p string) bool {
	return strings.HasPrefix(p, "/") && len(p) <= maxShownPath && strings.IndexByte(p, 0) < 0
}

// rawPath reports whether raw can be what is shown as shown: nothing where that is exact.
func rawPath(raw []byte, shown string) bool {
	return len(raw) == 0 || len(raw) <= hutch.MaxPathBytes && !utf8.Valid(raw) && strings.ToValidUTF8(string(raw), "\uFFFD") == shown
}

type fileInfoList struct{ capped[wireFileInfo] }

// UnmarshalJSON implements json.Unmarshaler.
func (l *fileInfoList) UnmarshalJSON(b []byte) error { return l.decode(b, hutch.MaxListLimit) }

type wireFileList struct {
	Entries fileInfoList `json:"entries"`
	Next    string       `json:"next"`
}

// list checks a page of at most limit entries.
func (w *wireFileList) list(limit int) (hutch.FileList, error) {
	entries := w.Entries.capped
	switch {
	case len(entries) > limit:
		return hutch.FileList{}, nonsense("list files: %d entries on a page of %d", len(entries), limit)
	case len(w.Next) > maxCursor || !fileCursor.MatchString(w.Next):
		return hutch.FileList{}, nonsense("list files: a malformed cursor")
	case w.Next != "" && len(entries) == 0:
		return hutch.FileList{}, nonsense("list files: an empty page that is not the last")
	}
	l := hutch.FileList{Entries: make([]hutch.FileInfo, 0, len(entries)), Next: w.Next}
	for i := range entries {
		info, err := entries[i].info()
		if err != nil {
			return hutch.FileList{}, err
		}
		l.Entries = append(l.Entries, info)
	}
	return l, nil
}

// fileMatch decodes and checks a find of a search.
func fileMatch(b []byte) (hutch.FileMatch, error) {
	var m hutch.FileMatch
	if err := json.Unmarshal(b, &m); err != nil {
		return m, nonsense("search files: a malformed match: %w", err)
	}
	switch {
	case !absolutePath(m.Path) || !rawPath(m.RawPath, m.Path) || !fileTypes[m.Type]:
		return hutch.FileMatch{}, nonsense("search files: a match of something that cannot be")
	case m.Line < 0 || m.Column < 0 || len(m.Text) > 3*hutch.MaxMatchBytes:
		return hutch.FileMatch{}, nonsense("search files: an impossible line")
	}
	return m, nil
}

var fileOps = map[hutch.FileOp]bool{
	hutch.OpCreate: true, hutch.OpWrite: true, hutch.OpRemove: true, hutch.OpRename: true, hutch.OpChmod: true, hutch.OpOverflow: true,
}

// fileEvent decodes and checks an event of a watch.
func fileEvent(b []byte) (hutch.FileEvent, error) {
	var w struct {
		hutch.FileEvent
		Entry *wireFileInfo `json:"entry"`
	}
	if err := json.Unmarshal(b, &w); err != nil {
		return hutch.FileEvent{}, nonsense("watch files: a malformed event: %w", err)
	}
	e := w.FileEvent
	name := "/" + e.Name
	switch {
	case !fileOps[e.Op]:
		return hutch.FileEvent{}, nonsense("watch files: an event that is none")
	case (e.Name == "") != (e.Op == hutch.OpOverflow), !absolutePath(name), e.Name != "" && path.Clean(name) != name, !rawPath(e.RawName, e.Name):
		return hutch.FileEvent{}, nonsense("watch files: a malformed name")
	}
	e.Entry = nil
	if w.Entry != nil {
		info, err := w.Entry.info()
		if err != nil {
			return hutch.FileEvent{}, err
		}
		e.Entry = &info
	}
	return e, nil
}

// wireWriteReply is an answer to a write.
type wireWriteReply struct {
	guestapi.WriteReply
	Info *wireFileInfo `json:"info"`
}

// result checks an answer to the write w.
func (r *wireWriteReply) result(w hutch.WriteFile) (hutch.WriteResult, error) {
	res := hutch.WriteResult{Offset: r.Offset}
	ends := w.Upload == "" || w.Last
	switch {
	case r.Offset < 0:
		return hutch.WriteResult{}, nonsense("write file: a negative offset")
	case r.Gap && (w.Upload == "" || r.Info != nil || r.Offset >= w.Offset):
		return hutch.WriteResult{}, nonsense("write file: a gap where none can be")
	case r.Gap:
		return res, hutch.Errorf(hutch.CodeConflict, "the upload has come to byte %d: go on from there, not from %d", r.Offset, w.Offset)
	case ends != (r.Info != nil):
		return hutch.WriteResult{}, nonsense("write file: a file before its end, or none after it")
	}
	if r.Info != nil {
		info, err := r.Info.info()
		if err != nil {
			return hutch.WriteResult{}, err
		}
		res.Info = &info
	}
	return res, nil
}

type skippedList struct{ capped[string] }

// UnmarshalJSON implements json.Unmarshaler.
func (l *skippedList) UnmarshalJSON(b []byte) error { return l.decode(b, maxSkippedTar) }

// wireArchive is an answer to an archive.
type wireArchive struct {
	hutch.ArchiveResult
	Skipped skippedList `json:"skipped"`
}

func (w *wireArchive) result() (hutch.ArchiveResult, error) {
	r := w.ArchiveResult
	if r.Files < 0 || r.Bytes < 0 {
		return hutch.ArchiveResult{}, nonsense("write archive: negative counts")
	}
	r.Skipped = nil
	for _, s := range w.Skipped.capped {
		r.Skipped = append(r.Skipped, cleanText(s, maxText))
	}
	return r, nil
}
