package bench

import (
	"bufio"
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

	"hutch.dev/hutch/internal/x/pidfd"
)

// The control groups and mounts of others, of which no more is known than what they are below.

// mountPoint is a line of the mount table.
type mountPoint struct{ dir, kind string }

// mountTable is what is mounted, in order.
func mountTable() ([]mountPoint, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var out []mountPoint
	s := bufio.NewScanner(f)
	for s.Scan() {
		before, after, _ := strings.Cut(s.Text(), " - ")
		mount, fsys := strings.Fields(before), strings.Fields(after)
		if len(mount) >= 5 && len(fsys) >= 1 {
			out = append(out, mountPoint{dir: mount[4], kind: fsys[0]})
		}
	}
	return out, s.Err()
}

// unmountBelow unmounts everything below dir, the last mounted first.
func unmountBelow(dir string) error {
	dir, err := filepath.EvalSymlinks(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	all, err := mountTable()
	if err != nil {
		return err
	}
	for _, m := range slices.Backward(all) {
		if !strings.HasPrefix(m.dir, dir+"/") {
			continue
		}
		if uerr := unix.Unmount(m.dir, unix.MNT_DETACH); uerr != nil {
			err = errors.Join(err, fmt.Errorf("unmount %s: %w", m.dir, uerr))
		}
	}
	return err
}

// groupDirs are the directories that the control group called name has, the deepest first. Each
// hierarchy has them: all of cgroup v1's, that without a controller, cgroup v2's.
func groupDirs(name string) ([]string, error) {
	all, err := mountTable()
	if err != nil {
		return nil, err
	}
	var out []string
	for _, m := range all {
		if m.kind != "cgroup" && m.kind != "cgroup2" {
			continue
		}
		err := filepath.WalkDir(filepath.Join(m.dir, name), func(path string, d fs.DirEntry, err error) error {
			switch {
			case errors.Is(err, fs.ErrNotExist): // it has none here, or it ended meanwhile
				return nil
			case err != nil:
				return err
			case d.IsDir():
				out = append(out, path)
			}
			return nil
		})
		if err != nil {
			return nil, fmt.Errorf("walk control groups: %w", err)
		}
	}
	slices.Reverse(out)
	return out, nil
}

// processesIn are the processes that a control group's directory lists. One that was removed has
// none.
func processesIn(dir string) ([]int, error) {
	b, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) || errors.Is(err, unix.EOPNOTSUPP) { // the last: threaded
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var out []int
	for f := range strings.FieldsSeq(string(b)) {
		pid, err := strconv.Atoi(f)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", dir, err)
		}
		out = append(out, pid)
	}
	return out, nil
}

// endGroups returns once no process is left in the control group called name and in those
// below it, and they are removed. If kill is set it ends the processes, also when ctx has ended.
func endGroups(ctx context.Context, name string, kill bool) error {
	if kill {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), killTimeout)
		defer cancel()
	}
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		dirs, err := groupDirs(name)
		if err != nil {
			return err
		}
		left, err := removeGroups(dirs, kill)
		if err != nil || left == 0 {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("%d control groups below %s are still in use: %w", left, name, context.Cause(ctx))
		}
	}
}

// removeGroups removes the directories in which no process is, and returns how many are left.
func removeGroups(dirs []string, kill bool) (left int, err error) {
	for _, d := range dirs {
		if kill {
			if err := killIn(d); err != nil {
				return 0, err
			}
		}
		switch err := unix.Rmdir(d); {
		case err == nil || errors.Is(err, unix.ENOENT):
		case errors.Is(err, unix.EBUSY):
			left++
		default:
			return 0, &fs.PathError{Op: "rmdir", Path: d, Err: err}
		}
	}
	return left, nil
}

// killIn kills the processes in a control group, each if it is still there: between the two looks
// its number may have gone to another one.
func killIn(dir string) error {
	pids, err := processesIn(dir)
	if err != nil {
		return err
	}
	for _, pid := range pids {
		f, err := pidfd.Open(pid)
		if errors.Is(err, os.ErrProcessDone) {
			continue
		}
		if err != nil {
			return err
		}
		now, err := processesIn(dir)
		if err == nil && slices.Contains(now, pid) {
			err = pidfd.Signal(f, unix.SIGKILL)
		}
		f.Close()
		if err != nil && !errors.Is(err, os.ErrProcessDone) {
			return err
		}
	}
	return nil
}
