package httpapi

import (
	"maps"
	"math"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/api"
)

func showLifecycle(sb hutch.Sandbox, now time.Time) api.Lifecycle {
	var idle float64
	if !sb.ActiveAt.IsZero() {
		idle = max(0, math.Floor(now.Sub(sb.ActiveAt).Seconds()))
	}
	return api.Lifecycle{
		TTLSeconds: sb.TTL.Seconds(), IdleSeconds: idle,
		IdleTimeoutSeconds: sb.IdleTimeout.Seconds(), ExpiresAt: milli(sb.ExpiresAt),
		LeaseSeconds: sb.Lease.Seconds(), LeasedTo: milli(sb.LeasedTo),
	}
}

// milli is t as the API shows times: UTC, whole milliseconds.
func milli(t time.Time) time.Time { return t.UTC().Truncate(time.Millisecond) }

func showSandbox(sb hutch.Sandbox) api.Sandbox {
	meta := maps.Clone(sb.Metadata)
	maps.DeleteFunc(meta, func(k, _ string) bool { return hutch.SecretMetadata(k) })
	return api.Sandbox{
		ID: sb.ID, Template: sb.Template, Hostname: sb.Hostname,
		CPU: float64(sb.Resources.MilliCPU) / 1000, MemoryMB: sb.Resources.MemoryMB,
		DiskMB: sb.Resources.DiskMB, DiskTier: sb.Resources.DiskTier, Pids: sb.Resources.Pids, Profile: sb.Profile,
		Status: statusOf(sb), State: sb.State, Transition: sb.Transition,
		Metadata: meta, BuildID: sb.BuildID, Image: sb.Image,
		BootMS: sb.Boot.Milliseconds(), BootMode: sb.BootMode,
		TTLSeconds: sb.TTL.Seconds(), IdleTimeoutSeconds: sb.IdleTimeout.Seconds(),
		CreatedAt: sb.CreatedAt.UTC().Truncate(time.Second), StartedAt: milli(sb.StartedAt),
		ExpiresAt: milli(sb.ExpiresAt), ActiveAt: milli(sb.ActiveAt), EndedAt: milli(sb.EndedAt),
		LeaseSeconds: sb.Lease.Seconds(), LeasedTo: milli(sb.LeasedTo),
		Budget:    showBudget(sb.Budget),
		EndReason: sb.EndReason, EndDetail: sb.EndDetail,
		PrivatePorts: sb.Access.PrivatePorts, MaskHost: sb.Access.MaskHost,
	}
}

func statusOf(sb hutch.Sandbox) api.Status {
	switch {
	case sb.State == hutch.StateDead && sb.EndReason == hutch.EndStartFailed:
		return api.StatusFailed
	case sb.State == hutch.StateDead:
		return api.StatusDeleted
	case sb.Transition == hutch.Killing:
		return api.StatusStopping
	case sb.State == hutch.StateNew:
		return api.StatusCreating
	case sb.State == hutch.StatePaused:
		return api.StatusPaused
	}
	return api.StatusRunning
}
