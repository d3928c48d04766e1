package policy_test

import (
	"net/netip"
	"testing"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/egress/policy"
)

// open allows all that can be allowed.
func open(t testing.TB, env policy.Env) *policy.Policy {
	t.Helper()
	all := []hutch.PortRange{{First: 1, Last: 65535}}
	return compile(
		t, env,
		allow(hutch.NetworkRule{Domain: "*", Ports: all, Protocol: hutch.NetworkTCP}),
		allow(hutch.NetworkRule{CIDR: "0.0.0.0/0", Ports: all}),
		allow(hutch.NetworkRule{CIDR: "::/0", Ports: all}),
	)
}

func TestNeverReachable(t *testing.T) {
	p := open(t, policy.Env{
		Own:        []netip.Addr{addr("203.0.113.1"), addr("2001:db8::1"), addr("fe80::1%eth0")},
		Neighbours: []netip.Prefix{netip.MustParsePrefix("203.0.113.1/28"), netip.MustParsePrefix("2001:db8:0:1::/64")},
	})
	for what, addrs := range map[string][]string{
		"unspecified":      {"0.0.0.0", "0.1.2.3", "::"},
		"loopback":         {"127.0.0.1", "127.255.255.254", "::1"},
		"private":          {"10.0.0.1", "10.255.255.255", "172.16.0.1", "172.31.255.255", "192.168.1.1", "fc00::1", "fdff::1", "fec0::1"},
		"shared":           {"100.64.0.1", "100.127.255.255"},
		"link-local":       {"169.254.0.1", "fe80::1", "febf::1"},
		"metadata":         {"169.254.169.254", "169.254.170.2", "100.100.100.200", "168.63.129.16", "192.0.0.192", "fd00:ec2::254", "fd20:ce::254"},
		"multicast":        {"224.0.0.1", "239.255.255.255", "ff02::1", "ff0e::1"},
		"broadcast":        {"255.255.255.255"},
		"reserved":         {"192.0.0.1", "198.18.0.1", "240.0.0.1", "4000::1", "::2", "100::1", "2001:2::1", "2001:10::1", "2001:20::1", "64:ff9b:1::8.8.8.8"},
		"the host's own":   {"203.0.113.1", "2001:db8::1"},
		"neighbours":       {"203.0.113.14", "2001:db8:0:1::99"},
		"mapped":           {"::ffff:10.0.0.1", "::ffff:127.0.0.1", "::ffff:169.254.169.254", "::ffff:203.0.113.1", "::ffff:0.0.0.0"},
		"compatible":       {"::10.0.0.1", "::127.0.0.1", "::8.8.8.8"},
		"NAT64":            {"64:ff9b::10.0.0.1", "64:ff9b::169.254.169.254", "64:ff9b::203.0.113.1", "64:ff9b::7f00:1"},
		"6to4":             {"2002:7f00:1::1", "2002:a9fe:a9fe::1", "2002:808:808::1"},
		"Teredo":           {"2001::1", "2001:0:808:808:0:0:f5ff:fffe"},
		"a site's tunnel":  {"2001:db8:5::5efe:10.0.0.1", "2001:db8:5::200:5efe:169.254.169.254"},
		"one link's, zone": {"2001:db8:9::1%eth0"},
	} {
		for _, s := range addrs {
			a := addr(s)
			for _, q := range []policy.Query{{Addr: a, Port: 80}, {Proto: policy.ProtoHTTP, Name: "a.example", Addr: a, Port: 80}} {
				if d := p.Connect(q); d.Action != policy.Deny || d.Rule != policy.RuleUnreachable && d.Rule != policy.RuleMalformed {
					t.Errorf("%s: %s for %q: %+v, want it out of reach", what, s, q.Name, d)
				}
			}
			if d := p.Resolved("a.example", a); d.Action != policy.Deny {
				t.Errorf("%s: %s as an answer: %+v", what, s, d)
			}
			if d := p.Early(a, 80, "a.example"); d.Action != policy.Deny {
				t.Errorf("%s: %s early: %+v", what, s, d)
			}
		}
	}
	for _, s := range []string{
		"8.8.8.8", "100.63.255.255", "100.128.0.1", "172.15.255.255", "172.32.0.1", "169.253.1.1", "203.0.113.17", "192.0.1.1", "223.255.255.255",
		"2001:db8::2", "2606:4700::1", "64:ff9b::8.8.8.8", "2001:db8:5::5efe:8.8.8.8",
	} {
		if d := p.Connect(policy.Query{Addr: addr(s), Port: 80}); d.Action != policy.Allow {
			t.Errorf("%s: %+v, want it within reach", s, d)
		}
		if d := p.Resolved("a.example", addr(s)); d.Action != policy.Allow {
			t.Errorf("%s as an answer: %+v", s, d)
		}
	}
}

func TestIsMetadata(t *testing.T) {
	for s, want := range map[string]bool{
		"169.254.169.254": true, "::ffff:169.254.169.254": true, "64:ff9b::169.254.169.254": true, "fd00:ec2::254": true, "100.100.100.200": true,
		"169.254.169.253": false, "8.8.8.8": false, "": false,
	} {
		if got := policy.IsMetadata(addr(s)); got != want {
			t.Errorf("%s: %v", s, got)
		}
	}
}

// An exception opens what it names, for whom it names, and no more.
func TestExceptions(t *testing.T) {
	p := open(t, policy.Env{
		Own:        []netip.Addr{addr("10.1.0.1"), addr("10.2.0.1")},
		Neighbours: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")},
		Exceptions: []policy.Exception{
			{CIDR: netip.MustParsePrefix("10.0.0.0/8")},
			{CIDR: netip.MustParsePrefix("10.2.0.1/32"), Hosts: []string{"self.example"}},
			{CIDR: netip.MustParsePrefix("169.254.0.0/16")},
			{CIDR: netip.MustParsePrefix("192.168.5.0/24"), Hosts: []string{"mirror.example", "*.mirrors.example"}},
			{CIDR: netip.MustParsePrefix("fd12::/16")},
		},
	})
	for _, tt := range []struct {
		addr, name string
		want       policy.Action
	}{
		{"10.3.0.1", "", policy.Allow},
		{"::ffff:10.3.0.1", "", policy.Allow},
		{"64:ff9b::10.3.0.1", "", policy.Allow},
		{"10.1.5.5", "", policy.Deny}, // a neighbour: not named closely enough
		{"10.2.0.1", "", policy.Deny}, // the host
		{"10.2.0.1", "a.name", policy.Deny},
		{"10.2.0.1", "self.example", policy.Allow},
		{"169.254.3.3", "", policy.Allow},
		{"169.254.169.254", "", policy.Deny}, // a range does not open it
		{"192.168.5.9", "", policy.Deny},
		{"192.168.5.9", "mirror.example", policy.Allow},
		{"192.168.5.9", "a.mirrors.example", policy.Allow},
		{"192.168.5.9", "rebound.example", policy.Deny},
		{"192.168.6.9", "mirror.example", policy.Deny},
		{"fd12::1", "", policy.Allow},
		{"fd13::1", "", policy.Deny},
	} {
		if d := p.Connect(policy.Query{Name: tt.name, Addr: addr(tt.addr), Port: 443}); d.Action != tt.want {
			t.Errorf("%s for %q: %+v, want %s", tt.addr, tt.name, d, tt.want)
		}
		if tt.name != "" {
			if d := p.Resolved(tt.name, addr(tt.addr)); d.Action != tt.want {
				t.Errorf("%s as an answer for %q: %+v, want %s", tt.addr, tt.name, d, tt.want)
			}
		}
	}
}

// What the operator says of a name holds for that name, and nothing else does.
func TestOverrides(t *testing.T) {
	p := open(t, policy.Env{Names: map[string]policy.Override{
		"Mirror.example.": {Addrs: []netip.Addr{addr("127.0.0.1"), addr("::ffff:10.0.0.9")}, CA: "ours"},
		"ca.example":      {CA: "ours"},
	}})
	for _, tt := range []struct {
		addr, name string
		want       policy.Action
	}{
		{"127.0.0.1", "mirror.example", policy.Allow},
		{"10.0.0.9", "MIRROR.example.", policy.Allow},
		{"8.8.8.8", "mirror.example", policy.Deny},
		{"127.0.0.1", "other.example", policy.Deny},
		{"127.0.0.1", "", policy.Deny},
		{"8.8.8.8", "ca.example", policy.Allow},
		{"10.0.0.1", "ca.example", policy.Deny},
	} {
		if d := p.Connect(policy.Query{Name: tt.name, Addr: addr(tt.addr), Port: 443}); d.Action != tt.want {
			t.Errorf("%s for %q: %+v, want %s", tt.addr, tt.name, d, tt.want)
		}
	}
	o, ok := p.Override("mirror.EXAMPLE")
	if !ok || o.CA != "ours" || len(o.Addrs) != 2 || o.Addrs[1] != addr("10.0.0.9") {
		t.Errorf("got %+v, %v", o, ok)
	}
	o.Addrs[0] = addr("8.8.8.8")
	if again, _ := p.Override("mirror.example"); again.Addrs[0] != addr("127.0.0.1") {
		t.Error("a caller changed it")
	}
	if _, ok := p.Override("10.0.0.1"); ok {
		t.Error("an address has one")
	}
}
