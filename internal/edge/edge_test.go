package edge

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/x/credential"
)

const (
	box     hutch.SandboxID = "iaaaaaaaaaaaaaaaaaaaa"
	private hutch.SandboxID = "ibbbbbbbbbbbbbbbbbbbb"
	masked  hutch.SandboxID = "icccccccccccccccccccc"
	paused  hutch.SandboxID = "idddddddddddddddddddd"
	frozen  hutch.SandboxID = "ieeeeeeeeeeeeeeeeeeee"
)

// house is some sandboxes, all with the same servers inside.
type house struct {
	hutch.Shells // what is not asked for here panics
	hutch.FileReader
	hutch.FileWriter
	hutch.FileWatcher
	ports map[int]string

	mu     sync.Mutex
	active int
	conns  []net.Conn
}

func (h *house) SandboxByID(_ context.Context, id hutch.SandboxID) (hutch.Sandbox, error) {
	sb := hutch.Sandbox{ID: id, Project: "p", State: hutch.StateRunning}
	switch id {
	case box, frozen:
	case private:
		sb.Access.PrivatePorts = true
	case masked:
		sb.Access.MaskHost = "localhost:${PORT}"
	case paused:
		sb.State = hutch.StatePaused
	default:
		return sb, hutch.ErrNotFound
	}
	return sb, nil
}

func (h *house) Guest(_ context.Context, p hutch.ProjectID, id hutch.SandboxID) (hutch.Guest, func(), error) {
	if p != "p" {
		return nil, nil, hutch.ErrNotFound
	}
	h.add(1)
	if id == frozen {
		return frozenGuest{h}, func() { h.add(-1) }, nil
	}
	return h, func() { h.add(-1) }, nil
}

// eventually waits for what comes soon.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	tick, late := time.NewTicker(5*time.Millisecond), time.After(10*time.Second)
	defer tick.Stop()
	for !holds() {
		select {
		case <-tick.C:
		case <-late:
			t.Fatalf("not within ten seconds: %s", what)
		}
	}
}

func (h *house) add(n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.active += n
}

func (h *house) DialPort(_ context.Context, port int) (hutch.PortConn, error) {
	addr, ok := h.ports[port]
	if !ok {
		return nil, hutch.ErrPortClosed
	}
	c, err := net.Dial("tcp", addr)
	if err != nil {
		return nil, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.conns = append(h.conns, c)
	return c.(*net.TCPConn), nil
}

// end ends every connection, as the end of the sandbox does.
func (h *house) end() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, c := range h.conns {
		_ = c.(*net.TCPConn).SetLinger(0)
		_ = c.Close()
	}
}

func (*house) DiskUsage(context.Context) (hutch.DiskUsage, error) { return hutch.DiskUsage{}, nil }

func (h *house) Listeners(context.Context) ([]hutch.Listener, error) {
	return []hutch.Listener{{Port: 5173, Address: "127.0.0.1", Command: "<vite>"}}, nil
}

type frozenGuest struct{ *house }

func (frozenGuest) DialPort(ctx context.Context, _ int) (hutch.PortConn, error) {
	<-ctx.Done()
	return nil, context.Cause(ctx)
}

type tokens struct{}

func (tokens) Valid(id hutch.SandboxID, use, presented string) bool {
	return presented == use+":"+string(id)
}

// serve starts an edge whose sandboxes have inside as the server on port 3000.
func serve(t *testing.T, cfg Config, inside http.HandlerFunc) (*httptest.Server, *house) {
	t.Helper()
	in := httptest.NewServer(inside)
	t.Cleanup(in.Close)
	h := &house{ports: map[int]string{3000: in.Listener.Addr().String()}}
	next := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) })
	s := httptest.NewServer(New(cfg, h, tokens{}, next, slog.New(slog.DiscardHandler)))
	t.Cleanup(s.Close)
	return s, h
}

// answer is what was answered.
type answer struct {
	StatusCode int
	Header     http.Header
}

// get asks by host name, with headers in pairs, and returns the answer and its body.
func get(t *testing.T, s *httptest.Server, host, path string, headers ...string) (answer, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	if host != "" {
		r.Host = host
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	c := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	resp, err := c.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer{resp.StatusCode, resp.Header}, string(b)
}

func TestRouting(t *testing.T) {
	s, h := serve(t, Config{Domain: "sbx.test"}, func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "%s %s", r.Host, r.URL)
	})
	byHost := "3000-" + string(box) + ".sbx.test"
	for name, c := range map[string]struct {
		host    string
		headers []string
		status  int
		body    string
	}{
		"host":                    {byHost, nil, 200, byHost + " /a%2Fb?q=1"},
		"host in capitals, port":  {strings.ToUpper(byHost) + ":8443", nil, 200, strings.ToUpper(byHost) + ":8443 /a%2Fb?q=1"},
		"what follows the id":     {"3000-" + string(box) + "-client.sbx.test", nil, 200, "3000-" + string(box) + "-client.sbx.test /a%2Fb?q=1"},
		"headers":                 {"", []string{HeaderSandbox, string(box), HeaderPort, "3000"}, 200, s.Listener.Addr().String() + " /a%2Fb?q=1"},
		"headers beat the host":   {"9-" + string(paused) + ".sbx.test", []string{HeaderSandbox, string(box), HeaderPort, "3000"}, 200, "9-" + string(paused) + ".sbx.test /a%2Fb?q=1"},
		"one header":              {"", []string{HeaderSandbox, string(box)}, 400, errHalf.Error()},
		"the other":               {"", []string{HeaderPort, "3000"}, 400, errHalf.Error()},
		"port 0":                  {"0-" + string(box) + ".sbx.test", nil, 400, errPort.Error()},
		"port too large":          {"", []string{HeaderSandbox, string(box), HeaderPort, "65536"}, 400, errPort.Error()},
		"port with a sign":        {"", []string{HeaderSandbox, string(box), HeaderPort, "+3000"}, 400, errPort.Error()},
		"no id":                   {"3000-.sbx.test", nil, 400, errHost.Error()},
		"the server's own name":   {"api.sbx.test", nil, 418, ""},
		"the domain":              {"sbx.test", nil, 418, ""},
		"another domain":          {"3000-" + string(box) + ".evil.test", nil, 418, ""},
		"below a port's name":     {"x." + byHost, nil, 418, ""},
		"a name with a dash":      {"my-api.sbx.test", nil, 418, ""},
		"no such sandbox":         {"3000-izzzzzzzzzzzzzzzzzzzz.sbx.test", nil, 502, `"message":"The sandbox was not found"`},
		"an id that cannot be":    {"3000-nonexisting.sbx.test", nil, 502, `"message":"The sandbox was not found"`},
		"paused":                  {"3000-" + string(paused) + ".sbx.test", nil, 502, `"message":"The sandbox was not found"`},
		"nothing listens":         {"4000-" + string(box) + ".sbx.test", nil, 502, `{"sandboxId":"` + string(box) + `","message":"The sandbox is running but port is not open","port":4000,"code":502}`},
		"the host shown is asked": {"3000-" + string(masked) + ".sbx.test", nil, 200, "localhost:3000 /a%2Fb?q=1"},
	} {
		t.Run(name, func(t *testing.T) {
			resp, b := get(t, s, c.host, "/a%2Fb?q=1", c.headers...)
			if resp.StatusCode != c.status || !strings.Contains(b, c.body) {
				t.Errorf("got %d %q, want %d %q", resp.StatusCode, b, c.status, c.body)
			}
		})
	}
	// A use ends after its last answer has been read.
	eventually(t, "every use of a sandbox has ended", func() bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		return h.active == 0
	})
}

func TestCallersArePutOffUntilSandboxesAreTakenOver(t *testing.T) {
	s, _ := serve(t, Config{Recovered: func() bool { return false }}, nil)
	resp, b := get(t, s, "3000-"+string(box)+".localhost", "/")
	if resp.StatusCode != http.StatusServiceUnavailable || resp.Header.Get("Retry-After") == "" {
		t.Errorf("got %d %s", resp.StatusCode, b)
	}
	if resp, _ := get(t, s, "localhost", "/"); resp.StatusCode != http.StatusTeapot {
		t.Errorf("what is for no sandbox: got %d", resp.StatusCode)
	}
}

func TestPrivatePorts(t *testing.T) {
	var seen http.Header
	var query string
	s, _ := serve(t, Config{}, func(w http.ResponseWriter, r *http.Request) {
		seen, query = r.Header, r.URL.RawQuery
		fmt.Fprint(w, "in")
	})
	host, token := "3000-"+string(private)+".localhost", TokenTraffic+":"+string(private)
	for name, headers := range map[string][]string{
		"no token":               nil,
		"another sandbox's":      {HeaderToken, TokenTraffic + ":" + string(box)},
		"a token for the agent":  {HeaderToken, TokenAgent + ":" + string(private)},
		"a wrong cookie":         {"Cookie", cookieName + "=x"},
		"a wrong one and a good": {HeaderToken, "x", "Cookie", cookieName + "=" + token},
	} {
		resp, b := get(t, s, host, "/", headers...)
		var got body
		if err := json.Unmarshal([]byte(b), &got); err != nil || resp.StatusCode != 403 || got.Code != 403 || got.Sandbox != private {
			t.Errorf("%s: got %d %s", name, resp.StatusCode, b)
		}
	}
	if _, b := get(t, s, host, "/", HeaderToken, token, credential.HeaderAgent, TokenAgent+":"+string(private), HeaderSandbox, string(private), HeaderPort, "3000"); b != "in" {
		t.Fatalf("got %q", b)
	}
	for _, h := range []string{HeaderToken, credential.HeaderAgent, HeaderSandbox, HeaderPort} {
		if seen.Get(h) != "" {
			t.Errorf("the server inside was sent %s", h)
		}
	}
	if _, b := get(t, s, host, "/", "Cookie", "a=1; "+cookieName+"="+token+"; b=2", credential.HeaderAgent, "its own"); b != "in" || seen.Get("Cookie") != "a=1; b=2" || seen.Get(credential.HeaderAgent) != "its own" {
		t.Errorf("got %q, cookies %q, token %q", b, seen.Get("Cookie"), seen.Get(credential.HeaderAgent))
	}
	// Once in the query, then as a cookie of that host.
	resp, _ := get(t, s, host, "//evil.test/p?x=1&"+tokenParam+"="+token)
	if loc := resp.Header.Get("Location"); resp.StatusCode != http.StatusSeeOther || loc != "/evil.test/p?x=1" || !strings.Contains(resp.Header.Get("Set-Cookie"), "HttpOnly") {
		t.Errorf("got %d to %q with %q", resp.StatusCode, loc, resp.Header.Get("Set-Cookie"))
	}
	// By headers there is no host of its own to set a cookie for.
	if _, b := get(t, s, "", "/?x=1&"+tokenParam+"="+token, HeaderSandbox, string(private), HeaderPort, "3000"); b != "in" || query != "x=1" {
		t.Errorf("got %q with query %q", b, query)
	}
	// Nobody needs a token for a sandbox whose ports are not private.
	if resp, _ := get(t, s, "3000-"+string(box)+".localhost", "/"); resp.StatusCode != 200 {
		t.Errorf("got %d", resp.StatusCode)
	}
}

func TestPeopleGetAPage(t *testing.T) {
	s, _ := serve(t, Config{}, nil)
	browser := []string{"User-Agent", "Mozilla/5.0 (X11)", "Accept", "text/html,*/*"}
	resp, b := get(t, s, "4000-"+string(box)+".localhost", "/", browser...)
	if resp.StatusCode != 502 || !strings.HasPrefix(resp.Header.Get("Content-Type"), "text/html") ||
		!strings.Contains(b, "<code>4000</code>") || !strings.Contains(b, "<code>5173</code> (&lt;vite&gt;)") {
		t.Errorf("got %d %s", resp.StatusCode, b)
	}
	if resp, _ := get(t, s, "4000-"+string(box)+".localhost", "/", append(browser, "Sec-Fetch-Mode", "cors")...); resp.Header.Get("Content-Type") != "application/json" {
		t.Errorf("a script got %s", resp.Header.Get("Content-Type"))
	}
	if resp, _ := get(t, s, "4000-"+string(box)+".localhost", "/", "Sec-Fetch-Mode", "navigate"); !strings.HasPrefix(resp.Header.Get("Content-Type"), "text/html") {
		t.Errorf("a navigation got %s", resp.Header.Get("Content-Type"))
	}
}

func TestFrozenSandboxIsReportedInTime(t *testing.T) {
	s, _ := serve(t, Config{DialTimeout: 20 * time.Millisecond}, nil)
	if resp, b := get(t, s, "3000-"+string(frozen)+".localhost", "/"); resp.StatusCode != http.StatusGatewayTimeout {
		t.Errorf("got %d %s", resp.StatusCode, b)
	}
}

func TestTooManyRequests(t *testing.T) {
	entered, leave := make(chan struct{}), make(chan struct{})
	s, _ := serve(t, Config{MaxRequests: 1}, func(http.ResponseWriter, *http.Request) { entered <- struct{}{}; <-leave })
	host := "3000-" + string(box) + ".localhost"
	first := make(chan int)
	go func() { defer close(first); resp, _ := get(t, s, host, "/"); first <- resp.StatusCode }()
	<-entered
	if resp, _ := get(t, s, host, "/"); resp.StatusCode != http.StatusTooManyRequests || resp.Header.Get("Retry-After") == "" {
		t.Errorf("the second: got %d", resp.StatusCode)
	}
	if resp, _ := get(t, s, "4000-"+string(masked)+".localhost", "/"); resp.StatusCode != http.StatusBadGateway {
		t.Errorf("another sandbox: got %d", resp.StatusCode)
	}
	close(leave)
	if code := <-first; code != 200 {
		t.Errorf("the first: got %d", code)
	}
	go func() { <-entered }()
	if resp, _ := get(t, s, host, "/"); resp.StatusCode != 200 {
		t.Errorf("after it: got %d", resp.StatusCode)
	}
}

// An answer that the end of a sandbox cuts short must not look whole.
func TestDeathBreaksTheConnection(t *testing.T) {
	begun := make(chan struct{})
	s, h := serve(t, Config{}, func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, "begin")
		_ = http.NewResponseController(w).Flush()
		close(begun)
		<-r.Context().Done()
	})
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Host = "3000-" + string(box) + ".localhost"
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	<-begun
	b := make([]byte, 5)
	if _, err := io.ReadFull(resp.Body, b); err != nil || string(b) != "begin" {
		t.Fatalf("%q: %v", b, err) // what there is comes at once
	}
	var stray lockedBuffer
	log.SetOutput(&stray)
	defer log.SetOutput(os.Stderr)
	h.end()
	if n, err := resp.Body.Read(b); err == nil || err == io.EOF {
		t.Errorf("got %d bytes and %v, want a broken connection", n, err)
	}
	s.Close() // the proxy has said what it had to say
	if got := stray.String(); strings.Contains(got, "ReverseProxy") {
		t.Errorf("what happens inside goes to the process's own stderr: %s", got)
	}
}

type lockedBuffer struct {
	mu sync.Mutex
	b  strings.Builder
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

func TestUpgradeGoesThrough(t *testing.T) {
	s, _ := serve(t, Config{}, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") != "echo" {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		c, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer c.Close()
		fmt.Fprint(rw, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
		_ = rw.Flush()
		_, _ = io.Copy(c, rw)
	})
	c, err := net.Dial("tcp", s.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	fmt.Fprintf(c, "GET / HTTP/1.1\r\nHost: 3000-%s.localhost\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n", box)
	rd := bufio.NewReader(c)
	resp, err := http.ReadResponse(rd, nil) //nolint:bodyclose // it has none: the connection goes on as something else
	if err != nil || resp.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("%v: %v", resp, err)
	}
	for _, line := range []string{"one\n", "two\n"} {
		fmt.Fprint(c, line)
		if got, err := rd.ReadString('\n'); err != nil || got != line {
			t.Fatalf("got %q, %v", got, err)
		}
	}
}

func TestHowItCameIsKept(t *testing.T) {
	var seen http.Header
	s, _ := serve(t, Config{}, func(_ http.ResponseWriter, r *http.Request) { seen = r.Header })
	host := "3000-" + string(masked) + ".localhost"
	get(t, s, host, "/")
	if seen.Get("X-Forwarded-Host") != host || seen.Get("X-Forwarded-Proto") != "http" || seen.Get("X-Forwarded-For") != "127.0.0.1" {
		t.Errorf("got %v", seen)
	}
	get(t, s, host, "/", "X-Forwarded-Proto", "https", "X-Forwarded-Host", "public.test", "X-Forwarded-For", "192.0.2.1")
	if seen.Get("X-Forwarded-Host") != "public.test" || seen.Get("X-Forwarded-Proto") != "https" || seen.Get("X-Forwarded-For") != "192.0.2.1, 127.0.0.1" {
		t.Errorf("behind a proxy: got %v", seen)
	}
}

func FuzzRoute(f *testing.F) {
	for _, seed := range [][3]string{
		{"3000-iaaaaaaaaaaaaaaaaaaaa.localhost:80", "", ""},
		{"[::1]:80", "", ""},
		{"x", string(box), "80"},
		{"-.localhost", "", ""},
		{"3000-.localhost.", "-", "-1"},
	} {
		f.Add(seed[0], seed[1], seed[2])
	}
	e := New(Config{}, nil, nil, nil, slog.New(slog.DiscardHandler))
	f.Fuzz(func(t *testing.T, host, sandbox, port string) {
		r := &http.Request{Host: host, Header: http.Header{HeaderSandbox: {sandbox}, HeaderPort: {port}}}
		to, err := e.route(r)
		if err == nil && to.Sandbox != "" && (to.Port < 1 || to.Port > 65535 || strings.ContainsFunc(string(to.Sandbox), notAlphanumeric)) {
			t.Errorf("%q is for %+v", host, to)
		}
	})
}

// A body that is announced and does not come holds no connection of who gets no further
// than this; one that a server inside waits for may take its time.
func TestBodiesThatDoNotCome(t *testing.T) {
	const limit = 50 * time.Millisecond
	s, _ := serve(t, Config{BodyTimeout: limit}, func(w http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		fmt.Fprintf(w, "%s %v", b, err)
	})
	send := func(host string) net.Conn {
		conn, err := net.Dial("tcp", s.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		_ = conn.SetDeadline(time.Now().Add(30 * time.Second))
		if _, err := fmt.Fprintf(conn, "POST / HTTP/1.1\r\nHost: %s\r\nContent-Length: 4\r\n\r\nbo", host); err != nil {
			t.Fatal(err)
		}
		return conn
	}
	slow := send("3000-" + string(box) + ".localhost")
	for name, host := range map[string]string{"no sandbox": "3000-izzzzzzzzzzzzzzzzzzzz.localhost", "private": "3000-" + string(private) + ".localhost"} {
		if got, err := io.ReadAll(send(host)); err != nil || !strings.HasPrefix(string(got), "HTTP/1.1 ") {
			t.Errorf("%s: %q, then %v; want an answer and the end of the connection", name, got, err)
		}
	}
	time.AfterFunc(2*limit, func() { _, _ = io.WriteString(slow, "dy") })
	res, err := http.ReadResponse(bufio.NewReader(slow), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if got, err := io.ReadAll(res.Body); err != nil || string(got) != "body <nil>" {
		t.Errorf("the server inside got %q, %v", got, err)
	}
}
