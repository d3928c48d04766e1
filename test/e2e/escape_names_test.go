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
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"hutch.dev/hutch"
	"hutch.dev/hutch/api"
	"hutch.dev/hutch/client"
)

// hidden is what only root inside may read.
const hidden = "hidden-from-the-user"

// tricks are names that lead to /srv/closed/secret, which the user may neither read nor change,
// made by the user; and names of the host's.
func (b *siege) tricks(t *testing.T, sb hutch.SandboxID) []string {
	t.Helper()
	b.out(t, sb, "mkdir -p /srv/closed && printf "+hidden+" >/srv/closed/secret && chmod 600 /srv/closed/secret && chmod 700 /srv/closed")
	names := []string{
		"t/l/secret", "t/f", "t/hop1/secret", "t/up/srv/closed/secret", "t/proc/srv/closed/secret", "t/self/srv/closed/secret", "t/l/../closed/secret", "t/l", "t/loop", "t/loop/x", "t/fd/0", "t/fd/3",
		"t/mem", "/srv/closed/secret", "//srv//closed//secret", "/srv/./closed/../closed/secret", "/home/user/t/../../../srv/closed/secret", "../../srv/closed/secret", "../../../../../../../srv/closed/secret",
		"/proc/1/root/srv/closed/secret", "/proc/self/root/srv/closed/secret", "/proc/thread-self/root/srv/closed/secret", "/proc/1/cwd/srv/closed/secret", "/proc/1/fd/0", "/proc/1/mem", "/proc/1/environ", "/proc/self/mem",
		"/srv/closed/secret\x00.txt", "/srv/closed", "/srv/closed/.", "/srv/closed/new", "/dev/fd/0", "/proc/kcore", "t/" + strings.Repeat("x", 300), strings.Repeat("../", 1000) + "srv/closed/secret",
		"%2e%2e/%2e%2e/srv/closed/secret", "..%2f..%2fsrv%2fclosed%2fsecret", `..\..\srv\closed\secret`, "file:///srv/closed/secret", "~root/x", "t/f/",
	}
	for _, host := range []string{filepath.Join(b.dir, "canary"), filepath.Join(b.server.dir, "admin.key")} {
		names = append(names, host, "/proc/1/root"+host, strings.Repeat("/..", 20)+host, "t/up"+host)
	}
	return append(names, "t/host")
}

// lay makes the links that the tricks lead through.
func (b *siege) lay(t *testing.T, sb hutch.SandboxID) {
	t.Helper()
	b.out(t, sb, `mkdir ~/t && cd ~/t && ln -s /srv/closed l && ln -s /srv/closed/secret f && ln -s ../../../../../../../.. up && ln -s /proc/1/root proc &&
		ln -s /proc/self/root self && ln -s /proc/self/fd fd && ln -s hop hop1 && ln -s l hop && ln -s loop loop && ln -s '`+filepath.Join(b.dir, "canary")+`' host && ln -s /proc/1/mem mem`, asUser("user"))
}

// ofHost reports whether a name is one of the host's.
func (b *siege) ofHost(name string) bool {
	return strings.Contains(name, b.dir) || strings.Contains(name, b.server.dir) || name == "t/host"
}

// kept shows what no call of the user may change, and untouched is how it is.
const (
	kept      = "cat /srv/closed/secret; stat -c ' %a %U' /srv/closed /srv/closed/secret; ls -A /srv/closed"
	untouched = hidden + " 700 root\n 600 root\nsecret"
)

// mebibyte is what the files of bombs are made of. To compress each anew takes the race detector
// longer than the rest of the test.
var (
	mebibyte       [1 << 20]byte
	zippedMebibyte = sync.OnceValue(func() []byte {
		var out bytes.Buffer
		w := gzip.NewWriter(&out)
		_, _ = w.Write(mebibyte[:])
		_ = w.Close()
		return out.Bytes()
	})
)

// zipper compresses, each mebibyte as a member of its own.
type zipper struct {
	out *bytes.Buffer
	gz  *gzip.Writer
}

func (z zipper) Write(p []byte) (int, error) {
	if len(p) != len(mebibyte) {
		return z.gz.Write(p)
	}
	if err := z.gz.Close(); err != nil {
		return 0, err
	}
	z.out.Write(zippedMebibyte())
	z.gz.Reset(z.out)
	return len(p), nil
}

// packed is an archive of files of zeros, and of what else there is.
func packed(t *testing.T, compress bool, entries ...tar.Header) []byte {
	t.Helper()
	var out bytes.Buffer
	var w io.Writer = &out
	z := zipper{&out, gzip.NewWriter(&out)}
	if compress {
		w = z
	}
	tw := tar.NewWriter(w)
	for _, h := range entries {
		h.Mode = 0o644
		err := tw.WriteHeader(&h)
		for left := h.Size; left > 0 && err == nil; left -= int64(len(mebibyte)) {
			_, err = tw.Write(mebibyte[:min(left, int64(len(mebibyte)))])
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := tw.Close(); err != nil {
		t.Fatal(err)
	}
	if compress {
		if err := z.gz.Close(); err != nil {
			t.Fatal(err)
		}
	}
	return out.Bytes()
}

// Whatever name a call about files is given, it acts with the rights of the user it names, and
// in the sandbox.
func TestEscapeByNames(t *testing.T) {
	b := besiege(t)
	sb := b.attacker(t, api.CreateSandbox{})
	names := b.tricks(t, sb)
	archive := string(packed(t, false, tar.Header{Typeflag: tar.TypeReg, Name: "secret", Size: 3}))
	root := "/v1/sandboxes/" + string(sb) + "/fs"
	said := func(a asked) {
		t.Helper()
		if strings.Contains(a.body, hidden) {
			t.Errorf("%.300s as user gives away the file of root", a.what)
		}
		for secret, what := range b.secrets {
			if what != "the data directory's name" && strings.Contains(a.body, secret) {
				t.Errorf("%.300s gives away %s", a.what, what)
			}
		}
		if a.status >= 500 && a.status != http.StatusNotImplemented && !strings.Contains(a.body, "input/output error") {
			t.Errorf("%.300s: status %d: %.300s", a.what, a.status, a.body)
		}
	}
	restore := func() {
		t.Helper()
		b.out(t, sb, `rm -rf ~/stolen ~/own ~/t && echo own >~/own`, asUser("user"))
		b.lay(t, sb)
	}
	for _, call := range []struct {
		method, path string
		body         func(name, user string) string
		reads        bool
	}{
		{"GET", "", nil, true},
		{"GET", "/stat", nil, true},
		{"GET", "/dir", nil, true},
		{"GET", "/search", nil, true},
		{"GET", "/archive", nil, true},
		{"PUT", "", func(string, string) string { return "taken" }, false},
		{"PUT", "/archive", func(string, string) string { return archive }, false},
		{"POST", "/watchers", func(name, user string) string { return asJSON(t, map[string]any{"path": name, "user": user}) }, false},
		{"POST", "/mkdir", func(name, user string) string { return asJSON(t, api.MakeDirectory{Path: name + "/d", User: user}) }, false},
		{"POST", "/move", func(name, user string) string { return asJSON(t, api.MoveFile{From: name, To: "stolen/x", User: user}) }, false},
		{"POST", "/move", func(name, user string) string { return asJSON(t, api.MoveFile{From: "own", To: name, User: user}) }, false},
		{"DELETE", "", nil, false},
	} {
		restore() // links of the user's own may be moved and removed
		for _, name := range names {
			for _, user := range []string{"user", "root"} {
				if user == "root" && (!call.reads || !b.ofHost(name)) {
					continue // root inside may do everything inside
				}
				body, path := "", root+call.path+"?user="+user+"&text=h&recursive=1&path="+url.QueryEscape(name)
				if call.body != nil {
					body = call.body(name, user)
				}
				if call.method == "POST" {
					path = root + call.path
				} else if call.path != "/search" {
					path = strings.Replace(path, "&text=h", "", 1)
				}
				if call.method != "DELETE" {
					path = strings.Replace(path, "&recursive=1", "", 1)
				}
				said(b.ask(t, call.method, path, body))
			}
		}
	}
	b.inside(t, sb, kept, untouched)

	b.tryE2BNames(t, sb, names, said, restore)
	b.inside(t, sb, kept, untouched)
	b.unharmed(t)
}

// tryE2BNames makes E2B's calls about files as the user.
func (b *siege) tryE2BNames(t *testing.T, sb hutch.SandboxID, names []string, said func(asked), restore func()) {
	t.Helper()
	// E2B's callers expect root's rights for a name that no link could turn elsewhere; by a link
	// they have the user's.
	headers := []string{"Authorization", "Basic dXNlcjo="}
	for k, v := range b.agentCall(t, sb, "", "application/json").Header {
		headers = append(headers, k, v)
	}
	for _, call := range []struct{ method, path, first, second string }{
		{"GET", "/files?username=user&path=", "", ""},
		{"POST", "/filesystem.Filesystem/Stat", "path", ""},
		{"POST", "/filesystem.Filesystem/ListDir", "path", ""},
		{"POST", "/filesystem.Filesystem/CreateWatcher", "path", ""},
		{"POST", "/filesystem.Filesystem/MakeDir", "path", ""},
		{"POST", "/filesystem.Filesystem/Move", "source", "destination"},
		{"POST", "/filesystem.Filesystem/Remove", "path", ""},
	} {
		restore()
		for _, name := range names {
			if !strings.HasPrefix(name, "t/") && !b.ofHost(name) {
				continue
			}
			name = strings.Replace(name, "t/", "/home/user/t/", 1)
			if call.method == "GET" {
				said(b.ask(t, call.method, call.path+url.QueryEscape(name), "", headers...))
				continue
			}
			body := map[string]any{call.first: name}
			if call.second != "" {
				body[call.second] = "/home/user/stolen/x"
			}
			said(b.ask(t, call.method, call.path, asJSON(t, body), headers...))
		}
	}
}

func asJSON(t *testing.T, v any) string {
	t.Helper()
	j, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(j)
}

// Whatever is in an archive, it lands in the directory that was named, within the sandbox's disk,
// and without the server taking memory for it.
func TestEscapeByArchives(t *testing.T) {
	b := besiege(t)
	sb := b.attacker(t, api.CreateSandbox{MemoryMB: ptr(256), DiskMB: ptr(64)})
	b.out(t, sb, "mkdir /srv/in /srv/out && printf "+hidden+" >/srv/out/victim && ln -s /srv/out /srv/in/away")
	before := b.peakMemory(t)
	unpack := func(what string, archive []byte, want ...error) {
		t.Helper()
		_, err := b.client.WriteArchive(t.Context(), client.File{Sandbox: sb, Path: "/srv/in"}, bytes.NewReader(archive), false)
		for _, w := range want {
			if errors.Is(err, w) {
				return
			}
		}
		if err != nil || len(want) > 0 {
			t.Errorf("%s: %v", what, err)
		}
	}
	file := func(name string, n int64) tar.Header { return tar.Header{Typeflag: tar.TypeReg, Name: name, Size: n} }
	link := func(name, to string) tar.Header {
		return tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: to}
	}
	for what, entries := range map[string][]tar.Header{
		"up":                {file("../out/victim", 1)},
		"up from inside":    {file("a/../../out/victim", 1)},
		"absolute":          {file("/srv/out/victim", 1)},
		"through a link":    {link("d", "/srv/out"), file("d/victim", 1)},
		"through one there": {file("away/victim", 1)},
		"up by a link":      {link("d", ".."), file("d/out/victim", 1)},
		"a hard link":       {{Typeflag: tar.TypeLink, Name: "h", Linkname: "../out/victim"}, file("h", 1)},
		"a far hard link":   {{Typeflag: tar.TypeLink, Name: "h", Linkname: "/srv/out/victim"}, file("h", 1)},
		"hard by soft link": {link("d", "../out"), {Typeflag: tar.TypeLink, Name: "h", Linkname: "d/victim"}, file("h", 1)},
		"the agent's":       {link("p", "/proc/1"), file("p/mem", 1)},
		"a long name":       {file(strings.Repeat("n", 5000), 1)},
	} {
		unpack(what, packed(t, false, entries...), hutch.ErrBadRequest, hutch.ErrConflict)
		b.inside(t, sb, "cat /srv/out/victim; ls -A /srv/out", hidden+"victim")
		b.out(t, sb, "cd /srv/in && find . -mindepth 1 ! -name away -delete")
	}
	// Devices and pipes are left out, told so, and cost nothing.
	unpack("devices", packed(t, false, tar.Header{Typeflag: tar.TypeBlock, Name: "disk", Devmajor: 8}, tar.Header{Typeflag: tar.TypeChar, Name: "mem", Devmajor: 1, Devminor: 1}, tar.Header{Typeflag: tar.TypeFifo, Name: "pipe"}))
	b.inside(t, sb, "find /srv/in -type b -o -type c -o -type p", "")
	// A few hundred kilobytes that become more than the disk, in one file and in many.
	unpack("a bomb", packed(t, true, file("big", 96<<20)), hutch.ErrDiskFull)
	unpack("a sparse bomb", sparse(t, 1<<50), nil, hutch.ErrBadRequest, hutch.ErrDiskFull) // of holes only, it may be made
	many := make([]tar.Header, 0, 96)
	for i := range cap(many) {
		many = append(many, file(fmt.Sprintf("%d", i), 1<<20))
	}
	unpack("many bombs", packed(t, true, many...), hutch.ErrDiskFull)
	b.out(t, sb, "cd /srv/in && find . -mindepth 1 ! -name away -delete")
	// Garbage, and archives that end too soon.
	whole := packed(t, true, file("x", 1<<20))
	unpack("a cut one", whole[:len(whole)/2], hutch.ErrBadRequest)
	unpack("no archive", bytes.Repeat([]byte(mark), 10000), hutch.ErrBadRequest)
	unpack("packed twice", append([]byte{0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3}, bytes.Repeat([]byte{0xff}, 4096)...), hutch.ErrBadRequest)
	if grown := b.peakMemory(t) - before; grown > 48<<20 {
		t.Errorf("the server's peak grew by %d MiB", grown>>20)
	}
	b.unharmed(t)
}

// sparse is an archive with one file that says it is n bytes of holes.
func sparse(t *testing.T, n int64) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	// The tar package writes no holes, so the header is that of an old GNU tar, by hand.
	if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "holes", Mode: 0o644, Format: tar.FormatGNU}); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	h := out.Bytes()
	h[156] = 'S'
	copy(h[386:], fmt.Sprintf("%011o\x00%011o\x00", 0, 0)) // one piece: nothing at 0
	h[386+12*8], h[482] = 0, 0
	copy(h[483:], []byte{0x80, 0, 0, 0, byte(n >> 56), byte(n >> 48), byte(n >> 40), byte(n >> 32), byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)})
	copy(h[148:], "        ")
	sum := 0
	for _, c := range h[:512] {
		sum += int(c)
	}
	copy(h[148:], fmt.Sprintf("%06o\x00 ", sum))
	return h
}
