package runtimetest

import (
	"errors"

	"golang.org/x/sys/unix"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/runtime"
)

// A machine can be made before it is known who will use it: it takes its name inside from its
// first hello.
func preparedForAnotherName(s *suite) {
	b := s.create()
	b.spec.Hostname = "another-name"
	b.boot("")
	b.hello()
	if out, code := b.run(s.f.Commands.Name); out != "another-name\n" || code != 0 {
		s.Errorf("it calls itself %q (code %d)", out, code)
	}
	b.checkAlive()
}

// Machines that were made ahead can be started in any order, and none has anything of another.
func preparedAreIndependent(s *suite) {
	boxes := []*box{s.create(), s.create(), s.create()}
	for _, i := range []int{2, 0, 1} {
		b := boxes[i]
		b.boot("")
		if r := b.hello(); r.Restored {
			s.Error("a machine that was made ahead says that it was restored")
		}
		if _, code := b.run(s.f.Commands.Read(s.f.Commands.File)); code == 0 {
			s.Error("a machine that has just been started has a file of another's")
		}
		b.writeFile(string(b.spec.ID))
	}
	for _, b := range boxes {
		b.checkFile(string(b.spec.ID))
	}
	if err := boxes[0].sb.Kill(s.ctx()); err != nil {
		s.Errorf("Kill: %v", err)
	}
	boxes[1].checkAlive()
}

// One that has ended before anybody came for it is gone, not slow or half there.
func preparedEndsUnused(s *suite) {
	b := s.create()
	events := b.sb.Events()
	if err := s.signalProc(b.sb.Handles().Procs[0], unix.SIGKILL); err != nil {
		s.Fatalf("kill the machine's process: %v", err)
	}
	s.ended(events)
	if err := b.sb.Start(s.ctx(), runtime.StartOptions{}); !errors.Is(err, hutch.ErrSandboxGone) {
		s.Errorf("Start: got %v, want ErrSandboxGone", err)
	}
	if err := b.sb.Kill(s.ctx()); err != nil {
		s.Errorf("Kill: %v", err)
	}
	s.checkGone(b.spec.ID)
}

// One whose maker has died is found by another process, and removed whole.
func preparedIsSwept(s *suite) {
	b := s.create()
	procs := s.duplicate(b.sb.Handles()).Procs
	next := s.f.Again(s.T, s.r)
	ids, err := next.List(s.ctx())
	if err != nil {
		s.Fatalf("List: %v", err)
	}
	found := false
	for _, id := range ids {
		found = found || id == b.spec.ID
	}
	if !found {
		s.Error("another runtime does not list a machine that stands prepared")
	}
	if err := next.Sweep(s.ctx(), b.spec.ID); err != nil {
		s.Fatalf("Sweep: %v", err)
	}
	s.checkGone(b.spec.ID)
	s.checkProcsGone(procs)
}
