package egress

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/sys/unix"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/egress/policy"
	"hutch.dev/hutch/internal/link/linktest"
)

// internet is what a gateway process of these tests finds outside: names, and the listeners
// that addresses lead to. It is a file in the process's directory.
type internet struct {
	Names  map[string]netip.Addr     `json:"names"`
	Routes map[netip.AddrPort]string `json:"routes"`
}

const internetFile = "internet.json"

func (i internet) write(t *testing.T, dir string) {
	t.Helper()
	b, err := json.Marshal(i)
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, internetFile), b, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// testWorld reads that file whenever it is asked.
func testWorld(dir string) World { return World{Resolver: fileWorld(dir), Dial: fileWorld(dir).dial} }

type fileWorld string

func (w fileWorld) read() (i internet) {
	b, err := os.ReadFile(filepath.Join(string(w), internetFile))
	if err == nil {
		_ = json.Unmarshal(b, &i)
	}
	return i
}

func (w fileWorld) LookupNetIP(_ context.Context, _, host string) ([]netip.Addr, error) {
	if a, ok := w.read().Names[strings.TrimSuffix(host, ".")]; ok {
		return []netip.Addr{a}, nil
	}
	return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
}

func (w fileWorld) dial(ctx context.Context, to netip.AddrPort) (net.Conn, error) {
	real, ok := w.read().Routes[to]
	if !ok {
		return nil, errors.New("connection refused")
	}
	return dial(ctx, netip.MustParseAddrPort(real))
}

// webHost makes an internet of one web server that says what it was asked.
func webHost(t *testing.T, dir string) {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(rw, "hello from "+r.Host)
	}))
	t.Cleanup(s.Close)
	web := netip.MustParseAddr("203.0.113.7")
	internet{
		Names:  map[string]netip.Addr{"web.example.com": web},
		Routes: map[netip.AddrPort]string{netip.AddrPortFrom(web, 80): s.Listener.Addr().String()},
	}.write(t, dir)
}

func allowing(domains ...string) *hutch.NetworkPolicy {
	p := &hutch.NetworkPolicy{Mode: hutch.NetworkCustom}
	for _, d := range domains {
		p.Rules = append(p.Rules, hutch.NetworkRule{Action: hutch.NetworkAllow, Domain: d})
	}
	return p
}

func setPolicy(t *testing.T, c *Client, id hutch.SandboxID, e hutch.Epoch, p *hutch.NetworkPolicy) {
	t.Helper()
	if err := c.SetPolicy(t.Context(), id, e, p); err != nil {
		t.Fatal(err)
	}
}

// resolve asks for a name and returns what became of that.
func resolve(t *testing.T, g *linktest.Guest, name string) dnsmessage.RCode {
	t.Helper()
	b := dnsmessage.NewBuilder(nil, dnsmessage.Header{ID: 7})
	q := dnsmessage.Question{Name: dnsmessage.MustNewName(name + "."), Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET}
	if err := errors.Join(b.StartQuestions(), b.Question(q)); err != nil {
		t.Fatal(err)
	}
	ask, err := b.Finish()
	if err != nil {
		t.Fatal(err)
	}
	c := g.DialUDP("8.8.8.8:53")
	defer c.Close()
	answer := make([]byte, 1500)
	if _, err := c.Write(ask); err != nil {
		t.Fatal(err)
	}
	n, err := c.Read(answer)
	if err != nil {
		t.Fatal(err)
	}
	var m dnsmessage.Message
	if err := m.Unpack(answer[:n]); err != nil {
		t.Fatal(err)
	}
	return m.RCode
}

// get asks the web server on a connection.
func get(c net.Conn, host string) (string, error) {
	if _, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: "+host+"\r\n\r\n"); err != nil {
		return "", err
	}
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return string(b), err
}

const greeting = "hello from web.example.com"

// wantOut checks that the guest gets to the web server.
func wantOut(t *testing.T, g *linktest.Guest) net.Conn {
	t.Helper()
	if code := resolve(t, g, "web.example.com"); code != dnsmessage.RCodeSuccess {
		t.Fatalf("resolve: %v", code)
	}
	c := g.MustDial("203.0.113.7:80")
	if got, err := get(c, "web.example.com"); err != nil || got != greeting {
		t.Fatalf("got %q, %v", got, err)
	}
	return c
}

func wantRefused(t *testing.T, g *linktest.Guest, to string) {
	t.Helper()
	if _, err := g.Dial(to); err == nil || !strings.Contains(err.Error(), "refused") {
		t.Errorf("connect to %s: %v, want refused", to, err)
	}
}

func TestPolicyLetsOut(t *testing.T) {
	dir := t.TempDir()
	webHost(t, dir)
	c := startGateway(t, dir, "")
	host, guest := linktest.Pair(t)
	attach(t, c, "i1", 1, host)
	g := linktest.New(t, guest)
	wantRefused(t, g, "203.0.113.7:80")
	setPolicy(t, c, "i1", 1, allowing("web.example.com"))
	wantOut(t, g)
	if code := resolve(t, g, "evil.example"); code != dnsmessage.RCodeRefused {
		t.Errorf("another name: %v", code)
	}
	s, err := c.Stats(t.Context(), "i1")
	if err != nil || !s.Policy || s.Connections != 1 || len(s.Traffic) != 1 || s.Traffic[0].Host != "web.example.com" || s.Traffic[0].Port != 80 || s.Traffic[0].In == 0 || s.Traffic[0].Out == 0 {
		t.Errorf("stats: %+v, %v", s, err)
	}
	if s.Refused.TCP == 0 || s.Refused.Names != 1 {
		t.Errorf("refused: %+v", s.Refused)
	}
	setPolicy(t, c, "i1", 1, nil)
	wantRefused(t, g, "203.0.113.7:80")
	eventually(t, "its connection is cut", func() bool {
		s, err := c.Stats(t.Context(), "i1")
		return err == nil && s.Connections == 0 && !s.Policy
	})
}

// A gateway that dies takes every connection with it and lets nothing out; one that is given
// the link, and not the policy, neither.
func TestGatewayDiesWithConnections(t *testing.T) {
	dir := t.TempDir()
	webHost(t, dir)
	c := startGateway(t, dir, "")
	host, guest := linktest.Pair(t)
	attach(t, c, "i1", 1, host)
	setPolicy(t, c, "i1", 1, allowing("web.example.com"))
	g := linktest.New(t, guest)
	open := wantOut(t, g)
	if err := unix.Kill(c.Hello().PID, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-c.Done()
	c = startGateway(t, dir, "")
	attach(t, c, "i1", 1, host)
	if got, err := get(open, "web.example.com"); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a connection of the old one: %q, %v; want it reset", got, err)
	}
	wantRefused(t, g, "203.0.113.7:80")
	setPolicy(t, c, "i1", 1, allowing("web.example.com"))
	wantOut(t, g)
}

// A link that is attached again is served on, and its connections live. Another link of the same
// run has the policy; one of a later run has none.
func TestAttachAgain(t *testing.T) {
	dir := t.TempDir()
	webHost(t, dir)
	c := startGateway(t, dir, "")
	host, guest := linktest.Pair(t)
	attach(t, c, "i1", 1, host)
	setPolicy(t, c, "i1", 1, allowing("web.example.com"))
	g := linktest.New(t, guest)
	open := wantOut(t, g)
	for _, e := range []hutch.Epoch{1, 2} {
		attach(t, c, "i1", e, host)
		if got, err := get(open, "web.example.com"); err != nil || got != greeting {
			t.Errorf("its connection after it was attached at epoch %d: %q, %v", e, got, err)
		}
	}
	if err := c.SetPolicy(t.Context(), "i1", 1, nil); !errors.Is(err, hutch.ErrStale) {
		t.Errorf("a policy of an older epoch: %v, want ErrStale", err)
	}
	host2, guest2 := linktest.Pair(t)
	attach(t, c, "i1", 2, host2)
	wantOut(t, linktest.New(t, guest2))
	host3, guest3 := linktest.Pair(t)
	attach(t, c, "i1", 3, host3)
	wantRefused(t, linktest.New(t, guest3), "203.0.113.7:80")
	if got, err := get(open, "web.example.com"); err == nil {
		t.Errorf("a connection on a link that was replaced: %q", got)
	}
}

func TestPolicyIsChecked(t *testing.T) {
	c := startGateway(t, t.TempDir(), "")
	host, _ := linktest.Pair(t)
	attach(t, c, "i1", 2, host)
	if err := c.SetPolicy(t.Context(), "i2", 1, nil); !errors.Is(err, hutch.ErrNotFound) {
		t.Errorf("of nobody: %v, want ErrNotFound", err)
	}
	err := c.SetPolicy(t.Context(), "i1", 2, allowing("not a name"))
	if !errors.Is(err, hutch.ErrBadRequest) || !strings.Contains(err.Error(), "rules[0].domain") {
		t.Errorf("a bad rule: %v, want a bad request that names the field", err)
	}
	many := allowing()
	for i := range 1000 {
		many.Rules = append(many.Rules, hutch.NetworkRule{Action: hutch.NetworkAllow, Domain: strings.Repeat("x", 60) + "." + strings.Repeat("y", 60) + fmt.Sprint(i) + ".example"})
	}
	if err := c.SetPolicy(t.Context(), "i1", 2, many); !errors.Is(err, hutch.ErrBadRequest) {
		t.Errorf("a policy that is too long: %v, want a bad request", err)
	}
	if s, err := c.Stats(t.Context(), "i1"); err != nil || s.Policy {
		t.Errorf("stats: %+v, %v", s, err)
	}
}

// What the operator configures holds for every policy, also for those that are set already.
func TestOperatorsConfiguration(t *testing.T) {
	dir := t.TempDir()
	webHost(t, dir)
	c := startGateway(t, dir, "")
	host, guest := linktest.Pair(t)
	attach(t, c, "i1", 1, host)
	g := linktest.New(t, guest)
	preset := &hutch.NetworkPolicy{Mode: hutch.NetworkCustom, Rules: []hutch.NetworkRule{{Action: hutch.NetworkAllow, Preset: "web"}}}
	if err := c.SetPolicy(t.Context(), "i1", 1, preset); !errors.Is(err, hutch.ErrBadRequest) {
		t.Errorf("a preset that is not there: %v", err)
	}
	env := policy.Env{Presets: map[string]policy.Preset{"web": {Hosts: []policy.Host{{Domain: "web.example.com"}}}}}
	if err := c.SetEnv(t.Context(), env); err != nil {
		t.Fatal(err)
	}
	setPolicy(t, c, "i1", 1, preset)
	wantOut(t, g)
	if err := c.SetEnv(t.Context(), policy.Env{Trusted: []string{"nothing"}}); !errors.Is(err, hutch.ErrBadRequest) {
		t.Errorf("a configuration that is wrong: %v", err)
	}
	wantOut(t, g)
	if err := c.SetEnv(t.Context(), policy.Env{}); err != nil {
		t.Fatal(err)
	}
	wantRefused(t, g, "203.0.113.7:80") // the preset is gone
	if err := c.SetEnv(t.Context(), env); err != nil {
		t.Fatal(err)
	}
	wantOut(t, g)
}

// The host itself is out of reach, whatever is allowed, though nobody said which addresses are
// its own.
func TestHostIsOutOfReach(t *testing.T) {
	own := netip.MustParsePrefix("203.0.113.5/29")
	g := newGateway(World{Addrs: func() ([]net.Addr, error) {
		return []net.Addr{&net.IPNet{IP: own.Addr().AsSlice(), Mask: net.CIDRMask(29, 32)}}, nil
	}}, 1, slog.New(slog.DiscardHandler))
	unknown := newGateway(World{Addrs: func() ([]net.Addr, error) { return nil, errors.New("no") }}, 1, slog.New(slog.DiscardHandler))
	for _, test := range []struct {
		g    *Gateway
		addr string
		want policy.Action
	}{
		{g, "203.0.113.5", policy.Deny}, {g, "203.0.113.1", policy.Deny}, {g, "203.0.113.66", policy.Allow}, {unknown, "203.0.113.66", policy.Deny},
	} {
		rules := hutch.NetworkPolicy{Mode: hutch.NetworkCustom, Rules: []hutch.NetworkRule{{Action: hutch.NetworkAllow, CIDR: "203.0.113.64/26"}, {Action: hutch.NetworkAllow, Domain: "*"}}}
		p, err := policy.Compile(rules, test.g.env)
		if err != nil {
			if test.want == policy.Deny {
				continue
			}
			t.Fatal(err)
		}
		if d := p.Connect(policy.Query{Proto: policy.ProtoTLS, Name: "a.example", Addr: netip.MustParseAddr(test.addr), Port: 443}); d.Action != test.want {
			t.Errorf("%s: %+v, want %s", test.addr, d, test.want)
		}
	}
}

func TestAuditIsRead(t *testing.T) {
	dir := t.TempDir()
	webHost(t, dir)
	c := startGateway(t, dir, "")
	host, guest := linktest.Pair(t)
	attach(t, c, "i1", 1, host)
	setPolicy(t, c, "i1", 1, allowing("web.example.com"))
	g := linktest.New(t, guest)
	began := time.Now()
	_ = wantOut(t, g).Close()
	resolve(t, g, "evil.example")
	wantRefused(t, g, "198.51.100.1:443")
	var all []Entry
	var at Cursor
	eventually(t, "all is there", func() bool {
		p, err := c.Audit(t.Context(), at)
		if err != nil || p.Lost != 0 || p.Anew {
			t.Fatalf("%+v, %v", p, err)
		}
		all, at = append(all, p.Entries...), p.Next
		return len(all) >= 4
	})
	find := func(proto, name string) Entry {
		for _, e := range all {
			if e.Proto == proto && (e.Name == name || e.Addr.IsValid() && e.Addr.String() == name) {
				return e
			}
		}
		t.Errorf("no entry of %s for %s in %+v", proto, name, all)
		return Entry{}
	}
	if e := find("http", "web.example.com"); e.Action != "allow" || e.Sandbox != "i1" || e.Rule != "rules[0]" || e.Out == 0 || e.In == 0 || e.Port != 80 || e.Addr.String() != "203.0.113.7" || e.Time.Before(began) || e.Took <= 0 {
		t.Errorf("the request: %+v", e)
	}
	if e := find("dns", "evil.example"); e.Action != "deny" || e.Reason == "" {
		t.Errorf("the name: %+v", e)
	}
	if e := find("tcp", "198.51.100.1"); e.Action != "deny" || e.Port != 443 {
		t.Errorf("the address: %+v", e)
	}
	if p, err := c.Audit(t.Context(), at); err != nil || len(p.Entries) != 0 || p.Next != at {
		t.Errorf("read again: %+v, %v", p, err)
	}
	// Another process begins anew.
	if err := unix.Kill(c.Hello().PID, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-c.Done()
	c = startGateway(t, dir, "")
	if p, err := c.Audit(t.Context(), at); err != nil || !p.Anew || p.Next.Gateway == at.Gateway || p.Next.Seq != 0 {
		t.Errorf("of another process: %+v, %v", p, err)
	}
}
