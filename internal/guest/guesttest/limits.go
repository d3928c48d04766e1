package guesttest

import (
	"errors"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/guestapi"
)

func testLimits(t *testing.T, c *Client) {
	t.Run("processes", func(t *testing.T) { testPidsLimit(t, c) })
	t.Run("disk", func(t *testing.T) { testDiskFull(t, c) })
	t.Run("busy", func(t *testing.T) {
		s := c.Start(t, hutch.ExecSpec{Cmd: "i=0; while [ $i -lt 8 ]; do (while :; do :; done) & i=$((i+1)); done; wait"})
		Eventually(t, 10*time.Second, "all spin", func() bool { return len(c.Processes(t, s.ID)) >= 9 })
		for range 10 {
			begin := time.Now()
			var h guestapi.Health
			c.must(t, "GET", guestapi.PathHealth, nil, &h)
			within(t, begin, 0)
			if h.Execs != 1 || h.Zombies != 0 {
				t.Errorf("health %+v", h)
			}
		}
		begin := time.Now()
		c.Stop(t, s.ID, guestapi.Stop{})
		within(t, begin, time.Second)
		gone(t, c, s.ID)
	})
}

func testPidsLimit(t *testing.T, c *Client) {
	if r := c.Sh(t, "cat /sys/fs/cgroup/hutch/pids.max"); r.ExitCode != 0 {
		t.Skip("the kernel caps no processes here")
	}
	h := Hello()
	h.Pids = 50
	c.must(t, "POST", guestapi.PathHello, h, nil)
	defer func() { c.must(t, "POST", guestapi.PathHello, Hello(), nil) }()
	r := c.Sh(t, "i=0; while [ $i -lt 100 ]; do sleep 20 & i=$((i+1)); done")
	if r.End != hutch.ExecPidsLimit || r.ExitCode == 0 || !slices.Contains(r.LimitsHit, "pids") || !strings.Contains(r.Detail, "50") {
		t.Errorf("100 processes under a cap of 50: %+v", r)
	}
	if n := len(r.LeftRunning); n < 40 || n > 50 {
		t.Errorf("%d processes under a cap of 50", n)
	}
	r = c.Run(t, hutch.ExecSpec{Argv: []string{"true"}})
	if r.End != hutch.ExecPidsLimit && r.ExitCode != 0 {
		t.Errorf("a command beside them: %+v", r)
	}
	bomb := c.Start(t, hutch.ExecSpec{Cmd: "f() { f | f & }; f; sleep 60", Background: true})
	Eventually(t, 30*time.Second, "the bomb has met the cap", func() bool {
		n, _ := strconv.Atoi(strings.TrimSpace(string(c.tryCat(t, "/sys/fs/cgroup/hutch/pids.current"))))
		return n >= 45 || c.Status(t, bomb.ID).Result != nil
	})
	begin := time.Now()
	st := c.Stop(t, bomb.ID, guestapi.Stop{})
	within(t, begin, 2*time.Second)
	if st.Running {
		t.Errorf("the bomb runs: %+v", st)
	}
	gone(t, c, bomb.ID)
}

// tryCat reads a file inside; nothing if no process can be started for it.
func (c *Client) tryCat(t *testing.T, path string) []byte {
	return c.Run(t, hutch.ExecSpec{Argv: []string{"cat", path}}).Stdout.Head
}

func testDiskFull(t *testing.T, c *Client) {
	free, err := strconv.Atoi(strings.TrimSpace(string(c.Sh(t, "df -k / | tail -1 | tr -s ' ' | cut -d' ' -f4").Stdout.Head)))
	if err != nil || free > 3<<20 {
		t.Skipf("the disk is too large to be filled: %d KiB %v", free, err)
	}
	defer c.Sh(t, "rm -f /fill /fill2")
	begin := time.Now()
	r := c.Sh(t, "cat /dev/zero > /fill")
	if r.End != hutch.ExecExit || r.ExitCode == 0 || !slices.Contains(r.LimitsHit, "disk") {
		t.Errorf("filling the disk: %+v", r)
	}
	t.Logf("%d MiB filled in %s", free>>10, time.Since(begin))
	c.Sh(t, "cat /dev/zero > /fill2")

	r = c.Sh(t, "echo still here")
	if string(r.Stdout.Head) != "still here\n" || !slices.Contains(r.LimitsHit, "disk") {
		t.Errorf("a command on a full disk: %+v", r)
	}
	r = c.Sh(t, "seq 1 2000000")
	if r.End != hutch.ExecExit || r.ExitCode != 0 || r.Stdout.Total != 14888896 || len(r.Stdout.Head)+len(r.Stdout.Tail) != 1<<20 {
		t.Errorf("output over budget on a full disk: %s %d, total %d", r.End, r.ExitCode, r.Stdout.Total)
	}
	if r.Stdout.Path != "" || r.Stdout.FileDropped != r.Stdout.Total || !slices.Contains(r.LimitsHit, "disk") {
		t.Errorf("its file: path %q, lacks %d, limits %v", r.Stdout.Path, r.Stdout.FileDropped, r.LimitsHit)
	}
	h := Hello()
	h.Hostname = "renamed-on-a-full-disk"
	c.must(t, "POST", guestapi.PathHello, h, nil)
	if r := c.Sh(t, "rm -f /fill /fill2; hostname"); string(r.Stdout.Head) != h.Hostname+"\n" {
		t.Errorf("cleaning up: %+v", r)
	}
	if r := c.Sh(t, "seq 1 300000"); r.Stdout.FileDropped != 0 || r.Stdout.Path == "" {
		t.Errorf("afterwards: path %q, lacks %d", r.Stdout.Path, r.Stdout.FileDropped)
	}
}

func testRelieve(t *testing.T, c *Client) {
	small := c.Start(t, hutch.ExecSpec{Cmd: "exec sleep 600"}) // a shell beside it would be near the least that counts
	big := c.Start(t, hutch.ExecSpec{Cmd: "x=$(head -c 20000000 /dev/zero | tr '\\0' a); echo full; sleep 600"})
	Eventually(t, 30*time.Second, "memory is used", func() bool { return c.Status(t, big.ID).Stdout > 0 })
	var st guestapi.ExecStatus
	c.must(t, "POST", guestapi.PathRelieve, nil, &st)
	if st.ID != big.ID || st.Result == nil || st.Result.End != hutch.ExecOOM || st.Result.ExitCode != 137 || !strings.Contains(st.Result.Detail, "MiB") {
		t.Errorf("%+v %+v", st, st.Result)
	}
	if !c.Status(t, small.ID).Running {
		t.Error("the small one was ended too")
	}
	// Each process costs the host something, whatever it uses itself.
	crowd := c.Start(t, hutch.ExecSpec{Cmd: "for i in 1 2 3 4 5 6 7 8; do sleep 600 & done; echo made; wait"})
	Eventually(t, 30*time.Second, "the crowd is there", func() bool { return c.Status(t, crowd.ID).Stdout > 0 })
	st = guestapi.ExecStatus{}
	if c.must(t, "POST", guestapi.PathRelieve, nil, &st); st.ID != crowd.ID || st.Result == nil || st.Result.End != hutch.ExecOOM {
		t.Errorf("of a crowd and one that is alone: %+v %+v", st, st.Result)
	}
	var e *hutch.Error
	st = guestapi.ExecStatus{}
	if err := c.Call(t.Context(), "POST", guestapi.PathRelieve, nil, &st); !errors.As(err, &e) || e.Code != hutch.CodeNotFound || !c.Status(t, small.ID).Running {
		t.Errorf("what holds next to nothing was ended: %v, %+v %+v", err, st, st.Result)
	}
}
