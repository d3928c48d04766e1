package bench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/x/cgroup"
)

// Host is what of a server on this machine can be looked at from outside of it.
type Host struct {
	Groups  *cgroup.Tree                                 // where its sandboxes' control groups are
	BoxDir  func(hutch.SandboxID) string                 // a sandbox's own files
	Records []string                                     // files of its records
	Image   func(digest string) (path string, err error) // root image
	PIDs    map[string]int                               // its processes, by what they are called in tables
	// Leaks says what is on the host that no record accounts for, a line each.
	Leaks func(context.Context) ([]string, error)
}

// clockTick is the unit of a process's CPU time in proc_pid_stat(5), which the kernel's
// interface fixes at a hundredth of a second.
const clockTick = 10 * time.Millisecond

// memory is what the kernel says of a process, or of several. Bytes.
type memory struct {
	RSS  int64 // mapped and present, shared pages counted in every process
	PSS  int64 // the same, each shared page divided by how many processes map it
	File int64 // the part of PSS that is pages of files: the binary and the images, which all sandboxes share
}

func (m *memory) plus(o memory) {
	m.RSS, m.PSS, m.File = m.RSS+o.RSS, m.PSS+o.PSS, m.File+o.File
}

// own is what only these processes have: it would be free without them.
func (m memory) own() int64 { return m.PSS - m.File }

// memoryOf reads a process's memory; that it has ended is fs.ErrNotExist.
func memoryOf(pid int) (memory, error) {
	f, err := os.Open(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		return memory{}, err
	}
	defer f.Close()
	m, err := parseRollup(f)
	if errors.Is(err, syscall.ESRCH) { // it ended meanwhile
		err = fs.ErrNotExist
	}
	return m, err
}

// parseRollup reads a file of the form of smaps_rollup.
func parseRollup(in io.Reader) (m memory, err error) {
	to := map[string]*int64{"Rss": &m.RSS, "Pss": &m.PSS, "Pss_File": &m.File}
	seen := 0
	s := bufio.NewScanner(in)
	for s.Scan() {
		name, value, _ := strings.Cut(s.Text(), ":")
		p := to[name]
		if p == nil {
			continue
		}
		kb, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
		if err != nil {
			return memory{}, fmt.Errorf("%s: %w", name, err)
		}
		*p += kb << 10
		seen++
	}
	if err := s.Err(); err != nil {
		return memory{}, err
	}
	if seen < len(to) {
		return memory{}, errors.New("the kernel does not say how memory is shared: it is older than 5.9, or we may not read it")
	}
	return m, nil
}

// cpuOf reads the CPU time that a process has taken, its threads' and not its children's.
func cpuOf(pid int) (time.Duration, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	return parseStat(string(b))
}

// parseStat reads user and system time from a line of the form of /proc/PID/stat. The
// name in it may contain anything, a closing bracket too.
func parseStat(line string) (time.Duration, error) {
	const user, system = 14 - 3, 15 - 3 // fields, of those behind the name
	f := strings.Fields(line[strings.LastIndexByte(line, ')')+1:])
	if len(f) <= system {
		return 0, errors.New("read CPU time: the line is too short")
	}
	u, err := strconv.ParseInt(f[user], 10, 64)
	s, err2 := strconv.ParseInt(f[system], 10, 64)
	if err := errors.Join(err, err2); err != nil {
		return 0, fmt.Errorf("read CPU time: %w", err)
	}
	return time.Duration(u+s) * clockTick, nil
}

// boxUse is what one sandbox has of the host.
type boxUse struct {
	memory
	Charge    int64 // bytes that its control group is charged with
	Processes int
}

// boxMemory adds up the memory of all processes of a sandbox.
func (h *Host) boxMemory(id hutch.SandboxID) (boxUse, error) {
	g, err := h.Groups.Open(string(id))
	if err != nil {
		return boxUse{}, fmt.Errorf("find the control group: %w", err)
	}
	pids, err := g.Procs()
	if err != nil {
		return boxUse{}, fmt.Errorf("list the processes: %w", err)
	}
	var use boxUse
	for _, pid := range pids {
		m, err := memoryOf(pid)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		} else if err != nil {
			return boxUse{}, fmt.Errorf("read the memory of a process: %w", err)
		}
		use.plus(m)
		use.Processes++
	}
	u, err := g.Usage()
	if err != nil {
		return boxUse{}, fmt.Errorf("read the control group: %w", err)
	}
	use.Charge = u.Memory
	if use.Processes == 0 {
		return boxUse{}, errors.New("it has no process")
	}
	return use, nil
}

// boxCPU is the CPU time that a sandbox has taken.
func (h *Host) boxCPU(id hutch.SandboxID) (time.Duration, error) {
	g, err := h.Groups.Open(string(id))
	if err != nil {
		return 0, fmt.Errorf("find the control group: %w", err)
	}
	u, err := g.Usage()
	return u.CPU, err
}

// fileKey tells files of this host apart.
type fileKey struct{ dev, ino uint64 }

// boxDisk is how many bytes of the disk a sandbox has taken: the files in its directory,
// and those its processes have open that have no name any more, which is where its
// writable layer is. What is shared by all is not in it.
func (h *Host) boxDisk(id hutch.SandboxID) (int64, error) {
	dir := h.BoxDir(id)
	var at unix.Stat_t
	if err := unix.Stat(dir, &at); err != nil {
		return 0, fmt.Errorf("find the sandbox's directory: %w", err)
	}
	files := map[fileKey]int64{}
	note := func(st *unix.Stat_t) { files[fileKey{st.Dev, st.Ino}] = st.Blocks * 512 }
	err := filepath.WalkDir(dir, func(p string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(p, &st); err != nil {
			return err
		}
		note(&st)
		return nil
	})
	if err != nil {
		return 0, fmt.Errorf("add up the sandbox's directory: %w", err)
	}
	g, err := h.Groups.Open(string(id))
	if err != nil {
		return 0, fmt.Errorf("find the control group: %w", err)
	}
	pids, err := g.Procs()
	if err != nil {
		return 0, fmt.Errorf("list the processes: %w", err)
	}
	for _, pid := range pids {
		open, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid)) // the pattern is well-formed
		for _, fd := range open {
			var st unix.Stat_t
			if unix.Stat(fd, &st) == nil && st.Nlink == 0 && st.Dev == at.Dev && st.Mode&unix.S_IFMT == unix.S_IFREG {
				note(&st)
			}
		}
	}
	var sum int64
	for n := range maps.Values(files) {
		sum += n
	}
	return sum, nil
}

// recordBytes is how much of the disk the records have.
func (h *Host) recordBytes() (int64, error) {
	var sum int64
	for _, name := range h.Records {
		var st unix.Stat_t
		switch err := unix.Stat(name, &st); {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return 0, fmt.Errorf("find the records: %w", err)
		default:
			sum += st.Blocks * 512
		}
	}
	return sum, nil
}

// freeBytes is what is free on the file system that path is on.
func freeBytes(path string) (int64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return 0, fmt.Errorf("read the free space: %w", err)
	}
	return int64(st.Bfree) * st.Bsize, nil
}

// available is how much memory the machine has left, as the kernel estimates it.
func available() (int64, error) {
	kb, err := strconv.ParseInt(strings.TrimSuffix(field("/proc/meminfo", "MemAvailable"), " kB"), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("read the machine's free memory: %w", err)
	}
	return kb << 10, nil
}

// processes names the server's processes, in the order of their names.
func (h *Host) processes() []string { return slices.Sorted(maps.Keys(h.PIDs)) }
