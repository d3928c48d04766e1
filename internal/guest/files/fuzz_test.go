package files

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"os"
	"path"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/guest/account"
)

// No path that is accepted is relative, or longer than the kernel takes.
func FuzzAbsolute(f *testing.F) {
	for _, s := range []string{"a", "/a", "~", "~/a", "~b", "a/../../b", "", "a\x00", "//", "/.", strings.Repeat("/x", 3000)} {
		f.Add(s, "/home/worker")
	}
	f.Fuzz(func(t *testing.T, name, home string) {
		if !path.IsAbs(home) || strings.IndexByte(home, 0) >= 0 {
			return
		}
		a := &actor{user: account.User{Home: home}}
		abs, err := a.absolute(name)
		if err == nil && (!path.IsAbs(abs) || abs != path.Clean(abs) || len(abs) >= hutch.MaxPathBytes || strings.IndexByte(abs, 0) >= 0) {
			t.Fatalf("%q became %q", name, abs)
		}
	})
}

// What a cursor holds comes out as it went in, and nothing that leads elsewhere does.
func FuzzCursor(f *testing.F) {
	for _, s := range []string{"", "YQ", "Li4", "YS8uLi9i", makeCursor("a/b"), makeCursor("\xff"), makeCursor("a//b"), "!", "0\r00"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, cursor string) {
		names, err := parseCursor(cursor)
		if err != nil || len(names) == 0 {
			return
		}
		for _, n := range names {
			if n == "" || n == "." || n == ".." || strings.ContainsAny(n, "/\x00") {
				t.Fatalf("%q holds %q", cursor, names)
			}
		}
		if again := makeCursor(strings.Join(names, "/")); again != cursor {
			t.Fatalf("%q became %q", cursor, again)
		}
	})
}

// No name of an archive leads out of where it is unpacked.
func FuzzEntryName(f *testing.F) {
	for _, s := range []string{"a", "./a", "a/", "..", "a/../..", "/a", "", "a/./b", "...", "a\x00b", "a/..b/c"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, name string) {
		got, err := entryName(name)
		if err == nil && (path.IsAbs(got) || got == ".." || strings.HasPrefix(got, "../") || got == "" || strings.IndexByte(got, 0) >= 0) {
			t.Fatalf("%q became %q", name, got)
		}
	})
}

func FuzzEvents(f *testing.F) {
	f.Add([]byte("\x01\x00\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x10\x00\x00\x00name\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"))
	f.Add(make([]byte, unix.SizeofInotifyEvent))
	f.Fuzz(func(t *testing.T, b []byte) {
		sum := 0
		for _, e := range parseEvents(b) {
			sum += unix.SizeofInotifyEvent + len(e.name)
			if strings.IndexByte(e.name, 0) >= 0 {
				t.Fatalf("name %q", e.name)
			}
		}
		if sum > len(b) {
			t.Fatalf("%d bytes out of %d", sum, len(b))
		}
	})
}

func FuzzMetadata(f *testing.F) {
	f.Add("author", "worker")
	f.Add("A", "a b")
	f.Add("ü", "")
	f.Fuzz(func(t *testing.T, key, value string) {
		out, err := checkMetadata(map[string]string{key: value})
		if err != nil {
			return
		}
		for k, v := range out {
			if k == "" || len(k) > hutch.MaxMetadataKey || k != strings.ToLower(k) || !printable(k) || !printable(v) || len(k)+len(v) > hutch.MaxMetadataBytes {
				t.Fatalf("%q: %q", k, v)
			}
		}
	})
}

// found is what a search delivers.
type found []hutch.FileMatch

// lookThrough runs the line search over content, in pieces as readers give them.
func lookThrough(re *regexp.Regexp, content []byte, buffer int) found {
	var out found
	prefix, _ := re.LiteralPrefix()
	s := &search{actor: &actor{}, ctx: context.Background(), line: re, prefix: []byte(prefix), buf: make([]byte, buffer)}
	s.q.Limit = 1 << 30
	s.take = func(m hutch.FileMatch) error { out = append(out, m); return nil }
	if err := s.lines(bytes.NewReader(content), hutch.FileMatch{}); err != nil {
		panic(err)
	}
	return out
}

// A search finds what looking at one line after the other finds, however the content is
// read.
func FuzzSearch(f *testing.F) {
	f.Add("func", []byte("a\nfunc b\n\nfunc c"), false)
	f.Add("^$", []byte("\n\n"), false)
	f.Add("A+$", []byte("aaa\r\nb\n"), true)
	f.Add(`\xff`, []byte("\xff\n"), false)
	f.Add("a|b", []byte("x\nb"), false)
	f.Add("ab", []byte("aab\nab ab\n"), false)
	f.Fuzz(func(t *testing.T, expr string, content []byte, ignoreCase bool) {
		re, err := compile(expr, ignoreCase)
		if err != nil || re == nil || bytes.IndexByte(content, 0) >= 0 {
			return
		}
		var want found
		lines := bytes.Split(content, newline)
		if len(lines[len(lines)-1]) == 0 {
			lines = lines[:len(lines)-1]
		}
		for i, l := range lines {
			if at := re.FindIndex(bytes.TrimSuffix(l, []byte("\r"))); at != nil {
				want = append(want, hutch.FileMatch{Line: i + 1, Column: at[0] + 1, Text: cutLine(l)})
			}
		}
		for _, buffer := range []int{1, 7, 4096} {
			if got := lookThrough(re, content, buffer); fmt.Sprint(got) != fmt.Sprint(want) {
				t.Fatalf("%q in %q, read by %d: got %v, want %v", expr, content, buffer, got, want)
			}
		}
	})
}

// Whatever an archive holds, nothing changes outside of where it is unpacked, and a line
// that is shown is UTF-8.
func FuzzUnpack(f *testing.F) {
	if os.Getuid() != 0 {
		f.Skip("acts as root, which everything is allowed to")
	}
	disk := f.TempDir() // sparse files may be said to be of any size
	if err := unix.Mount("tmpfs", disk, "tmpfs", 0, "size=4m"); err != nil {
		f.Skip("no right to mount:", err)
	}
	f.Cleanup(func() { _ = unix.Unmount(disk, unix.MNT_DETACH) })
	for _, hs := range [][]*tar.Header{
		{{Typeflag: tar.TypeReg, Name: "a", Mode: 0o644}},
		{{Typeflag: tar.TypeSymlink, Name: "l", Linkname: "../outside"}, {Typeflag: tar.TypeReg, Name: "l/f", Mode: 0o644}},
		{{Typeflag: tar.TypeDir, Name: "d/", Mode: 0o755}, {Typeflag: tar.TypeLink, Name: "h", Linkname: "../outside/f"}},
	} {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		for _, h := range hs {
			if err := w.WriteHeader(h); err != nil {
				f.Fatal(err)
			}
		}
		w.Close()
		f.Add(b.Bytes())
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		dir, err := os.MkdirTemp(disk, "") //nolint:usetesting // on that disk
		if err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(dir)
		for _, d := range []string{"/in", "/outside"} {
			if err := os.Mkdir(dir+d, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.WriteFile(dir+"/outside/f", []byte("old"), 0o600); err != nil {
			t.Fatal(err)
		}
		root, err := os.Open(dir + "/in")
		if err != nil {
			t.Fatal(err)
		}
		defer root.Close()
		u := &unpacker{actor: &actor{user: account.User{Name: "root"}}, ctx: context.Background(), abs: dir + "/in", root: root}
		_ = u.all(bytes.NewReader(b))
		for _, s := range u.result.Skipped {
			if !utf8.ValidString(s) {
				t.Fatalf("%q", s)
			}
		}
		top, _ := os.ReadDir(dir)
		outside, _ := os.ReadDir(dir + "/outside")
		content, _ := os.ReadFile(dir + "/outside/f")
		st, err := os.Stat(dir + "/outside/f")
		if len(top) != 2 || len(outside) != 1 || string(content) != "old" || err != nil || st.Mode() != 0o600 {
			t.Fatal("something changed outside")
		}
		var sys unix.Stat_t
		if unix.Stat(dir+"/outside/f", &sys) != nil || sys.Nlink != 1 {
			t.Fatal("a file outside has another name inside")
		}
	})
}
