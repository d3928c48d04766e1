package cli_test

import (
	"encoding/json"
	"strings"
	"testing"

	"hutch.dev/hutch"
	"hutch.dev/hutch/api"
)

func TestEgressCommands(t *testing.T) {
	w := newWorld(t)
	id := w.ok("create", "--allow", "web.example.com", "--allow", "203.0.113.0/24:8000-8100", "--allow", "preset:pypi", "--allow", "db.example.com:5432", "--allow", "[2001:db8::1]:443", "--allow", "2001:db8::/32")
	var n api.NetworkState
	if err := json.Unmarshal([]byte(w.ok("egress", "get", "--json", id)), &n); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, r := range n.Holds {
		text := r.Domain + r.CIDR + r.Preset
		for _, p := range r.Ports {
			text += " " + p.String()
		}
		got = append(got, text)
	}
	if want := "web.example.com,203.0.113.0/24 8000-8100,pypi,db.example.com 5432,2001:db8::1 443,2001:db8::/32"; strings.Join(got, ",") != want {
		t.Errorf("the rules are %q, want %q", got, want)
	}
	if out := w.ok("egress", "get", id); !strings.Contains(out, "web.example.com") || !strings.Contains(out, "preset pypi") || !strings.Contains(out, "request") {
		t.Errorf("get prints %s", out)
	}
	if out := w.ok("egress", "set", id, "--off"); !strings.Contains(out, "nothing") && !strings.Contains(out, "request") {
		t.Errorf("set prints %s", out)
	}
	w.files["policy.json"] = `{"mode": "off", "setup": {"mode": "trusted"}}`
	if out := w.ok("egress", "set", id, "--policy", "policy.json"); !strings.Contains(out, "setup") {
		t.Errorf("set prints %s", out)
	}
	if out := w.ok("egress", "lock", id, "--stop"); !strings.Contains(out, "agent") || !w.Stopped {
		t.Errorf("lock prints %s, stopped %v", out, w.Stopped)
	}
	out := w.ok("egress", "log", id)
	if !strings.Contains(out, "203.0.113.7:443") || !strings.Contains(out, "deny ×3") || !strings.Contains(out, "no rule allows it") {
		t.Errorf("log prints %s", out)
	}
	if out := w.ok("egress", "log", "--denied", id); strings.Contains(out, "web.example.com") {
		t.Errorf("what was denied: %s", out)
	}
	r := w.run("egress", "learn", id)
	var learnt api.Network
	if err := json.Unmarshal([]byte(r.out), &learnt); err != nil || learnt.Mode != hutch.NetworkCustom || learnt.Rules[0].Domain != "other.example.com" {
		t.Errorf("learn prints %s, %v", r.out, err)
	}
	if !strings.Contains(r.err, "169.254.169.254:80: it is a metadata service") {
		t.Errorf("learn says %s of what is left out", r.err)
	}
	w.files["policy.json"] = r.out
	w.ok("create", "--network", "policy.json") // what learn prints can be given
}

func TestEgressUsage(t *testing.T) {
	w := newWorld(t)
	id := w.ok("create")
	w.files["broken.json"] = `{"mode": "off", "allow": 1}`
	for name, args := range map[string][]string{
		"nothing said":   {"egress", "set", id},
		"two things":     {"egress", "set", id, "--off", "--trusted"},
		"a port too far": {"egress", "set", id, "--allow", "a.example.com:70000"},
		"no host":        {"create", "--allow", ":443"},
		"no file":        {"create", "--network", "none.json"},
		"no policy":      {"egress", "set", id, "--policy", "broken.json"},
		"no sandbox":     {"egress", "get"},
	} {
		if r := w.run(args...); r.code != 2 || r.err == "" {
			t.Errorf("%s: code %d, %q; want 2 and why", name, r.code, r.err)
		}
	}
}
