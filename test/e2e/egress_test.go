package e2e

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/api"
	"hutch.dev/hutch/internal/egress"
	"hutch.dev/hutch/internal/egress/policy"
)

// allowedHost is a name that the operator of these tests gave an address: this machine's own, on
// which the test listens.
const allowedHost = "web.example.test"

// TestWayOut lets a sandbox out to one host, and tries with the tools that are inside what gets
// there and what does not.
func TestWayOut(t *testing.T) {
	t.Parallel()
	s := common(t)
	big := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
	site := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/big" {
			_, _ = w.Write(big)
			return
		}
		_, _ = fmt.Fprintf(w, "%s for %s", r.Method, r.Host)
	})
	plain, secure := httptest.NewServer(site), httptest.NewTLSServer(site)
	t.Cleanup(plain.Close)
	t.Cleanup(secure.Close)
	web, tls := portOf(t, plain.URL), portOf(t, secure.URL)

	gateway, err := egress.Dial(t.Context(), s.dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(gateway.Close)
	env := policy.Env{Names: map[string]policy.Override{allowedHost: {Addrs: []netip.Addr{netip.MustParseAddr("127.0.0.1")}}}}
	if err := gateway.SetEnv(t.Context(), env); err != nil {
		t.Fatal(err)
	}
	sb := s.create(t, api.CreateSandbox{})
	link, err := gateway.Stats(t.Context(), sb.ID)
	if err != nil {
		t.Fatal(err)
	}
	set := func(p *hutch.NetworkPolicy) {
		t.Helper()
		if err := gateway.SetPolicy(t.Context(), sb.ID, link.Epoch, p); err != nil {
			t.Fatal(err)
		}
	}
	set(&hutch.NetworkPolicy{Mode: hutch.NetworkCustom, Rules: []hutch.NetworkRule{{
		Action: hutch.NetworkAllow, Domain: allowedHost, Ports: []hutch.PortRange{hutch.Port(web), hutch.Port(tls)},
	}}})
	s.out(t, sb.ID, "echo nameserver 10.200.0.1 > /etc/resolv.conf")
	httpURL, httpsURL := fmt.Sprintf("http://%s:%d", allowedHost, web), fmt.Sprintf("https://%s:%d", allowedHost, tls)

	for _, test := range []struct{ cmd, want string }{
		{"curl -sS " + httpURL + "/x", fmt.Sprintf("GET for %s:%d", allowedHost, web)},
		{"curl -sSk " + httpsURL + "/x", fmt.Sprintf("GET for %s:%d", allowedHost, tls)},
		{"curl -sSk --http1.1 -d @/etc/services " + httpsURL + "/x", fmt.Sprintf("POST for %s:%d", allowedHost, tls)},
		{fmt.Sprintf(`python3 -c 'import urllib.request as u; print(u.urlopen("%s").read().decode(), end="")'`, httpURL), fmt.Sprintf("GET for %s:%d", allowedHost, web)},
		{fmt.Sprintf(`node -e 'fetch("%s").then(r => r.text()).then(t => process.stdout.write(t))'`, httpURL), fmt.Sprintf("GET for %s:%d", allowedHost, web)},
	} {
		if got := s.run(t, sb.ID, test.cmd, timeout(60)); got.Stdout != test.want {
			t.Errorf("%s: %q, exit code %v, %s; want %q", test.cmd, got.Stdout, got.ExitCode, got.Stderr, test.want)
		}
	}
	sum := sha256.Sum256(big)
	got := s.out(t, sb.ID, fmt.Sprintf(`seq 40 | xargs -P 20 -I{} sh -c 'curl -sSk %s/big | sha256sum' | sort | uniq -c`, httpsURL), timeout(120))
	if f := strings.Fields(got); len(f) != 3 || f[0] != "40" || f[1] != hex.EncodeToString(sum[:]) {
		t.Errorf("forty downloads: %s", got)
	}
	for _, test := range []struct {
		cmd  string
		code int // curl's
		says string
	}{
		{"curl -sS http://evil.example.test/", 6, "resolve"},
		{"curl -sS http://198.51.100.1/", 7, ""},
		{"curl -sS http://169.254.169.254/", 7, ""},
		{"curl -sS http://10.200.0.1/", 7, ""},
		{fmt.Sprintf("curl -sS http://%s:%d/", allowedHost, web+1), 7, ""},
		{fmt.Sprintf("curl -sSk --connect-to evil.example.test:443:%s:%d https://evil.example.test/", allowedHost, tls), 35, "alert"},
		{fmt.Sprintf("curl -sSf -H 'Host: evil.example.test' %s/", httpURL), 22, "403"},
		{"curl -sSf -H 'Content-Length: 3' -H 'Transfer-Encoding: chunked' -d abc " + httpURL, 22, "400"},
	} {
		began := time.Now()
		r := s.run(t, sb.ID, test.cmd, timeout(60))
		if r.ExitCode != test.code || !strings.Contains(r.Stderr, test.says) || time.Since(began) > 20*time.Second {
			t.Errorf("%s: exit code %v, %q after %v; want %d and %q", test.cmd, r.ExitCode, r.Stderr, time.Since(began), test.code, test.says)
		}
	}
	stats, err := gateway.Stats(t.Context(), sb.ID)
	if err != nil || len(stats.Traffic) != 2 || stats.Traffic[0].Host != allowedHost || stats.Traffic[0].In < 40<<20 || stats.Refused.Names == 0 {
		t.Errorf("stats: %+v, %v", stats, err)
	}
	set(nil)
	if r := s.run(t, sb.ID, "curl -sS "+httpURL, timeout(60)); r.ExitCode != 6 && r.ExitCode != 7 {
		t.Errorf("without a policy: exit code %v, %q", r.ExitCode, r.Stderr)
	}
}

func portOf(t *testing.T, u string) uint16 {
	t.Helper()
	p, err := url.Parse(u)
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.ParseUint(p.Port(), 10, 16)
	if err != nil {
		t.Fatal(err)
	}
	return uint16(n)
}
