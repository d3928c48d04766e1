package policy_test

import (
	"testing"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/egress/policy"
)

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

// What can be seen of a connection decides which rules by name are about it.
func TestConnectByProtocol(t *testing.T) {
	p := compile(
		t, policy.Env{},
		allow(hutch.NetworkRule{Domain: "db.example", Ports: single([]uint16{5432}), Protocol: hutch.NetworkTCP}),
		allow(hutch.NetworkRule{Domain: "tls.example", Ports: single([]uint16{443}), Protocol: hutch.NetworkTLS}),
		allow(hutch.NetworkRule{Domain: "plain.example", Protocol: hutch.NetworkHTTP}),
		deny(domain("not.example")),
		allow(hutch.NetworkRule{Domain: "*", Protocol: hutch.NetworkTCP, Ports: single([]uint16{22})}),
	)
	for name, tt := range map[string]struct {
		proto policy.Proto
		host  string
		port  uint16
		want  policy.Action
	}{
		"tcp by name":              {policy.ProtoTCP, "db.example", 5432, policy.Allow},
		"tls where tcp may be":     {policy.ProtoTLS, "db.example", 5432, policy.Allow},
		"nothing said is tcp":      {"", "db.example", 5432, policy.Allow},
		"tls":                      {policy.ProtoTLS, "tls.example", 443, policy.Allow},
		"tcp where tls must be":    {policy.ProtoTCP, "tls.example", 443, policy.Deny},
		"http where tls must be":   {policy.ProtoHTTP, "tls.example", 443, policy.Deny},
		"http":                     {policy.ProtoHTTP, "plain.example", 80, policy.Allow},
		"tls where http must be":   {policy.ProtoTLS, "plain.example", 443, policy.Deny},
		"denied whatever it is":    {policy.ProtoTCP, "not.example", 22, policy.Deny},
		"every name":               {policy.ProtoTCP, "other.example", 22, policy.Allow},
		"every name, but no names": {policy.ProtoTCP, "", 22, policy.Deny},
		"no protocol of ours":      {"sctp", "db.example", 5432, policy.Deny},
	} {
		t.Run(name, func(t *testing.T) {
			got := p.Connect(policy.Query{Proto: tt.proto, Name: tt.host, Addr: addr("203.0.113.9"), Port: tt.port})
			if got.Action != tt.want {
				t.Errorf("got %+v, want %s", got, tt.want)
			}
		})
	}
}

// Mail is sent to anybody through whoever takes it, so it is allowed by its port only.
func TestConnectMail(t *testing.T) {
	all := []hutch.PortRange{{First: 1, Last: 65535}}
	wide := compile(t, policy.Env{}, allow(hutch.NetworkRule{Domain: "*", Ports: all, Protocol: hutch.NetworkTCP}), allow(cidr("0.0.0.0/0")))
	for _, port := range []uint16{25, 465, 587, 2525} {
		if d := wide.Connect(policy.Query{Name: "mail.example", Addr: addr("203.0.113.9"), Port: port}); d.Action != policy.Deny {
			t.Errorf("port %d: %+v, want it denied", port, d)
		}
		named := compile(t, policy.Env{}, allow(hutch.NetworkRule{Domain: "mail.example", Ports: append(single([]uint16{port}), all...), Protocol: hutch.NetworkTCP}))
		if d := named.Connect(policy.Query{Name: "mail.example", Addr: addr("203.0.113.9"), Port: port}); d.Action != policy.Allow {
			t.Errorf("port %d by itself: %+v, want it allowed", port, d)
		}
	}
	if d := wide.Connect(policy.Query{Name: "mail.example", Addr: addr("203.0.113.9"), Port: 26}); d.Action != policy.Allow {
		t.Errorf("port 26: %+v", d)
	}
}

func TestConnectLooksAtRequests(t *testing.T) {
	p := compile(
		t, policy.Env{},
		deny(hutch.NetworkRule{Domain: "api.example", HTTP: &hutch.HTTPMatch{Methods: []string{"DELETE"}}}),
		deny(hutch.NetworkRule{Domain: "api.example", HTTP: &hutch.HTTPMatch{Paths: []string{"/admin*"}}}),
		allow(hutch.NetworkRule{Domain: "api.example", HTTP: &hutch.HTTPMatch{Methods: []string{"GET", "HEAD"}, Paths: []string{"/", "/repos/*"}}}),
		allow(domain("open.example")),
	)
	for name, tt := range map[string]struct {
		host   string
		q      *policy.HTTPQuery
		action policy.Action
		rule   string
	}{
		"not seen yet":                {"api.example", nil, policy.Inspect, "rules[0]"},
		"a name without such rules":   {"open.example", nil, policy.Allow, "rules[3]"},
		"allowed":                     {"api.example", &policy.HTTPQuery{Host: "api.example", Method: "GET", Path: "/repos/a?q=../x"}, policy.Allow, "rules[2]"},
		"its host with a port":        {"api.example", &policy.HTTPQuery{Host: "API.example:443", Method: "GET", Path: "/"}, policy.Allow, "rules[2]"},
		"another path":                {"api.example", &policy.HTTPQuery{Host: "api.example", Method: "GET", Path: "/users"}, policy.Deny, policy.RuleDefault},
		"another method":              {"api.example", &policy.HTTPQuery{Host: "api.example", Method: "POST", Path: "/repos/a"}, policy.Deny, policy.RuleDefault},
		"denied method":               {"api.example", &policy.HTTPQuery{Host: "api.example", Method: "DELETE", Path: "/repos/a"}, policy.Deny, "rules[0]"},
		"denied method, odd case":     {"api.example", &policy.HTTPQuery{Host: "api.example", Method: "Delete", Path: "/repos/a"}, policy.Deny, "rules[0]"},
		"denied path":                 {"api.example", &policy.HTTPQuery{Host: "api.example", Method: "GET", Path: "/admin/x"}, policy.Deny, "rules[1]"},
		"up and in again":             {"api.example", &policy.HTTPQuery{Host: "api.example", Method: "GET", Path: "/repos/../users"}, policy.Deny, "rules[1]"},
		"up, encoded":                 {"api.example", &policy.HTTPQuery{Host: "api.example", Method: "GET", Path: "/repos/%2e%2e/users"}, policy.Deny, "rules[1]"},
		"slash, encoded":              {"api.example", &policy.HTTPQuery{Host: "api.example", Method: "GET", Path: "/repos/a%2Fb"}, policy.Deny, "rules[1]"},
		"another host than the name":  {"api.example", &policy.HTTPQuery{Host: "open.example", Method: "GET", Path: "/"}, policy.Deny, policy.RuleMalformed},
		"a host that is none":         {"api.example", &policy.HTTPQuery{Host: "api.example:80@x", Method: "GET", Path: "/"}, policy.Deny, policy.RuleMalformed},
		"a host that is an address":   {"api.example", &policy.HTTPQuery{Host: "203.0.113.9", Method: "GET", Path: "/"}, policy.Deny, policy.RuleMalformed},
		"no host where there is one":  {"api.example", &policy.HTTPQuery{Method: "GET", Path: "/"}, policy.Deny, policy.RuleMalformed},
		"an absolute form as a path":  {"api.example", &policy.HTTPQuery{Host: "api.example", Method: "GET", Path: "http://open.example/"}, policy.Deny, "rules[1]"},
		"name from the request alone": {"", &policy.HTTPQuery{Host: "open.example", Method: "POST", Path: "//"}, policy.Allow, "rules[3]"},
	} {
		t.Run(name, func(t *testing.T) {
			q := policy.Query{Proto: policy.ProtoHTTP, Name: tt.host, Addr: addr("203.0.113.9"), Port: 443, HTTP: tt.q}
			if got := p.Connect(q); got.Action != tt.action || got.Rule != tt.rule {
				t.Errorf("got %+v, want %s by %s", got, tt.action, tt.rule)
			}
		})
	}
}

func TestConnectRequestForAnAddress(t *testing.T) {
	p := compile(t, policy.Env{}, allow(cidr("203.0.113.0/24")), allow(cidr("2001:db8::/32")))
	for host, want := range map[string]policy.Action{
		"203.0.113.9": policy.Allow, "203.0.113.9:8080": policy.Allow, "[::ffff:203.0.113.9]:8080": policy.Allow, "": policy.Allow,
		"203.0.113.8": policy.Deny, "[203.0.113.9]": policy.Deny, "[::1": policy.Deny, "0xcb.0x71.9": policy.Deny, "3405803785": policy.Deny,
	} {
		q := policy.Query{Proto: policy.ProtoHTTP, Addr: addr("203.0.113.9"), Port: 8080, HTTP: &policy.HTTPQuery{Host: host, Method: "GET", Path: "/"}}
		if got := p.Connect(q); got.Action != want {
			t.Errorf("Host %q: %+v, want %s", host, got, want)
		}
	}
}

// A denial says what came closest.
func TestMissSaysWhatCameClosest(t *testing.T) {
	p := compile(
		t, registries,
		allow(preset("pypi")),
		allow(hutch.NetworkRule{Name: "forge over TLS", Domain: "forge.example", Protocol: hutch.NetworkTLS}),
		allow(hutch.NetworkRule{Name: "reads", Domain: "api.example", HTTP: &hutch.HTTPMatch{Methods: []string{"GET"}}}),
	)
	at := addr("203.0.113.9")
	for want, q := range map[string]policy.Query{
		"no rule allows index.example port 8443: preset pypi allows it on port 80, 443":                    {Proto: policy.ProtoTLS, Name: "index.example", Addr: at, Port: 8443},
		"no rule allows index.example port 443: preset pypi allows it for TLS and HTTP, which this is not": {Proto: policy.ProtoTCP, Name: "index.example", Addr: at, Port: 443},
		"no rule allows forge.example port 80: forge over TLS allows it for protocol tls":                  {Proto: policy.ProtoHTTP, Name: "forge.example", Addr: at, Port: 80},
		"no rule allows api.example port 443 with this method and path: reads allows others":               {Proto: policy.ProtoTLS, Name: "api.example", Addr: at, Port: 443, HTTP: &policy.HTTPQuery{Host: "api.example", Method: "PUT", Path: "/"}},
		"no rule allows other.example port 443":                                                            {Proto: policy.ProtoTLS, Name: "other.example", Addr: at, Port: 443},
		"no rule allows 203.0.113.9 port 443":                                                              {Proto: policy.ProtoTLS, Addr: at, Port: 443},
	} {
		if got := p.Connect(q); got.Reason != want {
			t.Errorf("got  %s\nwant %s", got.Reason, want)
		}
	}
}

func TestEarly(t *testing.T) {
	p := compile(
		t, policy.Env{},
		allow(cidr("203.0.113.0/24", 22)),
		deny(cidr("203.0.113.0/25")),
		allow(domain("api.example")),
		allow(cidr("203.0.113.128/25", 443)),
	)
	for name, tt := range map[string]struct {
		addr  string
		port  uint16
		names []string
		want  policy.Action
	}{
		"allowed by address":                {"203.0.113.9", 22, nil, policy.Allow},
		"denied by address":                 {"203.0.113.9", 443, []string{"api.example"}, policy.Deny},
		"allowed with any name":             {"203.0.113.200", 443, []string{"api.example", "other.example"}, policy.Allow},
		"never resolved":                    {"198.51.100.1", 443, nil, policy.Deny},
		"resolved for a name that is":       {"198.51.100.1", 443, []string{"other.example", "API.example."}, policy.Inspect},
		"resolved for a name that is not":   {"198.51.100.1", 443, []string{"other.example"}, policy.Deny},
		"that name on another port":         {"198.51.100.1", 22, []string{"api.example"}, policy.Deny},
		"out of reach whatever its name is": {"10.0.0.1", 443, []string{"api.example"}, policy.Deny},
		"no address":                        {"", 443, []string{"api.example"}, policy.Deny},
	} {
		t.Run(name, func(t *testing.T) {
			if got := p.Early(addr(tt.addr), tt.port, tt.names...); got.Action != tt.want {
				t.Errorf("got %+v, want %s", got, tt.want)
			}
		})
	}
}
