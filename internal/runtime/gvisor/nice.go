package gvisor

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// niceAgent is the niceness of what runs the guest agent of a sandbox. Its kernel has 0, and its
// programs run in what time is left (SCHED_IDLE). All of that counts within the sandbox's own
// share of the CPU only: a control group's weight is set apart from it. A sandbox full of
// programs that spin or fork still does what it is asked from outside, many times sooner than if
// the guest agent waited its turn among them. Programs lose nothing by it but
// this: what they write is read sooner, in smaller pieces. The kernel and the agent do little else
// than what programs want of them.
const niceAgent = -15

// favourAgent has the programs of a sandbox let its kernel and its guest agent go first. All
// processes that run programs are forked from one that the sentry made before it was let go,
// which is among before, and inherit what it has; agent are those in which the agent runs, and
// were forked already.
func (s *sandbox) favourAgent(before, agent []int) error {
	for _, pid := range agent {
		err := eachThread(pid, func(id int) error { return unix.Setpriority(unix.PRIO_PROCESS, id, niceAgent) })
		if err != nil && !errors.Is(err, unix.EACCES) && !errors.Is(err, unix.EPERM) { // a host may forbid it: it has the kernel's own
			return fmt.Errorf("have the guest agent go first: %w", err)
		}
	}
	for _, pid := range before {
		if pid == s.rec.Sentry.PID || pid == s.rec.Gofer.PID {
			continue
		}
		if err := eachThread(pid, idle); err != nil {
			return fmt.Errorf("have programs yield: %w", err)
		}
	}
	return nil
}

// idle has a thread run in what time others leave, and those that it makes.
func idle(thread int) error {
	return unix.SchedSetAttr(thread, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_IDLE}, 0)
}

// eachThread calls f for every thread of a process. That it is gone is fine.
func eachThread(pid int, f func(id int) error) error {
	threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ESRCH) {
		return err
	}
	for _, t := range threads {
		id, err := strconv.Atoi(t.Name())
		if err != nil {
			return fmt.Errorf("thread %q: %w", t.Name(), err)
		}
		if err := f(id); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("thread %d of process %d: %w", id, pid, err)
		}
	}
	return nil
}
