package gvisor

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// Niceness of what runs in a sandbox beside its kernel, which has 0. It counts within the
// sandbox's own share of the CPU only: a control group's weight is set apart from it. A sandbox
// full of programs that spin or fork still does what it is asked from outside, many times sooner
// than if the guest agent waited its turn among them; programs lose nothing by it, since the
// kernel and the agent do little but what programs want of them.
const (
	niceProgram = 19
	niceAgent   = -15
)

// favourAgent has the programs of a sandbox let its kernel and its guest agent go first. All
// processes that run programs are forked from one that the sentry made before it was let go,
// which is among before, and inherit its niceness; agent are those in which the agent runs, and
// were forked already.
func (s *sandbox) favourAgent(before, agent []int) error {
	for _, pid := range agent {
		err := renice(pid, niceAgent)
		if err != nil && !errors.Is(err, unix.EACCES) && !errors.Is(err, unix.EPERM) { // a host may forbid it: it has the kernel's own
			return fmt.Errorf("have the guest agent go first: %w", err)
		}
	}
	for _, pid := range before {
		if pid == s.rec.Sentry.PID || pid == s.rec.Gofer.PID {
			continue
		}
		if err := renice(pid, niceProgram); err != nil {
			return fmt.Errorf("have programs yield: %w", err)
		}
	}
	return nil
}

// renice sets the niceness of every thread of a process, which those that it makes inherit. That
// it is gone is fine.
func renice(pid, nice int) error {
	threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ESRCH) {
		return err
	}
	for _, t := range threads {
		id, err := strconv.Atoi(t.Name())
		if err != nil {
			return fmt.Errorf("thread %q: %w", t.Name(), err)
		}
		if err := unix.Setpriority(unix.PRIO_PROCESS, id, nice); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("set niceness of process %d: %w", pid, err)
		}
	}
	return nil
}
