package control

import "hutch.dev/hutch"

// spare takes a start, and a place beside the living, for a machine that nobody has asked for
// yet. There is none while anything is being started or waits for it, nor where the limits,
// prepared machines counted in full, leave no room. Leave says that the start is over; the place
// is given back by unspare, or becomes the sandbox's with reserve.
func (a *admission) spare(sb hutch.Sandbox) (leave func(), ok bool) {
	host, err := a.host()
	if err != nil {
		return nil, false
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.stopped || a.free < a.cfg.Creates || a.queue.n > 0 || a.overLimitsLocked(1, sb.Resources.MemoryMB, host) {
		return nil, false
	}
	a.free--
	a.spares[sb.ID] = sb.Resources.MemoryMB
	a.spareMB += sb.Resources.MemoryMB
	return a.leave, true
}

// unspare gives the place of a prepared machine back.
func (a *admission) unspare(id hutch.SandboxID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.unspareLocked(id)
}

func (a *admission) unspareLocked(id hutch.SandboxID) {
	a.spareMB -= a.spares[id]
	delete(a.spares, id)
}

// crowded reports whether prepared machines take what sandboxes need: a create never waits for
// one of them, and is never refused for one.
func (a *admission) crowded() bool {
	a.mu.Lock()
	none := len(a.spares) == 0
	a.mu.Unlock()
	if none {
		return false
	}
	host, err := a.host()
	if err != nil {
		return false
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.spares) > 0 && a.overLimitsLocked(0, 0, host)
}

// overLimitsLocked says whether so many more, with so much memory, are too many beside all
// that lives and all that is prepared.
func (a *admission) overLimitsLocked(more, memoryMB int, host Memory) bool {
	switch {
	case len(a.alive)+len(a.spares)+more > a.cfg.MaxSandboxes:
		return true
	case host == (Memory{}):
		return false
	}
	return a.memoryMB+a.spareMB+memoryMB > a.cfg.promiseMB(host) || host.AvailableMB < a.cfg.reserveMB(host)
}
