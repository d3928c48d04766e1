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

// enforce kills what is overdue and sets the alarm for what comes next.
func (k *Keeper) enforce() {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := time.Now().UnixNano()
	for id, e := range k.entries {
		if e.exitedAt == 0 && k.dueLocked(e) <= now {
			k.killLocked(id, e, ReasonDeadline)
			failpoint.At(failpoint.KeeperKilled)
		}
	}
	k.rearmLocked()
}

// dueLocked is the instant at which the keeper has to act on a living entry.
func (k *Keeper) dueLocked(e *entry) int64 {
	switch {
	case e.triedAt != 0:
		return e.triedAt + int64(killRetry)
	case len(k.attached) > 0:
		return e.deadline + int64(Grace)
	}
	return e.deadline
}

func (k *Keeper) rearmLocked() {
	var next int64
	for _, e := range k.entries {
		if e.exitedAt != 0 {
			continue
		}
		if due := k.dueLocked(e); next == 0 || due < next {
			next = due
		}
	}
	if err := k.alarm.set(next); err != nil && !k.closed {
		k.log.Error("timer not set: deadlines are not kept", "error", err)
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
