package main

import (
	"debug/buildinfo"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"

	"github.com/spf13/cobra"

	"hutch.dev/hutch/internal/bench"
)

// What is installed beside this binary, and can be measured beside it.

const (
	// gvisorModule is where this binary's isolator is from, and stock runsc.
	gvisorModule = "gvisor.dev/gvisor"
	runscPackage = gvisorModule + "/runsc"
)

// podmanFlags are the flags of benchmarks that podman takes turns in.
func (cfg *benchConfig) podmanFlags(c *cobra.Command) {
	cfg.podman = true
	c.Flags().StringVar(&cfg.runsc, "runsc", "", "with --baseline: stock runsc of this binary's gVisor, to measure podman with\n(go build "+runscPackage+", which make bench does)")
}

// checkPodman refuses a stock runsc that would not be a fair comparison.
func (cfg *benchConfig) checkPodman() error {
	if cfg.runsc == "" {
		return nil
	}
	if !cfg.settings.Baseline {
		return errors.New("--runsc is measured with --baseline only")
	}
	theirs, err := buildinfo.ReadFile(cfg.runsc)
	if err != nil {
		return fmt.Errorf("--runsc: %w: make it with CGO_ENABLED=0 go build %s", err, runscPackage)
	}
	ours, ok := debug.ReadBuildInfo()
	if !ok {
		return errors.New("--runsc: this binary does not say which gVisor it has: build it with make")
	}
	want := gvisorOf(ours)
	if got := gvisorOf(theirs); theirs.Path != runscPackage || got != want {
		return fmt.Errorf("--runsc: it is %s of gVisor %s, and must be %s of %s, as this binary is: make it with CGO_ENABLED=0 go build %s", theirs.Path, got, runscPackage, want, runscPackage)
	}
	return nil
}

// gvisorOf is the version of the gVisor that a binary was built with; "none" if it was not.
func gvisorOf(b *debug.BuildInfo) string {
	modules := append(slices.Clone(b.Deps), &b.Main)
	if i := slices.IndexFunc(modules, func(m *debug.Module) bool { return m.Path == gvisorModule }); i >= 0 {
		return modules[i].Version
	}
	return "none"
}

// newPodman is the podman of this machine, with what there is for it, in a directory of its own.
func (cfg *benchConfig) newPodman(dir string) *bench.Podman {
	found := func(name string) string {
		path, err := exec.LookPath(name)
		if err != nil {
			return ""
		}
		return path
	}
	p := &bench.Podman{Dir: dir, Groups: cgroupParent(dir), Exe: found("podman"), Crun: found("crun")}
	if cfg.runsc != "" {
		// The check has read it. Podman takes what has no slash for a name in its own list.
		if abs, err := filepath.Abs(cfg.runsc); err == nil {
			p.Runsc = abs
		}
	}
	return p
}
