package e2bapi

import (
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"path"
	"strings"

	"hutch.dev/hutch"
)

// written is a file that was written.
type written struct {
	Path     string            `json:"path"`
	Name     string            `json:"name"`
	Type     string            `json:"type"`
	Metadata map[string]string `json:"metadata,omitempty"`
}

// upload writes the files of a request.
func (a *API) upload(w http.ResponseWriter, r *http.Request) error {
	meta, err := metadataOf(r.Header)
	if err != nil {
		return err
	}
	body, err := unpacked(r)
	if err != nil {
		return err
	}
	typ, params, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil {
		typ = ""
	}
	target := r.URL.Query().Get("path")
	var out []written
	switch typ {
	case "application/octet-stream":
		if target == "" {
			return hutch.FieldErrorf("path", "is missing: say which file the bytes are for")
		}
		f, werr := a.write1(r.Context(), target, body, meta)
		out, err = []written{f}, werr
	case "multipart/form-data":
		out, err = a.writeParts(r.Context(), multipart.NewReader(body, params["boundary"]), target, meta)
	default:
		return hutch.Errorf(hutch.CodeBadRequest, "files are sent as multipart/form-data or application/octet-stream, not as %.100q", typ)
	}
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, out)
	return nil
}

// unpacked is a request's body without its compression.
func unpacked(r *http.Request) (io.Reader, error) {
	switch enc := strings.ToLower(r.Header.Get("Content-Encoding")); enc {
	case "", "identity":
		return r.Body, nil
	case "gzip":
		z, err := gzip.NewReader(r.Body)
		if err != nil {
			return nil, hutch.Errorf(hutch.CodeBadRequest, "the body is not gzip, as its Content-Encoding says")
		}
		return z, nil
	default:
		return nil, hutch.Errorf(hutch.CodeBadRequest, "the Content-Encoding %.40q is not known: send gzip, or the bytes as they are", enc)
	}
}

// writeParts writes each part called "file": to target if there is one, else to where its
// file name says, directories included. A part for a file that was written already is
// refused.
func (a *API) writeParts(ctx context.Context, parts *multipart.Reader, target string, meta map[string]string) ([]written, error) {
	out, seen := []written{}, make(map[string]bool)
	for {
		part, err := parts.NextRawPart()
		if err == io.EOF { //nolint:errorlint // wrapped, it is a body without its last boundary
			return out, nil
		}
		if err != nil {
			return nil, hutch.Wrap(hutch.CodeBadRequest, err, "the body is not the multipart/form-data that its header says")
		}
		if part.FormName() != "file" {
			continue
		}
		to := target
		if to == "" {
			to = fileName(part)
		}
		if to == "" {
			return nil, hutch.FieldErrorf("path", "is missing: give it in the query, or each file its name")
		}
		if seen[path.Clean(to)] {
			return nil, hutch.Errorf(hutch.CodeBadRequest, "you cannot upload multiple files to the same path %.200q", to)
		}
		seen[path.Clean(to)] = true
		f, err := a.write1(ctx, to, part, meta)
		if err != nil {
			return nil, err
		}
		out = append(out, f)
	}
}

// fileName is a part's file name as it was sent. Part.FileName would cut its directories.
func fileName(part *multipart.Part) string {
	_, params, err := mime.ParseMediaType(part.Header.Get("Content-Disposition"))
	if err != nil {
		return ""
	}
	return params["filename"]
}

// write1 writes one file.
func (a *API) write1(ctx context.Context, target string, body io.Reader, meta map[string]string) (written, error) {
	var out written
	src := &content{r: body}
	tried := false
	err := a.onFile(ctx, target, func(g hutch.Guest, ref hutch.FileRef, own owner) error {
		if tried {
			if err := again(ctx, g, &src, ref, own); err != nil {
				return err
			}
		}
		tried = true
		res, err := g.WriteFile(ctx, hutch.WriteFile{FileRef: ref, Content: src, Owner: own.user, Group: own.group, Metadata: meta, Last: true})
		if err == nil && res.Info == nil {
			err = hutch.ErrInternal
		}
		if err != nil {
			return err
		}
		out = showWritten(*res.Info)
		return nil
	})
	if cause := src.failure(); err != nil && cause != nil { // the client's doing, not the sandbox's
		return out, hutch.Wrap(hutch.CodeBadRequest, cause, "the body did not arrive whole")
	}
	return out, err
}

// again prepares a second try, as root: the body from its beginning, and the directories that
// are to belong to the user.
func again(ctx context.Context, g hutch.Guest, src **content, ref hutch.FileRef, own owner) error {
	next, ok := (*src).again()
	if !ok {
		return hutch.Errorf(hutch.CodeForbidden, "user %s may not write %q: write as root", own.user, ref.Path)
	}
	*src = next
	parent := hutch.FileRef{Path: path.Dir(ref.Path), User: ref.User}
	_, err := g.MakeDir(ctx, hutch.MakeDir{FileRef: parent, Owner: own.user, Group: own.group, Exists: true})
	return err
}

func showWritten(f hutch.FileInfo) written {
	return written{Path: f.Path, Name: f.Name, Type: "file", Metadata: f.Metadata}
}

// metadataPrefix begins the headers that carry a file's metadata.
const metadataPrefix = "X-Metadata-"

// metadataOf reads the metadata for the files of a request. None is an empty map: what a
// file had is then removed.
func metadataOf(h http.Header) (map[string]string, error) {
	meta, total := make(map[string]string), 0
	for name, values := range h {
		key, ok := strings.CutPrefix(name, metadataPrefix)
		if !ok {
			continue
		}
		key = strings.ToLower(key)
		value := strings.Join(values, ", ")
		switch {
		case key == "" || len(key) > hutch.MaxMetadataKey:
			return nil, hutch.Errorf(hutch.CodeBadRequest, "metadata: a key must have 1 to %d bytes", hutch.MaxMetadataKey)
		case !printable(key) || !printable(value):
			return nil, hutch.Errorf(hutch.CodeBadRequest, "metadata: %.60q and its value must be printable ASCII", key)
		}
		total += len(key) + len(value)
		meta[key] = value
	}
	if total > hutch.MaxMetadataBytes {
		return nil, hutch.Errorf(hutch.CodeBadRequest, "metadata: keys and values together have %d bytes, at most %d are kept", total, hutch.MaxMetadataBytes)
	}
	return meta, nil
}

func printable(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r > '~' })
}

// composition asks for files to be put together into one.
type composition struct {
	Sources     []string `json:"source_paths"`
	Destination string   `json:"destination"`
	Username    string   `json:"username"`
}

// maxSources bounds the files of one composition.
const maxSources = 10_000

// compose puts files together into one and removes them.
func (a *API) compose(w http.ResponseWriter, r *http.Request) {
	out, err := a.composed(w, r)
	if err != nil {
		a.writeAgentFailure(w, r, err)
		return
	}
	writeJSON(w, http.StatusOK, out)
}

func (a *API) composed(w http.ResponseWriter, r *http.Request) (written, error) {
	var m composition
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody)).Decode(&m); err != nil {
		return written{}, hutch.Errorf(hutch.CodeBadRequest, "the body is not the JSON of this call: %v", err)
	}
	if len(m.Sources) == 0 || len(m.Sources) > maxSources || m.Destination == "" {
		return written{}, hutch.Errorf(hutch.CodeBadRequest, "give destination, and 1 to %d source_paths", maxSources)
	}
	ctx := r.Context()
	if m.Username != "" {
		acc := accountOf(ctx)
		acc.user = m.Username
		ctx = context.WithValue(ctx, accountKey{}, acc)
	}
	var out written
	err := a.onFile(ctx, m.Destination, func(g hutch.Guest, to hutch.FileRef, own owner) error {
		refs := make([]hutch.FileRef, 0, len(m.Sources))
		for _, s := range m.Sources {
			ref, err := fileRef(ctx, s)
			if err != nil {
				return err
			}
			refs = append(refs, ref)
		}
		src := &chain{ctx: ctx, guest: g, refs: refs}
		defer src.close()
		res, err := g.WriteFile(ctx, hutch.WriteFile{FileRef: to, Content: src, Owner: own.user, Group: own.group, Last: true})
		if src.err != nil { // the reason, of which the write's own error is the consequence
			return src.err
		}
		if err == nil && res.Info == nil {
			err = hutch.ErrInternal
		}
		if err != nil {
			return err
		}
		out = showWritten(*res.Info)
		for _, ref := range refs {
			same, err := sameFile(ctx, g, ref, to, *res.Info)
			if err != nil {
				return err
			}
			if same {
				continue
			}
			if err := g.RemoveFile(ctx, hutch.RemoveFile{FileRef: ref, Missing: true}); err != nil {
				return err
			}
		}
		return nil
	})
	return out, err
}

// sameFile reports whether a source is what has just been written, by whatever path: that
// must not be removed. Of two files that look alike in every way one is kept too many.
func sameFile(ctx context.Context, g hutch.Guest, source, to hutch.FileRef, made hutch.FileInfo) (bool, error) {
	st, err := g.StatFile(ctx, source)
	if errors.Is(err, hutch.ErrNotFound) {
		return true, nil // it is gone: there is nothing to remove
	}
	if err != nil {
		return false, err
	}
	if st.Type == hutch.TypeSymlink {
		return false, nil // the link goes, what it leads to stays
	}
	return st.Path == made.Path || source.Path == to.Path ||
		st.ModTime.Equal(made.ModTime) && st.Size == made.Size && st.UID == made.UID && st.GID == made.GID && st.Mode == made.Mode, nil
}

// chain reads files one after another, each opened when its turn comes.
type chain struct {
	ctx   context.Context //nolint:containedctx // of the one request that this is for
	guest hutch.FileReader
	refs  []hutch.FileRef
	body  io.ReadCloser
	err   error
}

// Read is for io.Reader.
func (c *chain) Read(p []byte) (int, error) {
	for {
		if c.body == nil {
			if len(c.refs) == 0 {
				return 0, io.EOF
			}
			f, err := c.guest.OpenFile(c.ctx, hutch.ReadFile{FileRef: c.refs[0]})
			if err != nil {
				c.err = err
				return 0, err
			}
			c.body, c.refs = f.Body, c.refs[1:]
		}
		n, err := c.body.Read(p)
		if errors.Is(err, io.EOF) {
			c.close()
			err = nil
		}
		if err != nil {
			c.err = err
		}
		if n > 0 || err != nil {
			return n, err
		}
	}
}

func (c *chain) close() {
	if c.body != nil {
		_ = c.body.Close() // of a file that was only read
		c.body = nil
	}
}
