// Package procfs reads what /proc says of processes.
//
// Processes come and go while they are read, and name themselves as they like: what is
// gone is skipped, and what a process says of itself is cut and cleaned.
//
// Start with [FS.List].
package procfs

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// maxComm is the longest name of a process that is passed on, in bytes.
const maxComm = 64

// maxEnviron is how much of a process's environment is searched: the kernel's own bound on
// arguments and environment together is 2 MiB by default.
const maxEnviron = 2 << 20

// FS is a mounted proc file system.
type FS struct {
	Root string // "/proc"
}

// Process is one process. PID and Start together name it for good.
type Process struct {
	PID     int
	PPID    int
	Session int
	State   byte   // as in ps: R, S, D, T, Z, …
	Start   uint64 // clock ticks since boot
	RSS     int64  // bytes
	Comm    string // at most 64 bytes, valid UTF-8
}

// Alive reports whether it still can do anything: a zombie cannot.
func (p Process) Alive() bool { return p.State != 'Z' && p.State != 'X' && p.State != 'x' }

// List reads every process there is.
func (f FS) List() ([]Process, error) {
	pids, err := f.PIDs()
	if err != nil {
		return nil, err
	}
	ps := make([]Process, 0, len(pids))
	for _, pid := range pids {
		p, err := f.Read(pid)
		if err != nil {
			continue // gone meanwhile
		}
		ps = append(ps, p)
	}
	return ps, nil
}

// PIDs lists the ids of the processes there are.
func (f FS) PIDs() ([]int, error) {
	d, err := os.Open(f.Root)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	var pids []int
	for {
		names, err := d.Readdirnames(256)
		for _, name := range names {
			if pid, err := strconv.Atoi(name); err == nil && pid > 0 {
				pids = append(pids, pid)
			}
		}
		if errors.Is(err, io.EOF) {
			return pids, nil
		}
		if err != nil {
			return nil, fmt.Errorf("list processes: %w", err)
		}
	}
}

// Read reads one process. One that is gone is fs.ErrNotExist.
func (f FS) Read(pid int) (Process, error) {
	var buf [1024]byte
	b, err := f.read(pid, "stat", buf[:])
	if err != nil {
		return Process{}, err
	}
	return parseStat(b)
}

// Env is the value a variable had in the environment the process was started with, empty
// if it had none. The process may have changed it since without this seeing it.
func (f FS) Env(pid int, name string) string {
	var small [4096]byte // most environments fit
	b, err := f.read(pid, "environ", small[:])
	if err == nil && len(b) == len(small) {
		b, err = f.read(pid, "environ", make([]byte, maxEnviron))
	}
	if err != nil {
		return ""
	}
	return lookup(b, name)
}

func lookup(environ []byte, name string) string {
	for e := range bytes.SplitSeq(environ, []byte{0}) {
		if k, v, ok := bytes.Cut(e, []byte{'='}); ok && string(k) == name {
			return string(v)
		}
	}
	return ""
}

func (f FS) path(pid int, name string) string {
	return f.Root + "/" + strconv.Itoa(pid) + "/" + name
}

// read reads a file into buf by system calls of its own: the poller of os.File doubles
// what a scan of many processes costs.
func (f FS) read(pid int, name string, buf []byte) ([]byte, error) {
	fd, err := unix.Open(f.path(pid, name), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	n := 0
	for n < len(buf) { // a long file comes a page at a time
		k, err := unix.Read(fd, buf[n:])
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if errors.Is(err, unix.ESRCH) {
			return nil, fs.ErrNotExist
		}
		if err != nil {
			return nil, err
		}
		if k == 0 {
			break
		}
		n += k
	}
	if n == 0 {
		return nil, fs.ErrNotExist
	}
	return buf[:n], nil
}

var errStat = errors.New("malformed stat line")

// parseStat reads a line of /proc/<pid>/stat. The name is in parentheses and may hold
// any bytes, parentheses and newlines too, so the fields after it are found from the
// last one.
func parseStat(b []byte) (Process, error) {
	open, end := bytes.IndexByte(b, '('), bytes.LastIndexByte(b, ')')
	if open < 1 || end < open {
		return Process{}, errStat
	}
	pid, err := strconv.Atoi(string(bytes.TrimSpace(b[:open])))
	if err != nil || pid < 1 {
		return Process{}, errStat
	}
	// Fields 3 (state), 4 (ppid), 6 (session), 22 (start) and 24 (rss in pages).
	f := bytes.Fields(b[end+1:])
	if len(f) < 22 || len(f[0]) != 1 {
		return Process{}, errStat
	}
	p := Process{PID: pid, State: f[0][0], Comm: CleanComm(b[open+1 : end])}
	ppid, err1 := strconv.Atoi(string(f[1]))
	session, err2 := strconv.Atoi(string(f[3]))
	start, err3 := strconv.ParseUint(string(f[19]), 10, 64)
	rss, err4 := strconv.ParseInt(string(f[21]), 10, 64)
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		return Process{}, errStat
	}
	p.PPID, p.Session, p.Start = ppid, session, start
	p.RSS = max(0, min(rss, 1<<40)) * int64(os.Getpagesize())
	return p, nil
}

// CleanComm makes the name of a process fit to be shown: printable UTF-8, 64 bytes.
func CleanComm(b []byte) string {
	s := strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return '?'
		}
		return r
	}, strings.ToValidUTF8(string(b), "?"))
	for len(s) > maxComm {
		cut := maxComm
		for cut > 0 && s[cut]&0xc0 == 0x80 {
			cut--
		}
		s = s[:cut]
	}
	return s
}

// Memory is the memory the machine has, in bytes; 0 if that cannot be told.
func (f FS) Memory() int64 {
	b, err := os.ReadFile(f.Root + "/meminfo")
	if err != nil {
		return 0
	}
	return memTotal(b)
}

func memTotal(meminfo []byte) int64 {
	for line := range bytes.Lines(meminfo) {
		if f := bytes.Fields(line); len(f) >= 2 && string(f[0]) == "MemTotal:" {
			kib, err := strconv.ParseInt(string(f[1]), 10, 64)
			if err == nil && kib > 0 {
				return min(kib, 1<<50) << 10
			}
		}
	}
	return 0
}
