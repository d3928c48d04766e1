package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"hutch.dev/hutch"
	"hutch.dev/hutch/api"
	"hutch.dev/hutch/client"
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
		// It may be stopped before it has answered.
		_, err := b.client.StartExec(t.Context(), sb, api.ExecRequest{Cmd: "kill -STOP 1", Background: true})
		t.Logf("the command that stopped the agent: %v", err)
		// It says nothing any more, and callers are told; the sandbox can be killed all the same.
		eventually(t, "callers are told", func() bool {
			_, err := b.client.Exec(t.Context(), sb, api.ExecRequest{Cmd: "true"})
			if err != nil && !errors.Is(err, hutch.ErrGuestUnresponsive) {
				t.Fatal(err)
			}
			return err != nil
		})
		b.unharmed(t)
		within(t, grace, "killing a sandbox whose agent is stopped", func() {
			if err := b.client.Kill(t.Context(), sb); err != nil && !errors.Is(err, hutch.ErrSandboxGone) {
				t.Error(err)
			}
		})
	})
	t.Run("its groups are lifted", func(t *testing.T) {
		sb := b.attacker(t, api.CreateSandbox{MemoryMB: ptr(1024), Pids: ptr(64)})
		b.attack(t, sb, "cgroups.py", 50)
		// Inside nothing holds it any more: what is outside must.
		x := b.background(t, sb, "cd /root/attack && exec python3 cgroups.py bomb")
		const inside = 64 // of which each is two on the host
		most := 0
		var result *api.ExecResult
		eventually(t, "the host has stopped it", func() bool {
			most = max(most, len(b.descendants()))
			r, err := b.client.ExecRecord(t.Context(), x)
			if err != nil {
				t.Fatal(err)
			}
			result = r.Result
			// Its end, or no memory for more: then the host's kernel ends what the bomb makes.
			return result != nil || most > 3*inside && b.outOfMemory(t, sb) > 0
		})
		if result != nil && result.EndReason != hutch.ExecOOM && result.EndReason != hutch.ExecSandboxGone && result.EndReason != hutch.ExecPidsLimit {
			t.Errorf("it ended by %s: %s%s", result.EndReason, result.Stdout, result.Stderr)
		}
		// What the host holds it to whatever is lifted inside, beside the neighbour's and the sandbox's own.
		if most > 3*inside+512+100 {
			t.Errorf("there were %d processes on the host", most)
		}
		t.Logf("at most %d processes on the host", most)
		b.unharmed(t)
		within(t, grace, "killing it", func() {
			if err := b.client.Kill(t.Context(), sb); err != nil && !errors.Is(err, hutch.ErrSandboxGone) {
				t.Error(err)
			}
		})
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
		full := err == nil && res.EndReason == hutch.ExecExit && regexp.MustCompile(mark+" "+table.name+" [1-9]").MatchString(res.Stdout)
		ended := err == nil && (res.EndReason == hutch.ExecOOM || res.EndReason == hutch.ExecSandboxGone && slices.Contains(res.LimitsHit, "memory"))
		if said := (*client.Error)(nil); errors.As(err, &said) {
			ended = said.EndReason == hutch.EndOOM
		}
		if !full && !ended {
			t.Errorf("%s: %v, %s, exit code %d: %s", table.name, err, res.EndReason, res.ExitCode, res.Stderr)
		}
		// What is full inside is not so outside: a kernel of its own has its own tables.
		for _, p := range b.descendants() {
			open, _ := os.ReadDir(fmt.Sprintf("/proc/%d/fd", p.pid))
			if len(open) > 1000 {
				t.Errorf("%s: %s has %d descriptors of the host", table.name, p.args, len(open))
			}
		}
		b.inside(t, b.neighbour, "cat /srv/secret", b.word)
		if _, err := b.client.Exec(t.Context(), sb, api.ExecRequest{Cmd: "cd /; rm -rf /tmp/" + mark}); err != nil {
			sb = "" // it has ended, over its memory
		}
	}
	b.unharmed(t)
}

// What the threat model says a test shows, a test of that name must show, in the package it
// says, and everything that is said to be defended names one.
func TestThreatModelNamesTestsThatAre(t *testing.T) {
	page, err := os.ReadFile("../../docs/threat-model.md")
	if err != nil {
		t.Fatal(err)
	}
	_, defended, _ := strings.Cut(string(page), "## What is defended")
	defended, _, _ = strings.Cut(defended, "## What is not")
	sources := map[string]string{} // by package
	source := func(pkg string) string {
		if sources[pkg] == "" {
			files, _ := filepath.Glob(filepath.Join("../..", pkg, "*.go"))
			for _, f := range files {
				sources[pkg] += file(f) + "\n"
			}
		}
		return sources[pkg]
	}
	rows := 0
	for line := range strings.Lines(defended) {
		cells := strings.Split(line, "|")
		if len(cells) != 5 || strings.HasPrefix(cells[1], "---") || cells[1] == " Attack " {
			continue
		}
		rows++
		named, pkg := 0, "test/e2e"
		for _, m := range regexp.MustCompile("`([^`]+)`(:?)").FindAllStringSubmatch(cells[3], -1) {
			name, family := strings.CutSuffix(m[1], "…")
			switch name, part, _ := strings.Cut(name, "/"); {
			case m[2] == ":":
				pkg = m[1]
				continue
			case !strings.Contains(source(pkg), "\nfunc "+name+map[bool]string{false: "(", true: ""}[family]),
				part != "" && !strings.Contains(source(pkg), `"`+strings.ReplaceAll(part, "_", " ")+`"`):
				t.Errorf("it names %s of %s, and there is no such test", m[1], pkg)
			}
			named++
		}
		if named == 0 {
			t.Errorf("it names no test of its claim about%s", cells[1])
		}
	}
	if rows < 25 {
		t.Errorf("it claims %d defences only", rows)
	}
}
