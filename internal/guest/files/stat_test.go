package files_test

import (
	"os"
	"strings"
	"testing"

	"hutch.dev/hutch"
)

func TestStat(t *testing.T) {
	b := newBox(t)
	putAs(t, b.home+"/f", "hello", workerID)
	if err := os.Chmod(b.home+"/f", 0o640); err != nil {
		t.Fatal(err)
	}
	link(t, "f", b.home+"/to-f")
	link(t, "to-f", b.home+"/to-to-f")
	link(t, "nowhere", b.home+"/dangling")
	link(t, b.dir, b.home+"/up")

	info, err := b.StatFile(within(t), ref("f", ""))
	if err != nil {
		t.Fatal(err)
	}
	if info.Name != "f" || info.Path != b.home+"/f" || info.Type != hutch.TypeFile || info.Size != 5 || info.Mode != 0o640 ||
		info.UID != workerID || info.GID != workerID || info.Owner != "worker" || info.Group != "worker" || info.ModTime.IsZero() || info.Target != nil {
		t.Errorf("file: %+v", info)
	}
	info, err = b.StatFile(within(t), ref("~/to-to-f", ""))
	if err != nil || info.Type != hutch.TypeSymlink || info.LinkTarget != "to-f" || info.Target == nil ||
		*info.Target != (hutch.FileTarget{Path: b.home + "/f", Type: hutch.TypeFile, Mode: 0o640}) {
		t.Errorf("link: %+v, %+v, %v", info, info.Target, err)
	}
	info, err = b.StatFile(within(t), ref("dangling", ""))
	if err != nil || info.Type != hutch.TypeSymlink || info.Target != nil || info.LinkTarget != "nowhere" {
		t.Errorf("dangling link: %+v, %v", info, err)
	}
	info, err = b.StatFile(within(t), ref("up/worker/f", ""))
	if err != nil || info.Path != b.home+"/up/worker/f" || info.Type != hutch.TypeFile {
		t.Errorf("through a link: %+v, %v", info, err)
	}
	if info, err = b.StatFile(within(t), ref("/", "")); err != nil || info.Path != "/" || info.Name != "/" || info.Type != hutch.TypeDirectory {
		t.Errorf("root: %+v, %v", info, err)
	}
	if info, err = b.StatFile(within(t), ref("/dev/null", "")); err != nil || info.Type != hutch.TypeOther {
		t.Errorf("device: %+v, %v", info, err)
	}
}

func TestPaths(t *testing.T) {
	b := newBox(t)
	putAs(t, b.home+"/f", "", workerID)
	putAs(t, b.dir+"/other/f", "", otherID)
	if err := os.Mkdir(b.dir+"/other/private", 0o700); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		path, user string
		want       string // the path it stands for; empty = an error
		code       hutch.Code
		field      string
	}{
		{"f", "", b.home + "/f", "", ""},
		{"./x/../f", "", b.home + "/f", "", ""},
		{"~", "", b.home, "", ""},
		{"~/f", "", b.home + "/f", "", ""},
		{"f", "other", b.dir + "/other/f", "", ""},
		{"f", "61002", b.dir + "/other/f", "", ""},
		{b.home + "/f", "root", b.home + "/f", "", ""},
		{"/..", "", "/", "", ""},
		{"", "", "", hutch.CodeBadRequest, "path"},
		{"~other/f", "", "", hutch.CodeBadRequest, "path"},
		{"a\x00b", "", "", hutch.CodeBadRequest, "path"},
		{strings.Repeat("a/", 2100), "", "", hutch.CodeBadRequest, "path"},
		{strings.Repeat("a", 300), "", "", hutch.CodeBadRequest, "path"},
		{"missing", "", "", hutch.CodeNotFound, ""},
		{"f/below", "", "", hutch.CodeNotFound, ""},
		{b.dir + "/other/private/x", "", "", hutch.CodeForbidden, ""},
		{"f", "nobody-here", "", hutch.CodeBadRequest, "user"},
	} {
		info, err := b.StatFile(within(t), ref(tt.path, tt.user))
		if tt.want == "" {
			wantCode(t, tt.path, err, tt.code, tt.field)
		} else if err != nil || info.Path != tt.want {
			t.Errorf("%q of %q: got %q, %v; want %q", tt.path, tt.user, info.Path, err, tt.want)
		}
	}
	link(t, "loop", b.home+"/loop")
	_, err := b.tryRead(t, hutch.ReadFile{FileRef: ref("loop", "")})
	wantCode(t, "a link to itself", err, hutch.CodeBadRequest, "path")
}

// The names that others' APIs broke on (G05, G06), and one that JSON cannot carry.
func TestNames(t *testing.T) {
	b := newBox(t)
	for _, name := range []string{
		`re"port.txt`, `report\`, "a,b.txt", " ", "new\nline", "tab\t", "ünï", "日本", "-rf", "%2F", "'", "a&b=<c>", "\x01\x7f",
		"\xff\xfe", "ok\xc3", "..x", "...",
	} {
		path := b.home + "/names/" + name
		b.write(t, hutch.WriteFile{FileRef: ref(path, "")}, "content of "+name)
		if got := get(t, path); got != "content of "+name {
			t.Errorf("%q holds %q", name, got)
		}
		if got := b.read(t, hutch.ReadFile{FileRef: ref(path, "")}); got != "content of "+name {
			t.Errorf("%q is read as %q", name, got)
		}
		if err := b.RemoveFile(within(t), hutch.RemoveFile{FileRef: ref(path, "")}); err != nil {
			t.Errorf("remove %q: %v", name, err)
		}
	}
	put(t, b.home+"/names/raw\xff", "")
	put(t, b.home+"/names/raw\xfe", "")
	l, err := b.ListFiles(within(t), hutch.ListFiles{FileRef: ref("names", "")})
	if err != nil || len(l.Entries) != 2 {
		t.Fatalf("list: %+v, %v", l, err)
	}
	for i, last := range []string{"\xfe", "\xff"} {
		e := l.Entries[i]
		if e.Name != "raw\uFFFD" || string(e.RawPath) != b.home+"/names/raw"+last {
			t.Errorf("entry %d: name %q, raw path %q", i, e.Name, e.RawPath)
		}
		if _, err := b.StatFile(within(t), ref(string(e.RawPath), "")); err != nil {
			t.Errorf("stat of a raw path: %v", err)
		}
	}
}
