package account

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"hutch.dev/hutch/internal/x/syscalls"
)

// later is a cache to which all files have been as they are for an hour.
func later() *Cache {
	return &Cache{now: func() time.Time { return time.Now().Add(time.Hour) }}
}

// reads is how many reads f makes.
func reads(t *testing.T, f func()) (n int64) {
	t.Helper()
	n, err := syscalls.Reads(f)
	if err != nil {
		t.Skip(err)
	}
	return n
}

// TestCache: what has not changed is not read again, and what has is, however it has.
func TestCache(t *testing.T) {
	d := database(t, passwd, group)
	d.Cache = later()
	look := func(want string) int64 {
		t.Helper()
		return reads(t, func() {
			u, names, err := d.LookupNames("user")
			if got := fmt.Sprint(u.UID, names().Group(999), err); got != want {
				t.Errorf("%s, want %s", got, want)
			}
		})
	}
	rewrite := func(path, from, to string) {
		t.Helper()
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(strings.Replace(string(b), from, to, 1)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if n := look("1000docker<nil>"); n == 0 || n > 2 {
		t.Errorf("two files were read by %d reads", n)
	}
	for range 3 {
		if n := look("1000docker<nil>"); n != 0 {
			t.Errorf("what is known was read again, by %d reads", n)
		}
	}
	before, err := os.Stat(d.Passwd)
	if err != nil {
		t.Fatal(err)
	}
	// The same length and, as far as it can be set, the same time.
	rewrite(d.Passwd, "user:x:1000:", "user:x:1234:")
	if err := os.Chtimes(d.Passwd, before.ModTime(), before.ModTime()); err != nil {
		t.Fatal(err)
	}
	if n := look("1234docker<nil>"); n == 0 {
		t.Error("a changed file was not read")
	}
	// Another file in its place.
	if err := os.WriteFile(d.Group+"~", []byte(strings.Replace(group, "docker", "podman", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(d.Group+"~", d.Group); err != nil {
		t.Fatal(err)
	}
	look("1234podman<nil>")
	if err := os.Remove(d.Group); err != nil {
		t.Fatal(err)
	}
	look("1234999<nil>")
}

// TestCacheKeepsNoFreshFile: the next change to a file that has just been changed could bear the
// same time. Nor does it keep a large one.
func TestCacheKeepsNoFreshFile(t *testing.T) {
	begun := time.Now()
	for name, c := range map[string]struct {
		cache *Cache
		more  int
	}{
		"fresh": {&Cache{now: func() time.Time { return begun }}, 0},
		"large": {later(), maxKept},
	} {
		d := database(t, passwd, group+strings.Repeat("#", c.more))
		d.Cache = c.cache
		for range 2 {
			if n := reads(t, func() { _, _ = d.Lookup("user") }); n == 0 {
				t.Errorf("%s: it was not read", name)
			}
		}
	}
}
