package guesttest

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/guestapi"
)

// slack is what a loaded machine may add to a time that is asserted.
const slack = 3 * time.Second

func within(t *testing.T, begin time.Time, limit time.Duration) {
	t.Helper()
	if d := time.Since(begin); d > limit+slack {
		t.Errorf("took %s, want at most %s and a little", d, limit)
	}
}

// gone asserts that nothing of the command runs.
func gone(t *testing.T, c *Client, id hutch.ExecID) {
	t.Helper()
	if ps := c.Processes(t, id); len(ps) != 0 {
		t.Errorf("still running: %+v", ps)
	}
}

func testEnds(t *testing.T, c *Client) {
	for cmd, want := range map[string]hutch.ExecResult{
		"exit 0":          {End: hutch.ExecExit},
		"exit 7":          {End: hutch.ExecExit, ExitCode: 7},
		"kill -9 $$":      {End: hutch.ExecSignal, ExitCode: 137, Signal: "KILL"},
		"kill -TERM $$":   {End: hutch.ExecSignal, ExitCode: 143, Signal: "TERM"},
		"kill -40 $$":     {End: hutch.ExecSignal, ExitCode: 168, Signal: "40"},
		"no-such-program": {End: hutch.ExecExit, ExitCode: 127},
	} {
		r := c.Sh(t, cmd)
		if r.End != want.End || r.ExitCode != want.ExitCode || r.Signal != want.Signal {
			t.Errorf("%s: %s %d %q, want %s %d %q", cmd, r.End, r.ExitCode, r.Signal, want.End, want.ExitCode, want.Signal)
		}
		if r.StartedAt.IsZero() || r.EndedAt.Before(r.StartedAt) {
			t.Errorf("%s: from %s to %s", cmd, r.StartedAt, r.EndedAt)
		}
	}
	t.Run("A01 a grandchild that holds the pipe does not hide the timeout", func(t *testing.T) {
		for _, cmd := range []string{"sleep 30 & wait", "sleep 30; echo x"} {
			begin := time.Now()
			s := c.Start(t, hutch.ExecSpec{Cmd: cmd, Timeout: time.Second, Grace: time.Second})
			r := c.End(t, s.ID)
			if r.End != hutch.ExecTimeout || r.ExitCode != 124 || !strings.Contains(r.Detail, "1s") {
				t.Errorf("%s: %s %d %q", cmd, r.End, r.ExitCode, r.Detail)
			}
			within(t, begin, 2*time.Second)
			gone(t, c, s.ID)
		}
	})
	t.Run("A06 the leader's exit ends it", func(t *testing.T) {
		begin := time.Now()
		s := c.Start(t, hutch.ExecSpec{Cmd: "(setsid sleep 600 &) ; echo done"})
		r := c.End(t, s.ID)
		if r.End != hutch.ExecExit || string(r.Stdout.Head) != "done\n" || len(r.LeftRunning) != 1 || r.LeftRunning[0].Command != "sleep" {
			t.Errorf("%+v", r)
		}
		within(t, begin, time.Second)
		c.Stop(t, s.ID, guestapi.Stop{})
		gone(t, c, s.ID)
	})
	t.Run("A10 output before a timeout is kept", func(t *testing.T) {
		r := c.Run(t, hutch.ExecSpec{Cmd: "for i in 1 2 3; do echo $i; done; sleep 60", Timeout: time.Second})
		if r.End != hutch.ExecTimeout || string(r.Stdout.Head) != "1\n2\n3\n" {
			t.Errorf("%s %q", r.End, r.Stdout.Head)
		}
	})
	t.Run("A11 silence ends it", func(t *testing.T) {
		begin := time.Now()
		r := c.Run(t, hutch.ExecSpec{Cmd: "for i in 1 2 3 4; do echo $i; sleep 0.5; done; sleep 60", NoOutputTimeout: 2 * time.Second})
		if r.End != hutch.ExecNoOutput || r.ExitCode != 124 || string(r.Stdout.Head) != "1\n2\n3\n4\n" {
			t.Errorf("%s %d %q", r.End, r.ExitCode, r.Stdout.Head)
		}
		within(t, begin, 4*time.Second)
	})
	t.Run("B03 a background child does not hold the call", func(t *testing.T) {
		begin := time.Now()
		s := c.Start(t, hutch.ExecSpec{Cmd: "sleep 30 & echo started"})
		r := c.End(t, s.ID)
		if string(r.Stdout.Head) != "started\n" || len(r.LeftRunning) != 1 || len(r.Killed) != 0 {
			t.Errorf("%+v", r)
		}
		within(t, begin, time.Second)
		if ps := c.Processes(t, s.ID); len(ps) != 1 {
			t.Errorf("kept running: %+v, want the sleep", ps)
		}
		st := c.Stop(t, s.ID, guestapi.Stop{Grace: int64(time.Second)})
		if st.Result.End != hutch.ExecExit || len(st.Result.Killed) != 1 || st.Result.Killed[0].Signal != "TERM" {
			t.Errorf("after the stop: %+v", st.Result)
		}
		gone(t, c, s.ID)
	})
	t.Run("a child left running keeps its output", func(t *testing.T) {
		s := c.Start(t, hutch.ExecSpec{Cmd: "rm -f /tmp/alive; (while :; do echo line; [ -e /tmp/stop ] && { echo yes > /tmp/alive; exit; }; done) & echo started"})
		r := c.End(t, s.ID)
		if r.End != hutch.ExecExit || len(r.LeftRunning) == 0 {
			t.Fatalf("%+v", r)
		}
		c.Sh(t, "touch /tmp/stop")
		Eventually(t, 10*time.Second, "the child, still writing, ends by itself", func() bool {
			return string(c.Sh(t, "cat /tmp/alive 2>/dev/null; rm -f /tmp/stop.x").Stdout.Head) == "yes\n"
		})
		c.Sh(t, "rm -f /tmp/stop")
	})
	t.Run("CPU and memory are measured", func(t *testing.T) {
		r := c.Sh(t, "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done")
		if r.CPU <= 0 || r.CPU > time.Minute || r.PeakMemory <= 0 || r.PeakMemory > 1<<32 {
			t.Errorf("CPU %s, memory %d", r.CPU, r.PeakMemory)
		}
	})
}

func testStops(t *testing.T, c *Client) {
	t.Run("A05 one that ignores TERM", func(t *testing.T) {
		begin := time.Now()
		r := c.Run(t, hutch.ExecSpec{Cmd: "trap '' TERM; sleep 600; sleep 600", Timeout: 2 * time.Second, Grace: time.Second})
		if r.End != hutch.ExecTimeout || !r.Escalated || r.Signal != "KILL" || len(r.Killed) < 2 {
			t.Errorf("%+v", r)
		}
		for _, k := range r.Killed {
			if k.Signal != "KILL" || k.PID == 0 || k.Command == "" {
				t.Errorf("killed %+v", k)
			}
		}
		within(t, begin, 3*time.Second)
	})
	t.Run("one that takes the hint", func(t *testing.T) {
		s := c.Start(t, hutch.ExecSpec{Cmd: "trap 'echo bye; exit 3' TERM; echo hi; while :; do sleep 0.05; done", Background: true})
		Eventually(t, 10*time.Second, "it has begun", func() bool { return c.Status(t, s.ID).Stdout > 0 })
		r := c.Stop(t, s.ID, guestapi.Stop{Detail: "enough", Grace: int64(10 * time.Second)}).Result
		if r.End != hutch.ExecCancelled || r.ExitCode != 143 || r.Escalated || string(r.Stdout.Head) != "hi\nbye\n" || r.Detail != "enough" {
			t.Errorf("%+v, output %q", r, r.Stdout.Head)
		}
	})
	t.Run("A08 two stops at once and a third", func(t *testing.T) {
		s := c.Start(t, hutch.ExecSpec{Cmd: "sleep 1000", Background: true})
		begin := time.Now()
		var wg sync.WaitGroup
		for i := range 2 {
			wg.Go(func() {
				var st guestapi.ExecStatus
				err := c.Call(t.Context(), "POST", path(s.ID, "/stop"), guestapi.Stop{Detail: fmt.Sprint(i), Grace: -1}, &st)
				if err != nil || st.Running || st.Result.End != hutch.ExecCancelled {
					t.Errorf("stop: %+v %v", st, err)
				}
			})
		}
		wg.Wait()
		within(t, begin, 0)
		if st := c.Stop(t, s.ID, guestapi.Stop{Reason: hutch.ExecOOM}); st.Result.End != hutch.ExecCancelled {
			t.Errorf("a later stop changed the end: %+v", st.Result)
		}
		gone(t, c, s.ID)
	})
	t.Run("grace 0 kills at once, also over a stop under way", func(t *testing.T) {
		s := c.Start(t, hutch.ExecSpec{Cmd: "trap 'echo told' TERM; echo on; while :; do sleep 0.1; done", Background: true})
		Eventually(t, 10*time.Second, "it has begun", func() bool { return c.Status(t, s.ID).Stdout == 3 })
		begin := time.Now()
		done := make(chan error, 1)
		go func() {
			done <- c.Call(t.Context(), "POST", path(s.ID, "/stop"), guestapi.Stop{Grace: int64(50 * time.Second)}, nil)
		}()
		Eventually(t, 10*time.Second, "the first stop is under way", func() bool { return c.Status(t, s.ID).Stdout == 8 })
		r := c.Stop(t, s.ID, guestapi.Stop{}).Result
		if r.ExitCode != 137 || r.Signal != "KILL" {
			t.Errorf("%+v", r)
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
		within(t, begin, time.Second)
	})
	t.Run("signals by name", func(t *testing.T) {
		s := c.Start(t, hutch.ExecSpec{Cmd: "trap 'echo got' USR1; sleep 30 & echo on; while :; do wait; done", Background: true})
		Eventually(t, 10*time.Second, "it has begun", func() bool { return c.Status(t, s.ID).Stdout > 0 })
		c.must(t, "POST", path(s.ID, "/signal"), guestapi.Signal{Signal: "SIGUSR1"}, nil)
		Eventually(t, 10*time.Second, "the signal is seen", func() bool { return c.Status(t, s.ID).Stdout == 7 })
		if n := len(c.Processes(t, s.ID)); n != 2 {
			t.Errorf("%d processes after a signal to the leader, want 2", n)
		}
		if err := c.Call(t.Context(), "POST", path(s.ID, "/signal"), guestapi.Signal{Signal: "NONSENSE"}, nil); code(err) != hutch.CodeBadRequest {
			t.Errorf("an unknown signal: %v", err)
		}
		c.must(t, "POST", path(s.ID, "/signal"), guestapi.Signal{Signal: "kill", Tree: true}, nil)
		if r := c.End(t, s.ID); r.End != hutch.ExecSignal || r.Signal != "KILL" {
			t.Errorf("%+v", r)
		}
		Eventually(t, 10*time.Second, "the others of the tree die of the signal too", func() bool { return len(c.Processes(t, s.ID)) == 0 })
		if err := c.Call(t.Context(), "POST", path(s.ID, "/signal"), guestapi.Signal{Signal: "TERM"}, nil); code(err) != hutch.CodeInvalidState {
			t.Errorf("a signal after the end: %v, want invalid_state", err)
		}
	})
	t.Run("reasons and bounds", func(t *testing.T) {
		s := c.Start(t, hutch.ExecSpec{Cmd: "sleep 60"})
		for field, bad := range map[string]guestapi.Stop{"reason": {Reason: hutch.ExecExit}, "grace": {Grace: int64(time.Hour)}} {
			if err := c.Call(t.Context(), "POST", path(s.ID, "/stop"), bad, nil); code(err) != hutch.CodeBadRequest || !strings.Contains(err.Error(), field) {
				t.Errorf("stop with a bad %s: %v", field, err)
			}
		}
		if err := c.Call(t.Context(), "DELETE", path(s.ID, ""), nil, nil); code(err) != hutch.CodeInvalidState {
			t.Errorf("delete of a running command: %v, want invalid_state", err)
		}
		if r := c.Stop(t, s.ID, guestapi.Stop{Reason: hutch.ExecTimeout}).Result; r.End != hutch.ExecTimeout || r.ExitCode != 124 {
			t.Errorf("%+v", r)
		}
	})
}

// testTree has the ways out of a tree that a stop must not be fooled by.
func testTree(t *testing.T, c *Client) {
	escapes := map[string]string{
		"session":      "setsid sleep 1001 & sleep 1001",
		"double fork":  "(setsid sh -c '(sleep 1002 &)' &) ; sleep 1002",
		"no env":       "(setsid env -i sleep 1003 &) ; sleep 1003",
		"stopped":      `sleep 1004 & p=$!; until [ "$(cat /proc/$p/comm)" = sleep ]; do :; done; kill -STOP $p; sleep 1004`,
		"ignores TERM": "(trap '' TERM; setsid sh -c '(sleep 1005 & wait)' &) ; sleep 1005",
		"other group":  "sh -c 'echo $$ > /sys/fs/cgroup/cgroup.procs; (setsid sleep 1006 &)' 2>/dev/null; sleep 1006",
		"own group":    "mkdir -p /sys/fs/cgroup$(sed -n s/^0:://p /proc/self/cgroup)/sub 2>/dev/null && sh -c 'echo $$ > /sys/fs/cgroup$(sed -n s/^0:://p /proc/self/cgroup)/sub/cgroup.procs; setsid sleep 1007 &' 2>/dev/null; sleep 1007",
		"many":         "i=0; while [ $i -lt 150 ]; do sleep 1008 & i=$((i+1)); done; wait",
		"storm":        "f() { while :; do (sleep 0.02 &) ; (setsid sleep 0.05 &) ; done; }; f & f & wait",
	}
	for name, cmd := range escapes {
		t.Run(name, func(t *testing.T) {
			s := c.Start(t, hutch.ExecSpec{Cmd: cmd, Background: true, Grace: 300 * time.Millisecond})
			want := max(2, map[string]int{"many": 150}[name])
			Eventually(t, 30*time.Second, "it has started all", func() bool {
				sleeps := 0
				for _, p := range c.Processes(t, s.ID) {
					if p.Command == "sleep" {
						sleeps++
					}
				}
				return sleeps >= want
			})
			begin := time.Now()
			r := c.Stop(t, s.ID, guestapi.Stop{Grace: -1}).Result
			within(t, begin, 300*time.Millisecond)
			if r.End != hutch.ExecCancelled || len(r.Killed) < 2 {
				t.Errorf("%+v", r)
			}
			gone(t, c, s.ID)
			for _, p := range c.Processes(t, "") {
				if p.Command == "sleep" && p.State != "Z" && name != "storm" {
					t.Errorf("a sleep is left: %+v", p)
				}
			}
		})
	}
	t.Run("A03 a port is free again", func(t *testing.T) {
		if c.Sh(t, "python3 -c ''").ExitCode != 0 {
			t.Skip("no python3 inside")
		}
		const server = `import os,socket,time
if os.fork(): time.sleep(1000)
os.setsid()
s=socket.socket(); s.bind(("127.0.0.1",18999)); s.listen()
print("bound",flush=True); time.sleep(1000)`
		for range 2 {
			s := c.Start(t, hutch.ExecSpec{Argv: []string{"python3", "-c", server}, Background: true})
			Eventually(t, 30*time.Second, "the server is up", func() bool { return c.Status(t, s.ID).Stdout > 0 })
			if r := c.Stop(t, s.ID, guestapi.Stop{Reason: hutch.ExecTimeout, Grace: -1}).Result; r.End != hutch.ExecTimeout {
				t.Errorf("%+v", r)
			}
		}
	})
}

func testProcesses(t *testing.T, c *Client) {
	s := c.Start(t, hutch.ExecSpec{Cmd: "sleep 500 & setsid sleep 501 & wait"})
	var names []string
	Eventually(t, 10*time.Second, "three processes are shown as the command's", func() bool {
		names = nil
		for _, p := range c.Processes(t, s.ID) {
			if p.PID <= 1 || p.PPID < 1 || p.State == "" {
				t.Fatalf("process %+v", p)
			}
			names = append(names, p.Command)
		}
		slices.Sort(names)
		return slices.Equal(names, []string{"sh", "sleep", "sleep"})
	})
	var l guestapi.ExecList
	c.must(t, "GET", guestapi.PathExec, nil, &l)
	found := false
	for _, e := range l.Execs {
		found = found || e.ID == s.ID && e.Running && e.PID == s.PID
	}
	if !found {
		t.Errorf("%s is not among %+v", s.ID, l.Execs)
	}
	t.Run("C01 nothing is left unreaped", func(t *testing.T) {
		for range 25 {
			c.Run(t, hutch.ExecSpec{Cmd: "(sleep 0.1 &) ; (setsid sh -c '(sleep 0.05 &)' &) ; exit 0"})
		}
		Eventually(t, 3*time.Second, "no zombies", func() bool {
			var h guestapi.Health
			c.must(t, "GET", guestapi.PathHealth, nil, &h)
			return h.Zombies == 0
		})
		Eventually(t, 3*time.Second, "no zombies of anybody", func() bool {
			for _, p := range c.Processes(t, "") {
				if p.State == "Z" {
					return false
				}
			}
			return true
		})
	})
}

// testHostile has what root inside can do to the agent and its files.
func testHostile(t *testing.T, c *Client) {
	health := func() {
		t.Helper()
		var h guestapi.Health
		c.must(t, "GET", guestapi.PathHealth, nil, &h)
	}
	t.Run("signals to the agent", func(t *testing.T) {
		// Not KILL and STOP: Linux spares its first process them, and gVisor does not. There
		// root inside can end its sandbox so, as it could by turning off a machine.
		c.Sh(t, "i=1; while [ $i -le 64 ]; do case $i in 9|19) ;; *) kill -$i 1 2>/dev/null;; esac; i=$((i+1)); done")
		health()
		if r := c.Sh(t, "echo fine"); string(r.Stdout.Head) != "fine\n" {
			t.Errorf("afterwards: %+v", r)
		}
	})
	t.Run("kill everything", func(t *testing.T) {
		other := c.Start(t, hutch.ExecSpec{Cmd: "sleep 600"})
		c.Sh(t, "kill -9 -1")
		if r := c.End(t, other.ID); r.End != hutch.ExecSignal || r.ExitCode != 137 {
			t.Errorf("the other command: %+v", r)
		}
		health()
	})
	t.Run("ruined accounts", func(t *testing.T) {
		c.Sh(t, "cp /etc/passwd /tmp/passwd; cp /etc/group /tmp/group; head -c 100000 /dev/urandom > /etc/passwd; head -c 100000 /dev/urandom > /etc/group")
		if r := c.Sh(t, "cat /tmp/passwd > /etc/passwd; cat /tmp/group > /etc/group; id -u"); string(r.Stdout.Head) != "0\n" {
			t.Errorf("root with ruined files: %+v", r)
		}
	})
	t.Run("output directory behind a link", func(t *testing.T) {
		c.Sh(t, "rm -rf /tmp/elsewhere /var/lib/hutch; mkdir -p /tmp/elsewhere /var/lib/hutch; ln -s /tmp/elsewhere /var/lib/hutch/exec")
		r := c.Run(t, hutch.ExecSpec{Cmd: "seq 1 1000", MaxOutputBytes: 100})
		if r.Stdout.Path != "" || r.Stdout.FileDropped != r.Stdout.Total || len(r.Stdout.Head)+len(r.Stdout.Tail) != 100 {
			t.Errorf("%+v", r.Stdout)
		}
		if r := c.Sh(t, "ls -A /tmp/elsewhere; rm -rf /var/lib/hutch"); r.Stdout.Total != 0 {
			t.Errorf("something was put behind the link: %q", r.Stdout.Head)
		}
		r = c.Run(t, hutch.ExecSpec{Cmd: "seq 1 1000", MaxOutputBytes: 100, User: "1234"})
		if r := c.Sh(t, "stat -c '%a %u' "+r.Stdout.Path+" $(dirname "+r.Stdout.Path+")"); string(r.Stdout.Head) != "644 1234\n755 1234\n" {
			t.Errorf("mode and owner of file and directory: %q", r.Stdout.Head)
		}
	})
	t.Run("removed groups", func(t *testing.T) {
		c.Sh(t, "rmdir /sys/fs/cgroup/hutch/* /sys/fs/cgroup/hutch 2>/dev/null")
		s := c.Start(t, hutch.ExecSpec{Cmd: "rmdir /sys/fs/cgroup/hutch/* 2>/dev/null; setsid sleep 600 & sleep 600"})
		Eventually(t, 10*time.Second, "three processes run", func() bool { return len(c.Processes(t, s.ID)) == 3 })
		c.Stop(t, s.ID, guestapi.Stop{})
		gone(t, c, s.ID)
	})
}

func testNothingLeft(t *testing.T, c *Client) {
	var ps []guestapi.Process
	defer func() {
		if len(ps) != 0 {
			t.Errorf("processes: %+v: %s", ps, c.Sh(t, "tail -n +1 /proc/[0-9]*/cmdline | tr '\\0' ' '").Stdout.Head)
		}
	}()
	Eventually(t, 5*time.Second, "no process but the agent is left", func() bool {
		ps = c.Processes(t, "")
		return len(ps) == 0
	})
	var l guestapi.ExecList
	c.must(t, "GET", guestapi.PathExec, nil, &l)
	if len(l.Execs) != 0 {
		t.Errorf("commands are left: %+v", l.Execs)
	}
}
