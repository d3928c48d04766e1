package gvisor

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/x/pidfd"
)

// hostProc is a process of some sandbox, found by its arguments.
type hostProc struct {
	pid  int
	id   hutch.SandboxID
	role string // see role
}

// scan finds the processes of this runtime's sandboxes by their arguments: each
// names our state directory and, last, its sandbox. It needs nothing but /proc.
func (r *Runtime) scan() ([]hostProc, error) { return new(knownProcs).scan(r) }

// knownProcs remembers the processes that a scan found: of the thousands that idle sandboxes have
// none is read again by the next. A process of a sandbox stays one; others are looked at each
// time, as they may become one. The zero value knows none.
type knownProcs struct {
	mu sync.Mutex
	m  map[int]knownProc // by number
}

type knownProc struct {
	hostProc
	inode uint64 // of its directory in /proc, which no later process of its number has
}

// scan is that of r.
func (k *knownProcs) scan(r *Runtime) ([]hostProc, error) {
	es, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	var found []hostProc
	m := make(map[int]knownProc, len(k.m))
	for _, e := range es {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		var st unix.Stat_t
		if unix.Stat(filepath.Join("/proc", e.Name()), &st) != nil {
			continue // it has ended
		}
		p, ok := k.m[pid]
		if !ok || p.inode != st.Ino || hasEnded(pid) {
			id, name, ok := r.argsOf(pid)
			if !ok {
				continue
			}
			p = knownProc{hostProc{pid, id, role(name)}, st.Ino}
		}
		m[pid] = p
		found = append(found, p.hostProc)
	}
	k.m = m
	return found, nil
}

// hasEnded reports whether a process has, of which its parent has not taken note: it has no
// program any more. To find that out costs a quarter of what reading its arguments does.
func hasEnded(pid int) bool {
	_, err := unix.Readlink(fmt.Sprintf("/proc/%d/exe", pid), make([]byte, 1))
	return err != nil
}

// sandboxOf returns the sandbox that pid is a process of, if it is one of ours.
func (r *Runtime) sandboxOf(pid int) (hutch.SandboxID, bool) {
	id, _, ok := r.argsOf(pid)
	return id, ok
}

// argsOf does the same, and returns the process's first argument, which is a name.
func (r *Runtime) argsOf(pid int) (id hutch.SandboxID, name string, ok bool) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil || len(b) == 0 {
		return "", "", false
	}
	args := strings.Split(string(bytes.TrimRight(b, "\x00")), "\x00")
	isRunsc := args[0] == "runsc-sandbox" || args[0] == "runsc-gofer" || len(args) > 1 && args[1] == RunscCommand
	if !isRunsc {
		return "", "", false
	}
	if !slices.Contains(args, "--root="+r.rootDir()) {
		return "", "", false
	}
	return hutch.SandboxID(args[len(args)-1]), args[0], true
}

// openProc opens pid as a process of the sandbox id, and returns its start time too.
// A process that is not one is os.ErrProcessDone: the number went to another.
func (r *Runtime) openProc(pid int, id hutch.SandboxID) (*os.File, uint64, error) {
	f, err := pidfd.Open(pid)
	if err != nil {
		return nil, 0, err
	}
	// The file holds on to the process, so what is read of the number now is true of
	// the file if the process is alive afterwards.
	start, err := startTime(pid)
	got, ok := r.sandboxOf(pid)
	if err == nil && (!ok || got != id || !pidfd.Alive(f)) {
		err = fmt.Errorf("process %d is not of sandbox %s: %w", pid, id, os.ErrProcessDone)
	}
	if err != nil {
		f.Close()
		return nil, 0, err
	}
	return f, start, nil
}

// checkProc refuses f unless it is the process of sandbox id that p names, alive.
func (r *Runtime) checkProc(f *os.File, p proc, id hutch.SandboxID) error {
	pid, err := pidOf(f)
	if err != nil {
		return err
	}
	if pid != p.PID {
		return fmt.Errorf("the handle is of process %d, not of %d", pid, p.PID)
	}
	start, err := startTime(pid)
	if err != nil {
		return fmt.Errorf("look at process %d: %w", pid, err)
	}
	if got, ok := r.sandboxOf(pid); !ok || got != id || start != p.Start {
		return fmt.Errorf("process %d is not the sandbox's any more", pid)
	}
	if !pidfd.Alive(f) {
		return fmt.Errorf("process %d has ended", pid)
	}
	return nil
}

// pidOf returns the number of the process that the pidfd f stands for.
func pidOf(f *os.File) (int, error) {
	var info []byte
	err := withFDs([]*os.File{f}, nil, func(fds []int) (err error) {
		info, err = os.ReadFile(fmt.Sprintf("/proc/self/fdinfo/%d", fds[0]))
		return err
	})
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(info)) {
		if v, ok := strings.CutPrefix(line, "Pid:"); ok {
			if pid, err := strconv.Atoi(strings.TrimSpace(v)); err == nil && pid > 0 {
				return pid, nil
			}
		}
	}
	return 0, errors.New("the handle is of no process that exists")
}

// startTime returns when pid started, in clock ticks since boot.
func startTime(pid int) (uint64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	// The name, in brackets, may hold anything; the fields after it are the third on.
	_, rest, ok := strings.Cut(string(b[bytes.LastIndexByte(b, ')')+1:]), " ")
	fields := strings.Fields(rest)
	if !ok || len(fields) < 20 {
		return 0, fmt.Errorf("read start of process %d: %d fields", pid, len(fields))
	}
	return strconv.ParseUint(fields[19], 10, 64)
}

// openUpper opens, as a path only, the nameless file in dir that backs the writable
// layer of the sentry pid. The file lives as long as it is open anywhere.
func openUpper(pid int, dir string) (*os.File, error) {
	fds := fmt.Sprintf("/proc/%d/fd", pid)
	es, err := os.ReadDir(fds)
	if err != nil {
		return nil, fmt.Errorf("find writable layer: %w", err)
	}
	p, err := findPlace(dir)
	if err != nil {
		return nil, fmt.Errorf("find writable layer: %w", err)
	}
	for _, e := range es {
		if _, ok := p.holds(filepath.Join(fds, e.Name())); !ok {
			continue
		}
		fd, err := unix.Open(filepath.Join(fds, e.Name()), unix.O_PATH|unix.O_CLOEXEC, 0)
		if err != nil {
			return nil, fmt.Errorf("open writable layer: %w", err)
		}
		return os.NewFile(uintptr(fd), "writable layer"), nil
	}
	return nil, errors.New("find writable layer: the sentry has none open")
}

// place is a directory, as links in /proc/PID/fd lead to it.
type place struct {
	dir    string // without symbolic links
	device uint64
}

func findPlace(dir string) (place, error) {
	dir, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return place{}, err
	}
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return place{}, fmt.Errorf("stat %s: %w", dir, err)
	}
	return place{dir, st.Dev}, nil
}

// holds says whether the link of an open file leads below the directory, and where to. In a
// process that has left our mounts, as a sentry, the path begins at the root of the file
// system that the file is on, which need not be ours.
func (p place) holds(link string) (below string, ok bool) {
	target, err := os.Readlink(link)
	if err != nil {
		return "", false
	}
	if below, ok = strings.CutPrefix(target, p.dir+"/"); ok {
		return below, true
	}
	for dir := p.dir; ; {
		_, rest, more := strings.Cut(dir[1:], "/")
		if !more {
			return "", false
		}
		dir = "/" + rest
		if below, ok = strings.CutPrefix(target, dir+"/"); ok {
			var st unix.Stat_t
			return below, unix.Stat(link, &st) == nil && st.Dev == p.device
		}
	}
}

// diskBytes is how much of the disk a file takes, which for one with holes is less
// than its size.
func diskBytes(fi fs.FileInfo) int64 {
	if st, ok := fi.Sys().(*syscall.Stat_t); ok {
		return st.Blocks * 512
	}
	return fi.Size()
}

// reap takes the exit status of pid if it is our child, as it is when we are the
// host's first process. Anyone else's is left to its parent.
func reap(pid int) {
	var ws unix.WaitStatus
	_, _ = unix.Wait4(pid, &ws, unix.WNOHANG, nil)
}
