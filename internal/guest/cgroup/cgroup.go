// Package cgroup holds one control group (version 2) per command, inside the sandbox.
//
// It owns two directories in the cgroup file system: "agent", where the agent itself is,
// outside of every cap, and "hutch": a cap on the processes of all commands together, and
// below it one group for each command, so that all of a command's processes can be found
// and killed, however they forked. It does not limit memory or
// CPU: the host does that.
//
// Whoever is root in the sandbox can move processes and remove groups. So nothing here
// is relied on to be as it was left: [Tree.New] makes again what is missing, and whoever
// kills by a group looks elsewhere too.
//
// Which files there are depends on the kernel; one that is missing reads as zero. Start with
// [Open].
package cgroup

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// cpuPeriod is the period of cpu.max, in microseconds: the kernel's default.
const cpuPeriod = 100_000

// Tree is the directory of all commands' groups.
type Tree struct {
	root string // where cgroup2 is mounted
	dir  string

	mu   sync.Mutex
	past time.Duration // CPU time of groups that have been removed: gVisor's kernel forgets it with them
}

// Open finds the cgroup file system mounted at root and makes the tree in it. Without
// one, or without the right to write, it is an error: commands then have no groups.
func Open(root string) (*Tree, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(root, &st); err != nil {
		return nil, fmt.Errorf("stat cgroup file system: %w", err)
	}
	if st.Type != unix.CGROUP2_SUPER_MAGIC {
		return nil, fmt.Errorf("no cgroup2 file system at %s", root)
	}
	t := &Tree{root: root, dir: filepath.Join(root, "hutch")}
	return t, t.make()
}

func (t *Tree) make() error {
	// A group that is not the kernel's own root gives its children controllers only while
	// it has no processes itself: so the agent, which is in it, goes to a child first.
	agent := t.root + "/agent"
	if err := unix.Mkdir(agent, 0o755); err == nil || errors.Is(err, unix.EEXIST) {
		_ = write(agent+"/cgroup.procs", "0") // where it fails it is not needed
	}
	if err := unix.Mkdir(t.dir, 0o755); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("make cgroup: %w", err)
	}
	for _, dir := range []string{t.root, t.dir} {
		// Each controller by itself: one that is missing must not cost the others.
		for _, c := range []string{"+pids", "+cpu", "+memory"} {
			_ = write(dir+"/cgroup.subtree_control", c)
		}
	}
	return nil
}

// Limits of all commands together.
type Limits struct {
	Pids int // processes and threads; 0 = no cap
	CPUs int // shown in cpu.max for programs that ask there; 0 = not shown
}

// SetLimits applies l. A controller that is missing is an error that names it.
func (t *Tree) SetLimits(l Limits) error {
	pids := "max"
	if l.Pids > 0 {
		pids = strconv.Itoa(l.Pids)
	}
	err := write(filepath.Join(t.dir, "pids.max"), pids)
	if l.CPUs > 0 {
		// For show: the host's quota is what limits.
		_ = write(filepath.Join(t.dir, "cpu.max"), fmt.Sprintf("%d %d", l.CPUs*cpuPeriod, cpuPeriod))
	}
	if err != nil {
		return fmt.Errorf("cap processes: %w", err)
	}
	return nil
}

// Refused is how many forks the cap has refused to all commands so far.
func (t *Tree) Refused() int64 { return readEvents(t.dir) }

// CPU is what all commands together have used so far, those that have ended included.
func (t *Tree) CPU() time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.past + readCPU(t.dir)
}

// Group is the group of one command.
type Group struct {
	tree *Tree
	dir  string
	fd   int // open directory, for starting processes in it; -1 once closed
}

// New makes the group of the command id, with the same cap l.Pids of its own, so that it
// can be told which command met it.
func (t *Tree) New(id string, l Limits) (*Group, error) {
	g := &Group{tree: t, dir: filepath.Join(t.dir, id), fd: -1}
	err := unix.Mkdir(g.dir, 0o755)
	if errors.Is(err, unix.ENOENT) { // somebody inside removed the tree
		if err = t.make(); err == nil {
			_ = t.SetLimits(l)
			err = unix.Mkdir(g.dir, 0o755)
		}
	}
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return nil, fmt.Errorf("make cgroup: %w", err)
	}
	fd, err := unix.Open(g.dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open cgroup: %w", err)
	}
	if l.Pids > 0 {
		_ = write(filepath.Join(g.dir, "pids.max"), strconv.Itoa(l.Pids)) // the tree's cap holds anyway
	}
	g.fd = fd
	return g, nil
}

// FD is the open directory, for CLONE_INTO_CGROUP; valid until CloseFD.
func (g *Group) FD() int { return g.fd }

// CloseFD closes the directory once the first process is in.
func (g *Group) CloseFD() {
	if g.fd >= 0 {
		unix.Close(g.fd)
	}
	g.fd = -1
}

// PIDs lists the processes in the group and in every group below it, which root inside
// may have made.
func (g *Group) PIDs() []int {
	var pids []int
	g.walk(func(dir string) {
		for line := range bytes.Lines(read(dir + "/cgroup.procs")) {
			if pid, err := strconv.Atoi(string(bytes.TrimSpace(line))); err == nil && pid > 0 {
				pids = append(pids, pid)
			}
		}
	})
	return pids
}

// maxDepth bounds how deep groups below a command's are looked into.
const maxDepth = 32

// walk calls f for the group and those below, the deepest first.
func (g *Group) walk(f func(dir string)) { walk(g.dir, maxDepth, f) }

func walk(dir string, depth int, f func(string)) {
	// Most groups have none below: looking through the directory costs more than asking.
	if depth > 0 && readField(dir+"/cgroup.stat", "nr_descendants") > 0 {
		entries, _ := os.ReadDir(dir) // gone meanwhile: nothing below
		for _, e := range entries {
			if e.IsDir() {
				walk(filepath.Join(dir, e.Name()), depth-1, f)
			}
		}
	}
	f(dir)
}

// Kill kills every process in the group and below at once, also ones just being forked,
// and forbids it new ones.
func (g *Group) Kill() error {
	_ = write(filepath.Join(g.dir, "pids.max"), "0") // not on every kernel; the loop of the caller holds anyway
	return write(filepath.Join(g.dir, "cgroup.kill"), "1")
}

// Usage is what a group has used so far.
type Usage struct {
	CPU     time.Duration
	Memory  int64 // most bytes at once; 0 where the kernel keeps no peak
	Refused int64 // forks refused by the group's own cap
}

// Usage reads what the group has used; what the kernel does not count is zero.
func (g *Group) Usage() Usage {
	return Usage{
		CPU:     readCPU(g.dir),
		Memory:  readNumber(g.dir + "/memory.peak"),
		Refused: readEvents(g.dir),
	}
}

// Memory is how many bytes the group uses now; 0 where the kernel does not count. Reading
// it can be as much work as there is memory: not for loops.
func (g *Group) Memory() int64 { return readNumber(g.dir + "/memory.current") }

// Remove removes the group and those below it. While a process is in it that is an
// error, and nothing is lost by trying again later.
func (g *Group) Remove() error {
	g.tree.mu.Lock()
	defer g.tree.mu.Unlock()
	used := readCPU(g.dir)
	err := unix.Rmdir(g.dir)
	if errors.Is(err, unix.EBUSY) || errors.Is(err, unix.ENOTEMPTY) {
		g.walk(func(dir string) { err = unix.Rmdir(dir) })
	}
	if err == nil {
		g.tree.past += used
	}
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("remove cgroup: %w", err)
	}
	return nil
}

func readCPU(dir string) time.Duration {
	return time.Duration(readField(dir+"/cpu.stat", "usage_usec")) * time.Microsecond
}

func readEvents(dir string) int64 { return readField(dir+"/pids.events", "max") }

// readField reads "name value" from a file of such lines; 0 when it is not there.
func readField(path, name string) int64 { return field(read(path), name) }

// read reads a control file; one that is not there is empty. It uses system calls
// directly, since what os.File does around them costs more than these files' bytes.
func read(path string) []byte {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	defer unix.Close(fd)
	b := make([]byte, 0, 512)
	for {
		n, err := unix.Read(fd, b[len(b):cap(b)])
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || n <= 0 {
			return b
		}
		if b = b[:len(b)+n]; len(b) == cap(b) {
			b = append(b, make([]byte, len(b))...)[:len(b)]
		}
	}
}

func field(b []byte, name string) int64 {
	for line := range bytes.Lines(b) {
		f := bytes.Fields(line)
		if len(f) == 2 && string(f[0]) == name {
			n, err := strconv.ParseInt(string(f[1]), 10, 64)
			if err == nil && n > 0 {
				return n
			}
		}
	}
	return 0
}

func readNumber(path string) int64 {
	n, err := strconv.ParseInt(string(bytes.TrimSpace(read(path))), 10, 64)
	if err != nil || n < 0 {
		return 0
	}
	return n
}

// write writes to a control file. They take one write and are never made by it.
func write(path, text string) error {
	fd, err := unix.Open(path, unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return &fs.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	if _, err := unix.Write(fd, []byte(text)); err != nil {
		return &fs.PathError{Op: "write", Path: path, Err: err}
	}
	return nil
}
