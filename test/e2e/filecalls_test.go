package e2e

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"hutch.dev/hutch"
	"hutch.dev/hutch/api"
	"hutch.dev/hutch/internal/x/sse"
)

// asked is a call as it goes over the wire, and its answer.
type asked struct {
	t      *testing.T
	what   string
	status int
	header http.Header
	body   string
}

func (s *server) ask(t *testing.T, method, path, body string, headers ...string) asked {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, s.base+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+s.key)
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatalf("%s %s: %v", method, path, err)
	}
	return asked{t, method + " " + path, res.StatusCode, res.Header, string(b)}
}

func (a asked) want(status int) asked {
	a.t.Helper()
	if a.status != status {
		a.t.Fatalf("%s: status %d, want %d: %.500s", a.what, a.status, status, a.body)
	}
	return a
}

func answered[T any](a asked) (v T) {
	a.t.Helper()
	if err := json.Unmarshal([]byte(a.body), &v); err != nil {
		a.t.Fatalf("%s: %v in %s", a.what, err, a.body)
	}
	return v
}

// inside fails the test unless a command prints that.
func (s *server) inside(t *testing.T, sb hutch.SandboxID, cmd, want string) {
	t.Helper()
	if got := s.out(t, sb, cmd); got != want {
		t.Errorf("%s: %q, want %q", cmd, got, want)
	}
}

// Every parameter of a call about files does what its description says, all the way down to
// the files of a real sandbox.
func TestFileCallsDoAsTheirParametersSay(t *testing.T) {
	s := common(t)
	sb := s.create(t, api.CreateSandbox{}).ID
	f := fileCalls{s, sb, "/v1/sandboxes/" + string(sb) + "/fs"}
	s.out(t, sb, "mkdir -p /srv/closed && echo secret >/srv/closed/f && chmod 700 /srv/closed")
	for name, test := range map[string]func(*testing.T){
		"write": f.write, "parts": f.parts, "read": f.read, "list": f.list, "make": f.make, "move": f.move,
		"remove": f.remove, "search": f.search, "archive": f.archive, "unpack": f.unpack, "watch": f.watch, "watchers": f.watchers,
	} {
		t.Run(name, test)
	}
}

type fileCalls struct {
	s  *server
	sb hutch.SandboxID
	at string
}

func (f fileCalls) ask(t *testing.T, method, path, body string, headers ...string) asked {
	t.Helper()
	return f.s.ask(t, method, f.at+path, body, headers...)
}

func (f fileCalls) write(t *testing.T) {
	w := answered[api.Written](f.ask(t, "PUT", "?path=/tmp/w&mode=2640&owner=user&group=daemon&details=1", "one", "X-Metadata-Author", "robot").want(200))
	if w.Bytes != 3 || w.File == nil || w.File.Owner != "user" || w.File.Permissions != "2640" || w.File.Metadata["author"] != "robot" {
		t.Errorf("written: %+v, %+v", w, w.File)
	}
	f.s.inside(t, f.sb, `cat /tmp/w; stat -c ' %U %G %a' /tmp/w; python3 -c 'import os; print(os.getxattr("/tmp/w", "user.e2b.author").decode())'`, "one user daemon 2640\nrobot")
	if w := answered[api.Written](f.ask(t, "PUT", "?path=/tmp/w", "two").want(200)); w.File != nil {
		t.Errorf("without details: %+v", w)
	}
	f.ask(t, "PUT", "?path=/tmp/w&excl=1", "three").want(409)
	f.s.inside(t, f.sb, "cat /tmp/w; stat -c ' %U %G %a' /tmp/w", "two user daemon 2640") // those of the file it replaced
	f.ask(t, "PUT", "?path=by/user&user=user&excl=true", "x").want(200)
	f.s.inside(t, f.sb, "stat -c '%U %a' /home/user/by /home/user/by/user", "user 755\nuser 644")
	f.ask(t, "PUT", "?path=/srv/closed/new&user=user", "x").want(403)
	f.ask(t, "PUT", "?path=/home/user/given&user=user&owner=root", "x").want(403)
}

func (f fileCalls) parts(t *testing.T) {
	put := func(query, body string, status int) api.Written {
		t.Helper()
		return answered[api.Written](f.ask(t, "PUT", "?path=/tmp/p&upload=u-1&"+query, body).want(status))
	}
	if w := put("upload_offset=0", "abc", 200); w.Bytes != 3 || w.Complete == nil || *w.Complete {
		t.Errorf("first: %+v", w)
	}
	f.s.inside(t, f.sb, "test -e /tmp/p || echo none", "none")
	put("upload_offset=9", "x", 409)
	put("upload_offset=1", "bcdef", 200)
	// What the file is like is said with the part that ends it.
	if w := put("upload_offset=6&last=1&mode=0600&owner=user&details=1", "g", 200); w.Bytes != 7 || !*w.Complete || w.File.Permissions != "0600" {
		t.Errorf("last: %+v", w)
	}
	f.s.inside(t, f.sb, "cat /tmp/p; stat -c ' %U %a' /tmp/p", "abcdefg user 600")
}

func (f fileCalls) read(t *testing.T) {
	f.s.out(t, f.sb, "printf 0123456789 >/home/user/digits; printf root >/root/digits; chown user /home/user/digits; ln -sfn digits /home/user/link; printf - >/home/user/-; chmod 640 /home/user/digits")
	for query, want := range map[string]string{
		"path=digits&user=user": "0123456789", "path=digits": "root", "path=/home/user/digits&offset=7": "789",
		"path=/home/user/digits&offset=3&length=2": "34", "path=/home/user/link&length=1": "0", "path=-&user=1000": "-",
	} {
		if a := f.ask(t, "GET", "?"+query, "").want(200); a.body != want {
			t.Errorf("%s: %q, want %q", query, a.body, want)
		}
	}
	if a := f.ask(t, "GET", "?path=/home/user/digits", "", "Range", "bytes=-3").want(206); a.body != "789" || a.header.Get(api.HeaderFileMode) != "0640" || !strings.HasPrefix(a.header.Get(api.HeaderFileOwner), "user:") {
		t.Errorf("a range: %q, %v", a.body, a.header)
	}
	f.ask(t, "GET", "?path=/srv/closed/f&user=user", "").want(403)
	f.ask(t, "GET", "/stat?path=/srv/closed/f&user=user", "").want(403)
	if x := answered[api.File](f.ask(t, "GET", "/stat?path=link&user=user", "").want(200)); x.Mode != "l" || x.Path != "" {
		t.Errorf("a link: %+v", x)
	}
	if x := answered[api.File](f.ask(t, "GET", "/stat?path=link&user=user&details=1", "").want(200)); x.Path != "/home/user/link" || x.LinkTarget != "digits" || x.Target == nil || x.Target.Path != "/home/user/digits" {
		t.Errorf("with details: %+v", x)
	}
}

func (f fileCalls) list(t *testing.T) {
	f.s.out(t, f.sb, "mkdir -p /home/user/l/a/b/c && touch /home/user/l/a/b/c/d /home/user/l/z && chown -R user /home/user/l")
	list := func(query string) (names []string, d api.Directory) {
		t.Helper()
		d = answered[api.Directory](f.ask(t, "GET", "/dir?"+query, "").want(200))
		for _, e := range d.Entries {
			names = append(names, e.Name)
		}
		return names, d
	}
	if names, d := list(""); !slices.Contains(names, "tmp") || d.Path != "/" || d.Entries[0].Path != "" {
		t.Errorf("without a path: %v of %s", names, d.Path)
	}
	for query, want := range map[string]string{"": "a z", "&depth=1": "a z", "&depth=3": "a b c z", "&depth=64": "a b c d z"} {
		if names, _ := list("path=l&user=user" + query); strings.Join(names, " ") != want {
			t.Errorf("%s: %v, want %s", query, names, want)
		}
	}
	var pages []string
	for cursor := ""; ; {
		names, d := list("path=l&user=user&depth=64&limit=2&details=1&cursor=" + url.QueryEscape(cursor))
		pages = append(pages, strings.Join(names, " "))
		if !strings.HasPrefix(d.Entries[0].Path, "/home/user/l/") {
			t.Errorf("with details: %+v", d.Entries[0])
		}
		if cursor = d.Next; cursor == "" {
			break
		}
	}
	if got := strings.Join(pages, "|"); got != "a b|c d|z" {
		t.Errorf("pages: %s", got)
	}
	f.ask(t, "GET", "/dir?path=/srv/closed&user=user", "").want(403)
}

func (f fileCalls) make(t *testing.T) {
	f.ask(t, "POST", "/mkdir", `{"path": "m/n", "user": "user", "mode": "0711"}`).want(201)
	f.s.inside(t, f.sb, "stat -c '%U %a' /home/user/m/n", "user 711")
	f.ask(t, "POST", "/mkdir", `{"path": "/tmp/m", "owner": "user", "group": "daemon"}`).want(201)
	f.s.inside(t, f.sb, "stat -c '%U %G %a' /tmp/m", "user daemon 755")
	f.ask(t, "POST", "/mkdir", `{"path": "/tmp/m"}`).want(409)
	f.ask(t, "POST", "/mkdir", `{"path": "/tmp/m", "exists": true}`).want(201)
	f.ask(t, "POST", "/mkdir", `{"path": "/srv/closed/m", "user": "user"}`).want(403)
}

func (f fileCalls) move(t *testing.T) {
	f.s.out(t, f.sb, "cd /home/user && echo from >from && echo to >to && chown user from to")
	f.ask(t, "POST", "/move", `{"from": "from", "to": "to", "user": "user", "excl": true}`).want(409)
	f.s.inside(t, f.sb, "cd /home/user && cat from to", "from\nto")
	f.ask(t, "POST", "/move", `{"from": "from", "to": "to", "user": "user"}`).want(200)
	f.s.inside(t, f.sb, "cd /home/user && cat to && test ! -e from", "from")
	f.ask(t, "POST", "/move", `{"from": "/srv/closed", "to": "/tmp/closed", "user": "user"}`).want(403)
}

func (f fileCalls) remove(t *testing.T) {
	f.s.out(t, f.sb, "mkdir -p /home/user/r/s && touch /home/user/r/s/t && chown -R user /home/user/r")
	f.ask(t, "DELETE", "?path=r&user=user&recursive=0", "").want(409)
	f.ask(t, "DELETE", "?path=r/s/t&user=user&recursive=0", "").want(204)
	f.ask(t, "DELETE", "?path=r&user=user", "").want(204)
	f.ask(t, "DELETE", "?path=r&user=user", "").want(404)
	f.ask(t, "DELETE", "?path=r&user=user&missing=1", "").want(204)
	f.ask(t, "DELETE", "?path=/srv/closed&user=user", "").want(403)
	f.s.inside(t, f.sb, "cat /srv/closed/f; ls /home/user | grep -cx r || true", "secret\n0")
}

func (f fileCalls) search(t *testing.T) {
	f.s.out(t, f.sb, `mkdir -p /home/user/s/.h && cd /home/user/s && printf 'x\nfunc Find\n' >a.go && printf 'func find\n' >b.go && printf 'func Find\n' >c.txt && cp a.go .h && mkdir shut && cp a.go shut && chown -R user . && chown root shut && chmod 700 shut`)
	for query, want := range map[string]string{
		"name=*.go":                                 "a.go b.go shut/a.go",
		"name=*.go&user=user":                       "a.go b.go",
		"text=^func F&user=user":                    "a.go:2 c.txt:1",
		"text=^func F&ignore_case=1&user=user":      "a.go:2 b.go:1 c.txt:1",
		"name=*.go&text=Find&hidden=true&user=user": ".h/a.go:2 a.go:2",
		"name=*&limit=1&user=user":                  "a.go more",
	} {
		q, err := url.ParseQuery(query)
		if err != nil {
			t.Fatal(err)
		}
		q.Set("path", "/home/user/s")
		m := answered[api.FileMatches](f.ask(t, "GET", "/search?"+q.Encode(), "").want(200))
		var got []string
		for _, x := range m.Matches {
			name := strings.TrimPrefix(x.Path, "/home/user/s/")
			if x.Line > 0 {
				name += fmt.Sprintf(":%d", x.Line)
			}
			got = append(got, name)
		}
		if m.Truncated {
			got = append(got, "more")
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s: %v, want %s", query, got, want)
		}
	}
	if a := f.ask(t, "GET", "/search?path=s&user=user&name=c.*", "", "Accept", "text/event-stream").want(200); !strings.Contains(a.body, "event: "+api.EventMatch) || !strings.Contains(a.body, "event: "+api.EventEnd) {
		t.Errorf("as a stream: %s", a.body)
	}
}

// names lists what is in an archive.
func names(t *testing.T, r io.Reader) string {
	t.Helper()
	var out []string
	for in := tar.NewReader(r); ; {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			slices.Sort(out)
			return strings.Join(out, " ")
		}
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, h.Name)
	}
}

func (f fileCalls) archive(t *testing.T) {
	f.s.out(t, f.sb, "mkdir -p /home/user/t/node_modules/x && cd /home/user/t && touch a b.log node_modules/x/y && chown -R user . && chmod 750 .")
	if got := names(t, strings.NewReader(f.ask(t, "GET", "/archive?path=t&user=user", "").want(200).body)); got != "a b.log node_modules/ node_modules/x/ node_modules/x/y" {
		t.Errorf("all of it: %s", got)
	}
	a := f.ask(t, "GET", "/archive?path=t&user=user&gzip=1&exclude=node_modules&exclude=*.log", "").want(200)
	z, err := gzip.NewReader(strings.NewReader(a.body))
	if err != nil {
		t.Fatal(err)
	}
	if got := names(t, z); got != "a" || a.header.Get("Content-Type") != "application/gzip" {
		t.Errorf("a part of it: %s, %s", got, a.header.Get("Content-Type"))
	}
	f.ask(t, "GET", "/archive?path=/srv/closed&user=user", "").want(403)
}

func (f fileCalls) unpack(t *testing.T) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	if err := errors.Join(w.WriteHeader(&tar.Header{Name: "x", Uid: 1000, Gid: 1, Mode: 0o640, Size: 1}), func() error { _, err := w.Write([]byte("x")); return err }(), w.Close()); err != nil {
		t.Fatal(err)
	}
	f.ask(t, "PUT", "/archive?path=/tmp/u1", b.String()).want(200)
	f.ask(t, "PUT", "/archive?path=/tmp/u2&keep_owner=1", b.String()).want(200)
	f.ask(t, "PUT", "/archive?path=u3&user=user", b.String()).want(200)
	if a := f.ask(t, "PUT", "/archive?path=u4&user=user&keep_owner=1", b.String()); a.status < 400 || a.status > 403 {
		t.Errorf("owners as a user has them: %d %s", a.status, a.body)
	}
	f.s.inside(t, f.sb, "stat -c '%u:%g %a' /tmp/u1/x /tmp/u2/x; stat -c '%U %a' /home/user/u3/x", "0:0 640\n1000:1 640\nuser 640")
}

func (f fileCalls) watch(t *testing.T) {
	f.s.out(t, f.sb, "mkdir -p /home/user/v/below && chown -R user /home/user/v")
	open := func(query string) *sse.Reader {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, f.s.base+f.at+"/watch?"+query, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+f.s.key)
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = res.Body.Close() })
		in := sse.NewReader(res.Body, 1<<20)
		if ev, err := in.Next(); err != nil || ev.Name != api.EventReady {
			t.Fatalf("%s: %+v, %v", query, ev, err)
		}
		return in
	}
	// until returns the names that are told up to one.
	until := func(in *sse.Reader, last string) (told []string, entry *api.File) {
		t.Helper()
		for {
			ev, err := in.Next()
			var c api.FileChange
			if err != nil || json.Unmarshal([]byte(ev.Data), &c) != nil || c.Name == "" {
				t.Fatalf("after %v: %+v, %v", told, ev, err)
			}
			if told = append(told, c.Name); c.Name == last {
				return told, c.File
			}
		}
	}
	flat, deep := open("path=v&user=user"), open("path=v&user=user&recursive=1&entry=1")
	f.s.out(t, f.sb, "touch /home/user/v/below/x && touch /home/user/v/last")
	if told, file := until(flat, "last"); slices.Contains(told, "below/x") || file != nil {
		t.Errorf("flat: %v, %+v", told, file)
	}
	if told, file := until(deep, "last"); !slices.Contains(told, "below/x") || file == nil || file.Path != "/home/user/v/last" {
		t.Errorf("recursive, with entries: %v, %+v", told, file)
	}
	f.ask(t, "GET", "/watch?path=/srv/closed&user=user", "").want(403)
}

func (f fileCalls) watchers(t *testing.T) {
	f.s.out(t, f.sb, "mkdir -p /home/user/y/below && chown -R user /home/user/y")
	begin := func(more string) string {
		t.Helper()
		return f.at[strings.LastIndex(f.at, "/fs")+3:] + "/watchers/" + answered[api.Watcher](f.ask(t, "POST", "/watchers", `{"path": "y", "user": "user"`+more+`}`).want(201)).WatcherID
	}
	// poll asks until a name is told.
	poll := func(w, last string) (told []string, entry *api.File) {
		t.Helper()
		for cursor := int64(0); ; {
			c := answered[api.Changes](f.ask(t, "GET", fmt.Sprintf("%s/events?cursor=%d&wait_seconds=20", w, cursor), "").want(200))
			for _, x := range c.Changes {
				if told = append(told, x.Name); x.Name == last {
					return told, x.File
				}
			}
			if len(c.Changes) == 0 {
				t.Fatalf("after %v nothing was told", told)
			}
			cursor = c.Cursor
		}
	}
	flat, deep := begin(""), begin(`, "recursive": true, "entry": true`)
	if c := answered[api.Changes](f.ask(t, "GET", flat+"/events", "").want(200)); len(c.Changes) != 0 {
		t.Errorf("before anything: %+v", c)
	}
	f.s.out(t, f.sb, "touch /home/user/y/below/x && touch /home/user/y/last")
	if told, file := poll(flat, "last"); slices.Contains(told, "below/x") || file != nil {
		t.Errorf("flat: %v, %+v", told, file)
	}
	if told, file := poll(deep, "last"); !slices.Contains(told, "below/x") || file == nil || file.Path != "/home/user/y/last" {
		t.Errorf("recursive, with entries: %v, %+v", told, file)
	}
	f.ask(t, "DELETE", flat, "").want(204)
	f.ask(t, "GET", flat+"/events", "").want(404)
	f.ask(t, "POST", "/watchers", `{"path": "/srv/closed", "user": "user"}`).want(403)
}

func decode(r io.Reader, v any) error { return json.NewDecoder(r).Decode(v) }
