package policy_test

import (
	"strings"
	"testing"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/egress/policy"
)

func TestNormalName(t *testing.T) {
	long := strings.Repeat(strings.Repeat("a", 63)+".", 3) + strings.Repeat("b", 61)
	for in, want := range map[string]string{
		"example.com": "example.com", "EXAMPLE.Com.": "example.com", "a_b.example": "a_b.example", "localhost": "localhost",
		"xn--bcher-kva.example": "xn--bcher-kva.example", "1.2.3.example": "1.2.3.example", "a--b.example": "a--b.example",
		long: long, long + ".": long,
		"": "", ".": "", "a..b": "", ".a": "", "a.b..": "", "-a.example": "", "a-.example": "", "a.example-": "",
		long + "c": "", strings.Repeat("a", 64) + ".b": "", "bücher.example": "", "a b.example": "", "a\x00.example": "",
		"a.example:443": "", "a/b": "", "*.example": "", "user@a.example": "", "a.example\n": "",
		// Some software takes these for addresses.
		"127.0.0.1": "", "2130706433": "", "0x7f000001": "", "0x7f.1": "", "017700000001": "", "a.1": "", "a.0x": "", "127.1.": "", "::1": "", "[::1]": "",
	} {
		got, err := policy.NormalName(in)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%q: %q, %v; want %q", in, got, err, want)
		}
	}
}

// What a domain of a rule matches.
func TestDomains(t *testing.T) {
	for _, tt := range []struct {
		domain  string
		matches []string
		not     []string
	}{
		{"example.com", []string{"example.com", "EXAMPLE.COM."}, []string{"a.example.com", "example.com.evil.example", "xexample.com", "com"}},
		{"*.example.com", []string{"a.example.com", "a.b.example.com", "A.Example.Com."}, []string{"example.com", "aexample.com", ".example.com", "a.example.com.evil.example"}},
		{"*", []string{"a", "a.b.c"}, []string{"10.0.0.1", ""}},
		{"Bücher.example", []string{"xn--bcher-kva.example"}, []string{"bücher.example", "bucher.example"}},
		{"*.BÜCHER.example.", []string{"a.xn--bcher-kva.example"}, []string{"xn--bcher-kva.example"}},
		{"ｅｘａｍｐｌｅ。com", []string{"example.com"}, nil}, // as an address bar reads it
	} {
		p := compile(t, policy.Env{}, allow(domain(tt.domain)))
		for _, name := range tt.matches {
			if d, c := p.Name(name), p.Connect(tls(name, 443)); d.Action != policy.Allow || c.Action != policy.Allow {
				t.Errorf("%s and %q: %+v, %+v; want it to match", tt.domain, name, d, c)
			}
		}
		for _, name := range tt.not {
			if d, c := p.Name(name), p.Connect(tls(name, 443)); d.Action != policy.Deny || c.Action != policy.Deny {
				t.Errorf("%s and %q: %+v, %+v; want it not to match", tt.domain, name, d, c)
			}
		}
	}
}

// A name is looked up if something of it could be reached, and only then.
func TestName(t *testing.T) {
	all := []hutch.PortRange{{First: 1, Last: 65535}}
	p := compile(
		t, policy.Env{},
		deny(domain("gone.example")),
		deny(domain("half.example", 443)),
		deny(hutch.NetworkRule{Domain: "parts.example", Ports: []hutch.PortRange{{First: 1, Last: 100}}}),
		deny(hutch.NetworkRule{Domain: "parts.example", Ports: []hutch.PortRange{{First: 101, Last: 65535}}}),
		deny(hutch.NetworkRule{Domain: "clear.example", Protocol: hutch.NetworkHTTP}),
		deny(hutch.NetworkRule{Domain: "reads.example", HTTP: &hutch.HTTPMatch{Methods: []string{"POST"}}}),
		deny(cidr("198.51.100.0/24")),
		allow(hutch.NetworkRule{Domain: "clear.example", Protocol: hutch.NetworkHTTP, Ports: all}),
		allow(domain("*.example")),
		allow(cidr("0.0.0.0/0")),
	)
	for name, want := range map[string]policy.Action{
		"a.example": policy.Allow, "half.example": policy.Allow, "clear.example": policy.Allow, "reads.example": policy.Allow,
		"gone.example": policy.Deny, "parts.example": policy.Deny,
		"a.other":  policy.Deny, // which an address rule allows, and whose name could say anything
		"10.0.0.1": policy.Deny, "": policy.Deny, "secret data.example": policy.Deny, strings.Repeat("a", 300): policy.Deny,
	} {
		d := p.Name(name)
		if d.Action != want || d.Action == policy.Deny && d.Reason == "" {
			t.Errorf("%q: %+v, want %s", name, d, want)
		}
		if len(d.Reason) > 400 {
			t.Errorf("%.20q: a reason of %d bytes", name, len(d.Reason))
		}
	}
}
