package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/api"
	"hutch.dev/hutch/client"
	"hutch.dev/hutch/internal/store/sqlite"
)

// Cases of the life of a sandbox: what a pause, a restart and a failed start leave. A pause here
// is in memory; what is said of one on disk waits for it.

func (s *server) pause(t *testing.T, id hutch.SandboxID) {
	t.Helper()
	if err := s.client.Pause(t.Context(), id); err != nil {
		t.Fatalf("pause: %v", err)
	}
}

func (s *server) resume(t *testing.T, id hutch.SandboxID) {
	t.Helper()
	if err := s.client.Resume(t.Context(), id); err != nil {
		t.Fatalf("resume: %v", err)
	}
}

// record reads a sandbox's record as the server keeps it.
func (s *server) record(t *testing.T, id hutch.SandboxID) hutch.Sandbox {
	t.Helper()
	st, err := sqlite.Open(t.Context(), filepath.Join(s.dir, "hutch.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = st.Close() }()
	sb, err := st.Sandbox(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	return sb
}

// restart kills the server and starts it again, with the same arguments as before if none
// are given.
func (s *server) restart(t *testing.T, args ...string) {
	t.Helper()
	s.kill9(t)
	if err := s.start(args...); err != nil {
		t.Fatal(err)
	}
}

func TestCaseL01EveryPauseKeepsEveryChange(t *testing.T) {
	s := common(t)
	sb := s.create(t, api.CreateSandbox{})
	for i := range 10 {
		s.out(t, sb.ID, fmt.Sprintf(`echo %d >/workspace/f%d; echo %d >/dev/shm/f%d`, i, i, i, i))
		s.pause(t, sb.ID)
		s.resume(t, sb.ID)
		want := ""
		for j := range i + 1 {
			want += fmt.Sprintf("%d\n%d\n", j, j)
		}
		if got := s.out(t, sb.ID, fmt.Sprintf(`for i in $(seq 0 %d); do cat /workspace/f$i /dev/shm/f$i; done`, i)); got+"\n" != want {
			t.Errorf("after pause %d: %q, want %q", i+1, got, want)
		}
	}
}

// A pause is as long as its caller likes: nothing but its end ends it, and no clock inside is
// behind afterwards.
func TestCaseL03APauseOutlivesTheServer(t *testing.T) {
	s := own(t)
	sb := s.create(t, api.CreateSandbox{})
	s.out(t, sb.ID, `echo kept >/workspace/f`)
	x := s.background(t, sb.ID, `read line; echo "got $line"`, func(r *api.ExecRequest) { r.StdinOpen = true })
	s.pause(t, sb.ID)
	s.restart(t)
	s.restart(t)
	if got, err := s.client.Sandbox(t.Context(), sb.ID); err != nil || got.State != hutch.StatePaused {
		t.Fatalf("after two restarts: %+v, %v", got, err)
	}
	s.resume(t, sb.ID)
	s.inside(t, sb.ID, `cat /workspace/f`, "kept")
	if now := s.out(t, sb.ID, `date +%s`); !near(now, time.Now(), time.Minute) {
		t.Errorf("the clock inside says %s", now)
	}
	if _, err := s.client.WriteStdin(t.Context(), x, 0, strings.NewReader("word\n"), true); err != nil {
		t.Fatal(err)
	}
	if r := s.ended(t, x).Result; r.Stdout != "got word\n" || r.ExitCode != 0 {
		t.Errorf("the command of before the pause: %+v", r)
	}
}

// near says whether seconds since 1970 are at most d from a time.
func near(seconds string, at time.Time, d time.Duration) bool {
	var n int64
	_, err := fmt.Sscan(seconds, &n)
	return err == nil && time.Unix(n, 0).Sub(at).Abs() <= d
}

func TestCaseL05PausedIsListed(t *testing.T) {
	s := common(t)
	sb := s.create(t, api.CreateSandbox{})
	s.pause(t, sb.ID)
	state := ""
	for l, err := range s.client.Sandboxes(t.Context(), client.SandboxFilter{}) {
		if err != nil {
			t.Fatal(err)
		}
		if l.ID == sb.ID {
			state = string(l.State) + " " + string(l.Status)
		}
	}
	if state != "paused paused" {
		t.Errorf("the native list shows it as %q", state)
	}
	out, errout, err := s.hutchCLI(t, "ls")
	if !slices.ContainsFunc(strings.Split(out, "\n"), func(l string) bool {
		return strings.HasPrefix(l, string(sb.ID)) && strings.Contains(l, "paused")
	}) {
		t.Errorf("hutch ls: %v %s\n%s", err, errout, out)
	}
	type listed struct {
		ID    hutch.SandboxID `json:"sandboxID"`
		State string          `json:"state"`
	}
	found := false
	for _, l := range answered[[]listed](s.ask(t, "GET", "/v2/sandboxes?limit=100", "", "X-API-KEY", s.key).want(200)) {
		found = found || l == listed{sb.ID, "paused"}
	}
	if !found {
		t.Error("E2B's list does not show it as paused")
	}
}

// A server that is killed at any moment of a pause or a resume leaves a sandbox that is one or
// the other after the next start, and goes on from there.
func TestCaseL08KilledInTheMiddleOfAPause(t *testing.T) {
	s := own(t)
	sb := s.create(t, api.CreateSandbox{})
	s.out(t, sb.ID, `echo kept >/workspace/f`)
	for i := range 8 {
		turn := s.client.Pause
		if i%2 == 1 {
			turn = s.client.Resume
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			_ = turn(ctx, sb.ID) // it may be answered, or not
		}()
		select {
		case <-done:
		case <-time.After(time.Duration(i) * 2 * time.Millisecond):
		}
		s.kill9(t)
		cancel()
		<-done
		if err := s.start(); err != nil {
			t.Fatal(err)
		}
		var got api.Sandbox
		eventually(t, "it has settled", func() bool {
			var err error
			if got, err = s.client.Sandbox(t.Context(), sb.ID); err != nil {
				t.Fatal(err)
			}
			return got.Transition == ""
		})
		if got.State == hutch.StateRunning {
			s.inside(t, sb.ID, `cat /workspace/f`, "kept")
		} else if _, err := s.client.Exec(t.Context(), sb.ID, api.ExecRequest{Cmd: "true"}); !errors.Is(err, hutch.ErrInvalidState) {
			t.Errorf("it is %s, and a command in it: %v", got.State, err)
		}
		if i%2 == 0 { // the next is a resume
			s.pause(t, sb.ID)
		} else {
			s.resume(t, sb.ID)
		}
	}
	s.inside(t, sb.ID, `cat /workspace/f`, "kept")
}

// Neither the server's nor the gateway's end, nor both at once, costs a sandbox its network or
// its pause.
func TestCaseL10RestartWithManyRunningAndPaused(t *testing.T) {
	n := 4 // of each
	if os.Getenv("HUTCH_SOAK") != "" {
		n = 10
	}
	s := own(t)
	ids := make([]hutch.SandboxID, 2*n)
	parallel(t, len(ids), 2, func(i int) {
		sb, err := s.client.CreateSandbox(t.Context(), api.CreateSandbox{Template: "base", MemoryMB: ptr(128)})
		if err != nil {
			t.Error(err)
			return
		}
		ids[i] = sb.ID
		s.out(t, sb.ID, fmt.Sprintf(`mkdir /workspace/w && echo page %d >/workspace/w/index.html`, i))
		s.background(t, sb.ID, `cd /workspace/w && exec python3 -m http.server 8000`)
		s.out(t, sb.ID, `until curl -sf http://127.0.0.1:8000/ >/dev/null; do sleep 0.05; done`, timeout(60))
		if i >= n {
			s.pause(t, sb.ID)
		}
	})
	if t.Failed() {
		return
	}
	s.kill9(t)
	s.killCompanion(t, "egress")
	if err := s.start(); err != nil {
		t.Fatal(err)
	}
	parallel(t, len(ids), 2, func(i int) {
		if i >= n {
			if err := s.client.Resume(t.Context(), ids[i]); err != nil {
				t.Errorf("resume %d: %v", i, err)
				return
			}
		}
		res, err := s.client.Exec(t.Context(), ids[i], api.ExecRequest{Cmd: `curl -s http://127.0.0.1:8000/`})
		want := fmt.Sprintf("page %d\n", i)
		if err != nil || res.Stdout != want {
			t.Errorf("a command in %d: %q %q, %v", i, res.Stdout, res.Stderr, err)
		}
		if status, body := s.visitPort(t, ids[i], 8000, "/"); status != http.StatusOK || body != want {
			t.Errorf("the port of %d: %d %q", i, status, body)
		}
	})
}

func TestCaseL11MetadataSurvivesAPause(t *testing.T) {
	s := own(t)
	sb := s.create(t, api.CreateSandbox{Metadata: map[string]string{"walk": "l11", "secret.word": "hidden", "odd": "a=b&c,d"}})
	other := s.create(t, api.CreateSandbox{Metadata: map[string]string{"walk": "other"}})
	check := func(when string) {
		t.Helper()
		for _, q := range []string{
			"metadata.walk=l11", "metadata.secret.word=hidden", "metadata.odd=a%3Db%26c%2Cd",
			"metadata.walk=l11&metadata.odd=a%3Db%26c%2Cd&state=running,paused",
		} {
			var found []hutch.SandboxID
			for _, l := range answered[[]api.Sandbox](s.ask(t, "GET", "/v1/sandboxes?"+q, "").want(200)) {
				found = append(found, l.ID)
			}
			if !slices.Equal(found, []hutch.SandboxID{sb.ID}) {
				t.Errorf("%s, by %s: %v, want %s and not %s", when, q, found, sb.ID, other.ID)
			}
		}
		got, err := s.client.Sandbox(t.Context(), sb.ID)
		if err != nil || got.Metadata["walk"] != "l11" || got.Metadata["odd"] != "a=b&c,d" || got.Metadata["secret.word"] != "" {
			t.Errorf("%s: %v, %v", when, got.Metadata, err)
		}
	}
	check("before")
	s.pause(t, sb.ID)
	check("paused")
	s.restart(t)
	check("after a restart")
	s.resume(t, sb.ID)
	check("resumed")
}

// What takes no body takes every way to send none.
func TestCaseL13ResumeTakesAnyEmptyBody(t *testing.T) {
	s := common(t)
	sb := s.create(t, api.CreateSandbox{})
	bodies := []struct{ body, typ string }{{"", ""}, {"", "application/json"}, {"{}", "application/json"}, {"{}", ""}, {"{}", "text/plain"}, {" \n", ""}}
	for _, b := range bodies {
		for _, call := range []string{"/v1/sandboxes/%s/pause", "/v1/sandboxes/%s/resume"} {
			if a := s.send(t, fmt.Sprintf(call, sb.ID), b.body, b.typ); a.status != http.StatusNoContent {
				t.Errorf("%s with %q as %q: %d %s", call, b.body, b.typ, a.status, a.body)
			}
		}
		s.pause(t, sb.ID)
		if a := s.send(t, fmt.Sprintf("/v2/sandboxes/%s/connect", sb.ID), b.body, b.typ); a.status != http.StatusCreated {
			t.Errorf("connect with %q as %q: %d %s", b.body, b.typ, a.status, a.body)
		}
		s.inside(t, sb.ID, `echo on`, "on")
	}
}

// send posts a body as the type it is given, or as none.
func (s *server) send(t *testing.T, path, body, typ string) asked {
	t.Helper()
	headers := []string{"X-API-KEY", s.key}
	if typ != "" {
		headers = append(headers, "Content-Type", typ)
	}
	return s.ask(t, "POST", path, body, headers...)
}

// Every limit of time is a number of seconds within its bounds, the default when it is left
// out or null, and the operator's most when it is 0: anything else is refused by name.
func TestCaseL15LimitsOfTimeAreWhatTheySay(t *testing.T) {
	s := own(t, "--default-ttl", "50m", "--max-ttl", "3h")
	for value, want := range map[string]float64{"null": 3000, "0": 3 * 3600, "10": 10, "1.5": 1.5, "10800": 10800} {
		made := answered[api.Sandbox](s.ask(t, "POST", "/v1/sandboxes", `{"template": "base", "memory_mb": 128, "ttl_seconds": `+value+`}`).want(201))
		if made.TTLSeconds != want || made.ExpiresAt.Sub(made.CreatedAt).Round(time.Second).Seconds()-want > 1 {
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
	if left := answered[[]api.Sandbox](s.ask(t, "GET", "/v1/sandboxes", "").want(200)); len(left) != 1 {
		t.Errorf("%d sandboxes are there after refusals, want 1", len(left))
	}
}

// What is use of a sandbox keeps it from being ended for idleness as long as it goes on, and
// looking at it does not. A sandbox that is made later, with the same idle timeout, and not
// used is the clock.
func TestCaseL16WhatIsActivityAndWhatIsNot(t *testing.T) {
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
	looked := idle()
	for range 3 {
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
	if e := answered[api.Error](s.ask(t, "GET", "/v1/sandboxes/"+string(looked), "")); e.EndReason != hutch.EndIdle {
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

// A start that fails leaves a record that says why, which can be read, listed and deleted, and
// nothing that keeps the next from working.
func TestCaseL18AFailedStartIsToldAndForgotten(t *testing.T) {
	s := own(t)
	st, err := sqlite.Open(t.Context(), filepath.Join(s.dir, "hutch.db"))
	if err != nil {
		t.Fatal(err)
	}
	broken, err := st.Template(t.Context(), "base")
	if err != nil {
		t.Fatal(err)
	}
	broken.Name, broken.Aliases = "broken", nil
	broken.Image = "sha256:" + strings.Repeat("0", 64)
	if err := errors.Join(st.PutTemplate(t.Context(), broken), st.Close()); err != nil {
		t.Fatal(err)
	}
	const key = "l18-key"
	create := func(headers ...string) asked {
		return s.ask(t, "POST", "/v1/sandboxes", `{"template": "broken", "memory_mb": 128, "metadata": {"walk": "l18"}}`, headers...)
	}
	for i, a := range []asked{create("Idempotency-Key", key), create("Idempotency-Key", key), create()} {
		if e := answered[api.Error](a); a.status < 400 || e.Code == "" || e.Error == "" {
			t.Fatalf("attempt %d: %d %s", i, a.status, a.body)
		}
		if strings.Contains(a.body, s.dir) || strings.Contains(a.body, "/var/") {
			t.Errorf("attempt %d names a path of the host: %s", i, a.body)
		}
	}
	dead := answered[[]api.Sandbox](s.ask(t, "GET", "/v1/sandboxes?state=dead&metadata.walk=l18", "").want(200))
	if len(dead) == 0 {
		t.Fatal("no record of the failed starts is kept")
	}
	for _, sb := range dead {
		if sb.EndReason != hutch.EndStartFailed || sb.EndDetail == "" || sb.Status != api.StatusFailed {
			t.Errorf("its record: %+v", sb)
		}
		at := "/v1/sandboxes/" + string(sb.ID)
		if e := answered[api.Error](s.ask(t, "GET", at, "").want(404)); e.EndReason != hutch.EndStartFailed {
			t.Errorf("a look at it: %+v", e)
		}
		s.ask(t, "DELETE", at, "").want(404)
		if e := answered[api.Events](s.ask(t, "GET", at+"/events", "").want(200)).Events; len(e) == 0 || e[len(e)-1].Type != "sandbox.ended" || e[len(e)-1].Data["reason"] != string(hutch.EndStartFailed) {
			t.Errorf("its events: %+v", e)
		}
	}
	if alive := answered[[]api.Sandbox](s.ask(t, "GET", "/v1/sandboxes", "").want(200)); len(alive) != 0 || s.sandboxProcesses() != 0 {
		t.Errorf("%d sandboxes and %d processes are left", len(alive), s.sandboxProcesses())
	}
	s.inside(t, s.create(t, api.CreateSandbox{}).ID, `echo works`, "works")
}

// One server has the data directory, and with it the right to act on its sandboxes, until it
// is gone, however it goes; what the next one does carries a higher epoch.
func TestCaseL21TheHolderDiesAndTheNextTakesOver(t *testing.T) {
	s := own(t)
	sb := s.create(t, api.CreateSandbox{})
	exe, err := hutchBinary()
	if err != nil {
		t.Fatal(err)
	}
	second := exec.CommandContext(t.Context(), exe, "serve", "--data-dir", s.dir, "--listen", "127.0.0.1:0")
	if out, err := second.CombinedOutput(); err == nil || !strings.Contains(string(out), "another") && !strings.Contains(string(out), "already") {
		t.Errorf("a second server on the same directory: %v\n%s", err, out)
	}
	epoch := s.record(t, sb.ID).Epoch
	for range 3 {
		done := make(chan struct{})
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			defer close(done)
			_ = s.client.Pause(ctx, sb.ID)
		}()
		s.kill9(t) // at whatever moment of the pause
		cancel()
		<-done
		if err := s.start(); err != nil {
			t.Fatalf("the next server: %v", err)
		}
		s.pause(t, sb.ID)
		s.resume(t, sb.ID)
		s.inside(t, sb.ID, `echo mine`, "mine")
		now := s.record(t, sb.ID)
		if now.Epoch <= epoch || now.Transition != "" {
			t.Errorf("epoch %d after %d, %s", now.Epoch, epoch, now.Transition)
		}
		epoch = now.Epoch
	}
	if _, err := os.Stat(filepath.Join(s.dir, "hutch.db")); err != nil {
		t.Error(err)
	}
}
