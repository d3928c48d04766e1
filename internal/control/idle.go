package control

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"hutch.dev/hutch"
)

// An idle timeout is held by this package, which sees every use; by the node, which it tells of
// use now and then; and, while neither runs, by the keeper, which the node tells. Those two keep a
// sandbox a little longer, for what they have not heard of yet. A command is told of before it
// begins, with the latest time at which it ends: nobody may take its sandbox for idle until then.
const (
	// useGrain is how far what the node was told may be from the truth.
	useGrain = time.Second
	// overrun is how long after its timeout and grace a command may end: a guest that does not
	// hold them is stopped from outside, which is given some seconds.
	overrun = 15 * time.Second
	// unbounded is how long what has no end of its own goes on: 100 years. Twice as long would
	// be past what an instant of the monotonic clock can be.
	unbounded = 100 * 365 * 24 * time.Hour
	// tellTimeout bounds one telling; it takes a fraction of a millisecond.
	tellTimeout = 5 * time.Second
)

// endsBy is when a command ends at the latest, by now's clock.
func endsBy(x hutch.Exec, now time.Time) time.Time {
	if x.Spec.Timeout <= 0 {
		return now.Add(unbounded)
	}
	return now.Add(max(0, x.CreatedAt.Add(x.Spec.Timeout+x.Spec.Grace+overrun).Sub(now)))
}

// tellingUse tells the nodes what is used until ctx ends. It asks no records, so that a disk that
// does not answer makes nobody idle.
func (c *Control) tellingUse(ctx context.Context) {
	t := time.NewTicker(c.cfg.UseEvery)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			for _, id := range c.activity.ids() {
				if release, _ := c.telling.take(id); release != nil {
					c.tellUse(ctx, id)
					release()
				}
			}
		}
	}
}

// tellUse tells the node how a sandbox is used, if it does not know. The caller has claimed it in
// c.telling, so that news of a command's end does not overtake those of the next one's start.
func (c *Control) tellUse(ctx context.Context, id hutch.SandboxID) {
	told := c.activity.toldOf(id)
	if told.IsZero() {
		told = c.nodes.LastUse(id)
	}
	at := c.activity.until(id, c.execs.busyUntil(id))
	if at.IsZero() || at.Sub(told).Abs() < useGrain {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, tellTimeout)
	defer cancel()
	err := c.nodes.Used(ctx, id, at)
	switch {
	case err == nil:
		c.activity.tell(id, at)
	case errors.Is(err, hutch.ErrSandboxGone), errors.Is(err, hutch.ErrNotFound): // ended, or told when the keeper is filled
	default:
		c.log.Warn("a sandbox's use is not known beyond this server", "sandbox", id, "op", "idle", "error", err)
	}
}

// promise makes sure, before a command begins whose place in the exec log is taken, that nobody takes its sandbox for idle while it
// runs, whatever becomes of this server. Commands that follow one another closely are told of once.
func (c *Control) promise(ctx context.Context, sb hutch.Sandbox) {
	if sb.IdleTimeout == 0 {
		return
	}
	for {
		release, taken := c.telling.take(sb.ID)
		if release == nil {
			select {
			case <-taken:
				continue
			case <-ctx.Done():
				return
			}
		}
		defer release()
		if c.activity.toldOf(sb.ID).Add(sb.IdleTimeout).Before(c.execs.busyUntil(sb.ID)) {
			c.tellUse(ctx, sb.ID)
		}
		return
	}
}

// restoreUse takes over what is known of a sandbox's use before this server came. What was to go
// on longer than until now is a command, of which the records or the guest tell.
func (c *Control) restoreUse(id hutch.SandboxID) {
	if at := c.nodes.LastUse(id); !at.IsZero() && !at.After(time.Now()) {
		c.activity.restore(id, at)
	}
}

// busyUntil says when the last command of a sandbox that runs, or is being started, ends at the
// latest; zero if there is none.
func (l *execLog) busyUntil(sb hutch.SandboxID) (t time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range l.entries {
		if e.rec.Sandbox == sb && e.rec.Result == nil {
			t = later(t, e.endsBy)
		}
	}
	return t
}

// ids names the sandboxes of whose use anything is known.
func (a *activity) ids() []hutch.SandboxID {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Collect(maps.Keys(a.m))
}

// until is when a sandbox was last used, or, if commands run in it, which end by busy at the
// latest, that; zero if nothing is known of it.
func (a *activity) until(id hutch.SandboxID, busy time.Time) time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	u := a.m[id]
	switch {
	case u == nil:
		return time.Time{}
	case u.running > 0 || !busy.IsZero():
		return later(busy, time.Now())
	}
	return u.last
}

func (a *activity) toldOf(id hutch.SandboxID) time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	if u := a.m[id]; u != nil {
		return u.told
	}
	return time.Time{}
}

// tell notes what the node was told.
func (a *activity) tell(id hutch.SandboxID, at time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if u := a.m[id]; u != nil {
		u.told = at
	}
}
