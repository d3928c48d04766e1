package e2e

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"hutch.dev/hutch"
	"hutch.dev/hutch/api"
)

// The attacks are programs in testdata/escape, which root runs in a sandbox of its own. What
// each tries must come out as it says; and afterwards the host is what it was, the server
// serves, and a neighbour works. docs/threat-model.md says which test shows what.

func TestEscape(t *testing.T) {
	b := besiege(t)
	for _, a := range []struct {
		name  string
		least int
	}{{"network", 400}, {"mounts", 500}, {"devices", 3000}, {"proc", 200}, {"kernel", 300}, {"agent", 30}} {
		t.Run(a.name, func(t *testing.T) {
			sb := b.attacker(t, api.CreateSandbox{MemoryMB: ptr(256)})
			b.attack(t, sb, a.name+".py", a.least)
			if got := b.out(t, sb, "echo after"); got != "after" {
				t.Errorf("the attacker's own sandbox says %q", got)
			}
		})
	}
}

// Root inside may damage the agent and be rid of its limits. All it gets is the end of its own
// sandbox, or what the host lets it have.
func TestEscapeThroughTheAgent(t *testing.T) {
	b := besiege(t)
	t.Run("bytes on its stream", func(t *testing.T) {
		sb := b.attacker(t, api.CreateSandbox{MemoryMB: ptr(256)})
		// The answer comes by the same stream, so it may be lost.
		_, err := b.client.Exec(t.Context(), sb, api.ExecRequest{Cmd: "cd /root/attack && exec python3 agent.py noise >/root/out", TimeoutSeconds: ptr(30.0)})
		t.Logf("the command that broke its own stream: %v", err)
		eventually(t, "the stream is mended", func() bool {
			res, err := b.client.Exec(t.Context(), sb, api.ExecRequest{Cmd: "cat /root/out"})
			return err == nil && tried.MatchString(res.Stdout) && !strings.Contains(res.Stdout, "BROKEN")
		})
		b.unharmed(t)
	})
	for name, cmd := range map[string]string{
		"it is killed":            "kill -KILL 1",
		"it is killed as a group": "echo 1 >/sys/fs/cgroup/agent/cgroup.kill",
		"everyone is killed":      "kill -KILL -1; kill -KILL 1",
	} {
		t.Run(name, func(t *testing.T) {
			sb := b.attacker(t, api.CreateSandbox{MemoryMB: ptr(256)})
			res, err := b.client.Exec(t.Context(), sb, api.ExecRequest{Cmd: cmd})
			if err == nil && res.EndReason != hutch.ExecSandboxGone && res.EndReason != hutch.ExecSignal {
				t.Errorf("the command ended by %s, %d", res.EndReason, res.ExitCode)
			}
			eventually(t, "the sandbox is gone", func() bool {
				_, err := b.client.Exec(t.Context(), sb, api.ExecRequest{Cmd: "true"})
				return errors.Is(err, hutch.ErrSandboxGone)
			})
			b.unharmed(t)
		})
	}
	t.Run("it is stopped", func(t *testing.T) {
		sb := b.attacker(t, api.CreateSandbox{MemoryMB: ptr(256)})
		b.background(t, sb, "kill -STOP 1")
		// It says nothing any more; the sandbox can be killed all the same.
		b.unharmed(t)
		within(t, grace, "killing a sandbox whose agent is stopped", func() {
			if err := b.client.Kill(t.Context(), sb); err != nil && !errors.Is(err, hutch.ErrSandboxGone) {
				t.Error(err)
			}
		})
	})
	t.Run("its groups are lifted", func(t *testing.T) {
		sb := b.attacker(t, api.CreateSandbox{MemoryMB: ptr(256), Pids: ptr(64)})
		b.attack(t, sb, "cgroups.py", 50)
		// Inside nothing holds it any more: what is outside must.
		const bomb = "import os, time\nwhile True:\n try:\n  os.fork() or time.sleep(100)\n except OSError: pass"
		x := b.background(t, sb, "for f in $(find /sys/fs/cgroup -name pids.max); do echo max >$f; done; echo $$ >/sys/fs/cgroup/"+mark+"/cgroup.procs; exec python3 -c '"+bomb+"'")
		most := 0
		eventually(t, "the host has stopped it", func() bool {
			most = max(most, len(b.descendants()))
			r, err := b.client.ExecRecord(t.Context(), x)
			if err != nil {
				t.Fatal(err)
			}
			return r.Result != nil && (r.Result.EndReason == hutch.ExecOOM || r.Result.EndReason == hutch.ExecSandboxGone || r.Result.EndReason == hutch.ExecPidsLimit)
		})
		// Two for each process inside, and a backstop whatever is lifted inside.
		if most > 3*64+512 {
			t.Errorf("there were %d processes on the host", most)
		}
		t.Logf("at most %d processes on the host; %s", most, b.ended(t, x).Result.EndReason)
		b.unharmed(t)
	})
}

// A table that root fills is the sandbox's own: it is refused, or the sandbox ends over its memory.
func TestEscapeByFullTables(t *testing.T) {
	b := besiege(t)
	var sb hutch.SandboxID
	type table struct {
		name string
		most int
	}
	tables := []table{
		{"descriptors", 100_000},
		{"sockets", 10_000},
		{"inodes", 5000},
		{"mounts", 2000},
		{"watches", 3000},
		{"queued", 10_000},
		{"memfds", 5000},
		{"terminals", 2000},
		{"keys", 1000},
		{"maps", 10_000},
		{"pipes", 5000}, // which ends a sandbox of this size
	}
	if os.Getenv("HUTCH_SOAK") != "" {
		tables = append(tables, []table{
			{"listeners", 20_000},
			{"directories", 20_000},
			{"deep", 5000},
			{"unlinked", 50_000},
			{"xattrs", 50_000},
			{"epolls", 10_000},
			{"segments", 10_000},
			{"namespaces", 3000},
			{"locks", 50_000},
			{"maps", 80_000},
			{"timers", 50_000},
			{"links", 20_000},
			{"pairs", 20_000},
			{"inodes", 100_000},
		}...)
	}
	for _, table := range tables {
		if sb == "" {
			sb = b.attacker(t, api.CreateSandbox{MemoryMB: ptr(128), DiskMB: ptr(256)})
		}
		res, err := b.client.Exec(t.Context(), sb, api.ExecRequest{Cmd: "cd /root/attack && exec python3 tables.py " + table.name + " " + itoa(table.most), TimeoutSeconds: ptr(60.0)})
		t.Logf("%s: %s %s %v", table.name, strings.TrimSpace(res.Stdout), res.EndReason, err)
		if err == nil && res.EndReason == hutch.ExecExit && !strings.Contains(res.Stdout, mark+" "+table.name) {
			t.Errorf("%s: exit code %d: %s", table.name, res.ExitCode, res.Stderr)
		}
		// What is full inside is not so outside: a kernel of its own has its own tables.
		for _, p := range b.descendants() {
			open, _ := os.ReadDir(fmt.Sprintf("/proc/%d/fd", p.pid))
			if len(open) > 1000 {
				t.Errorf("%s: %s has %d descriptors of the host", table.name, p.args, len(open))
			}
		}
		if got := b.out(t, b.neighbour, "cat /srv/secret"); b.secrets[got] == "" {
			t.Errorf("%s: the neighbour says %q", table.name, got)
		}
		if _, err := b.client.Exec(t.Context(), sb, api.ExecRequest{Cmd: "cd /; rm -rf /tmp/" + mark}); err != nil {
			sb = "" // it has ended, over its memory
		}
	}
	b.unharmed(t)
}

// What the threat model says a test shows, a test of that name must show.
func TestThreatModelNamesTestsThatAre(t *testing.T) {
	page, err := os.ReadFile("../../docs/threat-model.md")
	if err != nil {
		t.Fatal(err)
	}
	have := map[string]bool{}
	err = filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		for _, m := range regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w+)\(`).FindAllStringSubmatch(file(path), -1) {
			have[m[1]] = true
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	named := regexp.MustCompile("`((?:Test|Fuzz)\\w+)").FindAllStringSubmatch(string(page), -1)
	if len(named) < 30 {
		t.Errorf("it names %d tests only", len(named))
	}
	for _, m := range named {
		if !have[m[1]] {
			t.Errorf("it names %s, and there is no such test", m[1])
		}
	}
}
