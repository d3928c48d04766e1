package bench

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestParseRollup(t *testing.T) {
	const good = `00400000-7ffffffff000 ---p 00000000 00:00 0    [rollup]
Rss:                2000 kB
Pss:                 500 kB
Pss_Dirty:           300 kB
Pss_Anon:            300 kB
Pss_File:            200 kB
Pss_Shmem:             0 kB
Shared_Clean:       1500 kB
Swap:                  0 kB
`
	m, err := parseRollup(strings.NewReader(good))
	if want := (memory{RSS: 2000 << 10, PSS: 500 << 10, File: 200 << 10}); err != nil || m != want || m.own() != 300<<10 {
		t.Errorf("got %+v, %v, want %+v", m, err, want)
	}
	for name, bad := range map[string]string{
		"nothing":         "",
		"without sharing": "Rss:  1 kB\n",
		"not a number":    strings.Replace(good, "500 kB", "many kB", 1),
	} {
		if m, err := parseRollup(strings.NewReader(bad)); err == nil {
			t.Errorf("%s: %+v, want an error", name, m)
		}
	}
}

func TestParseStat(t *testing.T) {
	const rest = " S 1 1 1 0 -1 4194560 9 0 0 0 123 77 5 6 20 0 1 0 100 1 1"
	for name, line := range map[string]string{"plain": "7 (init)" + rest, "a name with brackets": "7 (a) S (b)" + rest} {
		if d, err := parseStat(line); err != nil || d != 2*time.Second {
			t.Errorf("%s: %s, %v, want 2s", name, d, err)
		}
	}
	for _, bad := range []string{"", "7 (init) S 1", "7 (init)" + strings.Replace(rest, "123", "x", 1)} {
		if d, err := parseStat(bad); err == nil {
			t.Errorf("%q: %s, want an error", bad, d)
		}
	}
}

// TestOwnProcess holds what is read of a process against what it knows of itself.
func TestOwnProcess(t *testing.T) {
	m, err := memoryOf(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if m.File <= 0 || m.own() <= 0 || m.RSS < m.PSS {
		t.Errorf("%+v: want some of files, some own, and PSS ≤ RSS", m)
	}
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	cpu, err := cpuOf(os.Getpid())
	took := time.Duration(u.Utime.Nano() + u.Stime.Nano())
	if err != nil || cpu < took-2*clockTick {
		t.Errorf("%s, %v, want no less than the %s of a moment ago", cpu, err, took)
	}
}

func TestRecordBytes(t *testing.T) {
	name := filepath.Join(t.TempDir(), "db")
	if err := os.WriteFile(name, make([]byte, 100<<10), 0o600); err != nil {
		t.Fatal(err)
	}
	h := &Host{Records: []string{name, name + "-wal"}}
	if n, err := h.recordBytes(); err != nil || n < 100<<10 || n > 200<<10 {
		t.Errorf("%d, %v, want the %d bytes of the one file that is there", n, err, 100<<10)
	}
}
