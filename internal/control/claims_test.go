package control

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"hutch.dev/hutch"
)

func TestClaimsAreHeldByOne(t *testing.T) {
	var c claims[string]
	var held atomic.Int32
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			for {
				release, taken := c.take("a")
				if release == nil {
					<-taken
					continue
				}
				if held.Add(1) != 1 {
					t.Error("two hold one claim")
				}
				held.Add(-1)
				release()
				return
			}
		})
	}
	wg.Wait()
	a, _ := c.take("a")
	b, _ := c.take("b")
	if a == nil || b == nil {
		t.Error("claims on different ids are in each other's way")
	}
}

func TestOwedKeepsTheFirst(t *testing.T) {
	var o owed[owedEnd]
	o.done("i1") // owing nothing
	o.add("i1", owedEnd{1, hutch.EndCrashed, "first"})
	o.add("i1", owedEnd{2, hutch.EndExpired, "second"})
	all := o.all()
	if len(all) != 1 || all["i1"].why != hutch.EndCrashed {
		t.Errorf("owed: %v", all)
	}
	o.done("i1")
	if len(all) != 1 || len(o.all()) != 0 {
		t.Errorf("owed after it was done: %v", o.all())
	}
}

func TestActivity(t *testing.T) {
	a := newActivity()
	now := time.Now()
	if d := a.idle("i1", now); d != 0 {
		t.Errorf("never seen: idle for %s", d)
	}
	a.touch("i1")
	if d := a.idle("i1", time.Now().Add(time.Minute)); d < time.Minute {
		t.Errorf("idle for %s, want a minute", d)
	}
	a.add("i1", +1)
	a.add("i1", +1)
	a.add("i1", -1)
	if d := a.idle("i1", time.Now().Add(time.Hour)); d != 0 {
		t.Errorf("with a running command: idle for %s", d)
	}
	a.add("i1", -1)
	a.add("i1", -1) // one end too many is not a debt
	a.add("i1", +1)
	if d := a.idle("i1", time.Now().Add(time.Hour)); d != 0 {
		t.Errorf("with a running command, after one end too many: idle for %s", d)
	}
	if a.lastUse("i1").Before(now) || !a.lastUse("i2").IsZero() {
		t.Errorf("last use: %v, %v", a.lastUse("i1"), a.lastUse("i2"))
	}
	a.forget("i1")
	if !a.lastUse("i1").IsZero() {
		t.Error("a sandbox that was forgotten has a last use")
	}
}

func TestDue(t *testing.T) {
	now := time.Now()
	c := testControl()
	c.activity = newActivity()
	c.activity.touch("idle")
	c.activity.add("busy", +1)
	later := now.Add(time.Hour)
	for name, tt := range map[string]struct {
		sb   hutch.Sandbox
		at   time.Time
		want hutch.SandboxEnd
	}{
		"living":        {hutch.Sandbox{ID: "idle", State: hutch.StateRunning, ExpiresAt: later}, now, ""},
		"expired":       {hutch.Sandbox{State: hutch.StateRunning, ExpiresAt: now}, now, hutch.EndExpired},
		"expired new":   {hutch.Sandbox{State: hutch.StateNew, ExpiresAt: now}, now, hutch.EndExpired},
		"kill unended":  {hutch.Sandbox{State: hutch.StateRunning, Transition: hutch.Killing, ExpiresAt: now}, now, hutch.EndKilled},
		"idle":          {hutch.Sandbox{ID: "idle", State: hutch.StateRunning, IdleTimeout: time.Minute, ExpiresAt: later.Add(1)}, later, hutch.EndIdle},
		"idle, paused":  {hutch.Sandbox{ID: "idle", State: hutch.StatePaused, IdleTimeout: time.Minute, ExpiresAt: later.Add(1)}, later, ""},
		"silent, busy":  {hutch.Sandbox{ID: "busy", State: hutch.StateRunning, IdleTimeout: time.Minute, ExpiresAt: later.Add(1)}, later, ""},
		"no idle limit": {hutch.Sandbox{ID: "idle", State: hutch.StateRunning, ExpiresAt: later.Add(1)}, later, ""},
	} {
		if got, _ := c.due(tt.sb, tt.at); got != tt.want {
			t.Errorf("%s: due for %q, want %q", name, got, tt.want)
		}
	}
}

// noting is nodes that note whether a sandbox is claimed while they kill it, which fails.
type noting struct {
	Nodes

	c       *Control
	claimed []hutch.SandboxID
}

func (h *noting) Usage(context.Context, hutch.SandboxID, hutch.Epoch) (hutch.Sample, time.Duration, error) {
	return hutch.Sample{}, 0, hutch.ErrSandboxGone
}

func (h *noting) KillSandbox(context.Context, hutch.SandboxID, hutch.Epoch) error {
	h.claimed = h.c.swept.ids()
	return errDisk
}

// A kill that cannot be recorded leaves a record that says the sandbox lives, and a host without
// it: until the end is on record, or owed, nobody may take it for one that was lost.
func TestKillThatIsNotOnRecordIsClaimed(t *testing.T) {
	c := &Control{log: slog.New(slog.DiscardHandler), ledger: newLedger()}
	h := &noting{c: c}
	c.Attach(h)
	sb := hutch.Sandbox{ID: "a", State: hutch.StateRunning, Epoch: 3}
	for range 2 {
		if out, err := c.killUnrecorded(t.Context(), sb, errDisk); !errors.Is(err, errDisk) || out.ID != "a" {
			t.Errorf("got %+v, %v", out, err)
		}
	}
	if len(h.claimed) != 1 || h.claimed[0] != "a" {
		t.Errorf("claimed meanwhile: %v", h.claimed)
	}
	if ids := c.swept.ids(); len(ids) != 0 {
		t.Errorf("claimed afterwards: %v", ids)
	}
	if owed := c.owedEnds.all(); owed["a"].why != hutch.EndKilled {
		t.Errorf("owed: %+v", owed)
	}
}
