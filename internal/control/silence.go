package control

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"hutch.dev/hutch"
)

// waitPatience is for how long after a sandbox was said to be silent those who wait for one of
// its commands are kept waiting. They wait for the command, not for an answer, and a sandbox that
// runs out of memory may well be still for some seconds before it says how that went. Those who
// follow a command's output are sent away by the node at the same time.
const waitPatience = 6500 * time.Millisecond

// silences knows the sandboxes whose guests do not answer. The zero value is ready.
type silences struct {
	mu sync.Mutex
	m  map[hutch.SandboxID]*silence
}

type silence struct {
	given chan struct{} // closed when waiting is given up
	timer *time.Timer   // nil while it answers
	times int           // that it fell silent: a timer that fires late is of an earlier one
	refs  int           // of those who wait
}

// begin notes that a guest fell silent.
func (s *silences) begin(id hutch.SandboxID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	x := s.atLocked(id)
	if x.timer == nil {
		x.times++
		times := x.times
		x.timer = time.AfterFunc(waitPatience, func() { s.giveUp(id, x, times) })
	}
}

// end notes that it answers again, or that nobody needs to know any more.
func (s *silences) end(id hutch.SandboxID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	x := s.m[id]
	if x == nil {
		return
	}
	if x.timer != nil {
		x.timer.Stop()
		x.timer = nil
	}
	select {
	case <-x.given:
		x.given = make(chan struct{})
	default:
	}
	s.dropLocked(id, x)
}

// giveUp ends the waiting for a guest that fell silent for the given time, unless it has
// answered since.
func (s *silences) giveUp(id hutch.SandboxID, x *silence, times int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.m[id] == x && x.timer != nil && x.times == times {
		close(x.given)
	}
}

// wait returns a channel that is closed when waiting for the sandbox is given up; leave must
// be called.
func (s *silences) wait(id hutch.SandboxID) (given <-chan struct{}, leave func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	x := s.atLocked(id)
	x.refs++
	return x.given, sync.OnceFunc(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		x.refs--
		s.dropLocked(id, x)
	})
}

func (s *silences) atLocked(id hutch.SandboxID) *silence {
	x := s.m[id]
	if x == nil {
		if s.m == nil {
			s.m = map[hutch.SandboxID]*silence{}
		}
		x = &silence{given: make(chan struct{})}
		s.m[id] = x
	}
	return x
}

func (s *silences) dropLocked(id hutch.SandboxID, x *silence) {
	if x.refs == 0 && x.timer == nil && s.m[id] == x {
		delete(s.m, id)
	}
}

// SandboxSilent records that a running sandbox's guest does not answer any more, or does
// again. It is the node's way to tell; what the node does about it is its own.
func (c *Control) SandboxSilent(ctx context.Context, id hutch.SandboxID, e hutch.Epoch, silent bool) {
	what := "sandbox.responsive"
	if silent {
		what = "sandbox.unresponsive"
		c.silences.begin(id)
	} else {
		c.silences.end(id)
	}
	if err := c.recordSilence(ctx, id, what); err != nil {
		c.log.Error("record", "sandbox", id, "epoch", e, "op", "heartbeat", "event", what, "error", err)
	}
}

func (c *Control) recordSilence(ctx context.Context, id hutch.SandboxID, what string) error {
	ctx, cancel := finish(ctx, finishTimeout)
	defer cancel()
	sb, err := c.loadAny(ctx, id)
	if errors.Is(err, hutch.ErrNotFound) { // its start is not on record yet, and whoever waits for it hears
		c.silences.end(id)
		return nil
	}
	if err == nil && sb.State != hutch.StateDead {
		_, err = c.mutate(ctx, sb, func(s *hutch.Sandbox) error {
			if s.State == hutch.StateDead {
				return errAlready
			}
			return nil
		}, event(sb, what))
	}
	if err == nil && sb.State == hutch.StateDead || errors.Is(err, errAlready) {
		c.silences.end(id) // its last word has been said
		return nil
	}
	if err != nil {
		return fmt.Errorf("record %s: %w", what, err)
	}
	return nil
}

// errSilent is what who waits for a command of a silent sandbox is told.
func errSilent(id hutch.SandboxID, x hutch.ExecID) error {
	return hutch.Errorf(hutch.CodeGuestUnresponsive, "sandbox %s does not answer: wait for command %s again later, or kill the sandbox", id, x)
}
