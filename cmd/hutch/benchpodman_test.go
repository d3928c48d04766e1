package main

import (
	"os"
	"runtime/debug"
	"strings"
	"testing"

	"hutch.dev/hutch/internal/bench"
)

// TestStockRunsc: what is not gVisor's runsc, or not of our version, is refused before anything starts.
func TestStockRunsc(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		cfg  benchConfig
		want string
	}{
		"none":             {benchConfig{}, ""},
		"without baseline": {benchConfig{runsc: "/bin/true"}, "--baseline only"},
		"not there":        {benchConfig{runsc: "/nowhere", settings: bench.Settings{Baseline: true}}, "go build gvisor.dev/gvisor/runsc"},
		"no Go program":    {benchConfig{runsc: "/bin/true", settings: bench.Settings{Baseline: true}}, "go build gvisor.dev/gvisor/runsc"},
		"another program":  {benchConfig{runsc: self, settings: bench.Settings{Baseline: true}}, "must be gvisor.dev/gvisor/runsc"},
	} {
		err := tt.cfg.checkPodman()
		if (tt.want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", name, err, tt.want)
		}
	}
}

func TestGvisorOf(t *testing.T) {
	gvisor := debug.Module{Path: gvisorModule, Version: "v1"}
	for name, tt := range map[string]struct {
		info debug.BuildInfo
		want string
	}{
		"ours":  {debug.BuildInfo{Main: debug.Module{Path: "hutch.dev/hutch"}, Deps: []*debug.Module{{Path: "a"}, &gvisor}}, "v1"},
		"stock": {debug.BuildInfo{Main: gvisor, Deps: []*debug.Module{{Path: "a"}}}, "v1"},
		"other": {debug.BuildInfo{Main: debug.Module{Path: "a"}}, "none"},
	} {
		if got := gvisorOf(&tt.info); got != tt.want {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
}
