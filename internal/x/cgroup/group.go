package cgroup

import (
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

	"hutch.dev/hutch/internal/x/failpoint"
)

// Group is one control group.
type Group struct {
	tree *Tree
	name string
}

// Limit sets the limits that l has; others stay as they are.
func (g *Group) Limit(l Limits) error {
	return apply("limit", g.settings(l))
}

// Weigh sets what the group gets where there is not CPU enough for it and its neighbours: as
// much as one that has been limited to so many thousandths of a CPU. Its own limit stays.
func (g *Group) Weigh(milliCPU int) error {
	return apply("weigh", []setting{g.weigh(milliCPU)})
}

func apply(what string, all []setting) error {
	for _, s := range all {
		if err := s.apply(); err != nil {
			return fmt.Errorf("%s cgroup: %w", what, err)
		}
	}
	return nil
}

// dir is the directory of the group in the hierarchy of a version 1 controller.
func (g *Group) dir(controller string) string {
	if g.tree.v2 {
		controller = ""
	}
	return filepath.Join(g.tree.mounts[controller], g.tree.parent, g.name)
}

// Dir is the group's directory on version 2, for clone3 with CLONE_INTO_CGROUP;
// empty on version 1.
func (g *Group) Dir() string {
	if !g.tree.v2 {
		return ""
	}
	return g.dir("")
}

// ProcsFiles are the files into which a process writes "0" to enter the group.
func (g *Group) ProcsFiles() []string {
	files := g.tree.dirs(g.name)
	for i := range files {
		files[i] = filepath.Join(files[i], "cgroup.procs")
	}
	return files
}

// Procs returns the processes in the group, those that are only in some of its
// directories too.
func (g *Group) Procs() ([]int, error) {
	var pids []int
	for _, f := range g.ProcsFiles() {
		b, err := os.ReadFile(f)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) {
			continue
		}
		if err != nil {
			return nil, err
		}
		for _, s := range strings.Fields(string(b)) {
			pid, err := strconv.Atoi(s)
			if err == nil && pid > 0 && !slices.Contains(pids, pid) {
				pids = append(pids, pid)
			}
		}
	}
	return pids, nil
}

// Threads returns the threads in the group, by the numbers that /proc knows them by.
func (g *Group) Threads() ([]int, error) {
	name := "tasks"
	if g.tree.v2 {
		name = "cgroup.threads"
	}
	b, err := os.ReadFile(filepath.Join(g.dir("cpu"), name))
	if err != nil {
		return nil, err
	}
	var ids []int
	for _, s := range strings.Fields(string(b)) {
		if id, err := strconv.Atoi(s); err == nil && id > 0 {
			ids = append(ids, id)
		}
	}
	return ids, nil
}

// Kill sends every process of the group SIGKILL and does not wait for their end.
func (g *Group) Kill() error {
	if g.tree.v2 {
		// Takes forks under way too. Missing before Linux 5.14.
		err := write(filepath.Join(g.dir(""), "cgroup.kill"), "1")
		if err == nil {
			return nil
		}
	}
	pids, err := g.Procs()
	if err != nil {
		return err
	}
	for _, pid := range pids {
		if err := g.killOne(pid); err != nil {
			return fmt.Errorf("kill process %d of cgroup: %w", pid, err)
		}
	}
	return nil
}

// killOne kills pid if it is still the process that was seen in the group: between
// the two, the number may have gone to another one.
func (g *Group) killOne(pid int) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	now, err := g.Procs()
	if err != nil || !slices.Contains(now, pid) {
		return err
	}
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return err
	}
	return nil
}

// Remove kills what is in the group and removes it. It returns nil once nothing of
// it exists, also if nothing did, and ctx's error if that does not come true in time.
func (g *Group) Remove(ctx context.Context) error {
	tick := time.NewTicker(retryEvery)
	defer tick.Stop()
	for {
		busy, err := g.removeDirs()
		if err != nil || !busy {
			return err
		}
		if err := g.Kill(); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("remove cgroup %s: %w", g.name, ctx.Err())
		case <-tick.C:
		}
	}
}

// removeDirs removes the directories that can be removed, and says whether any
// could not because there are processes in it.
func (g *Group) removeDirs() (busy bool, err error) {
	for _, d := range g.tree.dirs(g.name) {
		switch err := unix.Rmdir(d); {
		case err == nil:
			failpoint.At(failpoint.GroupRemoved)
		case errors.Is(err, unix.ENOENT):
		case errors.Is(err, unix.EBUSY):
			busy = true
		default:
			return false, fmt.Errorf("remove cgroup: %w", &fs.PathError{Op: "rmdir", Path: d, Err: err})
		}
	}
	return busy, nil
}
