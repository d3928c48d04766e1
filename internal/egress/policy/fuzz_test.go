package policy_test

import (
	"encoding/json"
	"net/netip"
	"strings"
	"testing"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/egress/policy"
)

// FuzzPolicy reads a policy as it comes from a client and asks it about a connection as it
// comes from a guest.
func FuzzPolicy(f *testing.F) {
	f.Add(`{"mode":"custom","rules":[{"action":"allow","domain":"*.example","ports":[443,"8000-8100"]}]}`, "a.example", "203.0.113.9", uint16(443), "a.example", "GET", "/")
	f.Add(`{"mode":"custom","rules":[{"action":"allow","cidr":"::/0","protocol":"tls"},{"action":"deny","domain":"bücher.example"}]}`, "xn--bcher-kva.example", "64:ff9b::127.0.0.1", uint16(25), "", "", "")
	f.Add(`{"mode":"custom","rules":[{"action":"allow","domain":"*","http":{"methods":["GET"],"paths":["/a/*"]}}],"expires_at":"2030-01-01T00:00:00Z"}`, "0x7f.1", "::ffff:10.0.0.1", uint16(0), "[::1]:80", "get", "/a/..;/b%2f")
	f.Add(`{"mode":"trusted"}`, "index.example", "2002:7f00:1::", uint16(80), "index.example:80", "CONNECT", "*")
	f.Fuzz(func(t *testing.T, text, name, ip string, port uint16, host, method, path string) {
		var np hutch.NetworkPolicy
		if json.Unmarshal([]byte(text), &np) != nil {
			return
		}
		p, err := policy.Compile(np, registries)
		if err != nil {
			if fieldOf(err) == "" || len(err.Error()) > 1000 {
				t.Fatalf("an error without a field, or a long one: %.2000v", err)
			}
			return
		}
		if err := p.Within(p, "itself"); err != nil && policy.Check(np, registries) == nil && !strings.Contains(text, "deny") {
			t.Fatalf("not within itself: %v", err)
		}
		a, _ := netip.ParseAddr(ip)
		q := policy.Query{Proto: policy.ProtoHTTP, Name: name, Addr: a, Port: port}
		early := p.Early(a, port, name)
		unseen := p.Connect(q)
		q.HTTP = &policy.HTTPQuery{Host: host, Method: method, Path: path}
		seen := p.Connect(q)
		switch {
		case seen.Action == policy.Inspect:
			t.Fatalf("asked for a request that it has: %+v", seen)
		case seen.Action == policy.Allow && (early.Action == policy.Deny || unseen.Action == policy.Deny) && name != "":
			t.Fatalf("denied without the request and allowed with it: %+v, %+v, %+v", early, unseen, seen)
		case seen.Action == policy.Allow && name != "" && p.Resolved(name, a).Action != policy.Allow:
			t.Fatal("allowed where it must not be resolved to")
		case seen.Action == policy.Deny && (seen.Reason == "" || len(seen.Reason) > 1500):
			t.Fatalf("denied, and the reason has %d bytes", len(seen.Reason))
		}
		if seen.Action == policy.Allow && !strings.Contains(text, "cidr") && p.Name(host).Action != policy.Allow && p.Name(name).Action != policy.Allow {
			t.Fatalf("%q is reached and not looked up", name)
		}
	})
}

func FuzzNormalName(f *testing.F) {
	for _, s := range []string{"example.com", "A.", "a..b", "0x7f.1", "xn--a.b", "-a", "a-.b", strings.Repeat("a.", 127)} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		n, err := policy.NormalName(s)
		if err != nil {
			return
		}
		if again, err := policy.NormalName(n); err != nil || again != n {
			t.Errorf("%q is %q, and that is %q, %v", s, n, again, err)
		}
		if !strings.EqualFold(n, strings.TrimSuffix(s, ".")) {
			t.Errorf("%q became %q", s, n)
		}
		if _, err := netip.ParseAddr(n); err == nil {
			t.Errorf("%q is an address", n)
		}
	})
}

// FuzzAddress: what is denied in one notation is denied in all.
func FuzzAddress(f *testing.F) {
	for _, s := range []string{"127.0.0.1", "10.1.2.3", "169.254.169.254", "8.8.8.8", "203.0.113.1"} {
		a := addr(s).As4()
		f.Add(a[0], a[1], a[2], a[3])
	}
	p := open(f, policy.Env{Own: []netip.Addr{addr("203.0.113.1")}})
	f.Fuzz(func(t *testing.T, a, b, c, d byte) {
		v4 := netip.AddrFrom4([4]byte{a, b, c, d})
		want := p.Connect(policy.Query{Addr: v4, Port: 80}).Action
		for _, n := range []netip.Addr{
			netip.AddrFrom16(v4.As16()),
			netip.AddrFrom16([16]byte{0, 0x64, 0xff, 0x9b, 12: a, 13: b, 14: c, 15: d}),
			netip.AddrFrom16([16]byte{0x20, 1, 0xd, 0xb8, 10: 0x5e, 11: 0xfe, 12: a, 13: b, 14: c, 15: d}),
		} {
			if got := p.Connect(policy.Query{Addr: n, Port: 80}); got.Action != want {
				t.Errorf("%s is %s, as %s it is %+v", v4, want, n, got)
			}
		}
		for _, n := range []netip.Addr{
			netip.AddrFrom16([16]byte{12: a, 13: b, 14: c, 15: d}),
			netip.AddrFrom16([16]byte{0x20, 2, a, b, c, d}),
			netip.AddrFrom16([16]byte{0x20, 1, 12: ^a, 13: ^b, 14: ^c, 15: ^d}),
		} {
			if got := p.Connect(policy.Query{Addr: n, Port: 80}); got.Action != policy.Deny {
				t.Errorf("%s as %s: %+v", v4, n, got)
			}
		}
	})
}
