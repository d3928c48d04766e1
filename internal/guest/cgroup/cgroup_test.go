package cgroup

import (
	"os"
	"path/filepath"
	"testing"
)

func TestField(t *testing.T) {
	for text, want := range map[string]int64{
		"usage_usec 12\nuser_usec 5\n": 12,
		"user_usec 5\nusage_usec 7":    7,
		"usage_usec x\n":               0,
		"usage_usec -3\n":              0,
		"usage_usec 1 2\n":             0,
		"":                             0,
	} {
		if got := field([]byte(text), "usage_usec"); got != want {
			t.Errorf("field of %q = %d, want %d", text, got, want)
		}
	}
}

func TestRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "procs")
	want := make([]byte, 100_000)
	for i := range want {
		want[i] = byte(i)
	}
	if err := os.WriteFile(path, want, 0o600); err != nil {
		t.Fatal(err)
	}
	if got := read(path); string(got) != string(want) {
		t.Errorf("read %d bytes, want %d", len(got), len(want))
	}
	if got := read(path + "-none"); got != nil {
		t.Errorf("read of no file gave %d bytes", len(got))
	}
}

func TestOpenWithout(t *testing.T) {
	dir := t.TempDir()
	if _, err := Open(dir); err == nil {
		t.Error("a plain directory was taken for a cgroup file system")
	}
	if entries, _ := os.ReadDir(dir); len(entries) != 0 {
		t.Errorf("something was made in it: %v", entries)
	}
	if _, err := Open(dir + "/none"); err == nil {
		t.Error("a missing directory was taken for a cgroup file system")
	}
}
