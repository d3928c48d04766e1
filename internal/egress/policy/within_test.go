package policy_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/egress/policy"
)

func TestWithin(t *testing.T) {
	type rules = []hutch.NetworkRule
	at := func(r hutch.NetworkRule, s int64) hutch.NetworkRule { r.ExpiresAt = time.Unix(s, 0); return r }
	proto := func(r hutch.NetworkRule, p hutch.NetworkProtocol) hutch.NetworkRule { r.Protocol = p; return r }
	requests := func(r hutch.NetworkRule, m string, paths ...string) hutch.NetworkRule {
		r.HTTP = &hutch.HTTPMatch{Methods: strings.Fields(m), Paths: paths}
		return r
	}
	span := func(r hutch.NetworkRule, first, last uint16) hutch.NetworkRule {
		r.Ports = append(slices.Clone(r.Ports), hutch.PortRange{First: first, Last: last})
		return r
	}
	for name, tt := range map[string]struct {
		ceiling, asked rules
		field          string // of the refusal; empty = it is within
	}{
		"nothing in nothing":            {nil, nil, ""},
		"something in nothing":          {nil, rules{allow(domain("a.example"))}, "rules[0]"},
		"denials are always within":     {nil, rules{deny(domain("*"))}, ""},
		"the same":                      {rules{allow(domain("a.example"))}, rules{allow(domain("a.example"))}, ""},
		"a name of a wildcard":          {rules{allow(domain("*.example"))}, rules{allow(domain("a.example"))}, ""},
		"a wildcard of a name":          {rules{allow(domain("a.example"))}, rules{allow(domain("*.example"))}, "rules[0]"},
		"a wildcard of a wildcard":      {rules{allow(domain("*.example"))}, rules{allow(domain("*.a.example"))}, ""},
		"above a wildcard":              {rules{allow(domain("*.a.example"))}, rules{allow(domain("a.example"))}, "rules[0]"},
		"all of all":                    {rules{allow(domain("*"))}, rules{allow(domain("*"))}, ""},
		"the second goes beyond":        {rules{allow(domain("a.example"))}, rules{allow(domain("a.example")), allow(domain("b.example"))}, "rules[1]"},
		"fewer ports":                   {rules{allow(domain("a.example"))}, rules{allow(domain("a.example", 443))}, ""},
		"more ports":                    {rules{allow(domain("a.example", 443))}, rules{allow(domain("a.example"))}, "rules[0]"},
		"ports from two rules":          {rules{allow(domain("a.example", 443)), allow(domain("*.example", 80))}, rules{allow(domain("a.example"))}, ""},
		"mail is no other port":         {rules{allow(span(domain("a.example"), 1, 65535))}, rules{allow(domain("a.example", 25))}, "rules[0]"},
		"a preset of its hosts":         {rules{allow(preset("pypi"))}, rules{allow(domain("files.index.example", 443))}, ""},
		"a preset within itself":        {rules{allow(preset(hutch.PresetTrusted))}, rules{allow(preset("pypi"))}, ""},
		"another preset":                {rules{allow(preset("pypi"))}, rules{allow(preset(hutch.PresetTrusted))}, "rules[0]"},
		"a range of a range":            {rules{allow(cidr("203.0.0.0/16", 443))}, rules{allow(cidr("203.0.113.0/24", 443))}, ""},
		"a range of two halves":         {rules{allow(cidr("203.0.113.0/25")), allow(cidr("203.0.113.128/25"))}, rules{allow(cidr("203.0.113.0/24"))}, ""},
		"a range of one half":           {rules{allow(cidr("203.0.113.0/25"))}, rules{allow(cidr("203.0.113.0/24"))}, "rules[0]"},
		"IPv6 is not IPv4":              {rules{allow(cidr("0.0.0.0/0"))}, rules{allow(cidr("2001:db8::/32"))}, "rules[0]"},
		"mapped is IPv4":                {rules{allow(cidr("203.0.113.0/24"))}, rules{allow(cidr("::ffff:203.0.113.0/120"))}, ""},
		"no name in a range":            {rules{allow(cidr("0.0.0.0/0")), allow(cidr("::/0"))}, rules{allow(domain("a.example"))}, "rules[0]"},
		"no range in all names":         {rules{allow(domain("*"))}, rules{allow(cidr("203.0.113.0/24", 443))}, "rules[0]"},
		"anything where TLS may be":     {rules{allow(proto(domain("a.example", 443), "tls"))}, rules{allow(domain("a.example", 443))}, "rules[0]"},
		"TLS where anything may be":     {rules{allow(proto(domain("a.example", 443), "tcp"))}, rules{allow(domain("a.example", 443))}, ""},
		"protocols from two rules":      {rules{allow(proto(domain("a.example"), "tls")), allow(proto(domain("a.example"), "http"))}, rules{allow(domain("a.example"))}, ""},
		"fewer requests":                {rules{allow(requests(domain("a.example"), "GET HEAD", "/a*"))}, rules{allow(requests(domain("a.example"), "GET", "/ab*", "/a"))}, ""},
		"more methods":                  {rules{allow(requests(domain("a.example"), "GET"))}, rules{allow(requests(domain("a.example"), "GET POST"))}, "rules[0]"},
		"more paths":                    {rules{allow(requests(domain("a.example"), "", "/a*"))}, rules{allow(requests(domain("a.example"), "", "/*"))}, "rules[0]"},
		"all requests":                  {rules{allow(requests(domain("a.example"), "GET"))}, rules{allow(domain("a.example"))}, "rules[0]"},
		"what the ceiling denies":       {rules{deny(domain("a.example")), allow(domain("*.example"))}, rules{allow(domain("*.example"))}, "rules[0]"},
		"denied as the ceiling does":    {rules{deny(domain("a.example")), allow(domain("*.example"))}, rules{deny(domain("a.example")), allow(domain("*.example"))}, ""},
		"denied too late":               {rules{deny(domain("a.example")), allow(domain("*.example"))}, rules{allow(domain("*.example")), deny(domain("b.other"))}, "rules[0]"},
		"denied too little":             {rules{deny(domain("a.example")), allow(domain("*.example"))}, rules{deny(domain("a.example", 80)), allow(domain("*.example"))}, "rules[1]"},
		"beside what is denied":         {rules{deny(domain("a.example")), allow(domain("*.example"))}, rules{allow(domain("b.example"))}, ""},
		"a name at a denied address":    {rules{deny(cidr("203.0.113.0/24")), allow(domain("*"))}, rules{allow(domain("a.example"))}, "rules[0]"},
		"that address denied as well":   {rules{deny(cidr("203.0.113.0/24")), allow(domain("*"))}, rules{deny(cidr("203.0.0.0/16")), allow(domain("a.example"))}, ""},
		"denied requests, as there":     {rules{deny(requests(domain("a.example"), "POST")), allow(domain("*.example"))}, rules{deny(requests(domain("a.example"), "POST PUT")), allow(domain("a.example"))}, ""},
		"denied requests, beside":       {rules{deny(requests(domain("a.example"), "POST")), allow(domain("*.example"))}, rules{allow(requests(domain("a.example"), "GET"))}, ""},
		"denied requests, allowed":      {rules{deny(requests(domain("a.example"), "POST")), allow(domain("*.example"))}, rules{allow(domain("a.example"))}, "rules[0]"},
		"a denied name, its requests":   {rules{deny(domain("a.example")), allow(domain("*.example"))}, rules{deny(requests(domain("a.example"), "GET")), allow(requests(domain("*.example"), "GET"))}, "rules[1]"},
		"denied after it was allowed":   {rules{allow(domain("a.example")), deny(domain("*.example"))}, rules{allow(domain("a.example"))}, ""},
		"for good under what ends":      {rules{allow(at(domain("a.example"), 100))}, rules{allow(domain("a.example"))}, "rules[0]"},
		"ends with the ceiling":         {rules{allow(at(domain("a.example"), 100))}, rules{allow(at(domain("a.example"), 100))}, ""},
		"ends after the ceiling":        {rules{allow(at(domain("a.example"), 100))}, rules{allow(at(domain("a.example"), 101))}, "rules[0]"},
		"covered by what ends before":   {rules{allow(at(domain("a.example"), 5))}, rules{allow(at(domain("a.example"), 5)), allow(domain("a.example"))}, "rules[1]"},
		"covered by what ends with it":  {rules{allow(at(domain("a.example"), 5))}, rules{allow(at(domain("a.example"), 5)), allow(at(domain("a.example", 80), 5))}, ""},
		"allowed before, denied by all": {nil, rules{deny(domain("*")), deny(cidr("0.0.0.0/0"))}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			err := compile(t, registries, tt.asked...).Within(compile(t, registries, tt.ceiling...), "this project")
			if tt.field == "" {
				if err != nil {
					t.Fatalf("refused: %v", err)
				}
				return
			}
			if !errors.Is(err, hutch.ErrForbidden) || fieldOf(err) != tt.field || !strings.Contains(err.Error(), "this project") {
				t.Fatalf("got %v (field %q), want a refusal of %s", err, fieldOf(err), tt.field)
			}
		})
	}
}

// world is a small one: everything in it can be tried.
type world struct {
	names   []string
	addrs   []netip.Addr
	ports   []uint16
	domains []string
	ranges  []string
}

var small = world{
	names:   []string{"", "e", "a.e", "b.e", "x.a.e", "f"},
	addrs:   []netip.Addr{addr("203.0.113.1"), addr("203.0.113.2"), addr("198.51.100.1"), addr("2001:db8::1"), addr("64:ff9b::203.0.113.1")},
	ports:   []uint16{22, 25, 80, 443},
	domains: []string{"*", "e", "*.e", "a.e", "*.a.e", "b.e", "f"},
	ranges:  []string{"0.0.0.0/0", "::/0", "203.0.113.0/30", "203.0.113.1", "203.0.113.2/31", "2001:db8::/32", "64:ff9b::203.0.113.0/120"},
}

func pick[T any](r *rand.Rand, from []T) T { return from[r.IntN(len(from))] }

// rule is one of that world.
func (w world) rule(r *rand.Rand) hutch.NetworkRule {
	out := hutch.NetworkRule{Action: pick(r, []hutch.NetworkAction{"allow", "allow", "deny"})}
	switch r.IntN(3) {
	case 0:
		out.CIDR = pick(r, w.ranges)
		out.Protocol = pick(r, []hutch.NetworkProtocol{"", "", "tls", "http", "tcp"})
	case 1:
		out.Domain = pick(r, w.domains)
		out.Protocol = pick(r, []hutch.NetworkProtocol{"", "", "tls", "http", "tcp"})
	default:
		out.Domain = pick(r, w.domains)
		if r.IntN(3) == 0 {
			out.HTTP = &hutch.HTTPMatch{Methods: pick(r, [][]string{nil, {"GET"}, {"GET", "POST"}}), Paths: pick(r, [][]string{nil, {"/a"}, {"/a*"}, {"/a/b", "/b"}})}
			if out.HTTP.Methods == nil && out.HTTP.Paths == nil {
				out.HTTP = nil
			}
		}
	}
	out.Ports = pick(r, [][]hutch.PortRange{nil, nil, {hutch.Port(443)}, {hutch.Port(80)}, {{First: 1, Last: 65535}}, {{First: 20, Last: 100}}, {hutch.Port(25)}})
	if out.Action == hutch.NetworkAllow && r.IntN(4) == 0 {
		out.ExpiresAt = time.Unix(int64(r.IntN(3)+1)*100, 0)
	}
	return out
}

func (w world) rules(r *rand.Rand) []hutch.NetworkRule {
	out := make([]hutch.NetworkRule, r.IntN(5))
	for i := range out {
		out[i] = w.rule(r)
	}
	return out
}

// near is a policy that may be within one of rules: it has some of them, some made narrower.
func (w world) near(r *rand.Rand, rules []hutch.NetworkRule) []hutch.NetworkRule {
	var out []hutch.NetworkRule
	for _, x := range rules {
		switch r.IntN(8) {
		case 0:
		case 1:
			out = append(out, w.rule(r), x)
		case 2:
			x.Ports = single([]uint16{443})
			out = append(out, x)
		case 3:
			if x.Domain != "" {
				x.Domain = pick(r, w.domains)
			}
			out = append(out, x)
		case 4:
			x.Protocol = pick(r, []hutch.NetworkProtocol{"tls", "http"})
			out = append(out, x)
		default:
			out = append(out, x)
		}
	}
	return out
}

// each calls f with every connection of that world.
func (w world) each(f func(policy.Query)) {
	for _, name := range w.names {
		for _, a := range w.addrs {
			for _, port := range w.ports {
				for _, proto := range []policy.Proto{policy.ProtoTCP, policy.ProtoTLS, policy.ProtoHTTP} {
					q := policy.Query{Proto: proto, Name: name, Addr: a, Port: port}
					f(q)
					if proto == policy.ProtoTCP {
						continue
					}
					for _, method := range []string{"GET", "POST", "get"} {
						for _, path := range []string{"/a", "/a/b", "/b", "/a//b"} {
							q.HTTP = &policy.HTTPQuery{Host: name, Method: method, Path: path}
							f(q)
						}
					}
				}
			}
		}
	}
}

// beyond is something that p allows and ceiling does not, found by trying everything; empty
// if there is nothing.
func (w world) beyond(p, ceiling *policy.Policy) string {
	for _, now := range []int64{0, 100, 200, 300} {
		if before := p; now > 0 && before == p.At(time.Unix(now, 0)) && ceiling == ceiling.At(time.Unix(now, 0)) {
			continue
		}
		p, ceiling = p.At(time.Unix(now, 0)), ceiling.At(time.Unix(now, 0))
		for _, name := range w.names {
			if p.Name(name).Action == policy.Allow && ceiling.Name(name).Action == policy.Deny {
				return fmt.Sprintf("at %d: lookup of %q", now, name)
			}
		}
		found := ""
		w.each(func(q policy.Query) {
			if found == "" && p.Connect(q).Action == policy.Allow && ceiling.Connect(q).Action == policy.Deny {
				found = fmt.Sprintf("at %d: %+v %+v", now, q, q.HTTP)
			}
		})
		if found != "" {
			return found
		}
	}
	return ""
}

// compare asks Within about two policies and looks for itself. A pass that should be none
// ends the test.
func (w world) compare(t *testing.T, r *rand.Rand) (within, beyond bool) {
	t.Helper()
	rules := w.rules(r)
	asked := w.near(r, rules)
	p, ceiling := compile(t, policy.Env{}, asked...), compile(t, policy.Env{}, rules...)
	within = p.Within(ceiling, "x") == nil
	what := w.beyond(p, ceiling)
	if within && what != "" {
		t.Fatalf("passed, though it goes beyond: %s\nasked   %+v\nceiling %+v", what, asked, rules)
	}
	return within, what != ""
}

// What Within passes allows nothing beyond the ceiling; that it refuses no more than it has
// to is looked at too, as a rate.
func TestWithinIsSound(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 8))
	passed, refused, harmless := 0, 0, 0
	const n = 20
	for range n {
		switch within, beyond := small.compare(t, r); {
		case within:
			passed++
		case beyond:
			refused++
		default:
			harmless++
		}
	}
	t.Logf("%d passed, %d refused with reason, %d refused without harm in this world", passed, refused, harmless)
	if passed < n/4 || refused < n/10 || harmless > n/10 {
		t.Error("the test has lost its aim")
	}
}

// FuzzWithin is the same with other policies.
func FuzzWithin(f *testing.F) {
	f.Add(uint64(1), uint64(2))
	f.Fuzz(func(t *testing.T, a, b uint64) { small.compare(t, rand.New(rand.NewPCG(a, b))) })
}
