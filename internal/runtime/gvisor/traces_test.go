package gvisor

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"hutch.dev/hutch"
)

func TestMountsBelow(t *testing.T) {
	const mountinfo = `22 1 0:21 / / rw - ext4 /dev/root rw
30 22 0:4 net:[4026533] /data/run/runsc/null-netns rw shared:9 - nsfs nsfs rw
31 22 0:4 net:[4026533] /data/run/runsc/null-netns rw shared:9 - nsfs nsfs rw
32 22 0:5 / /data/run/sandboxes/i1/up\040per rw - tmpfs none rw
33 22 0:5 / /data/run/elsewhere rw - tmpfs none rw
34 22 0:5 / /data/run2/runsc rw - tmpfs none rw
35 22 0:5 / /data/run rw - tmpfs none rw
short
`
	got := mountsBelow(mountinfo, "/data/run")
	want := []hutch.Trace{
		{Kind: hutch.TraceMount, Name: "/data/run/runsc/null-netns", Shared: true},
		{Kind: hutch.TraceMount, Name: "/data/run/sandboxes/i1/up per", Sandbox: "i1"},
		{Kind: hutch.TraceMount, Name: "/data/run/elsewhere"},
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %+v", got)
	}
}

func TestTraceDefunct(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "true")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	name := strconv.Itoa(cmd.Process.Pid) + " (defunct)"
	named := func() bool {
		all, err := traceDefunct()
		if err != nil {
			t.Fatal(err)
		}
		return slices.Contains(all, hutch.Trace{Kind: hutch.TraceProcess, Name: name})
	}
	for late := time.Now().Add(time.Minute); !named(); {
		if time.Now().After(late) {
			t.Fatal("a child that has ended and is not reaped is not named")
		}
	}
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	if named() {
		t.Error("one that is reaped is named")
	}
}

func TestTraces(t *testing.T) {
	r := newRuntime(t)
	traces := func(deep bool) map[hutch.SandboxID]string {
		t.Helper()
		all, err := r.Traces(t.Context(), deep)
		if err != nil {
			t.Fatal(err)
		}
		kinds := map[hutch.SandboxID][]string{}
		for _, tr := range all {
			if strings.HasSuffix(tr.Name, "(defunct)") {
				continue // of what has just ended
			}
			if tr.Name == "" || tr.Shared != (tr.Sandbox == "") {
				t.Errorf("%+v", tr)
			}
			if old := time.Since(tr.Since); !tr.Since.IsZero() && (old < -time.Minute || old > time.Hour) {
				t.Errorf("%+v is %s old", tr, old)
			}
			if tr.Kind == hutch.TraceProcess && tr.Since.IsZero() == deep {
				t.Errorf("looking deep %t: %+v", deep, tr)
			}
			kinds[tr.Sandbox] = append(kinds[tr.Sandbox], string(tr.Kind))
		}
		out := map[hutch.SandboxID]string{}
		for id, k := range kinds {
			slices.Sort(k)
			out[id] = strings.Join(slices.Compact(k), " ")
		}
		return out
	}
	if got := traces(true); got[""] != "" && got[""] != "cgroup" || len(got) > 1 { // the parent, of another test
		t.Errorf("of nothing: %v", got)
	}
	disk, _ := start(t, r, newSpec(hutch.TierDisk))
	memory, _ := start(t, r, newSpec(hutch.TierMemory))
	got := traces(true)
	if got[disk.id] != "cgroup disk process state" || got[memory.id] != "cgroup process state" || got[""] != "cgroup mount" || len(got) != 3 {
		t.Errorf("of two sandboxes: %v", got)
	}
	for range 2 { // the second is from memory
		if got := traces(false)[disk.id]; got != "cgroup process state" {
			t.Errorf("without open files: %s", got)
		}
	}
	// A runtime that knows nothing of them finds the same, and what nobody holds.
	if err := os.Mkdir(filepath.Join(r.boxesDir(), "stray"), 0o700); err != nil {
		t.Fatal(err)
	}
	socket := r.socket("stray2")
	if err := os.WriteFile(socket, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	r = again(r.cfg.StateDir)
	got = traces(true)
	if got[disk.id] != "cgroup disk process state" || got["stray"] != "state" || got["stray2"] != "state" {
		t.Errorf("by another process: %v", got)
	}
	if err := os.Remove(socket); err != nil {
		t.Fatal(err)
	}
	// Its disk is held as long as any process has it open, ours too.
	held, err := openUpper(disk.rec.Sentry.PID, disk.r.upperDir(disk.id))
	if err != nil {
		t.Fatal(err)
	}
	kill(t, disk)
	if got := traces(true)[disk.id]; got != "disk" {
		t.Errorf("of an ended one whose disk is held: %q", got)
	}
	if err := held.Close(); err != nil {
		t.Fatal(err)
	}
	kill(t, memory)
	for _, r := range []*Runtime{r, disk.r} {
		for _, deep := range []bool{true, false} {
			all, err := r.Traces(t.Context(), deep)
			if err != nil {
				t.Fatal(err)
			}
			for _, tr := range all {
				if tr.Sandbox == disk.id || tr.Sandbox == memory.id {
					t.Errorf("of one that has ended, looking deep %t: %+v", deep, tr)
				}
			}
		}
	}
}

// One that has ended is none, also where its parent does not reap it.
func TestKnownProcessesLive(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "true")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Wait() }()
	var st unix.Stat_t
	if err := unix.Stat("/proc/"+strconv.Itoa(cmd.Process.Pid), &st); err != nil {
		t.Fatal(err)
	}
	child := hostProc{cmd.Process.Pid, "i1", "sentry"}
	k := knownProcs{m: map[int]knownProc{child.pid: {child, st.Ino}}}
	for late := time.Now().Add(time.Minute); ; {
		found, err := k.scan(again(t.TempDir()))
		if err != nil || time.Now().After(late) {
			t.Fatalf("%v, %v", found, err)
		}
		if !slices.Contains(found, child) {
			return
		}
	}
}

// What is remembered of a process is not held against the next one of its number.
func TestKnownProcessesAreThemselves(t *testing.T) {
	r := again(t.TempDir())
	self := os.Getpid()
	var st unix.Stat_t
	if err := unix.Stat("/proc/"+strconv.Itoa(self), &st); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		inode uint64
		want  bool
	}{"the process that it was": {st.Ino, true}, "another of its number": {st.Ino + 1, false}} {
		mine := hostProc{self, "i1", "sentry"}
		k := knownProcs{m: map[int]knownProc{self: {mine, c.inode}}}
		for range 2 {
			found, err := k.scan(r)
			if err != nil || slices.Contains(found, mine) != c.want {
				t.Errorf("%s: %v, %v", name, found, err)
			}
		}
	}
}

// The state directory may be on a file system of its own, and behind a symbolic link.
func TestStateOnAnotherFileSystem(t *testing.T) {
	base, err := os.MkdirTemp("", "gv") //nolint:usetesting // t.TempDir is too long for sockets
	if err != nil {
		t.Fatal(err)
	}
	mounted, link := filepath.Join(base, "m"), filepath.Join(base, "l")
	if err := errors.Join(os.Mkdir(mounted, 0o755), unix.Mount("none", mounted, "tmpfs", 0, "size=64m"), os.Symlink(mounted, link), os.Mkdir(filepath.Join(link, "d"), 0o755)); err != nil {
		t.Fatal(err)
	}
	r := again(filepath.Join(link, "d"))
	t.Cleanup(func() {
		sweepAll(t, r)
		for unix.Unmount(filepath.Join(r.rootDir(), "null-netns"), unix.MNT_DETACH) == nil {
		}
		if err := errors.Join(unix.Unmount(mounted, 0), os.RemoveAll(base)); err != nil {
			t.Error(err)
		}
	})
	s, g := start(t, r, newSpec(hutch.TierDisk))
	g.sh(t, "head -c 3000000 /dev/zero >/root/file; sync")
	if st, err := s.Stats(t.Context()); err != nil || st.Disk < 3_000_000 {
		t.Errorf("what it has written: %+v, %v", st, err)
	}
	g.detach()
	_, s = adopt(t, s)
	all, err := r.Traces(t.Context(), true)
	if err != nil || !slices.ContainsFunc(all, func(t hutch.Trace) bool { return t.Kind == hutch.TraceDisk && t.Sandbox == s.id }) {
		t.Errorf("its disk is not found: %+v, %v", all, err)
	}
	kill(t, s)
}
