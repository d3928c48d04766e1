//go:generate go run ./seccompgen gen/seccomp.go

package gvisor

import (
	"fmt"
	"os"
	"strings"
)

// RunscCommand is the first argument that makes our binary become runsc.
const RunscCommand = "runsc"

// enterEnv names the environment variable in which the runtime tells the child that
// will be runsc which cgroup.procs files to enter by, separated by colons.
const enterEnv = "HUTCH_ENTER_CGROUPS"

// EnterSandbox makes the calling process, a child that is about to become runsc, part
// of the sandbox it will make: it enters the control groups its parent named, if any,
// and takes its place in the order of out-of-memory kills. What it starts inherits
// both, so nothing of a sandbox ever runs outside of it.
func EnterSandbox() error {
	if err := put("/proc/self/oom_score_adj", oomProgram); err != nil {
		return fmt.Errorf("set order of out-of-memory kills: %w", err)
	}
	list := os.Getenv(enterEnv)
	if list == "" {
		return nil // on version 2 we were born inside
	}
	for _, file := range strings.Split(list, ":") {
		if err := put(file, "0"); err != nil {
			return fmt.Errorf("enter cgroup: %w", err)
		}
	}
	return os.Unsetenv(enterEnv)
}

// put writes to a file of the kernel.
func put(file, value string) error {
	f, err := os.OpenFile(file, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	return err
}
