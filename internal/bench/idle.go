package bench

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"hutch.dev/hutch"
)

// Before its idleness is measured, a crowd is left alone until it has come to rest: what the
// making of its last ones left to do is done, and the clocks of their kernels stand.
const (
	// It rests when it was looked at calmLooks times in a row, each calmLook after the last, and
	// all of it together took less than IdleCPULimit in between.
	calmLook  = 15 * time.Second
	calmLooks = 3
	// calmMost is how many looks that is waited for; what is measured then is what there is.
	calmMost = 16
)

// calmLook is how far apart looks are: no further than the idleness is looked at.
func (s Settings) calmLook() time.Duration { return min(calmLook, s.Window) }

// idleSlice is how much of the time over which idleness is looked at makes one value of what the
// machine is busy with: long beside the hundredths of a second that the kernel counts in.
const idleSlice = 10 * time.Second

// machineIdle is how long the machine's CPUs have had nothing to do, all of them together.
func machineIdle() (time.Duration, error) {
	b, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, err
	}
	return parseIdle(string(b))
}

// parseIdle reads what /proc/stat says of all CPUs. To wait for a disk is to have nothing to do.
func parseIdle(stat string) (time.Duration, error) {
	const idle, disk = 4, 5 // fields, of those of the first line
	line, _, _ := strings.Cut(stat, "\n")
	f := strings.Fields(line)
	if len(f) <= disk || f[0] != "cpu" {
		return 0, errors.New("read what the CPUs do: /proc/stat does not begin with it")
	}
	a, err := strconv.ParseInt(f[idle], 10, 64)
	b, err2 := strconv.ParseInt(f[disk], 10, 64)
	if err := errors.Join(err, err2); err != nil {
		return 0, fmt.Errorf("read what the CPUs do: %w", err)
	}
	return time.Duration(a+b) * clockTick, nil
}

// busy is what share of a CPU the machine was busy with, in millionths, if in that time its CPUs
// together had nothing to do for so long.
func busy(passed, idle time.Duration, cpus int) int64 {
	return max(0, int64(float64(time.Duration(cpus)*passed-idle)/float64(passed)*1e6))
}

// spent is what the crowd and the server's processes had used at one instant.
type spent struct {
	at    time.Time
	boxes map[hutch.SandboxID]time.Duration
	procs map[string]time.Duration
}

func (w *crowd) spent(h *Host) (spent, error) {
	s := spent{boxes: map[hutch.SandboxID]time.Duration{}, procs: map[string]time.Duration{}}
	for _, id := range w.ids {
		used, err := h.boxCPU(id)
		if err != nil {
			return s, fmt.Errorf("CPU of %s: %w", id, err)
		}
		s.boxes[id] = used
	}
	for name, pid := range h.PIDs {
		used, err := cpuOf(pid)
		if err != nil {
			return s, fmt.Errorf("CPU of the %s: %w", name, err)
		}
		s.procs[name] = used
	}
	s.at = time.Now()
	return s, nil
}

// boxesSince is what share of a CPU all sandboxes have taken since then, in millionths.
func (s spent) boxesSince(then spent) int64 {
	var all time.Duration
	for id, used := range s.boxes {
		all += used - then.boxes[id]
	}
	return int64(float64(all) / float64(s.at.Sub(then.at)) * 1e6)
}

// rest leaves the crowd alone until it has come to rest, looking at it so often, and books how long
// that took, to the end of the last look.
func (w *crowd) rest(ctx context.Context, h *Host, p page, look time.Duration) error {
	begun := time.Now()
	last, err := w.spent(h)
	if err != nil {
		return err
	}
	for calm := 0; calm < calmLooks && time.Since(begun) < calmMost*look; {
		if err := pause(ctx, look); err != nil {
			return err
		}
		now, err := w.spent(h)
		if err != nil {
			return err
		}
		if calm++; float64(now.boxesSince(last)) >= IdleCPULimit*1e6 {
			calm = 0
		}
		last = now
	}
	p.time(MetricRest, time.Since(begun))
	return nil
}

// bystanders are the processes of this machine that are neither the server's nor this one: its
// first, the kernel's threads, and whatever watches it.
func bystanders(h *Host) ([]int, error) {
	es, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	ours := append(slices.Collect(maps.Values(h.PIDs)), os.Getpid())
	var pids []int
	for _, e := range es {
		if pid, err := strconv.Atoi(e.Name()); err == nil && !slices.Contains(ours, pid) {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// cpuOfEach reads the CPU time of processes; those that have ended are left out.
func cpuOfEach(pids []int) map[int]time.Duration {
	out := make(map[int]time.Duration, len(pids))
	for _, pid := range pids {
		if used, err := cpuOf(pid); err == nil {
			out[pid] = used
		}
	}
	return out
}

// glance is what the machine had done at one instant.
type glance struct {
	at     time.Time
	idle   time.Duration         // its CPUs together had nothing to do
	beside map[int]time.Duration // CPU time of the bystanders
}

func (w *crowd) glance() (g glance, err error) {
	g.beside = cpuOfEach(w.beside)
	g.at = time.Now()
	g.idle, err = machineIdle()
	return g, err
}

// since books what the machine was busy with between two glances: all of it, what bystanders took
// of that, and what is left, which is ours and what the kernel does for it.
func (g glance) since(then glance, p page) {
	passed := g.at.Sub(then.at)
	all := busy(passed, g.idle-then.idle, runtime.NumCPU())
	var used time.Duration
	for pid, d := range g.beside {
		if before, ok := then.beside[pid]; ok {
			used += d - before
		}
	}
	beside := int64(float64(used) / float64(passed) * 1e6)
	p.add(MetricCPUMachine, CPUShare, all)
	p.add(MetricCPUBeside, CPUShare, beside)
	p.add(MetricCPUOurs, CPUShare, max(0, all-beside))
}

// idleness books what CPU is taken over a time: by each sandbox of the crowd, by all of them, and
// by the server's processes; and, by slices of that time, by the machine and by all sandboxes. A
// crowd of none is what the machine does without one; who is there then is a bystander.
func (w *crowd) idleness(ctx context.Context, h *Host, p page, over time.Duration) error {
	if len(w.ids) == 0 {
		var err error
		if w.beside, err = bystanders(h); err != nil {
			return err
		}
	}
	first, err := w.spent(h)
	if err != nil {
		return err
	}
	last := first
	for n := max(1, int(over/idleSlice)); n > 0; n-- {
		begin, err := w.glance()
		if err != nil {
			return err
		}
		if err := pause(ctx, min(idleSlice, over)); err != nil {
			return err
		}
		end, err := w.glance() // before what this process does to look at the rest
		if err != nil {
			return err
		}
		end.since(begin, p)
		now, err := w.spent(h)
		if err != nil {
			return err
		}
		if len(w.ids) > 0 {
			p.add(MetricCPUSlice, CPUShare, now.boxesSince(last))
		}
		last = now
	}
	passed := float64(last.at.Sub(first.at))
	share := func(used time.Duration) int64 { return int64(float64(used) / passed * 1e6) }
	for _, id := range w.ids {
		p.add(MetricCPU, CPUShare, share(last.boxes[id]-first.boxes[id]))
	}
	if len(w.ids) > 0 {
		p.add(MetricCPUAll, CPUShare, last.boxesSince(first))
	}
	for _, name := range h.processes() {
		p.add(MetricCPUOf+name, CPUShare, share(last.procs[name]-first.procs[name]))
	}
	return nil
}
