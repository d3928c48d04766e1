package control

import (
	"fmt"

	"hutch.dev/hutch"
)

// Memory is what a host has of it, in MiB.
type Memory struct {
	TotalMB     int
	AvailableMB int // what could be given out now without swapping
}

// host returns what there is to give out; zero if it is not counted.
func (a *admission) host() (Memory, error) {
	if a.cfg.HostMemory == nil {
		return Memory{}, nil
	}
	m, err := a.cfg.HostMemory()
	if err != nil {
		return m, fmt.Errorf("read the host's memory: %w", err)
	}
	return m, nil
}

// reserveMB is what sandboxes never get of a host's memory: an operator's figure, else a
// twentieth, and no less than the server, its companions and a login need.
func (c Config) reserveMB(host Memory) int {
	if c.MemoryReserveMB > 0 {
		return c.MemoryReserveMB
	}
	return max(minReserveMB, host.TotalMB/20)
}

// promiseMB is how much memory all sandboxes together may be allowed on the host.
func (c Config) promiseMB(host Memory) int {
	return int(float64(max(0, host.TotalMB-c.reserveMB(host))) * c.Overcommit)
}

// roomLocked says whether the limits leave room for sb.
func (a *admission) roomLocked(sb hutch.Sandbox, host Memory) error {
	if a.stopped {
		return errStopping()
	}
	if most := a.cfg.ProjectSandboxes; most > 0 && a.projects[sb.Project] >= most {
		e := hutch.Errorf(hutch.CodeRateLimited, "all %d sandboxes that a project may have are taken, those being started included: end one, or try again later", most)
		e.RetryAfter = retryAfter
		return e
	}
	if len(a.alive) >= a.cfg.MaxSandboxes {
		return noCapacity("all %d sandboxes this server allows are taken: end one, or try again later", a.cfg.MaxSandboxes)
	}
	if host == (Memory{}) {
		return nil
	}
	want, most := sb.Resources.MemoryMB, a.cfg.promiseMB(host)
	if want > most {
		return hutch.FieldErrorf("memory_mb", "this server has memory for sandboxes of at most %d MiB, not %d", most, want)
	}
	if a.memoryMB+want > most {
		return noCapacity("the sandboxes on this server may use %d of the %d MiB of memory that it gives out, and %d more is too much: ask for less, end one, or try again later", a.memoryMB, most, want)
	}
	if host.AvailableMB < a.cfg.reserveMB(host) {
		return noCapacity("this server is short of memory now (%d MiB are left): try again later", host.AvailableMB)
	}
	return nil
}
