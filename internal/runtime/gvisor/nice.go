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

// briefTurn is for how long the sandbox's kernel and its guest agent ask for a CPU at a time, in
// nanoseconds: the least that Linux takes, from 6.12 on. Whoever asks for less is let in sooner, and so is the
// whole sandbox, whose turn is as short as the shortest in it, among others
// that are as busy. Both mostly do something short when they are woken. Older kernels
// ignore it.
const briefTurn = 100_000

// favourAgent has the programs of a sandbox let its kernel and its guest agent go first. All
// processes that run programs are forked from one that the sentry made before it was let go,
// which is among before, and inherit what it has; agent are those in which the agent runs, and
// were forked already.
func (s *sandbox) favourAgent(before, agent []int) error {
	for _, pid := range agent {
		err := eachThread(pid, func(id int) error { return brief(id, niceAgent) })
		if err != nil && !forbidden(err) { // it has the kernel's own then
			return fmt.Errorf("have the guest agent go first: %w", err)
		}
	}
	if err := eachThread(s.rec.Sentry.PID, func(id int) error { return brief(id, 0) }); err != nil && !forbidden(err) {
		return fmt.Errorf("have the kernel take short turns: %w", err)
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

// forbidden reports whether the host does not let us say who goes first.
func forbidden(err error) bool { return errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM) }

// brief gives a thread a niceness and short turns, and those that it makes.
func brief(thread, nice int) error {
	return unix.SchedSetAttr(thread, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_NORMAL, Nice: int32(nice), Runtime: briefTurn}, 0)
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
