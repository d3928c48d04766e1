package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/api"
)

// outside is a web server on this machine, that sandboxes may reach by names which the operator
// gave its address, and the configuration that says so.
type outside struct {
	port uint16
	path string // of the configuration
}

func newOutside(t *testing.T, more string) outside {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "hello from "+r.Host+"\n")
		if r.URL.Path == "/slow" { // until whoever asked is gone
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		}
	})}
	go func() { _ = srv.Serve(ln) }()
	t.Cleanup(func() { _ = srv.Close() })
	o := outside{port: uint16(ln.Addr().(*net.TCPAddr).Port), path: filepath.Join(t.TempDir(), "egress.json")}
	o.write(t, more)
	return o
}

// write replaces the configuration.
func (o outside) write(t *testing.T, more string) {
	t.Helper()
	text := `{"names": {"web.example.com": {"addrs": ["127.0.0.1"]}, "other.example.com": {"addrs": ["127.0.0.1"]}}` + more + `}`
	if !json.Valid([]byte(text)) {
		t.Fatalf("no JSON: %s", text)
	}
	if err := os.WriteFile(o.path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func (o outside) allow(domains ...string) *api.Network {
	n := &api.Network{Mode: hutch.NetworkCustom}
	for _, d := range domains {
		n.Rules = append(n.Rules, api.NetworkRule{Action: hutch.NetworkAllow, Domain: d, Ports: []hutch.PortRange{hutch.Port(o.port)}})
	}
	return n
}

// get asks a server outside from within a sandbox, and returns what was answered, and how it ended.
func (o outside) get(t *testing.T, s *server, sb hutch.SandboxID, host string) (string, int) {
	t.Helper()
	r := s.run(t, sb, fmt.Sprintf("curl -sS --max-time 20 http://%s:%d/", host, o.port))
	return r.Stdout + r.Stderr, r.ExitCode
}

func (o outside) reaches(t *testing.T, s *server, sb hutch.SandboxID, host string) {
	t.Helper()
	if got, code := o.get(t, s, sb, host); code != 0 || got != "hello from "+net.JoinHostPort(host, strconv.Itoa(int(o.port)))+"\n" {
		t.Errorf("%s is not reached: %d, %q", host, code, got)
	}
}

func (o outside) isDenied(t *testing.T, s *server, sb hutch.SandboxID, host string) {
	t.Helper()
	if got, code := o.get(t, s, sb, host); code == 0 {
		t.Errorf("%s is reached: %q", host, got)
	}
}

func TestNetworkPolicyHoldsFromTheCreateOn(t *testing.T) {
	o := newOutside(t, "")
	s := own(t, "--egress-config", o.path)
	open := s.create(t, api.CreateSandbox{Network: o.allow("web.example.com")})
	closed := s.create(t, api.CreateSandbox{})
	o.reaches(t, s, open.ID, "web.example.com")
	o.isDenied(t, s, open.ID, "other.example.com")
	o.isDenied(t, s, open.ID, "127.0.0.1")
	o.isDenied(t, s, closed.ID, "web.example.com")
	if open.Network.Rules != 1 || open.Network.Source != hutch.NetworkOfRequest || closed.Network.Rules != 0 {
		t.Errorf("the sandboxes show %+v and %+v", open.Network, closed.Network)
	}

	// Replaced while it runs: what is open and denied now is cut.
	slow := s.background(t, open.ID, fmt.Sprintf("curl -sS -N http://web.example.com:%d/slow > /tmp/slow", o.port))
	eventually(t, "the connection is open", func() bool { return strings.Contains(s.out(t, open.ID, "cat /tmp/slow"), "hello") })
	if _, err := s.client.SetNetwork(t.Context(), open.ID, *o.allow("other.example.com")); err != nil {
		t.Fatal(err)
	}
	if x := s.ended(t, slow); x.Result.ExitCode == 0 {
		t.Errorf("a connection that is denied now ended well: %+v", x.Result)
	}
	o.reaches(t, s, open.ID, "other.example.com")
	o.isDenied(t, s, open.ID, "web.example.com")

	// What is on record outlives the gateway, which keeps it only until it is read.
	eventually(t, "the denial is in the log", func() bool {
		for e, err := range s.client.NetworkLog(t.Context(), closed.ID, 0, true) {
			if err == nil && e.Host == "web.example.com" && e.Action == hutch.NetworkDeny && e.Proto == "dns" {
				return true
			}
		}
		return false
	})

	// Neither the server's end nor the gateway's changes what holds.
	s.kill9(t)
	if err := s.start("--egress-config", o.path); err != nil {
		t.Fatal(err)
	}
	o.reaches(t, s, open.ID, "other.example.com")
	o.isDenied(t, s, open.ID, "web.example.com")
	s.killCompanion(t, "egress")
	eventually(t, "the new gateway lets it out", func() bool {
		_, code := o.get(t, s, open.ID, "other.example.com")
		return code == 0
	})
	o.isDenied(t, s, open.ID, "web.example.com")
	o.isDenied(t, s, closed.ID, "other.example.com")

	// All of it is on record.
	eventually(t, "the connection is in the log", func() bool {
		for e, err := range s.client.NetworkLog(t.Context(), open.ID, 0, false) {
			if err == nil && e.Host == "other.example.com" && e.Action == hutch.NetworkAllow && e.GotBytes > 0 && e.Port == int(o.port) {
				return true
			}
		}
		return false
	})
}

// A machine that was made before anybody asked for it has the policy of who does.
func TestNetworkPolicyOfAPreparedMachine(t *testing.T) {
	o := newOutside(t, "")
	s := own(t, "--egress-config", o.path, "--prepare", "1")
	for range 2 {
		sb := s.create(t, api.CreateSandbox{Network: o.allow("web.example.com")})
		o.reaches(t, s, sb.ID, "web.example.com")
		eventually(t, "another is prepared", func() bool { return s.metric(t, "hutch_prepared_machines") == "1" })
	}
	sb := s.create(t, api.CreateSandbox{})
	if sb.BootMode != hutch.BootPrepared {
		t.Errorf("it was started %s, want prepared", sb.BootMode)
	}
	o.isDenied(t, s, sb.ID, "web.example.com")
}

// The operator's configuration holds for who runs as soon as it has changed, and setup ends for good.
func TestNetworkIsTheOperatorsAndHasPhases(t *testing.T) {
	o := newOutside(t, "")
	s := own(t, "--egress-config", o.path)
	sb := s.create(t, api.CreateSandbox{})
	o.isDenied(t, s, sb.ID, "web.example.com")
	rule := fmt.Sprintf(`{"action": "allow", "domain": "web.example.com", "ports": [%d]}`, o.port)
	o.write(t, `, "projects": {"*": {"default": {"mode": "custom", "rules": [`+rule+`]}, "ceiling": {"mode": "custom", "rules": [`+rule+`]}}}`)
	eventually(t, "the default holds", func() bool {
		n, err := s.client.Network(t.Context(), sb.ID)
		return err == nil && n.Source == hutch.NetworkOfProject
	})
	o.reaches(t, s, sb.ID, "web.example.com")
	if _, err := s.client.CreateSandbox(t.Context(), api.CreateSandbox{Network: o.allow("other.example.com")}); err == nil || !strings.Contains(err.Error(), "network.rules[0]") {
		t.Errorf("more than the ceiling: %v; want it refused with the field", err)
	}

	n := o.allow("web.example.com")
	two := s.create(t, api.CreateSandbox{Network: &api.Network{Mode: hutch.NetworkOff, Setup: &api.NetworkPolicy{Mode: n.Mode, Rules: n.Rules}}})
	o.reaches(t, s, two.ID, "web.example.com")
	s.run(t, two.ID, "setsid sleep 98765 >/dev/null 2>&1 & disown; sleep 0")
	if _, err := s.client.LockNetwork(t.Context(), two.ID, true); err != nil {
		t.Fatal(err)
	}
	o.isDenied(t, s, two.ID, "web.example.com")
	if n := s.alive(t, two.ID, "sleep 98765"); n != 0 {
		t.Errorf("%d processes of setup are left", n)
	}
}
