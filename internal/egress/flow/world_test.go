package flow

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/egress/policy"
	"hutch.dev/hutch/internal/link"
	"hutch.dev/hutch/internal/link/linktest"
	"hutch.dev/hutch/internal/runtime"
)

// world is a sandbox with a guest, and an internet of listeners on loopback.
type world struct {
	t     testing.TB
	box   *Sandbox
	guest *linktest.Guest
	link  *link.Endpoint

	mu     sync.Mutex
	hosts  map[string][]netip.Addr // names, with a final dot
	routes map[netip.AddrPort]string
	dials  []netip.AddrPort
	events []Event

	instead func(context.Context) (net.Conn, error) // dials; nil = routes
}

// dialsWith replaces the internet by one connection.
func (w *world) dialsWith(f func(context.Context) (net.Conn, error)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.instead = f
}

func newWorld(t testing.TB, rules ...hutch.NetworkRule) *world {
	t.Helper()
	w := &world{t: t, hosts: map[string][]netip.Addr{}, routes: map[netip.AddrPort]string{}}
	w.box = New(Config{Resolver: w, Dial: w.dial, Note: w.note, Slots: NewSlots(4096), Inside: linktest.Inside, FirstTime: 2 * time.Second, Silence: 50 * time.Millisecond})
	host, guest := linktest.Pair(t)
	var err error
	if w.link, err = link.Attach(runtime.LinkPackets, host, w.box, slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	w.guest = linktest.New(t, guest)
	t.Cleanup(func() { w.link.Close(); w.box.Close() })
	if len(rules) > 0 {
		w.box.SetPolicy(compile(t, rules...))
	}
	return w
}

func compile(t testing.TB, rules ...hutch.NetworkRule) *policy.Policy {
	t.Helper()
	for i := range rules {
		if rules[i].Action == "" {
			rules[i].Action = hutch.NetworkAllow
		}
	}
	p, err := policy.Compile(hutch.NetworkPolicy{Mode: hutch.NetworkCustom, Rules: rules}, policy.Env{})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func domain(d string, ports ...uint16) hutch.NetworkRule {
	r := hutch.NetworkRule{Domain: d}
	for _, p := range ports {
		r.Ports = append(r.Ports, hutch.Port(p))
	}
	return r
}

func (w *world) LookupNetIP(_ context.Context, _, host string) ([]netip.Addr, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if a, ok := w.hosts[host]; ok {
		return slices.Clone(a), nil
	}
	return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
}

func (w *world) dial(ctx context.Context, to netip.AddrPort) (net.Conn, error) {
	w.mu.Lock()
	w.dials = append(w.dials, to)
	real, ok := w.routes[to]
	instead := w.instead
	w.mu.Unlock()
	if instead != nil {
		return instead(ctx)
	}
	if !ok {
		return nil, errors.New("connection refused")
	}
	return (&net.Dialer{}).DialContext(ctx, "tcp", real)
}

func (w *world) note(e Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.events = append(w.events, e)
}

// host puts a name and an address on the internet, with a server behind a port.
func (w *world) host(name, addr string, port uint16, server string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	a := netip.MustParseAddr(addr)
	if name != "" {
		w.hosts[name+"."] = []netip.Addr{a}
	}
	w.routes[netip.AddrPortFrom(a, port)] = server
}

// resolve asks for a name as a guest does.
func (w *world) resolve(name string) (dnsmessage.RCode, []string) {
	w.t.Helper()
	c := w.guest.DialUDP("8.8.8.8:53")
	defer c.Close()
	b := make([]byte, 2048)
	if _, err := c.Write(query(w.t, name)); err != nil {
		w.t.Fatal(err)
	}
	n, err := c.Read(b)
	if err != nil {
		w.t.Fatal(err)
	}
	return answer(w.t, b[:n])
}

func query(t testing.TB, name string) []byte {
	t.Helper()
	b := dnsmessage.NewBuilder(nil, dnsmessage.Header{ID: 7, RecursionDesired: true})
	q := dnsmessage.Question{Name: dnsmessage.MustNewName(name + "."), Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET}
	if err := errors.Join(b.StartQuestions(), b.Question(q)); err != nil {
		t.Fatal(err)
	}
	out, err := b.Finish()
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func answer(t testing.TB, b []byte) (dnsmessage.RCode, []string) {
	t.Helper()
	var m dnsmessage.Message
	if err := m.Unpack(b); err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, r := range m.Answers {
		if a, ok := r.Body.(*dnsmessage.AResource); ok {
			out = append(out, netip.AddrFrom4(a.A).String())
		}
	}
	return m.RCode, out
}

// event waits for an event that fits.
func (w *world) event(what string, fits func(Event) bool) Event {
	w.t.Helper()
	var got Event
	eventually(w.t, what, func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		i := slices.IndexFunc(w.events, fits)
		if i >= 0 {
			got = w.events[i]
		}
		return i >= 0
	})
	return got
}

func (w *world) dialled() []netip.AddrPort {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.dials)
}

// idle waits until no connection is left.
func (w *world) idle() {
	w.t.Helper()
	eventually(w.t, "no connection is left", func() bool { return w.box.Connections() == 0 })
	w.box.cfg.Slots.mu.Lock()
	defer w.box.cfg.Slots.mu.Unlock()
	if w.box.cfg.Slots.total != 0 || len(w.box.cfg.Slots.by) != 0 {
		w.t.Errorf("%d slots are taken by nobody", w.box.cfg.Slots.total)
	}
}

func eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	deadline := time.After(20 * time.Second)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("not within twenty seconds: %s", what)
		}
	}
}

// webServer is an HTTP server, which tells what it was asked.
func webServer(t testing.TB, h http.Handler) string {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

var echoRequest = http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	_, _ = io.WriteString(rw, r.Method+" "+r.Host+" "+r.URL.Path+" "+string(body))
})

// tcpServer serves every connection with f.
func tcpServer(t testing.TB, f func(net.Conn)) string {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer c.Close()
				f(c)
			})
		}
	})
	t.Cleanup(func() { _ = l.Close(); wg.Wait() })
	return l.Addr().String()
}

// tlsServer is tcpServer with TLS, for any name.
func tlsServer(t testing.TB, cfg *tls.Config, f func(*tls.Conn)) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), DNSNames: []string{"*"}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	if cfg == nil {
		cfg = &tls.Config{}
	}
	cfg.Certificates = []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}
	return tcpServer(t, func(c net.Conn) {
		s := tls.Server(c, cfg)
		if s.HandshakeContext(context.Background()) == nil {
			f(s)
		}
		_ = s.Close()
	})
}

func echoTLS(c *tls.Conn) { _, _ = io.Copy(c, c) }

// secure makes TLS of a connection.
func secure(c net.Conn, name string) *tls.Conn {
	return tls.Client(c, &tls.Config{ServerName: name, InsecureSkipVerify: true})
}
