package policy_test

import (
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

func compile(t testing.TB, env policy.Env, rules ...hutch.NetworkRule) *policy.Policy {
	t.Helper()
	p, err := policy.Compile(hutch.NetworkPolicy{Mode: hutch.NetworkCustom, Rules: rules}, env)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func allow(r hutch.NetworkRule) hutch.NetworkRule { r.Action = hutch.NetworkAllow; return r }
func deny(r hutch.NetworkRule) hutch.NetworkRule  { r.Action = hutch.NetworkDeny; return r }

func TestConnectByNameAndAddress(t *testing.T) {
	p := compile(
		t, policy.Env{},
		allow(hutch.NetworkRule{Domain: "API.example.com."}),
		deny(hutch.NetworkRule{Domain: "private.files.example"}),
		allow(hutch.NetworkRule{Domain: "*.files.example", Ports: []hutch.PortRange{hutch.Port(443)}}),
		allow(hutch.NetworkRule{CIDR: "198.51.100.0/24", Ports: []hutch.PortRange{{First: 5000, Last: 6000}}}),
	)
	tests := map[string]struct {
		q    policy.Query
		want policy.Action
		rule string
	}{
		"exact":           {policy.Query{Proto: policy.ProtoTLS, Name: "api.example.com", Addr: addr("8.8.8.8"), Port: 443}, policy.Allow, "rules[0]"},
		"case and dot":    {policy.Query{Proto: policy.ProtoTLS, Name: "aPi.example.COM.", Addr: addr("8.8.8.8"), Port: 443}, policy.Allow, "rules[0]"},
		"below exact":     {policy.Query{Proto: policy.ProtoTLS, Name: "a.api.example.com", Addr: addr("8.8.8.8"), Port: 443}, policy.Deny, policy.RuleDefault},
		"other port":      {policy.Query{Proto: policy.ProtoTLS, Name: "api.example.com", Addr: addr("8.8.8.8"), Port: 22}, policy.Deny, policy.RuleDefault},
		"below wildcard":  {policy.Query{Proto: policy.ProtoTLS, Name: "a.b.files.example", Addr: addr("8.8.8.8"), Port: 443}, policy.Allow, "rules[2]"},
		"wildcard itself": {policy.Query{Proto: policy.ProtoTLS, Name: "files.example", Addr: addr("8.8.8.8"), Port: 443}, policy.Deny, policy.RuleDefault},
		"suffix only":     {policy.Query{Proto: policy.ProtoTLS, Name: "evilfiles.example", Addr: addr("8.8.8.8"), Port: 443}, policy.Deny, policy.RuleDefault},
		"first match":     {policy.Query{Proto: policy.ProtoTLS, Name: "private.files.example", Addr: addr("8.8.8.8"), Port: 443}, policy.Deny, "rules[1]"},
		"no name":         {policy.Query{Proto: policy.ProtoTLS, Addr: addr("8.8.8.8"), Port: 443}, policy.Deny, policy.RuleDefault},
		"by address":      {policy.Query{Proto: policy.ProtoTCP, Addr: addr("198.51.100.7"), Port: 5432}, policy.Allow, "rules[3]"},
		"mapped":          {policy.Query{Proto: policy.ProtoTCP, Addr: addr("::ffff:198.51.100.7"), Port: 5432}, policy.Allow, "rules[3]"},
		"no bytes' name":  {policy.Query{Proto: policy.ProtoTCP, Name: "api.example.com", Addr: addr("8.8.8.8"), Port: 443}, policy.Deny, policy.RuleDefault},
		"rebound":         {policy.Query{Proto: policy.ProtoTLS, Name: "api.example.com", Addr: addr("10.0.0.1"), Port: 443}, policy.Deny, policy.RuleUnreachable},
		"udp":             {policy.Query{Proto: policy.ProtoUDP, Name: "api.example.com", Addr: addr("8.8.8.8"), Port: 443}, policy.Deny, policy.RuleUnreachable},
		"no address":      {policy.Query{Proto: policy.ProtoTLS, Name: "api.example.com", Port: 443}, policy.Deny, policy.RuleMalformed},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got := p.Connect(tt.q)
			if got.Action != tt.want || got.Rule != tt.rule {
				t.Errorf("got %+v, want %s by %s", got, tt.want, tt.rule)
			}
			if got.Action != policy.Allow && got.Reason == "" {
				t.Error("refused without a reason")
			}
		})
	}
}
