package httpapi_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/api"
	"hutch.dev/hutch/internal/httpapi"
	"hutch.dev/hutch/internal/httpapi/httpapitest"
)

func TestKeysAndScopes(t *testing.T) {
	b := newBench(t, httpapi.Config{})
	for _, c := range []struct {
		name    string
		path    string
		headers []string
		status  int
	}{
		{"bearer", "/v1/me", []string{"Authorization", "Bearer " + httpapitest.ReadKey}, 200},
		{"bearer in small letters", "/v1/me", []string{"Authorization", "bearer " + httpapitest.ReadKey}, 200},
		{"header", "/v1/me", []string{"X-API-Key", httpapitest.ReadKey}, 200},
		{"query", "/v1/me?access_token=" + httpapitest.ReadKey, nil, 200},
		{"query beside others", "/v1/sandboxes?limit=5&access_token=" + httpapitest.ReadKey, nil, 200},
		{"none", "/v1/me", nil, 401},
		{"another scheme", "/v1/me", []string{"Authorization", "Basic " + httpapitest.ReadKey}, 401},
		{"unknown", "/v1/me", []string{"X-API-Key", "nope"}, 401},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := *b
			b.t, b.key = t, ""
			a := b.do("GET", c.path, "", c.headers...).want(c.status)
			if c.status == 401 && a.header.Get("WWW-Authenticate") == "" {
				t.Error("401 without WWW-Authenticate")
			}
		})
	}
	me := into[api.Me](b.as(httpapitest.RunKey).do("GET", "/v1/me", "").want(200))
	if me.Prefix != httpapitest.RunKey[:8] || me.Scope != hutch.ScopeRun || me.Project != hutch.DefaultProject {
		t.Errorf("me = %+v", me)
	}
	reader, runner := b.as(httpapitest.ReadKey), b.as(httpapitest.RunKey)
	reader.do("GET", "/v1/sandboxes", "").want(200)
	reader.do("POST", "/v1/sandboxes", "{}").wantError(403, "forbidden", "")
	runner.do("POST", "/v1/sandboxes", "{}").want(201)
	runner.do("GET", "/v1/keys", "").wantError(403, "forbidden", "")
	runner.do("POST", "/v1/keys", "{}").wantError(403, "forbidden", "")
}

func TestKeysAreMadeAndRevoked(t *testing.T) {
	b := newBench(t, httpapi.Config{})
	k := into[api.Key](b.do("POST", "/v1/keys", `{"name": "ci", "scope": "read", "expires_in_seconds": 3600}`).want(201))
	if k.Key == "" || k.Name != "ci" || k.Scope != hutch.ScopeRead || k.ExpiresAt.Sub(k.CreatedAt) != time.Hour {
		t.Errorf("made %+v", k)
	}
	b.as(k.Key).do("GET", "/v1/sandboxes", "").want(200)
	for _, listed := range into[[]api.Key](b.do("GET", "/v1/keys", "").want(200)) {
		if listed.Key != "" {
			t.Errorf("a listing shows the key of %s", listed.Prefix)
		}
	}
	b.do("DELETE", "/v1/keys/"+k.Prefix, "").want(204)
	b.as(k.Key).do("GET", "/v1/sandboxes", "").wantError(401, "unauthenticated", "")
	b.do("DELETE", "/v1/keys/"+k.Prefix, "").wantError(404, "not_found", "")
	for field, body := range map[string]string{
		"scope":              `{"scope": "root"}`,
		"expires_in_seconds": `{"expires_in_seconds": 0}`,
		"name":               `{"name": "` + strings.Repeat("x", 101) + `"}`,
	} {
		b.do("POST", "/v1/keys", body).wantError(400, "bad_request", field)
	}

	tok := into[api.Token](b.do("POST", "/v1/me/tokens", `{"label": "sdk", "expires_in_days": 2}`).want(200))
	if tok.Token == "" || tok.Label != "sdk" {
		t.Errorf("token %+v", tok)
	}
	b.do("POST", "/v1/me/tokens", `{"expires_in_days": 0}`).wantError(400, "bad_request", "expires_in_days")
	b.as(tok.Token).do("POST", "/v1/sandboxes", "{}").want(201)
	b.do("DELETE", "/v1/me/tokens/"+tok.Prefix, "").want(204)
	old := into[api.Token](b.do("POST", "/v1/me/tokens", `{"label": "old", "expires_in_days": 0.0001}`).want(200)) // made at Epoch
	kept := into[api.Token](b.do("POST", "/v1/me/tokens", `{"label": "kept", "expires_in_days": 3650}`).want(200))
	listed := false
	for _, x := range into[[]api.Token](b.do("GET", "/v1/me/tokens", "").want(200)) {
		listed = listed || x.Prefix == kept.Prefix
		if x.Prefix == tok.Prefix || x.Prefix == old.Prefix || x.Token != "" {
			t.Errorf("tokens list %+v: revoked, expired, or with its secret", x)
		}
	}
	if !listed {
		t.Error("a token that is good for years is not listed")
	}
	made, err := b.ListKeys(t.Context(), hutch.DefaultProject)
	if err != nil {
		t.Fatal(err)
	}
	ends := map[string]time.Time{}
	for _, k := range made {
		ends[k.Prefix] = k.ExpiresAt
	}
	if got, want := ends[old.Prefix], httpapitest.Epoch.Add(8640*time.Millisecond); !got.Equal(want) {
		t.Errorf("0.0001 days end at %v, want %v", got, want)
	}
}

func TestRequestID(t *testing.T) {
	b := newBench(t, httpapi.Config{})
	if got := b.do("GET", "/healthz", "", "X-Request-Id", "mine-1").header.Get("X-Request-Id"); got != "mine-1" {
		t.Errorf("a plain id came back as %q", got)
	}
	for _, bad := range []string{"", strings.Repeat("x", 65), "a b"} {
		got := b.do("GET", "/healthz", "", "X-Request-Id", bad).header.Get("X-Request-Id")
		if got == bad || len(got) != 16 {
			t.Errorf("id %q was answered with %q, want 16 fresh hex digits", bad, got)
		}
	}
}

func TestCORS(t *testing.T) {
	b := newBench(t, httpapi.Config{})
	b.key = ""
	a := b.do("OPTIONS", "/v1/sandboxes", "", "Origin", "https://example.com", "Access-Control-Request-Method", "POST").want(204)
	for h, want := range map[string]string{
		"Access-Control-Allow-Origin": "*", "Access-Control-Max-Age": "600",
		"Access-Control-Allow-Methods": "GET, POST, PUT, PATCH, DELETE, OPTIONS",
	} {
		if got := a.header.Get(h); got != want {
			t.Errorf("%s: %q, want %q", h, got, want)
		}
	}
	if got := a.header.Get("Access-Control-Allow-Headers"); !strings.Contains(got, "Authorization") || !strings.Contains(got, "Idempotency-Key") {
		t.Errorf("allowed headers: %q", got)
	}
}

func TestUnknownPathsAnswerJSON(t *testing.T) {
	b := newBench(t, httpapi.Config{})
	b.do("GET", "/v1/nothing", "").wantError(404, "not_found", "")
	if e := b.do("PUT", "/v1/sandboxes", "").wantError(404, "not_found", ""); !strings.Contains(e.Error, "GET and POST") {
		t.Errorf("%q does not say what the path takes", e.Error)
	}
}

func TestCallsOfTheCompatibleAPIThatWeLack(t *testing.T) {
	b := newBench(t, httpapi.Config{})
	for _, p := range []string{
		"POST /v1/sandboxes/x/fork", "POST /v1/sandboxes/x/fork-tree", "POST /v1/sandboxes/x/promote", "POST /v1/sandboxes/x/snapshots",
		"GET /v1/snapshots", "GET /v1/snapshots/s", "DELETE /v1/snapshots/s", "POST /v1/sandboxes/x/hibernate", "POST /v1/sandboxes/x/wake",
		"POST /v1/sandboxes/x/repl/sessions", "GET /v1/repl/languages", "POST /v1/sandboxes/x/preview-token", "POST /v1/p/token/index.html",
		"GET /v1/volumes", "POST /v1/volumes", "DELETE /v1/volumes/v", "GET /v1/databases", "PATCH /v1/databases/d", "POST /v1/databases/d/clone",
		"GET /v1/apps", "GET /v1/apps/a/deploys/d/logs", "GET /v1/functions", "POST /v1/functions/f/invoke", "GET /v1/schedules", "GET /v1/orgs",
		"POST /mcp", "POST /v1/mcp", "POST /v1/sandboxes/x/mcp", "GET /v1/sandboxes/x/lsp/python", "GET /v1/lsp/languages",
	} {
		m, path, _ := strings.Cut(p, " ")
		b.do(m, path, "anything").wantError(501, "unsupported", "")
		b.as("").do(m, path, "").wantError(401, "unauthenticated", "")
	}
}

func TestHealthVersionAndMetrics(t *testing.T) {
	f := httpapitest.New()
	svc := f.Services()
	svc.MetricsPage = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "metric 1\n") })
	h := httpapi.New(httpapi.Config{Build: api.BuildInfo{Service: "hutch", Semver: "1.2.3"}}, svc, slog.New(slog.DiscardHandler))
	s := httptest.NewServer(h)
	defer s.Close()
	b := &bench{Fake: f, t: t, url: s.URL}
	b.do("GET", "/healthz", "").want(200)
	b.do("GET", "/readyz", "").want(200)
	f.NotReady = hutch.Errorf(hutch.CodeUnavailable, "no template yet")
	if e := b.do("GET", "/readyz", "").wantError(503, "unavailable", ""); e.Error != "no template yet" {
		t.Errorf("readyz says %q", e.Error)
	}
	b.do("GET", "/healthz", "").want(200)
	for _, p := range []string{"/version", "/v1/version"} {
		if v := into[api.BuildInfo](b.do("GET", p, "").want(200)); v.Semver != "1.2.3" {
			t.Errorf("%s = %+v", p, v)
		}
	}
	if got := string(b.do("GET", "/metrics", "").want(200).body); got != "metric 1\n" {
		t.Errorf("metrics = %q", got)
	}
	if got := b.do("GET", "/v1/openapi.yaml", "").want(200).body; !bytes.Equal(got, api.OpenAPI) {
		t.Error("openapi.yaml is not the contract")
	}
	ts := into[[]api.Template](b.as(httpapitest.ReadKey).do("GET", "/v1/templates", "").want(200))
	if len(ts) != 1 || ts[0].Name != "base" || !strings.HasPrefix(ts[0].RootfsPath, "hutch://") {
		t.Errorf("templates = %+v", ts)
	}
	b.as(httpapitest.ReadKey).do("GET", "/v1/templates/base", "").want(200)
	b.as(httpapitest.ReadKey).do("GET", "/v1/templates/nope", "").wantError(404, "not_found", "")
}

// counts implements httpapi.Metrics.
type counts struct {
	mu   sync.Mutex
	seen []string
}

func (c *counts) HTTPRequest(route, method string, status int, d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.seen = append(c.seen, method+" "+route+" "+http.StatusText(status))
	if d <= 0 {
		c.seen = append(c.seen, "without a duration")
	}
}

// lockedBuffer is a log that may be read while it is written.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func TestPanicsAndFailuresHideTheirCause(t *testing.T) {
	f := httpapitest.New()
	f.OnCall = func(m string) error {
		switch m {
		case "CreateSandbox":
			panic("tenant wrote this secret")
		case "PauseSandbox":
			return errors.New("open /host/path: permission denied")
		case "ResumeSandbox":
			return hutch.Wrap(hutch.CodeNoCapacity, errors.New("node-7 is full"), "no room now")
		case "KillSandbox":
			return &hutch.Error{Code: hutch.CodeRateLimited, Message: "slow down", RetryAfter: 1500 * time.Millisecond}
		}
		return nil
	}
	var log lockedBuffer
	svc, seen := f.Services(), &counts{}
	svc.Metrics = seen
	s := httptest.NewServer(httpapi.New(httpapi.Config{}, svc, slog.New(slog.NewTextHandler(&log, nil))))
	defer s.Close()
	b := &bench{Fake: f, t: t, url: s.URL, key: httpapitest.AdminKey}

	e := b.do("POST", "/v1/sandboxes", `{}`, "X-Request-Id", "req-1").wantError(500, "internal", "")
	if e.RequestID != "req-1" || !strings.Contains(e.Error, "req-1") {
		t.Errorf("a panic was answered with %+v: want the request's id in the text", e)
	}
	e = b.do("POST", "/v1/sandboxes/x/pause", "").wantError(500, "internal", "")
	if strings.Contains(e.Error, "/host/path") {
		t.Errorf("%q shows a path of the host", e.Error)
	}
	a := b.do("POST", "/v1/sandboxes/x/resume", "")
	e = a.wantError(503, "no_capacity", "")
	if strings.Contains(e.Error, "node-7") || a.header.Get("Retry-After") != "2" {
		t.Errorf("%q, Retry-After %q: want the cause hidden and 2", e.Error, a.header.Get("Retry-After"))
	}
	a = b.do("DELETE", "/v1/sandboxes/x", "")
	a.wantError(429, "rate_limited", "")
	if got := a.header.Get("Retry-After"); got != "2" {
		t.Errorf("Retry-After %q for 1.5 s, want 2", got)
	}

	s.Close() // every request has been logged
	got := log.String()
	if strings.Contains(got, "tenant wrote") {
		t.Error("the log holds what a panic carried")
	}
	for _, want := range []string{"panicked", "/host/path", "request=req-1", "op=/v1/sandboxes", "status=500"} {
		if !strings.Contains(got, want) {
			t.Errorf("the log lacks %q:\n%s", want, got)
		}
	}
	if seen.seen[0] != "POST /v1/sandboxes Internal Server Error" || len(seen.seen) != 4 {
		t.Errorf("counted %q", seen.seen)
	}
}

func TestTheLogHoldsNothingATenantWrote(t *testing.T) {
	f := httpapitest.New()
	var log lockedBuffer
	s := httptest.NewServer(httpapi.New(httpapi.Config{}, f.Services(), slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))))
	defer s.Close()
	b := &bench{Fake: f, t: t, url: s.URL, key: httpapitest.AdminKey}
	id := b.sandbox()
	b.do("POST", "/v1/sandboxes/"+id+"/exec", `{"cmd": "echo hunter2", "env": {"PASS": "hunter2"}, "stdin": "hunter2"}`).want(200)
	b.do("POST", "/v1/sandboxes", `{"hunter2": 1}`).want(400)
	b.do("GET", "/v1/hunter2?x=hunter2", "").want(404)
	b.do("GET", "/v1/me?access_token="+httpapitest.AdminKey, "").want(200)
	s.Close()
	for _, secret := range []string{"hunter2", httpapitest.AdminKey} {
		if strings.Contains(log.String(), secret) {
			t.Errorf("the log holds %q:\n%s", secret, log.String())
		}
	}
}

func TestServerDropsCallersWhoDoNotSend(t *testing.T) {
	srv := httpapi.Server(t.Context(), http.NotFoundHandler(), slog.New(slog.DiscardHandler))
	if srv.ReadHeaderTimeout <= 0 || srv.ReadHeaderTimeout > 30*time.Second || srv.IdleTimeout <= 0 || srv.MaxHeaderBytes > 1<<20 {
		t.Fatalf("bounds: headers %v, idle %v, %d bytes", srv.ReadHeaderTimeout, srv.IdleTimeout, srv.MaxHeaderBytes)
	}
	srv.ReadHeaderTimeout = 50 * time.Millisecond
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = srv.Serve(ln) }()
	defer func() { _ = srv.Close() }()
	conn, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if _, err := io.WriteString(conn, "GET / HTTP/1.1\r\nHost: x\r\nX-Slow: "); err != nil {
		t.Fatal(err)
	}
	if err := conn.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(conn); err != nil {
		t.Errorf("a caller who sent half a header was kept: %v", err)
	}
}

// serveOn serves b's service by httpapi.Server until the context ends.
func serveOn(ctx context.Context, t *testing.T, f *httpapitest.Fake, cfg httpapi.Config, m httpapi.Metrics) *bench {
	t.Helper()
	svc := f.Services()
	svc.Metrics = m
	quiet := slog.New(slog.DiscardHandler)
	srv := httpapi.Server(ctx, httpapi.New(cfg, svc, quiet), quiet)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = srv.Serve(ln) }()
	t.Cleanup(func() { _ = srv.Close() })
	return &bench{Fake: f, t: t, url: "http://" + ln.Addr().String(), key: httpapitest.AdminKey}
}

func TestStoppingServerSendsItsCallersAway(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	b := serveOn(ctx, t, httpapitest.New(), httpapi.Config{}, nil)
	waiting := make(chan struct{})
	b.OnCall = func(m string) error {
		if m == "WaitExec" {
			close(waiting)
		}
		return nil
	}
	sb := b.sandbox()
	stream := b.send(b.request("POST", "/v1/sandboxes/"+sb+"/exec/stream", `{"cmd": "sleep"}`))
	events := b.send(b.request("GET", "/v1/events?follow=1", ""))
	sync := make(chan answer, 1)
	go func() { sync <- b.do("POST", "/v1/sandboxes/"+sb+"/exec", `{"cmd": "sleep"}`) }()
	<-waiting
	stop()
	a := <-sync
	a.wantError(503, "unavailable", "")
	if a.header.Get("Retry-After") == "" {
		t.Error("no Retry-After")
	}
	for _, s := range []*live{stream, events} {
		evs := b.events(s)
		if last := evs[len(evs)-1]; last.Name != "error" || eventData[api.Error](t, last).Code != hutch.CodeUnavailable {
			t.Errorf("the stream ended with %+v", last)
		}
	}
}

// ended implements httpapi.Metrics: it tells when an answer of a stream has ended.
type ended chan int

func (e ended) HTTPRequest(route, _ string, status int, _ time.Duration) {
	if strings.HasSuffix(route, "/stream") {
		e <- status
	}
}

func TestCallersWhoDoNotReadAreCutOff(t *testing.T) {
	f, done := httpapitest.New(), make(ended, 1)
	b := serveOn(t.Context(), t, f, httpapi.Config{WriteTimeout: 100 * time.Millisecond}, done)
	f.Program("long", printing(bytes.Repeat([]byte("x"), 32<<20))) // over what the kernel holds back
	conn, err := net.Dial("tcp", strings.TrimPrefix(b.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	body := `{"cmd": "long"}`
	if _, err := fmt.Fprintf(conn, "POST /v1/sandboxes/%s/exec/stream?budget=0 HTTP/1.1\r\nHost: x\r\nX-API-Key: %s\r\nContent-Length: %d\r\n\r\n%s", b.sandbox(), b.key, len(body), body); err != nil {
		t.Fatal(err)
	}
	select {
	case <-done:
	case <-time.After(30 * time.Second):
		t.Error("a caller who reads nothing is still served")
	}
}
