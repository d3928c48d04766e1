package client_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/api"
	"hutch.dev/hutch/client"
	"hutch.dev/hutch/internal/httpapi"
	"hutch.dev/hutch/internal/httpapi/httpapitest"
)

// clock notes the waits it is asked for and takes no time.
type clock struct {
	mu    sync.Mutex
	waits []time.Duration
}

func (c *clock) sleep(ctx context.Context, d time.Duration) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.waits = append(c.waits, d)
	return ctx.Err()
}

func (c *clock) option(chance float64) client.Option {
	return client.WithClock(func() float64 { return chance }, c.sleep)
}

func newClient(t testing.TB, url string, opts ...client.Option) *client.Client {
	t.Helper()
	c, err := client.New(url, append([]client.Option{client.WithKey(httpapitest.AdminKey)}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// front stands before a server and interferes.
type front struct {
	mu   sync.Mutex
	seen []*http.Request
	// interfere may answer a request itself (and return true); n counts from 0.
	interfere func(n int, w http.ResponseWriter, r *http.Request) bool
	next      http.Handler
}

func (f *front) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	n := len(f.seen)
	f.seen = append(f.seen, r)
	f.mu.Unlock()
	if f.interfere == nil || !f.interfere(n, w, r) {
		f.next.ServeHTTP(w, r)
	}
}

func (f *front) requests() []*http.Request {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.seen)
}

func newFront(t testing.TB, interfere func(int, http.ResponseWriter, *http.Request) bool) (*httpapitest.Fake, *front, string) {
	t.Helper()
	fake := httpapitest.New()
	u, err := url.Parse(fake.Server(t, httpapi.Config{Keepalive: 10 * time.Millisecond}).URL)
	if err != nil {
		t.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(u)
	proxy.FlushInterval = -1
	f := &front{interfere: interfere, next: proxy}
	s := httptest.NewServer(f)
	t.Cleanup(s.Close)
	return fake, f, s.URL
}

func refuse(w http.ResponseWriter, status int, code hutch.Code, retryAfter string) bool {
	if retryAfter != "" {
		w.Header().Set("Retry-After", retryAfter)
	}
	w.WriteHeader(status)
	fmt.Fprintf(w, `{"error": "refused for the test", "code": %q}`, code)
	return true
}

// hangUp breaks the connection without an answer.
func hangUp(http.ResponseWriter, *http.Request) bool { panic(http.ErrAbortHandler) }

func TestWholeLife(t *testing.T) {
	fake := httpapitest.New()
	ctx, c := t.Context(), newClient(t, fake.Server(t, httpapi.Config{}).URL)
	cpu := 1.5
	sb, err := c.CreateSandbox(ctx, api.CreateSandbox{CPU: &cpu, Metadata: map[string]string{"a": "b"}})
	if err != nil || sb.CPU != 1.5 {
		t.Fatalf("create: %+v, %v", sb, err)
	}
	if got, err := c.Sandbox(ctx, sb.ID); err != nil || got.ID != sb.ID {
		t.Errorf("get: %+v, %v", got, err)
	}
	for range 4 {
		if _, err := c.CreateSandbox(ctx, api.CreateSandbox{}); err != nil {
			t.Fatal(err)
		}
	}
	n := 0
	for _, err := range c.Sandboxes(ctx, client.SandboxFilter{PageSize: 2, States: []hutch.State{hutch.StateRunning}}) {
		if err != nil {
			t.Fatal(err)
		}
		n++
	}
	if n != 5 {
		t.Errorf("listed %d sandboxes over pages of 2, want 5", n)
	}
	n = 0
	for got, err := range c.Sandboxes(ctx, client.SandboxFilter{Metadata: map[string]string{"a": "b"}, Template: "base", All: true}) {
		if err != nil || got.ID != sb.ID {
			t.Errorf("filtered to %+v, %v", got, err)
		}
		n++
	}
	if n != 1 {
		t.Errorf("filtered to %d, want 1", n)
	}
	if l, err := c.Extend(ctx, sb.ID, 2*time.Hour); err != nil || l.TTLSeconds != 7200 {
		t.Errorf("extend: %+v, %v", l, err)
	}
	if l, err := c.Lifecycle(ctx, sb.ID); err != nil || l.TTLSeconds != 7200 {
		t.Errorf("lifecycle: %+v, %v", l, err)
	}
	if _, err := c.Renew(ctx, sb.ID); !errors.Is(err, hutch.ErrInvalidState) {
		t.Errorf("renew what has no lease: %v", err)
	}
	lease := 60.0
	if owned, err := c.CreateSandbox(ctx, api.CreateSandbox{LeaseSeconds: &lease}); err != nil || owned.LeasedTo.IsZero() {
		t.Errorf("create with a lease: %+v, %v", owned, err)
	} else if l, err := c.Renew(ctx, owned.ID); err != nil || l.LeaseSeconds != 60 || l.LeasedTo.Before(owned.LeasedTo) {
		t.Errorf("renew: %+v, %v", l, err)
	}
	for what, look := range map[string]func(context.Context) (api.Leaks, error){"look": c.Leaks, "sweep": c.SweepLeaks} {
		if l, err := look(ctx); err != nil || len(l.Leaks)+len(l.Swept) != 0 {
			t.Errorf("%s for leaks: %+v, %v", what, l, err)
		}
	}
	if err := c.Pause(ctx, sb.ID); err != nil {
		t.Error(err)
	}
	if _, err := c.Exec(ctx, sb.ID, api.ExecRequest{Cmd: "true"}); !errors.Is(err, hutch.ErrInvalidState) {
		t.Errorf("exec in a paused sandbox: %v", err)
	}
	if err := c.Resume(ctx, sb.ID); err != nil {
		t.Error(err)
	}
	if r, err := c.Exec(ctx, sb.ID, api.ExecRequest{Argv: []string{"echo", "hi"}}); err != nil || r.Stdout != "hi\n" {
		t.Errorf("exec: %+v, %v", r, err)
	}
	if err := c.Kill(ctx, sb.ID); err != nil {
		t.Error(err)
	}
	_, err = c.Sandbox(ctx, sb.ID)
	var e *client.Error
	if !errors.Is(err, hutch.ErrSandboxGone) || !errors.As(err, &e) || e.EndReason != hutch.EndKilled || e.Status != 404 {
		t.Errorf("get after kill: %#v", err)
	}
	var types []string
	if err := c.Events(ctx, sb.ID, 0, func(ev api.Event) error { types = append(types, ev.Type); return nil }); err != nil {
		t.Error(err)
	}
	if want := []string{"sandbox.started", "sandbox.paused", "sandbox.resumed", "exec.started", "sandbox.ended"}; !slices.Equal(types, want) {
		t.Errorf("events %v, want %v", types, want)
	}
	n = 0
	for x, err := range c.Execs(ctx, sb.ID, false) {
		if err != nil || x.Running {
			t.Errorf("exec %+v, %v", x, err)
		}
		n++
	}
	if n != 1 {
		t.Errorf("%d commands are on record, want 1", n)
	}
}

func TestKeysAndTheRest(t *testing.T) {
	fake := httpapitest.New()
	ctx, c := t.Context(), newClient(t, fake.Server(t, httpapi.Config{}).URL)
	k, err := c.CreateKey(ctx, api.CreateKey{Name: "n"})
	if err != nil || k.Key == "" {
		t.Fatalf("create key: %+v, %v", k, err)
	}
	if ks, err := c.Keys(ctx); err != nil || len(ks) != 4 {
		t.Errorf("keys: %+v, %v", ks, err)
	}
	if err := c.RevokeKey(ctx, k.Prefix); err != nil {
		t.Error(err)
	}
	if me, err := c.Me(ctx); err != nil || me.Scope != hutch.ScopeAdmin {
		t.Errorf("me: %+v, %v", me, err)
	}
	if ts, err := c.Templates(ctx); err != nil || len(ts) != 1 {
		t.Errorf("templates: %+v, %v", ts, err)
	}
	if tpl, err := c.Template(ctx, "base"); err != nil || tpl.Name != "base" {
		t.Errorf("template: %+v, %v", tpl, err)
	}
	if v, err := c.ServerVersion(ctx); err != nil || v.Service != "hutch" {
		t.Errorf("version: %+v, %v", v, err)
	}
}

func TestNewRefusesAddressesThatAreNone(t *testing.T) {
	for _, bad := range []string{"", "localhost:8080", "ftp://x", "http://", ":::"} {
		if _, err := client.New(bad); err == nil {
			t.Errorf("%q was accepted", bad)
		}
	}
}

func TestRetriesUnderOneKey(t *testing.T) {
	_, f, url := newFront(t, func(n int, w http.ResponseWriter, r *http.Request) bool {
		switch n {
		case 0:
			return refuse(w, 503, hutch.CodeUnavailable, "3")
		case 1:
			return hangUp(w, r)
		case 2:
			w.WriteHeader(http.StatusBadGateway) // a proxy's, without a body
			return true
		}
		return false
	})
	var clk clock
	// Without connections to use again, net/http itself repeats nothing.
	c := newClient(t, url, clk.option(0.5), client.WithHTTPClient(&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}))
	if _, err := c.CreateSandbox(t.Context(), api.CreateSandbox{}); err != nil {
		t.Fatal(err)
	}
	keys := map[string]bool{}
	for _, r := range f.requests() {
		keys[r.Header.Get(api.HeaderIdempotencyKey)] = true
	}
	if len(keys) != 1 || keys[""] || len(f.requests()) != 4 {
		t.Errorf("%d attempts under keys %v, want 4 under one", len(f.requests()), keys)
	}
	// Half of 500 ms on top of Retry-After, then half of the doubling ceiling.
	want := []time.Duration{3*time.Second + 250*time.Millisecond, 500 * time.Millisecond, time.Second}
	if !slices.Equal(clk.waits, want) {
		t.Errorf("waited %v, want %v", clk.waits, want)
	}
	if n, err := countSandboxes(t, c); n != 1 || err != nil {
		t.Errorf("%d sandboxes, %v", n, err)
	}
}

func countSandboxes(t testing.TB, c *client.Client) (n int, err error) {
	for _, e := range c.Sandboxes(t.Context(), client.SandboxFilter{All: true}) {
		if e != nil {
			return n, e
		}
		n++
	}
	return n, nil
}

// The answer is lost after the work is done: the repetition must find it.
func TestLostAnswersDoNothingTwice(t *testing.T) {
	_, f, url := newFront(t, nil)
	f.interfere = func(n int, w http.ResponseWriter, r *http.Request) bool {
		if n > 0 {
			return false
		}
		f.next.ServeHTTP(httptest.NewRecorder(), r)
		return hangUp(w, r)
	}
	var clk clock
	c := newClient(t, url, clk.option(0))
	if _, err := c.CreateSandbox(t.Context(), api.CreateSandbox{}); err != nil {
		t.Fatal(err)
	}
	if n, err := countSandboxes(t, c); n != 1 || err != nil {
		t.Errorf("%d sandboxes, %v; want one", n, err)
	}
}

func TestWhatIsNotTriedAgain(t *testing.T) {
	for _, c := range []struct {
		name       string
		status     int
		code       hutch.Code
		retryAfter string
		attempts   int
	}{
		{"a bad request", 400, hutch.CodeBadRequest, "", 1},
		{"an internal error", 500, hutch.CodeInternal, "", 1},
		{"not supported", 501, hutch.CodeUnsupported, "", 1},
		{"a wait that is too long", 503, hutch.CodeUnavailable, "31", 1},
		{"more refusals than retries", 503, hutch.CodeNoCapacity, "1", 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, f, url := newFront(t, func(_ int, w http.ResponseWriter, _ *http.Request) bool {
				return refuse(w, c.status, c.code, c.retryAfter)
			})
			var clk clock
			_, err := newClient(t, url, clk.option(0), client.WithRetries(2)).CreateSandbox(t.Context(), api.CreateSandbox{})
			var e *client.Error
			if !errors.As(err, &e) || e.Code != c.code || e.Status != c.status {
				t.Errorf("error %#v", err)
			}
			if n := len(f.requests()); n != c.attempts || len(clk.waits) != c.attempts-1 {
				t.Errorf("%d attempts and %d waits, want %d attempts", n, len(clk.waits), c.attempts)
			}
		})
	}
}

func TestJitterSpansTheWholeCeiling(t *testing.T) {
	_, _, url := newFront(t, func(_ int, w http.ResponseWriter, _ *http.Request) bool {
		return refuse(w, 503, hutch.CodeGuestUnresponsive, "")
	})
	for chance, want := range map[float64][]time.Duration{
		0:   {0, 0, 0, 0, 0, 0, 0},
		0.5: {250e6, 500e6, 1e9, 2e9, 4e9, 5e9, 5e9},
	} {
		var clk clock
		_, _ = newClient(t, url, clk.option(chance), client.WithRetries(7)).Me(t.Context())
		if !slices.Equal(clk.waits, want) {
			t.Errorf("at chance %v waited %v, want %v", chance, clk.waits, want)
		}
	}
}

func TestStdinIsNotTriedAgain(t *testing.T) {
	_, f, url := newFront(t, func(_ int, w http.ResponseWriter, _ *http.Request) bool {
		return refuse(w, 503, hutch.CodeUnavailable, "")
	})
	var clk clock
	_, err := newClient(t, url, clk.option(0)).WriteStdin(t.Context(), "e1", 0, strings.NewReader("x"), true)
	if !errors.Is(err, hutch.ErrUnavailable) || len(f.requests()) != 1 {
		t.Errorf("%v after %d attempts", err, len(f.requests()))
	}
}

func TestCancelledCallersAreNotKept(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	_, f, url := newFront(t, func(_ int, w http.ResponseWriter, _ *http.Request) bool {
		cancel()
		return refuse(w, 503, hutch.CodeUnavailable, "")
	})
	var clk clock
	if _, err := newClient(t, url, clk.option(0)).Me(ctx); err == nil || len(f.requests()) != 1 {
		t.Errorf("%v after %d attempts", err, len(f.requests()))
	}
}

func TestExecJoinsAfterALostAnswer(t *testing.T) {
	fake, f, url := newFront(t, nil)
	var runs int
	fake.Program("count", func(p *httpapitest.Process) int {
		runs++
		fmt.Fprint(p.Stdout, runs)
		return 0
	})
	var clk clock
	c := newClient(t, url, clk.option(0))
	sb, err := c.CreateSandbox(t.Context(), api.CreateSandbox{})
	if err != nil {
		t.Fatal(err)
	}
	f.interfere = func(n int, w http.ResponseWriter, r *http.Request) bool {
		if n > 1 {
			return false
		}
		f.next.ServeHTTP(httptest.NewRecorder(), r)
		return hangUp(w, r)
	}
	if r, err := c.Exec(t.Context(), sb.ID, api.ExecRequest{Cmd: "count"}); err != nil || r.Stdout != "1" {
		t.Errorf("exec: %+v, %v; want the first run's result", r, err)
	}
}

func TestStreamGoesOnWhereItBroke(t *testing.T) {
	fake, f, url := newFront(t, nil)
	step := make(chan struct{})
	fake.Program("steps", func(p *httpapitest.Process) int {
		for i := range 5 {
			fmt.Fprintf(p.Stdout, "é%d\n", i)
			fmt.Fprintf(p.Stderr, "e%d\xff", i)
			<-step
		}
		return 9
	})
	var clk clock
	c := newClient(t, url, clk.option(0), client.WithRetries(1))
	sb, err := c.CreateSandbox(t.Context(), api.CreateSandbox{})
	if err != nil {
		t.Fatal(err)
	}
	// Every connection breaks after a few events.
	f.interfere = func(_ int, w http.ResponseWriter, r *http.Request) bool {
		if strings.Contains(r.URL.Path, "/exec") {
			w = &brittle{ResponseWriter: w, left: 3}
		}
		f.next.ServeHTTP(w, r)
		return true
	}
	var out, errs strings.Builder
	var started []hutch.ExecID
	end, err := c.Stream(t.Context(), sb.ID, api.ExecRequest{Cmd: "steps"},
		client.StreamOptions{Started: func(id hutch.ExecID) { started = append(started, id) }},
		func(o client.Output) error {
			b := &out
			if o.Stream == hutch.Stderr {
				b = &errs
			}
			if int64(b.Len()) != o.Offset {
				t.Errorf("%s: piece at %d after %d bytes", o.Stream, o.Offset, b.Len())
			}
			b.Write(o.Data)
			if strings.HasSuffix(string(o.Data), "\n") {
				step <- struct{}{}
			}
			return nil
		})
	if err != nil || end.ExitCode != 9 || len(started) != 1 || started[0] != end.ExecID {
		t.Fatalf("ended %+v, %v; started %v", end, err, started)
	}
	if out.String() != "é0\né1\né2\né3\né4\n" || errs.String() != "e0\xffe1\xffe2\xffe3\xffe4\xff" {
		t.Errorf("streamed %q and %q", out.String(), errs.String())
	}
	if len(clk.waits) == 0 {
		t.Error("no connection broke: the test did not test")
	}
}

// A server that is back after a kill may not know the command yet.
func TestStreamGoesOnWithAServerThatDoesNotKnowItYet(t *testing.T) {
	fake, f, url := newFront(t, nil)
	step := make(chan struct{}, 2)
	fake.Program("two", func(p *httpapitest.Process) int {
		_, _ = io.WriteString(p.Stdout, "one\n")
		<-step
		_, _ = io.WriteString(p.Stdout, "two\n")
		return 9
	})
	var clk clock
	c := newClient(t, url, clk.option(0), client.WithRetries(2))
	sb, err := c.CreateSandbox(t.Context(), api.CreateSandbox{})
	if err != nil {
		t.Fatal(err)
	}
	const unknown = `{"code": "not_found", "error": "there is no such command"}`
	unknowing := 1
	f.interfere = func(_ int, w http.ResponseWriter, r *http.Request) bool {
		switch {
		case strings.HasSuffix(r.URL.Path, "/exec/stream"):
			w = &brittle{ResponseWriter: w, left: 1}
		case strings.HasSuffix(r.URL.Path, "/follow") && unknowing > 0:
			unknowing--
			w.WriteHeader(http.StatusNotFound)
			_, _ = io.WriteString(w, unknown)
			return true
		}
		f.next.ServeHTTP(w, r)
		return true
	}
	run := func() (string, api.ExecEnd, error) {
		var out strings.Builder
		end, err := c.Stream(t.Context(), sb.ID, api.ExecRequest{Cmd: "two"}, client.StreamOptions{}, func(o client.Output) error {
			if out.Write(o.Data); out.String() == "one\n" {
				step <- struct{}{}
			}
			return nil
		})
		return out.String(), end, err
	}
	if out, end, err := run(); err != nil || out != "one\ntwo\n" || end.ExitCode != 9 || unknowing != 0 {
		t.Errorf("%q, %+v, %v; want all of it", out, end, err)
	}
	unknowing = 100 // but one that never knows it is believed
	if _, _, err := run(); !errors.Is(err, hutch.ErrNotFound) || unknowing != 98 {
		t.Errorf("%v after %d attempts, want not_found after 2, the break being the first failure", err, 100-unknowing)
	}
	unknowing = 100 // at once where it was never known
	if _, err := c.Follow(t.Context(), "enone", client.StreamOptions{}, nil); !errors.Is(err, hutch.ErrNotFound) || unknowing != 99 {
		t.Errorf("%v after %d attempts, want not_found after one", err, 100-unknowing)
	}
}

// brittle is an answer whose connection breaks at some write.
type brittle struct {
	http.ResponseWriter
	left int
}

func (b *brittle) Write(p []byte) (int, error) {
	if b.left--; b.left < 0 {
		panic(http.ErrAbortHandler)
	}
	return b.ResponseWriter.Write(p)
}

func (b *brittle) Unwrap() http.ResponseWriter { return b.ResponseWriter }

func TestFollowKeepsToTheBudgetWhenAsked(t *testing.T) {
	fake := httpapitest.New()
	fake.Program("long", func(p *httpapitest.Process) int {
		_, _ = io.WriteString(p.Stdout, strings.Repeat("x", 1000))
		return 0
	})
	ctx, c := t.Context(), newClient(t, fake.Server(t, httpapi.Config{}).URL)
	sb, err := c.CreateSandbox(ctx, api.CreateSandbox{})
	if err != nil {
		t.Fatal(err)
	}
	budget := 400
	req := api.ExecRequest{Cmd: "long", MaxOutputBytes: &budget}
	collect := func(run func(client.StreamOptions, func(client.Output) error) (api.ExecEnd, error), budgeted bool) (n, gap int64) {
		t.Helper()
		_, err := run(client.StreamOptions{Budgeted: budgeted}, func(o client.Output) error {
			n += int64(len(o.Data))
			if o.GapTo > 0 {
				gap += o.GapTo - o.Offset
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		return n, gap
	}
	var id hutch.ExecID
	stream := func(o client.StreamOptions, sink func(client.Output) error) (api.ExecEnd, error) {
		end, err := c.Stream(ctx, sb.ID, req, o, sink)
		id = end.ExecID
		return end, err
	}
	follow := func(o client.StreamOptions, sink func(client.Output) error) (api.ExecEnd, error) {
		return c.Follow(ctx, id, o, sink)
	}
	for i, run := range []func(client.StreamOptions, func(client.Output) error) (api.ExecEnd, error){stream, follow} {
		if n, gap := collect(run, true); n != 400 || gap != 600 {
			t.Errorf("run %d: %d bytes and a gap of %d within the budget, want 400 and 600", i, n, gap)
		}
		if n, gap := collect(run, false); n != 1000 || gap != 0 {
			t.Errorf("run %d: %d bytes and a gap of %d without the budget, want all 1000", i, n, gap)
		}
	}
}

func TestSinkErrorEndsTheStreamNotTheCommand(t *testing.T) {
	fake := httpapitest.New()
	ctx, c := t.Context(), newClient(t, fake.Server(t, httpapi.Config{}).URL)
	sb, err := c.CreateSandbox(ctx, api.CreateSandbox{})
	if err != nil {
		t.Fatal(err)
	}
	open := make(chan struct{})
	fake.Program("talk", func(p *httpapitest.Process) int {
		_, _ = io.WriteString(p.Stdout, "x")
		select {
		case <-open:
			return 0
		case <-p.Stopped:
			return 143
		}
	})
	enough := errors.New("enough")
	var id hutch.ExecID
	_, err = c.Stream(ctx, sb.ID, api.ExecRequest{Cmd: "talk"}, client.StreamOptions{Started: func(x hutch.ExecID) { id = x }},
		func(client.Output) error { return enough })
	if !errors.Is(err, enough) {
		t.Errorf("stream: %v, want the sink's error", err)
	}
	if x, err := c.ExecRecord(ctx, id); err != nil || !x.Running {
		t.Errorf("the command: %+v, %v; want it running", x, err)
	}
	close(open)
	if end, err := c.Follow(ctx, id, client.StreamOptions{}, func(client.Output) error { return nil }); err != nil || end.EndReason != hutch.ExecExit || end.ExitCode != 0 {
		t.Errorf("the command's end: %+v, %v; want its own", end, err)
	}
}

func TestBackgroundStdinAndSignal(t *testing.T) {
	fake := httpapitest.New()
	fake.Program("both", func(p *httpapitest.Process) int {
		_, _ = io.Copy(p.Stdout, p.Stdin)
		_, _ = io.WriteString(p.Stdout, <-p.Signals)
		return 0
	})
	ctx, c := t.Context(), newClient(t, fake.Server(t, httpapi.Config{}).URL)
	sb, err := c.CreateSandbox(ctx, api.CreateSandbox{})
	if err != nil {
		t.Fatal(err)
	}
	x, err := c.StartExec(ctx, sb.ID, api.ExecRequest{Cmd: "both", StdinOpen: true})
	if err != nil || !x.Running {
		t.Fatalf("start: %+v, %v", x, err)
	}
	if r, err := c.WriteStdin(ctx, x.ExecID, 0, strings.NewReader("in "), true); err != nil || r.Offset != 3 || !r.Closed {
		t.Errorf("stdin: %+v, %v", r, err)
	}
	if err := c.Signal(ctx, x.ExecID, "HUP", false); err != nil {
		t.Error(err)
	}
	var out strings.Builder
	if _, err := c.Follow(ctx, x.ExecID, client.StreamOptions{}, func(o client.Output) error { out.Write(o.Data); return nil }); err != nil || out.String() != "in HUP" {
		t.Errorf("followed %q, %v", out.String(), err)
	}
}

func TestSilentServersAreGivenUp(t *testing.T) {
	stop := make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(200)
		_ = http.NewResponseController(w).Flush()
		select {
		case <-stop:
		case <-r.Context().Done():
		}
	}))
	defer s.Close()
	defer close(stop)
	var clk clock
	c := newClient(t, s.URL, clk.option(0), client.WithSilence(20*time.Millisecond), client.WithRetries(1))
	_, err := c.Me(t.Context())
	if err == nil || !strings.Contains(err.Error(), "silent") || len(clk.waits) != 1 {
		t.Errorf("%v after %d waits: want the silence named, and one retry", err, len(clk.waits))
	}
}

func TestErrorsKeepWhatTheServerSaid(t *testing.T) {
	fake := httpapitest.New()
	c := newClient(t, fake.Server(t, httpapi.Config{}).URL)
	ttl := -1.0
	_, err := c.CreateSandbox(t.Context(), api.CreateSandbox{TTLSeconds: &ttl})
	var e *client.Error
	if !errors.As(err, &e) || e.Field != "ttl_seconds" || e.RequestID == "" || !strings.Contains(e.Error(), "ttl_seconds") {
		t.Errorf("error %#v", err)
	}
	if errors.Is(err, hutch.ErrNotFound) || !errors.Is(fmt.Errorf("create: %w", err), hutch.ErrBadRequest) {
		t.Error("errors.Is does not go by code")
	}
}
