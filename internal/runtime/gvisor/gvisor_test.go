package gvisor

import (
	"testing"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/guestimage"
	"hutch.dev/hutch/internal/runtime"
	"hutch.dev/hutch/internal/runtime/runtimetest"
)

// The contract, with the real guest agent, on both disk tiers.
func TestContract(t *testing.T) {
	agent, _, err := guestimage.Write(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, tier := range tiers {
		t.Run(string(tier), func(t *testing.T) {
			runtimetest.Run(t, runtimetest.Factory{
				New:   func(t *testing.T) runtime.Runtime { return newRuntime(t) },
				Again: func(_ *testing.T, r runtime.Runtime) runtime.Runtime { return again(r.(*Runtime).cfg.StateDir) },
				Spec: func(_ *testing.T, id hutch.SandboxID) runtime.Spec {
					spec := newSpec(tier)
					spec.ID, spec.Guest = id, agent
					return spec
				},
				Commands: runtimetest.Shell,
			})
		})
	}
}
