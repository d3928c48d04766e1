package gvisor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/runtime"
	"hutch.dev/hutch/internal/x/pidfd"
)

func TestSizeInside(t *testing.T) {
	r := newRuntime(t)
	for _, c := range []struct {
		milliCPU, memoryMB, wantCPUs int
		tier                         hutch.DiskTier
		diskMB, wantDiskMB           int
	}{
		{milliCPU: 1000, memoryMB: 256, wantCPUs: 1, tier: hutch.TierDisk, diskMB: 300, wantDiskMB: 300},
		{milliCPU: 4000, memoryMB: 1000, wantCPUs: 4, tier: hutch.TierMemory, diskMB: 400, wantDiskMB: 400},
		{milliCPU: 1500, memoryMB: 128, wantCPUs: 2, tier: hutch.TierMemory, diskMB: 400, wantDiskMB: 64},
	} {
		t.Run(fmt.Sprintf("%d milliCPU %d MB", c.milliCPU, c.memoryMB), func(t *testing.T) {
			spec := newSpec(c.tier)
			spec.Resources.MilliCPU, spec.Resources.MemoryMB, spec.Resources.DiskMB = c.milliCPU, c.memoryMB, c.diskMB
			s, g := start(t, r, spec)
			got := g.sh(t, `nproc; grep -c ^processor /proc/cpuinfo; sed -n 's/^MemTotal: *//p' /proc/meminfo; df -Pm / /tmp | awk 'NR>1 {print $2}'; hostname`)
			want := fmt.Sprintf("%d\n%d\n%d kB\n%d\n%d\nlab", c.wantCPUs, c.wantCPUs, c.memoryMB<<10, c.wantDiskMB, c.wantDiskMB)
			if got != want {
				t.Errorf("inside:\n%s\nwant:\n%s", got, want)
			}
			st, err := s.Stats(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if want := int64(c.memoryMB)<<20 + headroom; st.MemoryLimit != want {
				t.Errorf("memory limit outside is %d, want %d", st.MemoryLimit, want)
			}
		})
	}
}

// The CPU quota must hold whatever runs inside.
func TestCPUQuota(t *testing.T) {
	r := newRuntime(t)
	spec := newSpec(hutch.TierMemory)
	spec.Resources.MilliCPU = 250
	s, g := start(t, r, spec)
	before, err := s.Stats(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	s.Turns()
	begun := time.Now()
	g.sh(t, `for i in 1 2 3; do timeout 2 sh -c 'while :; do :; done' & done; wait`)
	wall := time.Since(begun)
	after, err := s.Stats(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	used := after.CPU - before.CPU
	// Half as much again, for the periods at either end.
	most := wall * 3 / 8
	if used > most {
		t.Errorf("used %v of CPU time in %v with a quota of 0.25 CPU", used, wall)
	}
	if used < 50*time.Millisecond {
		t.Errorf("used only %v of CPU time in %v: the load did not run", used, wall)
	}
	// That is what its scheduler says too: that it ran, and that most of the time it could not.
	if ran, waited := s.Turns(); ran < 50*time.Millisecond || ran > most*2 || waited < wall/2 {
		t.Errorf("its threads are said to have run for %v and waited for %v in %v", ran, waited, wall)
	}
}

// TestYield looks at what the kernel has been told: what comes of it shows only where there is
// not CPU enough.
func TestYield(t *testing.T) {
	r := newRuntime(t)
	spec := newSpec(hutch.TierMemory)
	spec.Resources.MilliCPU = 2000
	s, _ := start(t, r, spec)
	weight := func() string {
		t.Helper()
		var files []string
		for _, f := range s.group.ProcsFiles() {
			for _, name := range []string{"cpu.shares", "cpu.weight"} { // version 1, version 2
				if f := filepath.Join(filepath.Dir(f), name); fileExists(f) {
					files = append(files, f)
				}
			}
		}
		if len(files) != 1 {
			t.Fatalf("control files of its weight: %v", files)
		}
		got, err := os.ReadFile(files[0])
		if err != nil {
			t.Fatal(err)
		}
		return filepath.Base(files[0]) + " " + strings.TrimSpace(string(got))
	}
	for _, c := range []struct {
		on   bool
		want []string
	}{
		{true, []string{"cpu.shares 128", "cpu.weight 5"}},
		{false, []string{"cpu.shares 2048", "cpu.weight 79"}},
	} {
		if err := s.Yield(c.on); err != nil {
			t.Fatal(err)
		}
		if got := weight(); !slices.Contains(c.want, got) {
			t.Errorf("Yield(%v): %s, want one of %q", c.on, got, c.want)
		}
	}
}

// TestAgentGoesFirst: what runs programs has what time others leave, also if it was made later, and
// the guest agent has not. The agent and the kernel take short turns.
func TestAgentGoesFirst(t *testing.T) {
	r := newRuntime(t)
	s, g := start(t, r, newSpec(hutch.TierMemory))
	agents, err := s.group.Procs()
	if err != nil {
		t.Fatal(err)
	}
	// A shell that forks, so that there is more than the first process of a command.
	g.sh(t, `(while :; do :; done) >/dev/null 2>&1 & echo $! >/tmp/pid`)
	defer g.sh(t, `kill $(cat /tmp/pid)`)
	all, err := s.group.Procs()
	if err != nil {
		t.Fatal(err)
	}
	scheduled := func(pid int) *unix.SchedAttr {
		t.Helper()
		a, err := unix.SchedGetAttr(pid, 0)
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	waits := func(pid int) bool { return scheduled(pid).Policy == unix.SCHED_IDLE }
	turn := uint64(briefTurn)
	if scheduled(os.Getpid()).Runtime == 0 {
		turn = 0 // this kernel knows none of ours
	}
	kernel := []int{s.rec.Sentry.PID, s.rec.Gofer.PID}
	var programs, first int
	for _, pid := range all {
		switch {
		case slices.Contains(kernel, pid):
			if waits(pid) {
				t.Error("the kernel of the sandbox has what time others leave")
			}
			if got := scheduled(pid).Runtime; pid == s.rec.Sentry.PID && got != turn {
				t.Errorf("the kernel of the sandbox takes turns of %d ns", got)
			}
		case !slices.Contains(agents, pid):
			programs++
			if !waits(pid) {
				t.Errorf("process %d, which runs programs, does not stand back", pid)
			}
		case !waits(pid):
			first++
			if got := scheduled(pid).Runtime; got != turn {
				t.Errorf("process %d, in which the agent runs, takes turns of %d ns", pid, got)
			}
		}
	}
	if programs == 0 || first == 0 {
		t.Errorf("%d processes run programs, %d the agent; %d in all, %d before the first command", programs, first, len(all), len(agents))
	}
}

func fileExists(name string) bool {
	_, err := os.Stat(name)
	return err == nil
}

func TestDiskIsCapped(t *testing.T) {
	r := newRuntime(t)
	for _, tier := range tiers {
		t.Run(string(tier), func(t *testing.T) {
			spec := newSpec(tier)
			spec.Resources.DiskMB = 50
			s, g := start(t, r, spec)
			out := g.try(t, "dd if=/dev/zero of=/tmp/x bs=1M count=100 2>&1; stat -c %s /tmp/x")
			if !strings.Contains(out.Out, "No space left on device") || !strings.HasSuffix(strings.TrimSpace(out.Out), "\n52428800") {
				t.Errorf("filling a disk of 50 MiB: %s", out.Out)
			}
			st, err := s.Stats(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			switch {
			case tier == hutch.TierMemory && st.Disk != 0:
				t.Errorf("memory tier takes %d bytes of disk", st.Disk)
			case tier == hutch.TierDisk && (st.Disk < 50<<20 || st.Disk > 60<<20):
				t.Errorf("50 MiB inside take %d bytes of disk", st.Disk)
			}
		})
	}
}

// A sandbox of hostile size or shape is refused before anything is made of it.
func TestCreateRefusesWhatItCannotHonour(t *testing.T) {
	r := newRuntime(t)
	for field, spoil := range map[string]func(*runtime.Spec){
		"id":        func(s *runtime.Spec) { s.ID = "" },
		"milli_cpu": func(s *runtime.Spec) { s.Resources.MilliCPU = 0 },
		"memory_mb": func(s *runtime.Spec) { s.Resources.MemoryMB = -1 },
		"disk_mb":   func(s *runtime.Spec) { s.Resources.DiskMB = 0 },
		"pids":      func(s *runtime.Spec) { s.Resources.Pids = 0 },
		"disk_tier": func(s *runtime.Spec) { s.Resources.DiskTier = "tape" },
	} {
		spec := newSpec(hutch.TierMemory)
		spoil(&spec)
		_, err := r.Create(t.Context(), spec)
		var e *hutch.Error
		if !errors.As(err, &e) || e.Code != hutch.CodeBadRequest || e.Field != field {
			t.Errorf("create with a bad %s: %v", field, err)
		}
	}
}

// What fails in runsc must come back with its reason for the operator, without paths
// for the tenant, and leave nothing.
func TestFailedCreateSaysWhyAndLeavesNothing(t *testing.T) {
	r := newRuntime(t)
	spec := newSpec(hutch.TierDisk)
	spec.Image = "/nonexistent/image.erofs"
	_, err := r.Create(t.Context(), spec)
	var e *hutch.Error
	if !errors.As(err, &e) || e.Code != hutch.CodeInternal {
		t.Fatalf("create from a missing image: %v", err)
	}
	if strings.Contains(e.Message, "/") {
		t.Errorf("the tenant is told a path: %s", e.Message)
	}
	if !strings.Contains(detail(err), "/nonexistent/image.erofs") {
		t.Errorf("the operator is not told which file is missing: %s", detail(err))
	}
	mustBeGone(t, r, spec.ID)
}

func TestSecondCreateIsConflict(t *testing.T) {
	r := newRuntime(t)
	spec := newSpec(hutch.TierMemory)
	s := create(t, r, spec)
	if _, err := r.Create(t.Context(), spec); !errors.Is(err, hutch.ErrConflict) {
		t.Errorf("create of a sandbox that exists: %v", err)
	}
	if _, err := again(r.cfg.StateDir).Create(t.Context(), spec); !errors.Is(err, hutch.ErrConflict) {
		t.Errorf("create of a sandbox that another process made: %v", err)
	}
	if !pidfd.Alive(s.procs[0]) {
		t.Error("the first one did not survive")
	}
}

// Whenever a caller leaves, a create that fails has left nothing.
func TestCancelledCreateLeavesNothing(t *testing.T) {
	r := newRuntime(t)
	for _, after := range []int{0, 2, 5, 10, 15, 20, 25, 30, 40, 60, 80, 120} {
		spec := newSpec(hutch.TierDisk)
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(after)*time.Millisecond)
		sb, err := r.Create(ctx, spec)
		cancel()
		if err == nil {
			kill(t, sb)
		} else if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("create given up after %d ms: %v", after, err)
		}
		mustBeGone(t, r, spec.ID)
	}
}

// The limit on creates at once must not hold those who stop waiting.
func TestQueueHonoursContext(t *testing.T) {
	r := newRuntime(t)
	for range cap(r.creating) {
		r.creating <- struct{}{}
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("client has gone")
	cancel(why)
	spec := newSpec(hutch.TierMemory)
	if _, err := r.Create(ctx, spec); !errors.Is(err, why) {
		t.Errorf("create in a full queue by a caller who left: %v", err)
	}
	mustBeGone(t, r, spec.ID)
	<-r.creating
	s := create(t, r, spec) // the id is free again
	kill(t, s)
}

func TestCallsInTheWrongState(t *testing.T) {
	r := newRuntime(t)
	ctx := t.Context()
	spec := newSpec(hutch.TierMemory)
	s := create(t, r, spec)
	for what, do := range map[string]func() error{
		"pause":      func() error { return s.Pause(ctx) },
		"resume":     func() error { return s.Resume(ctx) },
		"checkpoint": func() error { return s.Checkpoint(ctx, t.TempDir(), true) },
	} {
		if err := do(); !errors.Is(err, hutch.ErrInvalidState) {
			t.Errorf("%s of a sandbox in which nothing runs: %v", what, err)
		}
	}
	if err := s.Start(ctx, runtime.StartOptions{}); err != nil {
		t.Fatal(detail(err))
	}
	if err := s.Start(ctx, runtime.StartOptions{}); !errors.Is(err, hutch.ErrInvalidState) {
		t.Errorf("second start: %v", err)
	}
	if err := s.Resume(ctx); err != nil {
		t.Errorf("resume of what runs: %v", err)
	}
	for range 2 {
		if err := s.Pause(ctx); err != nil {
			t.Errorf("pause: %v", err)
		}
	}
	if err := s.Checkpoint(ctx, t.TempDir(), true); !errors.Is(err, hutch.ErrInvalidState) {
		t.Errorf("checkpoint of a paused sandbox: %v", err)
	}
	for range 2 {
		if err := s.Resume(ctx); err != nil {
			t.Errorf("resume: %v", err)
		}
	}
	g := attach(t, s)
	g.ping(t)
	kill(t, s)
	for what, do := range map[string]func() error{
		"start":      func() error { return s.Start(ctx, runtime.StartOptions{}) },
		"pause":      func() error { return s.Pause(ctx) },
		"resume":     func() error { return s.Resume(ctx) },
		"checkpoint": func() error { return s.Checkpoint(ctx, t.TempDir(), true) },
	} {
		if err := do(); !errors.Is(err, hutch.ErrSandboxGone) {
			t.Errorf("%s after kill: %v", what, err)
		}
	}
	if st, err := s.Stats(ctx); err != nil || st.CPU == 0 {
		t.Errorf("stats after kill: %+v, %v; want those of its life", st, err)
	}
	kill(t, s)
}

func TestPausedUsesNoCPU(t *testing.T) {
	r := newRuntime(t)
	s, g := start(t, r, newSpec(hutch.TierMemory))
	g.spawn(t, "while :; do :; done")
	if err := s.Pause(t.Context()); err != nil {
		t.Fatal(detail(err))
	}
	s.Turns()
	before, err := s.Stats(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	<-time.After(500 * time.Millisecond) // what is measured is a span of time
	after, err := s.Stats(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if used := after.CPU - before.CPU; used > 25*time.Millisecond {
		t.Errorf("a paused sandbox with a busy loop used %v of CPU in half a second", used)
	}
	// Nothing in it wants to run, so it waits for nothing, however busy the host.
	if _, waited := s.Turns(); waited > 400*time.Millisecond {
		t.Errorf("a paused sandbox waited for %v in half a second", waited)
	}
	if err := s.Resume(t.Context()); err != nil {
		t.Fatal(detail(err))
	}
	g.ping(t)
}
