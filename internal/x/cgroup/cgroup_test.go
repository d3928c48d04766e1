package cgroup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

const mountsV1 = `25 1 254:0 / / rw,relatime - ext4 /dev/vda rw
30 25 0:26 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755
31 30 0:27 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
32 30 0:28 / /sys/fs/cgroup/memory rw shared:9 - cgroup cgroup rw,memory
33 30 0:29 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids
34 30 0:30 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,name=systemd
35 30 0:31 / %s rw - cgroup2 cgroup2 rw
`

// unified makes a directory that looks like the root of a version 2 hierarchy with
// the given controllers.
func unified(t *testing.T, controllers string) string {
	t.Helper()
	root := t.TempDir()
	fill(t, root, map[string]string{"cgroup.controllers": controllers, "cgroup.subtree_control": ""})
	return root
}

// fill writes files into dir, which stand for the kernel's.
func fill(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(b))
}

func TestDetect(t *testing.T) {
	for name, c := range map[string]struct {
		unified string // its controllers
		mounts  string
		v2      bool
		wantErr string
	}{
		"version 1":                  {mounts: mountsV1},
		"hybrid, controllers in v1":  {mounts: mountsV1, unified: "misc"},
		"hybrid, controllers in v2":  {mounts: mountsV1, unified: "cpu memory pids", v2: true},
		"version 2":                  {mounts: "1 0 0:1 / %s rw - cgroup2 cgroup2 rw\n", unified: "cpu memory pids", v2: true},
		"neither":                    {mounts: "1 0 0:1 / / rw - ext4 /dev/vda rw\n%.0s", wantErr: "memory controller"},
		"lines that make no sense":   {mounts: "x\n - \n1 2 3\n%.0s" + mountsV1},
		"version 1 without a memory": {mounts: "%.0s1 0 0:1 / /c rw - cgroup cgroup rw,cpu,cpuacct\n", wantErr: "memory controller"},
	} {
		root := t.TempDir()
		if c.unified != "" {
			root = unified(t, c.unified)
		}
		text := strings.Replace(strings.Replace(c.mounts, "%.0s", "", 1), "%s", root, 1)
		tree, err := detect(strings.NewReader(text), "p")
		switch {
		case c.wantErr != "":
			if err == nil || !strings.Contains(err.Error(), c.wantErr) {
				t.Errorf("%s: %v, want %q in it", name, err, c.wantErr)
			}
		case err != nil:
			t.Errorf("%s: %v", name, err)
		case tree.V2() != c.v2:
			t.Errorf("%s: version 2 is %v, want %v", name, tree.V2(), c.v2)
		}
	}
}

// Controllers that share a hierarchy share a directory, which must be made once.
func TestDirsAreDistinct(t *testing.T) {
	tree, err := detect(strings.NewReader(fmt.Sprintf(mountsV1, "/nowhere")), "p")
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"/sys/fs/cgroup/cpu,cpuacct/p/g", "/sys/fs/cgroup/memory/p/g", "/sys/fs/cgroup/pids/p/g"}
	if got := tree.dirs("g"); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestNamesAreNames(t *testing.T) {
	tree := &Tree{v2: true, mounts: map[string]string{"": t.TempDir()}, parent: "p"}
	for _, name := range []string{"", ".", "..", "a/b", "/etc", "a\x00"} {
		if _, err := tree.Create(name, Limits{}); err == nil {
			t.Errorf("a group called %q was made", name)
		}
		if _, err := tree.Open(name); err == nil {
			t.Errorf("a group called %q was opened", name)
		}
		if _, err := detect(strings.NewReader(""), name); err == nil {
			t.Errorf("a parent called %q was taken", name)
		}
	}
}

// Version 2, on a directory that stands for the kernel's: which files are written, and
// how the kernel's texts are read.
func TestV2Files(t *testing.T) {
	root := unified(t, "cpu memory pids")
	tree, err := detect(strings.NewReader("1 0 0:1 / "+root+" rw - cgroup2 cgroup2 rw\n"), "p")
	if err != nil {
		t.Fatal(err)
	}
	g := &Group{tree: tree, name: "g"}
	dir := filepath.Join(root, "p", "g")
	if g.Dir() != dir || !slices.Equal(g.ProcsFiles(), []string{dir + "/cgroup.procs"}) {
		t.Errorf("directory %s, files %v", g.Dir(), g.ProcsFiles())
	}
	// The kernel makes the control files with the directory; here they are made first.
	fill(t, filepath.Join(root, "p"), map[string]string{"cgroup.subtree_control": "cpu"})
	fill(t, dir, map[string]string{
		"memory.max": "max", "memory.swap.max": "max", "memory.high": "max",
		"cpu.max": "max 100000", "cpu.weight": "100", "pids.max": "max", "cgroup.kill": "",
	})
	if err := tree.prepare(); err != nil {
		t.Fatal(err)
	}
	if got := read(t, filepath.Join(root, "p", "cgroup.subtree_control")); !strings.Contains(got, "+pids") || strings.Contains(got, "+cpu") {
		t.Errorf("switched on below the parent: %q", got)
	}
	for _, s := range g.settings(Limits{Memory: 1 << 30, MemoryHigh: 900 << 20, MilliCPU: 1500, Pids: 77}) {
		if err := s.apply(); err != nil {
			t.Fatal(err)
		}
	}
	for file, want := range map[string]string{
		"memory.max": "1073741824", "memory.swap.max": "0", "memory.high": "943718400",
		"cpu.max": "150000 100000", "cpu.weight": "59", "pids.max": "77",
	} {
		if got := read(t, filepath.Join(dir, file)); !strings.HasPrefix(got, want) {
			t.Errorf("%s: %q, want %q", file, got, want)
		}
	}
	if err := g.Weigh(3000); err != nil {
		t.Fatal(err)
	}
	if got := read(t, filepath.Join(dir, "cpu.weight")); !strings.HasPrefix(got, "118") {
		t.Errorf("weighed as three CPUs: %q", got)
	}
	fill(t, dir, map[string]string{
		"memory.current": "5000\n", "memory.peak": "7000\n", "memory.max": "max\n",
		"memory.events": "low 0\nhigh 3\noom 2\noom_kill 1\n", "cpu.stat": "usage_usec 1500\nuser_usec 1\n",
		"memory.stat": "anon 1\ninactive_file 300\nactive_file 200\n", "cgroup.procs": "12\n13\n", "cgroup.threads": "12\n13\n14\n",
		"pids.events": "max 0\n", "pids.peak": "31\n", "pids.max": "77\n",
	})
	u, err := g.Usage()
	want := Usage{CPU: 1500 * time.Microsecond, Memory: 5000, MemoryPeak: 7000, MemoryLimit: 1<<63 - 1, OOMKills: 1, Pids: Pids{Peak: 31, Limit: 77}}
	if err != nil || u != want {
		t.Errorf("usage %+v, %v; want %+v", u, err, want)
	}
	// An older kernel keeps no peak, but a refusal says that it was the limit.
	fill(t, dir, map[string]string{"pids.events": "max 2\n"})
	if err := os.Remove(filepath.Join(dir, "pids.peak")); err != nil {
		t.Fatal(err)
	}
	if u, err := g.Usage(); err != nil || u.Pids != (Pids{Peak: 77, Limit: 77, Refused: 2}) {
		t.Errorf("pids %+v, %v", u.Pids, err)
	}
	if n, err := g.PidsRefused(); err != nil || n != 2 {
		t.Errorf("refused: %d, %v; want 2", n, err)
	}
	c, err := g.Counter()
	if err != nil {
		t.Fatal(err)
	}
	for _, usec := range []string{"1500", "2700"} {
		fill(t, dir, map[string]string{"cpu.stat": "usage_usec " + usec + "\nuser_usec 1\n"})
		if cpu, err := c.CPU(); err != nil || fmt.Sprint(cpu.Microseconds()) != usec {
			t.Errorf("counter: %v, %v; want %s µs", cpu, err, usec)
		}
	}
	fill(t, dir, map[string]string{"cpu.stat": "\n"})
	if cpu, err := c.CPU(); err == nil {
		t.Errorf("counter of a file without a count: %v", cpu)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if cpu, err := c.CPU(); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("counter that was closed: %v, %v", cpu, err)
	}
	if n, err := g.Unreclaimable(); err != nil || n != 4500 {
		t.Errorf("unreclaimable: %d, %v; want 4500", n, err)
	}
	if pids, err := g.Procs(); err != nil || !slices.Equal(pids, []int{12, 13}) {
		t.Errorf("processes: %v, %v", pids, err)
	}
	if ids, err := g.Threads(); err != nil || !slices.Equal(ids, []int{12, 13, 14}) {
		t.Errorf("threads: %v, %v", ids, err)
	}
	if err := g.Kill(); err != nil || read(t, filepath.Join(dir, "cgroup.kill")) != "1" {
		t.Errorf("kill: %v", err)
	}
}

// The kernel marks memory.events as modified when a counter grows, as a write does.
func TestV2NotifierWakes(t *testing.T) {
	dir := t.TempDir()
	tree := &Tree{v2: true, mounts: map[string]string{"": dir}, parent: "p"}
	g := &Group{tree: tree, name: "g"}
	fill(t, g.Dir(), map[string]string{"memory.events": "high 0\n"})
	n, err := g.NotifyHigh(0)
	if err != nil {
		t.Fatal(err)
	}
	woke, ended := make(chan struct{}, 1), make(chan error, 1)
	go func() {
		for {
			if err := n.Wait(); err != nil {
				ended <- err
				return
			}
			select {
			case woke <- struct{}{}:
			default:
			}
		}
	}()
	fill(t, g.Dir(), map[string]string{"memory.events": "high 1\n"})
	<-woke
	n.Close()
	if err := <-ended; !errors.Is(err, os.ErrClosed) {
		t.Errorf("wait on a closed notifier: %v", err)
	}
}

func TestWeight(t *testing.T) {
	for shares, want := range map[int64]int64{0: 1, 2: 1, 1024: 39, 262144: 10000, 1 << 40: 10000} {
		if got := weight(shares); got != want {
			t.Errorf("weight of %d shares is %d, want %d", shares, got, want)
		}
	}
}

// The rest is on the kernel of this host, whichever version it has.

func realTree(t *testing.T) *Tree {
	t.Helper()
	tree, err := Detect(fmt.Sprintf("hutch-cgroup-test-%d", os.Getpid()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, d := range tree.dirs() {
			if err := os.Remove(d); err != nil && !errors.Is(err, fs.ErrNotExist) {
				t.Error(err)
			}
		}
	})
	return tree
}

// inside starts a shell command as a member of g.
func inside(t *testing.T, g *Group, script string) *exec.Cmd {
	t.Helper()
	enter := ""
	for _, f := range g.ProcsFiles() {
		enter += "echo 0 > " + f + "; "
	}
	cmd := exec.Command("/bin/sh", "-c", enter+script)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd
}

func members(t *testing.T, g *Group, n int) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(10 * time.Second)
	for {
		pids, err := g.Procs()
		if err != nil {
			t.Fatal(err)
		}
		if len(pids) >= n {
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("%d processes are in the group, want %d", len(pids), n)
		}
	}
}

func TestLifeOfAGroup(t *testing.T) {
	tree := realTree(t)
	if _, err := tree.Open("g"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("open of what does not exist: %v", err)
	}
	limits := Limits{Memory: 64 << 20, MilliCPU: 500, Pids: 20}
	g, err := tree.Create("g", limits)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tree.Create("g", limits); !errors.Is(err, fs.ErrExist) {
		t.Errorf("second create: %v", err)
	}
	if at := tree.Made("g"); time.Since(at) > time.Minute || tree.Made("").IsZero() || !tree.Made("none").IsZero() {
		t.Errorf("made at %s, its parent at %s, what is not there at %s", at, tree.Made(""), tree.Made("none"))
	}
	cmd := inside(t, g, "sleep 1000 & sleep 1000")
	members(t, g, 3)
	u, err := g.Usage()
	if err != nil || u.MemoryLimit != limits.Memory || u.Memory == 0 {
		t.Errorf("usage: %+v, %v", u, err)
	}
	if ids, err := g.Threads(); err != nil || len(ids) < 3 {
		t.Errorf("threads: %v, %v", ids, err)
	}
	c, err := g.Counter()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	later, err := g.Usage()
	if cpu, cerr := c.CPU(); err != nil || cerr != nil || cpu < later.CPU || later.CPU == 0 {
		t.Errorf("counter: %v, %v; usage before: %v, %v", cpu, cerr, later.CPU, err)
	}
	if names, err := tree.List(); err != nil || !slices.Equal(names, []string{"g"}) {
		t.Errorf("list: %v, %v", names, err)
	}
	if err := tree.Remove(); err == nil {
		t.Error("the parent of a group was removed")
	}
	g2, err := tree.Open("g")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for range 2 {
		if err := g2.Remove(ctx); err != nil {
			t.Fatal(err)
		}
	}
	if err := cmd.Wait(); err == nil {
		t.Error("the member was not killed")
	}
	if cpu, err := c.CPU(); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("counter of a group that is gone: %v, %v", cpu, err)
	}
	if names, err := tree.List(); err != nil || len(names) > 0 {
		t.Errorf("list after removal: %v, %v", names, err)
	}
	for range 2 {
		if err := tree.Remove(); err != nil {
			t.Errorf("remove the parent: %v", err)
		}
	}
	for _, d := range tree.dirs() {
		if _, err := os.Stat(d); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is still there: %v", d, err)
		}
	}
}

// A program over the limit is ended, counted, and told of.
func TestMemoryLimit(t *testing.T) {
	tree := realTree(t)
	g, err := tree.Create("g", Limits{Memory: 32 << 20, MemoryHigh: 24 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := g.Remove(context.Background()); err != nil {
			t.Error(err)
		}
	}()
	high, err := g.NotifyHigh(24 << 20)
	if err != nil {
		t.Fatal(err)
	}
	defer high.Close()
	oom, err := g.NotifyOOM()
	if err != nil {
		t.Fatal(err)
	}
	defer oom.Close()
	cmd := inside(t, g, `exec awk 'BEGIN { s = "x"; while (1) s = s s }'`)
	if err := high.Wait(); err != nil {
		t.Error(err)
	}
	if err := oom.Wait(); err != nil {
		t.Error(err)
	}
	if err := cmd.Wait(); err == nil {
		t.Error("the program was not ended")
	}
	if n, err := g.OOMKills(); err != nil || n == 0 {
		t.Errorf("kills: %d, %v", n, err)
	}
}
