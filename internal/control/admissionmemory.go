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

// projectRoom says whether the limits of a project leave it room for sb, beside what its sandboxes take.
func (c Config) projectRoom(has taken, sb hutch.Sandbox) error {
	want := takenBy(sb)
	for _, l := range []struct {
		most, has, want int // 0 = any number, if most is
		what, field     string
	}{
		{c.ProjectSandboxes, has.sandboxes, want.sandboxes, "sandboxes", ""},
		{c.ProjectMilliCPU, has.milliCPU, want.milliCPU, "thousandths of a CPU", "cpu"},
		{c.ProjectMemoryMB, has.memoryMB, want.memoryMB, "MiB of memory", "memory_mb"},
	} {
		switch {
		case l.most == 0 || l.has+l.want <= l.most:
		case l.want > l.most:
			return hutch.FieldErrorf(l.field, "all sandboxes of a project together may have %d %s here, and this one alone asks for %d", l.most, l.what, l.want)
		default:
			e := hutch.Errorf(hutch.CodeRateLimited, "the sandboxes of this project, those being started included, have %d of the %d %s that they may: end one, or try again later", l.has, l.most, l.what)
			e.RetryAfter = retryAfter
			return e
		}
	}
	return nil
}

// roomLocked says whether the limits leave room for sb.
func (a *admission) roomLocked(sb hutch.Sandbox, host Memory) error {
	if a.stopped {
		return errStopping()
	}
	if err := a.cfg.projectRoom(a.projects[sb.Project], sb); err != nil {
		return err
	}
	if len(a.alive) >= a.cfg.MaxSandboxes {
		if a.cfg.MaxSandboxes == 1 {
			return noCapacity("the one sandbox that this server allows is taken: end it, or try again later")
		}
		return noCapacity("all %d sandboxes that this server allows are taken: end one, or try again later", a.cfg.MaxSandboxes)
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
