package e2e

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"hutch.dev/hutch/api"
	"hutch.dev/hutch/internal/x/cgroup"
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

// What grows with each command would show after a thousand of them. HUTCH_SOAK=1 runs
// twenty thousand.
func TestCaseC03ManyCommandsLeaveNothing(t *testing.T) {
	runs := 1000
	if os.Getenv("HUTCH_SOAK") != "" {
		runs = 20_000
	}
	s := own(t)
	sb := s.create(t, api.CreateSandbox{})
	run := func(n int) { parallel(t, n, 4, func(int) { s.run(t, sb.ID, `true`) }) }
	run(50)
	guestFDs := func() int {
		n, err := strconv.Atoi(s.out(t, sb.ID, `ls /proc/1/fd | wc -l`))
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	guestBefore := guestFDs() // and what of the last commands is not closed yet
	before := s.openFiles(t)
	run(runs)
	var grown string
	defer func() {
		if grown != "" {
			t.Errorf("the server holds more than before %d commands: %s", runs, grown)
		}
	}()
	eventually(t, "the server's descriptors are as before", func() bool {
		grown = s.openFiles(t).beyond(before)
		return grown == ""
	})
	eventually(t, "the guest's descriptors are no more than before", func() bool { return guestFDs() <= guestBefore })
	eventually(t, "no zombie is left", func() bool { return s.out(t, sb.ID, countZombies) == "0" })
	eventually(t, "no command's group is left but the counting one's", func() bool {
		return s.out(t, sb.ID, `ls /sys/fs/cgroup/hutch | grep -c ^e`) == "1"
	})
}

// storeConnections bounds the store's pool, which fills as reads happen to coincide: one
// that writes, four that read, and one more while a spent one is replaced.
const storeConnections = 6

// descriptors counts open files by what they are.
type descriptors map[string]int

// beyond says which kinds there are more of than in before; nothing if none.
func (d descriptors) beyond(before descriptors) string {
	var more []string
	for kind, n := range d {
		bound := before[kind]
		if strings.HasPrefix(filepath.Base(kind), "hutch.db") {
			bound = max(bound, storeConnections)
		}
		if n > bound {
			more = append(more, fmt.Sprintf("%s %d -> %d", kind, before[kind], n))
		}
	}
	slices.Sort(more)
	return strings.Join(more, ", ")
}

// openFiles counts the server's descriptors but for its clients' connections, of which
// the client keeps as many as it likes.
func (s *server) openFiles(t *testing.T) descriptors {
	t.Helper()
	clients := s.clientConnections(t)
	dir := filepath.Join("/proc", itoa(s.cmd.Process.Pid), "fd")
	fds, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	d := descriptors{}
	for _, fd := range fds {
		kind, err := os.Readlink(filepath.Join(dir, fd.Name()))
		switch {
		case err != nil, clients[kind]: // closed meanwhile, or not of interest
		case strings.HasPrefix(kind, "socket:"), strings.HasPrefix(kind, "pipe:"):
			kind, _, _ = strings.Cut(kind, ":")
			d[kind]++
		default:
			d[kind]++
		}
	}
	return d
}

// clientConnections returns the links in /proc/PID/fd of the server's connections with
// its clients.
func (s *server) clientConnections(t *testing.T) map[string]bool {
	t.Helper()
	_, port, err := net.SplitHostPort(strings.TrimPrefix(s.base, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		t.Fatal(err)
	}
	table, err := os.ReadFile(filepath.Join("/proc", itoa(s.cmd.Process.Pid), "net/tcp"))
	if err != nil {
		t.Fatal(err)
	}
	links, local := map[string]bool{}, fmt.Sprintf("0100007F:%04X", n)
	for row := range strings.Lines(string(table)) {
		f := strings.Fields(row) // proc(5): slot, local, remote, state, ... inode is the tenth
		if len(f) > 9 && f[1] == local && f[3] != listening {
			links["socket:["+f[9]+"]"] = true
		}
	}
	return links
}

// listening is TCP_LISTEN in /proc/net/tcp.
const listening = "0A"

// What each create and end leaves would show; every other server's tearDown looks for it too.
func TestCaseC06NoDefunctProcessOnTheHost(t *testing.T) {
	const runs = 200
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
	eventually(t, "no process of the server is defunct", func() bool {
		n, err := defunct(s.cmd.Process.Pid)
		if err != nil {
			t.Fatal(err)
		}
		return n == 0
	})
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
	tree, err := cgroup.Detect(s.cgroup())
	if err != nil {
		t.Fatal(err)
	}
	if groups, err := tree.List(); err != nil || len(groups) > 0 {
		t.Errorf("cgroups of dead sandboxes are left: %v, %v", groups, err)
	}
}

// defunct counts processes of the host whose parent is pid and that it has not reaped.
func defunct(pid int) (n int, err error) {
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return 0, err
	}
	for _, path := range stats {
		b, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		_, rest, _ := strings.Cut(string(b), ") ")
		if f := strings.Fields(rest); len(f) > 1 && f[0] == "Z" && f[1] == itoa(pid) {
			n++
		}
	}
	return n, nil
}

// parallel calls f(0…n-1), width at a time.
func parallel(t *testing.T, n, width int, f func(int)) {
	t.Helper()
	work := make(chan int, n) // all of it at once: nobody waits for workers that t.Fatal has ended
	for i := range n {
		work <- i
	}
	close(work)
	var wg sync.WaitGroup
	for range width {
		wg.Go(func() {
			for i := range work {
				f(i)
			}
		})
	}
	wg.Wait()
}
