package rootfs_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/rootfs"
)

// image makes a file that passes for an image; content tells it from others.
func image(t *testing.T, dir, content string) string {
	t.Helper()
	b := make([]byte, 8192)
	binary.LittleEndian.PutUint32(b[1024:], 0xE0F5E1E2)
	b[1024+12] = 12
	binary.LittleEndian.PutUint32(b[1024+36:], 2)
	copy(b[4096:], content)
	f, err := os.CreateTemp(dir, "image-*")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.Write(b); err != nil {
		t.Fatal(err)
	}
	return f.Name()
}

func install(t *testing.T, s *rootfs.Store, dir, content string) rootfs.Image {
	t.Helper()
	img, err := s.Install(t.Context(), image(t, dir, content))
	if err != nil {
		t.Fatal(err)
	}
	return img
}

const missing = "sha256:0000000000000000000000000000000000000000000000000000000000000000"

func TestInstallNamesByContent(t *testing.T) {
	dir := t.TempDir()
	s := rootfs.New(rootfs.Config{Dir: filepath.Join(dir, "store")})
	src := image(t, dir, "a")
	first, err := s.Install(t.Context(), src)
	if err != nil {
		t.Fatal(err)
	}
	if err := rootfs.CheckDigest(first.Digest); err != nil || first.SizeBytes != 8192 {
		t.Errorf("installed %+v, %v", first, err)
	}
	if _, err := os.Stat(src); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the source is still there: %v", err)
	}
	st, err := os.Stat(first.Path)
	if err != nil || st.Mode().Perm() != 0o444 {
		t.Errorf("image: %v, %v; want mode 0444", st, err)
	}
	if err := s.Verify(t.Context(), first.Digest); err != nil {
		t.Errorf("verify: %v", err)
	}

	// What is installed again is new again: whoever collects what nobody needs yet spares it.
	long := time.Now().Add(-24 * time.Hour)
	if err := os.Chtimes(first.Path, long, long); err != nil {
		t.Fatal(err)
	}
	again := install(t, s, dir, "a")
	if again.Digest != first.Digest || again.Path != first.Path || again.SizeBytes != first.SizeBytes || again.InstalledAt.Before(first.InstalledAt) {
		t.Errorf("the same content again: %+v, want %+v, and new", again, first)
	}
	other := install(t, s, dir, "b")
	if other.Digest == first.Digest {
		t.Error("another content has the same digest")
	}
	list, err := s.List()
	if err != nil || len(list) != 2 {
		t.Errorf("list: %v, %v; want two", list, err)
	}
}

func TestInstallRefuses(t *testing.T) {
	super := func(change func(b []byte)) []byte {
		b, err := os.ReadFile(image(t, t.TempDir(), ""))
		if err != nil {
			t.Fatal(err)
		}
		change(b)
		return b
	}
	tests := map[string]struct {
		content []byte
		want    string
	}{
		"empty":      {nil, "too short"},
		"no erofs":   {bytes.Repeat([]byte("x"), 8192), "not an EROFS image"},
		"cut short":  {super(func([]byte) {})[:5000], "cut short"},
		"compressed": {super(func(b []byte) { b[1024+80] = 1 }), "uncompressed"},
		"block size": {super(func(b []byte) { b[1024+12] = 9 }), "block size"},
		"no blocks":  {super(func(b []byte) { b[1024+36] = 0 }), "without blocks"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			src := filepath.Join(dir, "src")
			if err := os.WriteFile(src, tt.content, 0o600); err != nil {
				t.Fatal(err)
			}
			s := rootfs.New(rootfs.Config{Dir: filepath.Join(dir, "store")})
			if _, err := s.Install(t.Context(), src); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want an error with %q", err, tt.want)
			}
			if _, err := os.Stat(src); err != nil {
				t.Errorf("the refused file is gone: %v", err)
			}
			if list, err := s.List(); err != nil || len(list) != 0 {
				t.Errorf("list after a refusal: %v, %v", list, err)
			}
		})
	}
}

// TestRealImage checks our reading of the format against what mkfs.erofs writes.
func TestRealImage(t *testing.T) {
	mkfs, err := exec.LookPath("mkfs.erofs")
	if err != nil {
		t.Skip("mkfs.erofs is not installed")
	}
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "tree"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "tree", "f"), bytes.Repeat([]byte("hutch "), 20000), 0o644); err != nil {
		t.Fatal(err)
	}
	s := rootfs.New(rootfs.Config{Dir: filepath.Join(dir, "store")})
	for name, tt := range map[string]struct {
		args []string
		ok   bool
	}{
		"plain":      {[]string{"-Enoinline_data"}, true},
		"compressed": {[]string{"-zlz4hc"}, false},
	} {
		img := filepath.Join(dir, name)
		args := append(tt.args, "--quiet", img, filepath.Join(dir, "tree"))
		if out, err := exec.CommandContext(t.Context(), mkfs, args...).CombinedOutput(); err != nil {
			t.Fatalf("mkfs.erofs: %v\n%s", err, out)
		}
		if _, err := s.Install(t.Context(), img); (err == nil) != tt.ok {
			t.Errorf("%s: %v, want success %v", name, err, tt.ok)
		}
	}
}

func TestVerifyFindsDamage(t *testing.T) {
	dir := t.TempDir()
	s := rootfs.New(rootfs.Config{Dir: filepath.Join(dir, "store")})
	img := install(t, s, dir, "a")
	b, err := os.ReadFile(img.Path)
	if err != nil {
		t.Fatal(err)
	}
	b[5000] ^= 1
	if err := os.Remove(img.Path); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(img.Path, b, 0o444); err != nil {
		t.Fatal(err)
	}
	if err := s.Verify(t.Context(), img.Digest); !errors.Is(err, rootfs.ErrCorrupt) {
		t.Errorf("got %v, want ErrCorrupt", err)
	}
}

func TestMissingAndMalformedDigests(t *testing.T) {
	s := rootfs.New(rootfs.Config{Dir: t.TempDir()})
	calls := map[string]func(digest string) error{
		"Image":  func(d string) error { _, err := s.Image(d); return err },
		"Path":   func(d string) error { _, err := s.Path(d); return err },
		"Open":   func(d string) error { _, err := s.Open(d); return err },
		"Verify": func(d string) error { return s.Verify(t.Context(), d) },
		"Remove": s.Remove,
		"Pin":    func(d string) error { return s.Pin(d, "x") },
	}
	for name, call := range calls {
		if err := call(missing); !errors.Is(err, hutch.ErrNotFound) {
			t.Errorf("%s of a missing image: %v, want not found", name, err)
		}
		for _, bad := range []string{"", "sha256:", "../../etc/passwd", missing + "0", strings.ToUpper(missing), strings.Replace(missing, "0", "/", 1)} {
			if err := call(bad); !errors.Is(err, hutch.ErrBadRequest) {
				t.Errorf("%s of %q: %v, want bad request", name, bad, err)
			}
		}
	}
}

func TestPinsAndUseKeepAnImage(t *testing.T) {
	dir := t.TempDir()
	var used string
	cfg := rootfs.Config{Dir: filepath.Join(dir, "store"), InUse: func(d string) bool { return d == used }}
	s := rootfs.New(cfg)
	img := install(t, s, dir, "a")
	for _, owner := range []string{"template.base", "i0123", "i0123"} {
		if err := s.Pin(img.Digest, owner); err != nil {
			t.Fatal(err)
		}
	}
	// A store in another process sees the same pins.
	if got, err := rootfs.New(cfg).Pins(img.Digest); err != nil || !reflect.DeepEqual(got, []string{"i0123", "template.base"}) {
		t.Errorf("pins %v, %v", got, err)
	}
	err := s.Remove(img.Digest)
	if !errors.Is(err, hutch.ErrConflict) || !strings.Contains(err.Error(), "template.base") {
		t.Errorf("remove a pinned image: %v, want a conflict that names the owner", err)
	}
	for _, owner := range []string{"template.base", "i0123", "nobody"} {
		if err := s.Unpin(img.Digest, owner); err != nil {
			t.Fatal(err)
		}
	}
	used = img.Digest
	if err := s.Remove(img.Digest); !errors.Is(err, hutch.ErrConflict) {
		t.Errorf("remove an image in use: %v, want a conflict", err)
	}
	used = ""
	if err := s.Remove(img.Digest); err != nil {
		t.Errorf("remove: %v", err)
	}
	if _, err := s.Image(img.Digest); !errors.Is(err, hutch.ErrNotFound) {
		t.Errorf("after removal: %v", err)
	}
}

func TestPinRefusesOwnersThatAreNoNames(t *testing.T) {
	dir := t.TempDir()
	s := rootfs.New(rootfs.Config{Dir: filepath.Join(dir, "store")})
	img := install(t, s, dir, "a")
	for _, owner := range []string{"", ".", "..", ".hidden", "a/b", "a b", "ä", strings.Repeat("x", 129)} {
		if err := s.Pin(img.Digest, owner); !errors.Is(err, hutch.ErrBadRequest) {
			t.Errorf("pin as %q: %v, want bad request", owner, err)
		}
		if err := s.Unpin(img.Digest, owner); !errors.Is(err, hutch.ErrBadRequest) {
			t.Errorf("unpin as %q: %v, want bad request", owner, err)
		}
	}
}

func TestGC(t *testing.T) {
	dir := t.TempDir()
	s := rootfs.New(rootfs.Config{Dir: filepath.Join(dir, "store")})
	kept, pinned, loose := install(t, s, dir, "kept"), install(t, s, dir, "pinned"), install(t, s, dir, "loose")
	if err := s.Pin(pinned.Digest, "x"); err != nil {
		t.Fatal(err)
	}
	removed, err := s.GC(t.Context(), func(d string) bool { return d == kept.Digest })
	if err != nil || !reflect.DeepEqual(removed, []rootfs.Image{loose}) {
		t.Errorf("removed %v, %v; want only the loose one", removed, err)
	}
	list, err := s.List()
	if err != nil || len(list) != 2 {
		t.Errorf("left %v, %v; want the kept and the pinned one", list, err)
	}
}

func TestCancelledInstallLeavesTheStoreAlone(t *testing.T) {
	dir := t.TempDir()
	s := rootfs.New(rootfs.Config{Dir: filepath.Join(dir, "store")})
	gone := errors.New("the caller left")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(gone)
	if _, err := s.Install(ctx, image(t, dir, "a")); !errors.Is(err, gone) {
		t.Errorf("got %v, want the cause", err)
	}
	if list, err := s.List(); err != nil || len(list) != 0 {
		t.Errorf("list: %v, %v", list, err)
	}
}

// TestPinAndGCNeverCross pins while another store collects: an image whose pin
// succeeded is there, one whose pin failed was collected.
func TestPinAndGCNeverCross(t *testing.T) {
	dir := t.TempDir()
	cfg := rootfs.Config{Dir: filepath.Join(dir, "store")}
	s, other := rootfs.New(cfg), rootfs.New(cfg)
	for range 20 {
		img := install(t, s, dir, "a")
		var wg sync.WaitGroup
		wg.Go(func() {
			if _, err := other.GC(t.Context(), func(string) bool { return false }); err != nil {
				t.Error(err)
			}
		})
		err := s.Pin(img.Digest, "x")
		wg.Wait()
		_, imgErr := s.Image(img.Digest)
		if (err == nil) != (imgErr == nil) {
			t.Fatalf("pin: %v, but image: %v", err, imgErr)
		}
		if err := s.Unpin(img.Digest, "x"); err != nil {
			t.Fatal(err)
		}
	}
}
