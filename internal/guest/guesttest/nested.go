package guesttest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// nestedEnv tells a test program that it is to be the agent of a nested sandbox.
const nestedEnv = "HUTCH_GUESTTEST_NESTED"

// Nesting says what a nested sandbox has.
type Nesting struct {
	Cgroup bool   // a cgroup2 file system at /sys/fs/cgroup
	Disk   string // size of its writable layer, "64m"
}

// Nested starts the test program again as the first process of new namespaces, in which
// its TestMain must call [Enter]. File descriptor 0 of that process is stdin. It has a root
// of its own: this machine's, with a layer in memory above it, and a network of its own
// that leads nowhere. It ends with the test.
func Nested(t *testing.T, n Nesting, stdin *os.File) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("namespaces need root")
	}
	dir := t.TempDir()
	cmd := exec.Command("/proc/self/exe", "-test.run=^$")
	cmd.Env = []string{nestedEnv + "=" + dir + ":" + n.Disk}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, os.Stderr, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC | unix.CLONE_NEWNET,
		Pdeathsig:  unix.SIGKILL,
	}
	if n.Cgroup {
		group := makeGroup(t)
		cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, int(group.Fd())
		cmd.SysProcAttr.Unshareflags = unix.CLONE_NEWCGROUP
		cmd.Env[0] += ":cgroup"
	}
	if err := cmd.Start(); err != nil {
		t.Fatalf("start nested agent: %v", err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
}

// makeGroup makes a control group for a nested sandbox.
func makeGroup(t *testing.T) *os.File {
	t.Helper()
	for _, root := range []string{"/sys/fs/cgroup/unified", "/sys/fs/cgroup"} {
		var st unix.Statfs_t
		if unix.Statfs(root, &st) != nil || st.Type != unix.CGROUP2_SUPER_MAGIC {
			continue
		}
		dir, err := os.MkdirTemp(root, "hutch-guesttest-") //nolint:usetesting // a control group is no place for t.TempDir
		if err != nil {
			t.Skip("no right to make control groups:", err)
		}
		t.Cleanup(func() { removeGroups(t, dir) })
		f, err := os.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return f
	}
	t.Skip("no cgroup2 file system here")
	return nil
}

func removeGroups(t *testing.T, dir string) {
	Eventually(t, 10e9, "the control groups are empty and removed", func() bool {
		_ = filepath.WalkDir(dir, func(p string, d os.DirEntry, err error) error {
			if err == nil && d.IsDir() && p != dir {
				removeDeep(p)
			}
			return nil
		})
		return errors.Join(os.Remove(dir)) == nil
	})
}

func removeDeep(dir string) {
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		if e.IsDir() {
			removeDeep(filepath.Join(dir, e.Name()))
		}
	}
	_ = os.Remove(dir)
}

// Enter makes the calling process, if [Nested] started it, the first one of its sandbox:
// with its own root, and nothing mounted there but what a kernel mounts. The agent may
// run then. In any other process it returns false.
func Enter() (*Nesting, error) {
	arg, ok := os.LookupEnv(nestedEnv)
	if !ok {
		return nil, nil
	}
	f := strings.Split(arg, ":")
	n := &Nesting{Disk: f[1], Cgroup: len(f) > 2}
	return n, n.enter(f[0])
}

func (n *Nesting) enter(dir string) error {
	size := n.Disk
	if size == "" {
		size = "600m"
	}
	root := dir + "/root"
	// Not as flags of one call each: the first must hold for the ones after it.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size="+size); err != nil {
		return fmt.Errorf("mount layer: %w", err)
	}
	for _, d := range []string{"up", "work", "root"} {
		if err := os.Mkdir(dir+"/"+d, 0o755); err != nil {
			return err
		}
	}
	layers := "lowerdir=/,upperdir=" + dir + "/up,workdir=" + dir + "/work"
	if err := unix.Mount("overlay", root, "overlay", 0, layers); err != nil {
		return fmt.Errorf("mount root: %w", err)
	}
	if err := unix.Mount("/dev", root+"/dev", "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mount devices: %w", err)
	}
	if err := unix.Mount("sysfs", root+"/sys", "sysfs", 0, ""); err != nil {
		return fmt.Errorf("mount sysfs: %w", err)
	}
	kind, data := "tmpfs", "mode=755"
	if n.Cgroup {
		kind, data = "cgroup2", ""
	}
	if err := unix.Mount(kind, root+"/sys/fs/cgroup", kind, 0, data); err != nil {
		return fmt.Errorf("mount control groups: %w", err)
	}
	if !n.Cgroup { // something is there, so that nothing else is mounted, and it is of no use
		if err := os.WriteFile(root+"/sys/fs/cgroup/cgroup.procs", nil, 0o444); err != nil {
			return err
		}
	}
	if err := loopback(); err != nil {
		return fmt.Errorf("bring up loopback: %w", err)
	}
	if err := unix.Chroot(root); err != nil {
		return fmt.Errorf("change root: %w", err)
	}
	if err := os.Chdir("/"); err != nil {
		return err
	}
	return os.WriteFile("/etc/machine-id", nil, 0o644)
}

// loopback brings up the one interface of a new network namespace.
func loopback() error {
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(s)
	lo, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	lo.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	return unix.IoctlIfreq(s, unix.SIOCSIFFLAGS, lo)
}

// Listen makes a listener for a nested agent, as the file it gets for its standard input,
// and a function that makes clients of it, each with a session of its own.
func Listen(t *testing.T) (stdin *os.File, dial func(t *testing.T) *Client) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "agent")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	stdin, err = l.File()
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	t.Cleanup(func() { stdin.Close() })
	return stdin, func(t *testing.T) *Client {
		var p http.Protocols
		p.SetUnencryptedHTTP2(true)
		tr := &http.Transport{
			Protocols: &p,
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				var d net.Dialer
				return d.DialContext(ctx, "unix", path)
			},
		}
		t.Cleanup(tr.CloseIdleConnections)
		return &Client{HTTP: &http.Client{Transport: tr}}
	}
}
