package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"hutch.dev/hutch/api"
)

const stopSignal = syscall.SIGTERM

// countZombies counts processes inside that nobody has reaped.
const countZombies = `n=0; for s in /proc/[0-9]*/stat; do if sed 's/.*) //' $s 2>/dev/null | grep -q ^Z; then n=$((n+1)); fi; done; echo $n`

func TestCaseC01OrphansAreReaped(t *testing.T) {
	s := common(t)
	sb := s.create(t, api.CreateSandbox{})
	parallel(t, 500, 4, func(int) {
		if res := s.run(t, sb.ID, `bash -c '(sleep 0.1 &) ; exit 0'`); res.ExitCode != 0 {
			t.Errorf("exit code %d", res.ExitCode)
		}
	})
	eventually(t, "no zombie is left", func() bool { return s.out(t, sb.ID, countZombies) == "0" })
}

// The short form of a soak: what grows with each command would show after a thousand.
func TestCaseC03ManyCommandsLeaveNothing(t *testing.T) {
	s := own(t)
	sb := s.create(t, api.CreateSandbox{})
	warm := func(n int) { parallel(t, n, 4, func(int) { s.run(t, sb.ID, `true`) }) }
	warm(50)
	guestFDs := `ls /proc/1/fd | wc -l`
	hostBefore, guestBefore := s.openFiles(t), s.out(t, sb.ID, guestFDs)
	warm(1000)
	eventually(t, "the server's descriptors are as before", func() bool { return s.openFiles(t) <= hostBefore })
	eventually(t, "the guest's descriptors are as before", func() bool { return s.out(t, sb.ID, guestFDs) == guestBefore })
	if z := s.out(t, sb.ID, countZombies); z != "0" {
		t.Errorf("%s zombies", z)
	}
	if n := s.out(t, sb.ID, `ls /sys/fs/cgroup/hutch | grep -c ^e`); n != "1" { // the counting command's own
		t.Errorf("%s groups of commands are left", n)
	}
}

// openFiles counts the server's descriptors but for its clients' connections.
func (s *server) openFiles(t *testing.T) int {
	t.Helper()
	fds, err := filepath.Glob(filepath.Join("/proc", itoa(s.cmd.Process.Pid), "fd", "*"))
	if err != nil {
		t.Fatal(err)
	}
	return len(fds)
}

func TestCaseC06NoDefunctProcessOnTheHost(t *testing.T) {
	runs := 200
	if testing.Short() {
		runs = 20
	}
	s := own(t)
	parallel(t, runs, 4, func(i int) {
		sb, err := s.client.CreateSandbox(t.Context(), api.CreateSandbox{Template: "base", MemoryMB: ptr(128)})
		if err != nil {
			t.Errorf("create %d: %v", i, err)
			return
		}
		if err := s.client.Kill(t.Context(), sb.ID); err != nil {
			t.Errorf("kill %d: %v", i, err)
		}
	})
	if n := s.sandboxProcesses(); n != 0 {
		t.Errorf("%d sandbox processes are left", n)
	}
	for _, p := range children(t, s.cmd.Process.Pid) {
		if p.state == "Z" {
			t.Errorf("process %s of the server is defunct", p.pid)
		}
	}
	for _, dir := range []string{"run/sandboxes", "run/runsc"} {
		left, err := filepath.Glob(filepath.Join(s.dir, dir, "*i*"))
		if err != nil {
			t.Fatal(err)
		}
		if len(left) > 0 {
			t.Errorf("files of dead sandboxes are left: %v", left)
		}
	}
	// Before the server is torn down there is nothing in its group but the group.
	for _, pattern := range []string{"/sys/fs/cgroup/*/" + s.cgroup() + "/i*", "/sys/fs/cgroup/" + s.cgroup() + "/i*"} {
		groups, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		if len(groups) > 0 {
			t.Errorf("cgroups of dead sandboxes are left: %v", groups)
		}
	}
}

type hostProcess struct{ pid, state string }

// children lists the processes of the host whose parent is pid.
func children(t *testing.T, pid int) []hostProcess {
	t.Helper()
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		t.Fatal(err)
	}
	var found []hostProcess
	for _, path := range stats {
		b, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		_, rest, ok := strings.Cut(string(b), ") ")
		f := strings.Fields(rest)
		if ok && len(f) > 1 && f[1] == itoa(pid) {
			found = append(found, hostProcess{filepath.Base(filepath.Dir(path)), f[0]})
		}
	}
	return found
}

// parallel calls f(0…n-1), width at a time.
func parallel(t *testing.T, n, width int, f func(int)) {
	t.Helper()
	work := make(chan int)
	var wg sync.WaitGroup
	for range width {
		wg.Go(func() {
			for i := range work {
				f(i)
			}
		})
	}
	for i := range n {
		work <- i
	}
	close(work)
	wg.Wait()
}
