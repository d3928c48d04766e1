package e2bapi

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"hutch.dev/hutch"
)

// put writes a file as one stream of bytes.
func (b *bench) put(path, content string, headers ...string) reply {
	b.t.Helper()
	return b.agent("POST", "/files?path="+url.QueryEscape(path), strings.NewReader(content), append([]string{"Content-Type", "application/octet-stream"}, headers...)...)
}

func (b *bench) get(path string, headers ...string) reply {
	b.t.Helper()
	return b.agent("GET", "/files?path="+url.QueryEscape(path), nil, headers...)
}

// form is a multipart body: pairs of the parameters of a part's Content-Disposition and its
// content.
func form(parts ...string) (string, string) {
	var out strings.Builder
	for i := 0; i+1 < len(parts); i += 2 {
		fmt.Fprintf(&out, "--bound\r\nContent-Disposition: form-data; %s\r\n\r\n%s\r\n", parts[i], parts[i+1])
	}
	out.WriteString("--bound--\r\n")
	return out.String(), "multipart/form-data; boundary=bound"
}

func packed(s string) string {
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	_, _ = z.Write([]byte(s))
	_ = z.Close()
	return out.String()
}

func TestDownload(t *testing.T) {
	b := newBench(t)
	text := strings.Repeat("0123456789", 20000)
	b.put("dir/a.txt", text)
	b.put("/empty", "")
	for name, c := range map[string]struct {
		path    string
		headers []string
		status  int
		body    string
	}{
		"whole":             {"dir/a.txt", nil, 200, text},
		"from the home":     {"~/dir/a.txt", nil, 200, text},
		"part":              {"dir/a.txt", []string{"Range", "bytes=3-7"}, 206, "34567"},
		"the end":           {"dir/a.txt", []string{"Range", "bytes=-2"}, 206, "89"},
		"from far in":       {"dir/a.txt", []string{"Range", "bytes=199990-"}, 206, "0123456789"},
		"several parts":     {"dir/a.txt", []string{"Range", "bytes=0-1,5-6"}, 200, text},
		"behind the end":    {"dir/a.txt", []string{"Range", "bytes=300000-"}, 416, ""},
		"part, not packed":  {"dir/a.txt", []string{"Range", "bytes=0-1", "Accept-Encoding", "gzip"}, 206, "01"},
		"empty":             {"/empty", nil, 200, ""},
		"node's encodings":  {"dir/a.txt", []string{"Accept-Encoding", "gzip, deflate"}, 200, text},
		"nothing possible":  {"dir/a.txt", []string{"Accept-Encoding", "br, identity;q=0"}, 406, ""},
		"nothing at all":    {"dir/a.txt", []string{"Accept-Encoding", "*;q=0"}, 406, ""},
		"missing":           {"missing", nil, 404, ""},
		"directory":         {"dir", nil, 400, ""},
		"another's home":    {"~root/x", nil, 400, ""},
		"not modified":      {"dir/a.txt", []string{"If-Modified-Since", time.Now().Add(time.Hour).UTC().Format(http.TimeFormat)}, 304, ""},
		"unknown user":      {"dir/a.txt&username=nobody-here", nil, 401, ""},
		"unknown and empty": {"&username=nobody-here", nil, 401, ""},
	} {
		path, more, _ := strings.Cut(c.path, "&")
		r := b.agent("GET", "/files?path="+url.QueryEscape(path)+"&"+more, nil, c.headers...)
		if r.status != c.status || c.status < 300 && string(r.body) != c.body {
			t.Errorf("%s: got %d and %d bytes %.80q", name, r.status, len(r.body), r.body)
		}
		if c.status >= 400 && c.status != 416 {
			var f failure
			if r.json(t, &f); f.Code != c.status || f.Message == "" {
				t.Errorf("%s: got %s", name, r.body)
			}
		}
		if c.status == 200 && (!r.sized || r.header.Get("Vary") != "Accept-Encoding" || !strings.HasPrefix(r.header.Get("Content-Disposition"), "inline; filename=")) {
			t.Errorf("%s: got %v", name, r.header)
		}
	}
	if r := b.agent("DELETE", "/files?path=x", nil); r.status != 405 {
		t.Errorf("DELETE: %d", r.status)
	}
}

func TestDownloadPacked(t *testing.T) {
	b := newBench(t)
	text := strings.Repeat("0123456789", 20000)
	b.put("a.txt", text)
	r := b.get("a.txt", "Accept-Encoding", "gzip")
	z, err := gzip.NewReader(bytes.NewReader(r.body))
	if err != nil || r.header.Get("Content-Encoding") != "gzip" || len(r.body) > len(text)/10 {
		t.Fatalf("got %v, %d bytes, %v", r.header, len(r.body), err)
	}
	if got, err := io.ReadAll(z); err != nil || string(got) != text {
		t.Errorf("got %d bytes, %v", len(got), err)
	}
	b.put("empty", "")
	if r := b.get("empty", "Accept-Encoding", "gzip"); r.header.Get("Content-Length") != "0" || r.header.Get("Content-Encoding") != "" {
		t.Errorf("an empty file: %v", r.header)
	}
}

func TestUpload(t *testing.T) {
	b := newBench(t)
	for name, c := range map[string]struct {
		query, body, typ string
		headers          []string
		status           int
		want             string
	}{
		"bytes":  {query: "path=a/b.txt", body: "hi", typ: "application/octet-stream", status: 200, want: `[{"path":"/home/user/a/b.txt","name":"b.txt","type":"file"}]`},
		"packed": {query: "path=p.txt", body: packed("hi"), typ: "application/octet-stream", headers: []string{"Content-Encoding", "gzip"}, status: 200, want: `[{"path":"/home/user/p.txt","name":"p.txt","type":"file"}]`},
		"with metadata": {
			query: "path=m.txt", body: "hi", typ: "application/octet-stream", headers: []string{"X-Metadata-Author", "me", "X-Metadata-UPPER-case", "v"}, status: 200,
			want: `[{"path":"/home/user/m.txt","name":"m.txt","type":"file","metadata":{"author":"me","upper-case":"v"}}]`,
		},
		"no path":          {body: "hi", typ: "application/octet-stream", status: 400},
		"other type":       {query: "path=x", body: "hi", typ: "text/plain", status: 400},
		"no type":          {query: "path=x", body: "hi", status: 400},
		"other encoding":   {query: "path=x", body: "hi", typ: "application/octet-stream", headers: []string{"Content-Encoding", "br"}, status: 400},
		"not packed":       {query: "path=x", body: "hi", typ: "application/octet-stream", headers: []string{"Content-Encoding", "gzip"}, status: 400},
		"cut short":        {query: "path=x", body: packed("hello")[:20], typ: "application/octet-stream", headers: []string{"Content-Encoding", "gzip"}, status: 400},
		"disk full":        {query: "path=/full/x", body: "hi", typ: "application/octet-stream", status: 507},
		"a directory":      {query: "path=/home", body: "hi", typ: "application/octet-stream", status: 400},
		"unknown user":     {query: "path=x&username=nobody-here", body: "hi", typ: "application/octet-stream", status: 401},
		"metadata no text": {query: "path=x", body: "hi", typ: "application/octet-stream", headers: []string{"X-Metadata-A", "\xc3\xbc"}, status: 400},
		"metadata long":    {query: "path=x", body: "hi", typ: "application/octet-stream", headers: []string{"X-Metadata-A", strings.Repeat("x", 4096)}, status: 400},
		"metadata key":     {query: "path=x", body: "hi", typ: "application/octet-stream", headers: []string{"X-Metadata-" + strings.Repeat("x", 247), "v"}, status: 400},
		"a form cut short": {query: "path=x", body: "--bound\r\nContent-Disposition: form-data; name=\"file\"\r\n\r\nhi", typ: "multipart/form-data; boundary=bound", status: 400},
		"not a form":       {query: "path=x", body: "hi", typ: "multipart/form-data; boundary=bound", status: 400},
	} {
		r := b.agent("POST", "/files?"+c.query, strings.NewReader(c.body), append([]string{"Content-Type", c.typ}, c.headers...)...)
		if r.status != c.status || c.want != "" && !sameJSON(t, string(r.body), c.want) {
			t.Errorf("%s: got %d %s", name, r.status, r.body)
		}
		if c.want != "" {
			var l []written
			r.json(t, &l)
			if got, err := os.ReadFile(b.real(l[0].Path)); err != nil || string(got) != "hi" {
				t.Errorf("%s: wrote %q, %v", name, got, err)
			}
		}
	}
}

// TestUploadedForms: a part's name has directories, may be missing, and yields to the query.
func TestUploadedForms(t *testing.T) {
	b := newBench(t)
	for name, c := range map[string]struct {
		query  string
		parts  []string
		status int
		want   string
	}{
		"directories in the name": {
			"",
			[]string{`name="file"; filename="x/y/one.txt"`, "1", `name="file"; filename="/tmp/two.txt"`, "2"},
			200,
			`[{"path":"/home/user/x/y/one.txt","name":"one.txt","type":"file"},{"path":"/tmp/two.txt","name":"two.txt","type":"file"}]`,
		},
		"the query wins":     {"?path=/tmp/q.txt", []string{`name="file"; filename="other.txt"`, "q"}, 200, `[{"path":"/tmp/q.txt","name":"q.txt","type":"file"}]`},
		"no name":            {"?path=/tmp/n.txt", []string{`name="file"`, "n"}, 200, `[{"path":"/tmp/n.txt","name":"n.txt","type":"file"}]`},
		"other parts":        {"?path=/tmp/o.txt", []string{`name="comment"`, "c", `name="file"; filename="o"`, "o"}, 200, `[{"path":"/tmp/o.txt","name":"o.txt","type":"file"}]`},
		"nothing":            {"", nil, 200, `[]`},
		"nowhere":            {"", []string{`name="file"`, "n"}, 400, ""},
		"twice":              {"", []string{`name="file"; filename="/tmp/t"`, "1", `name="file"; filename="/tmp/./t"`, "2"}, 400, ""},
		"twice by the query": {"?path=t", []string{`name="file"; filename="a"`, "1", `name="file"; filename="b"`, "2"}, 400, ""},
	} {
		body, typ := form(c.parts...)
		r := b.agent("POST", "/files"+c.query, strings.NewReader(body), "Content-Type", typ)
		if r.status != c.status || c.want != "" && !sameJSON(t, string(r.body), c.want) {
			t.Errorf("%s: got %d %s", name, r.status, r.body)
		}
	}
}

// TestWhatTheUserMayNot is done as root, and given to the user.
func TestWhatTheUserMayNot(t *testing.T) {
	b := newBench(t)
	if r := b.put("/roots/dir/f", "0123456789"); r.status != 200 || !strings.Contains(string(r.body), "/roots/dir/f") {
		t.Fatalf("write: %d %s", r.status, r.body)
	}
	if r := b.get("/roots/dir/f"); string(r.body) != "0123456789" {
		t.Errorf("read: %d %q", r.status, r.body)
	}
	body, typ := form(`name="file"; filename="/roots/g"`, "multipart")
	if r := b.agent("POST", "/files", strings.NewReader(body), "Content-Type", typ); r.status != 200 {
		t.Errorf("multipart: %d %s", r.status, r.body)
	}
	for _, c := range [][2]string{
		{"Stat", `{"path":"/roots/g"}`},
		{"ListDir", `{"path":"/roots"}`},
		{"MakeDir", `{"path":"/roots/made"}`},
		{"Move", `{"source":"/roots/g","destination":"~/moved"}`},
		{"Remove", `{"path":"/roots/dir"}`},
	} {
		if r := b.call("filesystem.Filesystem/"+c[0], c[1]); r.status != 200 {
			t.Errorf("%s: %d %s", c[0], r.status, r.body)
		}
	}
	for _, want := range []string{
		"/roots/dir by root for user:1000", "/roots/dir/f by root for user:1000", "/roots/g by root for user:1000", "/roots/made by root for user:1000",
		"/roots/g → /home/user/moved by root for :",
	} {
		if !slices.Contains(b.given, want) {
			t.Errorf("%q is not in %q", want, b.given)
		}
	}
	if got := b.get("moved"); string(got.body) != "multipart" {
		t.Errorf("moved: %q", got.body)
	}
	b.failed(b.call("filesystem.Filesystem/Stat", `{"path":"/roots/missing"}`), "not_found", "missing")
}

func TestContentAgain(t *testing.T) {
	c := &content{r: strings.NewReader("0123456789")}
	_, _ = io.CopyN(io.Discard, c, 4)
	next, ok := c.again()
	got, err := io.ReadAll(next)
	if !ok || err != nil || string(got) != "0123456789" {
		t.Errorf("got %q, %v, %v", got, ok, err)
	}
	if _, err := c.Read(make([]byte, 1)); err == nil {
		t.Error("the first can still be read")
	}
	c = &content{r: io.LimitReader(zeros{}, maxKept+1)}
	if _, err := io.Copy(io.Discard, c); err != nil {
		t.Fatal(err)
	}
	if _, ok := c.again(); ok {
		t.Error("more is kept than is allowed")
	}
}

func TestAbsolute(t *testing.T) {
	for p, want := range map[string]string{"a/b": "/h/a/b", "~": "/h", "~/x": "/h/x", "/x": "/x", "~x": "/h/~x"} {
		if got := absolute(p, "/h"); got != want {
			t.Errorf("%s: got %s, want %s", p, got, want)
		}
	}
}

func TestMetadataIsReplacedWhole(t *testing.T) {
	b := newBench(t)
	b.put("m", "1", "X-Metadata-A", "1", "X-Metadata-B", "2")
	var e entryAnswer
	b.call("filesystem.Filesystem/Stat", `{"path":"m"}`).json(t, &e)
	if fmt.Sprint(e.Entry.Metadata) != "map[a:1 b:2]" {
		t.Errorf("got %v", e.Entry.Metadata)
	}
	b.put("m", "2")
	e = entryAnswer{}
	b.call("filesystem.Filesystem/Stat", `{"path":"m"}`).json(t, &e)
	if len(e.Entry.Metadata) != 0 {
		t.Errorf("got %v", e.Entry.Metadata)
	}
}

func TestCompose(t *testing.T) {
	b := newBench(t)
	b.put("p1", "one ")
	b.put("p2", "two")
	r := b.agent("POST", "/files/compose", strings.NewReader(`{"source_paths":["p1","p2"],"destination":"all.txt"}`))
	if !sameJSON(t, string(r.body), `{"path":"/home/user/all.txt","name":"all.txt","type":"file"}`) {
		t.Errorf("got %d %s", r.status, r.body)
	}
	if got := b.get("all.txt"); string(got.body) != "one two" {
		t.Errorf("got %q", got.body)
	}
	if r := b.get("p1"); r.status != 404 {
		t.Errorf("a source is left: %d", r.status)
	}
	// What was made is not removed as one of its sources, however it is named.
	for _, paths := range [][2]string{{"c", "/home/user/c"}, {"/home/user/./c", "c"}, {"c", "c"}} {
		b.put("c", "kept")
		r := b.agent("POST", "/files/compose", strings.NewReader(`{"source_paths":["`+paths[0]+`"],"destination":"`+paths[1]+`"}`))
		if got := b.get("c"); r.status != 200 || string(got.body) != "kept" {
			t.Errorf("%q: got %d %s, then %d %q", paths, r.status, r.body, got.status, got.body)
		}
	}
	for body, status := range map[string]int{
		`{"source_paths":["missing"],"destination":"x"}`: 404, `{"source_paths":[],"destination":"x"}`: 400, `{"source_paths":["a"]}`: 400, `{`: 400,
		`{"source_paths":["a"],"destination":"x","username":"nobody-here"}`: 401,
	} {
		if r := b.agent("POST", "/files/compose", strings.NewReader(body)); r.status != status {
			t.Errorf("%s: got %d %s", body, r.status, r.body)
		}
	}
}

func TestFilesystem(t *testing.T) {
	b := newBench(t)
	r := b.call("filesystem.Filesystem/MakeDir", `{"path":"d/e"}`)
	var e entryAnswer
	r.json(t, &e)
	if e.Entry.Path != "/home/user/d/e" || e.Entry.Type != "FILE_TYPE_DIRECTORY" || e.Entry.Permissions != "drwxr-xr-x" || e.Entry.Mode != 0o755 {
		t.Errorf("got %s", r.body)
	}
	b.failed(b.call("filesystem.Filesystem/MakeDir", `{"path":"d/e"}`), "already_exists", "")
	b.put("d/e/f.txt", "12345")
	r = b.call("filesystem.Filesystem/Stat", `{"path":"d/e/f.txt"}`)
	if !strings.Contains(string(r.body), `"size":"5"`) || !strings.Contains(string(r.body), `"type":"FILE_TYPE_FILE"`) || !strings.Contains(string(r.body), `"mode":420`) || !strings.Contains(string(r.body), `"permissions":"-rw-r--r--"`) {
		t.Errorf("got %s", r.body)
	}
	b.failed(b.call("filesystem.Filesystem/Stat", `{"path":"nope"}`), "not_found", "nope")
	r = b.call("filesystem.Filesystem/Move", `{"source":"d/e/f.txt","destination":"g/h.txt"}`)
	r.json(t, &e)
	if e.Entry.Path != "/home/user/g/h.txt" {
		t.Errorf("got %s", r.body)
	}
	b.failed(b.call("filesystem.Filesystem/Move", `{"source":"d/e/f.txt","destination":"x"}`), "not_found", "")
	b.failed(b.call("filesystem.Filesystem/Move", `{"source":"d"}`), "invalid_argument", "destination")
	for range 2 {
		if r := b.call("filesystem.Filesystem/Remove", `{"path":"g"}`); r.status != 200 {
			t.Errorf("remove: %d %s", r.status, r.body)
		}
	}
	b.failed(b.call("filesystem.Filesystem/Remove", `{}`), "invalid_argument", "path")
	b.failed(b.call("filesystem.Filesystem/Stat", `{"path":"~root"}`), "invalid_argument", "home")
	b.failed(b.call("filesystem.Filesystem/Stat", `{"path":"x"}`, "Authorization", "Basic "+b64("nobody-here:")), "unauthenticated", "invalid username: 'nobody-here'")
	if r := b.call("filesystem.Filesystem/Stat", `{"path":""}`); !strings.Contains(string(r.body), `"path":"/home/user"`) {
		t.Errorf("no path: %s", r.body)
	}
}

func TestListDir(t *testing.T) {
	b := newBench(t)
	for _, f := range []string{"l/b/x", "l/b/y", "l/a", "l/c"} {
		b.put(f, "")
		if err := os.Remove(b.real("/home/user/" + f + ".meta")); err != nil {
			t.Fatal(err)
		}
	}
	names := func(msg string) string {
		var l listAnswer
		b.call("filesystem.Filesystem/ListDir", msg).json(t, &l)
		var out []string
		for _, e := range l.Entries {
			out = append(out, strings.TrimPrefix(e.Path, "/home/user/l/"))
		}
		return strings.Join(out, " ")
	}
	for msg, want := range map[string]string{
		`{"path":"l"}`: "a b c", `{"path":"l","depth":0}`: "a b c", `{"path":"l","depth":2}`: "a b b/x b/y c",
	} {
		if got := names(msg); got != want {
			t.Errorf("%s: got %s, want %s", msg, got, want)
		}
	}
	b.call("filesystem.Filesystem/MakeDir", `{"path":"void"}`)
	if r := b.call("filesystem.Filesystem/ListDir", `{"path":"void"}`); strings.TrimSpace(string(r.body)) != `{"entries":[]}` {
		t.Errorf("got %s", r.body)
	}
	b.failed(b.call("filesystem.Filesystem/ListDir", `{"path":"l/a"}`), "invalid_argument", "")
	b.failed(b.call("filesystem.Filesystem/ListDir", `{"path":"nope"}`), "not_found", "")
	b.failed(b.call("filesystem.Filesystem/ListDir", `{"path":"l","depth":65}`), "invalid_argument", "64")
}

func TestShowsLinks(t *testing.T) {
	link := hutch.FileInfo{Name: "l", Path: "/l", Type: hutch.TypeSymlink, Size: 4, Mode: 0o777, LinkTarget: "f"}
	to := link
	to.Target = &hutch.FileTarget{Path: "/d/f", Type: hutch.TypeFile, Mode: 0o100600 & 0o7777}
	for name, c := range map[string]struct {
		f    hutch.FileInfo
		want string
	}{
		"to a file": {to, "FILE_TYPE_FILE 600 Lrwxrwxrwx /d/f"},
		"broken":    {link, "FILE_TYPE_SYMLINK 777 Lrwxrwxrwx /l"},
		"sticky":    {hutch.FileInfo{Type: hutch.TypeDirectory, Mode: 0o1777}, "FILE_TYPE_DIRECTORY 777 dtrwxrwxrwx "},
		"setuid":    {hutch.FileInfo{Type: hutch.TypeFile, Mode: 0o4755}, "FILE_TYPE_FILE 755 urwxr-xr-x "},
		"a socket":  {hutch.FileInfo{Type: hutch.TypeOther, Mode: 0o600}, "FILE_TYPE_UNSPECIFIED 600 ?rw------- "},
	} {
		e := showEntryInfo(c.f)
		if got := fmt.Sprintf("%s %o %s %s", e.Type, e.Mode, e.Permissions, e.Target); got != c.want {
			t.Errorf("%s: got %s, want %s", name, got, c.want)
		}
	}
}

func TestWatchDir(t *testing.T) {
	b := newBench(t)
	s := b.stream("filesystem.Filesystem/WatchDir", `{"path":"/home/user","recursive":true,"includeEntry":true,"allowNetworkMounts":true}`)
	s.want(`{"start":{}}`)
	w := <-b.watches
	if !w.q.Recursive || !w.q.Entry || w.q.User != "user" {
		t.Errorf("got %+v", w.q)
	}
	for op, typ := range map[hutch.FileOp]string{
		hutch.OpCreate: "CREATE", hutch.OpWrite: "WRITE", hutch.OpRemove: "REMOVE", hutch.OpRename: "RENAME", hutch.OpChmod: "CHMOD",
	} {
		if err := w.sink(hutch.FileEvent{Op: op, Name: "sub/f"}); err != nil {
			t.Fatal(err)
		}
		s.want(`{"filesystem":{"name":"sub/f","type":"EVENT_TYPE_` + typ + `"}}`)
	}
	if err := w.sink(hutch.FileEvent{Op: hutch.OpCreate, Name: "f", Entry: &hutch.FileInfo{Name: "f", Path: "/home/user/f", Type: hutch.TypeFile}}); err != nil {
		t.Fatal(err)
	}
	if m := s.next(); !strings.Contains(m, `"entry":{"name":"f"`) {
		t.Errorf("got %s", m)
	}
	w.end <- w.sink(hutch.FileEvent{Op: hutch.OpOverflow})
	s.end("data_loss")
	b.stream("filesystem.Filesystem/WatchDir", `{"path":"nope"}`).end("not_found")
	s = b.stream("filesystem.Filesystem/WatchDir", `{"path":"/home/user"}`, "Connect-Timeout-Ms", "50")
	s.next()
	s.end("deadline_exceeded")
}

func TestWatchers(t *testing.T) {
	b := newBench(t)
	var m watcherMessage
	b.call("filesystem.Filesystem/CreateWatcher", `{"path":"/home/user"}`).json(t, &m)
	w := <-b.watches
	events := func() string {
		r := b.call("filesystem.Filesystem/GetWatcherEvents", `{"watcherId":"`+m.ID+`"}`)
		return strings.TrimSpace(string(r.body))
	}
	if got := events(); got != `{"events":[]}` {
		t.Errorf("got %s", got)
	}
	for _, name := range []string{"a", "b"} {
		if err := w.sink(hutch.FileEvent{Op: hutch.OpWrite, Name: name}); err != nil {
			t.Fatal(err)
		}
	}
	if got := events(); got != `{"events":[{"name":"a","type":"EVENT_TYPE_WRITE"},{"name":"b","type":"EVENT_TYPE_WRITE"}]}` {
		t.Errorf("got %s", got)
	}
	if got := events(); got != `{"events":[]}` {
		t.Errorf("events are told twice: %s", got)
	}
	for range maxEvents {
		if err := w.sink(hutch.FileEvent{Op: hutch.OpWrite, Name: "x"}); err != nil {
			t.Fatal(err)
		}
	}
	err := w.sink(hutch.FileEvent{Op: hutch.OpWrite, Name: "x"})
	if err == nil {
		t.Fatal("there is no bound")
	}
	w.end <- err
	b.failed(b.awaitEnd(m.ID), "data_loss", "")
	if r := b.call("filesystem.Filesystem/RemoveWatcher", `{"watcherId":"`+m.ID+`"}`); r.status != 200 {
		t.Errorf("remove: %d %s", r.status, r.body)
	}
	b.failed(b.call("filesystem.Filesystem/RemoveWatcher", `{"watcherId":"`+m.ID+`"}`), "not_found", m.ID)
	b.failed(b.call("filesystem.Filesystem/GetWatcherEvents", `{"watcherId":"`+m.ID+`"}`), "not_found", m.ID)
	b.failed(b.call("filesystem.Filesystem/CreateWatcher", `{"path":"nope"}`), "not_found", "")
	for range maxWatchers {
		b.call("filesystem.Filesystem/CreateWatcher", `{"path":"/home/user"}`)
		<-b.watches
	}
	b.failed(b.call("filesystem.Filesystem/CreateWatcher", `{"path":"/home/user"}`), "resource_exhausted", "128")
}

// awaitEnd fetches events until there is an error.
func (b *bench) awaitEnd(watcher string) reply {
	for {
		r := b.call("filesystem.Filesystem/GetWatcherEvents", `{"watcherId":"`+watcher+`"}`)
		if r.status != 200 || b.t.Context().Err() != nil {
			return r
		}
	}
}

// TestSignature uses the published examples.
func TestSignature(t *testing.T) {
	const token = "0tQG31xiMp0IOQfaz9dcwi72L1CPo8e0"
	for want, s := range map[string]signed{
		"v1_gUtH/s9YCJWgCizjfUxuWfhFE4QSydOWEIIvfLwDr6E": {path: "hello.txt", operation: opRead, user: "user"},
		"v1_0naVYdF096tFVky/LfWLfmmVtKJTU9vxAdehWzTZD7U": {path: "hello.txt", operation: opRead, expiration: "1700000000"},
	} {
		if got := s.sign(token); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

func TestSignedURLs(t *testing.T) {
	b := newBench(t)
	b.create(`{"templateID":"base"}`) // another that could be meant
	b.control("POST", "/sandboxes", `{"templateID":"base"}`)
	b.put("hello+.txt", "hi")
	link := func(s signed) string {
		q := url.Values{"path": {s.path}, "signature": {s.sign(b.Token(b.sb, TokenAgent))}}
		if s.user != "" {
			q.Set("username", s.user)
		}
		if s.expiration != "" {
			q.Set("signature_expiration", s.expiration)
		}
		return "/files?" + q.Encode()
	}
	future, past := fmt.Sprint(time.Now().Unix()+60), fmt.Sprint(time.Now().Unix()-60)
	body, typ := form(`name="file"`, "up")
	for _, headers := range [][]string{nil, {HeaderSandbox, string(b.sb), HeaderPort, "49983"}, {"Host", "49983-" + string(b.sb) + ".localhost"}} {
		for _, s := range []signed{{path: "hello+.txt", operation: opRead}, {path: "hello+.txt", operation: opRead, user: "root", expiration: future}} {
			if r := b.do("GET", link(s), nil, headers...); r.status != 200 || string(r.body) != "hi" || r.header.Get("Access-Control-Allow-Origin") != "*" {
				t.Errorf("%+v %v: got %d %s", s, headers, r.status, r.body)
			}
		}
		r := b.do("GET", link(signed{path: "hello+.txt", operation: opRead, expiration: past}), nil, headers...)
		if r.status != 401 || !sameJSON(t, string(r.body), `{"code":401,"message":"signature is already expired"}`) {
			t.Errorf("expired: got %d %s", r.status, r.body)
		}
		for name, l := range map[string]string{
			"for writing":   link(signed{path: "hello+.txt", operation: opWrite}),
			"another path":  strings.Replace(link(signed{path: "hello+.txt", operation: opRead}), "hello", "hallo", 1),
			"another user":  link(signed{path: "hello+.txt", operation: opRead}) + "&username=root",
			"no signature":  "/files?path=x",
			"made up":       "/files?path=x&signature=v1_x",
			"lives forever": strings.Replace(link(signed{path: "hello+.txt", operation: opRead, expiration: past}), past, "99999999999", 1),
		} {
			if r := b.do("GET", l, nil, headers...); r.status != 401 {
				t.Errorf("%s: got %d %s", name, r.status, r.body)
			}
		}
		if r := b.do("POST", link(signed{path: "up.txt", operation: opWrite}), strings.NewReader(body), append([]string{"Content-Type", typ}, headers...)...); r.status != 200 || !strings.Contains(string(r.body), "/home/user/up.txt") {
			t.Errorf("upload: got %d %s", r.status, r.body)
		}
		if r := b.do("OPTIONS", "/files?path=x", nil, append([]string{"Origin", "https://x"}, headers...)...); r.status != 204 || r.header.Get("Access-Control-Allow-Origin") != "*" {
			t.Errorf("preflight: %d %v", r.status, r.header)
		}
	}
	b.kill()
	if r := b.do("GET", link(signed{path: "hello+.txt", operation: opRead}), nil); r.status != 401 {
		t.Errorf("after the end: %d", r.status)
	}
}

func FuzzParseMetadata(f *testing.F) {
	for _, s := range []string{"", "a=b", "a%20b=c%26d", "%", "a=b&&c", "=x", "a%2520b=c%252526d"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		m, err := parseMetadata(s)
		if err == nil && s != "" && len(m) == 0 {
			t.Errorf("%q asks for nothing and is no error", s)
		}
	})
}

func FuzzTarget(f *testing.F) {
	f.Add("iaaaaaaaaaaaaaaaaaaaa", "49983", "")
	f.Add("", "", "49983-iaaaaaaaaaaaaaaaaaaaa.localhost:80")
	f.Add("x", "-1", "a")
	f.Fuzz(func(t *testing.T, sb, port, host string) {
		r := newRequest(sb, port, host)
		got, n := target(r)
		if (got == "") != (n == 0) || n < 0 || n > 65535 || strings.Contains(string(got), "-") {
			t.Errorf("got %q, %d", got, n)
		}
	})
}

func FuzzRefusals(f *testing.F) {
	f.Add([]byte(`{"templateID":"base","network":{"rules":{}},"autoResume":{"enabled":true}}`))
	f.Add([]byte(`{"mcp":[],"iam":0,"volumeMounts":""}`))
	f.Fuzz(func(_ *testing.T, body []byte) {
		var n newSandbox
		if decode(body, &n) == nil && n.refuse() == nil {
			_, _ = n.access(true)
		}
	})
}
