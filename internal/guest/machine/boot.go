package machine

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"
)

// mount is one file system the agent or every program needs.
type mount struct {
	path, kind, data string
	flags            uintptr
	probe            string // a file that is there if it is mounted
}

var mounts = []mount{
	{path: "/proc", kind: "proc", flags: unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC, probe: "/proc/self"},
	{path: "/sys", kind: "sysfs", flags: unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC, probe: "/sys/fs"},
	{path: "/dev", kind: "devtmpfs", flags: unix.MS_NOSUID, probe: "/dev/null"},
	{path: "/dev/pts", kind: "devpts", data: "newinstance,ptmxmode=0666,mode=620,gid=5", flags: unix.MS_NOSUID | unix.MS_NOEXEC, probe: "/dev/pts/ptmx"},
	{path: "/dev/shm", kind: "tmpfs", data: "mode=1777", flags: unix.MS_NOSUID | unix.MS_NODEV, probe: ""},
	{path: "/sys/fs/cgroup", kind: "cgroup2", flags: unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC, probe: "/sys/fs/cgroup/cgroup.procs"},
}

// Mount mounts what is not mounted yet. What cannot be is in the error, and the others
// are mounted all the same.
func Mount() error {
	var all error
	for _, m := range mounts {
		if m.mounted() {
			continue
		}
		if err := os.MkdirAll(m.path, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			all = errors.Join(all, fmt.Errorf("make %s: %w", m.path, err))
			continue
		}
		if err := unix.Mount(m.kind, m.path, m.kind, m.flags, m.data); err != nil && !errors.Is(err, unix.EBUSY) {
			all = errors.Join(all, fmt.Errorf("mount %s: %w", m.path, err))
		}
	}
	return all
}

func (m mount) mounted() bool {
	if m.probe != "" {
		_, err := os.Lstat(m.probe)
		return err == nil
	}
	// Nothing in it tells: it is mounted if it is another device than what it is in.
	var at, above unix.Stat_t
	return unix.Stat(m.path, &at) == nil && unix.Stat(m.path+"/..", &above) == nil && at.Dev != above.Dev
}

// Survive makes the agent outlive the signals that root inside can send it. The kernel
// spares a first process only those it has no handler for, and the Go runtime has one for
// each. They are not ignored, since children would inherit that; they are received and
// dropped. SIGCHLD stays for who wants it, and SIGURG and SIGPROF are the runtime's own.
func Survive() {
	dropped := make(chan os.Signal, 1) // full at the first one, and never read
	for sig := unix.Signal(1); sig <= maxSignal; sig++ {
		switch sig {
		case unix.SIGCHLD, unix.SIGURG, unix.SIGPROF, unix.SIGKILL, unix.SIGSTOP:
		default:
			signal.Notify(dropped, sig)
		}
	}
	// These two the runtime leaves to C libraries, without a handler. A kernel that does
	// not spare its first process would end it. Children inherit that they are ignored, which
	// they do not notice: a C library sets its own handlers before it uses them.
	for _, sig := range []uintptr{32, 34} {
		act := struct{ handler, flags, restorer, mask uintptr }{handler: 1} // SIG_IGN
		_, _, _ = unix.RawSyscall6(unix.SYS_RT_SIGACTION, sig, uintptr(unsafe.Pointer(&act)), 0, unsafe.Sizeof(act.mask), 0, 0)
	}
}

// maxSignal is the last real-time signal.
const maxSignal = 64

// Isolate takes from the agent what its children must not inherit: every descriptor but
// the first three closes at exec, its environment is empty, and files are made readable by all
// and writable by their owner only.
func Isolate() error {
	os.Clearenv()
	unix.Umask(0o022)
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return fmt.Errorf("list descriptors: %w", err)
	}
	for _, e := range entries {
		if fd, err := strconv.Atoi(e.Name()); err == nil && fd > 2 {
			unix.CloseOnExec(fd)
		}
	}
	return nil
}

// Protect asks the kernel to take any other process before the agent when memory runs
// out. It is false on a kernel that ends no process for memory, where the host does.
func Protect() (bool, error) {
	if _, err := os.Stat("/proc/gvisor"); err == nil {
		return false, nil
	}
	f, err := os.OpenFile("/proc/self/oom_score_adj", os.O_WRONLY, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("protect the agent: %w", err)
	}
	defer f.Close()
	if _, err := f.WriteString("-1000"); err != nil {
		return false, fmt.Errorf("protect the agent: %w", err)
	}
	return true, nil
}

// AwaitRestore blocks until the sandbox has been restored from a snapshot. An error means
// that this kernel does not tell of it.
func AwaitRestore() error {
	for {
		f, err := os.Open("/proc/gvisor/checkpoint")
		if err != nil {
			return fmt.Errorf("watch for restores: %w", err)
		}
		var b [64]byte
		n, err := f.Read(b[:])
		f.Close()
		if err != nil {
			return fmt.Errorf("watch for restores: %w", err)
		}
		if string(b[:min(n, 7)]) == "restore" {
			return nil
		}
	}
}
