package gvisor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/runtime"
)

var _ runtime.Tracer = (*Runtime)(nil)

// ticks is how many of the kernel's clock ticks make a second, on every Linux that Go runs on.
const ticks = 100

// Traces names everything of this runtime that is on the host. What ends while it looks may
// be among it or not.
func (r *Runtime) Traces(_ context.Context, deep bool) ([]hutch.Trace, error) {
	var all []hutch.Trace
	for _, part := range []struct {
		name string
		find func() ([]hutch.Trace, error)
		deep bool
	}{
		{"processes", func() ([]hutch.Trace, error) { return r.traceProcs(deep) }, false},
		{"ended processes", traceDefunct, false},
		{"control groups", r.traceGroups, false},
		{"state directories", r.traceBoxes, false},
		{"the isolator's files", r.traceRunsc, false},
		{"mounts", r.traceMounts, false},
		{"open files", r.traceDisks, true},
	} {
		if part.deep && !deep {
			continue
		}
		found, err := part.find()
		if err != nil {
			return nil, fmt.Errorf("look for %s: %w", part.name, err)
		}
		all = append(all, found...)
	}
	return all, nil
}

// traceProcs names the processes. Deep reads of each anew, and says since when it is there: that
// takes longer than to find it, and only people want to know.
func (r *Runtime) traceProcs(deep bool) ([]hutch.Trace, error) {
	known := &r.known
	if deep {
		known = new(knownProcs)
	}
	procs, err := known.scan(r)
	if err != nil {
		return nil, err
	}
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return nil, err
	}
	booted := time.Now().Add(-time.Duration(info.Uptime) * time.Second)
	out := make([]hutch.Trace, 0, len(procs))
	for _, p := range procs {
		t := hutch.Trace{Kind: hutch.TraceProcess, Name: fmt.Sprintf("%d (%s)", p.pid, p.role), Sandbox: p.id}
		if deep {
			if start, err := startTime(p.pid); err == nil {
				t.Since = booted.Add(time.Duration(start) * (time.Second / ticks))
			}
		}
		out = append(out, t)
	}
	return out, nil
}

// traceDefunct names children of this process that have ended and that it has not reaped.
// Whose they were cannot be told any more. Each is there for a moment; one that stays is a
// fault of ours, which would use up the host's process numbers in the end.
func traceDefunct() ([]hutch.Trace, error) {
	pids, err := children()
	if err != nil {
		return nil, err
	}
	var out []hutch.Trace
	self := strconv.Itoa(os.Getpid())
	for _, pid := range pids {
		b, err := os.ReadFile(filepath.Join("/proc", pid, "stat"))
		if err != nil {
			continue // gone meanwhile
		}
		// proc(5): the name is in brackets and may hold anything; state and parent follow.
		f := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
		if len(f) > 1 && f[0] == "Z" && f[1] == self {
			out = append(out, hutch.Trace{Kind: hutch.TraceProcess, Name: pid + " (defunct)"})
		}
	}
	return out, nil
}

// children lists the processes that may be children of this one: those that the kernel lists as
// such, or, where it keeps no such list, all there are.
func children() ([]string, error) {
	lists, err := filepath.Glob("/proc/self/task/[0-9]*/children")
	if err != nil {
		return nil, err
	}
	var pids []string
	for _, list := range lists {
		b, err := os.ReadFile(list)
		if err != nil {
			continue // of a thread that has ended: another has its children now, and the next look finds them
		}
		pids = append(pids, strings.Fields(string(b))...)
	}
	if len(lists) > 0 {
		return pids, nil
	}
	dirs, err := filepath.Glob("/proc/[0-9]*")
	for _, dir := range dirs {
		pids = append(pids, filepath.Base(dir))
	}
	return pids, err
}

// role says what a process of a sandbox is for, which its first argument tells.
func role(name string) string {
	switch name {
	case "runsc-sandbox":
		return "sentry"
	case "runsc-gofer":
		return "gofer"
	}
	return "runsc"
}

func (r *Runtime) traceGroups() ([]hutch.Trace, error) {
	tree, err := r.tree()
	if err != nil {
		return nil, err
	}
	names, err := tree.List()
	if err != nil {
		return nil, err
	}
	out := make([]hutch.Trace, 0, len(names)+1)
	if at := tree.Made(""); !at.IsZero() {
		out = append(out, hutch.Trace{Kind: hutch.TraceCgroup, Name: r.cfg.CgroupParent, Shared: true, Since: at})
	}
	for _, name := range names {
		out = append(out, hutch.Trace{
			Kind: hutch.TraceCgroup, Name: r.cfg.CgroupParent + "/" + name, Sandbox: hutch.SandboxID(name), Since: tree.Made(name),
		})
	}
	return out, nil
}

func (r *Runtime) traceBoxes() ([]hutch.Trace, error) {
	return traceDir(r.boxesDir(), func(name string) (hutch.SandboxID, bool) { return hutch.SandboxID(name), true })
}

// traceRunsc names the files that runsc keeps of sandboxes. What else is in its directory is
// of all of them, and stays empty.
func (r *Runtime) traceRunsc() ([]hutch.Trace, error) {
	return traceDir(r.rootDir(), func(name string) (hutch.SandboxID, bool) {
		if id, ok := strings.CutPrefix(name, "runsc-"); ok && strings.HasSuffix(id, ".sock") {
			return hutch.SandboxID(strings.TrimSuffix(id, ".sock")), true
		}
		id, _, ok := strings.Cut(name, "_sandbox:")
		return hutch.SandboxID(id), ok
	})
}

// traceDir makes a trace of each entry of dir that is something of a sandbox, as owner says.
func traceDir(dir string, owner func(name string) (hutch.SandboxID, bool)) ([]hutch.Trace, error) {
	es, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var out []hutch.Trace
	for _, e := range es {
		id, ok := owner(e.Name())
		if !ok {
			continue
		}
		t := hutch.Trace{Kind: hutch.TraceState, Name: filepath.Join(dir, e.Name()), Sandbox: id}
		if fi, err := e.Info(); err == nil {
			t.Since = fi.ModTime()
		}
		out = append(out, t)
	}
	return out, nil
}

func (r *Runtime) traceMounts() ([]hutch.Trace, error) {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	dir, err := filepath.EvalSymlinks(r.cfg.StateDir) // as the kernel names it
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	return mountsBelow(string(b), dir), nil
}

// mountsBelow makes a trace of each mount below dir. In mountinfo the fifth field is the
// mount point, with blanks as octal escapes.
func mountsBelow(mountinfo, dir string) []hutch.Trace {
	plain := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)
	var out []hutch.Trace
	for line := range strings.Lines(mountinfo) {
		fields := strings.Fields(line)
		if len(fields) < 5 {
			continue
		}
		rel, ok := strings.CutPrefix(plain.Replace(fields[4]), dir+"/")
		if !ok {
			continue
		}
		t := hutch.Trace{Kind: hutch.TraceMount, Name: filepath.Join(dir, rel), Shared: rel == filepath.Join("runsc", nullNetNS)}
		if below, ok := strings.CutPrefix(rel, "sandboxes/"); ok {
			id, _, _ := strings.Cut(below, "/")
			t.Sandbox = hutch.SandboxID(id)
		}
		if !slices.ContainsFunc(out, func(o hutch.Trace) bool { return o.Name == t.Name }) { // runsc has been seen to mount one twice
			out = append(out, t)
		}
	}
	return out
}

// traceDisks finds files without a name that were made for a sandbox's disk and that a
// process holds open: they take space until it closes them.
func (r *Runtime) traceDisks() ([]hutch.Trace, error) {
	es, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	p, err := findPlace(r.boxesDir())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil // there was none yet
	}
	if err != nil {
		return nil, err
	}
	var out []hutch.Trace
	for _, e := range es {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		dir := fmt.Sprintf("/proc/%d/fd", pid)
		fds, err := os.ReadDir(dir)
		if err != nil {
			continue // it has ended
		}
		seen := map[hutch.SandboxID]bool{}
		for _, fd := range fds {
			below, ok := p.holds(filepath.Join(dir, fd.Name()))
			if !ok || !strings.HasSuffix(below, " (deleted)") {
				continue
			}
			id, _, _ := strings.Cut(below, "/")
			if seen[hutch.SandboxID(id)] {
				continue
			}
			seen[hutch.SandboxID(id)] = true
			out = append(out, hutch.Trace{
				Kind: hutch.TraceDisk, Name: fmt.Sprintf("%s, open in process %d", filepath.Join(r.boxesDir(), strings.TrimSuffix(below, " (deleted)")), pid), Sandbox: hutch.SandboxID(id),
			})
		}
	}
	return out, nil
}
