package httpapi_test

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"reflect"
	"strings"
	"testing"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/api"
	"hutch.dev/hutch/internal/httpapi"
	"hutch.dev/hutch/internal/httpapi/httpapitest"
)

// fs is the path of a file call in a new sandbox, without its query.
func (b *bench) fs() string { return "/v1/sandboxes/" + b.sandbox() + "/fs" }

// bytesOf has size bytes that are easy to compare and to look at.
func bytesOf(size int) []byte {
	return bytes.Repeat([]byte("0123456789abcdef"), size/16+1)[:size]
}

func TestFilesOfClientsOfTheCompatibleAPI(t *testing.T) {
	b := newBench(t, httpapi.Config{})
	fs := b.fs()
	w := b.do("PUT", fs+"?path=%2Fdata%2Fa+b.txt", "héllo\x00\xff", "Content-Type", "application/octet-stream").want(200)
	if got := string(w.body); got != `{"path":"/data/a b.txt","bytes":8}`+"\n" {
		t.Errorf("a write answers %s", got)
	}
	r := b.do("GET", fs+"?path=%2Fdata%2Fa+b.txt", "").want(200)
	if string(r.body) != "héllo\x00\xff" || r.header.Get("Content-Type") != "application/octet-stream" || r.header.Get("Content-Length") != "8" {
		t.Errorf("read %q as %s", r.body, r.header)
	}
	s := b.do("GET", fs+"/stat?path=/data/a+b.txt", "").want(200)
	if got := string(s.body); got != fmt.Sprintf(`{"name":"a b.txt","is_dir":false,"size":8,"mode":"f","mtime":%d}`+"\n", httpapitest.Epoch.Unix()) {
		t.Errorf("stat answers %s", got)
	}
	b.Inside.Link("/data/link", "/tmp")
	d := b.do("GET", fs+"/dir?path=/data", "").want(200)
	want := fmt.Sprintf(`{"path":"/data","entries":[{"name":"a b.txt","is_dir":false,"size":8,"mode":"f","mtime":%[1]d},{"name":"link","is_dir":false,"size":4,"mode":"l","mtime":%[1]d}]}`+"\n", httpapitest.Epoch.Unix())
	if string(d.body) != want {
		t.Errorf("dir answers %s, want %s", d.body, want)
	}
	if got := string(b.do("GET", fs+"/dir?path=/tmp", "").want(200).body); got != `{"path":"/tmp","entries":[]}`+"\n" {
		t.Errorf("an empty directory is %s", got)
	}
	root := into[api.Directory](b.do("GET", fs+"/dir", "").want(200))
	if root.Path != "/" || len(root.Entries) != 2 {
		t.Errorf("the root is %+v", root)
	}
	for _, call := range []string{"GET " + fs + "?", "GET " + fs + "/stat?", "GET " + fs + "/dir?", "DELETE " + fs + "?"} {
		m, path, _ := strings.Cut(call, " ")
		b.do(m, path+"path=/nothing", "").wantError(404, "not_found", "")
	}
	b.do("DELETE", fs+"?path=/data", "").want(204)
	b.do("GET", fs+"/stat?path=/data/link", "").wantError(404, "not_found", "")
	if n := b.Inside.Opened(); n != 0 {
		t.Errorf("%d guests are not let go of", n)
	}
}

func TestFileCallsThatCannotBe(t *testing.T) {
	b := newBench(t, httpapi.Config{})
	sb := b.sandbox()
	fs := "/v1/sandboxes/" + sb + "/fs"
	long := strings.Repeat("a", hutch.MaxPathBytes+1)
	b.Inside.Put("/f", []byte("1234"))
	for name, c := range map[string]struct {
		call, body, field, code string
		status                  int
	}{
		"no path":          {"GET " + fs, "", "path", "bad_request", 400},
		"long path":        {"GET " + fs + "?path=/" + long, "", "path", "bad_request", 400},
		"NUL":              {"GET " + fs + "?path=/a%00b", "", "path", "bad_request", 400},
		"directory":        {"GET " + fs + "?path=/tmp", "", "path", "bad_request", 400},
		"unknown":          {"GET " + fs + "?path=/f&follow=1", "", "follow", "unknown_field", 400},
		"mode":             {"PUT " + fs + "?path=/f&mode=rwx", "", "mode", "bad_request", 400},
		"large mode":       {"PUT " + fs + "?path=/f&mode=10000", "", "mode", "bad_request", 400},
		"offset, one call": {"PUT " + fs + "?path=/f&upload_offset=3", "", "upload", "bad_request", 400},
		"last, one call":   {"PUT " + fs + "?path=/f&last=1", "", "upload", "bad_request", 400},
		"gap":              {"PUT " + fs + "?path=/f&upload=u&upload_offset=3", "x", "", "conflict", 409},
		"exists":           {"PUT " + fs + "?path=/f&excl=1", "x", "", "conflict", 409},
		"behind the end":   {"GET " + fs + "?path=/f&offset=5", "", "offset", "bad_request", 400},
		"no length":        {"GET " + fs + "?path=/f&length=0", "", "length", "bad_request", 400},
		"no directory":     {"GET " + fs + "/dir?path=/f", "", "path", "bad_request", 400},
		"depth":            {"GET " + fs + "/dir?depth=65", "", "depth", "bad_request", 400},
		"limit":            {"GET " + fs + "/dir?limit=10001", "", "limit", "bad_request", 400},
		"cursor":           {"GET " + fs + "/dir?cursor=99", "", "cursor", "bad_request", 400},
		"nothing searched": {"GET " + fs + "/search?path=/", "", "name", "bad_request", 400},
		"search limit":     {"GET " + fs + "/search?path=/&name=a&limit=0", "", "limit", "bad_request", 400},
		"mkdir exists":     {"POST " + fs + "/mkdir", `{"path": "/tmp"}`, "", "conflict", 409},
		"mkdir nowhere":    {"POST " + fs + "/mkdir", `{}`, "path", "bad_request", 400},
		"mkdir field":      {"POST " + fs + "/mkdir", `{"path": "/x", "modes": "0700"}`, "modes", "unknown_field", 400},
		"move nothing":     {"POST " + fs + "/move", `{"from": "/no", "to": "/x"}`, "", "not_found", 404},
		"move nowhere":     {"POST " + fs + "/move", `{"from": "/f"}`, "to", "bad_request", 400},
		"move over":        {"POST " + fs + "/move", `{"from": "/f", "to": "/tmp", "excl": true}`, "", "conflict", 409},
		"archive":          {"GET " + fs + "/archive?path=/no", "", "", "not_found", 404},
		"no archive":       {"PUT " + fs + "/archive?path=/x", "this is no tar stream, but long enough to be tried" + strings.Repeat("x", 512), "", "bad_request", 400},
		"watch nothing":    {"GET " + fs + "/watch?path=/no", "", "", "not_found", 404},
		"no such watcher":  {"GET " + fs + "/watchers/x/events", "", "", "not_found", 404},
	} {
		t.Run(name, func(t *testing.T) {
			b := *b
			b.t = t
			m, path, _ := strings.Cut(c.call, " ")
			b.do(m, path, c.body).wantError(c.status, c.code, c.field)
			b.as(httpapitest.ReadKey).do(m, path, c.body).wantError(403, "forbidden", "")
		})
	}
	b.do("POST", "/v1/sandboxes/"+sb+"/pause", "").want(204)
	for _, call := range []string{"GET " + fs, "PUT " + fs, "DELETE " + fs, "GET " + fs + "/stat", "GET " + fs + "/dir", "GET " + fs + "/archive", "PUT " + fs + "/archive", "GET " + fs + "/watch"} {
		m, path, _ := strings.Cut(call, " ")
		b.do(m, path+"?path=/f", "").wantError(409, "invalid_state", "")
		b.as(httpapitest.OtherKey).do(m, path+"?path=/f", "").wantError(404, "not_found", "")
	}
	b.do("DELETE", "/v1/sandboxes/"+sb, "").want(204)
	b.do("GET", fs+"?path=/f", "").wantError(404, "sandbox_gone", "")
	if n := b.Inside.Opened(); n != 0 {
		t.Errorf("%d guests are not let go of", n)
	}
}

func TestPartsOfAFile(t *testing.T) {
	b := newBench(t, httpapi.Config{})
	fs := b.fs()
	b.Inside.Put("/f", []byte("0123456789"))
	for _, c := range []struct{ query, header, want, contentRange string }{
		{"&offset=3", "", "3456789", ""},
		{"&offset=3&length=2", "", "34", ""},
		{"&length=2", "", "01", ""},
		{"&offset=10", "", "", ""},
		{"&offset=8&length=9000000000000000000", "", "89", ""},
		{"", "bytes=0-0", "0", "bytes 0-0/10"},
		{"", "bytes=7-", "789", "bytes 7-9/10"},
		{"", "bytes=7-100", "789", "bytes 7-9/10"},
		{"", "bytes=-4", "6789", "bytes 6-9/10"},
		{"", "bytes=-400", "0123456789", "bytes 0-9/10"},
		{"", "bytes=0-1,3-4", "0123456789", ""},
		{"", "bytes=5-2", "0123456789", ""},
		{"", "lines=1-2", "0123456789", ""},
		{"", "bytes=", "0123456789", ""},
	} {
		var headers []string
		status := 200
		if c.header != "" {
			headers = []string{"Range", c.header}
		}
		if c.contentRange != "" {
			status = 206
		}
		a := b.do("GET", fs+"?path=/f"+c.query, "", headers...).want(status)
		if string(a.body) != c.want || a.header.Get("Content-Range") != c.contentRange {
			t.Errorf("%s %s: %q, Content-Range %q; want %q, %q", c.query, c.header, a.body, a.header.Get("Content-Range"), c.want, c.contentRange)
		}
	}
	for _, header := range []string{"bytes=10-", "bytes=11-20", "bytes=999-"} {
		a := b.do("GET", fs+"?path=/f", "", "Range", header)
		a.wantError(416, "bad_request", "Range")
		if got := a.header.Get("Content-Range"); got != "bytes */10" {
			t.Errorf("%s: Content-Range %q", header, got)
		}
	}
	b.do("GET", fs+"?path=/f&offset=1", "", "Range", "bytes=1-").wantError(400, "bad_request", "offset")
	b.do("GET", fs+"?path=/no", "", "Range", "bytes=-1").wantError(404, "not_found", "")

	head := b.do("HEAD", fs+"?path=/f", "").want(200)
	if head.header.Get("Content-Length") != "10" || len(head.body) != 0 {
		t.Errorf("HEAD: %s with %d bytes", head.header, len(head.body))
	}
	b.Inside.NoSize = true // as in /proc
	b.Inside.Put("/proc/version", []byte("Linux"))
	if a := b.do("GET", fs+"?path=/proc/version", "").want(200); string(a.body) != "Linux" {
		t.Errorf("a file without a size: %q", a.body)
	}
}

func TestEverythingThatIsKnownOfAFile(t *testing.T) {
	b := newBench(t, httpapi.Config{})
	fs := b.fs()
	w := into[api.Written](b.do("PUT", fs+"?path=/f&mode=4755&owner=web&group=www&details=1", "x", "X-Metadata-Author", "robot", "x-metadata-build", "7").want(200))
	if w.File == nil || w.File.Permissions != "4755" || w.File.Owner != "web" || w.File.Group != "www" || w.File.Metadata["author"] != "robot" || w.File.Metadata["build"] != "7" || w.File.Type != hutch.TypeFile {
		t.Errorf("written: %+v", w.File)
	}
	r := b.do("GET", fs+"?path=/f", "").want(200)
	if r.header.Get(api.HeaderFileMode) != "4755" || r.header.Get(api.HeaderFileOwner) != "web:www" || r.header.Get("X-Metadata-Author") != "robot" {
		t.Errorf("headers of a download: %v", r.header)
	}
	b.do("PUT", fs+"?path=/f", "x", "X-Metadata-A", strings.Repeat("a", hutch.MaxMetadataBytes)).wantError(400, "bad_request", "X-Metadata-")

	made := into[api.File](b.do("POST", fs+"/mkdir", `{"path": "/d/e", "mode": "0700"}`).want(201))
	if made.Path != "/d/e" || !made.IsDir || made.Permissions != "0700" {
		t.Errorf("made %+v", made)
	}
	b.do("POST", fs+"/mkdir", `{"path": "/d/e", "exists": true}`).want(201)
	moved := into[api.File](b.do("POST", fs+"/move", `{"from": "/f", "to": "/d/g"}`).want(200))
	if moved.Path != "/d/g" || b.Inside.Data("/d/g") == nil || b.Inside.Data("/f") != nil {
		t.Errorf("moved to %+v", moved)
	}
	b.do("DELETE", fs+"?path=/d&recursive=0", "").wantError(409, "conflict", "")
	b.do("DELETE", fs+"?path=/no&missing=1", "").want(204)

	var names []string
	cursor := ""
	for {
		page := into[api.Directory](b.do("GET", fs+"/dir?path=/&depth=3&limit=2&details=1&cursor="+cursor, "").want(200))
		for _, e := range page.Entries {
			names = append(names, e.Path)
		}
		if cursor = page.Next; cursor == "" {
			break
		}
	}
	if got := strings.Join(names, " "); got != "/d /d/e /d/g /tmp" {
		t.Errorf("listed %s", got)
	}
}

func TestUploadsInParts(t *testing.T) {
	b := newBench(t, httpapi.Config{})
	fs := b.fs()
	part := func(offset int, data, more string) api.Written {
		return into[api.Written](b.do("PUT", fmt.Sprintf("%s?path=/f&upload=u1&upload_offset=%d%s", fs, offset, more), data).want(200))
	}
	if w := part(0, "abc", ""); w.Bytes != 3 || *w.Complete {
		t.Errorf("first part: %+v", w)
	}
	if b.Inside.Data("/f") != nil {
		t.Error("the file is there before its last part")
	}
	part(3, "def", "")
	if w := part(3, "defg", "&last=1"); w.Bytes != 7 || !*w.Complete {
		t.Errorf("last part: %+v", w)
	}
	if got := string(b.Inside.Data("/f")); got != "abcdefg" {
		t.Errorf("the file is %q", got)
	}
}

// A body that breaks off leaves what was there.
func TestAnUploadThatBreaksOffLeavesTheOldFile(t *testing.T) {
	done := make(answered, 10)
	f := httpapitest.New()
	b := serveOn(t.Context(), t, f, httpapi.Config{}, done)
	fs := b.fs()
	f.Inside.Put("/f", []byte("old"))
	conn := b.dial()
	fmt.Fprintf(conn, "PUT %s?path=/f HTTP/1.1\r\nHost: x\r\nX-API-Key: %s\r\nContent-Length: 1000\r\n\r\nnew", fs, b.key)
	_ = conn.Close()
	done.await(t, "/v1/sandboxes/{id}/fs")
	if got := string(f.Inside.Data("/f")); got != "old" {
		t.Errorf("the file is %q", got)
	}
	if n := f.Inside.Opened(); n != 0 {
		t.Errorf("%d guests are not let go of", n)
	}
}

// trickle sends a piece whenever it is read, after a pause.
type trickle struct {
	pieces int
	pause  time.Duration
}

func (s *trickle) Read(p []byte) (int, error) {
	if s.pieces == 0 {
		return 0, io.EOF
	}
	<-time.After(s.pause)
	s.pieces--
	return copy(p, "0123456789"), nil
}

func TestAnUploadMayTakeAsLongAsItGoesOn(t *testing.T) {
	const pause = 100 * time.Millisecond
	b := newBench(t, httpapi.Config{BodyTimeout: 15 * pause}) // shorter than the whole
	fs := b.fs()
	req := b.request("PUT", fs+"?path=/f", "")
	req.Body, req.ContentLength = io.NopCloser(&trickle{pieces: 20, pause: pause}), -1
	res := b.send(req)
	if res.StatusCode != 200 {
		t.Fatalf("status %d", res.StatusCode)
	}
	if got := len(b.Inside.Data("/f")); got != 200 {
		t.Errorf("%d bytes arrived", got)
	}
	// One that stops is not waited for.
	conn := b.dial()
	fmt.Fprintf(conn, "PUT %s?path=/g HTTP/1.1\r\nHost: x\r\nX-API-Key: %s\r\nContent-Length: 1000\r\n\r\nnew", fs, b.key)
	answer, err := io.ReadAll(conn)
	if err != nil || !bytes.HasPrefix(answer, []byte("HTTP/1.1 499")) {
		t.Errorf("an upload that stops gets %q, %v", answer, err)
	}
}

// What is too much is refused in words, also to a caller who sends without waiting for them.
func TestUploadsOverALimit(t *testing.T) {
	b := newBench(t, httpapi.Config{MaxUpload: 1 << 20})
	fs := b.fs()
	b.do("PUT", fs+"?path=/f", string(bytesOf(1<<20))).want(200)
	b.do("PUT", fs+"?path=/f", string(bytesOf(8<<20))).wantError(413, "too_large", "")
	req := b.request("PUT", fs+"?path=/f", "")
	req.Body, req.ContentLength = io.NopCloser(bytes.NewReader(bytesOf(8<<20))), -1
	if res := b.send(req); res.StatusCode != 413 {
		t.Errorf("a body of unknown length: status %d", res.StatusCode)
	}
	if got := len(b.Inside.Data("/f")); got != 1<<20 {
		t.Errorf("the file has %d bytes", got)
	}
	b.Inside.DiskSize = 1000
	b.do("PUT", fs+"?path=/g", string(bytesOf(1<<20))).wantError(507, "disk_full", "")
	if b.Inside.Data("/g") != nil {
		t.Error("a file was begun on a full disk")
	}
	// A caller who asks first is told without having to send.
	conn := b.dial()
	fmt.Fprintf(conn, "PUT %s?path=/f HTTP/1.1\r\nHost: x\r\nX-API-Key: %s\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n", fs, b.key, 2<<20)
	answer, err := io.ReadAll(conn)
	if err != nil || !bytes.HasPrefix(answer, []byte("HTTP/1.1 413")) {
		t.Errorf("Expect: 100-continue gets %.80q, %v", answer, err)
	}
}

func TestSearch(t *testing.T) {
	b := newBench(t, httpapi.Config{})
	fs := b.fs()
	b.Inside.Put("/src/a.go", []byte("package a\nfunc A() {}\n"))
	b.Inside.Put("/src/b.go", []byte("package b\nfunc B() {}\n"))
	b.Inside.Put("/src/c.txt", []byte("func"))
	q := url.Values{"path": {"/src"}, "name": {"*.go"}, "text": {"func "}}
	got := into[api.FileMatches](b.do("GET", fs+"/search?"+q.Encode(), "").want(200))
	if len(got.Matches) != 2 || !reflect.DeepEqual(got.Matches[1], api.FileMatch{Path: "/src/b.go", Type: hutch.TypeFile, Line: 2, Column: 1, Text: "func B() {}"}) || got.Truncated {
		t.Errorf("found %+v", got)
	}
	if got := into[api.FileMatches](b.do("GET", fs+"/search?path=/src&name=*&limit=1", "").want(200)); len(got.Matches) != 1 || !got.Truncated {
		t.Errorf("with a limit: %+v", got)
	}
	if got := string(b.do("GET", fs+"/search?path=/src&name=none", "").want(200).body); got != `{"matches":[],"truncated":false,"skipped":0}`+"\n" {
		t.Errorf("nothing found is %s", got)
	}
	evs := b.events(b.send(b.request("GET", fs+"/search?"+q.Encode(), "", "Accept", "text/event-stream")))
	if len(evs) != 3 || evs[0].Name != api.EventMatch || evs[2].Name != api.EventEnd {
		t.Fatalf("events %+v", evs)
	}
	if m := eventData[api.FileMatch](t, evs[0]); m.Path != "/src/a.go" {
		t.Errorf("first match %+v", m)
	}
}

func TestArchives(t *testing.T) {
	b := newBench(t, httpapi.Config{})
	fs := b.fs()
	b.Inside.Put("/src/a", []byte("A"))
	b.Inside.Put("/src/skip", []byte("S"))
	a := b.do("GET", fs+"/archive?path=/src&exclude=skip&exclude=other", "").want(200)
	if a.header.Get("Content-Type") != "application/x-tar" {
		t.Errorf("an archive is %s", a.header.Get("Content-Type"))
	}
	r := tar.NewReader(bytes.NewReader(a.body))
	if h, err := r.Next(); err != nil || h.Name != "a" {
		t.Fatalf("first entry %+v, %v", h, err)
	}
	if _, err := r.Next(); !errors.Is(err, io.EOF) {
		t.Errorf("there is more than one entry: %v", err)
	}
	out := into[api.Unpacked](b.do("PUT", fs+"/archive?path=/dst", string(a.body)).want(200))
	if out.Files != 1 || out.Bytes != 1 || out.Skipped == nil || string(b.Inside.Data("/dst/a")) != "A" {
		t.Errorf("unpacked %+v", out)
	}
}

func TestWatching(t *testing.T) {
	b := newBench(t, quick)
	fs := b.fs()
	res := b.send(b.request("GET", fs+"/watch?path=/tmp", ""))
	in := newEventReader(res.Body)
	if ev := in.next(t); ev.Name != api.EventReady {
		t.Fatalf("first %+v", ev)
	}
	b.Inside.Put("/tmp/new", nil)
	if ev := in.next(t); ev.Name != api.EventChange || !reflect.DeepEqual(eventData[api.FileChange](t, ev), api.FileChange{Op: hutch.OpCreate, Name: "new"}) {
		t.Errorf("then %+v", ev)
	}
}

func TestPolledWatchers(t *testing.T) {
	b := newBench(t, httpapi.Config{WatcherKeep: time.Hour})
	fs := b.fs()
	w := into[api.Watcher](b.do("POST", fs+"/watchers", `{"path": "/tmp"}`).want(201))
	events := fs + "/watchers/" + w.WatcherID + "/events"
	poll := func(query string) api.Changes { return into[api.Changes](b.do("GET", events+query, "").want(200)) }
	if c := poll(""); len(c.Changes) != 0 || c.Cursor != 0 {
		t.Errorf("before anything: %+v", c)
	}
	b.Inside.Put("/tmp/a", nil)
	c := poll("?wait_seconds=10")
	if len(c.Changes) != 1 || c.Changes[0].Name != "a" || c.Cursor != 1 {
		t.Errorf("after one: %+v", c)
	}
	if again := poll(""); len(again.Changes) != 1 { // its answer may have been lost
		t.Errorf("asked again: %+v", again)
	}
	b.Inside.Put("/tmp/b", nil)
	if c := poll("?cursor=1&wait_seconds=10"); len(c.Changes) != 1 || c.Changes[0].Name != "b" || c.Cursor != 2 {
		t.Errorf("after two: %+v", c)
	}
	if c := poll("?cursor=0"); c.Changes[0].Op != hutch.OpOverflow { // given up by cursor=1
		t.Errorf("what was given up: %+v", c)
	}
	b.do("GET", events+"?cursor=9", "").wantError(400, "bad_request", "cursor")
	b.do("GET", events+"?wait_seconds=21", "").wantError(400, "bad_request", "wait_seconds")
	b.as(httpapitest.OtherKey).do("GET", events, "").wantError(404, "not_found", "")
	b.do("DELETE", fs+"/watchers/"+w.WatcherID, "").want(204)
	b.do("GET", events, "").wantError(404, "not_found", "")
	b.do("POST", fs+"/watchers", `{"path": "/no"}`).wantError(404, "not_found", "")
	b.eventually("no guest is held", func() bool { return b.Inside.Opened() == 0 })
}

func TestAWatcherThatNobodyAsksEnds(t *testing.T) {
	b := newBench(t, httpapi.Config{WatcherKeep: 20 * time.Millisecond})
	into[api.Watcher](b.do("POST", b.fs()+"/watchers", `{"path": "/tmp"}`).want(201))
	b.eventually("the watcher has ended", func() bool { return b.Inside.Opened() == 0 })
}

func TestAListingOfAnyLengthIsOneAnswer(t *testing.T) {
	b := newBench(t, httpapi.Config{})
	fs := b.fs()
	const n = hutch.MaxListLimit + 5
	for i := range n {
		b.Inside.Put(fmt.Sprintf("/many/%05d", i), nil)
	}
	var d api.Directory
	res := b.send(b.request("GET", fs+"/dir?path=/many", ""))
	if err := json.NewDecoder(res.Body).Decode(&d); err != nil {
		t.Fatal(err)
	}
	if len(d.Entries) != n || d.Entries[n-1].Name != fmt.Sprintf("%05d", n-1) {
		t.Errorf("%d entries, want %d", len(d.Entries), n)
	}
}

func TestRepeatedFileCalls(t *testing.T) {
	b := newBench(t, httpapi.Config{})
	fs := b.fs()
	for range 2 {
		b.do("POST", fs+"/mkdir", `{"path": "/once"}`, "Idempotency-Key", "k1").want(201)
		b.do("DELETE", fs+"?path=/tmp", "", "Idempotency-Key", "k2").want(204)
		b.do("PUT", fs+"?path=/f", "x", "Idempotency-Key", "k3").want(200)
	}
	if res := b.send(b.request("PUT", fs+"?path=/f", string(bytesOf(2<<20)), "Idempotency-Key", "k4")); res.StatusCode != http.StatusOK {
		t.Errorf("a keyed upload over the size of JSON bodies: status %d", res.StatusCode)
	}
}

// Who waits for news of a watcher that another closes has not left.
func TestAWatcherThatIsClosedWhileItIsAsked(t *testing.T) {
	b := newBench(t, httpapi.Config{})
	fs := b.fs()
	for range 20 { // now and then it is closed before it is asked, which is answered alike
		w := into[api.Watcher](b.do("POST", fs+"/watchers", `{"path": "/tmp"}`).want(201))
		sent, asked := make(chan struct{}), make(chan *live, 1)
		req := b.request("GET", fs+"/watchers/"+w.WatcherID+"/events?wait_seconds=20", "")
		req = req.WithContext(httptrace.WithClientTrace(req.Context(), &httptrace.ClientTrace{
			WroteRequest: func(httptrace.WroteRequestInfo) { close(sent) },
		}))
		go func() { defer close(asked); asked <- b.send(req) }()
		<-sent
		b.do("DELETE", fs+"/watchers/"+w.WatcherID, "").want(204)
		if a := <-asked; a == nil || a.StatusCode != 404 {
			t.Fatalf("answered with %d", a.StatusCode)
		}
	}
}
