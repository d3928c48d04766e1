package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
	"golang.org/x/sys/unix"

	"hutch.dev/hutch"
	"hutch.dev/hutch/api"
)

// visitPort asks for a page of a port of a sandbox, by host name, with headers in pairs, and
// returns the answer's status and body.
func (s *server) visitPort(t *testing.T, sb hutch.SandboxID, port int, path string, headers ...string) (status int, body string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.base+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Host = fmt.Sprintf("%d-%s.localhost", port, sb)
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(b)
}

// serveInside starts a web server inside and waits until it answers from outside.
func (s *server) serveInside(t *testing.T, sb hutch.SandboxID, port int, cmd string) {
	t.Helper()
	s.background(t, sb, cmd)
	eventually(t, "the server inside answers", func() bool {
		status, _ := s.visitPort(t, sb, port, "/")
		return status == http.StatusOK
	})
}

func TestCaseK01LocalhostIsReached(t *testing.T) {
	s := common(t)
	sb := s.create(t, api.CreateSandbox{MaskHost: "localhost:${PORT}"})
	s.out(t, sb.ID, "mkdir /workspace/www && echo hello >/workspace/www/index.html")
	if status, body := s.visitPort(t, sb.ID, 8000, "/"); status != http.StatusBadGateway || !strings.Contains(body, "port is not open") {
		t.Errorf("before: %d %s", status, body)
	}
	for port, bind := range map[int]string{8000: "127.0.0.1", 8001: "0.0.0.0", 8002: "::1"} {
		s.serveInside(t, sb.ID, port, fmt.Sprintf("cd /workspace/www && exec python3 -m http.server %d --bind %s", port, bind))
	}
	// A server that refuses hosts it does not know, as development servers do.
	s.serveInside(t, sb.ID, 8003, `exec node -e 'require("http").createServer((q, r) => {
		if (q.headers.host !== "localhost:8003") { r.statusCode = 403 }
		r.end(q.headers["x-forwarded-host"])
	}).listen(8003, "localhost")'`)
	if _, body := s.visitPort(t, sb.ID, 8003, "/"); body != "8003-"+string(sb.ID)+".localhost" {
		t.Errorf("the server is told it was called as %q", body)
	}
	ports, err := s.client.Ports(t.Context(), sb.ID)
	if err != nil || len(ports) != 4 || ports[0].Port != 8000 || ports[0].Address != "127.0.0.1" || !ports[0].Listening {
		t.Errorf("ports: %+v, %v", ports, err)
	}
	// By a person's browser what is missing is said on a page.
	status, body := s.visitPort(t, sb.ID, 9999, "/", "Sec-Fetch-Mode", "navigate")
	if status != http.StatusBadGateway || !strings.Contains(body, "<code>8000</code>") {
		t.Errorf("%d %s", status, body)
	}
}

// keepAlive is a server inside that would rather keep connections.
const keepAlive = `exec node -e 'require("http").createServer((q, r) => r.end("pid " + process.pid)).listen(3000, "127.0.0.1")'`

func TestCaseK03NoConnectionOutlivesAPause(t *testing.T) {
	s := common(t)
	sb := s.create(t, api.CreateSandbox{})
	s.serveInside(t, sb.ID, 3000, keepAlive)
	for range 20 {
		if err := s.client.Pause(t.Context(), sb.ID); err != nil {
			t.Fatal(err)
		}
		if status, _ := s.visitPort(t, sb.ID, 3000, "/"); status != http.StatusBadGateway {
			t.Errorf("while it is paused: %d", status)
		}
		if err := s.client.Resume(t.Context(), sb.ID); err != nil {
			t.Fatal(err)
		}
		within(t, time.Second, "a request after a resume", func() {
			if status, body := s.visitPort(t, sb.ID, 3000, "/"); status != http.StatusOK {
				t.Errorf("%d %s", status, body)
			}
		})
	}
}

func TestCaseK05AFrozenSandboxIsReportedInTime(t *testing.T) {
	t.Parallel()
	s := own(t)
	sb := s.create(t, api.CreateSandbox{})
	s.serveInside(t, sb.ID, 3000, keepAlive)
	for _, pid := range s.kernelOf(t, sb.ID) {
		if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = unix.Kill(pid, unix.SIGCONT) }()
	}
	within(t, 20*time.Second, "the answer for a frozen sandbox", func() {
		if status, body := s.visitPort(t, sb.ID, 3000, "/"); status != http.StatusGatewayTimeout {
			t.Errorf("%d %s", status, body)
		}
	})
}

// kernelOf returns the processes on the host that a sandbox is.
func (s *server) kernelOf(t *testing.T, sb hutch.SandboxID) []int {
	t.Helper()
	var pids []int
	procs, _ := filepath.Glob("/proc/[0-9]*")
	for _, p := range procs {
		b, err := os.ReadFile(p + "/cmdline")
		if err == nil && strings.HasPrefix(string(b), "runsc-sandbox") && strings.Contains(string(b), s.dir) && strings.Contains(string(b), string(sb)) {
			var pid int
			if _, err := fmt.Sscanf(filepath.Base(p), "%d", &pid); err == nil {
				pids = append(pids, pid)
			}
		}
	}
	if len(pids) == 0 {
		t.Fatal("the sandbox has no process")
	}
	return pids
}

func TestCaseK06PrivateMeansPrivate(t *testing.T) {
	s := common(t)
	sb := s.create(t, api.CreateSandbox{PrivatePorts: true})
	s.background(t, sb.ID, keepAlive)
	s.out(t, sb.ID, "until curl -s http://127.0.0.1:3000/ >/dev/null; do sleep 0.05; done")
	for _, headers := range [][]string{
		nil,
		{"E2b-Traffic-Access-Token", strings.Repeat("0", 40)},
		{"Authorization", "Bearer " + strings.Repeat("0", 40)},
		{"X-Api-Key", "admin"},
		{"X-Forwarded-For", "127.0.0.1"},
		{"Cookie", "hutch_token=x"},
	} {
		if status, body := s.visitPort(t, sb.ID, 3000, "/", headers...); status != http.StatusForbidden || strings.Contains(body, "pid") {
			t.Errorf("%q: %d %s", headers, status, body)
		}
	}
	// Ids cannot be guessed: one that differs by a character is not there.
	other := []byte(sb.ID)
	if last := &other[len(other)-1]; *last == 'a' { // of an id's characters, all
		*last = 'b'
	} else {
		*last = 'a'
	}
	if status, _ := s.visitPort(t, hutch.SandboxID(other), 3000, "/"); status != http.StatusBadGateway {
		t.Errorf("another id: %d", status)
	}
	// The project's own key reaches it through the API.
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.base+"/v1/sandboxes/"+string(sb.ID)+"/proxy/3000/", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+s.key)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if b, _ := io.ReadAll(res.Body); res.StatusCode != http.StatusOK || !strings.HasPrefix(string(b), "pid") {
		t.Errorf("by the project's key: %d %s", res.StatusCode, b)
	}
}

// A server behind a proxy, under a public name, with what is streamed and upgraded.
func TestCaseK08StreamsAndWebSocketsBehindAProxy(t *testing.T) {
	s := own(t, "--domain", "boxes.example")
	sb := s.create(t, api.CreateSandbox{})
	const server = `exec python3 -c '
import base64, hashlib, http.server, time
class H(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        if "Upgrade" in self.headers:
            key = self.headers["Sec-WebSocket-Key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
            self.send_response(101)
            self.send_header("Upgrade", "websocket")
            self.send_header("Connection", "Upgrade")
            self.send_header("Sec-WebSocket-Accept", base64.b64encode(hashlib.sha1(key.encode()).digest()).decode())
            self.end_headers()
            while True:
                head = self.rfile.read(2)
                if len(head) < 2 or head[0] & 15 == 8:
                    break
                mask = self.rfile.read(4)
                data = bytes(b ^ mask[i % 4] for i, b in enumerate(self.rfile.read(head[1] & 127)))
                self.wfile.write(bytes([0x81, len(data)]) + data)
            self.close_connection = True
        elif self.path == "/sse":
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Connection", "close")
            self.end_headers()
            for i in range(3):
                self.wfile.write(b"data: %d\n\n" % i)
                self.wfile.flush()
                self.rfile.read(0)
                time.sleep(0.2)
            self.close_connection = True
        else:
            body = " ".join([self.headers["Host"], self.headers["X-Forwarded-Proto"], self.headers["X-Forwarded-Host"]]).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
http.server.ThreadingHTTPServer(("127.0.0.1", 3000), H).serve_forever()'`
	s.background(t, sb.ID, server)
	name := "3000-" + string(sb.ID) + ".boxes.example"
	ask := func(path string) (*http.Response, error) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.base+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Host = name
		req.Header.Set("X-Forwarded-Proto", "https")
		req.Header.Set("X-Forwarded-Host", name)
		return http.DefaultClient.Do(req)
	}
	eventually(t, "the server inside answers", func() bool {
		res, err := ask("/")
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		b, _ := io.ReadAll(res.Body)
		return res.StatusCode == http.StatusOK && string(b) == name+" https "+name
	})
	res, err := ask("/sse")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	lines, events := bufio.NewScanner(res.Body), 0
	for lines.Scan() {
		if strings.HasPrefix(lines.Text(), "data: ") {
			events++
		}
	}
	if events != 3 {
		t.Errorf("%d events", events)
	}
	conn, _, err := websocket.Dial(t.Context(), s.base+"/ws", &websocket.DialOptions{Host: name}) //nolint:bodyclose // Dial has read it
	if err != nil {
		t.Fatal(err)
	}
	defer conn.CloseNow()
	for _, word := range []string{"one", "two"} {
		if err := conn.Write(t.Context(), websocket.MessageText, []byte(word)); err != nil {
			t.Fatal(err)
		}
		if _, b, err := conn.Read(t.Context()); err != nil || string(b) != word {
			t.Errorf("got %q, %v", b, err)
		}
	}
}

// A caller of a server inside is cut off, not told a whole answer, when the sandbox ends.
func TestTheEndOfASandboxBreaksItsConnections(t *testing.T) {
	s := common(t)
	sb := s.create(t, api.CreateSandbox{})
	s.background(t, sb.ID, `exec node -e 'require("http").createServer((q, r) => r.write("begin")).listen(3000)'`)
	var res *http.Response
	eventually(t, "the server inside answers", func() bool {
		ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
		t.Cleanup(cancel)
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.base+"/", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("E2b-Sandbox-Id", string(sb.ID))
		req.Header.Set("E2b-Sandbox-Port", "3000")
		if res, err = http.DefaultClient.Do(req); err != nil { //nolint:bodyclose // closed below
			t.Fatal(err)
		}
		if res.StatusCode != http.StatusOK {
			_ = res.Body.Close()
		}
		return res.StatusCode == http.StatusOK
	})
	defer res.Body.Close()
	b := make([]byte, 5)
	if _, err := io.ReadFull(res.Body, b); err != nil || string(b) != "begin" {
		t.Fatalf("%q, %v", b, err)
	}
	if err := s.client.Kill(t.Context(), sb.ID); err != nil {
		t.Fatal(err)
	}
	within(t, time.Second, "the breaking of the connection", func() {
		if n, err := res.Body.Read(b); err == nil || err == io.EOF {
			t.Errorf("%d bytes, %v: want a broken connection", n, err)
		}
	})
	status, body := s.visitPort(t, sb.ID, 3000, "/")
	var view struct{ Message string }
	if err := json.Unmarshal([]byte(body), &view); err != nil || status != http.StatusBadGateway || view.Message != "The sandbox was not found" {
		t.Errorf("after it: %d %s", status, body)
	}
}
