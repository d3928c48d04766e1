package control

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/x/failpoint"
)

// SandboxEnded records that a sandbox is gone for a reason of its own. It is the node's
// way to tell; it may block for as long as a write takes. What can't be recorded now is
// recorded by a sweep.
func (c *Control) SandboxEnded(ctx context.Context, id hutch.SandboxID, e hutch.Epoch, why hutch.SandboxEnd, detail string) {
	_, err := c.ended(ctx, id, why, detail)
	if errors.Is(err, hutch.ErrNotFound) {
		return // it has not come to be recorded, which is for its create to deal with
	}
	if err != nil {
		c.log.Error("record end", "sandbox", id, "op", "end", "reason", string(why), "error", err)
		c.owedEnds.add(id, owedEnd{e, why, detail})
	}
}

// ended makes the record say that the sandbox is dead, and returns it. The first reason
// that is recorded stays. Whatever the record's epoch: the machine is gone.
func (c *Control) ended(ctx context.Context, id hutch.SandboxID, why hutch.SandboxEnd, detail string) (hutch.Sandbox, error) {
	ctx, cancel := finish(ctx, finishTimeout)
	defer cancel()
	// What its commands left must be on record before the sandbox is said to be dead.
	if err := c.endExecs(ctx, id, why, detail); err != nil {
		return hutch.Sandbox{}, err
	}
	failpoint.At(failpoint.EndExecs)
	// Before anyone can read that it is dead: who reads that may rely on its place.
	c.admission.unreserve(id)
	for end := time.Now(); ; {
		sb, err := c.store.Sandbox(ctx, id)
		if err != nil {
			return sb, fmt.Errorf("read sandbox %s: %w", id, err)
		}
		if sb.State == hutch.StateDead {
			return sb, nil
		}
		// It is charged to its end, on record before that is.
		end = c.settleUsage(ctx, sb, end)
		failpoint.At(failpoint.EndCharged)
		if sb.Transition == hutch.Killing && why == hutch.EndStartFailed {
			why, detail = hutch.EndKilled, "" // which is why it did not start
		}
		out, err := c.update(ctx, id, sb.Epoch, func(s *hutch.Sandbox) error {
			s.End(why, detail)
			s.EndedAt = end
			s.ActiveAt = later(s.ActiveAt, c.activity.lastUse(id))
			s.Env = nil // the tenant's secrets have done their service
			return nil
		}, event(sb, sandboxEnded, "reason", string(why), "detail", detail))
		if errors.Is(err, hutch.ErrStale) {
			continue
		}
		if err != nil {
			return sb, fmt.Errorf("record the end of %s: %w", id, err)
		}
		failpoint.At(failpoint.EndRecorded)
		c.activity.forget(id)
		c.strays.forget(id)
		c.silences.end(id)
		c.execs.forget(id)
		c.metrics.SandboxEnded(why)
		c.log.Info("dead", "sandbox", id, "epoch", out.Epoch, "op", "end", "reason", string(why))
		return out, nil
	}
}

// endExecs gives every command of a sandbox that is gone its end on record. The node has
// reported those it watched; this is for those it did not come to watch.
func (c *Control) endExecs(ctx context.Context, id hutch.SandboxID, why hutch.SandboxEnd, detail string) error {
	running, err := c.runningExecs(ctx, id)
	if err != nil {
		return err
	}
	for _, x := range append(running, c.execs.running(id)...) {
		if err := c.ExecEnded(ctx, id, x.ID, hutch.EndedUnder(why, detail, x.CreatedAt)); err != nil && !errors.Is(err, hutch.ErrNotFound) {
			return err
		}
	}
	return c.execs.settleAll(ctx, id)
}

// ExecEnded records how a command ended, and returns once that is durable.
func (c *Control) ExecEnded(ctx context.Context, id hutch.SandboxID, x hutch.ExecID, r hutch.ExecResult) error {
	ended := func(rec hutch.Exec) hutch.Event {
		return hutch.Event{
			At: r.EndedAt, Project: rec.Project, Sandbox: id, Exec: x, Type: "exec.ended",
			Data: map[string]string{"end": string(r.End), "exit_code": strconv.Itoa(r.ExitCode)},
		}
	}
	if err := c.checkOwner(ctx, id, x); err != nil {
		return err
	}
	first, err := c.execs.finish(ctx, x, r, ended)
	for errors.Is(err, hutch.ErrNotFound) {
		known, rerr := c.recallExec(ctx, hutch.Exec{ID: x, Sandbox: id, CreatedAt: r.StartedAt})
		if rerr != nil || known {
			return rerr
		}
		first, err = c.execs.finish(ctx, x, r, ended)
	}
	if err != nil {
		return err
	}
	if first {
		c.activity.release(id)
	}
	return c.execs.settle(ctx, x)
}

// ExecFound takes a command that a sandbox which was taken over knows onto record, if
// an earlier process died before it could.
func (c *Control) ExecFound(ctx context.Context, id hutch.SandboxID, x hutch.ExecID, pid int, at time.Time) error {
	if err := c.checkOwner(ctx, id, x); err != nil {
		return err
	}
	for {
		if _, known := c.execs.get(x); known {
			return nil
		}
		// One whose start is not decided yet is waited for: if it comes to nothing there, this
		// is the news that it runs all the same.
		ended, err := c.recallExec(ctx, hutch.Exec{ID: x, Sandbox: id, PID: pid, CreatedAt: at})
		if err != nil || ended {
			return err
		}
	}
}

// checkOwner refuses news of a command that comes from another sandbox than its own: a guest
// can name any id it has heard of.
func (c *Control) checkOwner(ctx context.Context, id hutch.SandboxID, x hutch.ExecID) error {
	rec, ok := c.execs.get(x)
	if !ok {
		var err error
		if rec, err = c.store.Exec(ctx, x); errors.Is(err, hutch.ErrNotFound) {
			return nil
		} else if err != nil {
			return fmt.Errorf("read command %s: %w", x, err)
		}
	}
	if rec.Sandbox != id {
		return hutch.Errorf(hutch.CodeNotFound, "command %s is not one of sandbox %s", x, id)
	}
	return nil
}

// maxStrays is how many commands that are not on record a sandbox's guest can bring onto it
// while this server runs. Honest ones are those whose start was not written yet when an
// earlier process died, which is a matter of milliseconds.
const maxStrays = 64

// strays counts them, and knows those whose start was asked for and not answered.
type strays struct {
	mu   sync.Mutex
	n    map[hutch.SandboxID]int
	asks map[hutch.SandboxID]map[hutch.ExecID]hutch.Exec
}

// expect notes a command whose start was not answered.
func (s *strays) expect(x hutch.Exec) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.asks == nil {
		s.asks = map[hutch.SandboxID]map[hutch.ExecID]hutch.Exec{}
	}
	m := s.asks[x.Sandbox]
	if m == nil {
		m = map[hutch.ExecID]hutch.Exec{}
		s.asks[x.Sandbox] = m
	}
	if len(m) < maxStrays {
		m[x.ID] = x
	}
}

// expected says whether x is such a command, and completes what is known of it.
func (s *strays) expected(x *hutch.Exec) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	asked, ok := s.asks[x.Sandbox][x.ID]
	if !ok {
		return false
	}
	delete(s.asks[x.Sandbox], x.ID)
	asked.PID, asked.CreatedAt = x.PID, x.CreatedAt
	*x = asked
	return true
}

// admit says whether the sandbox may bring another one.
func (s *strays) admit(id hutch.SandboxID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.n == nil {
		s.n = map[hutch.SandboxID]int{}
	}
	s.n[id]++
	return s.n[id] <= maxStrays
}

func (s *strays) forget(id hutch.SandboxID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.n, id)
	delete(s.asks, id)
}

// recallExec takes a command that the exec log does not know into it, unless its end is
// on record already. If it is not on record at all, x is what is known of it: of a
// command, the guest alone knows no more.
func (c *Control) recallExec(ctx context.Context, x hutch.Exec) (ended bool, err error) {
	// The place first, then the look at the record: the other way round its end could be
	// stored in between, and be overwritten.
	first, decided := c.execs.begin(x)
	if !first {
		select {
		case <-decided:
			return false, nil
		case <-ctx.Done():
			return false, context.Cause(ctx)
		}
	}
	rec, err := c.store.Exec(ctx, x.ID)
	switch {
	case err == nil && rec.Sandbox != x.Sandbox:
		c.execs.abandon(x.ID)
		return false, hutch.Errorf(hutch.CodeNotFound, "command %s is not one of sandbox %s", x.ID, x.Sandbox)
	case err == nil && rec.Result == nil:
		c.execs.resume(rec)
	case errors.Is(err, hutch.ErrNotFound) && c.strays.expected(&x):
		c.execs.resume(x, started(x))
	case errors.Is(err, hutch.ErrNotFound) && !c.strays.admit(x.Sandbox):
		c.execs.abandon(x.ID)
		return false, hutch.Errorf(hutch.CodeNotFound, "sandbox %s names too many commands that nobody started", x.Sandbox)
	case errors.Is(err, hutch.ErrNotFound):
		var sb hutch.Sandbox
		if sb, err = c.store.Sandbox(ctx, x.Sandbox); err != nil {
			c.execs.abandon(x.ID)
			return false, fmt.Errorf("read sandbox %s: %w", x.Sandbox, err)
		}
		x.Project = sb.Project
		c.execs.resume(x, started(x))
	default:
		c.execs.abandon(x.ID)
		if err != nil {
			err = fmt.Errorf("read command %s: %w", x.ID, err)
		}
		return err == nil, err
	}
	c.activity.add(x.Sandbox, +1)
	return false, nil
}

// started is the event of a command's start.
func started(x hutch.Exec) hutch.Event {
	return hutch.Event{At: x.CreatedAt, Project: x.Project, Sandbox: x.Sandbox, Exec: x.ID, Type: execStarted}
}

// event makes an event of a sandbox from pairs of keys and values.
func event(sb hutch.Sandbox, typ string, pairs ...string) hutch.Event {
	ev := hutch.Event{At: time.Now(), Project: sb.Project, Sandbox: sb.ID, Type: typ}
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i+1] == "" {
			continue
		}
		if ev.Data == nil {
			ev.Data = map[string]string{}
		}
		ev.Data[pairs[i]] = pairs[i+1]
	}
	return ev
}
