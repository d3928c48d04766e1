package control

import (
	"context"
	"errors"
	"strconv"
	"time"

	"hutch.dev/hutch"
)

// SandboxEnded records that a sandbox is gone for a reason of its own. It is the node's
// way to tell; it may block for as long as a write takes.
func (c *Control) SandboxEnded(ctx context.Context, id hutch.SandboxID, _ hutch.Epoch, why hutch.SandboxEnd, detail string) {
	c.ended(ctx, id, why, detail)
}

// ended makes the record say that the sandbox is dead, and returns it. The first reason
// that is recorded stays. Whatever the record's epoch: the machine is gone.
func (c *Control) ended(ctx context.Context, id hutch.SandboxID, why hutch.SandboxEnd, detail string) hutch.Sandbox {
	ctx, cancel := finish(ctx, finishTimeout)
	defer cancel()
	// What its commands left must be on record before the sandbox is said to be dead.
	if err := c.execs.settleAll(ctx, id); err != nil {
		c.log.Error("records of commands are not settled", "sandbox", id, "op", "end", "error", err)
	}
	for {
		sb, err := c.store.Sandbox(ctx, id)
		if err != nil {
			c.log.Error("record end", "sandbox", id, "op", "end", "error", err)
			return sb
		}
		if sb.State == hutch.StateDead {
			return sb
		}
		now := time.Now()
		out, err := c.update(ctx, id, sb.Epoch, func(s *hutch.Sandbox) error {
			s.End(why, detail)
			s.EndedAt = now
			s.Env = nil // the tenant's secrets have done their service
			return nil
		}, event(sb, sandboxEnded, "reason", string(why), "detail", detail))
		if errors.Is(err, hutch.ErrStale) {
			continue
		}
		if err != nil {
			c.log.Error("record end", "sandbox", id, "op", "end", "error", err)
			return sb
		}
		c.activity.forget(id)
		c.admission.unreserve()
		c.metrics.SandboxEnded(why)
		c.log.Info("dead", "sandbox", id, "epoch", out.Epoch, "op", "end", "reason", string(why))
		return out
	}
}

// ExecEnded records how a command ended, and returns once that is durable.
func (c *Control) ExecEnded(ctx context.Context, id hutch.SandboxID, x hutch.ExecID, r hutch.ExecResult) error {
	rec, ok := c.execs.get(x)
	if !ok {
		var err error
		if rec, err = c.store.Exec(ctx, x); errors.Is(err, hutch.ErrNotFound) {
			// Its start was not written when an earlier process died; the guest has kept it.
			sb, serr := c.store.Sandbox(ctx, id)
			if serr != nil {
				return serr
			}
			rec = hutch.Exec{ID: x, Sandbox: id, Project: sb.Project, CreatedAt: r.StartedAt}
		} else if err != nil {
			return err
		}
	}
	if rec.Result != nil {
		return nil
	}
	rec.Result = &r
	c.metrics.ExecEnded(r.End, r.EndedAt.Sub(r.StartedAt))
	c.activity.add(id, -1)
	ev := hutch.Event{
		At: r.EndedAt, Project: rec.Project, Sandbox: id, Exec: x, Type: "exec.ended",
		Data: map[string]string{"end": string(r.End), "exit_code": strconv.Itoa(r.ExitCode)},
	}
	c.execs.put(rec, ev)
	if err := c.execs.settle(ctx, x); err != nil {
		return err
	}
	c.watchers.wake()
	return nil
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
