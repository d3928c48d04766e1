package keeper

import (
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/x/failpoint"
	"hutch.dev/hutch/internal/x/fdpass"
	"hutch.dev/hutch/internal/x/pidfd"
)

// never is how long the timer of idle timeouts is set to while there is none: it is made
// anew by every change.
const never = time.Duration(1<<63 - 1)

// enforce kills what is overdue and sets the alarms for what comes next.
func (k *Keeper) enforce() {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := time.Now()
	for id, e := range k.entries {
		if reason := k.overdueLocked(e, now); reason != "" {
			k.killLocked(id, e, reason)
			failpoint.At(failpoint.KeeperKilled)
		}
	}
	k.rearmLocked()
}

// overdueLocked says why the keeper has to kill an entry now; empty if it does not.
func (k *Keeper) overdueLocked(e *entry, now time.Time) string {
	due, idle := k.dueLocked(e)
	switch {
	case due != 0 && due <= now.UnixNano():
		return ReasonDeadline // or it is a kill that is tried again, whose reason stays
	case !idle.IsZero() && !now.Before(idle):
		return ReasonIdle
	}
	return ""
}

// dueLocked is when the keeper has to act on an entry: by the wall clock in Unix
// nanoseconds, and by the monotonic clock. Either is zero if it never has to.
func (k *Keeper) dueLocked(e *entry) (due int64, idle time.Time) {
	switch {
	case e.exitedAt != 0:
		return 0, time.Time{}
	case e.triedAt != 0:
		return e.triedAt + int64(killRetry), time.Time{}
	}
	grace := time.Duration(0)
	if len(k.attached) > 0 {
		grace = Grace
	}
	idle = hutch.Lifetime{UsedAt: e.usedAt, Idle: e.idle}.IdlesAt()
	if !idle.IsZero() {
		idle = idle.Add(grace)
	}
	return e.deadline + int64(grace), idle
}

func (k *Keeper) rearmLocked() {
	var next int64
	var nextIdle time.Time
	for _, e := range k.entries {
		due, idle := k.dueLocked(e)
		if due != 0 && (next == 0 || due < next) {
			next = due
		}
		if !idle.IsZero() && (nextIdle.IsZero() || idle.Before(nextIdle)) {
			nextIdle = idle
		}
	}
	if err := k.alarm.set(next); err != nil && !k.closed {
		k.log.Error("timer not set: deadlines are not kept", "error", err)
	}
	if nextIdle.IsZero() {
		k.idle.Reset(never)
	} else {
		k.idle.Reset(time.Until(nextIdle))
	}
}

// killLocked kills every process of a living entry.
func (k *Keeper) killLocked(id hutch.SandboxID, e *entry, reason string) {
	e.triedAt = time.Now().UnixNano()
	if e.killedAt == 0 {
		e.killedAt, e.reason = e.triedAt, reason
		k.log.Info("killing sandbox", "sandbox", id, "epoch", e.epoch, "reason", reason, "attached", len(k.attached) > 0)
	}
	for _, f := range e.files {
		if f.proc == nil {
			continue
		}
		if err := pidfd.Signal(f.proc, unix.SIGKILL); err != nil && !errors.Is(err, os.ErrProcessDone) {
			k.log.Error("process not killed", "sandbox", id, "file", f.label, "error", err)
		}
	}
}

// attach leaves deadlines to the node agent of session for as long as that lasts.
func (k *Keeper) attach(session uint64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.attached[session] = true
	k.rearmLocked()
}

// Closed ends what attach began.
func (k *Keeper) Closed(s fdpass.Session) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.attached[s.ID] {
		return
	}
	delete(k.attached, s.ID)
	k.log.Info("node agent has gone", "sandboxes", len(k.entries), "attached", len(k.attached))
	k.rearmLocked()
}

// drain makes the keeper leave once no sandbox lives, at once if none does; kill ends
// them first. What is put meanwhile is kept, and waited for, like the rest.
func (k *Keeper) drain(kill bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if kill {
		for id, e := range k.entries {
			if e.exitedAt == 0 {
				k.killLocked(id, e, ReasonStop)
			}
		}
		k.rearmLocked()
	}
	k.draining = true
	k.log.Info("stopping once the last sandbox is gone", "sandboxes", k.livingLocked())
	k.checkDrainedLocked()
}

func (k *Keeper) livingLocked() int {
	n := 0
	for _, e := range k.entries {
		if e.exitedAt == 0 {
			n++
		}
	}
	return n
}

func (k *Keeper) checkDrainedLocked() {
	if !k.draining || k.livingLocked() > 0 {
		return
	}
	select {
	case <-k.drained:
	default:
		close(k.drained)
	}
}
