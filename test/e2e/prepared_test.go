package e2e

import (
	"syscall"
	"testing"

	"hutch.dev/hutch"
	"hutch.dev/hutch/api"
)

// What is in a sandbox, as a command says it: processes but the agent and the command's own, and
// files where something can have been left.
const (
	others = `for p in /proc/[0-9]*; do p=${p#/proc/}; [ $p = 1 ] || [ $p = $$ ] || cat /proc/$p/comm; done 2>/dev/null`
	files  = `find /etc /home /root /run /srv /tmp /var /workspace -xdev 2>/dev/null | sort`
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
	cold := s.create(t, small)
	if cold.BootMode != hutch.BootCold {
		t.Errorf("the first of all is %q", cold.BootMode)
	}
	stands("one is prepared", "1")
	if l := s.leaks(t); l.code != 0 {
		t.Errorf("a machine that stands ready is a leak: %+v %s", l.Leaks, l.stderr)
	}
	sb := s.create(t, api.CreateSandbox{MemoryMB: ptr(128), Hostname: "renamed"})
	if sb.BootMode != hutch.BootPrepared {
		t.Errorf("one like it is %q", sb.BootMode)
	}
	// Of what warmed it up there is nothing: no record, no process, no file.
	for x, err := range s.client.Execs(t.Context(), sb.ID, false) {
		t.Errorf("a command that nobody has run: %+v, %v", x, err)
	}
	if got := s.out(t, sb.ID, others); got != "" {
		t.Errorf("processes that nobody has started: %s", got)
	}
	if got, want := s.out(t, sb.ID, files), s.out(t, cold.ID, files); got != want {
		t.Errorf("its files are\n%s\nand those of one that was not prepared\n%s", got, want)
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

// One that is to be locked has run nothing, and is locked before anything does.
func TestPreparedLockedMachine(t *testing.T) {
	t.Parallel()
	s := own(t, "--prepare", "1")
	locked := api.CreateSandbox{MemoryMB: ptr(128), Profile: hutch.ProfileLocked}
	s.create(t, locked)
	eventually(t, "one is prepared", func() bool { return s.metric(t, "hutch_prepared_machines") == "1" })
	sb := s.create(t, locked)
	if sb.BootMode != hutch.BootPrepared {
		t.Errorf("it is %q", sb.BootMode)
	}
	if got := s.out(t, sb.ID, "id -u; uname -n; cat /etc/hostname; touch /etc/x 2>/dev/null || echo read-only"); got != "1000\n"+string(sb.ID)+"\n"+string(sb.ID)+"\nread-only" {
		t.Errorf("inside: %s", got)
	}
}
