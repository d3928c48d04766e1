package gvisor

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

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
			if tr.Name == "" || tr.Shared != (tr.Sandbox == "") {
				t.Errorf("%+v", tr)
			}
			if old := time.Since(tr.Since); !tr.Since.IsZero() && (old < -time.Minute || old > time.Hour) {
				t.Errorf("%+v is %s old", tr, old)
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
	if got := traces(false)[disk.id]; got != "cgroup process state" {
		t.Errorf("without open files: %s", got)
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
	if got := traces(true); got[disk.id]+got[memory.id] != "" {
		t.Errorf("of ended ones: %v", got)
	}
}
