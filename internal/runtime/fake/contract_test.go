package fake_test

import (
	"testing"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/runtime"
	"hutch.dev/hutch/internal/runtime/fake"
	"hutch.dev/hutch/internal/runtime/runtimetest"
)

func TestContract(t *testing.T) {
	hosts := map[runtime.Runtime]*fake.Host{}
	commands := runtimetest.Shell
	commands.Tick = "tick 20"
	runtimetest.Run(t, runtimetest.Factory{
		New: func(t *testing.T) runtime.Runtime {
			h := fake.NewHost()
			t.Cleanup(h.Close)
			r := fake.New(h)
			hosts[r] = h
			return r
		},
		Again:    func(_ *testing.T, r runtime.Runtime) runtime.Runtime { return fake.New(hosts[r]) },
		Spec:     func(_ *testing.T, id hutch.SandboxID) runtime.Spec { return spec(id) },
		Commands: commands,
		Patience: 20 * time.Second,
	})
}

func spec(id hutch.SandboxID) runtime.Spec {
	return runtime.Spec{
		ID: id, Hostname: "box",
		Resources: hutch.Resources{MilliCPU: 1000, MemoryMB: 512, DiskMB: 1024, DiskTier: hutch.TierDisk, Pids: 100},
	}
}
