package harness

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// Report is one line of a script's standard output. What is no such object is logged.
type Report struct {
	Check  string `json:"check,omitempty"` // name of a check that has ended
	Error  string `json:"error,omitempty"` // why it did not pass; empty if it did
	Millis int    `json:"ms,omitempty"`    // how long it took
	Done   *int   `json:"done,omitempty"`  // last line: how many checks there were
}

// Script says what to run.
type Script struct {
	Name    string            // file in the suite's directory
	Env     map[string]string // besides PATH and a HOME of its own
	Timeout time.Duration     // 0 = five minutes
}

// Run runs a script. Each of its checks is a subtest of t.
func (p *Packages) Run(t *testing.T, s Script) {
	t.Helper()
	if s.Timeout == 0 {
		s.Timeout = 5 * time.Minute
	}
	ctx, cancel := context.WithTimeout(t.Context(), s.Timeout)
	defer cancel()
	dir, remove, err := p.prepare()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := remove(); err != nil {
			t.Error(err)
		}
	})
	cmd := p.lang.run(ctx, p.dir, filepath.Join(dir, s.Name))
	cmd.Dir = dir
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir(), "LANG=C.UTF-8"}
	if only := os.Getenv("HUTCH_CHECKS"); only != "" { // a regular expression, for a person at work
		cmd.Env = append(cmd.Env, "HUTCH_CHECKS="+only)
	}
	for k, v := range s.Env {
		cmd.Env = append(cmd.Env, k+"="+v)
	}
	cmd.WaitDelay = 5 * time.Second
	log := &syncBuffer{}
	cmd.Stderr = log
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	sum := report(t, stdout)
	if err := cmd.Wait(); err != nil {
		t.Errorf("%s: %v", s.Name, err)
	}
	if err := sum.whole(); err != nil {
		t.Errorf("%s: %v", s.Name, err)
	}
	if t.Failed() {
		t.Logf("%s wrote:\n%s", s.Name, log.String())
	}
}

// tally is what a script reported in all.
type tally struct {
	checks int
	done   *int
}

// whole returns an error unless the script came to its end and all of its checks to ours.
func (s tally) whole() error {
	switch {
	case s.done == nil:
		return fmt.Errorf("it broke off after %d checks", s.checks)
	case *s.done != s.checks:
		return fmt.Errorf("it made %d checks and reported %d", *s.done, s.checks)
	case s.checks == 0:
		return fmt.Errorf("it made no check")
	}
	return nil
}

// report turns a script's lines into subtests.
func report(t *testing.T, r io.Reader) tally {
	t.Helper()
	var sum tally
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var rep Report
		if err := json.Unmarshal(lines.Bytes(), &rep); err != nil || rep.Check == "" && rep.Done == nil {
			t.Log(lines.Text())
			continue
		}
		if rep.Done != nil {
			sum.done = rep.Done
			continue
		}
		sum.checks++
		t.Run(rep.Check, func(t *testing.T) {
			t.Logf("%d ms", rep.Millis)
			if rep.Error != "" {
				t.Error(rep.Error)
			}
		})
	}
	if err := lines.Err(); err != nil {
		t.Errorf("read what the script reports: %v", err)
	}
	return sum
}
