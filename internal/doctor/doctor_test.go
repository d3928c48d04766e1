package doctor_test

import (
	"bytes"
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"hutch.dev/hutch/internal/doctor"
)

// goodFiles is a machine on which nothing is missing, with unified cgroups.
var goodFiles = map[string]string{
	"proc/sys/kernel/osrelease":             "6.1.0-32-amd64\n",
	"proc/sys/kernel/seccomp/actions_avail": "kill_process kill_thread trap errno user_notif trace log allow\n",
	"proc/sys/kernel/yama/ptrace_scope":     "1\n",
	"proc/sys/kernel/pid_max":               "4194304\n",
	"proc/sys/user/max_user_namespaces":     "96365\n",
	"proc/sys/vm/overcommit_memory":         "0\n",
	"proc/meminfo":                          "MemTotal:       24000000 kB\nMemFree: 1 kB\n",
	"proc/self/limits":                      "Limit                     Soft Limit           Hard Limit           Units\nMax open files            1024                 1048576              files\n",
	"proc/self/mountinfo":                   "24 30 0:22 / /proc rw - proc proc rw\n34 24 0:29 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n",
	"sys/fs/cgroup/cgroup.controllers":      "cpuset cpu io memory pids\n",
	"sys/fs/cgroup/cgroup.subtree_control":  "memory pids\n",
	"etc/os-release":                        "ID=debian\nVERSION_CODENAME=bookworm\n",
	"etc/apt/sources.list":                  "deb http://mirror.example/debian bookworm main\n",
	"dev/kvm":                               "",
	"var/lib/hutch/.keep":                   "",
}

// v1Files turns it into one with the hierarchies of version 1.
var v1Files = map[string]string{
	"proc/self/mountinfo": "1 2 0:1 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n" +
		"1 2 0:1 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n" +
		"1 2 0:1 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n" +
		"1 2 0:1 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n",
	"sys/fs/cgroup/memory/tasks":               "",
	"sys/fs/cgroup/cpu,cpuacct/tasks":          "",
	"sys/fs/cgroup/pids/tasks":                 "",
	"sys/fs/cgroup/unified/cgroup.controllers": "\n",
}

// machine makes a good machine, changed by files; a file with the content "-" is left
// out.
func machine(t *testing.T, changes ...map[string]string) doctor.Env {
	t.Helper()
	files := map[string]string{}
	for _, m := range append([]map[string]string{goodFiles}, changes...) {
		for name, text := range m {
			files[name] = text
		}
	}
	root := t.TempDir()
	for name, text := range files {
		if text == "-" {
			continue
		}
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return doctor.Env{
		Root: root, UID: 0, Arch: "amd64", CPUs: 4,
		LookPath: func(p string) (string, error) { return "/usr/bin/" + p, nil },
		Now:      func() time.Time { return time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC) },
		Free:     func(string) (int64, error) { return 100 << 30, nil },
		DataDir:  "/var/lib/hutch", CacheDir: "/var/cache/hutch",
		Probe: func(context.Context) (string, error) { return "started and answered in 60 ms", nil },
	}
}

func TestAGoodMachineIsOK(t *testing.T) {
	for name, env := range map[string]doctor.Env{"cgroups v2": machine(t), "cgroups v1": machine(t, v1Files)} {
		checks := doctor.Run(t.Context(), env)
		for _, c := range checks {
			if c.Status != doctor.OK || c.Fix != "" || c.Detail == "" {
				t.Errorf("%s: %+v", name, c)
			}
		}
		if doctor.Worst(checks) != doctor.OK || len(checks) < 18 {
			t.Errorf("%s: %d checks, worst %s", name, len(checks), doctor.Worst(checks))
		}
	}
}

func TestWhatIsMissingIsNamedWithItsMend(t *testing.T) {
	file := func(name, text string) func(*testing.T) doctor.Env {
		return func(t *testing.T) doctor.Env { return machine(t, map[string]string{name: text}) }
	}
	v1 := func(name, text string) func(*testing.T) doctor.Env {
		return func(t *testing.T) doctor.Env { return machine(t, v1Files, map[string]string{name: text}) }
	}
	with := func(change func(*doctor.Env)) func(*testing.T) doctor.Env {
		return func(t *testing.T) doctor.Env {
			env := machine(t)
			change(&env)
			return env
		}
	}
	without := func(program string) func(*testing.T) doctor.Env {
		return with(func(e *doctor.Env) {
			e.LookPath = func(p string) (string, error) {
				if p == program {
					return "", errors.New("not found")
				}
				return p, nil
			}
		})
	}
	freeSpace := func(n int64) func(*testing.T) doctor.Env {
		return with(func(e *doctor.Env) { e.Free = func(string) (int64, error) { return n, nil } })
	}
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()

	tests := map[string]struct {
		env         func(*testing.T) doctor.Env
		check       string
		status      doctor.Status
		detail, fix string
	}{
		"not root":                  {with(func(e *doctor.Env) { e.UID = 1000 }), "root", doctor.Fail, "user 1000", "sudo hutch serve"},
		"other architecture":        {with(func(e *doctor.Env) { e.Arch = "riscv64" }), "architecture", doctor.Fail, "riscv64", "uname -m"},
		"untested architecture":     {with(func(e *doctor.Env) { e.Arch = "arm64" }), "architecture", doctor.Warn, "arm64", "uname -m"},
		"old kernel":                {file("proc/sys/kernel/osrelease", "5.4.0-1"), "kernel", doctor.Fail, "5.4.0", "apt-get install -y linux-image"},
		"odd kernel":                {file("proc/sys/kernel/osrelease", "custom"), "kernel", doctor.Warn, "custom", "uname -r"},
		"no /proc":                  {file("proc/sys/kernel/osrelease", "-"), "kernel", doctor.Fail, "cannot read", "mount -t proc"},
		"no seccomp":                {file("proc/sys/kernel/seccomp/actions_avail", "-"), "seccomp", doctor.Fail, "no seccomp", "CONFIG_SECCOMP_FILTER"},
		"seccomp without trap":      {file("proc/sys/kernel/seccomp/actions_avail", "errno allow"), "seccomp", doctor.Fail, "no seccomp", "CONFIG_SECCOMP_FILTER"},
		"ptrace off":                {file("proc/sys/kernel/yama/ptrace_scope", "3"), "ptrace", doctor.Fail, "ptrace_scope is 3", "reboot"},
		"no user namespaces":        {file("proc/sys/user/max_user_namespaces", "-"), "namespaces", doctor.Fail, "no user namespaces", "CONFIG_USER_NS"},
		"user namespaces off":       {file("proc/sys/user/max_user_namespaces", "0"), "namespaces", doctor.Fail, "is 0", "sysctl -w user.max_user_namespaces"},
		"few user namespaces":       {file("proc/sys/user/max_user_namespaces", "100"), "namespaces", doctor.Warn, "is 100", "sysctl -w user.max_user_namespaces"},
		"strict overcommit":         {file("proc/sys/vm/overcommit_memory", "2"), "overcommit", doctor.Fail, "is 2", "sysctl -w vm.overcommit_memory=0"},
		"no cgroups":                {file("proc/self/mountinfo", "24 30 0:22 / /proc rw - proc proc rw\n"), "cgroups", doctor.Fail, "not mounted", "mount -t cgroup2"},
		"v2 without memory":         {file("sys/fs/cgroup/cgroup.controllers", "cpu pids"), "cgroups", doctor.Fail, "memory", "cgroup_enable=memory"},
		"v2 without pids":           {file("sys/fs/cgroup/cgroup.controllers", "cpu memory"), "cgroups", doctor.Fail, "pids", "Delegate=yes"},
		"v2 not ours":               {file("sys/fs/cgroup/cgroup.subtree_control", "-"), "cgroups", doctor.Fail, "may not be written", "mount -o remount,rw"},
		"v1 without a controller":   {v1("proc/self/mountinfo", strings.Replace(v1Files["proc/self/mountinfo"], "rw,pids", "rw,freezer", 1)), "cgroups", doctor.Fail, "without pids", "mount -t cgroup -o pids"},
		"v1 not ours":               {v1("sys/fs/cgroup/memory/tasks", "-"), "cgroups", doctor.Fail, "memory may not be written", "remount"},
		"tiny memory":               {file("proc/meminfo", "MemTotal: 500000 kB\n"), "memory", doctor.Fail, "0.5 GiB", "free -h"},
		"little memory":             {file("proc/meminfo", "MemTotal: 2000000 kB\n"), "memory", doctor.Warn, "1.9 GiB", "free -h"},
		"unknown memory":            {file("proc/meminfo", "-"), "memory", doctor.Fail, "cannot read", "mount -t proc"},
		"few pids":                  {file("proc/sys/kernel/pid_max", "32768"), "pids", doctor.Warn, "32768", "sysctl -w kernel.pid_max"},
		"few files":                 {file("proc/self/limits", "Max open files            1024                 4096              files\n"), "files", doctor.Warn, "4096", "LimitNOFILE"},
		"hardly any files":          {file("proc/self/limits", "Max open files            256                 256              files\n"), "files", doctor.Fail, "256", "LimitNOFILE"},
		"unknown files":             {file("proc/self/limits", "-"), "files", doctor.Warn, "cannot read", "mount -t proc"},
		"clock in the past":         {with(func(e *doctor.Env) { e.Now = func() time.Time { return time.Unix(0, 0) } }), "clock", doctor.Fail, "1970-01-01", "timedatectl"},
		"full disk":                 {freeSpace(1 << 30), "data disk", doctor.Fail, "1.0 GiB free at /var/lib/hutch", "df -h /var/lib/hutch"},
		"small disk":                {freeSpace(10 << 30), "image disk", doctor.Warn, "10.0 GiB free at /var/cache/hutch", "df -h /var/cache/hutch"},
		"no mmdebstrap":             {without("mmdebstrap"), "mmdebstrap", doctor.Fail, "not installed", "apt-get install -y mmdebstrap"},
		"no mkfs.erofs":             {without("mkfs.erofs"), "erofs-utils", doctor.Fail, "mkfs.erofs", "apt-get install -y erofs-utils"},
		"no sources":                {file("etc/apt/sources.list", "-"), "apt sources", doctor.Fail, "none carries suite bookworm", "/etc/apt/sources.list.d/bookworm.sources"},
		"sources of another suite":  {with(func(e *doctor.Env) { e.Suite = "trixie" }), "apt sources", doctor.Fail, "none carries suite trixie", "configured suites: bookworm"},
		"broken sources":            {file("etc/apt/sources.list.d/x.list", "deb x\n"), "apt sources", doctor.Warn, "x.list:1", "apt-get update"},
		"not Debian":                {file("etc/os-release", "-"), "apt sources", doctor.Fail, "os-release", "Debian 12"},
		"distribution without name": {file("etc/os-release", "ID=debian\n"), "apt sources", doctor.Fail, "VERSION_CODENAME", "suite:"},
		"port taken":                {with(func(e *doctor.Env) { e.Listen = []string{taken.Addr().String()} }), "port", doctor.Fail, "is taken", "ss -ltnp"},
		"address not here":          {with(func(e *doctor.Env) { e.Listen = []string{"192.0.2.1:80"} }), "port", doctor.Fail, "192.0.2.1:80", "ip addr"},
		"sandbox does not start": {with(func(e *doctor.Env) {
			e.Probe = func(context.Context) (string, error) { return "", errors.New("no platform") }
		}), "sandbox", doctor.Fail, "no platform", "dmesg"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			var bad []doctor.Check
			for _, c := range doctor.Run(t.Context(), tt.env(t)) {
				if c.Status != doctor.OK {
					bad = append(bad, c)
				}
			}
			found := false
			for _, c := range bad {
				if c.Name == tt.check {
					found = c.Status == tt.status && strings.Contains(c.Detail, tt.detail) && strings.Contains(c.Fix, tt.fix)
				} else if c.Name != "data disk" && c.Name != "image disk" { // both see the same Free
					t.Errorf("another check is not ok: %+v", c)
				}
			}
			if !found {
				t.Errorf("got %+v\nwant %s %s with %q and a fix with %q", bad, tt.status, tt.check, tt.detail, tt.fix)
			}
		})
	}
}

func TestPortsFreeAgainAfterTheCheck(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	l.Close()
	env := machine(t)
	env.Listen = []string{addr}
	for range 2 { // the second would find the first still listening
		for _, c := range doctor.Run(t.Context(), env) {
			if c.Name == "port" && c.Status != doctor.OK {
				t.Fatalf("%+v", c)
			}
		}
	}
}

func TestDiskOfADirectoryYetToBeMade(t *testing.T) {
	env := machine(t)
	env.DataDir, env.CacheDir = "/srv/a/b", "/srv/a/b"
	var asked []string
	env.Free = func(path string) (int64, error) {
		asked = append(asked, path)
		return 100 << 30, nil
	}
	doctor.Run(t.Context(), env)
	if len(asked) != 1 || asked[0] != env.Root {
		t.Errorf("asked about %q, want once about %s, the nearest that exists", asked, env.Root)
	}
}

func TestWrite(t *testing.T) {
	var b bytes.Buffer
	checks := []doctor.Check{
		{Name: "root", Status: doctor.OK, Detail: "running as root"},
		{Name: "clock", Status: doctor.Fail, Detail: "1970", Fix: "set it"},
	}
	if err := doctor.Write(&b, checks); err != nil {
		t.Fatal(err)
	}
	want := "ok    root   running as root\nfail  clock  1970\n               fix: set it\n"
	if b.String() != want {
		t.Errorf("got\n%s\nwant\n%s", b.String(), want)
	}
	if err := doctor.Write(failingWriter{}, checks); err == nil {
		t.Error("a write error is lost")
	}
}

type failingWriter struct{}

func (failingWriter) Write([]byte) (int, error) { return 0, errors.New("closed") }

func TestWorst(t *testing.T) {
	c := func(s ...doctor.Status) (out []doctor.Check) {
		for _, s := range s {
			out = append(out, doctor.Check{Status: s})
		}
		return out
	}
	for _, tt := range []struct {
		checks []doctor.Check
		want   doctor.Status
	}{
		{nil, doctor.OK},
		{c(doctor.OK, doctor.Warn, doctor.OK), doctor.Warn},
		{c(doctor.Fail, doctor.Warn), doctor.Fail},
	} {
		if got := doctor.Worst(tt.checks); got != tt.want {
			t.Errorf("Worst(%v) = %s, want %s", tt.checks, got, tt.want)
		}
	}
}

// TestThisMachine runs the checks for real: they must come to an end with an answer
// each, whatever the machine is like.
func TestThisMachine(t *testing.T) {
	env := doctor.Local()
	env.DataDir, env.CacheDir = t.TempDir(), t.TempDir()
	for _, c := range doctor.Run(t.Context(), env) {
		if c.Name == "" || c.Detail == "" || (c.Fix == "") != (c.Status == doctor.OK) {
			t.Errorf("%+v", c)
		}
		t.Logf("%s %s: %s", c.Status, c.Name, c.Detail)
	}
}
