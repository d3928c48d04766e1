package client

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"iter"
	"maps"
	"net/http"
	"net/url"
	"strconv"

	"hutch.dev/hutch"
	"hutch.dev/hutch/api"
	"hutch.dev/hutch/internal/x/sse"
)

// File names a file in a sandbox, and in whose name it is asked for.
type File struct {
	Sandbox hutch.SandboxID
	Path    string // absolute, or relative to the user's home
	User    string // name or uid[:gid]; empty = the template's default
}

func (f File) call(method, what string) call {
	q := url.Values{"path": {f.Path}}
	if f.User != "" {
		q.Set("user", f.User)
	}
	path := pathOf("sandboxes", string(f.Sandbox), "fs")
	if what != "" {
		path += "/" + what
	}
	return call{method: method, path: path, query: q}
}

// Stat describes a path, links not followed.
func (c *Client) Stat(ctx context.Context, f File) (api.File, error) {
	q := f.call(http.MethodGet, "stat")
	q.query.Set("details", "1")
	var out api.File
	err := c.do(ctx, q, &out)
	return out, err
}

// Files lists a directory down to so many levels (0 = 1), in the order of the paths, page
// by page as they are taken. It ends with the first error.
func (c *Client) Files(ctx context.Context, f File, depth int) iter.Seq2[api.File, error] {
	q := f.call(http.MethodGet, "dir")
	q.query.Set("details", "1")
	q.query.Set("limit", strconv.Itoa(hutch.DefaultListLimit))
	if depth > 0 {
		q.query.Set("depth", strconv.Itoa(depth))
	}
	return func(yield func(api.File, error) bool) {
		q := q
		q.query = maps.Clone(q.query) // whoever ranges again begins anew
		for {
			var page api.Directory
			if err := c.do(ctx, q, &page); err != nil {
				yield(api.File{}, err)
				return
			}
			for _, e := range page.Entries {
				if !yield(e, nil) {
					return
				}
			}
			if page.Next == "" {
				return
			}
			q.query.Set("cursor", page.Next)
		}
	}
}

// ReadFile copies a file, links followed, into w, and returns how many bytes that were. A
// broken connection is taken up again where it broke; if the file's size or its time, to the
// second, is another by then, the error is hutch.ErrConflict, as w has a part of what was. A
// change that leaves both as they are is not seen.
func (c *Client) ReadFile(ctx context.Context, f File, w io.Writer) (int64, error) {
	var (
		at    int64
		first string // what the file was when the reading began
	)
	for n := 0; ; n++ {
		q := f.call(http.MethodGet, "")
		if at > 0 {
			q.query.Set("offset", strconv.FormatInt(at, 10))
		}
		res, err := c.send(ctx, q)
		if err == nil {
			what := fmt.Sprint(res.Header.Get("Last-Modified"), " ", res.ContentLength+at)
			if first == "" {
				first = what
			}
			moved := int64(0)
			if what != first {
				err = &Error{Code: hutch.CodeConflict, Message: "the file changed while it was read: read it anew"}
			} else {
				moved, err = copyAnswer(w, res.Body)
			}
			_ = res.Body.Close()
			if moved > 0 {
				at, n = at+moved, 0
			}
		}
		if err == nil {
			return at, nil
		}
		if !c.again(ctx, n, err) {
			return at, err
		}
	}
}

// copyAnswer copies an answer's body; its breaking off is a lost answer, w's failure is not.
func copyAnswer(w io.Writer, r io.Reader) (int64, error) {
	buf := make([]byte, 256<<10)
	total := int64(0)
	for {
		n, err := r.Read(buf)
		if n > 0 {
			m, werr := w.Write(buf[:n])
			total += int64(m)
			if werr != nil {
				return total, werr
			}
		}
		if errors.Is(err, io.EOF) {
			return total, nil
		}
		if err != nil {
			return total, &lostError{err}
		}
	}
}

// WriteOptions says what becomes of a file besides its bytes.
type WriteOptions struct {
	Mode  string // permissions in octal; empty = as it was, else 0644
	Owner string // empty = as it was, else the acting user
	Group string
	// Excl is hutch.ErrConflict if there is something. A write whose answer is lost is then not
	// tried again, as its own file would be in its way: whether it is there, Stat tells.
	Excl     bool
	Metadata map[string]string
}

func (o WriteOptions) apply(q *call) {
	for name, v := range map[string]string{"mode": o.Mode, "owner": o.Owner, "group": o.Group} {
		if v != "" {
			q.query.Set(name, v)
		}
	}
	if o.Excl {
		q.query.Set("excl", "1")
	}
	for k, v := range o.Metadata {
		if q.header == nil {
			q.header = http.Header{}
		}
		q.header.Set(api.HeaderMetadata+k, v)
	}
}

// uploadPart is how much of a file one call carries, and what WriteFile keeps in memory: a
// part is sent again if its answer does not come.
const uploadPart = 8 << 20

// WriteFile puts the bytes of r into a file: whatever happens, what is there is the old
// file or the new one. What is longer than one part is sent in parts, each of them as
// often as it takes. Parents are made.
func (c *Client) WriteFile(ctx context.Context, f File, r io.Reader, o WriteOptions) (api.Written, error) {
	var (
		out    api.Written
		buf    = make([]byte, uploadPart)
		next   = make([]byte, 1) // whether more follows is known by reading it
		have   = 0
		at     int64
		upload = rand.Text()
	)
	for {
		n, err := io.ReadFull(r, buf[have:])
		have += n
		last := errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
		if err != nil && !last {
			return out, fmt.Errorf("read what is to be written: %w", err)
		}
		more := 0
		if !last {
			if more, err = io.ReadFull(r, next); err != nil && !errors.Is(err, io.EOF) {
				return out, fmt.Errorf("read what is to be written: %w", err)
			}
			last = more == 0
		}
		q := f.call(http.MethodPut, "")
		o.apply(&q)
		if !last || at > 0 {
			q.query.Set("upload", upload)
			q.query.Set("upload_offset", strconv.FormatInt(at, 10))
			q.query.Set("last", strconv.FormatBool(last))
		}
		if out, err = c.put(ctx, q, buf[:have]); err != nil || last {
			return out, err
		}
		at += int64(have)
		have = copy(buf, next[:more])
	}
}

// put sends one part until it has arrived. What the server has already it skips, so that
// a repetition changes nothing; but what must not be there yet is found there by one, so that
// a part which completes such a file is not sent again once it may have arrived.
func (c *Client) put(ctx context.Context, q call, part []byte) (api.Written, error) {
	once := q.query.Get("excl") != "" && q.query.Get("last") != "false"
	for n := 0; ; n++ {
		var out api.Written
		err := c.upload(ctx, q, bytes.NewReader(part), &out)
		if err == nil || (once && (Lost(err) || errors.Is(err, hutch.ErrGuestUnresponsive))) || !c.again(ctx, n, err) {
			return out, err
		}
	}
}

// upload makes one attempt to send body.
func (c *Client) upload(ctx context.Context, q call, body io.Reader, out any) error {
	req, err := c.request(ctx, q, body)
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/octet-stream")
	res, err := c.answer(req)
	if err != nil {
		return err
	}
	defer func() { _ = res.Body.Close() }()
	return decodeAnswer(res, out)
}

// MakeDir makes a directory and its parents.
func (c *Client) MakeDir(ctx context.Context, sb hutch.SandboxID, req api.MakeDirectory) (api.File, error) {
	var out api.File
	err := c.do(ctx, change(http.MethodPost, pathOf("sandboxes", string(sb), "fs", "mkdir"), req), &out)
	return out, err
}

// MoveFile renames a file or directory.
func (c *Client) MoveFile(ctx context.Context, sb hutch.SandboxID, req api.MoveFile) (api.File, error) {
	var out api.File
	err := c.do(ctx, change(http.MethodPost, pathOf("sandboxes", string(sb), "fs", "move"), req), &out)
	return out, err
}

// RemoveFile removes what is at a path; a directory that holds something only if recursive.
func (c *Client) RemoveFile(ctx context.Context, f File, recursive bool) error {
	q := f.call(http.MethodDelete, "")
	q.query.Set("recursive", strconv.FormatBool(recursive))
	q.key = rand.Text()
	return c.do(ctx, q, nil)
}

// ArchiveOptions says what goes into an archive.
type ArchiveOptions struct {
	Gzip    bool
	Exclude []string // patterns, of a name or of a path within
}

// ReadArchive copies a tree, as a tar whose names are relative to the path, into w. It is not
// taken up again when it breaks: w then has a part of it.
func (c *Client) ReadArchive(ctx context.Context, f File, o ArchiveOptions, w io.Writer) error {
	q := f.call(http.MethodGet, "archive")
	if o.Gzip {
		q.query.Set("gzip", "1")
	}
	for _, p := range o.Exclude {
		q.query.Add("exclude", p)
	}
	res, err := c.send(ctx, q)
	if err != nil {
		return err
	}
	defer func() { _ = res.Body.Close() }()
	_, err = copyAnswer(w, res.Body)
	return err
}

// WriteArchive unpacks the tar that r gives, plain or gzip, below a directory. It is not
// tried again, because r cannot be read twice.
func (c *Client) WriteArchive(ctx context.Context, f File, r io.Reader, keepOwner bool) (api.Unpacked, error) {
	q := f.call(http.MethodPut, "archive")
	if keepOwner {
		q.query.Set("keep_owner", "1")
	}
	var out api.Unpacked
	err := c.upload(ctx, q, io.NopCloser(r), &out)
	return out, err
}

// SearchOptions says what to look for: names, lines, or both.
type SearchOptions struct {
	Name       string // pattern on the last element of a path; empty = every file
	Text       string // regular expression (RE2) that a line must match; empty = files, not lines
	IgnoreCase bool   // for Text
	Hidden     bool   // also names that begin with a dot
	Limit      int    // most matches; 0 = the server's 1000
}

// Search looks below a directory and hands each match to sink as it is found.
func (c *Client) Search(ctx context.Context, f File, o SearchOptions, sink func(api.FileMatch) error) (api.SearchEnd, error) {
	q := f.call(http.MethodGet, "search")
	q.header = http.Header{"Accept": {"text/event-stream"}}
	for name, v := range map[string]string{"name": o.Name, "text": o.Text} {
		if v != "" {
			q.query.Set(name, v)
		}
	}
	q.query.Set("ignore_case", strconv.FormatBool(o.IgnoreCase))
	q.query.Set("hidden", strconv.FormatBool(o.Hidden))
	if o.Limit > 0 {
		q.query.Set("limit", strconv.Itoa(o.Limit))
	}
	var end api.SearchEnd
	res, err := c.send(ctx, q)
	if err != nil {
		return end, err
	}
	defer func() { _ = res.Body.Close() }()
	in := sse.NewReader(res.Body, maxEvent)
	for {
		ev, err := in.Next()
		if err != nil {
			return end, &lostError{fmt.Errorf("the search broke: %w", err)}
		}
		switch ev.Name {
		case api.EventMatch:
			var m api.FileMatch
			if err := decodeEvent(ev, &m); err != nil {
				return end, err
			}
			if err := sink(m); err != nil {
				return end, err
			}
		case api.EventEnd:
			err := decodeEvent(ev, &end)
			return end, err
		case api.EventError:
			var e api.Error
			if err := decodeEvent(ev, &e); err != nil {
				return end, err
			}
			return end, errorOf(e)
		}
	}
}

// UploadedBytes returns how much of an upload in parts, whose name the caller chose, has
// arrived.
func (c *Client) UploadedBytes(ctx context.Context, f File, upload string) (int64, error) {
	q := f.call(http.MethodPut, "")
	q.query.Set("upload", upload)
	out, err := c.put(ctx, q, nil)
	return out.Bytes, err
}

// WatchOptions says what a watch tells.
type WatchOptions struct {
	Recursive bool // also what happens below, in directories made later too
	Entry     bool // with what stat says
}

// Watch hands sink what happens in a directory, until ctx ends, sink fails or the
// directory goes. ready is called once nothing is missed any more. A watch that breaks is not
// taken up again: what happened meanwhile cannot be told.
func (c *Client) Watch(ctx context.Context, f File, o WatchOptions, ready func(), sink func(api.FileChange) error) error {
	q := f.call(http.MethodGet, "watch")
	q.query.Set("recursive", strconv.FormatBool(o.Recursive))
	q.query.Set("entry", strconv.FormatBool(o.Entry))
	res, err := c.send(ctx, q)
	if err != nil {
		return err
	}
	defer func() { _ = res.Body.Close() }()
	in := sse.NewReader(res.Body, maxEvent)
	for {
		ev, err := in.Next()
		if err != nil {
			return &lostError{fmt.Errorf("the watch broke: %w", err)}
		}
		switch ev.Name {
		case api.EventReady:
			ready()
		case api.EventChange:
			var change api.FileChange
			if err := decodeEvent(ev, &change); err != nil {
				return err
			}
			if err := sink(change); err != nil {
				return err
			}
		case api.EventError:
			var e api.Error
			if err := decodeEvent(ev, &e); err != nil {
				return err
			}
			return errorOf(e)
		}
	}
}
