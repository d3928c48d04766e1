package e2e

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/api"
)

// What an operator may set about sandboxes in general, and what the server does by it.

// halt makes a sandbox's kernel stand still from outside, which nobody but this test knows of.
func (s *server) halt(t *testing.T, sb hutch.SandboxID) (goOn func()) {
	t.Helper()
	pids := s.kernelOf(t, sb)
	if len(pids) == 0 {
		t.Fatalf("sandbox %s has no kernel", sb)
	}
	for _, pid := range pids {
		if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
	}
	return sync.OnceFunc(func() {
		for _, pid := range pids {
			_ = syscall.Kill(pid, syscall.SIGCONT)
		}
	})
}

// signs are the events that say whether a sandbox answers.
func (s *server) signs(t *testing.T, sb hutch.SandboxID) (l []string) {
	t.Helper()
	for _, ev := range answered[api.Events](s.ask(t, http.MethodGet, "/v1/sandboxes/"+string(sb)+"/events", "").want(http.StatusOK)).Events {
		if strings.HasSuffix(ev.Type, "responsive") {
			l = append(l, ev.Type)
		}
	}
	return l
}

// A sandbox that stands still is noticed by the first that asks it for something, in five
// seconds, whatever it is asked for. When it goes on it is what it was.
func TestSandboxThatStandsStillIsNoticed(t *testing.T) {
	t.Parallel()
	s := own(t, "--unresponsive=keep")
	sb, other := s.create(t, api.CreateSandbox{}).ID, s.create(t, api.CreateSandbox{}).ID
	s.out(t, sb, "echo kept >/tmp/f")
	x := s.background(t, sb, "echo begun; sleep 4321")
	goOn := s.halt(t, sb)
	defer goOn()
	at := "/v1/sandboxes/" + string(sb)
	var calls sync.WaitGroup
	for path, body := range map[string]string{
		"/exec": `{"cmd": "true"}`, "/exec/stream": `{"cmd": "true"}`, "/fs/stat?path=/tmp": "", "/ports": "",
	} {
		calls.Go(func() {
			method := http.MethodPost
			if body == "" {
				method = http.MethodGet
			}
			within(t, 5*time.Second, path, func() {
				a := s.ask(t, method, at+path, body)
				if a.status != http.StatusBadGateway || !strings.Contains(a.body, `"guest_unresponsive"`) {
					t.Errorf("%s: %d %s", path, a.status, a.body)
				}
			})
		})
	}
	calls.Wait()
	eventually(t, "it is on record", func() bool { return slices.Equal(s.signs(t, sb), []string{"sandbox.unresponsive"}) })
	if out := s.out(t, other, "echo fine"); out != "fine" {
		t.Errorf("another sandbox: %q", out)
	}
	goOn()
	eventually(t, "it answers again", func() bool {
		return slices.Equal(s.signs(t, sb), []string{"sandbox.unresponsive", "sandbox.responsive"})
	})
	if out := s.out(t, sb, "cat /tmp/f"); out != "kept" {
		t.Errorf("afterwards: %q", out)
	}
	if c, err := s.client.Cancel(t.Context(), x, nil); err != nil || c.Result == nil || c.Result.Stdout != "begun\n" {
		t.Errorf("what ran: %+v, %v", c.Result, err)
	}
}

// One that stays like that is ended, with its commands, and nothing of it is left; a paused one
// stands still by right.
func TestSandboxThatStandsStillIsEnded(t *testing.T) {
	t.Parallel()
	s := own(t, "--unresponsive-after=10s")
	sb, paused := s.create(t, api.CreateSandbox{}).ID, s.create(t, api.CreateSandbox{}).ID
	x := s.background(t, sb, "echo begun; sleep 4321")
	eventually(t, "it has begun", func() bool { return s.alive(t, sb, "^sleep 4321") == 1 })
	s.pause(t, paused)
	goOn := s.halt(t, sb)
	defer goOn()
	if r := s.ended(t, x).Result; r.EndReason != hutch.ExecSandboxGone {
		t.Errorf("the command ended %s", r.EndReason)
	}
	eventually(t, "it is gone", func() bool {
		a := s.ask(t, http.MethodGet, "/v1/sandboxes/"+string(sb), "")
		return a.status == http.StatusNotFound && strings.Contains(a.body, `"end_reason":"unresponsive"`)
	})
	if got := s.signs(t, sb); !slices.Equal(got, []string{"sandbox.unresponsive"}) {
		t.Errorf("on record: %q", got)
	}
	s.resume(t, paused)
	if out := s.out(t, paused, "echo fine"); out != "fine" || len(s.signs(t, paused)) > 0 {
		t.Errorf("the paused one: %q, %q", out, s.signs(t, paused))
	}
}

// Told to stop in the middle of creates, a server finishes some and refuses the others; what it
// answered holds. Who follows something is told why that ends.
func TestServerIsDrained(t *testing.T) {
	t.Parallel()
	s := own(t)
	sb := s.create(t, api.CreateSandbox{}).ID
	x := s.background(t, sb, "echo begun; sleep 4321")
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.base+"/v1/execs/"+string(x)+"/follow", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+s.key)
	stream, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Body.Close()
	lines := bufio.NewScanner(stream.Body)
	for lines.Scan() && !strings.Contains(lines.Text(), "begun") {
	}
	var mu sync.Mutex
	made := map[hutch.SandboxID]bool{sb: true}
	first := make(chan struct{}, 12)
	var calls sync.WaitGroup
	for range 12 {
		calls.Go(func() {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.base+"/v1/sandboxes", strings.NewReader(`{"template": "base", "memory_mb": 256}`))
			if err != nil {
				t.Error(err)
				return
			}
			req.Header.Set("Authorization", "Bearer "+s.key)
			res, err := http.DefaultClient.Do(req)
			if err != nil { // it came when the server had stopped listening
				return
			}
			defer res.Body.Close()
			var got struct {
				ID   hutch.SandboxID
				Code hutch.Code
			}
			err = json.NewDecoder(res.Body).Decode(&got)
			switch {
			case err == nil && res.StatusCode == http.StatusCreated:
				mu.Lock()
				made[got.ID] = true
				mu.Unlock()
				first <- struct{}{}
			case err == nil && res.StatusCode == http.StatusServiceUnavailable && got.Code == hutch.CodeUnavailable && res.Header.Get("Retry-After") != "":
			default:
				t.Errorf("a create: %d %+v, %v", res.StatusCode, got, err)
			}
		})
	}
	received(t, "a create is answered", first)
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	within(t, 30*time.Second, "the stop", func() {
		if err := <-s.exited; err != nil {
			t.Errorf("the server ended: %v\n%s", err, s.log)
		}
	})
	calls.Wait()
	last := ""
	for lines.Scan() {
		last += lines.Text() + "\n"
	}
	if !strings.Contains(last, "event: error") || !strings.Contains(last, "the server is stopping") {
		t.Errorf("who followed was told %q, %v", last, lines.Err())
	}
	if err := s.start(); err != nil {
		t.Fatal(err)
	}
	alive := map[hutch.SandboxID]bool{}
	for _, sb := range answered[[]api.Sandbox](s.ask(t, http.MethodGet, "/v1/sandboxes?state=all", "").want(http.StatusOK)) {
		if sb.State != hutch.StateRunning {
			t.Errorf("%s is %s", sb.ID, sb.State)
		}
		alive[sb.ID] = true
		if !made[sb.ID] {
			t.Errorf("%s is there, and nobody was told of it", sb.ID)
		}
	}
	for id := range made {
		if !alive[id] {
			t.Errorf("%s was answered, and is not there", id)
		}
	}
	if got, err := s.client.Cancel(t.Context(), x, nil); err != nil || got.Result.Stdout != "begun\n" {
		t.Errorf("what ran: %+v, %v", got.Result, err)
	}
}

// No sandbox outlives the operator's limit, through whichever API it is asked for.
func TestMaxAge(t *testing.T) {
	t.Parallel()
	s := own(t, "--max-age=5m")
	sb := answered[api.Sandbox](s.ask(t, http.MethodPost, "/v1/sandboxes", `{"template": "base", "memory_mb": 256, "ttl_seconds": 3600}`).want(http.StatusCreated))
	if d := sb.ExpiresAt.Sub(sb.CreatedAt); d.Truncate(time.Second) != 5*time.Minute || sb.TTLSeconds != 300 { // it shows whole seconds of one
		t.Errorf("it ends after %v, and says %v s", d, sb.TTLSeconds)
	}
	last := sb.ExpiresAt
	l, err := s.client.Extend(t.Context(), sb.ID, time.Hour)
	if err != nil || !l.ExpiresAt.Equal(last) || l.TTLSeconds > 300 {
		t.Errorf("extended: %+v, %v, want the end to stay %v", l, err, last)
	}
	s.ask(t, http.MethodPost, "/sandboxes/"+string(sb.ID)+"/timeout", `{"timeout": 3600}`, "X-API-KEY", s.key).want(http.StatusNoContent)
	s.ask(t, http.MethodPost, "/v2/sandboxes/"+string(sb.ID)+"/connect", `{"timeout": 3600}`, "X-API-KEY", s.key)
	got, err := s.client.Sandbox(t.Context(), sb.ID)
	if err != nil || !got.ExpiresAt.Equal(last) {
		t.Errorf("by way of E2B: it ends at %v, %v, want %v", got.ExpiresAt, err, last)
	}
	if err := s.client.Kill(t.Context(), sb.ID); err != nil && !errors.Is(err, hutch.ErrSandboxGone) {
		t.Error(err)
	}
}

// What is refused for want of room says so by its code, and when to come again.
func TestCreatesOverTheLimits(t *testing.T) {
	t.Parallel()
	total := 0
	info, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Sscanf(string(info), "MemTotal: %d kB", &total); err != nil {
		t.Fatal(err)
	}
	total >>= 10
	for100 := 100 / float64(total-max(512, total/20)) // gives out 100 MiB in all
	s := own(t, "--project-max-sandboxes=2", "--project-max-cpus=4", fmt.Sprintf("--overcommit=%.9f", 6.01*for100))
	refusedOf := func(size string, status int, code hutch.Code) {
		t.Helper()
		a := s.ask(t, http.MethodPost, "/v1/sandboxes", fmt.Sprintf(`{"template": "base", %s}`, size)).want(status)
		after, _ := strconv.Atoi(a.header.Get("Retry-After"))
		if !strings.Contains(a.body, string(code)) || (status != http.StatusBadRequest && after < 1) {
			t.Errorf("%s: %s, to come again after %d s", size, a.body, after)
		}
	}
	refused := func(mb, status int, code hutch.Code) {
		t.Helper()
		refusedOf(fmt.Sprintf(`"memory_mb": %d`, mb), status, code)
	}
	refused(1024, http.StatusBadRequest, hutch.CodeBadRequest)
	first := s.create(t, api.CreateSandbox{MemoryMB: ptr(256)})
	refused(512, http.StatusServiceUnavailable, hutch.CodeNoCapacity)
	refusedOf(`"memory_mb": 64, "cpu": 5`, http.StatusBadRequest, hutch.CodeBadRequest)
	refusedOf(`"memory_mb": 64, "cpu": 3`, http.StatusTooManyRequests, hutch.CodeRateLimited)
	s.create(t, api.CreateSandbox{MemoryMB: ptr(256)})
	refused(64, http.StatusTooManyRequests, hutch.CodeRateLimited)
	if err := s.client.Kill(t.Context(), first.ID); err != nil {
		t.Fatal(err)
	}
	s.create(t, api.CreateSandbox{MemoryMB: ptr(320)})
}
