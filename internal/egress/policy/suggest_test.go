package policy_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/egress/policy"
)

func denials(qs ...policy.Query) []policy.Denial {
	var out []policy.Denial
	for _, q := range qs {
		out = append(out, policy.Denial{Query: q, Count: 1})
	}
	return out
}

func lookup(name string) policy.Query { return policy.Query{Name: name} }

func TestSuggest(t *testing.T) {
	by := func(proto policy.Proto, name, a string, port uint16) policy.Query {
		return policy.Query{Proto: proto, Name: name, Addr: addr(a), Port: port}
	}
	request := func(method, path string) policy.Query {
		return policy.Query{Proto: policy.ProtoTLS, Name: "api.example", Addr: addr("203.0.113.9"), Port: 443, HTTP: &policy.HTTPQuery{Host: "api.example", Method: method, Path: path}}
	}
	p := compile(
		t, registries,
		deny(domain("never.example")),
		allow(domain("known.example")),
		allow(hutch.NetworkRule{Domain: "api.example", Ports: single([]uint16{443}), HTTP: &hutch.HTTPMatch{Methods: []string{"GET"}}}),
	)
	for name, tt := range map[string]struct {
		in   []policy.Denial
		want []hutch.NetworkRule
		left []string // a part of each reason
	}{
		"nothing":              {nil, nil, nil},
		"a lookup":             {denials(lookup("A.example."), lookup("a.example")), []hutch.NetworkRule{allow(domain("a.example"))}, nil},
		"one port":             {denials(lookup("a.example"), tls("a.example", 443)), []hutch.NetworkRule{allow(domain("a.example", 443))}, nil},
		"a web server":         {denials(tls("a.example", 443), by("http", "a.example", "203.0.113.9", 80)), []hutch.NetworkRule{allow(domain("a.example"))}, nil},
		"ports in a row":       {denials(tls("a.example", 8001), tls("a.example", 8000)), []hutch.NetworkRule{allow(hutch.NetworkRule{Domain: "a.example", Ports: []hutch.PortRange{{First: 8000, Last: 8001}}})}, nil},
		"no web":               {denials(by("tcp", "db.example", "203.0.113.9", 5432)), []hutch.NetworkRule{allow(hutch.NetworkRule{Domain: "db.example", Ports: single([]uint16{5432}), Protocol: hutch.NetworkTCP})}, nil},
		"both on one port":     {denials(by("tcp", "a.example", "203.0.113.9", 443), tls("a.example", 443)), []hutch.NetworkRule{allow(hutch.NetworkRule{Domain: "a.example", Ports: single([]uint16{443}), Protocol: hutch.NetworkTCP})}, nil},
		"an address":           {denials(by("tcp", "", "203.0.113.9", 22), by("tcp", "", "::ffff:203.0.113.9", 22)), []hutch.NetworkRule{allow(cidr("203.0.113.9", 22))}, nil},
		"a whole range":        {denials(by("tcp", "", "203.0.113.4", 22), by("tcp", "", "203.0.113.5", 22), by("tcp", "", "203.0.113.6", 22), by("tcp", "", "203.0.113.7", 22)), []hutch.NetworkRule{allow(cidr("203.0.113.4/30", 22))}, nil},
		"no whole range":       {denials(by("tcp", "", "203.0.113.5", 22), by("tcp", "", "203.0.113.6", 22)), []hutch.NetworkRule{allow(cidr("203.0.113.5", 22)), allow(cidr("203.0.113.6", 22))}, nil},
		"a preset":             {denials(lookup("index.example"), tls("files.index.example", 443)), []hutch.NetworkRule{allow(preset("pypi"))}, nil},
		"some of a preset":     {denials(lookup("index.example")), []hutch.NetworkRule{allow(domain("index.example"))}, nil},
		"more than a preset":   {denials(lookup("index.example"), tls("files.index.example", 8443)), []hutch.NetworkRule{allow(domain("files.index.example", 8443)), allow(domain("index.example"))}, nil},
		"a request":            {denials(request("POST", "/b?x=1"), request("POST", "/a"), request("POST", "/a")), []hutch.NetworkRule{allow(hutch.NetworkRule{Domain: "api.example", Ports: single([]uint16{443}), HTTP: &hutch.HTTPMatch{Methods: []string{"POST"}, Paths: []string{"/a", "/b"}}})}, nil},
		"an odd request":       {denials(request("POST", "/a/../b")), nil, []string{"two ways"}},
		"a request unseen":     {denials(tls("api.example", 443)), nil, []string{"not seen"}},
		"allowed by now":       {denials(lookup("known.example"), tls("known.example", 443)), nil, nil},
		"denied on purpose":    {denials(lookup("never.example"), tls("never.example", 443)), nil, []string{"rules[0] denies", "rules[0] denies"}},
		"never reached":        {denials(by("http", "", "169.254.169.254", 80), by("tls", "a.example", "10.0.0.1", 443)), nil, []string{"metadata", "private"}},
		"mail":                 {denials(by("tcp", "mail.example", "203.0.113.9", 25)), nil, []string{"mail"}},
		"UDP":                  {denials(by("udp", "", "203.0.113.9", 443)), nil, []string{"nothing but TCP"}},
		"no name":              {denials(lookup("a b")), nil, []string{"no host name"}},
		"in order of the text": {denials(lookup("b.example"), by("tcp", "", "203.0.113.9", 22), lookup("a.example")), []hutch.NetworkRule{allow(domain("a.example")), allow(domain("b.example")), allow(cidr("203.0.113.9", 22))}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			got := p.Suggest(tt.in)
			if normal(got.Rules) != normal(tt.want) {
				t.Errorf("got  %+v\nwant %+v", got.Rules, tt.want)
			}
			if len(got.Left) != len(tt.left) {
				t.Fatalf("left out: %+v, want %q", got.Left, tt.left)
			}
			for i, l := range got.Left {
				if !strings.Contains(l.Why, tt.left[i]) {
					t.Errorf("left out because %q, want %q", l.Why, tt.left[i])
				}
			}
		})
	}
}

// normal is rules as they are sent, which makes empty lists equal.
func normal(rules []hutch.NetworkRule) string {
	b, _ := json.Marshal(append([]hutch.NetworkRule{}, rules...))
	return string(b)
}

// plain is an address of the small world without its other notations.
func plain(a netip.Addr) netip.Addr {
	if a == addr("64:ff9b::203.0.113.1") {
		return addr("203.0.113.1")
	}
	return a
}

// Names that carry data, and scans, are not turned into rules.
func TestSuggestIsNotFlooded(t *testing.T) {
	p := compile(t, policy.Env{})
	var in []policy.Denial
	for i := range 500 {
		in = append(in, denials(lookup(fmt.Sprintf("%x.c2.evil.example", i*7919)))...)
		in = append(in, denials(tls("scanned.example", uint16(2*i+1000)), policy.Query{Addr: addr("203.0.113.9"), Port: uint16(2*i + 1000)})...)
	}
	in = append(in, denials(lookup("good.example"))...)
	got := p.Suggest(in)
	if len(got.Rules) != 1 || got.Rules[0].Domain != "good.example" {
		t.Errorf("suggested %+v", got.Rules)
	}
	why := map[string]int{}
	for _, l := range got.Left {
		why[l.Why]++
	}
	if len(why) != 3 {
		t.Errorf("left out for %v", why)
	}
	in = nil
	for i := range 300 {
		in = append(in, denials(lookup(fmt.Sprintf("host.site%d.example", i)))...)
	}
	if got := p.Suggest(in); len(got.Rules) != 200 || len(got.Left) != 1 || !strings.Contains(got.Left[0].Why, "100 more") {
		t.Errorf("%d rules, left out %+v", len(got.Rules), got.Left)
	}
}

// Of any denials: what is suggested can be appended, allows all that was not left out, and no
// host, address or port that was not tried.
func TestSuggestAllowsWhatWasTried(t *testing.T) {
	r := rand.New(rand.NewPCG(4, 2))
	suggested := 0
	for range 15 {
		rules := small.rules(r)
		p := compile(t, policy.Env{}, rules...)
		var tried []policy.Denial
		seen := map[string]bool{}
		small.each(func(q policy.Query) {
			if r.IntN(300) == 0 && p.Connect(q).Action == policy.Deny {
				tried = append(tried, policy.Denial{Query: q})
				seen[fmt.Sprint(q.Name, plain(q.Addr), q.Port)] = true
				seen[fmt.Sprint(q.Name, q.Port)] = q.Name != ""
			}
		})
		got := p.Suggest(tried)
		suggested += len(got.Rules)
		all := append(append([]hutch.NetworkRule{}, rules...), got.Rules...)
		after, err := policy.Compile(custom(all...), policy.Env{})
		if err != nil {
			t.Fatalf("what was suggested is refused: %v\n%+v", err, got.Rules)
		}
		left := map[policy.Query]bool{}
		for _, l := range got.Left {
			left[l.Query] = true
		}
		for _, d := range tried {
			if !left[d.Query] && after.Connect(d.Query).Action != policy.Allow {
				t.Fatalf("%+v %+v is denied still\nrules %+v\nsuggested %+v", d.Query, d.Query.HTTP, rules, got.Rules)
			}
		}
		small.each(func(q policy.Query) {
			if p.Connect(q).Action == policy.Deny && after.Connect(q).Action == policy.Allow &&
				!seen[fmt.Sprint(q.Name, q.Port)] && !seen[fmt.Sprint("", plain(q.Addr), q.Port)] {
				t.Fatalf("%+v was not tried and is allowed\nrules %+v\nsuggested %+v", q, rules, got.Rules)
			}
		})
	}
	if suggested < 15 {
		t.Errorf("%d rules suggested: the test has lost its aim", suggested)
	}
}
