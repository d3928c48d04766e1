package erofs_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"hutch.dev/hutch/internal/template/erofs"
)

// mkfs makes an image of dir as package template does.
func mkfs(t *testing.T, dir string) string {
	t.Helper()
	tool, err := exec.LookPath("mkfs.erofs")
	if err != nil {
		t.Skip("mkfs.erofs is not installed")
	}
	image := filepath.Join(t.TempDir(), "image")
	cmd := exec.CommandContext(t.Context(), tool, "--quiet", "-Enoinline_data", "-x-1", "-U68757463-6800-4000-8000-000000000000", image, dir)
	cmd.Env = append(os.Environ(), "SOURCE_DATE_EPOCH=1700000000")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("mkfs.erofs: %v\n%s", err, out)
	}
	return image
}

// sample makes a tree with one of everything.
func sample(t *testing.T) string {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("owners and devices need root")
	}
	dir := filepath.Join(t.TempDir(), "tree")
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.MkdirAll(filepath.Join(dir, "deep/er"), 0o755))
	must(os.WriteFile(filepath.Join(dir, "empty"), nil, 0o644))
	must(os.WriteFile(filepath.Join(dir, "large"), bytes.Repeat([]byte("hutch "), 20000), 0o640))
	must(os.WriteFile(filepath.Join(dir, "su"), []byte("x"), 0o755))
	must(os.Chown(filepath.Join(dir, "su"), 3, 100007))
	must(unix.Chmod(filepath.Join(dir, "su"), 0o6755))
	must(os.Link(filepath.Join(dir, "large"), filepath.Join(dir, "deep/er/also")))
	must(os.Symlink("/nowhere/at/all", filepath.Join(dir, "link")))
	must(os.Symlink(strings.Repeat("long/", 800), filepath.Join(dir, "longlink")))
	must(unix.Mknod(filepath.Join(dir, "null"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))))
	for i := range 500 { // several blocks of names
		must(os.WriteFile(filepath.Join(dir, "deep", strings.Repeat("n", 20)+string(rune('a'+i%26))+time.Duration(i).String()), []byte{byte(i)}, 0o644))
	}
	must(unix.Chmod(filepath.Join(dir, "deep"), 0o1777))
	must(os.Chtimes(filepath.Join(dir, "deep"), time.Unix(1600000000, 5), time.Unix(1600000000, 5)))
	return dir
}

// TestRoundTrip extracts an image and makes one of what came out: they are the same.
func TestRoundTrip(t *testing.T) {
	image := mkfs(t, sample(t))
	data, err := os.ReadFile(image)
	if err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(t.TempDir(), "tree")
	if err := erofs.Extract(t.Context(), bytes.NewReader(data), int64(len(data)), out); err != nil {
		t.Fatal(err)
	}
	again, err := os.ReadFile(mkfs(t, out))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(data, again) {
		t.Error("the image of the extracted tree is another one")
	}
	var st, linked unix.Stat_t
	if err := errors.Join(unix.Lstat(filepath.Join(out, "su"), &st), unix.Lstat(filepath.Join(out, "deep/er/also"), &linked)); err != nil {
		t.Fatal(err)
	}
	if st.Mode&0o7777 != 0o6755 || st.Uid != 3 || st.Gid != 100007 || linked.Nlink != 2 {
		t.Errorf("su is %o of %d:%d; the linked file has %d names", st.Mode, st.Uid, st.Gid, linked.Nlink)
	}
}

func TestExtractGivesUp(t *testing.T) {
	data, err := os.ReadFile(mkfs(t, sample(t)))
	if err != nil {
		t.Fatal(err)
	}
	gone := errors.New("the caller left")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(gone)
	if err := erofs.Extract(ctx, bytes.NewReader(data), int64(len(data)), filepath.Join(t.TempDir(), "x")); !errors.Is(err, gone) {
		t.Errorf("got %v, want the cause", err)
	}
	if err := erofs.Extract(t.Context(), bytes.NewReader(data), int64(len(data)/2), filepath.Join(t.TempDir(), "x")); !errors.Is(err, erofs.ErrDamaged) {
		t.Errorf("a cut image: %v, want ErrDamaged", err)
	}
}

// FuzzExtract feeds damaged images: it ends, with an error or a tree below its directory.
func FuzzExtract(f *testing.F) {
	dir := f.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "a"), []byte("content"), 0o644); err != nil {
		f.Fatal(err)
	}
	image := filepath.Join(f.TempDir(), "image")
	if out, err := exec.Command("mkfs.erofs", "--quiet", "-Enoinline_data", "-x-1", image, dir).CombinedOutput(); err != nil {
		f.Skipf("mkfs.erofs: %v %s", err, out)
	}
	data, err := os.ReadFile(image)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	f.Add(data[:2000])
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, data []byte) {
		top := t.TempDir()
		err := erofs.Extract(t.Context(), bytes.NewReader(data), int64(len(data)), filepath.Join(top, "tree"))
		names, readErr := os.ReadDir(top)
		if readErr != nil || len(names) > 1 || err == nil && len(names) != 1 {
			t.Errorf("it left %v (%v), with the error %v", names, readErr, err)
		}
	})
}
