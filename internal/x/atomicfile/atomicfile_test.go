package atomicfile_test

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"hutch.dev/hutch/internal/x/atomicfile"
)

func names(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

func TestWriteReplacesWholeAndSetsMode(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "f")
	for i, want := range []string{"first and long", "second", ""} {
		perm := []os.FileMode{0o600, 0o666, 0o444}[i]
		if err := atomicfile.Write(path, []byte(want), perm); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(path)
		if err != nil || string(got) != want {
			t.Fatalf("read back %q, %v; want %q", got, err, want)
		}
		st, err := os.Stat(path)
		if err != nil || st.Mode().Perm() != perm {
			t.Fatalf("mode %v, %v; want %v whatever the umask", st.Mode(), err, perm)
		}
	}
	if got := names(t, dir); len(got) != 1 {
		t.Fatalf("left behind: %v", got)
	}
}

func TestFailedFillChangesNothing(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "f")
	if err := atomicfile.Write(path, []byte("old"), 0o644); err != nil {
		t.Fatal(err)
	}
	boom := errors.New("boom")
	err := atomicfile.WriteFrom(path, 0o644, func(w io.Writer) error {
		if _, err := io.WriteString(w, "half of the new"); err != nil {
			return err
		}
		return boom
	})
	if !errors.Is(err, boom) {
		t.Fatalf("got %v, want the fill's own error", err)
	}
	if got, _ := os.ReadFile(path); string(got) != "old" {
		t.Fatalf("content is now %q", got)
	}
	if got := names(t, dir); len(got) != 1 {
		t.Fatalf("left behind: %v", got)
	}
}

func TestReadersNeverSeeAPart(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	content := func(n int) []byte { return fmt.Appendf(nil, "%0*d", 1000+n*100, n) }
	if err := atomicfile.Write(path, content(0), 0o644); err != nil {
		t.Fatal(err)
	}
	valid := map[string]bool{}
	for n := range 20 {
		valid[string(content(n))] = true
	}
	var wg sync.WaitGroup
	done := make(chan struct{})
	wg.Go(func() {
		defer close(done)
		for n := range 20 {
			if err := atomicfile.Write(path, content(n), 0o644); err != nil {
				t.Error(err)
			}
		}
	})
	for reading := true; reading; {
		select {
		case <-done:
			reading = false
		default:
		}
		got, err := os.ReadFile(path)
		if err != nil || !valid[string(got)] {
			t.Errorf("read %d bytes that were never written as a whole (%v)", len(got), err)
			reading = false
		}
	}
	wg.Wait()
}

func TestInstall(t *testing.T) {
	dir := t.TempDir()
	src, dst := filepath.Join(dir, "src"), filepath.Join(dir, "dst")
	if err := os.WriteFile(src, []byte("image"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := atomicfile.Install(src, filepath.Join(dir, "missing", "dst"), 0o444); !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("into a missing directory: %v, want not exist", err)
	}
	if _, err := os.Stat(src); err != nil {
		t.Fatalf("after a failed Install the source is gone: %v", err)
	}
	if err := atomicfile.Install(src, dst, 0o444); err != nil {
		t.Fatal(err)
	}
	st, err := os.Stat(dst)
	if err != nil || st.Mode().Perm() != 0o444 {
		t.Fatalf("installed: %v, %v; want mode 0444", st, err)
	}
	if _, err := os.Stat(src); !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("source still there: %v", err)
	}
}

func TestTempPatternMatchesWhatIsLeft(t *testing.T) {
	dir := t.TempDir()
	err := atomicfile.WriteFrom(filepath.Join(dir, "f"), 0o644, func(io.Writer) error {
		for _, n := range names(t, dir) {
			if ok, err := filepath.Match(atomicfile.TempPattern, n); err != nil || !ok {
				t.Errorf("%q does not match %q (%v)", n, atomicfile.TempPattern, err)
			}
		}
		if len(names(t, dir)) != 1 {
			t.Errorf("want one file under way, got %v", names(t, dir))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
