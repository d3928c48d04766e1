package httpapi

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"hutch.dev/hutch"
	"hutch.dev/hutch/api"
)

// guest is the inside of the sandbox that a request's path names. done must be called.
func (a *API) guest(r *http.Request) (g hutch.Guest, done func(), err error) {
	return a.svc.Guests.Guest(r.Context(), project(r), sandboxID(r))
}

// fileRef reads the parameters that name a file.
func (q *query) fileRef() hutch.FileRef {
	f := hutch.FileRef{Path: q.str("path"), User: q.str("user")}
	if err := checkPath("path", f.Path); err != nil && q.err == nil {
		q.err = err
	}
	return f
}

// checkPath refuses what can be no path. Everything else about it is the guest's to judge.
func checkPath(field, path string) error {
	switch {
	case path == "":
		return hutch.FieldErrorf(field, "is needed: an absolute path, or one relative to the user's home")
	case len(path) > hutch.MaxPathBytes:
		return hutch.FieldErrorf(field, "must be at most %d bytes", hutch.MaxPathBytes)
	case strings.ContainsRune(path, 0):
		return hutch.FieldErrorf(field, "must not hold a NUL byte")
	}
	return nil
}

// fileMode reads permissions in octal; nil when there are none.
func fileMode(field, s string) (*uint32, error) {
	if s == "" {
		return nil, nil
	}
	n, err := strconv.ParseUint(s, 8, 32)
	if err != nil || n > 0o7777 {
		return nil, hutch.FieldErrorf(field, "must be permissions in octal, like 0644")
	}
	mode := uint32(n)
	return &mode, nil
}

// statFile describes a path, links not followed.
func (a *API) statFile(w http.ResponseWriter, r *http.Request) error {
	q := newQuery(r)
	ref, details := q.fileRef(), q.flag("details", false)
	if err := q.check(); err != nil {
		return err
	}
	g, done, err := a.guest(r)
	if err != nil {
		return err
	}
	defer done()
	info, err := g.StatFile(r.Context(), ref)
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, showFile(info, details))
}

// listDir lists a directory: a page of it when limit or cursor is given, else all of it.
func (a *API) listDir(w http.ResponseWriter, r *http.Request) error {
	q := newQuery(r)
	if q.values["path"] == nil {
		q.values["path"] = []string{"/"}
	}
	want := hutch.ListFiles{
		FileRef: q.fileRef(), Depth: int(min(q.num("depth", 0), hutch.MaxListDepth+1)),
		Cursor: q.str("cursor"), Limit: int(min(q.num("limit", 0), hutch.MaxListLimit+1)),
	}
	details := q.flag("details", false)
	if err := q.check(); err != nil {
		return err
	}
	if want.Depth > hutch.MaxListDepth {
		return hutch.FieldErrorf("depth", "must be at most %d", hutch.MaxListDepth)
	}
	if want.Limit > hutch.MaxListLimit || want.Limit == 0 && q.values["limit"] != nil {
		return hutch.FieldErrorf("limit", "must be between 1 and %d; leave it out for all", hutch.MaxListLimit)
	}
	g, done, err := a.guest(r)
	if err != nil {
		return err
	}
	defer done()
	if want.Limit > 0 || want.Cursor != "" {
		page, err := g.ListFiles(r.Context(), want)
		if err != nil {
			return err
		}
		nextPage(w, r, page.Next)
		return writeJSON(w, http.StatusOK, api.Directory{Path: want.Path, Entries: showFiles(page.Entries, details), Next: page.Next})
	}
	// Clients of the compatible API do not turn pages: they get them all, as they come.
	want.Limit = hutch.MaxListLimit
	out := newListWriter(w, "path", want.Path, "entries")
	for {
		page, err := g.ListFiles(r.Context(), want)
		if err != nil {
			return err
		}
		for _, e := range page.Entries {
			if err := out.add(showFile(e, details)); err != nil {
				return err
			}
		}
		if page.Next == "" {
			return out.end("")
		}
		want.Cursor = page.Next
	}
}

func showFiles(in []hutch.FileInfo, details bool) []api.File {
	out := make([]api.File, 0, len(in))
	for _, f := range in {
		out = append(out, showFile(f, details))
	}
	return out
}

// typeLetters are the types of files as find(1) and the compatible API name them.
var typeLetters = map[hutch.FileType]string{hutch.TypeFile: "f", hutch.TypeDirectory: "d", hutch.TypeSymlink: "l"}

func octal(mode uint32) string { return fmt.Sprintf("%04o", mode) }

func showFile(f hutch.FileInfo, details bool) api.File {
	out := api.File{Name: f.Name, IsDir: f.Type == hutch.TypeDirectory, Size: f.Size, Mode: typeLetters[f.Type], MTime: f.ModTime.Unix()}
	if out.Mode == "" {
		out.Mode = "o"
	}
	if !details {
		return out
	}
	out.Path, out.RawPath, out.Type, out.Permissions = f.Path, f.RawPath, f.Type, octal(f.Mode)
	out.UID, out.GID, out.Owner, out.Group = &f.UID, &f.GID, f.Owner, f.Group
	out.ModifiedAt, out.LinkTarget, out.Metadata = milli(f.ModTime), f.LinkTarget, f.Metadata
	if t := f.Target; t != nil {
		out.Target = &api.FileTarget{Path: t.Path, Type: t.Type, Permissions: octal(t.Mode)}
	}
	return out
}

// writeFile puts the body into a file, however large it is.
func (a *API) writeFile(w http.ResponseWriter, r *http.Request) error {
	want, details, err := decodeWrite(r)
	if err != nil {
		return err
	}
	body, err := a.openUpload(w, r)
	if err != nil {
		return err
	}
	g, done, err := a.guest(r)
	if err != nil {
		return body.settle(err)
	}
	defer done()
	want.Content = body
	res, err := g.WriteFile(r.Context(), want)
	if err := body.settle(err); err != nil {
		return err
	}
	out := api.Written{Path: want.Path, Bytes: res.Offset}
	if want.Upload != "" {
		complete := res.Info != nil
		out.Complete = &complete
	}
	if res.Info != nil && details {
		f := showFile(*res.Info, true)
		out.File = &f
	}
	return writeJSON(w, http.StatusOK, out)
}

// decodeWrite reads what an upload says of itself besides its bytes.
func decodeWrite(r *http.Request) (want hutch.WriteFile, details bool, err error) {
	q := newQuery(r)
	want = hutch.WriteFile{
		FileRef: q.fileRef(), Owner: q.str("owner"), Group: q.str("group"), Excl: q.flag("excl", false),
		Upload: q.str("upload"), Offset: q.num("upload_offset", 0), Last: q.flag("last", false),
	}
	mode := q.str("mode")
	details = q.flag("details", false)
	if err := q.check(); err != nil {
		return want, false, err
	}
	if want.Upload == "" && (want.Offset > 0 || want.Last) {
		return want, false, hutch.FieldErrorf("upload", "is needed with upload_offset and last: a name that all parts share")
	}
	if want.Mode, err = fileMode("mode", mode); err != nil {
		return want, false, err
	}
	want.Metadata, err = fileMetadata(r.Header)
	return want, details, err
}

// fileMetadata reads the headers that hold a file's metadata; nil when there are none.
func fileMetadata(h http.Header) (map[string]string, error) {
	var out map[string]string
	size := 0
	for name, values := range h {
		key, ok := strings.CutPrefix(name, api.HeaderMetadata) // both are in canonical form
		if !ok || key == "" {
			continue
		}
		if len(values) > 1 {
			return nil, hutch.FieldErrorf(name, "is given twice")
		}
		if len(key) > hutch.MaxMetadataKey {
			return nil, hutch.FieldErrorf(name, "its name must be at most %d bytes after %s", hutch.MaxMetadataKey, api.HeaderMetadata)
		}
		if out == nil {
			out = make(map[string]string)
		}
		out[strings.ToLower(key)] = values[0]
		size += len(key) + len(values[0])
	}
	if size > hutch.MaxMetadataBytes {
		return nil, hutch.FieldErrorf(api.HeaderMetadata, "all metadata together must be at most %d bytes", hutch.MaxMetadataBytes)
	}
	return out, nil
}

func (a *API) makeDir(w http.ResponseWriter, r *http.Request) error {
	body, err := a.bodyWithoutQuery(w, r)
	if err != nil {
		return err
	}
	want, err := decodeMakeDir(body)
	if err != nil {
		return err
	}
	g, done, err := a.guest(r)
	if err != nil {
		return err
	}
	defer done()
	info, err := g.MakeDir(r.Context(), want)
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusCreated, showFile(info, true))
}

func decodeMakeDir(body []byte) (out hutch.MakeDir, err error) {
	var in api.MakeDirectory
	if err := decode(body, &in); err != nil {
		return out, err
	}
	if err := checkPath("path", in.Path); err != nil {
		return out, err
	}
	out = hutch.MakeDir{FileRef: hutch.FileRef{Path: in.Path, User: in.User}, Owner: in.Owner, Group: in.Group, Exists: in.Exists}
	out.Mode, err = fileMode("mode", in.Mode)
	return out, err
}

func (a *API) moveFile(w http.ResponseWriter, r *http.Request) error {
	body, err := a.bodyWithoutQuery(w, r)
	if err != nil {
		return err
	}
	var in api.MoveFile
	if err := decode(body, &in); err != nil {
		return err
	}
	if err := errors.Join(checkPath("from", in.From), checkPath("to", in.To)); err != nil {
		return err
	}
	g, done, err := a.guest(r)
	if err != nil {
		return err
	}
	defer done()
	info, err := g.MoveFile(r.Context(), hutch.MoveFile{From: in.From, To: in.To, User: in.User, Excl: in.Excl})
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, showFile(info, true))
}

// removeFile removes a path, and what is below it unless recursive=0 says otherwise: the
// compatible API has always done that.
func (a *API) removeFile(w http.ResponseWriter, r *http.Request) error {
	q := newQuery(r)
	want := hutch.RemoveFile{FileRef: q.fileRef(), Recursive: q.flag("recursive", true), Missing: q.flag("missing", false)}
	if err := q.check(); err != nil {
		return err
	}
	if err := readEmptyBody(w, r); err != nil {
		return err
	}
	g, done, err := a.guest(r)
	if err != nil {
		return err
	}
	defer done()
	err = g.RemoveFile(r.Context(), want)
	if errors.Is(err, hutch.ErrNotFound) && repeated(r) {
		err = nil // an earlier attempt, whose answer was lost, removed it
	}
	if err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}
