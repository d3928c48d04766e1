package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sys/unix"

	"hutch.dev/hutch/api"
	"hutch.dev/hutch/client"
	"hutch.dev/hutch/internal/template/imagetest"
)

// Cases of what a sandbox is told, of what must not be told on, and of what it must not reach.

// canary is a value that must be found nowhere but where it was put.
const canary = "canary-7f1c5e02-value"

// plant makes a sandbox that was told the canary in every way there is, and runs what uses it.
func (s *server) plant(t *testing.T) api.Sandbox {
	t.Helper()
	sb := s.create(t, api.CreateSandbox{
		Env:      map[string]string{"SB_SECRET": canary + "-sandbox"},
		Metadata: map[string]string{"walk": "canary", "secret.token": canary + "-metadata"},
	})
	with := func(r *api.ExecRequest) { r.Env = map[string]string{"EX_SECRET": canary + "-exec"} }
	s.inside(t, sb.ID, `printenv SB_SECRET | cut -c1-6`, "canary")
	s.out(t, sb.ID, `test -n "$EX_SECRET"`, with)
	s.background(t, sb.ID, `sleep 1000`, with)
	s.out(t, sb.ID, `true`, with, inSession("main"))
	term := s.terminal(t, sb.ID, client.TerminalOptions{})
	term.sees("#")
	// A call that is refused over a value must not say the value.
	for name, body := range map[string]string{
		"a name that is none": fmt.Sprintf(`{"cmd": "true", "env": {"NO=NAME": %q}}`, canary),
		"a zero byte":         fmt.Sprintf(`{"cmd": "true", "env": {"A": "%s\u0000"}}`, canary),
		"not a string":        fmt.Sprintf(`{"cmd": "true", "env": {"A": [%q]}}`, canary),
	} {
		if a := s.ask(t, "POST", "/v1/sandboxes/"+string(sb.ID)+"/exec", body); a.status != http.StatusBadRequest || strings.Contains(a.body, canary) {
			t.Errorf("%s: %d %s", name, a.status, a.body)
		}
	}
	return sb
}

// What an image has in the place of the agent, or a link there that leads elsewhere, is not what
// runs: the agent's own image comes from outside and lies over it, read-only.
func TestCaseP01TheAgentComesFromOutside(t *testing.T) {
	t.Parallel()
	const ran = "#!/bin/sh\n/bin/touch /ran\nexec /bin/sleep 1000\n"
	s := withTemplates(t, func(s *server, cache string) {
		for name, place := range map[string][]imagetest.Entry{
			"directory": {imagetest.Dir("opt", 0o777), imagetest.Dir("opt/hutch", 0o777), imagetest.Program("opt/hutch/hutch-guest", ran)},
			"link":      {imagetest.Dir("evil", 0o777), imagetest.Program("evil/hutch-guest", ran), imagetest.Dir("opt", 0o777), imagetest.Link("opt/hutch", "/evil")},
			"above":     {imagetest.Dir("evil", 0o777), imagetest.Dir("evil/hutch", 0o777), imagetest.Program("evil/hutch/hutch-guest", ran), imagetest.Link("opt", "evil")},
		} {
			im := imagetest.Image(t, v1.Config{Env: []string{"PATH=/bin"}}, imagetest.Layer(t, append(imagetest.Busybox(t, "sh", "ls", "touch", "echo", "sleep", "cat"), place...)...))
			buildTemplate(t, s, cache, "--oci", imagetest.Layout(t, map[string]v1.Image{"": im}), "--name", name)
		}
	})
	for _, name := range []string{"directory", "link", "above"} {
		sb := s.create(t, api.CreateSandbox{Template: name})
		s.inside(t, sb.ID, `[ -e /ran ] && echo ran; echo "echo x" >/opt/hutch/hutch-guest 2>/dev/null || echo read-only`, "read-only")
		if _, err := s.client.Stat(t.Context(), client.File{Sandbox: sb.ID, Path: "/opt/hutch/hutch-guest"}); err != nil {
			t.Errorf("%s: the agent answers, and is not where it is run from: %v", name, err)
		}
	}
}

// Root inside who covers or moves the agent's place changes nothing of what comes later.
func TestCaseP01TheAgentsPlaceIsNotTrusted(t *testing.T) {
	t.Parallel()
	s := own(t)
	sb := s.create(t, api.CreateSandbox{})
	for name, cmd := range map[string]string{
		"writing":    `echo x >/opt/hutch/hutch-guest`,
		"making":     `touch /opt/hutch/x`,
		"removing":   `rm -f /opt/hutch/hutch-guest`,
		"moving":     `mv /opt/hutch /opt/other`,
		"remounting": `mount -o remount,rw /opt/hutch && echo x >/opt/hutch/hutch-guest`,
	} {
		if r := s.run(t, sb.ID, cmd); r.ExitCode == 0 {
			t.Errorf("%s of what the agent is run from was possible", name)
		}
	}
	// Covering it is root's right. Nothing is run from there again.
	s.out(t, sb.ID, `mkdir -p /tmp/evil && printf '#!/bin/sh\ntouch /tmp/evil/ran\n' >/tmp/evil/hutch-guest && chmod +x /tmp/evil/hutch-guest && mount --bind /tmp/evil /opt/hutch`)
	s.pause(t, sb.ID)
	s.restart(t)
	s.resume(t, sb.ID)
	s.inside(t, sb.ID, `[ -e /tmp/evil/ran ] && echo ran; echo on`, "on")
	s.out(t, sb.ID, `true`, inSession("main"))
	s.inside(t, sb.ID, `[ -e /tmp/evil/ran ] && echo ran; echo on`, "on")
}

func TestCaseP03NothingTellsValues(t *testing.T) {
	t.Parallel()
	s := own(t, "--log-json")
	sb := s.plant(t)
	at := "/v1/sandboxes/" + string(sb.ID)
	look := func(when string) {
		t.Helper()
		for _, path := range []string{
			"/v1/sandboxes?state=new,running,paused,dead", "/v1/events?limit=100", "/v1/audit", "/metrics", "/v1/stats/boot",
			"/v1/metrics/overview", at, at + "/events", at + "/execs", at + "/logs", at + "/usage", "/v1/usage?sandbox_id=" + string(sb.ID), at + "/shells", at + "/lifecycle", "/v2/sandboxes?limit=100", "/sandboxes/" + string(sb.ID),
		} {
			a := s.ask(t, "GET", path, "", "X-API-KEY", s.key)
			if a.status != http.StatusOK && when != "ended" {
				t.Errorf("%s: GET %s: %d %s", when, path, a.status, a.body)
			}
			if strings.Contains(a.body, canary) {
				t.Errorf("%s: GET %s tells it: %s", when, path, around(a.body, canary))
			}
		}
		if out := s.log.String(); strings.Contains(out, canary) {
			t.Errorf("%s: the log tells it: %s", when, around(out, canary))
		}
		for _, args := range [][]string{{"ls"}, {"get", string(sb.ID)}, {"logs", string(sb.ID)}} {
			out, errout, err := s.hutchCLI(t, args...)
			if err != nil && when != "ended" {
				t.Errorf("%s: hutch %s: %v %s", when, args[0], err, errout)
			}
			if strings.Contains(out+errout, canary) {
				t.Errorf("%s: hutch %s tells it", when, args[0])
			}
		}
	}
	names := answered[[]api.Exec](s.ask(t, "GET", at+"/execs", "").want(200))
	if !slices.ContainsFunc(names, func(x api.Exec) bool { return slices.Contains(x.EnvNames, "EX_SECRET") }) {
		t.Errorf("the names of a command's variables are not on record: %+v", names)
	}
	look("running")
	first := s.log
	s.restart(t, "--log-json")
	if strings.Contains(first.String(), canary) {
		t.Error("the log of the first server tells it")
	}
	look("after a restart")
	if err := s.client.Kill(t.Context(), sb.ID); err != nil {
		t.Fatal(err)
	}
	look("ended")
}

// around is what stands beside something in a text.
func around(text, what string) string {
	at := strings.Index(text, what)
	return text[max(0, at-80):min(len(text), at+len(what)+40)]
}

// Nothing of the node is reached from inside: neither the server, by whatever address of the
// host, nor the gateway beyond the link, nor a neighbour, nor a socket of the host's.
func TestCaseP05NothingOfTheNodeIsReached(t *testing.T) {
	t.Parallel()
	s := own(t)
	sb, neighbour := s.create(t, api.CreateSandbox{}), s.create(t, api.CreateSandbox{})
	s.background(t, neighbour.ID, `exec python3 -m http.server 9000 --bind 0.0.0.0`)
	s.out(t, neighbour.ID, `until curl -sf http://127.0.0.1:9000/ >/dev/null; do sleep 0.05; done`, timeout(60))
	u, err := url.Parse(s.base)
	if err != nil {
		t.Fatal(err)
	}
	targets := []string{
		"127.0.0.1:" + u.Port(), "10.200.0.1:" + u.Port(), "10.200.0.1:80", "10.200.0.1:53", "10.200.0.1:22", "10.200.0.2:9000", "10.200.0.6:9000",
		"169.254.169.254:80", "169.254.170.2:80", "100.100.100.200:80", "192.168.0.1:80", "172.17.0.1:2375", "127.0.0.1:10250", "10.96.0.1:443",
	}
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range addrs {
		if ip, _, err := net.ParseCIDR(a.String()); err == nil {
			targets = append(targets, net.JoinHostPort(ip.String(), u.Port()))
		}
	}
	script := `import socket, sys, time
for t in sys.argv[1:]:
    host, _, port = t.rpartition(":")
    try:
        began = time.monotonic()
        socket.create_connection((host.strip("[]"), int(port)), 10).close()
        print("reached", t)
    except OSError as e: print("refused", "" if time.monotonic() - began < 9 else "late: " + t)`
	r, err := s.client.Exec(t.Context(), sb.ID, api.ExecRequest{Argv: append([]string{"python3", "-c", script}, targets...), TimeoutSeconds: ptr(60.0)})
	if err != nil || r.ExitCode != 0 || strings.Contains(r.Stdout, "reached") || strings.Contains(r.Stdout, "late") || strings.Count(r.Stdout, "refused") != len(targets) {
		t.Errorf("of %d addresses: %s %d %s%s, %v", len(targets), r.EndReason, r.ExitCode, r.Stdout, r.Stderr, err)
	}
	s.inside(t, sb.ID, `for f in /var/run/docker.sock /run/docker.sock /run/containerd/containerd.sock /run/systemd/private /dev/kvm /dev/mem /dev/vsock /var/run/secrets /var/lib/hutch/hutch.db; do [ -e $f ] && echo $f; done; grep -c . /proc/net/unix | grep -qx 1 || tail -n +2 /proc/net/unix | grep -v '@\?$' | awk '$8{print $8}'; echo done`, "done")
	// The files of the host that the server's parts meet by are not there either.
	s.inside(t, sb.ID, fmt.Sprintf(`ls -d %s 2>/dev/null; echo done`, s.dir), "done")
}

func TestCaseP06NoSecretIsOnDisk(t *testing.T) {
	t.Parallel()
	s := own(t)
	sb := s.plant(t)
	search := func(when string) {
		t.Helper()
		if found := grepTree(t, s.dir, canary); len(found) > 0 {
			t.Errorf("%s: it is in %q", when, found)
		}
		if found := grepTree(t, s.dir, "canary"); len(found) == 0 {
			t.Errorf("%s: the search finds nothing, not even metadata that is no secret", when)
		}
		for _, pid := range s.pids() {
			for _, file := range []string{"cmdline", "environ"} {
				b, err := os.ReadFile(filepath.Join("/proc", itoa(pid), file))
				if err == nil && bytes.Contains(b, []byte(canary)) {
					t.Errorf("%s: it is in the %s of process %d of the host", when, file, pid)
				}
			}
		}
	}
	search("running")
	s.pause(t, sb.ID)
	search("paused")
	s.restart(t)
	search("after a restart")
	s.resume(t, sb.ID)
	// Who took the sandbox over knows it. What a command prints is on record: so not that.
	s.inside(t, sb.ID, `printf %s "$SB_SECRET" | sha256sum | cut -c1-64`, sha([]byte(canary+"-sandbox")))
	if err := s.client.Kill(t.Context(), sb.ID); err != nil {
		t.Fatal(err)
	}
	search("ended")
}

// pids are the processes of the host that belong to this server.
func (s *server) pids() (pids []int) {
	procs, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, p := range procs {
		b, err := os.ReadFile(p)
		var pid int
		if err == nil && bytes.Contains(b, []byte(s.dir)) {
			if _, err := fmt.Sscan(filepath.Base(filepath.Dir(p)), &pid); err == nil {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

// grepTree names the files below dir in which text is.
func grepTree(t *testing.T, dir, text string) (found []string) {
	t.Helper()
	files := 0
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // gone meanwhile
		}
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		b, err := os.ReadFile(path)
		if errors.Is(err, unix.EINVAL) {
			return nil // a namespace that is mounted there
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		files++
		if bytes.Contains(b, []byte(text)) {
			found = append(found, strings.TrimPrefix(path, dir))
		}
		return nil
	})
	if err != nil || files < 5 {
		t.Errorf("%d files were looked through: %v", files, err)
	}
	return found
}

// What is in the server's environment, the operator's secrets among it, is in none of a
// sandbox's, however a process in it came to be.
func TestCaseP08NothingOfTheServersEnvironment(t *testing.T) {
	t.Setenv("OPERATOR_SECRET", canary)
	t.Setenv("AWS_SECRET_ACCESS_KEY", canary)
	s := own(t)
	sb := s.create(t, api.CreateSandbox{Env: map[string]string{"GIVEN": "yes"}})
	want := []string{"DEBIAN_FRONTEND", "GIVEN", "HOME", "HUTCH_EXEC_ID", "LANG", "LOGNAME", "OLDPWD", "PATH", "PWD", "SHELL", "SHLVL", "TERM", "USER", "_"}
	check := func(how, out string) {
		t.Helper()
		if strings.Contains(out, canary) {
			t.Errorf("%s: the server's own environment is there: %s", how, around(out, canary))
		}
		if !strings.Contains(out, "GIVEN=yes") {
			t.Errorf("%s: what the sandbox was given is not there: %q", how, out)
		}
		names := map[string]bool{}
		for line := range strings.Lines(out) {
			if name, _, ok := strings.Cut(line, "="); ok {
				names[name] = true
			}
		}
		for _, n := range slices.Sorted(maps.Keys(names)) {
			if !slices.Contains(want, n) && !templateSets(t, s, n) {
				t.Errorf("%s: %s is documented nowhere", how, n)
			}
		}
	}
	check("a command", s.out(t, sb.ID, `env`))
	check("a user's command", s.out(t, sb.ID, `env`, asUser("user")))
	check("a shell session", s.out(t, sb.ID, `env`, inSession("main")))
	if out := s.out(t, sb.ID, `cat /proc/*/environ | tr '\0' '\n'; cat /proc/1/cmdline`); strings.Contains(out, canary) || strings.Contains(out, s.dir) {
		t.Errorf("the processes inside hold what is the host's: %q", out)
	}
	if out := s.out(t, sb.ID, `cat /proc/1/environ | tr '\0' '\n' | cut -d= -f1 | sort | tr '\n' ' '`); out != "HOME PATH" {
		t.Errorf("the first process has %q", out)
	}
}
