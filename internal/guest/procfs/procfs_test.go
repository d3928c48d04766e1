package procfs

import (
	"os"
	"strings"
	"testing"
	"unicode/utf8"
)

const line = "42 (a) b(\n) S 7 42 40 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 12345 1000000 250 18446744073709551615 1 1 0"

func TestParseStat(t *testing.T) {
	p, err := parseStat([]byte(line))
	want := Process{PID: 42, PPID: 7, Session: 40, State: 'S', Start: 12345, RSS: 250 * int64(os.Getpagesize()), Comm: "a) b(?"}
	if err != nil || p != want {
		t.Errorf("parseStat = %+v, %v; want %+v", p, err, want)
	}
	for _, bad := range []string{"", "1", "1 (x", "1 (x) ", "0 (x) S 1", "(x) S 1 1 1", line[:60]} {
		if p, err := parseStat([]byte(bad)); err == nil {
			t.Errorf("parseStat(%q) = %+v, want an error", bad, p)
		}
	}
}

func TestSelf(t *testing.T) {
	fs := FS{Root: "/proc"}
	ps, err := fs.List()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range ps {
		if p.PID == os.Getpid() {
			if p.PPID != os.Getppid() || !p.Alive() || p.RSS < 1<<20 {
				t.Errorf("own process: %+v, parent is %d", p, os.Getppid())
			}
			return
		}
	}
	t.Errorf("own process %d is not among %d", os.Getpid(), len(ps))
}

func TestGone(t *testing.T) {
	if p, err := (FS{Root: "/proc"}).Read(1 << 30); err == nil {
		t.Errorf("Read of no process = %+v", p)
	}
}

func TestLookup(t *testing.T) {
	env := []byte("A=1\x00HUTCH_EXEC_ID=e1=2\x00B\x00=x\x00")
	for name, want := range map[string]string{"HUTCH_EXEC_ID": "e1=2", "HUTCH_EXEC": "", "A": "1", "B": "", "XA": ""} {
		if got := lookup(env, name); got != want {
			t.Errorf("lookup(%q) = %q, want %q", name, got, want)
		}
	}
}

func FuzzParseStat(f *testing.F) {
	f.Add([]byte(line))
	f.Add([]byte("1 (\xff\xfe) Z 0 0 0"))
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := parseStat(b)
		if err != nil {
			return
		}
		if p.PID < 1 || len(p.Comm) > maxComm || !utf8.ValidString(p.Comm) || p.RSS < 0 || strings.ContainsRune(p.Comm, '\n') {
			t.Errorf("parseStat(%q) = %+v", b, p)
		}
	})
}
