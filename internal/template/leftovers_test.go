package template

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/rootfs"
)

func TestLeftovers(t *testing.T) {
	dir := t.TempDir()
	b := New(Config{Dir: filepath.Join(dir, "builds")}, rootfs.New(rootfs.Config{Dir: dir}), slog.New(slog.DiscardHandler))
	check := func(when string, want ...string) {
		t.Helper()
		got, err := b.Leftovers(t.Context())
		if err != nil || len(got) != len(want) {
			t.Fatalf("%s: %+v, %v, want %q", when, got, err, want)
		}
		for i, l := range got {
			if l.Kind != hutch.TraceTemp || l.Name != want[i] || l.Since.IsZero() || l.Sandbox != "" {
				t.Errorf("%s: %+v, want %s", when, l, want[i])
			}
		}
	}
	check("before any build")
	unlock, ok, err := b.tryLock("key")
	if err != nil || !ok {
		t.Fatal(ok, err)
	}
	work, err := b.makeDir("key")
	if err != nil {
		t.Fatal(err)
	}
	check("a build is under way")
	unlock()
	check("it was killed", work)
	// A look takes nothing from who comes next.
	if unlock, ok, err = b.tryLock("key"); err != nil || !ok {
		t.Errorf("the lock after a look: %v, %v", ok, err)
	} else {
		unlock()
	}
	b.removeDir(work)
	half := filepath.Join(b.buildsDir(), ".x.json.atomic-123")
	if err := os.MkdirAll(b.buildsDir(), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{half, filepath.Join(b.buildsDir(), "x.json")} {
		if err := os.WriteFile(name, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	check("a record was being written", half)

	const key, busy = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff", "ff112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"
	var kept []string
	for _, k := range []string{key, busy} {
		dir, err := b.makeDir(k)
		if err != nil {
			t.Fatal(err)
		}
		record := filepath.Join(b.buildsDir(), "."+k+".json.atomic-1")
		if err := os.WriteFile(record, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if k == busy {
			kept = append(kept, dir, record)
		}
	}
	unlock, ok, err = b.tryLock(busy)
	if err != nil || !ok {
		t.Fatal(ok, err)
	}
	b.Sweep()
	for _, name := range kept {
		if _, err := os.Stat(name); err != nil {
			t.Errorf("of a build under way: %v", err)
		}
	}
	unlock()
	b.Sweep()
	check("after a sweep", half) // which is no build's
}
