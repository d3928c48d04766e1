package e2e

import (
	"encoding/json"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/api"
	"hutch.dev/hutch/internal/doctor"
)

// Cases of running Hutch: what the machine lacks, what failed commands cost, and what callers
// meet right after a resume.

// doctorOf runs the doctor with what tune takes from it, and returns its checks by name.
func doctorOf(t *testing.T, tune func(*exec.Cmd), args ...string) (checks map[string]doctor.Check, err error) {
	t.Helper()
	exe, err := hutchBinary()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), exe, append([]string{"doctor", "--json", "--data-dir", filepath.Join(t.TempDir(), "d"), "--listen", "127.0.0.1:0"}, args...)...)
	cmd.WaitDelay = time.Minute
	tune(cmd)
	out, err := cmd.Output()
	var all []doctor.Check
	if jerr := json.Unmarshal(out, &all); jerr != nil {
		t.Fatalf("%v, %v: %s", err, jerr, out)
	}
	checks = map[string]doctor.Check{}
	for _, c := range all {
		checks[c.Name] = c
	}
	return checks, err
}

// Each thing that is missing is named, with what mends it, and all that is there is still said
// to be. What cannot be taken away from a process, the checks' own tests take from a made-up
// machine.
func TestCaseQ05TheDoctorNamesWhatIsMissing(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	inMounts := func(script string) func(*exec.Cmd) {
		return func(c *exec.Cmd) {
			c.Args = append([]string{"unshare", "-m", "sh", "-c", script + ` && exec "$0" "$@"`}, c.Args...)
			c.Path = "/usr/bin/unshare"
		}
	}
	for name, c := range map[string]struct {
		tune  func(*exec.Cmd)
		args  []string
		check string // that must fail, or warn
		fix   string // a word of it
	}{
		"programs": {func(c *exec.Cmd) { c.Env = append(os.Environ(), "PATH=/nonexistent") }, nil, "erofs-utils", "apt-get install -y erofs-utils"},
		"packages": {func(c *exec.Cmd) { c.Env = append(os.Environ(), "PATH=/nonexistent") }, nil, "mmdebstrap", "apt-get install -y mmdebstrap"},
		"root": {func(c *exec.Cmd) {
			c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		}, nil, "root", "root"},
		"a port":    {func(*exec.Cmd) {}, []string{"--listen", l.Addr().String()}, "port", "--listen"},
		"cgroups":   {inMounts("umount -R /sys/fs/cgroup"), nil, "cgroups", "cgroup"},
		"disk room": {inMounts("mount -t tmpfs -o size=8m none /mnt"), []string{"--data-dir", "/mnt/hutch"}, "data disk", "/mnt/hutch"},
	} {
		t.Run(name, func(t *testing.T) {
			checks, err := doctorOf(t, c.tune, c.args...)
			got, known := checks[c.check]
			if !known || got.Status == doctor.OK || got.Fix == "" || !strings.Contains(got.Fix+got.Detail, c.fix) {
				t.Errorf("the check %q: %+v, %v of %d", c.check, got, err, len(checks))
			}
			if got.Status == doctor.Fail && err == nil {
				t.Error("it fails, and the doctor exits with 0")
			}
			well := 0
			for _, other := range checks {
				if other.Status == doctor.OK {
					well++
				}
			}
			if well == 0 {
				t.Error("nothing is said to be well any more")
			}
		})
	}
}

// A program that is not there is said as a shell would, and leaves nothing: neither here nor in
// the sandbox's kernel. HUTCH_SOAK=1 asks for it ten thousand times.
func TestCaseQ06FailedStartsLeaveNothing(t *testing.T) {
	runs := 400
	if os.Getenv("HUTCH_SOAK") != "" {
		runs = 10_000
	}
	s := own(t)
	sb := s.create(t, api.CreateSandbox{})
	missing := []api.ExecRequest{
		{Argv: []string{"/no/such/program"}}, {Argv: []string{"no-such-program"}}, {Cmd: "no-such-program"}, {Argv: []string{"/etc"}},
	}
	run := func(n int) {
		parallel(t, n, 4, func(i int) {
			req := missing[i%len(missing)]
			r, err := s.client.Exec(t.Context(), sb.ID, req)
			want := hutch.ExitNotFound
			if len(req.Argv) > 0 && req.Argv[0] == "/etc" {
				want = hutch.ExitNotExecutable
			}
			if err != nil || r.ExitCode != want || r.EndReason != hutch.ExecExit {
				t.Errorf("%v: %s, exit code %d, %v; want %d", req, r.EndReason, r.ExitCode, err, want)
			}
		})
	}
	held := func() (fds int) {
		for _, pid := range s.kernelOf(t, sb.ID) {
			open, err := os.ReadDir(filepath.Join("/proc", itoa(pid), "fd"))
			if err != nil {
				t.Fatal(err)
			}
			fds += len(open)
		}
		return fds
	}
	run(40)
	s.out(t, sb.ID, `true`)
	before, kernel := s.openFiles(t), held()
	run(runs)
	s.out(t, sb.ID, `true`)
	eventually(t, "the sandbox's kernel holds no more than before", func() bool { return held() <= kernel+2 })
	var grown string
	eventually(t, "the server holds no more than before", func() bool {
		grown = s.openFiles(t).beyond(before)
		return grown == ""
	})
	if grown != "" {
		t.Errorf("the server holds more: %s", grown)
	}
	eventually(t, "no zombie is left", func() bool { return s.out(t, sb.ID, countZombies) == "0" })
	s.inside(t, sb.ID, `ls /sys/fs/cgroup/hutch | grep -c ^e`, "1")
}

// Who calls in the moment a resume has answered is answered, whatever he asks for, with no try
// of his own.
func TestCaseQ08TheFirstCallAfterAResume(t *testing.T) {
	s := common(t)
	sb := s.create(t, api.CreateSandbox{})
	s.serveInside(t, sb.ID, 3000, keepAlive)
	s.out(t, sb.ID, `echo kept >/workspace/f`)
	at := "/v1/sandboxes/" + string(sb.ID)
	first := map[string]func() bool{
		"a port": func() bool { status, _ := s.visitPort(t, sb.ID, 3000, "/"); return status == http.StatusOK },
		"a file": func() bool { return s.ask(t, "GET", at+"/fs?path=/workspace/f", "").body == "kept\n" },
		"a command": func() bool {
			return strings.Contains(s.ask(t, "POST", at+"/exec", `{"cmd": "echo on"}`).body, `"on\n"`)
		},
		"a list of ports": func() bool { return strings.Contains(s.ask(t, "GET", at+"/ports", "").body, "3000") },
	}
	for range 10 {
		for name, call := range first {
			s.pause(t, sb.ID)
			s.resume(t, sb.ID)
			if !call() {
				t.Errorf("%s, at once after the resume, was not answered as it should be", name)
			}
		}
	}
}

// What a command used is said of it alone, and is its part of what the host charged: together,
// those of a sandbox used that and no more, however busy the machine was. The rest is the
// guest agent's.
func TestCaseQ01EachCommandsOwnUse(t *testing.T) {
	s := common(t)
	sb := s.create(t, api.CreateSandbox{})
	before := s.hostCPU(t, sb.ID)
	// Those that burn are ended by their own kernel when they have used two seconds by its
	// clock, however long that takes.
	cmds := []string{burn, `sleep 3`, burn}
	used := make([]time.Duration, len(cmds))
	parallel(t, len(cmds), len(cmds), func(i int) {
		used[i] = time.Duration(s.run(t, sb.ID, cmds[i]).CPUMS) * time.Millisecond
	})
	total := s.hostCPU(t, sb.ID) - before
	sum := used[0] + used[1] + used[2]
	t.Logf("%v of %v", used, total)
	if sum > total || sum < total*95/100 {
		t.Errorf("the host charged %v for commands that used %v, in all %v", total, used, sum)
	}
	// They have burnt the same by a clock that both waited by, and run at the same time.
	if a, b := used[0], used[2]; min(a, b) < max(a, b)*3/4 {
		t.Errorf("of two that do the same, one used %v and the other %v", a, b)
	}
	if used[1] > total/10 {
		t.Errorf("one that slept is said to have used %v", used[1])
	}
}

// What is charged is how long it was there, not how long it might have been.
func TestCaseQ03ChargedForTheTimeItLived(t *testing.T) {
	s := common(t)
	began := time.Now()
	sb := s.create(t, api.CreateSandbox{MemoryMB: ptr(128), TTLSeconds: ptr(86400.0)})
	s.out(t, sb.ID, `true`)
	if err := s.client.Kill(t.Context(), sb.ID); err != nil {
		t.Fatal(err)
	}
	lived := time.Since(began).Seconds()
	total := s.used(t, sb.ID).Total
	if total.WallSeconds <= 0 || total.WallSeconds > lived || total.CPUMicros <= 0 || float64(total.CPUMicros)/1e6 > 2*lived {
		t.Errorf("of a day it lived %g s and is charged for %+v", lived, total)
	}
	now := s.used(t, sb.ID).Total
	if now.WallSeconds != total.WallSeconds {
		t.Errorf("the dead go on being charged: %g s, then %g s", total.WallSeconds, now.WallSeconds)
	}
}
