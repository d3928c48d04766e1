package sqlite

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"hutch.dev/hutch"
)

// childDir tells this test binary to be the process that is killed.
const childDir = "HUTCH_TEST_SQLITE_CHILD_DIR"

// A process that is killed with many writes under way: every write it was told is
// durable is there, whole, with its event, and the file is sound. (A power cut is what
// synchronous=FULL is for; no test here can pull the plug.)
func TestKilledProcessLosesNothing(t *testing.T) {
	if dir := os.Getenv(childDir); dir != "" {
		writeUntilKilled(t, dir)
	}
	for round := range 3 {
		dir := t.TempDir()
		told := killWhileWriting(t, dir, 100+50*round)
		s := open(t, dir)
		if err := s.Check(t.Context()); err != nil {
			t.Error(err)
		}
		for _, id := range told {
			if _, err := s.Sandbox(t.Context(), id); err != nil {
				t.Errorf("%s was durable: %v", id, err)
			}
		}
		var records, events int
		if err := s.read.QueryRowContext(t.Context(), `SELECT count(*) FROM sandboxes`).Scan(&records); err != nil {
			t.Fatal(err)
		}
		if err := s.read.QueryRowContext(t.Context(), `SELECT count(*) FROM events`).Scan(&events); err != nil {
			t.Fatal(err)
		}
		if records != events || records < len(told) {
			t.Errorf("%d records and %d events, of which %d were told", records, events, len(told))
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}

// killWhileWriting runs this test as a child until it has told of n writes, kills it,
// and returns all it has told.
func killWhileWriting(t *testing.T, dir string, n int) []hutch.SandboxID {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestKilledProcessLosesNothing$")
	cmd.Env = append(os.Environ(), childDir+"="+dir)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var told []hutch.SandboxID
	for lines := bufio.NewScanner(out); lines.Scan(); {
		told = append(told, hutch.SandboxID(lines.Text()))
		if len(told) == n {
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := cmd.Wait(); err == nil || len(told) < n {
		t.Fatalf("the child told of %d writes and ended with %v; it was to be killed after %d", len(told), err, n)
	}
	return told
}

func writeUntilKilled(t *testing.T, dir string) {
	s, err := Open(t.Context(), filepath.Join(dir, "hutch.db"))
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			for i := range 100_000 {
				id := hutch.SandboxID(fmt.Sprintf("i%d-%d", w, i))
				if err := s.CreateSandbox(t.Context(), hutch.Sandbox{ID: id}, hutch.Event{Sandbox: id, Type: "made"}); err != nil {
					t.Error(err)
					return
				}
				fmt.Println(id) // one write: lines do not mix
			}
		})
	}
	wg.Wait()
	t.Fatal("nobody killed this process")
}
