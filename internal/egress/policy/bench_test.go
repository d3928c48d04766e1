package policy_test

import (
	"fmt"
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
