package main

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/control"
)

const wholeEgress = `{
	"presets": {"pypi": {"hosts": [{"domain": "pypi.example.com", "ports": [443, "8000-8100"]}]}},
	"trusted": ["pypi"],
	"exceptions": [{"cidr": "10.1.0.0/16", "hosts": ["pypi.example.com"]}],
	"names": {"mirror.example.com": {"addrs": ["10.2.0.1"]}},
	"base": {"mode": "custom", "rules": [{"action": "deny", "domain": "bad.example.com"}]},
	"projects": {"*": {"default": {"mode": "trusted"}, "ceiling": {"mode": "trusted"}}, "ci": null}
}`

func TestParseEgress(t *testing.T) {
	got, err := parseEgress([]byte(wholeEgress))
	if err != nil || got.Check() != nil {
		t.Fatalf("%v, %v", err, got.Check())
	}
	if p := got.Env.Presets["pypi"].Hosts[0]; p.Domain != "pypi.example.com" || p.Ports[1] != (hutch.PortRange{First: 8000, Last: 8100}) {
		t.Errorf("the preset is %+v", p)
	}
	if len(got.Env.Exceptions) != 1 || len(got.Env.Names) != 1 || got.Env.Trusted[0] != "pypi" || got.Base.Rules[0].Domain != "bad.example.com" {
		t.Errorf("got %+v", got)
	}
	if len(got.Env.Own) == 0 {
		t.Error("the host's own addresses are missing: it has loopback at least")
	}
	if every := got.Projects["*"]; every.Default.Mode != hutch.NetworkTrusted || every.Ceiling.Mode != hutch.NetworkTrusted {
		t.Errorf("every project: %+v", every)
	}
	if ci, ok := got.Projects["ci"]; !ok || ci != (control.ProjectNetwork{}) {
		t.Errorf("a project that is null: %+v, %v; want nothing for it, in place of what every project has", ci, ok)
	}
	for name, c := range map[string]struct{ text, err string }{
		"nothing":          {``, "not an object"},
		"null":             {`null`, "{} says nothing"},
		"a list":           {`[]`, "not an object"},
		"an unknown field": {`{"preset": {}}`, "preset"},
		"one further in":   {`{"base": {"mode": "custom", "rules": [{"action": "allow", "host": "a.example.com"}]}}`, "host"},
		"a CA":             {`{"names": {"a.example.com": {"addrs": ["10.0.0.1"], "ca": "ours"}}}`, "ca"},
		"own addresses":    {`{"own": ["10.0.0.1"]}`, "own"},
		"no name":          {`{"projects": {"": null}}`, "no name"},
		"two objects":      {`{} {}`, "follows"},
	} {
		if got, err := parseEgress([]byte(c.text)); err == nil || !strings.Contains(err.Error(), c.err) {
			t.Errorf("%s: %+v, %v; want an error about %q", name, got, err, c.err)
		}
	}
}

func FuzzParseEgress(f *testing.F) {
	for _, s := range []string{`{}`, wholeEgress, `null`, `{"base": {"mode": "off", "expires_at": "2026-01-02T15:04:05Z"}}`, `{"exceptions": [{"cidr": "::/0"}]}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(_ *testing.T, b []byte) {
		if cfg, err := parseEgress(b); err == nil {
			_ = cfg.Check()
		}
	})
}

// The file is read again when it changes; what is wrong in it changes nothing, and is said once.
func TestEgressFileIsFollowed(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, egressFileName)
	var log bytes.Buffer
	var set []control.NetworkConfig
	f := newEgressFile(serveConfig{dataDir: dir}, func(_ context.Context, n control.NetworkConfig) error {
		if err := n.Check(); err != nil {
			return err
		}
		set = append(set, n)
		return nil
	}, slog.New(slog.NewTextHandler(&log, nil)))
	if err := f.load(t.Context()); err != nil || len(set) != 1 || set[0].Base != nil {
		t.Fatalf("without a file: %v, %v; want what says nothing", set, err)
	}
	step := func(what, text string, times int, line string) {
		t.Helper()
		log.Reset()
		if text != "" {
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		for range 3 {
			f.look(t.Context())
		}
		lines := min(len(line), 1)
		if got := log.String(); len(set) != times || strings.Count(got, "\n") != lines || !strings.Contains(got, line) {
			t.Errorf("%s: set %d times, want %d; logged %q, want %q once", what, len(set), times, got, line)
		}
	}
	step("still none", "", 1, "")
	step("one appears", wholeEgress, 2, "is set")
	step("unchanged", "", 2, "")
	step("broken", `{"base": {"mode": "of"}}`, 2, "base.mode")
	step("as it was", wholeEgress, 3, "is set")
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	step("it goes", "", 4, "is set")

	named := newEgressFile(serveConfig{egress: path}, nil, nil)
	if err := named.load(t.Context()); err == nil {
		t.Error("a file that is named and not there is as if it said nothing")
	}
}
