package keeper

import (
	"strings"
	"testing"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/x/pidfd"
)

func TestIdleKillsWhenNobodyIsAttached(t *testing.T) {
	c, _ := startKeeper(t)
	now := time.Now()
	hour := now.Add(time.Hour)
	living := map[hutch.SandboxID]hutch.Lifetime{
		"used":    {ExpiresAt: hour, UsedAt: now, Idle: time.Hour},
		"busy":    {ExpiresAt: hour, UsedAt: now.Add(100 * 365 * 24 * time.Hour), Idle: 1}, // with a command that has no timeout
		"may":     {ExpiresAt: hour, UsedAt: now.Add(-time.Hour)},
		"unknown": {ExpiresAt: hour, Idle: 1},
	}
	for id, l := range living {
		if err := c.Put(t.Context(), id, 1, sleepHandles(t), l); err != nil {
			t.Fatal(err)
		}
	}
	h := sleepHandles(t)
	const left = 150 * time.Millisecond
	if err := c.Put(t.Context(), "idle", 1, h, hutch.Lifetime{ExpiresAt: hour, UsedAt: now.Add(-time.Minute), Idle: time.Minute + left}); err != nil {
		t.Fatal(err)
	}
	waitExit(t, h.Procs[0])
	if took := time.Since(now); took < left {
		t.Errorf("killed %v early", left-took)
	}
	if k := waitNote(t, c, "idle"); k.Reason != ReasonIdle || k.End() != hutch.EndIdle || k.KilledAt.IsZero() {
		t.Errorf("note: %+v", k.Info)
	}
	for id, l := range living {
		k, err := c.Get(t.Context(), id)
		if err != nil || !k.KilledAt.IsZero() || !pidfd.Alive(k.Handles.Procs[0]) {
			t.Errorf("%s: %+v, %v", id, k.Info, err)
		}
		closeFiles(k.Handles.Procs)
		// On its way twice, an instant gets later by what that takes.
		if k.UsedAt.IsZero() != l.UsedAt.IsZero() || k.UsedAt.Before(l.UsedAt) || k.UsedAt.Sub(l.UsedAt) > time.Since(now) {
			t.Errorf("%s: used at %v, and the keeper says %v", id, l.UsedAt, k.UsedAt)
		}
	}
	// What is told later holds, sooner or later.
	moved := map[hutch.SandboxID]hutch.Lifetime{
		"used": {ExpiresAt: hour, UsedAt: now, Idle: 1},
		"busy": {ExpiresAt: hour, UsedAt: now, Idle: 1},
		"may":  {ExpiresAt: hour, UsedAt: now, Idle: time.Hour},
	}
	for id, l := range moved {
		if err := c.SetLifetime(t.Context(), id, 1, l); err != nil {
			t.Fatal(err)
		}
	}
	waitNote(t, c, "used")
	waitNote(t, c, "busy")
	if k, err := c.Get(t.Context(), "may"); err != nil || !k.KilledAt.IsZero() {
		t.Errorf("one with time left: %+v, %v", k.Info, err)
	} else {
		closeFiles(k.Handles.Procs)
	}
}

// What is due when: what is counted by the wall clock and what is not, and who is left time.
func TestOverdue(t *testing.T) {
	now := time.Now()
	hour, ago := now.Add(time.Hour).UnixNano(), now.Add(-time.Minute)
	for name, tt := range map[string]struct {
		e        entry
		attached bool
		want     string
	}{
		"neither":                     {e: entry{deadline: hour, usedAt: now, idle: time.Second}},
		"past its deadline":           {e: entry{deadline: now.UnixNano(), usedAt: now, idle: time.Second}, want: ReasonDeadline},
		"idle":                        {e: entry{deadline: hour, usedAt: ago, idle: time.Minute}, want: ReasonIdle},
		"idle, no timeout":            {e: entry{deadline: hour, usedAt: ago}},
		"idle, not known since when":  {e: entry{deadline: hour, idle: 1}},
		"both":                        {e: entry{deadline: now.UnixNano(), usedAt: ago, idle: time.Minute}, want: ReasonDeadline},
		"idle, an agent is there":     {e: entry{deadline: hour, usedAt: ago, idle: time.Minute}, attached: true},
		"idle for long, and an agent": {e: entry{deadline: hour, usedAt: ago, idle: time.Minute - Grace}, attached: true, want: ReasonIdle},
		"has exited":                  {e: entry{deadline: 1, usedAt: ago, idle: 1, exitedAt: 1}},
		"killed just now":             {e: entry{deadline: hour, usedAt: ago, idle: 1, killedAt: 1, triedAt: now.UnixNano()}},
		"killed in vain":              {e: entry{deadline: hour, usedAt: ago, idle: 1, killedAt: 1, triedAt: now.Add(-killRetry).UnixNano()}, want: ReasonDeadline},
	} {
		k := &Keeper{attached: map[uint64]bool{}}
		if tt.attached {
			k.attached[1] = true
		}
		if got := k.overdueLocked(&tt.e, now); got != tt.want {
			t.Errorf("%s: overdue for %q, want %q", name, got, tt.want)
		}
	}
}

// Neither a step of the wall clock nor a suspended host is idleness.
func TestIdlenessIsMonotonic(t *testing.T) {
	var e entry
	far := time.Now().Add(time.Hour)
	e.live(far.UnixNano(), useOf(hutch.Lifetime{ExpiresAt: far, UsedAt: time.Now(), Idle: time.Minute}))
	if !strings.Contains(e.usedAt.String(), " m=") {
		t.Errorf("%v is an instant of the wall clock alone", e.usedAt)
	}
}
