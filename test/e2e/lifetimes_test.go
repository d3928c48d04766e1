package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"

	"hutch.dev/hutch"
	"hutch.dev/hutch/api"
	"hutch.dev/hutch/client"
)

// Cases of how long a sandbox lives: what its limits of time are, and what is use of it.

// Every limit of time is a number of seconds within its bounds, the default when it is left
// out or null, and the operator's most when it is 0: anything else is refused by name.
func TestCaseL15LimitsOfTimeAreWhatTheySay(t *testing.T) {
	t.Parallel()
	s := own(t, "--default-ttl", "50m", "--max-ttl", "3h")
	for value, want := range map[string]float64{"null": 3000, "0": 3 * 3600, "90.5": 90.5, "10800": 10800} {
		made := answered[api.Sandbox](s.ask(t, "POST", "/v1/sandboxes", `{"template": "base", "memory_mb": 128, "ttl_seconds": `+value+`}`).want(201))
		over := made.ExpiresAt.Sub(made.CreatedAt).Seconds() - want // it shows whole seconds of the beginning
		if made.TTLSeconds != want || over < -0.01 || over > 1 {
			t.Errorf("ttl_seconds %s: %v, expires after %v; want %v", value, made.TTLSeconds, made.ExpiresAt.Sub(made.CreatedAt), want)
		}
		s.ask(t, "DELETE", "/v1/sandboxes/"+string(made.ID), "")
	}
	sb := s.create(t, api.CreateSandbox{})
	for _, c := range []struct{ method, path, body, field string }{
		{"POST", "/v1/sandboxes", `{"template": "base", "ttl_seconds": %s}`, "ttl_seconds"},
		{"POST", "/v1/sandboxes", `{"template": "base", "idle_timeout_seconds": %s}`, "idle_timeout_seconds"},
		{"PATCH", "/v1/sandboxes/" + string(sb.ID) + "/lifecycle", `{"ttl_seconds": %s}`, "ttl_seconds"},
		{"POST", "/v1/sandboxes/" + string(sb.ID) + "/exec", `{"cmd": "true", "timeout_seconds": %s}`, "timeout_seconds"},
	} {
		for _, value := range []string{"-1", "-0.001", "1e12", "1e400", `"60"`, `"never"`, "[]", "true"} {
			a := s.ask(t, c.method, c.path, fmt.Sprintf(c.body, value))
			e := answered[api.Error](a)
			if a.status != http.StatusBadRequest || !strings.Contains(e.Field+e.Error, c.field) {
				t.Errorf("%s %s with %s = %s: %d %s", c.method, c.path, c.field, value, a.status, a.body)
			}
		}
	}
	for _, c := range []struct {
		path, body string
		bounded    bool // else -1 is at once, and 1e12 the most there is
	}{
		{"/sandboxes", `{"templateID": "base", "timeout": %s}`, true},
		{"/v2/sandboxes/" + string(sb.ID) + "/connect", `{"timeout": %s}`, true},
		{"/sandboxes/" + string(sb.ID) + "/timeout", `{"timeout": %s}`, false},
		{"/sandboxes/" + string(sb.ID) + "/refreshes", `{"duration": %s}`, false},
	} {
		values := []string{`"60"`, "[]", "1.5e400"}
		if c.bounded {
			values = append(values, "-1", "1e12")
		}
		for _, value := range values {
			if a := s.ask(t, "POST", c.path, fmt.Sprintf(c.body, value), "X-API-KEY", s.key); a.status != http.StatusBadRequest {
				t.Errorf("POST %s with %s: %d %s", c.path, value, a.status, a.body)
			}
		}
		a := s.ask(t, "POST", c.path, fmt.Sprintf(c.body, "600"), "X-API-KEY", s.key)
		if a.status >= 300 {
			t.Errorf("POST %s with what is right: %d %s", c.path, a.status, a.body)
		}
		if made := (struct {
			ID hutch.SandboxID `json:"sandboxID"`
		}{}); c.path == "/sandboxes" && json.Unmarshal([]byte(a.body), &made) == nil {
			s.ask(t, "DELETE", "/v1/sandboxes/"+string(made.ID), "")
		}
	}
	if left := answered[[]api.Sandbox](s.ask(t, "GET", "/v1/sandboxes", "").want(200)); len(left) != 1 {
		t.Errorf("%d sandboxes are there after refusals, want 1", len(left))
	}
}

// What is use of a sandbox keeps it from being ended for idleness as long as it goes on, and
// looking at it does not. A sandbox that is made later, with the same idle timeout, and not
// used is the clock.
func TestCaseL16WhatIsActivityAndWhatIsNot(t *testing.T) {
	t.Parallel()
	s := own(t)
	idle := func() hutch.SandboxID {
		return s.create(t, api.CreateSandbox{MemoryMB: ptr(192), IdleTimeoutSeconds: ptr(3.0)}).ID
	}
	ctx, leave := context.WithCancel(t.Context())
	var users sync.WaitGroup
	defer users.Wait()
	defer leave()
	used := map[string]hutch.SandboxID{}
	use := func(name string, begin func(id hutch.SandboxID)) {
		t.Helper()
		used[name] = idle()
		begin(used[name])
	}
	use("a terminal", func(id hutch.SandboxID) { s.terminal(t, id, client.TerminalOptions{}).sees("#") })
	use("a silent command", func(id hutch.SandboxID) { s.background(t, id, `sleep 600`) })
	use("a watched directory", func(id hutch.SandboxID) { s.watch(t, id, "/workspace") })
	use("a download that is not taken", func(id hutch.SandboxID) {
		s.out(t, id, `head -c 100000000 /dev/zero >/workspace/big`)
		users.Go(func() { s.hold(ctx, "/v1/sandboxes/"+string(id)+"/fs?path=/workspace/big", "") })
	})
	use("a page that is long in coming", func(id hutch.SandboxID) {
		// The server inside must not count as the use: it is started by a command that ends.
		s.out(t, id, `setsid python3 -c '
import socket, time
s = socket.socket(); s.bind(("127.0.0.1", 8000)); s.listen()
open("/tmp/ready", "w")
kept = []
while True: kept.append(s.accept())' >/dev/null 2>&1 & until [ -e /tmp/ready ]; do sleep 0.05; done`)
		users.Go(func() { s.hold(ctx, "/", fmt.Sprintf("8000-%s.localhost", id)) })
	})
	use("a file now and then", func(id hutch.SandboxID) {
		users.Go(func() {
			_ = poll(ctx, "", func() (bool, error) {
				_, err := s.client.Stat(ctx, client.File{Sandbox: id, Path: "/workspace"})
				return false, err
			})
		})
	})
	looked, rounds := idle(), 1
	if os.Getenv("HUTCH_SOAK") != "" {
		rounds = 5
	}
	for range rounds {
		clock := idle()
		eventually(t, "one that nobody uses is ended", func() bool {
			for _, path := range []string{"", "/lifecycle", "/events", "/execs", "/usage"} {
				s.ask(t, "GET", "/v1/sandboxes/"+string(looked)+path, "")
			}
			return s.ask(t, "GET", "/v1/sandboxes/"+string(clock), "").status == http.StatusNotFound
		})
		for name, id := range used {
			if _, err := s.client.Sandbox(t.Context(), id); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	var e api.Error
	eventually(t, "one that is only looked at is ended, too", func() bool {
		a := s.ask(t, "GET", "/v1/sandboxes/"+string(looked), "")
		if a.status == http.StatusNotFound {
			e = answered[api.Error](a)
		}
		return a.status == http.StatusNotFound
	})
	if e.EndReason != hutch.EndIdle {
		t.Errorf("one that was only looked at: %+v", e)
	}
	leave()
}

// hold makes a call, reads the beginning of its answer, and leaves with ctx.
func (s *server) hold(ctx context.Context, path, host string) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.base+path, nil)
	if err != nil {
		return
	}
	req.Host = host
	req.Header.Set("Authorization", "Bearer "+s.key)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return
	}
	defer res.Body.Close()
	_, _ = io.ReadFull(res.Body, make([]byte, 1))
	<-ctx.Done()
}

// An idle timeout holds while there is no server, and what happens to the server is no use. What
// goes on inside is, as far as the server has ever known.
func TestIdlenessNeedsNoServer(t *testing.T) {
	t.Parallel()
	s := own(t)
	idle := func(after float64) hutch.SandboxID {
		return s.create(t, api.CreateSandbox{MemoryMB: ptr(128), IdleTimeoutSeconds: ptr(after)}).ID
	}
	lifecycle := func(id hutch.SandboxID) api.Lifecycle {
		t.Helper()
		l, err := s.client.Lifecycle(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	const soon = 5 // seconds; the next call is made within it
	busy := idle(soon)
	x := s.background(t, busy, `sleep 600`)
	paused := idle(soon)
	if err := s.client.Pause(t.Context(), paused); err != nil {
		t.Fatal(err)
	}
	patient := idle(3600)
	last := lifecycle(patient)
	quiet := idle(soon)
	s.kill9(t)
	if n := s.sentries(); n != 4 {
		t.Fatalf("%d sandboxes outlived the server, want 4", n)
	}
	// The keeper leaves it 10 s for use that it has not heard of.
	eventually(t, "the keeper ends the one that nobody uses", func() bool { return s.sentries() == 3 })
	if err := s.start(); err != nil {
		t.Fatal(err)
	}
	if a := s.ask(t, "GET", "/v1/sandboxes/"+string(quiet), ""); a.status != http.StatusNotFound || answered[api.Error](a).EndReason != hutch.EndIdle {
		t.Errorf("the one that nobody used: %d %s", a.status, a.body)
	}
	if now := lifecycle(patient); now.IdleSeconds < last.IdleSeconds+10 {
		t.Errorf("after the restart one that nobody used is idle for %v s, before it was for %v", now.IdleSeconds, last.IdleSeconds)
	}
	if rec, err := s.client.ExecRecord(t.Context(), x); err != nil || !rec.Running {
		t.Errorf("the command that ran on: %+v, %v", rec, err)
	}
	if err := s.client.Resume(t.Context(), paused); err != nil {
		t.Errorf("the paused one: %v", err)
	}
	s.out(t, paused, `true`)
	if _, err := s.client.Cancel(t.Context(), x, nil); err != nil {
		t.Fatal(err)
	}
	eventually(t, "those that are not used any more end", func() bool { return s.sentries() == 1 })
}
