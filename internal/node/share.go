package node

import (
	"time"

	"hutch.dev/hutch/internal/guestapi"
	"hutch.dev/hutch/internal/runtime"
)

// unknown is the CPU time of a sandbox that could not be read.
const unknown = time.Duration(-1)

// cpu is what the host has charged the sandbox for so far.
func (b *box) cpu() time.Duration {
	c, ok := b.sb.(runtime.Counted)
	if !ok {
		return unknown
	}
	t, err := c.CPU()
	if err != nil {
		return unknown
	}
	return t
}

// shareCPU makes of what the guest measured of a command that has ended its part of what the
// host charged the sandbox for while it ran; before is what that was when it began. What the
// sandbox's kernel and the guest agent used meanwhile is divided with it. Those that run side by
// side never get more together than the host charged from the first one's begin on.
func (b *box) shareCPU(st guestapi.ExecStatus, before time.Duration) time.Duration {
	if st.Result.CPU == 0 { // the host is not asked for nothing
		return 0
	}
	now, charged := b.cpu(), unknown
	if before != unknown && now != unknown {
		charged = now - before
	}
	part := share(st.Result.CPU, st.AllCPU, charged)
	if now == unknown {
		return part
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.shares.give(part, now)
}

// shares is what the commands of a sandbox got of its CPU time since the last moment in which
// none ran, so that they get no more than it had. Times are of the host's counter.
type shares struct {
	from  time.Duration // that moment
	given time.Duration // since then
	upTo  time.Duration // when something was given last
}

// begin notes that a command begins where none runs.
func (s *shares) begin(at time.Duration) {
	*s = shares{from: max(at, s.upTo), upTo: s.upTo}
}

// give returns as much of part as there is.
func (s *shares) give(part, now time.Duration) time.Duration {
	part = max(0, min(part, now-s.from-s.given))
	s.given += part
	s.upTo = max(s.upTo, now)
	return part
}

// share is the part of charged that own is of all. The two come from inside, where the clock
// of a thread goes on while it waits for one of the host's CPUs, of whichever command it is:
// their sizes mean little, and much their proportion. Where a figure is missing, it is what the
// guest said.
func share(own, all, charged time.Duration) time.Duration {
	switch {
	case charged == unknown:
		return own
	case all == 0:
		return min(own, charged)
	}
	return time.Duration(float64(charged) * (float64(own) / float64(max(all, own))))
}
