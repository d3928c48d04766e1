package httpapi_test

import (
	"strings"
	"testing"

	"hutch.dev/hutch"
	"hutch.dev/hutch/api"
	"hutch.dev/hutch/internal/httpapi"
	"hutch.dev/hutch/internal/httpapi/httpapitest"
)

func TestNetworkOfASandbox(t *testing.T) {
	b := newBench(t, httpapi.Config{})
	sb := into[api.Sandbox](b.do("POST", "/v1/sandboxes", `{"network": {"mode": "custom", "expires_at": "2030-01-02T03:04:05Z", "rules": [
		{"name": "web", "action": "allow", "domain": "web.example.com", "ports": [443, "8000-8100"], "protocol": "tls", "http": {"methods": ["GET"], "paths": ["/a*"]}},
		{"action": "deny", "cidr": "203.0.113.0/24"}], "setup": {"mode": "trusted"}}}`).want(201))
	if sb.Network.Phase != hutch.PhaseSetup || sb.Network.Source != hutch.NetworkOfRequest {
		t.Errorf("the sandbox shows %+v", sb.Network)
	}
	at := "/v1/sandboxes/" + string(sb.ID) + "/network"
	got := b.do("GET", at, "").want(200)
	n := into[api.NetworkState](got)
	if n.Asked == nil || n.Asked.Setup.Mode != hutch.NetworkTrusted || len(n.Asked.Rules) != 2 || n.Asked.ExpiresAt.Year() != 2030 {
		t.Fatalf("asked is %+v", n.Asked)
	}
	if r := n.Asked.Rules[0]; r.Name != "web" || r.Ports[1].Last != 8100 || r.Protocol != hutch.NetworkTLS || r.HTTP.Paths[0] != "/a*" || n.Asked.Rules[1].CIDR != "203.0.113.0/24" {
		t.Errorf("the rules are %+v", n.Asked.Rules)
	}
	if !strings.Contains(string(got.body), `[443,"8000-8100"]`) {
		t.Errorf("ports are shown otherwise than they are given: %s", got.body)
	}

	n = into[api.NetworkState](b.do("POST", at+"/lock", `{"stop": true}`).want(200))
	if n.Phase != hutch.PhaseAgent || len(n.Holds) != 2 || !b.Stopped {
		t.Errorf("locked: %+v, stopped %v", n, b.Stopped)
	}
	b.do("POST", at+"/lock", "").wantError(409, "invalid_state", "")
	n = into[api.NetworkState](b.do("PUT", at, `{}`).want(200))
	if n.Asked != nil || len(n.Holds) != 0 || n.Source != "" {
		t.Errorf("replaced by nothing: %+v", n)
	}
	b.as(httpapitest.ReadKey).do("PUT", at, `{}`).wantError(403, "forbidden", "")
	b.as(httpapitest.OtherKey).do("PUT", at, `{}`).wantError(404, "not_found", "")
}

func TestNetworkLogAndSuggestion(t *testing.T) {
	b := newBench(t, httpapi.Config{})
	sb := into[api.Sandbox](b.do("POST", "/v1/sandboxes", `{}`).want(201))
	at := "/v1/sandboxes/" + string(sb.ID) + "/network"
	l := into[api.NetworkLog](b.do("GET", at+"/log", "").want(200))
	if len(l.Entries) != 2 || l.Next != 2 || l.Entries[0].Action != hutch.NetworkAllow || l.Entries[0].Addr != "203.0.113.7" || l.Entries[1].Count != 3 || l.Entries[1].Addr != "" {
		t.Errorf("the log is %+v", l)
	}
	if l := into[api.NetworkLog](b.do("GET", at+"/log?denied=true&limit=1", "").want(200)); len(l.Entries) != 1 || l.Entries[0].Seq != 2 {
		t.Errorf("what was denied: %+v", l)
	}
	if l := into[api.NetworkLog](b.do("GET", at+"/log?after=2", "").want(200)); len(l.Entries) != 0 || l.Next != 2 {
		t.Errorf("after the last: %+v", l)
	}
	s := into[api.NetworkSuggestion](b.do("GET", at+"/suggestion", "").want(200))
	if len(s.Rules) != 1 || s.Rules[0].Domain != "other.example.com" || len(s.LeftOut) != 1 || s.LeftOut[0].Addr != "169.254.169.254" {
		t.Errorf("suggested is %+v", s)
	}
}

// What is wrong is refused with the field, in a create as in a body that is all about the network.
func TestNetworkIsReadStrictly(t *testing.T) {
	b := newBench(t, httpapi.Config{})
	sb := into[api.Sandbox](b.do("POST", "/v1/sandboxes", `{}`).want(201))
	for name, c := range map[string]struct {
		body   string
		status int
		code   string
		field  string
	}{
		"rules without a mode":        {`{"rules": [{"action": "allow", "domain": "a.example.com"}]}`, 400, "bad_request", "mode"},
		"an end without a mode":       {`{"expires_at": "2030-01-02T03:04:05Z"}`, 400, "bad_request", "mode"},
		"a mode that is none":         {`{"mode": "open"}`, 400, "bad_request", "mode"},
		"an unknown field":            {`{"mode": "off", "allow": []}`, 400, "unknown_field", "allow"},
		"one in a rule":               {`{"mode": "custom", "rules": [{"action": "allow", "host": "a.example.com"}]}`, 400, "unknown_field", "rules[0].host"},
		"one in setup":                {`{"setup": {"mode": "off", "phase": 1}}`, 400, "unknown_field", "setup.phase"},
		"one in a match":              {`{"mode": "custom", "rules": [{}, {"http": {"hosts": []}}]}`, 400, "unknown_field", "rules[1].http.hosts"},
		"no list":                     {`{"mode": "custom", "rules": {}}`, 400, "bad_request", "rules"},
		"a list of text":              {`{"mode": "custom", "rules": ["allow"]}`, 400, "bad_request", "rules[0]"},
		"a port that is none":         {`{"mode": "custom", "rules": [{"ports": [0]}]}`, 400, "bad_request", "rules[0].ports"},
		"a time that is none":         {`{"mode": "off", "expires_at": "tomorrow"}`, 400, "bad_request", "expires_at"},
		"more than is allowed":        {`{"mode": "custom", "rules": [{"action": "allow", "domain": "forbidden.example.com"}]}`, 403, "forbidden", "rules[0].domain"},
		"more of it, in the setup":    {`{"setup": {"mode": "custom", "rules": [{"domain": "forbidden.example.com"}]}}`, 403, "forbidden", "setup.rules[0].domain"},
		"a setup without its mode":    {`{"setup": {}}`, 400, "bad_request", "setup.mode"},
		"a field that is given twice": {`{"mode": "off", "mode": "off"}`, 400, "bad_request", "mode"},
	} {
		t.Run(name, func(t *testing.T) {
			b := *b
			b.t = t
			b.do("PUT", "/v1/sandboxes/"+string(sb.ID)+"/network", c.body).wantError(c.status, c.code, c.field)
			b.do("POST", "/v1/sandboxes", `{"network": `+c.body+`}`).wantError(c.status, c.code, "network."+c.field)
		})
	}
}
