package httpapi_test

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/api"
	"hutch.dev/hutch/internal/httpapi"
	"hutch.dev/hutch/internal/httpapi/httpapitest"
)

// answered implements httpapi.Metrics: it names the routes whose answers have ended.
type answered chan string

func (a answered) HTTPRequest(route, _ string, _ int, _ time.Duration) { a <- route }

// await waits until an answer of a route has ended.
func (a answered) await(t testing.TB, route string) {
	t.Helper()
	late := time.After(30 * time.Second)
	for {
		select {
		case got := <-a:
			if got == route {
				return
			}
		case <-late:
			t.Fatalf("no answer of %s has ended in half a minute", route)
		}
	}
}

// dial opens a connection on which nothing waits for longer than half a minute.
func (b *bench) dial() net.Conn {
	b.t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(b.url, "http://"))
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { _ = conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		b.t.Fatal(err)
	}
	return conn
}

func TestOrdinaryAnswersThatNobodyReadsAreCutOff(t *testing.T) {
	f, done := httpapitest.New(), make(answered, 10)
	b := serveOn(t.Context(), t, f, httpapi.Config{WriteTimeout: time.Second}, done)
	f.Program("long", printing(bytes.Repeat([]byte{1}, 4<<20))) // six times that in JSON
	sb := b.sandbox()
	x := into[api.ExecResult](b.do("POST", "/v1/sandboxes/"+sb+"/exec", `{"cmd": "long", "max_output_bytes": 16777216}`).want(200))
	if len(x.Stdout) != 4<<20 {
		t.Fatalf("%d bytes of output, want all", len(x.Stdout))
	}
	const callers = 2
	for range callers {
		if _, err := fmt.Fprintf(b.dial(), "GET /v1/execs/%s HTTP/1.1\r\nHost: x\r\nX-API-Key: %s\r\n\r\n", x.ExecID, b.key); err != nil {
			t.Fatal(err)
		}
	}
	late := time.After(3 * time.Minute) // the answers alone take half of one where the CPUs are busy
	for left := callers; left > 0; {
		select {
		case route := <-done:
			if route == "/v1/execs/{exec}" {
				left--
			}
		case <-late:
			t.Fatalf("%d callers who read nothing are still served", left)
		}
	}
}

func TestBodiesThatDoNotComeAreNotWaitedFor(t *testing.T) {
	b := serveOn(t.Context(), t, httpapitest.New(), httpapi.Config{BodyTimeout: 50 * time.Millisecond}, nil)
	patient := serveOn(t.Context(), t, httpapitest.New(), httpapi.Config{BodyTimeout: 5 * time.Second}, nil)
	past := into[api.ExecResult](b.do("POST", "/v1/sandboxes/"+b.sandbox()+"/exec", `{"cmd": "true"}`).want(200))
	b.OnCall = func(m string) error {
		if m == "WriteStdin" {
			return hutch.ErrConflict
		}
		return nil
	}
	for name, c := range map[string]struct {
		line, key, sent string
		length, status  int
	}{
		"no key":         {"POST /v1/sandboxes", "", "", 1000, 401},
		"wrong key":      {"POST /v1/execs/x/stdin?offset=0", "nope", "a", 1000, 401},
		"no such path":   {"POST /nothing", "", "", 1000, 404},
		"slow body":      {"POST /v1/sandboxes", b.key, "{", 1000, 400},
		"no such exec":   {"POST /v1/execs/x/stdin?offset=0", b.key, "a", 1000, 404},
		"refused stdin":  {"POST /v1/execs/" + string(past.ExecID) + "/stdin?offset=0", b.key, "", 1000, 409},
		"too long":       {"POST /v1/sandboxes", b.key, strings.Repeat(" ", 1<<20+1), 1<<20 + 1000, 413},
		"bad query":      {"POST /v1/sandboxes?a;b", b.key, "", 1000, 400},
		"forbidden":      {"POST /v1/sandboxes", httpapitest.ReadKey, "", 1000, 403},
		"nobody to wait": {"GET /v1/me", "", "", 0, 401},
	} {
		t.Run(name, func(t *testing.T) {
			b := *b
			if c.status == 413 { // a MiB takes its time to arrive on a busy machine
				b = *patient
			}
			b.t = t
			conn := b.dial()
			if _, err := fmt.Fprintf(conn, "%s HTTP/1.1\r\nHost: x\r\nX-API-Key: %s\r\nContent-Length: %d\r\n\r\n%s", c.line, c.key, c.length, c.sent); err != nil {
				t.Fatal(err)
			}
			in := bufio.NewReader(conn)
			res, err := http.ReadResponse(in, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = res.Body.Close() }()
			if res.StatusCode != c.status || !res.Close {
				t.Errorf("status %d, connection closed %v; want %d and true", res.StatusCode, res.Close, c.status)
			}
			if _, err := io.Copy(io.Discard, res.Body); err != nil {
				t.Fatal(err)
			}
			if _, err := in.ReadByte(); err == nil || isTimeout(err) {
				t.Errorf("the connection is still open: %v", err)
			}
		})
	}
}

func isTimeout(err error) bool {
	ne, ok := err.(net.Error) //nolint:errorlint // only a bare one comes from a connection
	return ok && ne.Timeout()
}

// The deadline of a body must not end what takes long after it, or needs none.
func TestBodyTimeoutEndsNoLongCall(t *testing.T) {
	cfg := quick
	cfg.BodyTimeout = 50 * time.Millisecond
	b := serveOn(t.Context(), t, httpapitest.New(), cfg, nil)
	open := make(chan struct{})
	b.Program("wait", func(*httpapitest.Process) int {
		<-open
		return 7
	})
	sb := b.sandbox()
	start := time.Now()
	call := b.send(b.request("POST", "/v1/sandboxes/"+sb+"/exec", `{"cmd": "wait"}`))
	stream := b.send(b.request("POST", "/v1/sandboxes/"+sb+"/exec/stream", `{"cmd": "wait"}`))
	follow := b.send(b.request("GET", "/v1/execs/"+stream.Header.Get(api.HeaderExecID)+"/follow", ""))
	// Stdin may come slowly.
	cat := into[api.Exec](b.do("POST", "/v1/sandboxes/"+sb+"/exec", `{"cmd": "cat", "background": true, "stdin_open": true}`).want(202))
	body, slow := io.Pipe()
	req := b.request("POST", "/v1/execs/"+string(cat.ExecID)+"/stdin?offset=0&close=1", "")
	req.Body, req.ContentLength = body, -1
	wrote := make(chan *live, 1)
	go func() { defer close(wrote); wrote <- b.send(req) }()
	if _, err := io.WriteString(slow, "a"); err != nil {
		t.Fatal(err)
	}

	// Blanks that keep the answer alive are the clock.
	for blank := make([]byte, 1); time.Since(start) < 5*cfg.BodyTimeout; {
		if _, err := io.ReadFull(call.Body, blank); err != nil || blank[0] != ' ' {
			t.Fatalf("%q, %v while the command runs", blank, err)
		}
	}
	if _, err := io.WriteString(slow, "b"); err != nil {
		t.Fatal(err)
	}
	_ = slow.Close()
	if res := <-wrote; res == nil || res.StatusCode != 200 {
		t.Errorf("slow stdin was answered with %d", res.StatusCode)
	}
	close(open)
	rest, err := io.ReadAll(call.Body)
	if err != nil || !strings.Contains(string(rest), `"exit_code":7`) {
		t.Errorf("the call ended with %s, %v", rest, err)
	}
	for _, s := range []*live{stream, follow} {
		if evs := b.events(s); evs[len(evs)-1].Name != api.EventExit {
			t.Errorf("a stream ended with %+v", evs[len(evs)-1])
		}
	}
}

func TestMalformedQueriesAreRefused(t *testing.T) {
	b := newBench(t, httpapi.Config{})
	for _, q := range []string{"limit=1;drop", "%zz=1", "a=1;b=2", "limit=%"} {
		b.do("GET", "/v1/sandboxes?"+q, "").wantError(400, "bad_request", "")
	}
	b.do("POST", "/v1/sandboxes", `{}`, idem, "k").want(201)
	b.do("POST", "/v1/sandboxes?a=1;b=2", `{}`, idem, "k").wantError(400, "bad_request", "")
}

func TestJoiningACommandIsNoErrorInTheLog(t *testing.T) {
	f := httpapitest.New()
	var log lockedBuffer
	s := httptest.NewServer(httpapi.New(httpapi.Config{}, f.Services(), slog.New(slog.NewTextHandler(&log, nil))))
	defer s.Close()
	b := &bench{Fake: f, t: t, url: s.URL, key: httpapitest.AdminKey}
	path := "/v1/sandboxes/" + b.sandbox() + "/exec"
	for range 3 {
		b.do("POST", path, `{"cmd": "true"}`, idem, "k").want(200)
	}
	s.Close() // every request has been logged
	if got := log.String(); strings.Contains(got, "level=ERROR") {
		t.Errorf("the log complains:\n%s", got)
	}
}

// What tenants can bring about as often as they like is no error of the server's, and what
// they do to their own sandboxes is not even news.
func TestTenantsDoNotFillTheLogWithErrors(t *testing.T) {
	f := httpapitest.New()
	var log lockedBuffer
	s := httptest.NewServer(httpapi.New(httpapi.Config{}, f.Services(), slog.New(slog.NewTextHandler(&log, nil))))
	defer s.Close()
	b := &bench{Fake: f, t: t, url: s.URL, key: httpapitest.AdminKey}
	sb := b.sandbox()
	b.do("GET", "/v1/sandboxes/"+sb+"/proxy/4000/", "").wantError(502, "port_closed", "")
	fails := hutch.Errorf(hutch.CodeUnavailable, "the sandbox has 16 shell sessions already: close one first")
	b.OnCall = func(string) error { return fails }
	b.do("POST", "/v1/sandboxes/"+sb+"/exec", `{"cmd": "true", "shell": "x"}`).wantError(503, "unavailable", "")
	fails = hutch.Errorf(hutch.CodeDiskFull, "the disk is full")
	b.do("POST", "/v1/sandboxes/"+sb+"/exec", `{"cmd": "true"}`).wantError(507, "disk_full", "")
	fails = hutch.ErrInternal
	b.do("POST", "/v1/sandboxes/"+sb+"/exec", `{"cmd": "true"}`).wantError(500, "internal", "")
	s.Close() // every request has been logged
	got := log.String()
	if strings.Contains(got, "level=WARN") || strings.Contains(got, "port_closed") || strings.Contains(got, "disk_full") {
		t.Errorf("tenants fill the log:\n%s", got)
	}
	if n := strings.Count(got, "level=ERROR"); n != 1 {
		t.Errorf("%d errors are logged, want the server's own fault alone:\n%s", n, got)
	}
}
