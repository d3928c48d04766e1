package runtimetest

import (
	"errors"
	"strings"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/guestapi"
	"hutch.dev/hutch/internal/runtime"
)

func unknownProfile(s *suite) {
	spec := s.f.Spec(s.T, newID[hutch.SandboxID]('i'))
	spec.Profile = "half"
	sb, err := s.r.Create(s.ctx(), spec)
	if err == nil {
		_ = sb.Kill(s.ctx())
	}
	if !errors.Is(err, hutch.ErrBadRequest) {
		s.Errorf("Create: %v, want a bad_request", err)
	}
	s.checkGone(spec.ID)
}

func rootIsRoot(s *suite) {
	b := s.createAs(hutch.ProfileRoot)
	b.boot("")
	b.hello()
	if out, code := b.run(s.f.Commands.ID); out != "0\n" || code != 0 {
		s.Errorf("a command runs as %q (code %d)", out, code)
	}
	if _, code := b.run(s.f.Commands.Write(s.f.Commands.System, "x")); code != 0 {
		s.Errorf("root cannot write to the system: code %d", code)
	}
}

func lockedIsLocked(s *suite) {
	b := s.createAs(hutch.ProfileLocked)
	b.boot("")
	b.hello()
	b.checkLocked()
	if _, err := b.helloAs(""); !errors.Is(err, hutch.ErrConflict) {
		s.Errorf("a hello that would make it root's: %v, want a conflict", err)
	}
	b.checkLocked()
}

// checkLocked checks that the box's commands are ordinary users', on a system they cannot
// change, and that nobody is asked for root in vain.
func (b *box) checkLocked() {
	b.s.Helper()
	c := b.s.f.Commands
	if out, code := b.run(c.ID); code != 0 || strings.TrimSpace(out) == "0" || out == "" {
		b.s.Errorf("a command runs as %q (code %d)", out, code)
	}
	for _, user := range []string{"root", "0", "0:1000"} {
		start := startExec(newID[hutch.ExecID]('e'), c.ID)
		start.Spec.User = user
		if _, err := b.client.StartExec(b.s.ctx(), start); !errors.Is(err, hutch.ErrForbidden) {
			b.s.Errorf("a command as %s: %v, want it forbidden", user, err)
		}
	}
	if _, code := b.run(c.Write(c.System, "x")); code == 0 {
		b.s.Errorf("%s was written", c.System)
	}
	b.writeFile("mine")
	b.checkFile("mine")
}

func profileOfSnapshot(s *suite) {
	source := s.createAs(hutch.ProfileLocked)
	source.boot("")
	source.hello()
	source.writeFile("before")
	dir := source.checkpoint(true)

	other := s.createAs(hutch.ProfileRoot)
	if err := other.sb.Start(s.ctx(), runtime.StartOptions{Snapshot: dir}); !errors.Is(err, hutch.ErrUnsupported) {
		s.Errorf("a machine of the profile root started from a locked one's snapshot: %v, want ErrUnsupported", err)
	}
	clone := s.createAs(hutch.ProfileLocked)
	clone.boot(dir)
	if _, err := clone.helloAs(hutch.ProfileRoot); !errors.Is(err, hutch.ErrConflict) {
		s.Errorf("a hello that would make the clone root's: %v, want a conflict", err)
	}
	if _, err := clone.client.StartExec(s.ctx(), startExec(newID[hutch.ExecID]('e'), s.f.Commands.ID)); !notIdentified(err) {
		s.Errorf("a command in a clone before Hello: got %v, want code %s", err, guestapi.CodeNotIdentified)
	}
	clone.hello()
	clone.checkFile("before")
	clone.checkLocked()
}
