package httpapi

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"hutch.dev/hutch"
	"hutch.dev/hutch/api"
)

// byteRange is which bytes of a file are wanted.
type byteRange struct {
	from    int64
	to      int64 // first byte not wanted; 0 = to the end
	suffix  int64 // > 0: the last bytes, and from and to have no meaning
	partial bool  // asked for by a Range header, so the answer is 206
}

// parseRange reads a Range header. What it does not understand, several ranges for one,
// is ignored, as HTTP allows, and the whole file is the answer.
func parseRange(header string) (byteRange, bool) {
	spec, ok := strings.CutPrefix(header, "bytes=")
	first, last, dash := strings.Cut(strings.TrimSpace(spec), "-")
	if !ok || !dash || strings.ContainsRune(spec, ',') {
		return byteRange{}, false
	}
	a, errA := strconv.ParseUint(first, 10, 62)
	b, errB := strconv.ParseUint(last, 10, 62)
	switch {
	case first == "" && errB == nil && b > 0:
		return byteRange{suffix: int64(b), partial: true}, true
	case errA == nil && last == "":
		return byteRange{from: int64(a), partial: true}, true
	case errA == nil && errB == nil && b >= a:
		return byteRange{from: int64(a), to: int64(b) + 1, partial: true}, true
	}
	return byteRange{}, false
}

// wantedRange reads what part of a file a request is about.
func wantedRange(r *http.Request, q *query) (byteRange, error) {
	offset, length := q.num("offset", 0), q.num("length", 0)
	if q.values["length"] != nil && length == 0 && q.err == nil {
		return byteRange{}, hutch.FieldErrorf("length", "must be more than 0; leave it out for all that follows")
	}
	header := r.Header.Get("Range")
	if offset > 0 || length > 0 {
		if header != "" {
			return byteRange{}, hutch.FieldErrorf("offset", "give offset and length, or a Range header, not both")
		}
		const far = int64(1) << 62
		b := byteRange{from: min(offset, far)}
		if length > 0 {
			b.to = b.from + min(length, far)
		}
		return b, nil
	}
	b, _ := parseRange(header)
	return b, nil
}

// readFile answers with a file's bytes, as they come.
func (a *API) readFile(w http.ResponseWriter, r *http.Request) error {
	q := newQuery(r)
	ref := q.fileRef()
	want, err := wantedRange(r, q)
	if err := errors.Join(err, q.check()); err != nil {
		return err
	}
	g, done, err := a.guest(r)
	if err != nil {
		return err
	}
	defer done()
	c, err := openRange(r, g, ref, &want)
	var no *rangeError
	if errors.As(err, &no) {
		w.Header().Set("Content-Range", fmt.Sprintf("bytes */%d", no.size))
		return err
	}
	if err != nil {
		return err
	}
	defer func() { _ = c.Body.Close() }()
	return sendFile(w, r, c, want)
}

// rangeError refuses a Range header that names no byte of the file.
type rangeError struct{ size int64 }

func (e *rangeError) Error() string { return e.Unwrap().Error() }

// Unwrap is how the caller is told.
func (e *rangeError) Unwrap() error {
	return hutch.FieldErrorf("Range", "the file has %d bytes, none of them in this range", e.size)
}

// openRange opens a file where want begins, and makes want's ends absolute.
func openRange(r *http.Request, g hutch.FileReader, ref hutch.FileRef, want *byteRange) (*hutch.FileContent, error) {
	if want.suffix > 0 {
		size, err := fileSize(r, g, ref)
		if err != nil {
			return nil, err
		}
		if size == 0 {
			return nil, &rangeError{0}
		}
		want.from, want.to = max(0, size-want.suffix), size
	}
	open := hutch.ReadFile{FileRef: ref, Offset: want.from}
	if want.to > 0 {
		open.Length = want.to - want.from
	}
	c, err := g.OpenFile(r.Context(), open)
	switch {
	case err == nil && want.partial && c.Info.Size <= want.from:
		_ = c.Body.Close()
		return nil, &rangeError{c.Info.Size}
	case errors.Is(err, hutch.ErrBadRequest) && want.partial:
		if size, sizeErr := fileSize(r, g, ref); sizeErr == nil && size <= want.from {
			return nil, &rangeError{size}
		}
	}
	return c, err
}

// fileSize is the size of what a path leads to.
func fileSize(r *http.Request, g hutch.FileReader, ref hutch.FileRef) (int64, error) {
	c, err := g.OpenFile(r.Context(), hutch.ReadFile{FileRef: ref, Length: 1})
	if err != nil {
		return 0, err
	}
	return c.Info.Size, c.Body.Close()
}

// sendFile answers with an open file. Its length is announced as it is now: one that
// shrinks meanwhile breaks the answer off, one that grows is cut there.
func sendFile(w http.ResponseWriter, r *http.Request, c *hutch.FileContent, want byteRange) error {
	h, status, body := w.Header(), http.StatusOK, io.Reader(c.Body)
	fileHeaders(h, c.Info)
	n := int64(-1)
	if c.Info.Size > 0 { // files of /proc say 0 and have more
		end := c.Info.Size
		if want.to > 0 {
			end = min(end, want.to)
		}
		n = max(0, end-want.from)
		h.Set("Content-Length", strconv.FormatInt(n, 10))
		body = io.LimitReader(body, n)
		if want.partial {
			status = http.StatusPartialContent
			h.Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", want.from, end-1, c.Info.Size))
		}
	}
	w.WriteHeader(status)
	if r.Method == http.MethodHead {
		return nil
	}
	counted := &counter{r: body}
	if err := copyBody(w, counted); err != nil {
		return err
	}
	if n >= 0 && counted.n < n {
		return hutch.Errorf(hutch.CodeConflict, "the file became shorter while it was read")
	}
	return nil
}

type counter struct {
	r io.Reader
	n int64
}

func (c *counter) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += int64(n)
	return n, err
}

// copyBuffer is the size of the pieces that downloads are passed on in.
const copyBuffer = 256 << 10

// copyBody passes on bytes from inside. A failure there breaks the answer off.
func copyBody(w io.Writer, r io.Reader) error {
	buf := make([]byte, copyBuffer)
	for {
		n, err := r.Read(buf)
		if n > 0 {
			if _, err := w.Write(buf[:n]); err != nil {
				return clientGone(err)
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read from the sandbox: %w", err)
		}
	}
}

// fileHeaders tells what file a download is of.
func fileHeaders(h http.Header, f hutch.FileInfo) {
	h.Set("Content-Type", "application/octet-stream")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Accept-Ranges", "bytes")
	h.Set("Last-Modified", f.ModTime.UTC().Format(http.TimeFormat))
	h.Set(api.HeaderFileMode, octal(f.Mode))
	h.Set(api.HeaderFileOwner, f.Owner+":"+f.Group)
	for _, k := range slices.Sorted(maps.Keys(f.Metadata)) {
		if v := f.Metadata[k]; headerSafe(k, true) && headerSafe(v, false) {
			h.Set(api.HeaderMetadata+k, v)
		}
	}
}

// headerSafe reports whether s can be a header's name, or its value.
func headerSafe(s string, name bool) bool {
	return !strings.ContainsFunc(s, func(c rune) bool {
		if name {
			return (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '-' && c != '_' && c != '.'
		}
		return c < ' ' || c == 0x7f
	})
}
