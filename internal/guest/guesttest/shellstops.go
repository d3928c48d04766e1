package guesttest

import (
	"fmt"
	"testing"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/guestapi"
)

// shellStops checks that what is left of a stopped command is not run, and that the session
// lives on if it can.
func (c *Client) shellStops(t *testing.T) {
	s := c.shell(t, "stops")
	s.says(t, "x=kept; build() { sleep 311; echo built > /tmp/shell-bad; }; spin() { while :; do :; done; echo spun > /tmp/shell-bad; }; rm -f /tmp/shell-bad", "")
	for _, cmd := range []string{
		"echo out; sleep 312; touch /tmp/shell-bad",
		"echo out; build; touch /tmp/shell-bad",
		"echo out; while :; do :; done; touch /tmp/shell-bad",
		"echo out; for i in 1 2 3; do spin; touch /tmp/shell-bad; done",
		"echo out; (sleep 313; touch /tmp/shell-bad); touch /tmp/shell-bad",
		"echo out; y=$(sleep 314; touch /tmp/shell-bad); touch /tmp/shell-bad",
		"echo out; sleep 315 & wait; touch /tmp/shell-bad",
		"echo out; sh -c 'trap \"\" TERM; sleep 316; sleep 317'; touch /tmp/shell-bad",
		"echo out; sleep 318 | cat; touch /tmp/shell-bad",
	} {
		begin := time.Now()
		st := c.Start(t, hutch.ExecSpec{Cmd: cmd, Shell: "stops", Timeout: time.Second, Grace: time.Second})
		r := c.End(t, st.ID)
		if r.End != hutch.ExecTimeout || r.ExitCode != 124 || string(r.Stdout.Head) != "out\n" {
			t.Errorf("%q: %+v", cmd, r)
		}
		within(t, begin, 2*time.Second)
		gone(t, c, st.ID)
		r = s.says(t, "echo $x; ls /tmp/shell-bad 2>/dev/null; rm -f /tmp/shell-bad; trap -p DEBUG; shopt extdebug | tr -d ' \\t'", "kept\nextdebugoff\n")
		if r.ShellReplaced != "" {
			t.Errorf("after %q: replaced %q", cmd, r.ShellReplaced)
		}
		if t.Failed() {
			t.Fatalf("after %q", cmd)
		}
	}
	t.Run("at once", func(t *testing.T) {
		st := c.Start(t, hutch.ExecSpec{Cmd: "sleep 319; touch /tmp/shell-bad", Shell: "stops"})
		r := c.Stop(t, st.ID, guestapi.Stop{}).Result
		if r.End != hutch.ExecCancelled || r.Escalated {
			t.Errorf("%+v", r)
		}
		s.says(t, "echo $x; ls /tmp/shell-bad 2>/dev/null; true", "kept\n")
	})
	t.Run("hung", func(t *testing.T) {
		begin := time.Now()
		r := c.Run(t, hutch.ExecSpec{Cmd: fmt.Sprintf("trap '' %d; while :; do :; done", 63), Shell: "stops", Timeout: time.Second, Grace: time.Second})
		if r.End != hutch.ExecTimeout || !r.Escalated {
			t.Errorf("%+v", r)
		}
		within(t, begin, 4*time.Second)
		if r := s.says(t, "echo [$x]", "[]\n"); r.ShellReplaced != "hung" {
			t.Errorf("%+v", r)
		}
	})
	t.Run("a signal is for what runs in it, not for the shell", func(t *testing.T) {
		s.says(t, "x=kept", "")
		st := c.Start(t, hutch.ExecSpec{Cmd: "sleep 320; echo $?", Shell: "stops"})
		Eventually(t, 10*time.Second, "the program runs", func() bool { return len(c.Processes(t, st.ID)) == 1 })
		c.must(t, "POST", path(st.ID, "/signal"), guestapi.Signal{Signal: "TERM"}, nil)
		if r := c.End(t, st.ID); string(r.Stdout.Head) != "143\n" || r.End != hutch.ExecExit {
			t.Errorf("%+v", r)
		}
		s.says(t, "echo $x", "kept\n")
	})
}

func (c *Client) shellBackground(t *testing.T) {
	s := c.shell(t, "background")
	begin := time.Now()
	first := c.Start(t, hutch.ExecSpec{Cmd: "sleep 321 & (setsid sleep 322 &); echo started", Shell: "background"})
	r := c.End(t, first.ID)
	if within(t, begin, 2*time.Second); string(r.Stdout.Head) != "started\n" || len(r.LeftRunning) != 2 {
		t.Fatalf("%+v", r)
	}
	s.says(t, "echo next", "next\n")
	// The stop of a later command leaves those alone.
	second := c.Start(t, hutch.ExecSpec{Cmd: "sleep 323 & sleep 324", Shell: "background", Timeout: time.Second})
	if r := c.End(t, second.ID); r.End != hutch.ExecTimeout || len(r.Killed) != 2 {
		t.Errorf("%+v", r)
	}
	if ps := c.Processes(t, first.ID); len(ps) != 2 {
		t.Errorf("of the first command run %+v, want two", ps)
	}
	gone(t, c, second.ID)
	// A child that writes when its command is over writes into nobody else's output.
	late := c.Start(t, hutch.ExecSpec{Cmd: "(sleep 2; echo late; sleep 325) & echo early", Shell: "background"})
	if r := c.End(t, late.ID); string(r.Stdout.Head) != "early\n" {
		t.Errorf("%+v", r)
	}
	s.says(t, "sleep 2; echo mine", "mine\n")
	// And the first can still be stopped.
	c.Stop(t, first.ID, guestapi.Stop{})
	gone(t, c, first.ID)
	s.says(t, "echo alive", "alive\n")
	// The session's end takes all of them along.
	if ps := c.Processes(t, late.ID); len(ps) == 0 {
		t.Error("the late child is gone already")
	}
	c.must(t, "DELETE", guestapi.PathShells+"/background", nil, nil)
	gone(t, c, late.ID)
}
