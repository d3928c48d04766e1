package policy_test

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/egress/policy"
)

// Each mistake is refused with the field that it is in.
func TestCheckNamesTheField(t *testing.T) {
	long := strings.Repeat("a", 100)
	many := make([]hutch.PortRange, 101)
	for i := range many {
		many[i] = hutch.Port(uint16(2*i + 1))
	}
	for name, tt := range map[string]struct {
		np    hutch.NetworkPolicy
		field string
		says  string
	}{
		"no mode":                {hutch.NetworkPolicy{}, "mode", `"off"`},
		"unknown mode":           {hutch.NetworkPolicy{Mode: "open"}, "mode", `"open"`},
		"off with rules":         {hutch.NetworkPolicy{Mode: hutch.NetworkOff, Rules: []hutch.NetworkRule{allow(domain("a.example"))}}, "rules", "custom"},
		"trusted with rules":     {hutch.NetworkPolicy{Mode: hutch.NetworkTrusted, Rules: []hutch.NetworkRule{allow(domain("a.example"))}}, "rules", "preset"},
		"no action":              {custom(domain("a.example")), "rules[0].action", `"allow"`},
		"about nothing":          {custom(allow(domain("a.example")), allow(hutch.NetworkRule{})), "rules[1]", "exactly one"},
		"about two things":       {custom(allow(hutch.NetworkRule{Domain: "a.example", CIDR: "203.0.113.1"})), "rules[0]", "exactly one"},
		"a URL":                  {custom(allow(domain("https://a.example/"))), "rules[0].domain", "no scheme"},
		"a name with a port":     {custom(allow(domain("a.example:443"))), "rules[0].domain", "port"},
		"an address as a name":   {custom(allow(domain("203.0.113.1"))), "rules[0].domain", "use cidr"},
		"a number as a name":     {custom(allow(domain("0x7f.1"))), "rules[0].domain", "use cidr"},
		"a star within":          {custom(allow(domain("a.*.example"))), "rules[0].domain", "*.example.com"},
		"half a star":            {custom(allow(domain("*a.example"))), "rules[0].domain", "*.example.com"},
		"a star and nothing":     {custom(allow(domain("*."))), "rules[0].domain", "empty"},
		"a long part":            {custom(allow(domain(long + ".example"))), "rules[0].domain", "63"},
		"no such letters":        {custom(allow(domain("b\u00fc\u200dcher.example"))), "rules[0].domain", "internationalised"},
		"no range":               {custom(allow(cidr("203.0.113"))), "rules[0].cidr", "neither"},
		"bits behind the length": {custom(allow(cidr("203.0.113.1/24"))), "rules[0].cidr", "203.0.113.0/24"},
		"more than mapped":       {custom(allow(cidr("::ffff:0.0.0.0/90"))), "rules[0].cidr", ""},
		"a zone":                 {custom(allow(cidr("fe80::1%eth0"))), "rules[0].cidr", "zone"},
		"out of reach":           {custom(allow(cidr("10.1.0.0/16"))), "rules[0].cidr", "private"},
		"out of reach, mapped":   {custom(allow(cidr("::ffff:169.254.169.254"))), "rules[0].cidr", "metadata"},
		"out of reach, NAT64":    {custom(allow(cidr("64:ff9b::7f00:0/104"))), "rules[0].cidr", "loopback"},
		"no addresses of anyone": {custom(allow(cidr("4000::/8"))), "rules[0].cidr", "reserved"},
		"unknown preset":         {custom(allow(preset("npm"))), "rules[0].preset", "debian, forge, pypi, trusted"},
		"a preset with ports":    {custom(allow(hutch.NetworkRule{Preset: "pypi", Ports: single([]uint16{1})})), "rules[0]", "its own ports"},
		"a preset, requests":     {custom(allow(hutch.NetworkRule{Preset: "pypi", HTTP: &hutch.HTTPMatch{Methods: []string{"GET"}}})), "rules[0].http", "domain"},
		"a range, requests":      {custom(allow(hutch.NetworkRule{CIDR: "203.0.113.1", HTTP: &hutch.HTTPMatch{Methods: []string{"GET"}}})), "rules[0].http", "domain"},
		"UDP":                    {custom(allow(hutch.NetworkRule{Domain: "a.example", Protocol: "udp"})), "rules[0].protocol", "UDP does not leave"},
		"unknown protocol":       {custom(allow(hutch.NetworkRule{Domain: "a.example", Protocol: "quic"})), "rules[0].protocol", `"tls"`},
		"requests over anything": {custom(allow(hutch.NetworkRule{Domain: "a.example", Protocol: "tcp", HTTP: &hutch.HTTPMatch{Methods: []string{"GET"}}})), "rules[0].protocol", "leave it out"},
		"port 0":                 {custom(allow(domain("a.example", 443, 0))), "rules[0].ports[1]", "1 to 65535"},
		"a range backwards":      {custom(allow(hutch.NetworkRule{Domain: "a.example", Ports: []hutch.PortRange{{First: 2, Last: 1}}})), "rules[0].ports[0]", "2-1"},
		"many ports":             {custom(allow(hutch.NetworkRule{Domain: "a.example", Ports: many})), "rules[0].ports", "100"},
		"no condition":           {custom(allow(hutch.NetworkRule{Domain: "a.example", HTTP: &hutch.HTTPMatch{}})), "rules[0].http", "leave it out"},
		"a method in lower case": {custom(allow(hutch.NetworkRule{Domain: "a.example", HTTP: &hutch.HTTPMatch{Methods: []string{"GET", "post"}}})), "rules[0].http.methods[1]", "capitals"},
		"a path without a slash": {custom(allow(hutch.NetworkRule{Domain: "a.example", HTTP: &hutch.HTTPMatch{Paths: []string{"a"}}})), "rules[0].http.paths[0]", "slash"},
		"a path that goes up":    {custom(allow(hutch.NetworkRule{Domain: "a.example", HTTP: &hutch.HTTPMatch{Paths: []string{"/", "/a/../b"}}})), "rules[0].http.paths[1]", "dotted"},
		"a path with a query":    {custom(allow(hutch.NetworkRule{Domain: "a.example", HTTP: &hutch.HTTPMatch{Paths: []string{"/a?b"}}})), "rules[0].http.paths[0]", "question mark"},
		"a star in a path":       {custom(allow(hutch.NetworkRule{Domain: "a.example", HTTP: &hutch.HTTPMatch{Paths: []string{"/*/b"}}})), "rules[0].http.paths[0]", "at the end"},
		"a denial that ends":     {custom(deny(hutch.NetworkRule{Domain: "a.example", ExpiresAt: time.Unix(1, 0)})), "rules[0].expires_at", "would be open"},
		"too many rules":         {custom(make([]hutch.NetworkRule, 201)...), "rules", "200"},
		"too much in them":       {custom(slices.Repeat([]hutch.NetworkRule{allow(hutch.NetworkRule{Domain: "a.example", Ports: many[:100]})}, 11)...), "rules", "1000"},
		"an odd label":           {custom(allow(hutch.NetworkRule{Name: "operator: x", Domain: "a.example"})), "rules[0].name", "letters"},
		"our label":              {custom(allow(hutch.NetworkRule{Name: "default", Domain: "a.example"})), "rules[0].name", "called"},
		"a long label":           {custom(allow(hutch.NetworkRule{Name: long, Domain: "a.example"})), "rules[0].name", "60"},
		"without effect: allow":  {custom(deny(domain("*.example")), allow(domain("a.example"))), "rules[1]", "rules[0] comes first"},
		"without effect: again":  {custom(allow(domain("*.example")), deny(domain("a.example", 443))), "rules[1]", "rules[0] comes first"},
		"without effect: deny":   {custom(allow(domain("b.example")), allow(hutch.NetworkRule{Name: "all", CIDR: "203.0.113.0/24"}), deny(cidr("203.0.113.9", 80))), "rules[2]", "all comes first"},
	} {
		t.Run(name, func(t *testing.T) {
			err := policy.Check(tt.np, registries)
			if !errors.Is(err, hutch.ErrBadRequest) || fieldOf(err) != tt.field || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("got %v (field %q); want field %q and %q", err, fieldOf(err), tt.field, tt.says)
			}
		})
	}
}

func TestCheckTakesWhatIsRight(t *testing.T) {
	for name, np := range map[string]hutch.NetworkPolicy{
		"off":                    {Mode: hutch.NetworkOff},
		"trusted":                {Mode: hutch.NetworkTrusted},
		"custom, nothing":        custom(),
		"twice the same":         custom(allow(domain("a.example")), allow(domain("a.example"))),
		"some of a preset":       custom(deny(domain("files.index.example")), allow(preset("pypi"))),
		"denied out of reach":    custom(deny(cidr("10.0.0.0/8"))),
		"deny all but":           custom(allow(domain("a.example")), deny(domain("*")), deny(cidr("0.0.0.0/0"))),
		"partly out of reach":    custom(allow(cidr("0.0.0.0/0"))),
		"denied but over TLS":    custom(allow(domain("a.example")), deny(domain("a.example")), allow(hutch.NetworkRule{Domain: "*", Protocol: hutch.NetworkTCP})),
		"an end, then for good":  custom(allow(hutch.NetworkRule{Domain: "a.example", ExpiresAt: time.Unix(9, 0)}), deny(domain("a.example"))),
		"one way denied, others": custom(deny(hutch.NetworkRule{Domain: "a.example", Protocol: hutch.NetworkHTTP}), allow(domain("a.example"))),
	} {
		if err := policy.Check(np, registries); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestModes(t *testing.T) {
	for mode, want := range map[hutch.NetworkMode][3]policy.Action{
		hutch.NetworkOff:     {policy.Deny, policy.Deny, policy.Deny},
		hutch.NetworkTrusted: {policy.Allow, policy.Allow, policy.Deny},
		hutch.NetworkCustom:  {policy.Deny, policy.Deny, policy.Deny},
	} {
		p, err := policy.Compile(hutch.NetworkPolicy{Mode: mode}, registries)
		if err != nil {
			t.Fatal(err)
		}
		for i, q := range []policy.Query{tls("index.example", 443), tls("mirror.example", 80), tls("a.forge.example", 443)} {
			if got := p.Connect(q); got.Action != want[i] {
				t.Errorf("%s: %s: %+v, want %s", mode, q.Name, got, want[i])
			}
		}
	}
	p := compile(t, registries, allow(preset("forge")), allow(preset(hutch.PresetTrusted)))
	if d := p.Connect(tls("a.forge.example", 443)); d.Rule != "preset forge" {
		t.Errorf("got %+v", d)
	}
	if d := p.Connect(tls("files.index.example", 443)); d.Rule != "preset pypi" {
		t.Errorf("got %+v", d)
	}
	if d := p.Connect(tls("files.index.example", 80)); d.Action != policy.Deny {
		t.Errorf("a port that the preset does not have: %+v", d)
	}
	none := registries
	none.Trusted = nil
	p = compile(t, none, allow(preset(hutch.PresetTrusted)))
	if d := p.Connect(tls("index.example", 443)); d.Action != policy.Deny {
		t.Errorf("nothing is trusted unless it is said: %+v", d)
	}
}

// What the operator got wrong is none of the tenant's errors.
func TestEnvErrors(t *testing.T) {
	prefix := netip.MustParsePrefix
	for name, tt := range map[string]struct {
		env  policy.Env
		says string
	}{
		"a preset without hosts":     {policy.Env{Presets: map[string]policy.Preset{"a": {}}}, `preset "a"`},
		"a preset of all names":      {policy.Env{Presets: map[string]policy.Preset{"a": {Hosts: []policy.Host{{Domain: "*"}}}}}, `host "*"`},
		"a preset with a bad host":   {policy.Env{Presets: map[string]policy.Preset{"a": {Hosts: []policy.Host{{Domain: "a b"}}}}}, `host "a b"`},
		"a preset with a bad port":   {policy.Env{Presets: map[string]policy.Preset{"a": {Hosts: []policy.Host{{Domain: "a.example", Ports: []hutch.PortRange{{}}}}}}}, "range of ports"},
		"a preset with our name":     {policy.Env{Presets: map[string]policy.Preset{"trusted": {Hosts: []policy.Host{{Domain: "a.example"}}}}}, `called "trusted"`},
		"trusted that is not there":  {policy.Env{Trusted: []string{"b"}}, `no preset "b"`},
		"an exception for nothing":   {policy.Env{Exceptions: []policy.Exception{{CIDR: prefix("8.8.8.0/24")}}}, "leave it out"},
		"an exception for too much":  {policy.Env{Exceptions: []policy.Exception{{CIDR: prefix("0.0.0.0/0")}}}, "one kind"},
		"an exception for two kinds": {policy.Env{Exceptions: []policy.Exception{{CIDR: prefix("192.168.0.0/15")}}}, "one kind"},
		"an exception, bad host":     {policy.Env{Exceptions: []policy.Exception{{CIDR: prefix("10.0.0.0/8"), Hosts: []string{"10.0.0.1"}}}}, "use cidr"},
		"an exception, no range":     {policy.Env{Exceptions: []policy.Exception{{}}}, "no range"},
		"an override of many":        {policy.Env{Names: map[string]policy.Override{"*.example": {CA: "x"}}}, "wildcard"},
		"an override with nothing":   {policy.Env{Names: map[string]policy.Override{"a.example": {}}}, "says nothing"},
		"an override, no address":    {policy.Env{Names: map[string]policy.Override{"a.example": {Addrs: []netip.Addr{{}}}}}, "no address"},
		"own, no address":            {policy.Env{Own: []netip.Addr{{}}}, "own"},
		"neighbours, no range":       {policy.Env{Neighbours: []netip.Prefix{{}}}, "neighbours"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := policy.Compile(hutch.NetworkPolicy{Mode: hutch.NetworkOff}, tt.env)
			if err == nil || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("got %v, want %q in it", err, tt.says)
			}
			if _, ok := errors.AsType[*hutch.Error](err); ok {
				t.Errorf("%v would be told to a tenant", err)
			}
		})
	}
}

// What expires takes permissions away, and nothing else.
func TestExpiry(t *testing.T) {
	at := func(s int64) time.Time { return time.Unix(s, 0) }
	p, err := policy.Compile(hutch.NetworkPolicy{Mode: hutch.NetworkCustom, ExpiresAt: at(300), Rules: []hutch.NetworkRule{
		allow(hutch.NetworkRule{Domain: "soon.example", ExpiresAt: at(100)}),
		deny(domain("late.example", 80)),
		allow(hutch.NetworkRule{Domain: "late.example", ExpiresAt: at(900)}),
		allow(domain("other.example")),
	}}, policy.Env{})
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		now    int64
		until  time.Time
		allows []bool // soon, late, other
	}{
		{0, at(100), []bool{true, true, true}},
		{99, at(100), []bool{true, true, true}},
		{100, at(300), []bool{false, true, true}},
		{299, at(300), []bool{false, true, true}},
		{300, time.Time{}, []bool{false, false, false}},
		{9000, time.Time{}, []bool{false, false, false}},
	} {
		p = p.At(at(tt.now))
		if !p.Until().Equal(tt.until) {
			t.Errorf("at %d: until %v, want %v", tt.now, p.Until(), tt.until)
		}
		for i, name := range []string{"soon.example", "late.example", "other.example"} {
			if got := p.Connect(tls(name, 443)).Action == policy.Allow; got != tt.allows[i] {
				t.Errorf("at %d: %s allowed is %v", tt.now, name, got)
			}
			if got := p.Name(name).Action == policy.Allow; got != tt.allows[i] {
				t.Errorf("at %d: %s looked up is %v", tt.now, name, got)
			}
		}
		if d := p.Connect(tls("late.example", 80)); d.Rule != "rules[1]" {
			t.Errorf("at %d: what is denied: %+v", tt.now, d)
		}
	}
	if p.At(at(1)) != p {
		t.Error("made anew without a reason")
	}
}
