package guestimage

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"testing/fstest"
)

// imageSum is the SHA-256 of "image".
const imageSum = "6105d6cc76af400325e94d588ce511be5bfdbb73b437dc51eca43917d7a43e3d"

func embedded() fstest.MapFS {
	return fstest.MapFS{name: {Data: []byte("image")}}
}

func TestWriteInstallsUnderItsDigest(t *testing.T) {
	dir := t.TempDir()
	path, digest, err := write(embedded(), dir)
	if err != nil {
		t.Fatal(err)
	}
	if want := filepath.Join(dir, "guest-"+imageSum+".erofs"); path != want || digest != "sha256:"+imageSum {
		t.Fatalf("got %s, %s; want %s", path, digest, want)
	}
	if b, err := os.ReadFile(path); err != nil || string(b) != "image" {
		t.Fatalf("installed %q, %v", b, err)
	}
}

func TestWriteLeavesAWholeImageAlone(t *testing.T) {
	dir := t.TempDir()
	path, _, err := write(embedded(), dir)
	if err != nil {
		t.Fatal(err)
	}
	before, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := write(embedded(), dir); err != nil {
		t.Fatal(err)
	}
	after, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if !os.SameFile(before, after) {
		t.Fatal("an image that sandboxes may be using was replaced by an equal one")
	}
}

func TestWriteReplacesADamagedImage(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "guest-"+imageSum+".erofs")
	if err := os.WriteFile(path, []byte("imag"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := write(embedded(), dir); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(path); err != nil || string(b) != "image" {
		t.Fatalf("installed %q, %v", b, err)
	}
}

func TestWriteWithoutImageSaysWhatToDo(t *testing.T) {
	_, _, err := write(fstest.MapFS{"bin/.gitkeep": {}}, t.TempDir())
	if !errors.Is(err, ErrNotBuilt) {
		t.Fatalf("got %v, want ErrNotBuilt", err)
	}
}
