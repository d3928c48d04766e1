package policy_test

import (
	"errors"
	"net/netip"
	"testing"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/egress/policy"
)

func addr(s string) netip.Addr {
	if s == "" {
		return netip.Addr{}
	}
	return netip.MustParseAddr(s)
}

func custom(rules ...hutch.NetworkRule) hutch.NetworkPolicy {
	return hutch.NetworkPolicy{Mode: hutch.NetworkCustom, Rules: rules}
}

func compile(t testing.TB, env policy.Env, rules ...hutch.NetworkRule) *policy.Policy {
	t.Helper()
	p, err := policy.Compile(custom(rules...), env)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func allow(r hutch.NetworkRule) hutch.NetworkRule { r.Action = hutch.NetworkAllow; return r }
func deny(r hutch.NetworkRule) hutch.NetworkRule  { r.Action = hutch.NetworkDeny; return r }

func domain(name string, ports ...uint16) hutch.NetworkRule {
	return hutch.NetworkRule{Domain: name, Ports: single(ports)}
}

func cidr(s string, ports ...uint16) hutch.NetworkRule {
	return hutch.NetworkRule{CIDR: s, Ports: single(ports)}
}

func preset(name string) hutch.NetworkRule { return hutch.NetworkRule{Preset: name} }

func single(ports []uint16) []hutch.PortRange {
	var out []hutch.PortRange
	for _, p := range ports {
		out = append(out, hutch.Port(p))
	}
	return out
}

// tls is a TLS connection to a public address.
func tls(name string, port uint16) policy.Query {
	return policy.Query{Proto: policy.ProtoTLS, Name: name, Addr: addr("203.0.113.9"), Port: port}
}

// fieldOf is the field of the request that err is about.
func fieldOf(err error) string {
	if e, ok := errors.AsType[*hutch.Error](err); ok {
		return e.Field
	}
	return ""
}

// registries is what an operator might configure.
var registries = policy.Env{
	Presets: map[string]policy.Preset{
		"pypi":   {Hosts: []policy.Host{{Domain: "index.example"}, {Domain: "files.index.example", Ports: single([]uint16{443})}}},
		"debian": {Hosts: []policy.Host{{Domain: "mirror.example", Ports: single([]uint16{80})}}},
		"forge":  {Hosts: []policy.Host{{Domain: "*.forge.example"}}},
	},
	Trusted: []string{"pypi", "debian"},
}
