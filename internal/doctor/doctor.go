// Package doctor checks whether a machine can run Hutch, and says how to mend what is
// missing.
//
// It owns the list of what Hutch needs from a machine, with the reasons for the
// figures. It changes nothing, and needs no network. What only a running part can
// tell (that a sandbox really starts) is handed in as a function.
//
// Every check answers whatever the others say, and every answer that is not ok has a
// Fix: a sentence with a command.
//
// Start with [Run]; the checks are in kernel.go, machine.go and packages.go.
package doctor

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"text/tabwriter"
	"time"

	"golang.org/x/sys/unix"
)

// Status is a check's verdict.
type Status string

// The verdicts, from good to bad.
const (
	OK   Status = "ok"
	Warn Status = "warn" // works, with less: fewer sandboxes, or one thing less
	Fail Status = "fail" // does not work
)

// Check is what was found about one thing.
type Check struct {
	Name   string `json:"name"` // stable: programs may look for it
	Status Status `json:"status"`
	Detail string `json:"detail"`        // what was found, one line
	Fix    string `json:"fix,omitempty"` // what to do, with a command; empty only if ok
}

// Env is the machine as the checks see it. The zero value is not this machine; use
// [Local], and change what differs.
type Env struct {
	Root     string // directory that /proc, /sys, /dev and /etc are looked up in
	UID      int
	Arch     string // as Go names it
	CPUs     int
	LookPath func(program string) (string, error)
	Now      func() time.Time
	// Free returns the bytes free on the file system of path, which exists.
	Free func(path string) (int64, error)

	DataDir  string   // where records and disks of sandboxes will be
	CacheDir string   // where root images will be
	Suite    string   // Debian suite of the base template; empty = the machine's own
	Listen   []string // TCP addresses the server will listen on; empty if it is running

	// Probe starts a sandbox, runs a command in it, ends it, and says in a few words
	// how that went; nil leaves the check out.
	Probe func(ctx context.Context) (string, error)
}

// Local is this machine, with directories and addresses yet to be filled in.
func Local() Env {
	return Env{
		Root: "/", UID: os.Getuid(), Arch: runtime.GOARCH, CPUs: runtime.NumCPU(),
		LookPath: exec.LookPath, Now: time.Now, Free: free,
	}
}

// free is what a process of root may still write.
func free(path string) (int64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return 0, fmt.Errorf("statfs: %w", err)
	}
	return int64(st.Bavail) * st.Bsize, nil
}

// Run makes every check, in the order in which to mend things. It takes milliseconds
// and what Probe takes.
func Run(ctx context.Context, env Env) []Check {
	checks := []Check{
		env.root(), env.arch(), env.kernel(), env.seccomp(), env.ptrace(), env.namespaces(), env.overcommit(),
		env.cgroups(), env.memory(), env.pids(), env.files(), env.clock(),
	}
	checks = append(checks, env.disks()...)
	checks = append(checks, env.programs()...)
	checks = append(checks, env.aptSources())
	checks = append(checks, env.ports(ctx)...)
	checks = append(checks, env.kvm())
	if env.Probe != nil {
		checks = append(checks, env.sandbox(ctx))
	}
	return checks
}

// Worst is the worst verdict among checks; OK if there are none.
func Worst(checks []Check) Status {
	worst := OK
	for _, c := range checks {
		if c.Status == Fail || c.Status == Warn && worst == OK {
			worst = c.Status
		}
	}
	return worst
}

// Write renders checks for people: a line for each, with the fix below where one is
// called for.
func Write(w io.Writer, checks []Check) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, c := range checks {
		fmt.Fprintf(tw, "%s\t%s\t%s\n", c.Status, c.Name, c.Detail)
		if c.Fix != "" {
			fmt.Fprintf(tw, "\t\t  fix: %s\n", c.Fix)
		}
	}
	if err := tw.Flush(); err != nil {
		return fmt.Errorf("write checks: %w", err)
	}
	return nil
}

// ok makes the check of name with a good verdict; warn and fail change that.
func ok(name, format string, args ...any) Check {
	return Check{Name: name, Status: OK, Detail: fmt.Sprintf(format, args...)}
}

func (c Check) warn(fix string, args ...any) Check {
	c.Status, c.Fix = Warn, fmt.Sprintf(fix, args...)
	return c
}

func (c Check) fail(fix string, args ...any) Check {
	c.Status, c.Fix = Fail, fmt.Sprintf(fix, args...)
	return c
}

// read returns the content of a file below the root, without blanks at its ends.
func (e *Env) read(name string) (string, error) {
	data, err := os.ReadFile(filepath.Join(e.Root, name))
	return strings.TrimSpace(string(data)), err
}
