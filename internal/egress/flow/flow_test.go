package flow

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/egress/policy"
)

// atOnce is what a denial has to take less than. It takes a millisecond or so; on a machine
// whose CPUs are all taken, more. What matters is that no timeout has to pass.
const atOnce = time.Second

func TestWithoutAPolicyNothingPasses(t *testing.T) {
	w := newWorld(t)
	w.host("api.example.com", "203.0.113.7", 443, "127.0.0.1:1")
	if _, err := w.guest.Dial("203.0.113.7:443"); err == nil || !strings.Contains(err.Error(), "refused") {
		t.Errorf("connect: %v, want refused", err)
	}
	if _, err := w.guest.Dial("8.8.8.8:53"); err == nil || !strings.Contains(err.Error(), "refused") {
		t.Errorf("connect to port 53: %v, want refused", err)
	}
	e := w.event("the refusal", func(e Event) bool { return e.Port == 443 })
	if e.Action != policy.Deny || e.Rule != policy.RuleDefault || !strings.Contains(e.Reason, "no network policy") {
		t.Errorf("noted: %+v", e)
	}
}

func TestNames(t *testing.T) {
	w := newWorld(t, domain("api.example.com"))
	w.host("api.example.com", "203.0.113.7", 443, "")
	w.host("evil.example", "203.0.113.66", 443, "")
	if code, addrs := w.resolve("api.example.com"); code != dnsmessage.RCodeSuccess || len(addrs) != 1 || addrs[0] != "203.0.113.7" {
		t.Errorf("allowed name: %v %v", code, addrs)
	}
	began := time.Now()
	if code, addrs := w.resolve("data.evil.example"); code != dnsmessage.RCodeRefused || addrs != nil || time.Since(began) > atOnce {
		t.Errorf("other name: %v %v after %v", code, addrs, time.Since(began))
	}
	if e := w.event("the refusal", func(e Event) bool { return e.Proto == "dns" && e.Action == policy.Deny }); e.Name != "data.evil.example" || e.Rule != policy.RuleDefault {
		t.Errorf("noted: %+v", e)
	}
	// Over TCP, to any address, more than one on a connection.
	c := w.guest.MustDial("1.1.1.1:53")
	for name, want := range map[string]dnsmessage.RCode{"api.example.com": dnsmessage.RCodeSuccess, "evil.example": dnsmessage.RCodeRefused} {
		q := query(t, name)
		if _, err := c.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(q))), q...)); err != nil {
			t.Fatal(err)
		}
		head := make([]byte, 2)
		if _, err := io.ReadFull(c, head); err != nil {
			t.Fatal(err)
		}
		b := make([]byte, binary.BigEndian.Uint16(head))
		if _, err := io.ReadFull(c, b); err != nil {
			t.Fatal(err)
		}
		if code, _ := answer(t, b); code != want {
			t.Errorf("%s over TCP: %v", name, code)
		}
	}
}

func TestTLSByName(t *testing.T) {
	w := newWorld(t, domain("api.example.com"))
	w.host("api.example.com", "203.0.113.7", 443, tlsServer(t, nil, echoTLS))
	w.resolve("api.example.com")
	c := secure(w.guest.MustDial("203.0.113.7:443"), "api.example.com")
	sent := make([]byte, 1<<20)
	_, _ = rand.Read(sent)
	go func() { _, _ = c.Write(sent); _ = c.CloseWrite() }()
	if got, err := io.ReadAll(c); err != nil || !bytes.Equal(got, sent) {
		t.Fatalf("%d bytes of %d came back, %v", len(got), len(sent), err)
	}
	_ = c.Close()
	e := w.event("its end", func(e Event) bool { return e.Proto == "tls" })
	if e.Action != policy.Allow || e.Name != "api.example.com" || e.Rule != "rules[0]" || e.Out < 1<<20 || e.In < 1<<20 || e.Addr.String() != "203.0.113.7" {
		t.Errorf("noted: %+v", e)
	}
	if tr := w.box.Traffic(); len(tr) != 1 || tr[0].Host != "api.example.com" || tr[0].Port != 443 || tr[0].Out != e.Out || tr[0].In != e.In || tr[0].Connections != 1 {
		t.Errorf("traffic: %+v", tr)
	}
	w.idle()
}

// What is not what was resolved and allowed gets an alert, at once, and nothing is dialled.
func TestTLSDenied(t *testing.T) {
	w := newWorld(t, domain("api.example.com"), domain("other.example.com"), domain("private.example.com", 8443))
	server := tlsServer(t, nil, echoTLS)
	w.host("api.example.com", "203.0.113.7", 443, server)
	w.host("other.example.com", "203.0.113.8", 443, server)
	w.host("private.example.com", "203.0.113.7", 443, server)
	w.host("", "203.0.113.9", 443, server)
	for _, n := range []string{"api.example.com", "other.example.com", "private.example.com"} {
		w.resolve(n)
	}
	for name, test := range map[string]struct{ sni, rule string }{
		"other name":              {"evil.example", RuleOther},
		"allowed, elsewhere":      {"other.example.com", RuleOther},
		"no name":                 {"", RuleNoName},
		"name of another port":    {"private.example.com", policy.RuleDefault},
		"name that is no name":    {"api_.example..com", policy.RuleMalformed},
		"subdomain of an allowed": {"x.api.example.com", RuleOther},
	} {
		t.Run(name, func(t *testing.T) {
			raw := w.guest.MustDial("203.0.113.7:443")
			began := time.Now()
			c := tls.Client(raw, &tls.Config{ServerName: test.sni, InsecureSkipVerify: true})
			err := c.HandshakeContext(t.Context())
			if alert, ok := errors.AsType[tls.AlertError](err); !ok && (err == nil || !strings.Contains(err.Error(), "access denied")) || time.Since(began) > atOnce {
				t.Errorf("handshake: %v %v after %v; want access denied", err, alert, time.Since(began))
			}
			if test.sni == "name that is no name" {
				return
			}
			w.event("it is noted as "+test.rule, func(e Event) bool {
				return e.Action == policy.Deny && e.Rule == test.rule && e.Proto == "tls" && e.Reason != ""
			})
		})
	}
	if _, err := w.guest.Dial("203.0.113.9:443"); err == nil || !strings.Contains(err.Error(), "refused") {
		t.Errorf("literal address: %v", err)
	}
	if _, err := w.guest.Dial("203.0.113.7:22"); err == nil || !strings.Contains(err.Error(), "refused") {
		t.Errorf("other port: %v", err)
	}
	if d := w.dialled(); len(d) != 0 {
		t.Errorf("dialled: %v", d)
	}
	w.idle()
}

// A ClientHello with ECH, real or not, hides a name.
func TestECHIsRefused(t *testing.T) {
	w := newWorld(t, domain("api.example.com"))
	w.host("api.example.com", "203.0.113.7", 443, tlsServer(t, nil, echoTLS))
	w.resolve("api.example.com")
	hello := clientHello(t, "api.example.com")
	// Appended to the extensions, of which the lengths stand in front.
	ech := []byte{0xfe, 0x0d, 0, 4, 1, 2, 3, 4}
	at := 5 + 4 + 2 + 32
	at += 1 + int(hello[at])
	at += 2 + int(binary.BigEndian.Uint16(hello[at:]))
	at += 1 + int(hello[at])
	binary.BigEndian.PutUint16(hello[at:], binary.BigEndian.Uint16(hello[at:])+8)
	binary.BigEndian.PutUint16(hello[7:], binary.BigEndian.Uint16(hello[7:])+8)
	binary.BigEndian.PutUint16(hello[3:], binary.BigEndian.Uint16(hello[3:])+8)
	c := w.guest.MustDial("203.0.113.7:443")
	_, _ = c.Write(append(hello, ech...))
	if got, err := io.ReadAll(c); err != nil || !bytes.Equal(got, alert(alertAccess)) {
		t.Errorf("got %x, %v; want an alert", got, err)
	}
	if e := w.event("the refusal", func(e Event) bool { return e.Rule == RuleNoName }); !strings.Contains(e.Reason, "ECH") || len(w.dialled()) != 0 {
		t.Errorf("noted: %+v, dialled: %v", e, w.dialled())
	}
}

// clientHello is what Go's client sends first.
func clientHello(t testing.TB, name string) []byte {
	t.Helper()
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	go func() { _ = secure(a, name).HandshakeContext(context.Background()) }()
	head := make([]byte, 5)
	if _, err := io.ReadFull(b, head); err != nil {
		t.Fatal(err)
	}
	out := make([]byte, 5+int(binary.BigEndian.Uint16(head[3:])))
	copy(out, head)
	if _, err := io.ReadFull(b, out[5:]); err != nil {
		t.Fatal(err)
	}
	return out
}

// dripper writes a connection's first bytes in pieces.
type dripper struct {
	net.Conn
	size, until int
}

func (d *dripper) Write(b []byte) (int, error) {
	n := 0
	for n < len(b) && d.until > 0 {
		end := min(n+d.size, len(b))
		if _, err := d.Conn.Write(b[n:end]); err != nil {
			return n, err
		}
		d.until -= end - n
		n = end
	}
	m, err := d.Conn.Write(b[n:])
	return n + m, err
}

// A ClientHello that comes in pieces is read like any other, and one that never ends is given up.
func TestDrippedHello(t *testing.T) {
	w := newWorld(t, domain("api.example.com"))
	w.host("api.example.com", "203.0.113.7", 443, tlsServer(t, nil, echoTLS))
	w.resolve("api.example.com")
	for _, name := range []string{"api.example.com", "evil.example"} {
		c := secure(&dripper{Conn: w.guest.MustDial("203.0.113.7:443"), size: 3, until: 4096}, name)
		err := c.HandshakeContext(t.Context())
		if allowed := name == "api.example.com"; (err == nil) != allowed {
			t.Errorf("%s: %v", name, err)
		}
		_ = c.Close()
	}
	c := w.guest.MustDial("203.0.113.7:443")
	_, _ = c.Write(clientHello(t, "api.example.com")[:100])
	if got, err := io.ReadAll(c); err != nil || !bytes.Equal(got, alert(alertAccess)) {
		t.Errorf("half a hello: %x, %v", got, err)
	}
	w.idle()
}

// A server that asks for a second ClientHello gets none for another host.
func TestSecondHelloForAnotherHost(t *testing.T) {
	seen := make(chan []byte, 1)
	w := newWorld(t, domain("api.example.com"))
	w.host("api.example.com", "203.0.113.7", 443, tcpServer(t, func(c net.Conn) {
		all, _ := io.ReadAll(c)
		seen <- all
	}))
	w.resolve("api.example.com")
	c := w.guest.MustDial("203.0.113.7:443")
	first := clientHello(t, "api.example.com")
	_, _ = c.Write(first)
	_, _ = c.Write([]byte{20, 3, 3, 0, 1, 1})
	_, _ = c.Write(clientHello(t, "evil.example"))
	if got, err := io.ReadAll(c); err != nil || !bytes.Equal(got, alert(alertAccess)) {
		t.Errorf("got %x, %v; want an alert", got, err)
	}
	if got := <-seen; bytes.Contains(got, []byte("evil")) {
		t.Error("the other name reached the server")
	}
	// With the same name it passes: a real handshake with a server that asks twice.
	w.host("api.example.com", "203.0.113.7", 443, tlsServer(t, &tls.Config{CurvePreferences: []tls.CurveID{tls.CurveP384}}, echoTLS))
	s := tls.Client(w.guest.MustDial("203.0.113.7:443"), &tls.Config{ServerName: "api.example.com", InsecureSkipVerify: true, CurvePreferences: []tls.CurveID{tls.X25519, tls.CurveP384}})
	if err := s.HandshakeContext(t.Context()); err != nil {
		t.Errorf("with the same name: %v", err)
	}
	if !s.ConnectionState().HelloRetryRequest {
		t.Error("the server did not ask twice: this tests nothing")
	}
	_, _ = s.Write([]byte("x"))
	if _, err := io.ReadFull(s, make([]byte, 1)); err != nil {
		t.Error(err)
	}
}

// request sends text on a connection and reads one answer.
func request(t *testing.T, c net.Conn, r *bufio.Reader, text string) (int, string) {
	t.Helper()
	if _, err := io.WriteString(c, text); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(r, nil)
	if err != nil {
		t.Fatalf("after %.60q: %v", text, err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

func TestHTTPByHost(t *testing.T) {
	w := newWorld(t, domain("web.example.com"), domain("also.example.com"), domain("elsewhere.example.com"))
	server := webServer(t, echoRequest)
	w.host("web.example.com", "203.0.113.7", 80, server)
	w.host("also.example.com", "203.0.113.7", 80, server)
	w.host("elsewhere.example.com", "203.0.113.8", 80, server)
	for _, n := range []string{"web.example.com", "also.example.com", "elsewhere.example.com"} {
		w.resolve(n)
	}
	c := w.guest.MustDial("203.0.113.7:80")
	r := bufio.NewReader(c)
	for text, want := range map[string]string{
		"GET /a HTTP/1.1\r\nHost: web.example.com\r\n\r\n":                                                                "GET web.example.com /a ",
		"GET /b HTTP/1.1\r\nHost: ALSO.example.com\r\n\r\n":                                                               "GET ALSO.example.com /b ",
		"POST /c HTTP/1.1\r\nHost: web.example.com\r\nContent-Length: 5\r\n\r\nhello":                                     "POST web.example.com /c hello",
		"POST /d HTTP/1.1\r\nHost: web.example.com\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n": "POST web.example.com /d abcde",
		"GET http://web.example.com/e HTTP/1.1\r\nHost: web.example.com\r\n\r\n":                                          "GET web.example.com /e ",
	} {
		if code, body := request(t, c, r, text); code != 200 || body != want {
			t.Errorf("%.60q: %d %q, want %q", text, code, body, want)
		}
	}
	_ = c.Close()

	tests := map[string]struct {
		text, rule string
		code       int
	}{
		"other host":           {"GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n", RuleOther, 403},
		"allowed, elsewhere":   {"GET / HTTP/1.1\r\nHost: elsewhere.example.com\r\n\r\n", RuleOther, 403},
		"address":              {"GET / HTTP/1.1\r\nHost: 203.0.113.7\r\n\r\n", policy.RuleDefault, 403},
		"other address":        {"GET / HTTP/1.1\r\nHost: 169.254.169.254\r\n\r\n", RuleOther, 403},
		"no host":              {"GET / HTTP/1.0\r\n\r\n", RuleNoName, 403},
		"target disagrees":     {"GET http://evil.example/ HTTP/1.1\r\nHost: web.example.com\r\n\r\n", policy.RuleMalformed, 400},
		"two hosts":            {"GET / HTTP/1.1\r\nHost: web.example.com\r\nHost: evil.example\r\n\r\n", policy.RuleMalformed, 400},
		"CONNECT":              {"CONNECT evil.example:443 HTTP/1.1\r\nHost: web.example.com\r\n\r\n", policy.RuleMalformed, 400},
		"smuggled":             {"POST / HTTP/1.1\r\nHost: web.example.com\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", policy.RuleMalformed, 400},
		"smuggled, obs-fold":   {"POST / HTTP/1.1\r\nHost: web.example.com\r\nTransfer-Encoding:\r\n chunked\r\n\r\n", policy.RuleMalformed, 400},
		"h2c upgrade":          {"GET / HTTP/1.1\r\nHost: web.example.com\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n", policy.RuleMalformed, 400},
		"name that is no name": {"GET / HTTP/1.1\r\nHost: 0x7f.1\r\n\r\n", policy.RuleMalformed, 400},
	}
	for name, test := range tests {
		for _, later := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/later=%v", name, later), func(t *testing.T) {
				c := w.guest.MustDial("203.0.113.7:80")
				r := bufio.NewReader(c)
				if later {
					request(t, c, r, "GET /first HTTP/1.1\r\nHost: web.example.com\r\n\r\n")
				}
				before := len(w.dialled())
				began := time.Now()
				code, body := request(t, c, r, test.text)
				if code != test.code || !strings.Contains(body, "Decided by: "+test.rule) || time.Since(began) > atOnce {
					t.Errorf("%d %q after %v; want %d by %s", code, body, time.Since(began), test.code, test.rule)
				}
				if _, err := r.ReadByte(); !errors.Is(err, io.EOF) {
					t.Errorf("the connection stays: %v", err)
				}
				if got := len(w.dialled()); got != before {
					t.Error("something was dialled for it")
				}
			})
		}
	}
	w.idle()
}

// A request within the body of another, or behind it, is checked like any.
func TestPipelinedRequestsAreChecked(t *testing.T) {
	w := newWorld(t, domain("web.example.com"))
	var mu sync.Mutex
	var hosts []string
	w.host("web.example.com", "203.0.113.7", 80, webServer(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		hosts = append(hosts, r.Host)
	})))
	w.resolve("web.example.com")
	c := w.guest.MustDial("203.0.113.7:80")
	good := "POST / HTTP/1.1\r\nHost: web.example.com\r\nContent-Length: 40\r\n\r\nGET / HTTP/1.1\r\nHost: within.example\r\n\r\n"
	_, _ = io.WriteString(c, good+good+"GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n")
	_, _ = io.ReadAll(c)
	w.event("the refusal", func(e Event) bool { return e.Name == "evil.example" && e.Action == policy.Deny })
	mu.Lock()
	defer mu.Unlock()
	for _, h := range hosts {
		if h != "web.example.com" {
			t.Errorf("the server was asked for %s", h)
		}
	}
}

// Rules about requests hold for every request.
func TestRulesAboutRequests(t *testing.T) {
	r := domain("web.example.com", 80, 443)
	r.HTTP = &hutch.HTTPMatch{Methods: []string{"GET"}, Paths: []string{"/public/*"}}
	w := newWorld(t, r)
	w.host("web.example.com", "203.0.113.7", 80, webServer(t, echoRequest))
	w.host("web.example.com", "203.0.113.7", 443, tlsServer(t, nil, echoTLS))
	w.resolve("web.example.com")
	for _, text := range []string{"GET /private HTTP/1.1", "POST /public/x HTTP/1.1", "GET /public/../private HTTP/1.1", "GET /public/%2e%2e/private HTTP/1.1"} {
		c := w.guest.MustDial("203.0.113.7:80")
		br := bufio.NewReader(c)
		if code, body := request(t, c, br, "GET /public/ok HTTP/1.1\r\nHost: web.example.com\r\n\r\n"); code != 200 {
			t.Fatalf("allowed: %d %s", code, body)
		}
		if code, body := request(t, c, br, text+"\r\nHost: web.example.com\r\n\r\n"); code != 403 || !strings.Contains(body, "rules[0]") {
			t.Errorf("%s: %d %q", text, code, body)
		}
	}
	if err := secure(w.guest.MustDial("203.0.113.7:443"), "web.example.com").HandshakeContext(t.Context()); err == nil {
		t.Error("TLS passes, in which no request can be read")
	}
}

// A server that agrees to another protocol has a connection of that; one that does not is asked
// on, and each request is checked.
func TestUpgrade(t *testing.T) {
	w := newWorld(t, domain("web.example.com"))
	w.host("web.example.com", "203.0.113.7", 80, tcpServer(t, func(c net.Conn) {
		br := bufio.NewReader(c)
		for {
			req, err := http.ReadRequest(br)
			if err != nil {
				return
			}
			if req.URL.Path == "/ws" {
				_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
				_, _ = io.Copy(c, br)
				return
			}
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nno")
		}
	}))
	w.resolve("web.example.com")
	upgrade := func(path string) string {
		return "GET " + path + " HTTP/1.1\r\nHost: web.example.com\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
	}
	c := w.guest.MustDial("203.0.113.7:80")
	r := bufio.NewReader(c)
	_, _ = io.WriteString(c, upgrade("/ws")+"early") // before the server has agreed
	resp, err := http.ReadResponse(r, nil)
	if err != nil || resp.StatusCode != 101 {
		t.Fatalf("%v, %v", resp, err)
	}
	_ = resp.Body.Close()
	_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n") // it is the other protocol's now
	want := "earlyGET / HTTP/1.1\r\nHost: evil.example\r\n\r\n"
	got := make([]byte, len(want))
	if _, err := io.ReadFull(r, got); err != nil || string(got) != want {
		t.Errorf("through the other protocol: %q, %v", got, err)
	}
	_ = c.Close()

	c = w.guest.MustDial("203.0.113.7:80")
	r = bufio.NewReader(c)
	if code, _ := request(t, c, r, upgrade("/no")); code != 200 {
		t.Errorf("refused upgrade: %d", code)
	}
	if code, _ := request(t, c, r, "GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n"); code != 403 {
		t.Errorf("another host after a refused upgrade: %d", code)
	}
	c = w.guest.MustDial("203.0.113.7:80")
	r = bufio.NewReader(c)
	request(t, c, r, "GET / HTTP/1.1\r\nHost: web.example.com\r\n\r\n")
	if code, body := request(t, c, r, upgrade("/ws")); code != 400 || !strings.Contains(body, "first request") {
		t.Errorf("upgrade later on: %d %q", code, body)
	}
	w.idle()
}

func TestHTTP2WithoutTLSIsToldWhy(t *testing.T) {
	w := newWorld(t, domain("web.example.com"))
	w.host("web.example.com", "203.0.113.7", 80, "127.0.0.1:1")
	w.resolve("web.example.com")
	c := w.guest.MustDial("203.0.113.7:80")
	_, _ = io.WriteString(c, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
	if got, err := io.ReadAll(c); err != nil || !bytes.Contains(got, []byte("use HTTP/1.1")) {
		t.Errorf("got %q, %v", got, err)
	}
}

func TestByAddress(t *testing.T) {
	w := newWorld(t, hutch.NetworkRule{CIDR: "203.0.113.0/28", Ports: []hutch.PortRange{hutch.Port(5432), hutch.Port(443), hutch.Port(80)}})
	w.host("", "203.0.113.7", 5432, tcpServer(t, func(c net.Conn) { // speaks first
		_, _ = io.WriteString(c, "hello\n")
		_, _ = io.Copy(c, c)
	}))
	w.host("", "203.0.113.7", 443, tlsServer(t, nil, echoTLS))
	w.host("", "203.0.113.7", 80, webServer(t, echoRequest))
	c := w.guest.MustDial("203.0.113.7:5432")
	if line, err := bufio.NewReader(c).ReadString('\n'); err != nil || line != "hello\n" {
		t.Errorf("server that speaks first: %q, %v", line, err)
	}
	for _, sni := range []string{"", "anything.example"} {
		if err := secure(w.guest.MustDial("203.0.113.7:443"), sni).HandshakeContext(t.Context()); err != nil {
			t.Errorf("TLS for %q: %v", sni, err)
		}
	}
	h := w.guest.MustDial("203.0.113.7:80")
	if code, _ := request(t, h, bufio.NewReader(h), "GET / HTTP/1.1\r\nHost: 203.0.113.7\r\n\r\n"); code != 200 {
		t.Errorf("HTTP: %d", code)
	}
	// A server that refuses is one that refuses, inside too.
	if _, err := w.guest.Dial("203.0.113.8:5432"); err == nil || !strings.Contains(err.Error(), "refused") {
		t.Errorf("server that is not there: %v", err)
	}
	if e := w.event("it is noted", func(e Event) bool { return e.Addr.String() == "203.0.113.8" }); e.Action != policy.Allow || !strings.Contains(e.Reason, "refused by the server") {
		t.Errorf("noted: %+v", e)
	}
	if _, err := w.guest.Dial("203.0.113.66:5432"); err == nil {
		t.Error("an address outside the range was reached")
	}
}

// A rule for TCP as such by name: whatever is spoken to where the name was resolved to, also if
// the server speaks first.
func TestRawTCPByName(t *testing.T) {
	r := domain("db.example.com", 3306)
	r.Protocol = hutch.NetworkTCP
	w := newWorld(t, r)
	w.host("db.example.com", "203.0.113.7", 3306, tcpServer(t, func(c net.Conn) {
		_, _ = io.WriteString(c, "hello\n")
		_, _ = io.Copy(c, c)
	}))
	if _, err := w.guest.Dial("203.0.113.7:3306"); err == nil {
		t.Error("reached before the name was resolved")
	}
	w.resolve("db.example.com")
	c := w.guest.MustDial("203.0.113.7:3306")
	br := bufio.NewReader(c)
	if line, err := br.ReadString('\n'); err != nil || line != "hello\n" {
		t.Errorf("%q, %v", line, err)
	}
	c = w.guest.MustDial("203.0.113.7:3306")
	br = bufio.NewReader(c)
	_, _ = io.WriteString(c, "\x10\x00\x00binary\n")
	_, _ = br.ReadString('\n')
	if line, err := br.ReadString('\n'); err != nil || line != "\x10\x00\x00binary\n" {
		t.Errorf("%q, %v", line, err)
	}
}

// A miner is cut whatever its address and port are allowed for.
func TestMinersAreCut(t *testing.T) {
	w := newWorld(t, hutch.NetworkRule{CIDR: "203.0.113.0/28"})
	seen := make(chan []byte, 4)
	w.host("", "203.0.113.7", 3333, tcpServer(t, func(c net.Conn) {
		all, _ := io.ReadAll(c)
		seen <- all
	}))
	for _, pieces := range [][]string{
		{`{"id":1,"method":"mining.subscribe","params":[]}` + "\n"},
		{`{"id":1,"meth`, `od":"mining.auth`, `orize","params":["w","x"]}`},
	} {
		c := w.guest.MustDial("203.0.113.7:3333")
		for _, p := range pieces {
			_, _ = io.WriteString(c, p)
		}
		if _, err := io.ReadAll(c); err == nil {
			t.Error("a miner's connection ended well")
		}
		if got := <-seen; bytes.Contains(got, []byte("params")) {
			t.Errorf("the pool saw %q", got)
		}
	}
	w.event("it is noted", func(e Event) bool { return e.Rule == RuleMining && e.Action == policy.Deny })
	w.idle()
}

// A name that is answered with another address later does not lead there.
func TestRebindingAtConnect(t *testing.T) {
	w := newWorld(t, domain("web.example.com"))
	w.host("web.example.com", "127.0.0.1", 80, webServer(t, echoRequest))
	if code, addrs := w.resolve("web.example.com"); code != dnsmessage.RCodeRefused || addrs != nil {
		t.Errorf("resolved to loopback: %v %v", code, addrs)
	}
	w.host("web.example.com", "203.0.113.7", 80, "127.0.0.1:1")
	w.resolve("web.example.com")
	for _, to := range []string{"169.254.169.254:80", "10.0.0.1:80", "192.168.1.1:443", "100.64.0.1:80", "198.18.0.1:80"} {
		if _, err := w.guest.Dial(to); err == nil || !strings.Contains(err.Error(), "refused") {
			t.Errorf("%s: %v", to, err)
		}
	}
	if len(w.dialled()) != 0 {
		t.Errorf("dialled %v", w.dialled())
	}
}

// A policy that is replaced, or runs out, ends what it does not allow any more, and nothing else.
func TestPolicyCutsConnections(t *testing.T) {
	server := tlsServer(t, nil, echoTLS)
	open := func(t *testing.T, rules ...hutch.NetworkRule) (w *world, stays, goes *tls.Conn) {
		w = newWorld(t, rules...)
		w.host("stays.example.com", "203.0.113.7", 443, server)
		w.host("goes.example.com", "203.0.113.8", 443, server)
		w.resolve("stays.example.com")
		w.resolve("goes.example.com")
		stays, goes = secure(w.guest.MustDial("203.0.113.7:443"), "stays.example.com"), secure(w.guest.MustDial("203.0.113.8:443"), "goes.example.com")
		for _, c := range []*tls.Conn{stays, goes} {
			if err := c.HandshakeContext(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		return w, stays, goes
	}
	check := func(t *testing.T, w *world, stays, goes *tls.Conn) {
		t.Helper()
		if n, err := goes.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("what is denied now goes on: %d, %v", n, err)
		}
		if _, err := stays.Write([]byte("x")); err != nil {
			t.Errorf("what is allowed still: %v", err)
		}
		if _, err := io.ReadFull(stays, make([]byte, 1)); err != nil {
			t.Errorf("what is allowed still: %v", err)
		}
		e := w.event("it is noted", func(e Event) bool { return e.Name == "goes.example.com" && e.Proto == "tls" })
		if e.Action != policy.Deny || e.Rule != policy.RuleDefault || e.Out == 0 {
			t.Errorf("noted: %+v", e)
		}
	}
	t.Run("replaced", func(t *testing.T) {
		w, stays, goes := open(t, domain("*.example.com"))
		w.box.SetPolicy(compile(t, domain("stays.example.com")))
		check(t, w, stays, goes)
	})
	t.Run("expired", func(t *testing.T) {
		r := domain("goes.example.com")
		r.ExpiresAt = time.Now().Add(2 * time.Second)
		w, stays, goes := open(t, r, domain("stays.example.com"))
		check(t, w, stays, goes)
	})
	t.Run("none", func(t *testing.T) {
		w, stays, goes := open(t, domain("*.example.com"))
		w.box.SetPolicy(nil)
		for _, c := range []*tls.Conn{stays, goes} {
			if _, err := c.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("it goes on: %v", err)
			}
		}
		w.idle()
	})
}

// While it is being dialled, a connection can be denied too.
func TestPolicyReplacedDuringDial(t *testing.T) {
	w := newWorld(t, hutch.NetworkRule{CIDR: "203.0.113.0/28"})
	dialling, made := make(chan struct{}), make(chan net.Conn, 1)
	w.dialsWith(func(ctx context.Context) (net.Conn, error) {
		a, b := net.Pipe()
		close(dialling)
		<-ctx.Done() // a policy cuts it
		made <- a
		return b, nil
	})
	go func() {
		<-dialling
		w.box.SetPolicy(compile(t, domain("other.example.com")))
	}()
	if _, err := w.guest.Dial("203.0.113.7:5432"); err == nil || !strings.Contains(err.Error(), "refused") {
		t.Errorf("connect: %v", err)
	}
	if _, err := (<-made).Read(make([]byte, 1)); err == nil {
		t.Error("the connection upstream stays open")
	}
	w.idle()
}

// Either side may end its half; what is reset on one side is on the other.
func TestEnds(t *testing.T) {
	w := newWorld(t, hutch.NetworkRule{CIDR: "203.0.113.0/28"})
	ends := make(chan error, 1)
	w.host("", "203.0.113.7", 1000, tcpServer(t, func(c net.Conn) {
		all, err := io.ReadAll(c) // until the guest's half ends
		_, _ = c.Write(all)
		ends <- err
	}))
	w.host("", "203.0.113.7", 1001, tcpServer(t, func(c net.Conn) {
		_ = c.(*net.TCPConn).CloseWrite()
		_, err := io.ReadAll(c)
		ends <- err
	}))
	w.host("", "203.0.113.7", 1002, tcpServer(t, func(c net.Conn) {
		_, err := c.Read(make([]byte, 1))
		reset(c)
		ends <- err
	}))
	c := w.guest.MustDial("203.0.113.7:1000")
	_, _ = io.WriteString(c, "question")
	_ = c.CloseWrite()
	if got, err := io.ReadAll(c); string(got) != "question" || err != nil || <-ends != nil {
		t.Errorf("half-closed by the guest: %q, %v", got, err)
	}
	c = w.guest.MustDial("203.0.113.7:1001")
	if got, err := io.ReadAll(c); len(got) != 0 || err != nil {
		t.Errorf("half-closed by the server: %q, %v", got, err)
	}
	_, _ = io.WriteString(c, "more")
	_ = c.Close()
	if err := <-ends; err != nil {
		t.Errorf("the guest's rest: %v", err)
	}
	c = w.guest.MustDial("203.0.113.7:1002")
	_, _ = io.WriteString(c, "x")
	if _, err := io.ReadAll(c); err == nil {
		t.Error("reset by the server: the guest saw a good end")
	}
	<-ends
	w.idle()
}

// Many at once do not mix, and none is left.
func TestManyStreams(t *testing.T) {
	w := newWorld(t, domain("web.example.com"))
	w.host("web.example.com", "203.0.113.7", 443, tlsServer(t, nil, echoTLS))
	w.resolve("web.example.com")
	const n = 60
	var wg sync.WaitGroup
	for i := range n {
		raw := w.guest.MustDial("203.0.113.7:443")
		wg.Go(func() {
			c := secure(raw, "web.example.com")
			sent := bytes.Repeat([]byte{byte(i), byte(i >> 3), 7}, 30_000+i)
			go func() { _, _ = c.Write(sent); _ = c.CloseWrite() }()
			h := sha256.New()
			if _, err := io.Copy(h, c); err != nil || !bytes.Equal(h.Sum(nil), hash(sent)) {
				t.Errorf("stream %d is not what was sent, %v", i, err)
			}
			_ = c.Close()
		})
	}
	wg.Wait()
	w.idle()
}

func hash(b []byte) []byte { h := sha256.Sum256(b); return h[:] }

// Short connections, ended in every way, leave no place taken.
func TestShortConnections(t *testing.T) {
	w := newWorld(t, domain("web.example.com"), hutch.NetworkRule{CIDR: "203.0.113.0/28"})
	w.host("web.example.com", "203.0.113.7", 80, webServer(t, echoRequest))
	w.host("", "203.0.113.7", 1000, tcpServer(t, func(c net.Conn) { reset(c) }))
	w.host("", "203.0.113.7", 1001, tcpServer(t, func(net.Conn) {}))
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for i := range 60 {
				port := []string{"80", "1000", "1001", "1002"}[i%4]
				c, err := w.guest.Dial("203.0.113.7:" + port)
				if err != nil {
					continue
				}
				_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: web.example.com\r\n\r\n")
				if i%3 == 0 {
					_, _ = c.Read(make([]byte, 10))
				}
				_ = c.Close()
			}
		})
	}
	wg.Wait()
	w.idle()
}

// The end of the link ends everything.
func TestEndOfTheLink(t *testing.T) {
	w := newWorld(t, domain("web.example.com"), hutch.NetworkRule{CIDR: "203.0.113.0/28"})
	ended := make(chan struct{}, 2)
	w.host("web.example.com", "203.0.113.7", 80, tcpServer(t, func(c net.Conn) { _, _ = io.Copy(io.Discard, c); ended <- struct{}{} }))
	w.host("", "203.0.113.7", 1000, tcpServer(t, func(c net.Conn) { _, _ = io.Copy(io.Discard, c); ended <- struct{}{} }))
	w.guest.MustDial("203.0.113.7:1000")
	c := w.guest.MustDial("203.0.113.7:80")
	_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: web.example.com\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\nmore") // waits for the server
	eventually(t, "both are dialled", func() bool { return len(w.dialled()) == 2 })
	w.link.Close()
	<-ended
	<-ended
	w.idle()
}

func TestSlotsAreShared(t *testing.T) {
	l := NewSlots(400)
	greedy, modest := new(Sandbox), new(Sandbox)
	n := 0
	for l.take(greedy) {
		n++
	}
	if n != 300 {
		t.Errorf("one sandbox takes %d of 400", n)
	}
	for i := range fairShare {
		if !l.take(modest) {
			t.Fatalf("another gets %d", i)
		}
	}
	if l.take(modest) {
		t.Error("another gets more than its share while they are scarce")
	}
	for range 300 {
		l.release(greedy)
	}
	if !l.take(modest) {
		t.Error("slots that are free again are not given")
	}
}
