package httpapi_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"hutch.dev/hutch"
	"hutch.dev/hutch/api"
	"hutch.dev/hutch/internal/httpapi"
	"hutch.dev/hutch/internal/httpapi/httpapitest"
)

// one is a listener of one connection.
type one struct {
	conn chan net.Conn
	done chan struct{}
}

func (l one) Accept() (net.Conn, error) {
	select {
	case c := <-l.conn:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}
func (l one) Close() error   { return nil }
func (l one) Addr() net.Addr { return &net.TCPAddr{} }

// serve has h answer at a port inside.
func (b *bench) serve(port int, h http.Handler) {
	done := make(chan struct{})
	b.t.Cleanup(func() { close(done) })
	b.Inside.Listen(port, func(c net.Conn) {
		l := one{make(chan net.Conn, 1), done}
		l.conn <- c
		_ = http.Serve(l, h) //nolint:gosec // a test's server
	})
}

func TestPorts(t *testing.T) {
	b := newBench(t, httpapi.Config{})
	sb := b.sandbox()
	ports := "/v1/sandboxes/" + sb + "/ports"
	if got := string(b.do("GET", ports, "").want(200).body); got != "[]\n" {
		t.Errorf("no ports are %s", got)
	}
	b.serve(3000, http.NotFoundHandler())
	b.serve(22, http.NotFoundHandler())
	p := into[api.Port](b.do("POST", ports, `{"port": 8080}`).want(201))
	if p.Port != 8080 || p.Label != "service" || p.Listening || p.Source != api.PortUser || p.ProxyURL != "/v1/sandboxes/"+sb+"/proxy/8080/" {
		t.Errorf("labelled %+v", p)
	}
	into[api.Port](b.do("POST", ports, `{"port": 3000, "label": "web"}`).want(201))
	list := into[[]api.Port](b.do("GET", ports, "").want(200))
	if len(list) != 2 || list[0].Port != 3000 || !list[0].Listening || list[0].Label != "web" || list[0].Command != "server" || list[1].Listening {
		t.Errorf("listed %+v", list)
	}
	for _, body := range []string{`{"port": 22}`, `{"port": 0}`, `{"port": 65536}`, `{}`} {
		b.do("POST", ports, body).wantError(400, "bad_request", "port")
	}
	b.do("POST", ports, `{"port": 1, "label": "`+strings.Repeat("x", 65)+`"}`).wantError(400, "bad_request", "label")
	b.do("DELETE", ports+"/8080", "").want(204)
	b.do("DELETE", ports+"/8080", "").wantError(404, "not_found", "")
	b.do("DELETE", ports+"/x", "").wantError(400, "bad_request", "port")
	for i := range 31 {
		b.do("POST", ports, fmt.Sprintf(`{"port": %d}`, 100+i)).want(201)
	}
	b.do("POST", ports, `{"port": 200}`).wantError(409, "conflict", "")
	b.do("POST", "/v1/sandboxes/"+sb+"/pause", "").want(204)
	if list := into[[]api.Port](b.do("GET", ports, "").want(200)); len(list) != 32 || list[0].Listening {
		t.Errorf("of a paused sandbox %d ports are listed, the first listening: %v", len(list), list[0].Listening)
	}
}

func TestProxy(t *testing.T) {
	b := newBench(t, httpapi.Config{MaxUpload: 1}) // which is about files
	sb := b.sandbox()
	proxy := "/v1/sandboxes/" + sb + "/proxy/3000"
	var seen *http.Request
	var body string
	b.serve(3000, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		data, _ := io.ReadAll(r.Body)
		seen, body = r, string(data)
		w.Header().Set("X-Inside", "yes")
		w.Header().Set("Content-Security-Policy", "default-src 'self'")
		w.Header().Set("Access-Control-Allow-Origin", "https://inside.example")
		w.WriteHeader(http.StatusTeapot)
		_, _ = io.WriteString(w, "answer")
	}))
	a := b.do("PATCH", proxy+"/a%2Fb/c?x=1;2&access_token=secret&y=%zz", "sent", "X-API-Key", "secret", "X-Own", "1").want(http.StatusTeapot)
	if string(a.body) != "answer" || a.header.Get("X-Inside") != "yes" {
		t.Errorf("answered %s %q", a.header, a.body)
	}
	if got := a.header.Values("Access-Control-Allow-Origin"); len(got) != 1 || got[0] != "https://inside.example" {
		t.Errorf("origins allowed: %q", got)
	}
	if got := a.header.Values("Content-Security-Policy"); len(got) != 2 || got[0] != "default-src 'self'" || !strings.HasPrefix(got[1], "sandbox ") || strings.Contains(got[1], "allow-same-origin") {
		t.Errorf("pages from inside may do %q", got)
	}
	if body != "sent" || seen.Method != "PATCH" || seen.RequestURI != "/a%2Fb/c?x=1;2&y=%zz" || seen.Header.Get("X-Own") != "1" {
		t.Errorf("the server inside saw %s %s %q", seen.Method, seen.RequestURI, body)
	}
	for _, h := range []string{"Authorization", "X-Api-Key"} {
		if v := seen.Header.Get(h); v != "" {
			t.Errorf("the server inside saw %s: %s", h, v)
		}
	}
	for h, want := range map[string]string{"X-Forwarded-Host": seen.Host, "X-Forwarded-Proto": "http", "X-Fcs-Sandbox": sb, "X-Forwarded-Prefix": proxy} {
		if got := seen.Header.Get(h); got != want || got == "" {
			t.Errorf("%s: %q, want %q", h, got, want)
		}
	}
	into[api.Sandbox](b.do("PATCH", "/v1/sandboxes/"+sb, `{"mask_host": "localhost:${PORT}"}`).want(200))
	b.do("GET", proxy+"/", "").want(http.StatusTeapot)
	if seen.Host != "localhost:3000" {
		t.Errorf("with mask_host the server inside saw Host %s", seen.Host)
	}
	b.do("OPTIONS", proxy+"/", "").want(http.StatusTeapot)
	b.as("").do("OPTIONS", proxy+"/", "").want(204) // a browser asking for leave
	b.as("").do("GET", proxy+"/", "").wantError(401, "unauthenticated", "")
	b.as(httpapitest.ReadKey).do("GET", proxy+"/", "").wantError(403, "forbidden", "")
	b.as(httpapitest.OtherKey).do("GET", proxy+"/", "").wantError(404, "not_found", "")
	b.do("GET", "/v1/sandboxes/"+sb+"/proxy/4000/", "").wantError(502, "port_closed", "")
	b.do("GET", "/v1/sandboxes/"+sb+"/proxy/99999/", "").wantError(400, "bad_request", "port")
	if n := b.Inside.Opened(); n != 0 {
		t.Errorf("%d guests are not let go of", n)
	}
}

func TestProxyOfWhatIsNoServer(t *testing.T) {
	b := newBench(t, httpapi.Config{})
	sb := b.sandbox()
	b.Inside.Listen(1, func(c net.Conn) { _ = c.Close() })
	b.Inside.Listen(2, func(c net.Conn) {
		_, _ = bufio.NewReader(c).ReadString('\n')
		_, _ = io.WriteString(c, "SSH-2.0 hello\r\n")
		_ = c.Close()
	})
	b.Inside.Listen(3, func(c net.Conn) {
		_, _ = bufio.NewReader(c).ReadString('\n')
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")
		_ = c.Close()
	})
	b.do("GET", "/v1/sandboxes/"+sb+"/proxy/1/", "").wantError(502, "port_closed", "")
	b.do("GET", "/v1/sandboxes/"+sb+"/proxy/2/", "").wantError(502, "port_closed", "")
	res := b.send(b.request("GET", "/v1/sandboxes/"+sb+"/proxy/3/", ""))
	if got, err := io.ReadAll(res.Body); err == nil {
		t.Errorf("half an answer was taken for %q", got)
	}
}

func TestProxiedStreamsAndSockets(t *testing.T) {
	b := newBench(t, httpapi.Config{})
	sb := b.sandbox()
	next := make(chan string)
	b.serve(3000, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/stream" {
			_ = http.NewResponseController(w).Flush()
			for s := range next {
				_, _ = io.WriteString(w, s)
				_ = http.NewResponseController(w).Flush()
			}
			return
		}
		conn, err := websocket.Accept(w, r, nil)
		if err != nil {
			return
		}
		for {
			typ, data, err := conn.Read(context.Background())
			if err != nil {
				return
			}
			_ = conn.Write(context.Background(), typ, append([]byte("echo "), data...))
		}
	}))
	res := b.send(b.request("GET", "/v1/sandboxes/"+sb+"/proxy/3000/stream", ""))
	buf := make([]byte, 10)
	for _, s := range []string{"one", "two"} {
		next <- s
		if n, err := res.Body.Read(buf); err != nil || string(buf[:n]) != s {
			t.Fatalf("read %q, %v; want %s as soon as it is sent", buf[:n], err, s)
		}
	}
	close(next)
	w := b.ws("/v1/sandboxes/" + sb + "/proxy/3000/ws")
	w.send(websocket.MessageText, "hi")
	if _, got := w.next(); got != "echo hi" {
		t.Errorf("got %q", got)
	}
	_ = w.conn.Close(websocket.StatusNormalClosure, "")
	b.eventually("the connection is let go of", func() bool { return b.Inside.Opened() == 0 })
}

func TestWhatIsKnownOfASandboxCanBeChanged(t *testing.T) {
	b := newBench(t, httpapi.Config{})
	sb := into[api.Sandbox](b.do("POST", "/v1/sandboxes", `{"metadata": {"a": "1", "secret.k": "s"}, "private_ports": true, "mask_host": "x.example:${PORT}"}`).want(201))
	path := "/v1/sandboxes/" + string(sb.ID)
	if !sb.PrivatePorts || sb.MaskHost != "x.example:${PORT}" || len(sb.Metadata) != 1 {
		t.Errorf("made %+v", sb)
	}
	got := into[api.Sandbox](b.do("PATCH", path, `{"metadata": {"b": "2", "secret.k": "t"}}`).want(200))
	if got.Metadata["a"] != "1" || got.Metadata["b"] != "2" || len(got.Metadata) != 2 || !got.PrivatePorts {
		t.Errorf("changed to %+v", got)
	}
	got = into[api.Sandbox](b.do("PATCH", path, `{"private_ports": false, "mask_host": ""}`).want(200))
	if got.PrivatePorts || got.MaskHost != "" {
		t.Errorf("changed to %+v", got)
	}
	b.do("PATCH", path, `{"template": "x"}`).wantError(400, "unknown_field", "template")
	b.do("PATCH", path, `{"mask_host": "a b"}`).wantError(400, "bad_request", "mask_host")
	b.do("POST", "/v1/sandboxes", `{"mask_host": "a/b"}`).wantError(400, "bad_request", "mask_host")
	b.do("PATCH", "/v1/sandboxes/none", `{}`).wantError(404, "not_found", "")
}

func TestUsage(t *testing.T) {
	b := newBench(t, httpapi.Config{})
	sb := b.sandbox()
	for _, path := range []string{"/usage", "/util"} {
		if u := into[api.Usage](b.do("GET", "/v1/sandboxes/"+sb+path, "").want(200)); u.CPUs != 2 || u.CPUPercent != 12.5 || u.MemoryBytes != 100<<20 || u.MemoryMaxBytes != 2<<30 || u.DiskBytes != 5<<20 || u.DiskMaxBytes != 10<<30 {
			t.Errorf("%s: %+v", path, u)
		}
	}
	if m := into[api.ProcessMetrics](b.do("GET", "/v1/sandboxes/"+sb+"/metrics", "").want(200)); m != (api.ProcessMetrics{UptimeSeconds: 60, HostCPUPercent: 12.5, HostRSSBytes: 100 << 20}) {
		t.Errorf("metrics: %+v", m)
	}
	if s := into[api.BootStats](b.do("GET", "/v1/stats/boot", "").want(200)); len(s.Stats) != 1 || s.Stats[0].P50MS != 30 || s.Stats[0].MaxMS != 41.5 || s.Stats[0].BootMode != "cold" {
		t.Errorf("boots: %+v", s)
	}
}

func TestSeries(t *testing.T) {
	b := newBench(t, httpapi.Config{})
	sb := b.sandbox()
	b.sandbox()
	at := httpapitest.Epoch.Truncate(time.Minute)
	var samples []hutch.Sample
	for i := range 6 {
		samples = append(samples, hutch.Sample{At: at.Add(time.Duration(i) * 5 * time.Second), CPUPercent: float64(10 * i), Memory: 100, Disk: int64(i)})
	}
	b.SetSamples(samples)
	from, to := at.Format(time.RFC3339), fmt.Sprint(at.Add(time.Minute).Unix())
	s := into[api.Series](b.do("GET", "/v1/metrics/sandbox/"+sb+"?from="+from+"&to="+to+"&step=15s", "").want(200))
	if s.StepSeconds != 15 || len(s.Series) != 2 {
		t.Fatalf("series %+v", s)
	}
	if p := s.Series[0]; !p.Time.Equal(at) || p.Sandboxes != 1 || p.CPUPercent != 10 || p.MemoryBytes != 100 || p.DiskBytes != 1 {
		t.Errorf("first step %+v", p)
	}
	if p := s.Series[1]; p.CPUPercent != 40 || p.DiskBytes != 4 {
		t.Errorf("second step %+v", p)
	}
	s = into[api.Series](b.do("GET", "/v1/metrics/overview?from="+from+"&to="+to+"&step=1m", "").want(200))
	if len(s.Series) != 1 || s.Series[0].Sandboxes != 2 || s.Series[0].CPUPercent != 50 || s.Series[0].MemoryBytes != 200 {
		t.Errorf("overview %+v", s)
	}
	if s := into[api.Series](b.do("GET", "/v1/metrics/overview", "").want(200)); s.Series == nil || len(s.Series) != 0 {
		t.Errorf("nothing is %+v", s)
	}
	for query, field := range map[string]string{"from=yesterday": "from", "step=1s": "step", "step=x": "step", "from=2000000000&to=1000000000": "to", "from=0&step=2h": "step"} {
		b.do("GET", "/v1/metrics/sandbox/"+sb+"?"+query, "").wantError(400, "bad_request", field)
	}
	into[api.Series](b.do("GET", "/v1/metrics/sandbox/"+sb+"?from=0&to=2000000000&step=5s", "").want(200)) // bounded
	b.do("GET", "/v1/metrics/sandbox/none", "").wantError(404, "not_found", "")
}

// A server inside reads its paths itself, whatever they are.
func TestPathsInsideAreNotCleaned(t *testing.T) {
	b := newBench(t, httpapi.Config{})
	sb := b.sandbox()
	b.serve(3000, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.RequestURI) }))
	for _, path := range []string{"/", "//", "//a", "/a/../b", "/..", "/../../../../v1/me", "/a/./b/", "/%2e%2e/a", "/a//b?c=../d"} {
		if got := string(b.do("GET", "/v1/sandboxes/"+sb+"/proxy/3000"+path, "").want(200).body); got != path {
			t.Errorf("%s arrived as %s", path, got)
		}
		b.as("").do("GET", "/v1/sandboxes/"+sb+"/proxy/3000"+path, "").wantError(401, "unauthenticated", "")
	}
	b.do("GET", "/v1/sandboxes/../proxy/3000/", "").wantError(404, "not_found", "") // is no sandbox's
	b.do("GET", "/v1/sandboxes/"+sb+"/proxy/../a/", "").wantError(404, "not_found", "")
}

// Years that JSON does not have are refused before an answer is begun with them.
func TestTimesThatNoAnswerCanHold(t *testing.T) {
	b := newBench(t, httpapi.Config{})
	for _, at := range []string{"1000000000000", "9999-12-31T23:59:59-01:00", "0000-01-01T00:00:00Z", "0001-01-01T00:00:00%2B01:00"} {
		b.do("GET", "/v1/audit?since="+at, "").wantError(400, "bad_request", "since")
		b.do("GET", "/v1/metrics/overview?from=0&to="+at, "").wantError(400, "bad_request", "to")
	}
	for _, at := range []string{"253402300799", "9999-12-31T23:59:59Z", "0001-01-01T00:00:00Z"} {
		into[api.Audit](b.do("GET", "/v1/audit?since="+at, "").want(200))
	}
	into[api.Series](b.do("GET", "/v1/metrics/overview?from=0001-01-01T00:00:00Z&to=0001-01-01T00:00:01Z&step=1h", "").want(200))
}
