package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"hutch.dev/hutch/api"
)

// Copies go where cp(1) would put them, in, out and between sandboxes.
func TestCopyingGoesWhereItIsTold(t *testing.T) {
	s := common(t)
	a, b := s.create(t, api.CreateSandbox{}), s.create(t, api.CreateSandbox{})
	inA, inB := string(a.ID)+":", string(b.ID)+":"
	dir := t.TempDir()
	file := filepath.Join(dir, "run.sh")
	if err := os.WriteFile(file, []byte("#!/bin/sh\necho ran\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	cp := func(args ...string) {
		t.Helper()
		if _, errOut, err := s.hutchCLI(t, append([]string{"cp"}, args...)...); err != nil {
			t.Fatalf("cp %q: %v: %s", args, err, errOut)
		}
	}
	cp(file, inA+"/workspace")                    // into a directory that is there
	cp(file, inA+"/workspace/new/name")           // by name, parents made
	cp("--mode", "0600", file, inA+"/workspace/") // a slash says directory
	if got := s.out(t, a.ID, "cd /workspace && stat -c '%n %a' run.sh new/name && new/name"); got != "run.sh 600\nnew/name 755\nran" {
		t.Errorf("inside: %q", got)
	}
	cp(inA+"/workspace", inB+"/srv")
	cp(inA+"/workspace/new/name", inB+"/srv/one")
	if got := s.out(t, b.ID, "cd /srv && find . -type f | sort && stat -c %a one"); got != "./one\n./workspace/new/name\n./workspace/run.sh\n755" {
		t.Errorf("in the other: %q", got)
	}
	cp("--exclude", "new", inB+"/srv/.", dir)
	for name, there := range map[string]bool{"one": true, "workspace/run.sh": true, "workspace/new": false} {
		if _, err := os.Stat(filepath.Join(dir, name)); (err == nil) != there {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, args := range [][]string{{file, file}, {"-", inA + "/workspace/"}, {inA + "/nowhere", dir}, {file, inA + "/workspace/run.sh/x"}} {
		if _, errOut, err := s.hutchCLI(t, append([]string{"cp"}, args...)...); err == nil || !strings.HasPrefix(errOut, "hutch: ") {
			t.Errorf("cp %q: %v, %q", args, err, errOut)
		}
	}
}

// A shell by the command line, with a real terminal on this side.
func TestShellByTheCommandLine(t *testing.T) {
	s := common(t)
	sb := s.create(t, api.CreateSandbox{})
	exe, err := hutchBinary()
	if err != nil {
		t.Fatal(err)
	}
	// script(1) gives the command a terminal of its own.
	cmd := exec.CommandContext(t.Context(), "script", "-qec", exe+" shell "+string(sb.ID), "/dev/null")
	cmd.Env = append(os.Environ(), "HUTCH_API_URL="+s.base, "HUTCH_API_KEY="+s.key)
	cmd.Stdin = strings.NewReader("echo $((6*7)); [ -t 0 ] && echo a ter''minal\nexit 5\n")
	out, err := cmd.Output()
	if code := cmd.ProcessState.ExitCode(); code != 5 {
		t.Errorf("exit code %d (%v): %s", code, err, out)
	}
	for _, want := range []string{"42\r\n", "a terminal\r\n"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("%q is not in %q", want, out)
		}
	}
	logs, _, err := s.hutchCLI(t, "logs", "--tail", "5", string(sb.ID))
	if err != nil || !strings.Contains(logs, "a terminal") {
		t.Errorf("logs: %q, %v", logs, err)
	}
	events, _, err := s.hutchCLI(t, "events", string(sb.ID))
	if err != nil || !strings.Contains(events, "exec.ended") || !strings.Contains(events, "exit_code=5") {
		t.Errorf("events: %q, %v", events, err)
	}
}
