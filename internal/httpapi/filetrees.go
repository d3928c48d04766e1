package httpapi

import (
	"errors"
	"fmt"
	"net/http"
	"strings"

	"hutch.dev/hutch"
	"hutch.dev/hutch/api"
)

// searchFiles answers with matches as they are found: as events to who asks for those,
// else as one JSON object.
func (a *API) searchFiles(w http.ResponseWriter, r *http.Request) error {
	q := newQuery(r)
	want := hutch.SearchFiles{
		FileRef: q.fileRef(), Name: q.str("name"), Text: q.str("text"), Hidden: q.flag("hidden", false),
		IgnoreCase: q.flag("ignore_case", false), Limit: int(min(q.num("limit", hutch.DefaultListLimit), hutch.MaxListLimit+1)),
	}
	if err := q.check(); err != nil {
		return err
	}
	switch {
	case want.Limit > hutch.MaxListLimit || want.Limit == 0:
		return hutch.FieldErrorf("limit", "must be between 1 and %d", hutch.MaxListLimit)
	case want.Name == "" && want.Text == "":
		return hutch.FieldErrorf("name", "give name (a pattern like *.go), text (a regular expression), or both")
	}
	g, done, err := a.guest(r)
	if err != nil {
		return err
	}
	defer done()
	if strings.Contains(r.Header.Get("Accept"), "text/event-stream") {
		return a.streamSearch(w, r, g, want)
	}
	out := newListWriter(w, "", "", "matches")
	end, err := g.SearchFiles(r.Context(), want, func(m hutch.FileMatch) error { return out.add(showMatch(m)) })
	if err != nil {
		return err
	}
	return out.end(fmt.Sprintf(`,"truncated":%t,"skipped":%d`, end.Truncated, end.Skipped))
}

func (a *API) streamSearch(w http.ResponseWriter, r *http.Request, g hutch.Guest, want hutch.SearchFiles) error {
	var out *eventStream
	begin := func() {
		if out == nil {
			out = newEventStream(w, a.cfg.Keepalive)
		}
	}
	defer func() {
		if out != nil {
			out.close()
		}
	}()
	end, err := g.SearchFiles(r.Context(), want, func(m hutch.FileMatch) error {
		begin()
		return out.send(api.EventMatch, "", showMatch(m))
	})
	switch {
	case err != nil && out == nil:
		return err
	case errors.Is(err, errClientGone):
		return nil
	case err != nil:
		return ignoreGone(out.send(api.EventError, "", errorBody(r, err)))
	}
	begin()
	return ignoreGone(out.send(api.EventEnd, "", api.SearchEnd{Truncated: end.Truncated, Skipped: end.Skipped}))
}

func showMatch(m hutch.FileMatch) api.FileMatch {
	return api.FileMatch{Path: m.Path, RawPath: m.RawPath, Type: m.Type, Line: m.Line, Column: m.Column, Text: lossy([]byte(m.Text))}
}

// readArchive answers with a tree as a tar stream.
func (a *API) readArchive(w http.ResponseWriter, r *http.Request) error {
	q := newQuery(r)
	want := hutch.ReadArchive{FileRef: q.fileRef(), Gzip: q.flag("gzip", false), Exclude: q.list("exclude")}
	if err := q.check(); err != nil {
		return err
	}
	g, done, err := a.guest(r)
	if err != nil {
		return err
	}
	defer done()
	c, err := g.ReadArchive(r.Context(), want)
	if err != nil {
		return err
	}
	defer func() { _ = c.Body.Close() }()
	typ := "application/x-tar"
	if want.Gzip {
		typ = "application/gzip"
	}
	w.Header().Set("Content-Type", typ)
	w.WriteHeader(http.StatusOK)
	return copyBody(w, c.Body)
}

// writeArchive unpacks the body, a tar stream, plain or gzip.
func (a *API) writeArchive(w http.ResponseWriter, r *http.Request) error {
	q := newQuery(r)
	want := hutch.WriteArchive{FileRef: q.fileRef(), KeepOwner: q.flag("keep_owner", false)}
	if err := q.check(); err != nil {
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
	res, err := g.WriteArchive(r.Context(), want)
	if err := body.settle(err); err != nil {
		return err
	}
	skipped := res.Skipped
	if skipped == nil {
		skipped = []string{}
	}
	return writeJSON(w, http.StatusOK, api.Unpacked{Files: res.Files, Bytes: res.Bytes, Skipped: skipped})
}
