package policy_test

import (
	"fmt"
	"strings"
	"testing"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/egress/policy"
)

// BenchmarkConnect is the price of a decision under a long policy: the last rule allows, or
// none does.
func BenchmarkConnect(b *testing.B) {
	var rules []hutch.NetworkRule
	for i := range 200 {
		rules = append(rules, allow(domain(fmt.Sprintf("*.host%d.example", i))))
	}
	p := compile(b, policy.Env{}, rules...)
	for name, q := range map[string]policy.Query{"allowed": tls("a.host199.example", 443), "denied": tls("a.other.example", 443)} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				p.Connect(q)
			}
		})
	}
}

// BenchmarkMerge is about the most that somebody can make a server think about: as many rules
// as there can be, with as many ports and paths, all about one name, under a ceiling of the
// same kind.
func BenchmarkMerge(b *testing.B) {
	worst := func() hutch.NetworkPolicy {
		var rules []hutch.NetworkRule
		for i := range 200 {
			r := hutch.NetworkRule{Action: hutch.NetworkAllow, Domain: "a.example", HTTP: &hutch.HTTPMatch{}}
			if i%2 == 1 {
				r.Action = hutch.NetworkDeny
			}
			for j := range 2 {
				r.Ports = append(r.Ports, hutch.Port(uint16(3000+4*i+2*j)), hutch.Port(1000))
				r.HTTP.Paths = append(r.HTTP.Paths, "/"+strings.Repeat("a", 900)+fmt.Sprint(i, j))
			}
			r.Ports = r.Ports[:3]
			rules = append(rules, r)
		}
		return custom(rules...)
	}
	base, request, ceiling := worst(), worst(), custom(allow(domain("*", 1)))
	ceiling.Rules = append(ceiling.Rules, worst().Rules...)
	for b.Loop() {
		_, err := policy.Merge(policy.Layers{Base: &base, Request: &request, Ceilings: []policy.Ceiling{{Of: "x", Policy: ceiling}}}, policy.Env{})
		if err != nil {
			b.Fatalf("%.200v", err)
		}
	}
}
