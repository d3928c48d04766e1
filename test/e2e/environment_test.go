package e2e

import (
	"context"
	"errors"
	"maps"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/api"
	"hutch.dev/hutch/internal/store/sqlite"
	"hutch.dev/hutch/internal/x/cgroup"
)

func TestCaseF01TemplateDefaults(t *testing.T) {
	s := own(t)
	st, err := sqlite.Open(t.Context(), filepath.Join(s.dir, "hutch.db"))
	if err != nil {
		t.Fatal(err)
	}
	tpl, err := st.Template(t.Context(), "base")
	if err != nil {
		t.Fatal(err)
	}
	tpl.Name, tpl.Aliases = "srv", nil
	tpl.Defaults = hutch.ProcessDefaults{User: "1000", Cwd: "/srv", Env: map[string]string{"A": "1", "B": "template"}}
	if err := errors.Join(st.PutTemplate(t.Context(), tpl), st.Close()); err != nil {
		t.Fatal(err)
	}
	sb := s.create(t, api.CreateSandbox{Template: "srv", Env: map[string]string{"B": "sandbox", "C": "sandbox"}})
	if out := s.out(t, sb.ID, `id -u; pwd; echo $A $B $C`); out != "1000\n/srv\n1 sandbox sandbox" {
		t.Errorf("defaults: got %q", out)
	}
	out := s.out(t, sb.ID, `id -u; pwd; echo $A $B $C`, asUser("root"), func(r *api.ExecRequest) {
		r.Cwd, r.Env = "/tmp", map[string]string{"C": "command"}
	})
	if out != "0\n/tmp\n1 sandbox command" {
		t.Errorf("the command's own: got %q", out)
	}
}

func TestCaseF03HomeAndSudo(t *testing.T) {
	s := common(t)
	sb := s.create(t, api.CreateSandbox{})
	if out := s.out(t, sb.ID, `echo $HOME; id -un; pwd`); out != "/root\nroot\n/root" {
		t.Errorf("root: got %q", out)
	}
	if out := s.out(t, sb.ID, `echo $HOME; id -un; sudo -n id -u`, asUser("user")); out != "/home/user\nuser\n0" {
		t.Errorf("user: got %q", out)
	}
	_, err := s.client.Exec(t.Context(), sb.ID, api.ExecRequest{Cmd: "true", User: "nobody-here"})
	if !errors.Is(err, hutch.ErrBadRequest) {
		t.Errorf("an unknown user: got %v, want bad_request", err)
	}
	_, err = s.client.Exec(t.Context(), sb.ID, api.ExecRequest{Cmd: "true", Cwd: "/no/such/place"})
	if !errors.Is(err, hutch.ErrBadRequest) {
		t.Errorf("an unknown cwd: got %v, want bad_request", err)
	}
}

func TestCaseF05PathIsWhatTheDocsSay(t *testing.T) {
	s := common(t)
	sb := s.create(t, api.CreateSandbox{Env: map[string]string{"PATH": "/opt/tools/bin:/usr/bin:/bin"}})
	s.out(t, sb.ID, `mkdir -p /opt/tools/bin && printf '#!/bin/sh\necho tool\n' > /opt/tools/bin/mytool && chmod +x /opt/tools/bin/mytool`)
	if out := s.out(t, sb.ID, `mytool`); out != "tool" {
		t.Errorf("PATH of the sandbox, shell form: %q", out)
	}
	res, err := s.client.Exec(t.Context(), sb.ID, api.ExecRequest{Argv: []string{"mytool"}})
	if err != nil || res.Stdout != "tool\n" {
		t.Errorf("PATH of the sandbox, argv form: %q, %v", res.Stdout, err)
	}
	if out := s.out(t, sb.ID, `node -e 'console.log(6*7)'; python3 -c 'print(6*7)'`); out != "42\n42" {
		t.Errorf("interpreters of the template: %q", out)
	}
}

func TestCaseF06SizeShowsInside(t *testing.T) {
	s := common(t)
	for _, c := range []struct {
		cpu  float64
		want string
	}{{1, "1"}, {1.5, "2"}, {2, "2"}, {4, "4"}} {
		sb := s.create(t, api.CreateSandbox{CPU: &c.cpu, MemoryMB: ptr(640)})
		out := s.out(t, sb.ID, `nproc; getconf _NPROCESSORS_ONLN; python3 -c 'import os; print(os.cpu_count(), len(os.sched_getaffinity(0)))'; grep -c ^processor /proc/cpuinfo; awk '/MemTotal/{print $2}' /proc/meminfo`)
		want := strings.Join([]string{c.want, c.want, c.want + " " + c.want, c.want, "655360"}, "\n")
		if out != want {
			t.Errorf("cpu %v: got %q, want %q", c.cpu, out, want)
		}
	}
}

// A fraction of a CPU is a quota on the host, and shows rounded up inside. What the host
// charged is read from the sandbox's group there.
func TestCaseF08FractionOfACPU(t *testing.T) {
	s := common(t)
	sb := s.create(t, api.CreateSandbox{CPU: ptr(0.5)})
	if got := s.out(t, sb.ID, `nproc`); got != "1" {
		t.Errorf("half a CPU shows as %s", got)
	}
	// However busy the host is, so much work takes no less than its time at half the speed.
	before, began := s.hostCPU(t, sb.ID), time.Now()
	id := s.background(t, sb.ID, `while :; do :; done`)
	var used time.Duration
	eventually(t, "it has worked for two seconds", func() bool {
		used = s.hostCPU(t, sb.ID) - before
		return used >= 2*time.Second
	})
	if took := time.Since(began); took < used*3/2 {
		t.Errorf("half a CPU worked for %v in %v", used, took)
	}
	if _, err := s.client.Cancel(t.Context(), id, nil); err != nil {
		t.Fatal(err)
	}
}

// hostCPU is the CPU time that the host has charged to a sandbox.
func (s *server) hostCPU(t *testing.T, id hutch.SandboxID) time.Duration {
	t.Helper()
	tree, err := cgroup.Detect(s.cgroup())
	if err != nil {
		t.Fatal(err)
	}
	group, err := tree.Open(string(id))
	if err != nil {
		t.Fatal(err)
	}
	u, err := group.Usage()
	if err != nil {
		t.Fatal(err)
	}
	return u.CPU
}

func TestCaseF10Hostnames(t *testing.T) {
	s := common(t)
	for _, name := range []string{strings.Repeat("x", 200), "ünï", "-a", "a.b", "a b"} {
		_, err := s.client.CreateSandbox(t.Context(), api.CreateSandbox{Template: "base", Hostname: name})
		if !errors.Is(err, hutch.ErrBadRequest) || !strings.Contains(err.Error(), "hostname") {
			t.Errorf("%.20q: got %v, want a bad_request that names the field", name, err)
		}
	}
	sb := s.create(t, api.CreateSandbox{Hostname: "agent-7"})
	if out := s.out(t, sb.ID, `hostname; cat /etc/hostname; getent hosts agent-7 | awk '{print $2}'`); out != "agent-7\nagent-7\nagent-7" {
		t.Errorf("got %q", out)
	}
}

// What a package needs to install without asking; the install itself waits for a network.
func TestCaseF11NothingAsks(t *testing.T) {
	s := common(t)
	sb := s.create(t, api.CreateSandbox{})
	if out := s.out(t, sb.ID, `echo $DEBIAN_FRONTEND; read x || echo closed`); out != "noninteractive\nclosed" {
		t.Errorf("got %q", out)
	}
}

// Nothing of the host's or the agent's environment is handed down.
func TestEnvironmentHoldsOnlyWhatIsDocumented(t *testing.T) {
	s := common(t)
	sb := s.create(t, api.CreateSandbox{})
	got := map[string]bool{}
	for line := range strings.Lines(s.out(t, sb.ID, `env`)) {
		name, _, _ := strings.Cut(line, "=")
		got[name] = true
	}
	want := []string{"DEBIAN_FRONTEND", "HOME", "HUTCH_EXEC_ID", "LANG", "LOGNAME", "PATH", "PWD", "SHELL", "TERM", "USER"}
	names := slices.Sorted(maps.Keys(got))
	for _, n := range names {
		if !slices.Contains(want, n) && !templateSets(t, s, n) {
			t.Errorf("the environment has %s, which nothing documents", n)
		}
	}
}

// templateSets reports whether the base template's recipe sets a variable.
func templateSets(t *testing.T, s *server, name string) bool {
	t.Helper()
	st, err := sqlite.Open(t.Context(), filepath.Join(s.dir, "hutch.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	tpl, err := st.Template(t.Context(), "base")
	if err != nil {
		t.Fatal(err)
	}
	_, ok := tpl.Defaults.Env[name]
	return ok
}

// What E2B's clients ask of the network holds: nothing gets out, whatever they ask, and what
// they are told of it is true.
func TestNoWayOutOfASandboxOfE2Bs(t *testing.T) {
	s := common(t)
	for name, body := range map[string]string{
		"what older clients send": `"allow_internet_access": true`,
		"no internet":             `"allow_internet_access": false`,
		"an address":              `"network": {"denyOut": ["192.0.2.1"]}`,
		"every address":           `"network": {"denyOut": ["0.0.0.0/0"]}`,
	} {
		t.Run(name, func(t *testing.T) {
			made := answered[struct {
				ID hutch.SandboxID `json:"sandboxID"`
			}](s.ask(t, "POST", "/v2/sandboxes", `{"templateID": "base", `+body+`}`, "X-API-KEY", s.key).want(201))
			t.Cleanup(func() {
				if err := s.client.Kill(context.WithoutCancel(t.Context()), made.ID); err != nil {
					t.Error(err)
				}
			})
			if res := s.run(t, made.ID, `curl -sS -m 20 http://192.0.2.1/`, timeout(15)); res.EndReason != hutch.ExecExit || res.ExitCode != 7 {
				t.Errorf("%s, exit code %d, %q; want a refused connection", res.EndReason, res.ExitCode, res.Stderr)
			}
			shown := answered[struct {
				Internet *bool `json:"allowInternetAccess"`
			}](s.ask(t, "GET", "/sandboxes/"+string(made.ID), "", "X-API-KEY", s.key).want(200))
			if shown.Internet == nil || *shown.Internet {
				t.Errorf("it is shown as one that reaches the internet: %v", shown.Internet)
			}
		})
	}
}

func TestNoWayOut(t *testing.T) {
	s := common(t)
	sb := s.create(t, api.CreateSandbox{})
	server, err := url.Parse(s.base)
	if err != nil {
		t.Fatal(err)
	}
	// Each would wait for longer than its limit, were it not refused. The server of this test
	// is what listens at the host's loopback for certain.
	for name, cmd := range map[string]string{
		"a name":               `RES_OPTIONS='timeout:20 attempts:1' getent hosts example.com`,
		"an address":           `curl -sS -m 20 http://192.0.2.1/`,
		"the gateway":          `curl -sS -m 20 http://10.200.0.1/`,
		"the link's last":      `curl -sS -m 20 http://10.200.0.3/`,
		"the metadata service": `curl -sS -m 20 http://169.254.169.254/`,
		"the host's loopback":  `curl -sS -m 20 http://127.0.0.1:` + server.Port() + `/readyz`,
		"ipv6":                 `curl -sS -m 20 'http://[2001:db8::1]/'`,
		"udp":                  `python3 -c 'import socket; s=socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(20); s.connect(("192.0.2.1", 53)); s.send(b"x"); s.recv(1)'`,
	} {
		res := s.run(t, sb.ID, cmd, timeout(15))
		if res.EndReason != hutch.ExecExit || res.ExitCode == 0 {
			t.Errorf("%s: %s, exit code %d after %d ms; want a quick failure", name, res.EndReason, res.ExitCode, res.DurationMS)
		}
	}
	if out := s.out(t, sb.ID, `python3 -m http.server 8000 >/dev/null 2>&1 & for i in $(seq 50); do curl -sf -o /dev/null http://localhost:8000/ && echo up && break; sleep 0.1; done`); out != "up" {
		t.Errorf("loopback inside: %q", out)
	}
}
