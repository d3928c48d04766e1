package e2e

import (
	"syscall"
	"testing"

	"hutch.dev/hutch"
	"hutch.dev/hutch/api"
)

// Machines are kept ready on real sandboxes: used once each, no leak while they stand, swept
// after a kill of the server, gone when it stops.
func TestPreparedMachines(t *testing.T) {
	s := own(t, "--prepare", "1")
	stands := func(when, want string) {
		t.Helper()
		eventually(t, when, func() bool { return s.metric(t, "hutch_prepared_machines") == want })
	}
	small := api.CreateSandbox{MemoryMB: ptr(128)}
	if sb := s.create(t, small); sb.BootMode != hutch.BootCold {
		t.Errorf("the first of all is %q", sb.BootMode)
	}
	stands("one is prepared", "1")
	if l := s.leaks(t); l.code != 0 {
		t.Errorf("a machine that stands ready is a leak: %+v %s", l.Leaks, l.stderr)
	}
	sb := s.create(t, api.CreateSandbox{MemoryMB: ptr(128), Hostname: "renamed"})
	if sb.BootMode != hutch.BootPrepared {
		t.Errorf("one like it is %q", sb.BootMode)
	}
	if got := s.out(t, sb.ID, "uname -n; cat /etc/hostname"); got != "renamed\nrenamed" {
		t.Errorf("it calls itself %q", got)
	}
	stands("its place is taken", "1")
	s.kill9(t)
	if err := s.start("--prepare", "1"); err != nil {
		t.Fatal(err)
	}
	if l := s.leaks(t); l.code != 0 || s.metric(t, "hutch_prepared_machines") != "0" {
		t.Errorf("after a kill and a start: %+v %s", l.Leaks, l.stderr)
	}
	s.create(t, small)
	stands("the next server prepares one", "1")
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := <-s.exited; err != nil {
		t.Errorf("the server ended: %v", err)
	}
	if l := s.leaks(t); l.code != 0 {
		t.Errorf("a server that has stopped leaves %+v %s", l.Leaks, l.stderr)
	}
	if err := s.start(); err != nil { // for the sandboxes' end
		t.Fatal(err)
	}
}
