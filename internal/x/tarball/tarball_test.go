package tarball_test

import (
	"archive/tar"
	"bytes"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"hutch.dev/hutch/internal/x/tarball"
)

func write(t *testing.T, name, content string, mode fs.FileMode) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(name, mode); err != nil {
		t.Fatal(err)
	}
}

func TestRoundTrip(t *testing.T) {
	from, to := t.TempDir(), filepath.Join(t.TempDir(), "new", "dir")
	names := map[string]fs.FileMode{
		"plain": 0o644, ".hidden": 0o600, "run.sh": 0o755, "read-only/file": 0o444,
		"a b/\"quote\"": 0o644, "ünï/new\nline": 0o644, `back\slash`: 0o644, strings.Repeat("long/", 50) + "name": 0o644,
	}
	for name, mode := range names {
		write(t, filepath.Join(from, name), "content of "+name, mode)
	}
	write(t, filepath.Join(from, "node_modules/x/index.js"), "", 0o644)
	write(t, filepath.Join(from, "src/x.pyc"), "", 0o644)
	if err := os.Symlink("../plain", filepath.Join(from, "ünï/link")); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(from, "empty"), 0o750); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Join(from, "read-only"), 0o555); err != nil {
		t.Fatal(err)
	}
	old := time.Date(2020, 2, 2, 2, 2, 2, 0, time.UTC)
	if err := os.Chtimes(filepath.Join(from, "plain"), old, old); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", filepath.Join(from, "sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()

	var b bytes.Buffer
	skipped, err := tarball.Pack(&b, from, []string{"node_modules", "*.pyc"})
	if err != nil || !slices.Equal(skipped, []string{"sock (a socket)"}) {
		t.Fatalf("skipped %q: %v", skipped, err)
	}
	if skipped, err := tarball.Unpack(&b, to); err != nil || skipped != nil {
		t.Fatalf("skipped %q: %v", skipped, err)
	}
	for name, mode := range names {
		got, err := os.ReadFile(filepath.Join(to, name))
		st, serr := os.Stat(filepath.Join(to, name))
		if err != nil || serr != nil || string(got) != "content of "+name || st.Mode() != mode {
			t.Errorf("%q: %q, %v, %v", name, got, err, st)
		}
	}
	if link, err := os.Readlink(filepath.Join(to, "ünï/link")); err != nil || link != "../plain" {
		t.Errorf("link to %q: %v", link, err)
	}
	for name, mode := range map[string]fs.FileMode{"empty": 0o750, "read-only": 0o555} {
		if st, err := os.Stat(filepath.Join(to, name)); err != nil || st.Mode().Perm() != mode {
			t.Errorf("%s: %v, %v", name, st, err)
		}
	}
	if st, err := os.Stat(filepath.Join(to, "plain")); err != nil || !st.ModTime().Equal(old) {
		t.Errorf("time: %v, %v", st, err)
	}
	for _, name := range []string{"node_modules", "src/x.pyc", "sock"} {
		if _, err := os.Lstat(filepath.Join(to, name)); err == nil {
			t.Errorf("%s was copied", name)
		}
	}
}

// archive makes a tar of headers; those of files have their own name as content.
func archive(t *testing.T, headers ...tar.Header) io.Reader {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range headers {
		if h.Typeflag == tar.TypeReg {
			h.Size = int64(len(h.Name))
		}
		h.Mode = 0o4755
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if h.Typeflag == tar.TypeReg {
			_, _ = io.WriteString(w, h.Name)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return &b
}

func TestNothingGetsOut(t *testing.T) {
	for name, headers := range map[string][]tar.Header{
		"absolute":       {{Name: "/etc/x", Typeflag: tar.TypeReg}},
		"dots":           {{Name: "a/../../x", Typeflag: tar.TypeReg}},
		"through a link": {{Name: "l", Typeflag: tar.TypeSymlink, Linkname: "OUTSIDE"}, {Name: "l/x", Typeflag: tar.TypeReg}},
		"a hard link":    {{Name: "h", Typeflag: tar.TypeLink, Linkname: "../outside/secret"}},
		"linked hard":    {{Name: "l", Typeflag: tar.TypeSymlink, Linkname: "OUTSIDE"}, {Name: "h", Typeflag: tar.TypeLink, Linkname: "l/secret"}},
		"a directory":    {{Name: "l", Typeflag: tar.TypeSymlink, Linkname: "OUTSIDE"}, {Name: "l/d", Typeflag: tar.TypeDir}},
	} {
		t.Run(name, func(t *testing.T) {
			top := t.TempDir()
			outside, dir := filepath.Join(top, "outside"), filepath.Join(top, "in")
			write(t, filepath.Join(outside, "secret"), "s", 0o600)
			for i := range headers {
				headers[i].Linkname = strings.Replace(headers[i].Linkname, "OUTSIDE", outside, 1)
			}
			if _, err := tarball.Unpack(archive(t, headers...), dir); err == nil {
				t.Error("it was unpacked")
			}
			list, err := os.ReadDir(outside)
			if err != nil || len(list) != 1 {
				t.Errorf("outside there is %v, %v", list, err)
			}
			if st, err := os.Stat(filepath.Join(outside, "secret")); err != nil || st.Size() != 1 {
				t.Errorf("%v, %v", st, err)
			}
		})
	}
}

// A link that is in the way is replaced, never written through.
func TestLinksInTheWayAreReplaced(t *testing.T) {
	top := t.TempDir()
	dir, secret := filepath.Join(top, "in"), filepath.Join(top, "secret")
	write(t, secret, "s", 0o600)
	write(t, filepath.Join(dir, "x"), "old", 0o600)
	if err := os.Symlink(secret, filepath.Join(dir, "l")); err != nil {
		t.Fatal(err)
	}
	skipped, err := tarball.Unpack(archive(t,
		tar.Header{Name: "l", Typeflag: tar.TypeReg}, tar.Header{Name: "x", Typeflag: tar.TypeReg},
		tar.Header{Name: "null", Typeflag: tar.TypeChar}, tar.Header{Name: "h", Typeflag: tar.TypeLink, Linkname: "x"},
	), dir)
	if err != nil || len(skipped) != 1 || !strings.HasPrefix(skipped[0], "null ") {
		t.Fatalf("skipped %q: %v", skipped, err)
	}
	for name, want := range map[string]string{secret: "s", filepath.Join(dir, "l"): "l", filepath.Join(dir, "h"): "x"} {
		if got, err := os.ReadFile(name); err != nil || string(got) != want {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
	if st, err := os.Lstat(filepath.Join(dir, "l")); err != nil || st.Mode() != 0o755 {
		t.Errorf("%v, %v: want a file that lends nobody's rights", st, err)
	}
}

func TestACutStreamIsAnError(t *testing.T) {
	var b bytes.Buffer
	dir := t.TempDir()
	write(t, filepath.Join(dir, "f"), strings.Repeat("x", 5000), 0o644)
	if _, err := tarball.Pack(&b, dir, nil); err != nil {
		t.Fatal(err)
	}
	for _, n := range []int{100, 600, 3000} {
		if _, err := tarball.Unpack(bytes.NewReader(b.Bytes()[:n]), t.TempDir()); err == nil {
			t.Errorf("cut at %d: no error", n)
		}
	}
}

func FuzzUnpack(f *testing.F) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	_ = w.WriteHeader(&tar.Header{Name: "a/b", Typeflag: tar.TypeReg, Size: 1, Mode: 0o644})
	_, _ = w.Write([]byte("x"))
	_ = w.Close()
	f.Add(b.Bytes())
	f.Fuzz(func(t *testing.T, in []byte) {
		top := t.TempDir()
		_, _ = tarball.Unpack(bytes.NewReader(in), filepath.Join(top, "in"))
		if list, err := os.ReadDir(top); err != nil || len(list) != 1 {
			t.Errorf("beside the directory there is %v, %v", list, err)
		}
	})
}
