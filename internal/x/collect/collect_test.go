package collect_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"hutch.dev/hutch/internal/x/collect"
)

// As the Makefile builds them, programs are collected as often as they say; otherwise as often as
// Go does it, and they know. What is waited for comes at once, or is Go's two minutes.
func TestProgramsAreCollectedAsOftenAsTheySay(t *testing.T) {
	for name, c := range map[string]struct {
		args  []string
		limit time.Duration
		want  string
	}{
		"as the Makefile builds": {[]string{"-tags", "quietgc", "-ldflags", "-checklinkname=0"}, time.Minute, "true true"},
		"as go build does":       {nil, 200 * time.Millisecond, "false false"},
	} {
		t.Run(name, func(t *testing.T) {
			exe := filepath.Join(t.TempDir(), "idle")
			build := exec.CommandContext(t.Context(), "go", append(append([]string{"build", "-o", exe}, c.args...), "./testdata/idle")...)
			if out, err := build.CombinedOutput(); err != nil {
				t.Fatalf("build: %v\n%s", err, out)
			}
			out, err := exec.CommandContext(t.Context(), exe, c.limit.String()).CombinedOutput()
			if got := strings.TrimSpace(string(out)); err != nil || got != c.want {
				t.Errorf("heeded, collected: %s, %v; want %s", got, err, c.want)
			}
		})
	}
}

// The two programs of which there are many, or which are many.
func TestTheMakefileBuildsQuietPrograms(t *testing.T) {
	b, err := os.ReadFile("../../../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	built := 0
	for line := range strings.Lines(string(b)) {
		if !strings.Contains(line, "go build") || !strings.Contains(line, "./cmd/hutch") {
			continue
		}
		built++
		if !strings.Contains(line, "$(QUIET) -ldflags '$(LDFLAGS)") {
			t.Errorf("the Makefile builds with Go's own period: %s", strings.TrimSpace(line))
		}
	}
	for _, want := range []string{":= -tags quietgc\n", ":= -checklinkname=0 "} {
		if built != 2 || !strings.Contains(string(b), want) {
			t.Errorf("the Makefile builds %d programs of ours, two with %q", built, strings.TrimSpace(want))
		}
	}
	if collect.Every(time.Hour) {
		t.Error("a test is built with the tag, and should run without")
	}
}
