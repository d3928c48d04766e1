package main

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"hutch.dev/hutch/internal/x/failpoint"
)

// A server that is told to die where there is no point would test nothing: it does not start.
func TestDieAtRefusesWhatIsNoPoint(t *testing.T) {
	for _, args := range [][]string{
		{"--die-at", "nowhere"}, {"--die-at", "create.made@0"}, {"--hold-at", "nowhere"}, {"--die-at", "create.made", "--hold-at", "start.up,nowhere"},
	} {
		ran := false
		c := mayDie(&cobra.Command{Use: "x", RunE: func(*cobra.Command, []string) error { ran = true; return nil }})
		c.SetArgs(args)
		c.SetOut(io.Discard)
		c.SetErr(io.Discard)
		if err := c.Execute(); err == nil || ran {
			t.Errorf("%q: %v, and it ran: %v", args, err, ran)
		}
	}
}

// Nothing is armed, and no flag shown, in a server that is not told to die.
func TestNothingIsArmedUnasked(t *testing.T) {
	ran := false
	c := mayDie(&cobra.Command{Use: "x", RunE: func(*cobra.Command, []string) error { ran = true; return nil }})
	c.SetArgs(nil)
	if err := c.Execute(); err != nil || !ran {
		t.Errorf("%v, and it ran: %v", err, ran)
	}
	failpoint.At(failpoint.CreateMade)
	if usage := c.UsageString(); strings.Contains(usage, "-at") {
		t.Errorf("the usage shows %s", usage)
	}
}

func TestHalfWrittenFilesGo(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{".listen.atomic-1", ".admin.key.atomic-22", "listen", ".other"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := removeHalfWritten(dir, filepath.Join(dir, "missing")); err != nil {
		t.Fatal(err)
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 2 || left[0].Name() != ".other" || left[1].Name() != "listen" {
		t.Errorf("left: %v, %v", left, err)
	}
}
