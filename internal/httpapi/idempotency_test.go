package httpapi_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/api"
	"hutch.dev/hutch/internal/httpapi"
	"hutch.dev/hutch/internal/httpapi/httpapitest"
	"hutch.dev/hutch/internal/x/id"
)

const idem = api.HeaderIdempotencyKey

func TestKeyedCallIsDoneOnce(t *testing.T) {
	b := newBench(t, httpapi.Config{})
	first := b.do("POST", "/v1/sandboxes", `{"pids": 50}`, idem, "k1").want(201)
	again := b.do("POST", "/v1/sandboxes", `{"pids": 50}`, idem, "k1").want(201)
	if string(again.body) != string(first.body) || again.header.Get(api.HeaderReplayed) != "true" || first.header.Get(api.HeaderReplayed) != "" {
		t.Errorf("repeated: %s, first %s", again.body, first.body)
	}
	id := string(into[api.Sandbox](first).ID)
	b.do("POST", "/v1/sandboxes", `{"pids": 51}`, idem, "k1").wantError(422, "idempotency_mismatch", "")
	b.do("DELETE", "/v1/sandboxes/"+id, "", idem, "k1").wantError(422, "idempotency_mismatch", "")
	other := into[api.Sandbox](b.as(httpapitest.OtherKey).do("POST", "/v1/sandboxes", `{"pids": 50}`, idem, "k1").want(201))
	if string(other.ID) == id {
		t.Error("another project's call under the same key got this one's sandbox")
	}
	b.do("DELETE", "/v1/sandboxes/"+id, "", idem, "k2").want(204)
	b.do("DELETE", "/v1/sandboxes/"+id, "", idem, "k2").want(204)
	b.do("DELETE", "/v1/sandboxes/"+id, "", idem, "k3").wantError(404, "sandbox_gone", "")
	for _, bad := range []string{strings.Repeat("k", 256), "é"} {
		b.do("POST", "/v1/sandboxes", `{}`, idem, bad).wantError(400, "bad_request", idem)
	}
}

// verified tells of each caller that has come in.
type verified struct {
	httpapi.Authenticator
	in chan struct{}
}

func (v verified) Verify(ctx context.Context, presented string) (hutch.APIKey, error) {
	defer func() { v.in <- struct{}{} }()
	return v.Authenticator.Verify(ctx, presented)
}

func TestConcurrentRepetitionsWaitForTheFirst(t *testing.T) {
	const callers = 5
	f := httpapitest.New()
	svc, in := f.Services(), make(chan struct{}, callers)
	svc.Auth = verified{svc.Auth, in}
	s := httptest.NewServer(httpapi.New(httpapi.Config{}, svc, slog.New(slog.DiscardHandler)))
	t.Cleanup(s.Close)
	b := &bench{Fake: f, t: t, url: s.URL, key: httpapitest.AdminKey}
	var (
		creates atomic.Int32
		entered = make(chan struct{}, 10)
		open    = make(chan struct{})
	)
	b.OnCall = func(m string) error {
		if m == "CreateSandbox" {
			creates.Add(1)
			entered <- struct{}{}
			<-open
		}
		return nil
	}
	var (
		wg  sync.WaitGroup
		mu  sync.Mutex
		ids = map[hutch.SandboxID]int{}
	)
	for range callers {
		wg.Go(func() {
			sb := into[api.Sandbox](b.do("POST", "/v1/sandboxes", `{}`, idem, "same").want(201))
			mu.Lock()
			defer mu.Unlock()
			ids[sb.ID]++
		})
	}
	late := time.After(30 * time.Second)
	for range callers { // all are here before the first is done
		select {
		case <-in:
		case <-late:
			t.Fatal("not every caller came in")
		}
	}
	select {
	case <-entered:
	case <-late:
		t.Fatal("no create has begun")
	}
	close(open)
	wg.Wait()
	if creates.Load() != 1 || len(ids) != 1 {
		t.Errorf("%d creates made %d sandboxes", creates.Load(), len(ids))
	}
}

func TestRefusedCallCanBeCorrectedUnderItsKey(t *testing.T) {
	b := newBench(t, httpapi.Config{})
	b.do("POST", "/v1/sandboxes", `{"pids": 0}`, idem, "k").wantError(400, "bad_request", "pids")
	b.do("POST", "/v1/sandboxes", `{"pids": 50}`, idem, "k").want(201)
}

func TestFailedCallIsTakenOverUnderItsID(t *testing.T) {
	b := newBench(t, httpapi.Config{})
	var fail atomic.Bool
	fail.Store(true)
	b.OnCall = func(m string) error {
		if m == "CreateSandbox" && fail.Load() {
			return errors.New("disk on fire")
		}
		return nil
	}
	b.do("POST", "/v1/sandboxes", `{}`, idem, "k").wantError(500, "internal", "")
	call, ok := b.StoredCall(hutch.DefaultProject, "k")
	if !ok || call.Status != 0 || call.Ref == "" {
		t.Fatalf("after a failure the call is kept as %+v, %v", call, ok)
	}
	fail.Store(false)
	if sb := into[api.Sandbox](b.do("POST", "/v1/sandboxes", `{}`, idem, "k").want(201)); string(sb.ID) != call.Ref {
		t.Errorf("taken over as %s, want %s", sb.ID, call.Ref)
	}
}

// The process died after the work was done and before the answer was kept.
func TestInterruptedCallFindsWhatItMade(t *testing.T) {
	b := newBench(t, httpapi.Config{})
	sb := into[api.Sandbox](b.do("POST", "/v1/sandboxes", `{}`, idem, "k").want(201))
	b.Interrupt(hutch.DefaultProject, "k")
	if again := into[api.Sandbox](b.do("POST", "/v1/sandboxes", `{}`, idem, "k").want(201)); again.ID != sb.ID {
		t.Errorf("the repetition made %s beside %s", again.ID, sb.ID)
	}
	path := "/v1/sandboxes/" + string(sb.ID)
	for _, c := range [][3]string{{"POST", path + "/pause", "pause"}, {"DELETE", path, "kill"}} {
		b.do(c[0], c[1], "", idem, c[2]).want(204)
		b.Interrupt(hutch.DefaultProject, c[2])
		b.do(c[0], c[1], "", idem, c[2]).want(204)
	}
	b.Interrupt(hutch.DefaultProject, "k")
	if e := b.do("POST", "/v1/sandboxes", `{}`, idem, "k").wantError(404, "sandbox_gone", ""); e.EndReason != hutch.EndKilled {
		t.Errorf("the sandbox it made has ended, and the answer is %+v", e)
	}
}

// What ends something is done whether that can be recorded or not; nothing else is.
func TestStopsNeedNoRecord(t *testing.T) {
	b := newBench(t, httpapi.Config{})
	sb := into[api.Sandbox](b.do("POST", "/v1/sandboxes", `{}`).want(201))
	path := "/v1/sandboxes/" + string(sb.ID)
	b.Inside.SetShell(hutch.Shell{Name: "main"})
	x := into[api.Exec](b.do("POST", path+"/exec", `{"cmd": "sleep 1000", "background": true}`).want(202))
	b.Full(hutch.Errorf(hutch.CodeUnavailable, "the disk is full"))
	for _, call := range []string{"/v1/sandboxes", path + "/pause"} {
		b.do("POST", call, `{}`, idem, "k").wantError(503, "unavailable", "")
	}
	if got := into[api.Exec](b.do("POST", "/v1/execs/"+string(x.ExecID)+"/cancel", `{}`, idem, "k").want(200)); got.Result == nil || got.Result.EndReason != hutch.ExecCancelled {
		t.Errorf("the command ended so: %+v", got.Result)
	}
	b.do("DELETE", path+"/shells/main", "", idem, "k").want(204)
	b.do("DELETE", path, "", idem, "k").want(204)
	b.Full(nil)
	b.do("DELETE", path, "", idem, "k").wantError(404, "sandbox_gone", "")
}

func TestKeyedExecJoinsTheCommand(t *testing.T) {
	b := newBench(t, quick)
	var runs atomic.Int32
	open, waits := make(chan struct{}), make(chan struct{}, 10)
	b.OnCall = func(m string) error {
		if m == "WaitExec" {
			waits <- struct{}{}
		}
		return nil
	}
	b.Program("count", func(p *httpapitest.Process) int {
		fmt.Fprint(p.Stdout, runs.Add(1))
		<-open
		return 0
	})
	path := "/v1/sandboxes/" + b.sandbox() + "/exec"
	var wg sync.WaitGroup
	results := make(chan api.ExecResult, 3)
	for range 3 {
		wg.Go(func() {
			results <- into[api.ExecResult](b.do("POST", path, `{"cmd": "count"}`, idem, "x").want(200))
		})
	}
	// All three hold an answer under way only while the command runs.
	stream := b.send(b.request("POST", path+"/stream", `{"cmd": "count"}`, idem, "y"))
	again := b.send(b.request("POST", path+"/stream", `{"cmd": "count"}`, idem, "y"))
	if stream.Header.Get(api.HeaderExecID) != again.Header.Get(api.HeaderExecID) {
		t.Error("a repeated stream is about another command")
	}
	for range 3 {
		select {
		case <-waits:
		case <-time.After(30 * time.Second):
			t.Fatal("not every caller waits for the command that runs")
		}
	}
	close(open)
	wg.Wait()
	for range 3 {
		if r := <-results; r.ExitCode != 0 || (r.Stdout != "1" && r.Stdout != "2") {
			t.Errorf("result %+v", r)
		}
	}
	first, _ := joined(t, b.events(stream), "stdout")
	second, _ := joined(t, b.events(again), "stdout")
	if first != second || first == "" {
		t.Errorf("the two streams gave %q and %q", first, second)
	}
	if runs.Load() != 2 {
		t.Errorf("%d commands were run under two keys", runs.Load())
	}
	// And long after.
	if r := into[api.ExecResult](b.do("POST", path, `{"cmd": "count"}`, idem, "x").want(200)); r.Stdout != "1" && r.Stdout != "2" {
		t.Errorf("a late repetition gave %+v", r)
	}
	b.do("POST", path, `{"cmd": "true"}`, idem, "x").wantError(422, "idempotency_mismatch", "")
	b.do("POST", path, `{}`, idem, "z").wantError(400, "bad_request", "cmd")
	b.do("POST", path, `{"cmd": "true"}`, idem, "z").want(200)
}

func TestKeysAreNotKeptForRepetitions(t *testing.T) {
	b := newBench(t, httpapi.Config{})
	first := into[api.Key](b.do("POST", "/v1/keys", `{"name": "n"}`, idem, "k").want(201))
	call, _ := b.StoredCall(hutch.DefaultProject, "k")
	if strings.Contains(string(call.Body), first.Key) {
		t.Errorf("the key itself is stored: %s", call.Body)
	}
	again := into[api.Key](b.do("POST", "/v1/keys", `{"name": "n"}`, idem, "k").want(201))
	if again.Key != "" || again.Prefix != first.Prefix {
		t.Errorf("repeated: %+v, first %+v", again, first)
	}
	b.do("DELETE", "/v1/keys/"+first.Prefix, "", idem, "d").want(204)
	b.Interrupt(hutch.DefaultProject, "d")
	b.do("DELETE", "/v1/keys/"+first.Prefix, "", idem, "d").want(204)
}

func TestLargeAnswersAreMadeAgainRatherThanKept(t *testing.T) {
	b := newBench(t, httpapi.Config{})
	b.Program("long", func(p *httpapitest.Process) int {
		_, _ = p.Stdout.Write(make([]byte, 1<<20))
		<-p.Stopped
		return 143
	})
	x := into[api.Exec](b.do("POST", "/v1/sandboxes/"+b.sandbox()+"/exec", `{"cmd": "long", "background": true, "max_output_bytes": 4194304}`).want(202))
	path := "/v1/execs/" + string(x.ExecID) + "/cancel"
	first := b.do("POST", path, "", idem, "c").want(http.StatusOK)
	if call, _ := b.StoredCall(hutch.DefaultProject, "c"); call.Status != 0 || len(call.Body) != 0 {
		t.Errorf("%d bytes are kept", len(call.Body))
	}
	if again := b.do("POST", path, "", idem, "c").want(http.StatusOK); string(again.body) != string(first.body) {
		t.Error("the answer made again differs")
	}
}

// ahead hands out ids of machines that were prepared.
type ahead struct {
	mu       sync.Mutex
	ids      []hutch.SandboxID
	released []hutch.SandboxID
	asked    []hutch.CreateSandbox
}

func (a *ahead) ClaimPrepared(_ context.Context, req hutch.CreateSandbox) (id hutch.SandboxID, release func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.asked = append(a.asked, req)
	if len(a.ids) == 0 {
		return "", func() {}
	}
	id, a.ids = a.ids[0], a.ids[1:]
	return id, func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.released = append(a.released, id)
	}
}

// A keyed create is made under the id of a prepared machine, which is on record before; what a
// call has claimed it gives back when it is over.
func TestKeyedCreateClaimsWhatIsPrepared(t *testing.T) {
	first, second, third := hutch.SandboxID(id.NewSandbox()), hutch.SandboxID(id.NewSandbox()), hutch.SandboxID(id.NewSandbox())
	prepared := &ahead{ids: []hutch.SandboxID{first, second, third}}
	f := httpapitest.New()
	services := f.Services()
	services.Prepared = prepared
	h := httpapi.New(httpapi.Config{}, services, slog.New(slog.DiscardHandler))
	s := httptest.NewServer(h)
	t.Cleanup(func() {
		s.Close()
		h.Close()
	})
	b := &bench{Fake: f, t: t, url: s.URL, key: httpapitest.AdminKey}

	if sb := into[api.Sandbox](b.do("POST", "/v1/sandboxes", `{"pids": 50}`, idem, "k1").want(201)); sb.ID != first {
		t.Errorf("made %s, want %s", sb.ID, first)
	}
	if c, ok := b.StoredCall(hutch.DefaultProject, "k1"); !ok || c.Ref != string(first) {
		t.Errorf("on record is %q", c.Ref)
	}
	if sb := into[api.Sandbox](b.do("POST", "/v1/sandboxes", `{"pids": 50}`, idem, "k1").want(201)); sb.ID != first {
		t.Errorf("repeated, it is %s, want %s", sb.ID, first)
	}
	if sb := into[api.Sandbox](b.do("POST", "/v1/sandboxes", `{}`, idem, "k2").want(201)); sb.ID != third {
		t.Errorf("made %s, want %s", sb.ID, third)
	}
	b.do("POST", "/v1/sandboxes", `{"pids": "many"}`, idem, "k3").want(400) // nothing to claim for
	if sb := into[api.Sandbox](b.do("POST", "/v1/sandboxes", `{}`, idem, "k4").want(201)); sb.ID == "" {
		t.Error("with nothing prepared none was made")
	}
	if len(prepared.asked) != 4 || prepared.asked[0].Resources.Pids != 50 || prepared.asked[0].Project != hutch.DefaultProject {
		t.Errorf("asked for: %+v", prepared.asked)
	}
	if want := []hutch.SandboxID{first, second, third}; !slices.Equal(prepared.released, want) {
		t.Errorf("given back: %v, want %v", prepared.released, want)
	}
}
