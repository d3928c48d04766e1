// Package cgroup makes, reads, watches and removes control groups, on hosts with
// the version 1 hierarchies and on hosts with the unified one.
//
// It owns the kernel's file names and units; what is grouped, and how large it may
// be, is its caller's business. A group is one directory per controller (version 1)
// or one directory (version 2) below a parent that belongs to the caller: nothing
// outside that parent is ever written or removed.
//
// A group has no state in this process: a [Group] is a name and paths, so one that
// an earlier process made is opened by name and is as good as new.
//
// Version 2 is tested against made-up trees only; see docs/gvisor.md.
//
// Start with [Detect], then [Tree.Create].
package cgroup

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"hutch.dev/hutch/internal/x/failpoint"
)

// period is the length of a scheduling period, the kernel's own default.
const period = 100 * time.Millisecond

// retryEvery is how often Remove looks whether a group has become empty. A killed
// process leaves its group some milliseconds after its death is visible.
const retryEvery = 2 * time.Millisecond

// controllers are those a group needs. On version 2 "cpuacct" is part of "cpu".
var controllers = []string{"memory", "cpu", "cpuacct", "pids"}

// Limits is the size of a group. Zero fields set no limit.
type Limits struct {
	Memory   int64 // bytes, kernel memory and page cache included; swap is never given
	MilliCPU int   // thousandths of a CPU; also its weight against other groups, see [Group.Weigh]
	Pids     int   // processes and threads
	// MemoryHigh is where the kernel of version 2 begins to hold the group back and
	// NotifyHigh reports, in bytes.
	MemoryHigh int64
}

// Usage is what the kernel accounts to a group.
type Usage struct {
	CPU         time.Duration
	Memory      int64 // bytes charged now
	MemoryPeak  int64 // most bytes charged at once
	MemoryLimit int64 // bytes
	OOMKills    int64 // processes the kernel ended over the memory limit
	Pids        Pids
}

// Pids is what the kernel counts of a group's processes and threads.
type Pids struct {
	Peak    int64 // most at once; 0 where the kernel keeps none and none was refused
	Limit   int64
	Refused int64 // how many the limit has refused
}

// Tree is the place below which groups are made.
type Tree struct {
	v2     bool
	mounts map[string]string // controller → where its hierarchy is mounted; v2: only ""
	parent string            // name of the directory groups are made in
}

// Detect finds the host's hierarchies. Groups will be made in a directory called
// parent at their roots. It reads /proc only.
func Detect(parent string) (*Tree, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return detect(f, parent)
}

// detect prefers version 2 if it has the memory controller: a host in transition
// mounts both, and a controller is in one hierarchy only.
func detect(mountinfo io.Reader, parent string) (*Tree, error) {
	if err := checkName(parent); err != nil {
		return nil, fmt.Errorf("cgroup parent: %w", err)
	}
	v1, unified, err := parseMounts(mountinfo)
	if err != nil {
		return nil, err
	}
	if unified != "" {
		have, err := os.ReadFile(filepath.Join(unified, "cgroup.controllers"))
		if err == nil && slices.Contains(strings.Fields(string(have)), "memory") {
			return &Tree{v2: true, mounts: map[string]string{"": unified}, parent: parent}, nil
		}
	}
	t := &Tree{mounts: map[string]string{}, parent: parent}
	for _, c := range controllers {
		if v1[c] == "" {
			return nil, fmt.Errorf("no cgroup hierarchy with the %s controller is mounted on this host", c)
		}
		t.mounts[c] = v1[c]
	}
	return t, nil
}

// parseMounts returns the mount point of each version 1 controller, and that of
// the unified hierarchy.
func parseMounts(r io.Reader) (v1 map[string]string, unified string, err error) {
	v1 = map[string]string{}
	for s := bufio.NewScanner(r); ; {
		if !s.Scan() {
			return v1, unified, s.Err()
		}
		before, after, ok := strings.Cut(s.Text(), " - ")
		mount, fsys := strings.Fields(before), strings.Fields(after)
		if !ok || len(mount) < 5 || len(fsys) < 3 {
			continue
		}
		switch fsys[0] {
		case "cgroup2":
			unified = mount[4]
		case "cgroup":
			for _, o := range strings.Split(fsys[2], ",") {
				v1[o] = mount[4]
			}
		}
	}
}

func checkName(name string) error {
	if name == "" || name == "." || name == ".." || strings.ContainsAny(name, "/\x00") {
		return fmt.Errorf("%q is no name for a group", name)
	}
	return nil
}

// V2 says whether the host's unified hierarchy is used.
func (t *Tree) V2() bool { return t.v2 }

// dirs returns the distinct directories of rel, one per hierarchy.
func (t *Tree) dirs(rel ...string) []string {
	var out []string
	for _, m := range t.mounts {
		d := filepath.Join(append([]string{m, t.parent}, rel...)...)
		if !slices.Contains(out, d) {
			out = append(out, d)
		}
	}
	slices.Sort(out)
	return out
}

// Create makes the group called name with its limits. If it exists the error is
// fs.ErrExist; if anything fails nothing of it is left.
func (t *Tree) Create(name string, l Limits) (_ *Group, err error) {
	if err := checkName(name); err != nil {
		return nil, err
	}
	if err := t.prepare(); err != nil {
		return nil, err
	}
	var made []string
	defer func() {
		if err != nil {
			for _, d := range made {
				_ = os.Remove(d)
			}
		}
	}()
	for _, d := range t.dirs(name) {
		if err := os.Mkdir(d, 0o755); err != nil {
			return nil, err
		}
		made = append(made, d)
		failpoint.At(failpoint.GroupMade)
	}
	g := &Group{tree: t, name: name}
	if err := g.Limit(l); err != nil {
		return nil, err
	}
	return g, nil
}

// prepare makes the parent and, on version 2, hands it the controllers.
func (t *Tree) prepare() error {
	if t.v2 {
		if err := delegate(t.mounts[""]); err != nil {
			return err
		}
	}
	for _, d := range t.dirs() {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return err
		}
	}
	if t.v2 {
		return delegate(filepath.Join(t.mounts[""], t.parent))
	}
	return nil
}

// delegate switches our controllers on for the children of the v2 group dir.
func delegate(dir string) error {
	file := filepath.Join(dir, "cgroup.subtree_control")
	on, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	for _, c := range []string{"memory", "cpu", "pids"} {
		if slices.Contains(strings.Fields(string(on)), c) {
			continue
		}
		if err := write(file, "+"+c); err != nil {
			return fmt.Errorf("switch on controller %s: %w", c, err)
		}
	}
	return nil
}

// Open returns the group called name, whole or not; fs.ErrNotExist if nothing of
// it exists.
func (t *Tree) Open(name string) (*Group, error) {
	if err := checkName(name); err != nil {
		return nil, err
	}
	for _, d := range t.dirs(name) {
		if _, err := os.Stat(d); err == nil {
			return &Group{tree: t, name: name}, nil
		}
	}
	return nil, fmt.Errorf("cgroup %s: %w", name, fs.ErrNotExist)
}

// List names the groups of which anything exists, sorted.
func (t *Tree) List() ([]string, error) {
	var names []string
	for _, d := range t.dirs() {
		es, err := os.ReadDir(d)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		for _, e := range es {
			if e.IsDir() && !slices.Contains(names, e.Name()) {
				names = append(names, e.Name())
			}
		}
	}
	slices.Sort(names)
	return names, nil
}

// Made returns when the group called name was made; if name is empty, when a group was last made
// or removed in the directory for them. It is zero if there is none.
func (t *Tree) Made(name string) time.Time {
	var first time.Time
	for _, d := range t.dirs(name) {
		if fi, err := os.Stat(d); err == nil && (first.IsZero() || fi.ModTime().Before(first)) {
			first = fi.ModTime()
		}
	}
	return first
}

// Remove removes the directory that groups are made in. It refuses while there are groups
// in it; that there is none is fine. A later Create makes it anew.
func (t *Tree) Remove() error {
	for _, d := range t.dirs() {
		if err := unix.Rmdir(d); err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("remove parent of cgroups: %w", &fs.PathError{Op: "rmdir", Path: d, Err: err})
		}
	}
	return nil
}
