package hutch_test

import (
	"encoding/json"
	"errors"
	"testing"

	"hutch.dev/hutch"
)

func TestPortRangeOnTheWire(t *testing.T) {
	for in, want := range map[string]string{
		`443`: `443`, `"443"`: `443`, `"8000-8100"`: `"8000-8100"`, `"1-65535"`: `"1-65535"`, `"7-7"`: `7`,
		`0`: "", `65536`: "", `-1`: "", `1.5`: "", `"a"`: "", `"2-1"`: "", `"1-"`: "", `"-1"`: "", `" 1"`: "", `"0-1"`: "", `""`: "", `{}`: "", `true`: "", `"1-2-3"`: "",
	} {
		var r hutch.PortRange
		err := json.Unmarshal([]byte(in), &r)
		if (err == nil) != (want != "") {
			t.Errorf("%s: %v, %v", in, r, err)
			continue
		}
		if err != nil {
			continue
		}
		if out, err := json.Marshal(r); err != nil || string(out) != want || !r.Valid() {
			t.Errorf("%s: written as %s, %v; want %s", in, out, err, want)
		}
	}
	for _, r := range []hutch.PortRange{{}, {First: 0, Last: 1}, {First: 2, Last: 1}} {
		if r.Valid() {
			t.Errorf("%v is valid", r)
		}
	}
}

// Setup is locked into agent, once, and nothing leads back.
func TestPhases(t *testing.T) {
	setup, agent := &hutch.NetworkPolicy{Mode: hutch.NetworkTrusted}, &hutch.NetworkPolicy{Mode: hutch.NetworkOff}
	for _, tt := range []struct {
		n     hutch.NetworkPhases
		first hutch.NetworkPhase
	}{
		{hutch.NetworkPhases{}, hutch.PhaseAgent},
		{hutch.NetworkPhases{Agent: agent}, hutch.PhaseAgent},
		{hutch.NetworkPhases{Setup: setup}, hutch.PhaseSetup},
		{hutch.NetworkPhases{Setup: setup, Agent: agent}, hutch.PhaseSetup},
	} {
		if got := tt.n.First(); got != tt.first {
			t.Errorf("%+v begins in %q, want %q", tt.n, got, tt.first)
		}
		if tt.n.In(hutch.PhaseSetup) != tt.n.Setup || tt.n.In(hutch.PhaseAgent) != tt.n.Agent {
			t.Errorf("%+v: the policies of its phases are others", tt.n)
		}
	}
	if next, err := hutch.PhaseSetup.Lock(); next != hutch.PhaseAgent || err != nil {
		t.Errorf("setup is locked into %q, %v", next, err)
	}
	if next, err := hutch.PhaseAgent.Lock(); next != hutch.PhaseAgent || !errors.Is(err, hutch.ErrInvalidState) {
		t.Errorf("agent is locked into %q, %v", next, err)
	}
}
