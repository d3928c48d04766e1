package e2e

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"hutch.dev/hutch"
	"hutch.dev/hutch/api"
)

// Every field of a create, and of what changes a sandbox later, has its effect on a real one.
func TestSandboxesAreAsTheyAreAskedFor(t *testing.T) {
	t.Parallel()
	s := common(t)
	made := answered[api.Sandbox](s.ask(t, "POST", "/v1/sandboxes", `{"template": "base", "cpu": 1.5, "memory_mb": 384, "disk_mb": 128, "disk_tier": "memory", "pids": 80,
		"env": {"A": "1"}, "metadata": {"walk": "first", "secret.k": "hidden"}, "hostname": "box", "ttl_seconds": 600, "idle_timeout_seconds": 900,
		"private_ports": true, "mask_host": "inner.example:${PORT}", "setup": "touch /tmp/set-up; echo ready", "setup_timeout_seconds": 30}`).want(201))
	sb := made.ID
	at := "/v1/sandboxes/" + string(sb)
	t.Cleanup(func() { _ = s.client.Kill(context.WithoutCancel(t.Context()), sb) })
	if made.TTLSeconds != 600 || made.IdleTimeoutSeconds != 900 || len(made.Metadata) != 1 || int(made.ExpiresAt.Sub(made.CreatedAt).Seconds()) != 600 {
		t.Errorf("made %+v", made)
	}
	x := s.ended(t, made.SetupExecID)
	if x.Result.Stdout != "ready\n" || x.TimeoutSeconds != 30 {
		t.Errorf("set up: %+v", x)
	}
	s.inside(t, sb, `nproc; awk '/MemTotal/{print $2}' /proc/meminfo; echo $A; hostname; ls /tmp/set-up`, "2\n393216\n1\nbox\n/tmp/set-up")
	s.inside(t, sb, `python3 -c '
import subprocess
kept = []
try:
    for i in range(200): kept.append(subprocess.Popen(["sleep", "1000"]))
except OSError: print("refused after", "40 to 79" if 40 < len(kept) < 80 else len(kept))
for p in kept: p.kill()
for p in kept: p.wait()
'`, "refused after 40 to 79")
	if r := s.run(t, sb, `head -c 200000000 /dev/zero >/tmp/big; n=$(stat -c %s /tmp/big); rm /tmp/big; [ $n -gt 60000000 ] && [ $n -le 134217728 ]`); r.ExitCode != 0 || !strings.Contains(r.Stderr, "No space left") {
		t.Errorf("a file larger than the disk: %d %q %q", r.ExitCode, r.Stdout, r.Stderr)
	}
	if n, other := s.layers(t, sb), s.layers(t, s.create(t, api.CreateSandbox{}).ID); n != 0 || other == 0 {
		t.Errorf("on the memory tier %d files hold what is written, on the other %d", n, other)
	}
	c := sandboxCalls{s, sb, at}
	c.ports(t)
	c.lists(t)
	c.end(t)
}

type sandboxCalls struct {
	s  *server
	sb hutch.SandboxID
	at string
}

// layers counts the files on the host that hold what a sandbox writes. They have no name.
func (s *server) layers(t *testing.T, sb hutch.SandboxID) (n int) {
	t.Helper()
	for _, pid := range s.kernelOf(t, sb) {
		open, err := filepath.Glob("/proc/" + itoa(pid) + "/fd/*")
		if err != nil {
			t.Fatal(err)
		}
		for _, fd := range open {
			if name, err := os.Readlink(fd); err == nil && strings.Contains(name, string(sb)+"/upper/") {
				n++
			}
		}
	}
	return n
}

// ports are private, until they are not; and servers see the host that they are to see.
func (c sandboxCalls) ports(t *testing.T) {
	c.s.background(t, c.sb, `exec node -e 'require("http").createServer((q, r) => r.end(q.headers.host)).listen(3000)'`)
	c.s.out(t, c.sb, "until curl -s http://127.0.0.1:3000/ >/dev/null; do sleep 0.05; done")
	if status, body := c.s.visitPort(t, c.sb, 3000, "/"); status != http.StatusForbidden {
		t.Errorf("a private port: %d %s", status, body)
	}
	if a := c.s.ask(t, "GET", c.at+"/proxy/3000/", "").want(200); a.body != "inner.example:3000" {
		t.Errorf("the masked host is %q", a.body)
	}
	c.s.ask(t, "PATCH", c.at, `{"private_ports": false}`).want(200)
	if status, body := c.s.visitPort(t, c.sb, 3000, "/"); status != http.StatusOK || body != "inner.example:3000" {
		t.Errorf("a port that is no longer private: %d %q", status, body)
	}
	c.s.ask(t, "PATCH", c.at, `{"mask_host": ""}`).want(200)
	if status, body := c.s.visitPort(t, c.sb, 3000, "/"); status != http.StatusOK || body != "3000-"+string(c.sb)+".localhost" {
		t.Errorf("a host that is no longer masked: %d %q", status, body)
	}
	c.s.ask(t, "POST", c.at+"/ports", `{"port": 3000, "label": "web"}`).want(201)
	list := answered[[]api.Port](c.s.ask(t, "GET", c.at+"/ports", "").want(200))
	if len(list) != 1 || list[0].Label != "web" || !list[0].Listening || list[0].Source != api.PortUser {
		t.Errorf("ports: %+v", list)
	}
	c.s.ask(t, "DELETE", c.at+"/ports/3000", "").want(204)
	if list = answered[[]api.Port](c.s.ask(t, "GET", c.at+"/ports", "").want(200)); len(list) != 1 || list[0].Label != "" {
		t.Errorf("without the label: %+v", list)
	}
}

// lists hold it if they ask for what it is.
func (c sandboxCalls) lists(t *testing.T) {
	c.s.ask(t, "PATCH", c.at, `{"metadata": {"walk": "second", "more": "x"}}`).want(200)
	c.s.ask(t, "POST", c.at+"/pause", "").want(204)
	for query, there := range map[string]bool{
		"": true, "?metadata.walk=second&metadata.more=x": true, "?metadata.walk=first": false,
		"?template=base&state=paused": true, "?state=running": false, "?template=none": false, "?state=new,paused": true,
	} {
		found := false
		for _, sb := range answered[[]api.Sandbox](c.s.ask(t, "GET", "/v1/sandboxes"+query, "").want(200)) {
			found = found || sb.ID == c.sb
		}
		if found != there {
			t.Errorf("%q: found %v, want %v", query, found, there)
		}
	}
	c.s.ask(t, "POST", c.at+"/resume", "").want(204)
}

// end moves its end to where it is soon there.
func (c sandboxCalls) end(t *testing.T) {
	l := answered[api.Lifecycle](c.s.ask(t, "PATCH", c.at+"/lifecycle", `{"ttl_seconds": 1200}`).want(200))
	if later := answered[api.Sandbox](c.s.ask(t, "GET", c.at, "").want(200)); later.ExpiresAt.Sub(later.CreatedAt).Seconds() < 1200 || !l.ExpiresAt.Equal(later.ExpiresAt) {
		t.Errorf("its end was moved to %v, it shows %v", l.ExpiresAt, later.ExpiresAt)
	}
	c.s.ask(t, "PATCH", c.at+"/lifecycle", `{"persistent": true}`).want(501)
	c.s.ask(t, "PATCH", c.at+"/lifecycle", `{"ttl_seconds": 1}`).want(200)
	eventually(t, "it has expired", func() bool { return c.s.ask(t, "GET", c.at, "").status == http.StatusNotFound })
	if e := answered[api.Error](c.s.ask(t, "GET", c.at, "")); e.Code != hutch.CodeSandboxGone || e.EndReason != hutch.EndExpired {
		t.Errorf("it ended by %s: %+v", e.EndReason, e)
	}
	found := false
	for _, sb := range answered[[]api.Sandbox](c.s.ask(t, "GET", "/v1/sandboxes?state=dead", "").want(200)) {
		found = found || sb.ID == c.sb
	}
	events := answered[api.Events](c.s.ask(t, "GET", c.at+"/events?tail=1", "").want(200)).Events
	if !found || len(events) != 1 || events[0].Type != "sandbox.ended" {
		t.Errorf("among the dead: %v; its last event: %+v", found, events)
	}
}
