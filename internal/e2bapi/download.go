package e2bapi

import (
	"compress/gzip"
	"context"
	"errors"
	"io"
	"mime"
	"net/http"
	"path"
	"strconv"
	"strings"

	"hutch.dev/hutch"
)

// files serves GET and POST of /files.
func (a *API) files(w http.ResponseWriter, r *http.Request) {
	if allowOrigins(w, r) {
		return
	}
	acc := accountOf(r.Context())
	if err := a.authorise(r, acc.sb); err != nil {
		writeFailure(w, err)
		return
	}
	a.unboundBody(w, r)
	acc.user = username(r.URL.Query(), acc)
	r = r.WithContext(context.WithValue(r.Context(), accountKey{}, acc))
	var err error
	switch r.Method {
	case http.MethodGet, http.MethodHead:
		err = a.download(w, r)
	case http.MethodPost:
		err = a.upload(w, r)
	default:
		w.Header().Set("Allow", "GET, HEAD, POST, OPTIONS")
		writeJSON(w, http.StatusMethodNotAllowed, failure{Code: http.StatusMethodNotAllowed, Message: "files are read with GET and written with POST"})
	}
	if err != nil {
		a.writeAgentFailure(w, r, err)
	}
}

// download answers with a file's bytes, or a part of them.
func (a *API) download(w http.ResponseWriter, r *http.Request) error {
	packed, err := wantsGzip(r)
	if err != nil {
		return err
	}
	if strings.Contains(r.Header.Get("Range"), ",") {
		// Several parts are read beside the handler, and after it when the caller leaves: by
		// then the file is closed. HTTP allows to answer with all of it instead.
		r = r.Clone(r.Context())
		r.Header.Del("Range")
	}
	return a.onFile(r.Context(), r.URL.Query().Get("path"), func(g hutch.Guest, ref hutch.FileRef, _ owner) error {
		f := &remoteFile{ctx: r.Context(), guest: g, ref: ref}
		info, err := f.open(0)
		if err != nil {
			return err
		}
		defer f.close()
		f.size = info.Size
		h := w.Header()
		h.Set("Vary", "Accept-Encoding")
		h.Set("Content-Type", contentType(info.Name))
		h.Set("Content-Disposition", mime.FormatMediaType("inline", map[string]string{"filename": info.Name}))
		if packed && info.Size > 0 {
			h.Set("Content-Encoding", "gzip")
			h.Set("Last-Modified", info.ModTime.UTC().Format(http.TimeFormat))
			err = sendGzip(w, f)
		} else {
			http.ServeContent(w, r, "", info.ModTime, f)
			err = f.err
		}
		if err != nil && r.Context().Err() == nil {
			a.log.Warn("a download broke off", "sandbox", accountOf(r.Context()).sb.ID, "op", "download", "error", err)
		}
		if err != nil {
			a.hasGone(r.Context(), accountOf(r.Context()).sb, err) // who is cut off asks at once why
			panic(http.ErrAbortHandler)                            // the answer has begun: that it is not whole must show
		}
		return nil
	})
}

func contentType(name string) string {
	if t := mime.TypeByExtension(path.Ext(name)); t != "" {
		return t
	}
	return "application/octet-stream"
}

func sendGzip(w io.Writer, r io.Reader) error {
	z, err := gzip.NewWriterLevel(w, gzip.BestSpeed)
	if err != nil {
		return err
	}
	if _, err := io.Copy(z, r); err != nil {
		return err
	}
	return z.Close()
}

// wantsGzip reports whether a file is to be packed: only for a caller who asks for nothing
// else. Most clients name gzip in every request because they can read it; packing is
// for slow lines, and its cost in every read on a fast one would be ours.
func wantsGzip(r *http.Request) (bool, error) {
	quality := make(map[string]float64)
	for part := range strings.SplitSeq(strings.Join(r.Header.Values("Accept-Encoding"), ","), ",") {
		name, params, _ := strings.Cut(strings.ToLower(strings.TrimSpace(part)), ";")
		q := 1.0
		if v, ok := strings.CutPrefix(strings.TrimSpace(params), "q="); ok {
			var err error
			if q, err = strconv.ParseFloat(v, 64); err != nil {
				q = 0
			}
		}
		if name = strings.TrimSpace(name); name != "" {
			quality[name] = q
		}
	}
	identity, named := quality["identity"]
	if !named {
		identity = 1
		if any, ok := quality["*"]; ok && any == 0 {
			identity = 0
		}
	}
	if identity == 0 && quality["gzip"] == 0 {
		return false, hutch.Errorf(codeNotAcceptable, "files are sent as they are, or with gzip: accept one of the two")
	}
	only := len(quality) == 1 && quality["gzip"] > 0
	return (only || identity == 0) && r.Header.Get("Range") == "", nil
}

// remoteFile is a file in a sandbox that can be read from any place, as http.ServeContent
// does. The bytes are asked for once it is known where they are to begin.
type remoteFile struct {
	ctx   context.Context //nolint:containedctx // of the one request that this is for
	guest hutch.FileReader
	ref   hutch.FileRef
	size  int64

	body io.ReadCloser // open at bodyAt; nil = not open
	at   int64         // where the next read is to begin
	from int64         // where the next byte of body is
	err  error         // of reading
}

// open asks for the bytes from an offset on.
func (f *remoteFile) open(offset int64) (hutch.FileInfo, error) {
	c, err := f.guest.OpenFile(f.ctx, hutch.ReadFile{FileRef: f.ref, Offset: offset})
	if err != nil {
		return hutch.FileInfo{}, err
	}
	f.body, f.from = c.Body, offset
	return c.Info, nil
}

func (f *remoteFile) close() {
	if f.body != nil {
		_ = f.body.Close() // of a file that was only read
		f.body = nil
	}
}

// Seek is for io.Seeker. It asks for nothing.
func (f *remoteFile) Seek(offset int64, whence int) (int64, error) {
	switch whence {
	case io.SeekCurrent:
		offset += f.at
	case io.SeekEnd:
		offset += f.size
	}
	if offset < 0 {
		return 0, errors.New("seek before the beginning")
	}
	f.at = offset
	return offset, nil
}

// Read is for io.Reader.
func (f *remoteFile) Read(p []byte) (int, error) {
	if f.at >= f.size {
		return 0, io.EOF
	}
	if f.body == nil || f.from != f.at {
		f.close()
		if _, err := f.open(f.at); err != nil {
			f.err = err
			return 0, err
		}
	}
	n, err := f.body.Read(p[:min(int64(len(p)), f.size-f.at)])
	f.at += int64(n)
	f.from = f.at
	if errors.Is(err, io.EOF) && f.at < f.size {
		err = io.ErrUnexpectedEOF // it has become shorter meanwhile
	}
	if err != nil && !errors.Is(err, io.EOF) {
		f.err = err
	}
	return n, err
}
