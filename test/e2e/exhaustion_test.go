package e2e

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/api"
	"hutch.dev/hutch/client"
)

// Cases of a sandbox that takes all of something: what ends, what says so, and what goes on.

// hog takes a gigabyte at once.
const hog = `python3 -c 'b = bytearray(10**9)'`

// wantOOM fails the test unless a command was ended for memory, and its end says how much.
func wantOOM(t *testing.T, r api.ExecResult, limit int64) {
	t.Helper()
	if r.EndReason != hutch.ExecOOM || r.Signal != "KILL" || r.ExitCode != 128+9 {
		t.Errorf("got %s, signal %s, exit code %d, %q; want oom by KILL", r.EndReason, r.Signal, r.ExitCode, r.Stderr)
	}
	// The guest says it in MiB, the host in bytes.
	if !strings.Contains(r.Detail, fmt.Sprint(limit>>20)+" MiB") && !strings.Contains(r.Detail, fmt.Sprint(limit)) {
		t.Errorf("its end does not say what the limit of %d bytes is: %q", limit, r.Detail)
	}
	if len(numbers(r.Detail)) < 2 {
		t.Errorf("its end does not say what was used: %q", r.Detail)
	}
}

// numbers are those in a text.
func numbers(s string) (all []int64) {
	for _, f := range strings.FieldsFunc(s, func(r rune) bool { return r < '0' || r > '9' }) {
		if n, err := strconv.ParseInt(f, 10, 64); err == nil {
			all = append(all, n)
		}
	}
	return all
}

func TestCaseO01OutOfMemoryIsSaid(t *testing.T) {
	s := common(t)
	for _, tier := range []hutch.DiskTier{hutch.TierDisk, hutch.TierMemory} {
		sb := s.create(t, api.CreateSandbox{MemoryMB: ptr(256), DiskTier: tier})
		for range 2 {
			r := s.run(t, sb.ID, hog)
			if r.EndReason == hutch.ExecSandboxGone {
				t.Fatalf("%s tier: the sandbox is gone: %s", tier, s.ask(t, "GET", "/v1/sandboxes/"+string(sb.ID), "").body)
			}
			wantOOM(t, r, 256<<20)
			if r.PeakMemoryBytes == 0 {
				t.Error("no peak is on record")
			}
			s.inside(t, sb.ID, `echo alive`, "alive")
		}
		// What makes nothing of the end of what it started is told on, too.
		wantShort(t, "a script that goes on", s.run(t, sb.ID, hog+`; echo on`))
	}
}

// wantShort fails the test unless a command was ended for memory, or, where the kernel has ended
// something that it had started and it went on, says that that was so.
func wantShort(t *testing.T, what string, r api.ExecResult) {
	t.Helper()
	if r.EndReason != hutch.ExecOOM && !slices.Contains(r.LimitsHit, "memory") || len(numbers(r.Detail)) < 2 {
		t.Errorf("%s: %s, exit code %d, %v, %q", what, r.EndReason, r.ExitCode, r.LimitsHit, r.Detail)
	}
}

// What no command owns can only be taken back with the whole sandbox. Its record then says
// why, how much it was and how much it may be; and so does what runs into the cap of processes
// on the host, which is there for root who lifts the one inside.
func TestASandboxThatIsEndedOverALimitSaysWhichAndHowMuch(t *testing.T) {
	s := common(t)
	for name, c := range map[string]struct {
		create api.CreateSandbox
		cmd    string
		end    hutch.SandboxEnd
		limit  string // as a command that it took along says it
		least  int64  // of the limit that is named
	}{
		"memory": {
			api.CreateSandbox{MemoryMB: ptr(256)},
			`mkdir /mnt/$$ && mount -t tmpfs -o size=4g none /mnt/$$ && dd if=/dev/zero of=/mnt/$$/x bs=1M`, hutch.EndOOM, "memory", 256 << 20,
		},
		"processes": {
			api.CreateSandbox{MemoryMB: ptr(2048), Pids: ptr(16)},
			`for f in /sys/fs/cgroup/hutch/pids.max /sys/fs/cgroup/hutch/*/pids.max; do echo max >$f; done; while sleep 1000 & do :; done`, hutch.EndPidsLimit, "pids", 16,
		},
	} {
		t.Run(name, func(t *testing.T) {
			sb := s.create(t, c.create)
			waits := s.background(t, sb.ID, `sleep 100000`)
			var e api.Error
			eventually(t, "it has ended", func() bool {
				// The guest agent ends one that takes too much, if it is in time; what it has
				// taken and belongs to nobody stays for the next.
				_, _ = s.client.Exec(t.Context(), sb.ID, api.ExecRequest{Cmd: c.cmd, TimeoutSeconds: ptr(20.0)})
				a := s.ask(t, "GET", "/v1/sandboxes/"+string(sb.ID), "")
				if a.status == http.StatusNotFound {
					e = answered[api.Error](a)
				}
				return a.status == http.StatusNotFound
			})
			if e.EndReason != c.end {
				t.Errorf("it ended by %s: %s; want %s", e.EndReason, e.Error, c.end)
			}
			n := numbers(e.Error[strings.LastIndex(e.Error, "limit:")+1:])
			if len(n) < 2 || slices.Max(n) < c.least {
				t.Errorf("its end does not name limit and peak: %s", e.Error)
			}
			// One that has done nothing goes with it, or before it, in vain, to free memory.
			r := s.ended(t, waits).Result
			gone := r.EndReason == hutch.ExecSandboxGone && slices.Contains(r.LimitsHit, c.limit) && strings.Contains(r.Detail, "("+string(c.end)+")")
			if !gone && (c.end != hutch.EndOOM || r.EndReason != hutch.ExecOOM) || len(numbers(r.Detail)) < 2 {
				t.Errorf("its command ended by %s, %v, %q", r.EndReason, r.LimitsHit, r.Detail)
			}
			events := answered[api.Events](s.ask(t, "GET", "/v1/sandboxes/"+string(sb.ID)+"/events?tail=1", "").want(200)).Events
			if len(events) != 1 || events[0].Data["reason"] != string(c.end) || len(numbers(events[0].Data["detail"])) < 2 {
				t.Errorf("its last event: %+v", events)
			}
		})
	}
}

func TestCaseO03EveryKillHasItsReason(t *testing.T) {
	t.Parallel()
	s := common(t)
	sb := s.create(t, api.CreateSandbox{MemoryMB: ptr(256)})
	if r := s.run(t, sb.ID, `trap "" TERM; while :; do sleep 100; done`, timeout(1)); r.EndReason != hutch.ExecTimeout || r.ExitCode != hutch.ExitTimeout {
		t.Errorf("over its timeout: %s, %d, %s", r.EndReason, r.ExitCode, r.Signal)
	}
	wantOOM(t, s.run(t, sb.ID, hog, timeout(300)), 256<<20)
	if r := s.run(t, sb.ID, `kill -9 $$`); r.EndReason != hutch.ExecSignal || r.ExitCode != 128+9 || r.Signal != "KILL" {
		t.Errorf("killed by itself: %s, %d, %s", r.EndReason, r.ExitCode, r.Signal)
	}
	x := s.background(t, sb.ID, `sleep 1000`)
	if err := s.client.Signal(t.Context(), x, "KILL", false); err != nil {
		t.Fatal(err)
	}
	if r := s.ended(t, x).Result; r.EndReason != hutch.ExecSignal || r.ExitCode != 128+9 || r.Signal != "KILL" {
		t.Errorf("killed by a caller's signal: %s, %d, %s", r.EndReason, r.ExitCode, r.Signal)
	}
	x = s.background(t, sb.ID, `trap "" TERM; touch /tmp/armed; while :; do sleep 100; done`)
	s.out(t, sb.ID, `until [ -e /tmp/armed ]; do sleep 0.05; done`)
	if _, err := s.client.Cancel(t.Context(), x, ptr(100*time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if r := s.ended(t, x).Result; r.EndReason != hutch.ExecCancelled || r.ExitCode != 128+9 || r.Signal != "KILL" {
		t.Errorf("cancelled: %s, %d, %s", r.EndReason, r.ExitCode, r.Signal)
	}
}

// Memory that fills in steps costs the command that fills it, not the one beside it, the agent
// or the sandbox.
func TestCaseO05TheLargestGoesFirst(t *testing.T) {
	s := common(t)
	sb := s.create(t, api.CreateSandbox{MemoryMB: ptr(256)})
	bystander := s.background(t, sb.ID, `while :; do date +%s >/tmp/beat; sleep 0.2; done`)
	for name, filler := range map[string]string{
		"one that grows":     `exec python3 -c 'import time; kept = []` + "\n" + `while True: kept.append(bytearray(8 << 20)); time.sleep(0.02)'`,
		"children that grow": `for i in 1 2 3 4 5 6; do python3 -c 'import time; kept = []` + "\n" + `while True: kept.append(bytearray(2 << 20)); time.sleep(0.02)' & done; wait`,
	} {
		wantShort(t, name, s.run(t, sb.ID, filler, timeout(120)))
		if x, err := s.client.ExecRecord(t.Context(), bystander); err != nil || !x.Running {
			t.Fatalf("%s: the command beside it: %+v, %v", name, x.Result, err)
		}
		s.inside(t, sb.ID, `rm -f /tmp/beat; until [ -e /tmp/beat ]; do sleep 0.1; done; echo beats`, "beats")
	}
}

// A full disk is said at once by whatever meets it, and costs nothing that needs none: commands,
// reading, deleting, killing.
func TestCaseO06AFullDiskHangsNothing(t *testing.T) {
	s := common(t)
	for _, tier := range []hutch.DiskTier{hutch.TierDisk, hutch.TierMemory} {
		t.Run(string(tier), func(t *testing.T) {
			sb := s.create(t, api.CreateSandbox{MemoryMB: ptr(512), DiskMB: ptr(96), DiskTier: tier})
			s.out(t, sb.ID, `echo kept >/workspace/small`)
			file := func(name string) client.File { return client.File{Sandbox: sb.ID, Path: "/workspace/" + name} }
			for name, fill := range map[string]string{
				"fallocate": `fallocate -l 100G /workspace/big || dd if=/dev/zero of=/workspace/big bs=1M`,
				"dd":        `dd if=/dev/zero of=/workspace/big bs=1M; dd if=/dev/zero of=/workspace/rest bs=4k`,
			} {
				within(t, 20*time.Second, "filling the disk by "+name, func() {
					r := s.run(t, sb.ID, fill)
					if r.EndReason != hutch.ExecExit || r.ExitCode == 0 || !strings.Contains(r.Stderr, "No space left") || !slices.Contains(r.LimitsHit, "disk") || !strings.Contains(r.Detail, "MiB") {
						t.Errorf("%s: %s, exit code %d, %v, %q, %q", name, r.EndReason, r.ExitCode, r.LimitsHit, r.Detail, r.Stderr)
					}
				})
				within(t, 2*time.Second, "a refused upload", func() {
					_, err := s.client.WriteFile(t.Context(), file("upload"), &pattern{n: 8 << 20}, client.WriteOptions{})
					if !errors.Is(err, hutch.ErrDiskFull) {
						t.Errorf("%s, an upload: %v, want disk_full", name, err)
					}
				})
				within(t, 2*time.Second, "a command", func() { s.inside(t, sb.ID, `cat /workspace/small`, "kept") })
				within(t, 2*time.Second, "a read", func() {
					var b strings.Builder
					if _, err := s.client.ReadFile(t.Context(), file("small"), &b); err != nil || b.String() != "kept\n" {
						t.Errorf("%s, a read: %q, %v", name, b.String(), err)
					}
				})
				within(t, 2*time.Second, "a delete", func() {
					err := s.client.RemoveFile(t.Context(), file("big"), false)
					if err != nil {
						t.Errorf("%s, a delete: %v", name, err)
					}
					_ = s.client.RemoveFile(t.Context(), file("rest"), false) // only one of them makes it
				})
				if _, err := s.client.WriteFile(t.Context(), file("upload"), &pattern{n: 8 << 20}, client.WriteOptions{}); err != nil {
					t.Errorf("%s, an upload once there is room: %v", name, err)
				}
				s.out(t, sb.ID, `rm /workspace/upload`)
			}
			s.run(t, sb.ID, `dd if=/dev/zero of=/workspace/big bs=1M`)
			within(t, 2*time.Second, "the kill", func() {
				if err := s.client.Kill(t.Context(), sb.ID); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// A sandbox has its weight and its quota on the host, less of a weight while it takes what there
// is, and all of them together no more than what is beside them: however many take all the CPU
// there is, a create is made and a neighbour's command runs.
func TestCaseO08NoNeighbourTakesTheMachine(t *testing.T) {
	s := own(t)
	const n = 3
	v1 := s.isV1(t) // of version 2 there was no host to try it on
	weighs := func(what string, id hutch.SandboxID, want string) {
		t.Helper()
		if v1 {
			eventually(t, what+" weighs "+want, func() bool { return s.weight(t, id) == want })
		}
	}
	var burners []hutch.SandboxID
	for i := range n {
		sb := s.create(t, api.CreateSandbox{CPU: ptr(1 + float64(i%2)), MemoryMB: ptr(128)})
		weighs("a sandbox that does nothing", sb.ID, []string{"1024", "2048"}[i%2])
		s.background(t, sb.ID, `for i in 1 2 3 4 5 6; do (while :; do :; done) & done; wait`)
		burners = append(burners, sb.ID)
	}
	if v1 {
		for i, id := range burners {
			weighs("one that takes all it can", id, []string{"63", "128"}[i%2])
		}
		if got := s.weight(t, ""); got != "1024" {
			t.Errorf("the weight of all sandboxes together is %s, want that of one process beside them", got)
		}
	}
	before := map[hutch.SandboxID]time.Duration{}
	for _, id := range burners {
		before[id] = s.hostCPU(t, id)
	}
	within(t, 10*time.Second, "a create beside them", func() {
		sb := s.create(t, api.CreateSandbox{MemoryMB: ptr(128)})
		within(t, 5*time.Second, "a neighbour's command", func() { s.inside(t, sb.ID, `echo here`, "here") })
		if err := s.client.Kill(t.Context(), sb.ID); err != nil {
			t.Error(err)
		}
	})
	for _, id := range burners { // else the create met nothing
		eventually(t, "it burns", func() bool { return s.hostCPU(t, id)-before[id] > 100*time.Millisecond })
	}
}

// isV1 says whether the host's processes are in version 1 control groups.
func (s *server) isV1(t *testing.T) bool {
	t.Helper()
	_, err := os.Stat("/sys/fs/cgroup/cpu")
	return err == nil
}

// weight reads what the host weighs a sandbox's processes with, or all of them.
func (s *server) weight(t *testing.T, id hutch.SandboxID) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("/sys/fs/cgroup/cpu", s.cgroup(), string(id), "cpu.shares"))
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(b))
}
