package guesttest

import (
	"fmt"
	"strings"
	"testing"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/guestapi"
)

// Locked runs the contract of the profile locked against the agents that dial returns, as
// [Run] runs that of every agent. It needs an agent of its own that has not been told who it
// is yet, and does not touch what Run looks at.
func Locked(t *testing.T, dial func(t *testing.T) *Client) {
	c := dial(t)
	h := lockedHello()
	h.Profile = "half"
	if err := c.Call(t.Context(), "POST", guestapi.PathHello, h, nil); code(err) != hutch.CodeBadRequest {
		t.Fatalf("hello with a profile that there is not: %v", err)
	}
	h = lockedHello() // while it is nobody's there is nobody to confine it to, and nothing runs
	h.Epoch = 0
	c.must(t, "POST", guestapi.PathHello, h, nil)
	if err := c.Call(t.Context(), "GET", guestapi.PathHealth, nil, nil); code(err) != guestapi.CodeNotIdentified {
		t.Errorf("health while it is nobody's: %v, want not_identified", err)
	}
	if err := c.Call(t.Context(), "POST", guestapi.PathHello, Hello(), nil); code(err) != hutch.CodeConflict {
		t.Errorf("a hello that would make it root's: %v, want a conflict", err)
	}
	c.must(t, "POST", guestapi.PathHello, lockedHello(), nil)
	for _, test := range []struct {
		name string
		run  func(*testing.T, *Client)
	}{
		{"Hello", testLockedHello},
		{"WhoRuns", testLockedUser},
		{"NoRoot", testLockedNoRoot},
		{"ReadOnly", testLockedReadOnly},
		{"Files", testLockedFiles},
		{"NoWayUp", testLockedNoWayUp},
		{"TheAgent", testLockedAgent},
		{"Output", testLockedOutput},
		{"Shell", testLockedShell},
	} {
		t.Run(test.name, func(t *testing.T) { test.run(t, c) })
	}
}

func lockedHello() guestapi.Hello {
	h := Hello()
	h.Profile = hutch.ProfileLocked
	h.Defaults.Cwd = "/root" // where a template for root may begin
	return h
}

// says runs a command and returns what it printed; it must succeed.
func (c *Client) says(t *testing.T, cmd string) string {
	t.Helper()
	r := c.Sh(t, cmd)
	if r.ExitCode != 0 {
		t.Errorf("%s: %d, %s%s", cmd, r.ExitCode, r.Stdout.Head, r.Stderr.Head)
	}
	return strings.TrimSpace(string(r.Stdout.Head))
}

// A sandbox stays what it is, and can still be told another name.
func testLockedHello(t *testing.T, c *Client) {
	if err := c.Call(t.Context(), "POST", guestapi.PathHello, Hello(), nil); code(err) != hutch.CodeConflict {
		t.Errorf("a hello that would make it root's: %v, want a conflict", err)
	}
	h := lockedHello()
	h.Hostname = "another-name"
	c.must(t, "POST", guestapi.PathHello, h, nil)
	if got := c.says(t, "hostname; cat /etc/hostname; grep -c 'another-name$' /etc/hosts"); got != "another-name\nanother-name\n1" {
		t.Errorf("name inside: %q", got)
	}
}

func testLockedUser(t *testing.T, c *Client) {
	got := c.says(t, `[ "$(id -u)" != 0 ] && [ "$(id -g)" != 0 ] && case " $(id -G) " in *' 0 '*) exit 3;; esac
		whoami >/dev/null && cd && pwd && echo $HOME && grep -E '^(Cap|NoNewPrivs)' /proc/self/status | tr -d '\t' | sort`)
	home, rest, _ := strings.Cut(got, "\n")
	const none = "0000000000000000"
	want := home + "\nCapAmb:" + none + "\nCapBnd:" + none + "\nCapEff:" + none + "\nCapInh:" + none + "\nCapPrm:" + none + "\nNoNewPrivs:1"
	if home == "/" || home == "/root" || rest != want {
		t.Errorf("who a command is:\n%s\nwant\n%s", got, want)
	}
	if r := c.Run(t, hutch.ExecSpec{Cmd: "id -u; sed -n 's/CapBnd:.//p' /proc/self/status", User: "4321"}); string(r.Stdout.Head) != "4321\n"+none+"\n" {
		t.Errorf("another ordinary user: %s %s", r.Stdout.Head, r.Stderr.Head)
	}
}

// Nobody is root, by whatever name and through whatever call.
func testLockedNoRoot(t *testing.T, c *Client) {
	for _, user := range []string{"root", "0", "00", "root:root", "0:1000", "4321:0", "4321:root"} {
		for kind, spec := range map[string]hutch.ExecSpec{
			"command":  {Cmd: "id -u", User: user},
			"argv":     {Argv: []string{"id", "-u"}, User: user},
			"shell":    {Cmd: "id -u", User: user, Shell: "rootshell"},
			"terminal": {Cmd: "id -u", User: user, Terminal: &hutch.TerminalSize{Rows: 20, Cols: 80}},
		} {
			if e := c.Refused(t, spec); e.Code != hutch.CodeForbidden || e.Field != "user" {
				t.Errorf("%s as %s: %v, want it forbidden, about the user", kind, user, e)
			}
		}
		var info hutch.FileInfo
		if err := c.Call(t.Context(), "POST", guestapi.PathFileStat, guestapi.FileRef{Path: "/etc/passwd", User: user}, &info); code(err) != hutch.CodeForbidden {
			t.Errorf("stat as %s: %v", user, err)
		}
	}
}

// The places that can be written to are those, and no others.
func testLockedReadOnly(t *testing.T, c *Client) {
	for _, dir := range []string{"/workspace", "$HOME", "/tmp", "/var/tmp", "/dev/shm"} {
		c.says(t, fmt.Sprintf(`d=%s; mkdir $d/locked && echo x > $d/locked/f && cat $d/locked/f && rm -r $d/locked`, dir))
	}
	for _, dir := range []string{"/", "/etc", "/usr", "/usr/bin", "/usr/local/lib", "/opt", "/var", "/var/lib", "/run", "/run/hutch", "/var/lib/hutch", "/home", "/root", "/dev", "/sys", "/proc", "/sys/fs/cgroup"} {
		if r := c.Sh(t, "echo x > "+dir+"/locked"); r.ExitCode == 0 {
			t.Errorf("something could be written in %s", dir)
		}
	}
	// Whatever has the right mode and is not where it should be.
	got := c.says(t, `find / -xdev \( -path /proc -o -path "$HOME" -o -path /workspace -o -path /tmp -o -path /var/tmp \) -prune -o \( -type d -o -type f \) -writable -print 2>/dev/null | head -20
		awk '$2 == "/" { print $4 }' /proc/mounts | grep -c '^ro'`)
	if got != "1" {
		t.Errorf("places that can be written to, and read-only roots: %s", got)
	}
}

// File calls are bound by the same.
func testLockedFiles(t *testing.T, c *Client) {
	write := func(path string) error {
		_, err := c.WriteFile(t.Context(), guestapi.WriteFile{FileRef: guestapi.FileRef{Path: path}}, strings.NewReader("x"))
		return err
	}
	for _, path := range []string{"/workspace/by-call", "by-call", "/tmp/by-call"} {
		if err := write(path); err != nil {
			t.Errorf("write %s: %v", path, err)
		}
	}
	for _, path := range []string{"/etc/passwd", "/etc/by-call", "/usr/bin/by-call", "/opt/by-call", "/by-call", "/root/by-call", "/run/hutch/by-call"} {
		if err := write(path); code(err) != hutch.CodeForbidden {
			t.Errorf("write %s: %v, want it forbidden", path, err)
		}
	}
	if err := write("/proc/sys/kernel/hostname"); err == nil {
		t.Error("a parameter of the kernel was written")
	}
	if got := c.says(t, "stat -c %u /workspace/by-call && id -u"); strings.Fields(got)[0] != strings.Fields(got)[1] {
		t.Errorf("owner of a file that was written, and the user: %s", got)
	}
	if err := c.Call(t.Context(), "POST", guestapi.PathFileStat, guestapi.FileRef{Path: "/proc/1/root/etc/shadow"}, nil); err == nil {
		t.Error("a file call sees the agent's own root")
	}
}

// What gives rights elsewhere gives none here.
func testLockedNoWayUp(t *testing.T, c *Client) {
	for _, cmd := range []string{
		"unshare -U true", "unshare -Ur id -u", "unshare -m true", "unshare -n true", "unshare -Urm mount -t tmpfs none /tmp",
		"mount -t tmpfs none /tmp", "mount -o remount,rw /", "umount /tmp", "chroot / id -u",
		"mknod /tmp/locked-null c 1 3", "chown 0 /workspace",
		"echo x > /proc/sys/kernel/hostname", "hostname other", "setpriv --reuid 0 id -u", "sudo -n id -u",
	} {
		if r := c.Sh(t, cmd); r.ExitCode == 0 {
			t.Errorf("%s: it worked: %s", cmd, r.Stdout.Head)
		}
	}
	// A program that says whose rights it has.
	got := c.says(t, `cp "$(command -v id)" /tmp/suid && chmod 6755 /tmp/suid && /tmp/suid -u && /tmp/suid -ru && id -u; rm /tmp/suid`)
	if ids := strings.Fields(got); len(ids) != 3 || ids[0] != ids[2] || ids[1] != ids[2] || ids[0] == "0" {
		t.Errorf("effective and real id in a setuid program, and outside: %v", ids)
	}
}

// The agent is out of reach for what it runs.
func testLockedAgent(t *testing.T, c *Client) {
	for _, cmd := range []string{
		"cat /proc/1/environ", "head -c 1 /proc/1/mem", "cat /proc/1/maps | grep .", "ls /proc/1/fd/ | grep .", "ls /proc/1/root/ | grep .", "ls /proc/1/cwd/ | grep .",
		"cat <&0 3</proc/1/fd/0", "kill -9 1", "kill -0 1", "echo 0 > /proc/1/oom_score_adj",
	} {
		if r := c.Sh(t, cmd); r.ExitCode == 0 {
			t.Errorf("%s: it worked: %.200s", cmd, r.Stdout.Head)
		}
	}
	if got := c.says(t, "ls /proc/$$/fd"); strings.Join(strings.Fields(got), " ") != "0 1 2" {
		t.Errorf("descriptors of a command: %s", got)
	}
}

// Output that does not fit is in a file that can be read and not be written to.
func testLockedOutput(t *testing.T, c *Client) {
	r := c.Run(t, hutch.ExecSpec{Cmd: "seq 1000000", MaxOutputBytes: hutch.MinOutputBytes})
	if r.Stdout.Path == "" {
		t.Fatalf("no file: %+v", r.Stdout)
	}
	c.says(t, "tail -n 1 "+r.Stdout.Path+" | grep -x 1000000 && ! (echo x >> "+r.Stdout.Path+") 2>/dev/null && ! touch $(dirname "+r.Stdout.Path+")/x 2>/dev/null")
}

func testLockedShell(t *testing.T, c *Client) {
	sh := func(cmd string) string {
		return strings.TrimSpace(string(c.Run(t, hutch.ExecSpec{Cmd: cmd, Shell: "locked"}).Stdout.Head))
	}
	sh("cd /workspace; export A=kept")
	const want = "/workspace\nkept\nordinary\n0000000000000000\n1"
	if got := sh("pwd; echo $A; id -u | grep -vx 0 >/dev/null && echo ordinary; sed -n 's/^CapBnd:.//p; s/^NoNewPrivs:.//p' /proc/self/status"); got != want {
		t.Errorf("a shell session: %q, want %q", got, want)
	}
	c.must(t, "DELETE", guestapi.PathShells+"/locked", nil, nil)
}
