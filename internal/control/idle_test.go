package control

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"hutch.dev/hutch"
)

// listener is a node that notes what it is told of use.
type listener struct {
	Nodes

	told []time.Time
	last time.Time // what an earlier one was told
	err  error
}

func (n *listener) Used(_ context.Context, _ hutch.SandboxID, at time.Time) error {
	n.told = append(n.told, at)
	return n.err
}

func (n *listener) LastUse(hutch.SandboxID) time.Time { return n.last }

// newTeller is a control plane that has only got what tells of use.
func newTeller(t *testing.T) (*Control, *listener) {
	n := &listener{}
	c := &Control{
		log: slog.New(slog.DiscardHandler), activity: newActivity(),
		execs: newExecLog(newMemExecs(), slog.New(slog.DiscardHandler), func() {}),
	}
	t.Cleanup(c.execs.close)
	c.Attach(n)
	return c, n
}

func TestEndsBy(t *testing.T) {
	now := time.Now()
	for name, tt := range map[string]struct {
		x    hutch.Exec
		want time.Duration // from now
	}{
		"no timeout":    {hutch.Exec{CreatedAt: now}, unbounded},
		"just begun":    {hutch.Exec{CreatedAt: now, Spec: hutch.ExecSpec{Timeout: time.Minute, Grace: time.Second}}, time.Minute + time.Second + overrun},
		"half way":      {hutch.Exec{CreatedAt: now.Add(-30 * time.Second), Spec: hutch.ExecSpec{Timeout: time.Minute}}, 30*time.Second + overrun},
		"long overdue":  {hutch.Exec{CreatedAt: now.Add(-time.Hour), Spec: hutch.ExecSpec{Timeout: time.Minute}}, 0},
		"from a record": {hutch.Exec{CreatedAt: now.Add(-30 * time.Second).Round(0), Spec: hutch.ExecSpec{Timeout: time.Minute}}, 30*time.Second + overrun},
	} {
		got := endsBy(tt.x, now)
		if d := got.Sub(now); d != tt.want {
			t.Errorf("%s: ends within %s, want %s", name, d, tt.want)
		}
		if !strings.Contains(got.String(), " m=") {
			t.Errorf("%s: %v is an instant of the wall clock alone", name, got)
		}
	}
}

func TestUseIsToldCoarsely(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, n := newTeller(t)
		tell := func(what string, want ...time.Time) {
			t.Helper()
			n.told = nil
			c.tellUse(t.Context(), "a")
			if !slices.EqualFunc(n.told, want, time.Time.Equal) {
				t.Errorf("%s: told %v, want %v", what, n.told, want)
			}
		}
		tell("nothing is known")
		n.last = time.Now()
		c.activity.touch("a")
		tell("used when it was made, which the node knows")
		time.Sleep(time.Minute)
		c.activity.touch("a")
		n.err = hutch.ErrUnavailable
		tell("used, and the keeper is away", time.Now())
		n.err = nil
		tell("again", time.Now())
		tell("not used since")
		time.Sleep(useGrain / 2)
		c.activity.touch("a")
		tell("used a moment later")

		done := c.activity.begin("a") // a call that goes on
		time.Sleep(5 * time.Second)
		tell("in use", time.Now())
		time.Sleep(5 * time.Second)
		tell("in use still", time.Now())
		done()
		tell("not any more")

		short := hutch.Exec{ID: "e1", Sandbox: "a", CreatedAt: time.Now(), Spec: hutch.ExecSpec{Timeout: time.Minute}}
		c.execs.begin(short)
		bound := time.Now().Add(time.Minute + overrun)
		tell("a command is being started", bound)
		c.execs.resume(short)
		time.Sleep(10 * time.Second)
		tell("it runs")
		long := hutch.Exec{ID: "e2", Sandbox: "a", CreatedAt: time.Now()}
		c.execs.track(long)
		tell("one without a timeout", time.Now().Add(unbounded))
		time.Sleep(time.Hour)
		tell("it runs for long")
		for _, x := range []hutch.ExecID{"e1", "e2"} {
			if _, err := c.execs.finish(t.Context(), x, hutch.ExecResult{}, endEvent); err != nil {
				t.Fatal(err)
			}
		}
		c.activity.touch("a")
		tell("both have ended", time.Now())
		c.activity.forget("a")
		tell("so has the sandbox")
	})
}

// A command is told of before it begins, unless what was told covers it.
func TestPromise(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, n := newTeller(t)
		sb := hutch.Sandbox{ID: "a", IdleTimeout: 5 * time.Minute}
		c.activity.touch("a")
		start := func(id hutch.ExecID, timeout time.Duration) {
			c.execs.begin(hutch.Exec{ID: id, Sandbox: "a", CreatedAt: time.Now(), Spec: hutch.ExecSpec{Timeout: timeout}})
			c.promise(t.Context(), sb)
		}
		want := func(what string, told int) {
			t.Helper()
			if len(n.told) != told {
				t.Errorf("%s: told %d times, want %d", what, len(n.told), told)
			}
		}
		start("e1", 10*time.Minute)
		want("the first", 1)
		time.Sleep(time.Minute)
		start("e2", 10*time.Minute)
		want("one that ends before the sandbox could be idle", 1)
		start("e3", 0)
		want("one without a timeout", 2)
		start("e4", 0)
		want("and another", 2)
		for _, id := range []hutch.ExecID{"e1", "e2", "e3", "e4"} {
			c.execs.abandon(id)
		}
		// News of an end that is on its way comes before those of the next start.
		release, _ := c.telling.take("a")
		c.tellUse(t.Context(), "a")
		want("none runs", 3)
		go start("e5", 0)
		synctest.Wait()
		want("while somebody tells", 3)
		release()
		synctest.Wait()
		want("then", 4)
		if last := n.told[3]; time.Until(last) < 24*time.Hour {
			t.Errorf("told last: %v", last)
		}
		sb.IdleTimeout, sb.ID = 0, "b"
		c.promise(t.Context(), sb)
		want("a sandbox that never idles", 4)
	})
}

// What the nodes knew before a restart holds, and what commands that go on say.
func TestUseIsRestored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(24 * time.Hour)
		now := time.Now()
		c, n := newTeller(t)
		n.last = now.Add(-time.Hour)
		c.restoreUse("used")
		c.activity.resume("running", now.Add(-time.Minute))
		c.restoreUse("running")
		n.last = now.Add(unbounded)
		c.restoreUse("promised")
		n.last = time.Time{}
		c.restoreUse("unknown")
		for id, want := range map[hutch.SandboxID]time.Duration{"used": time.Hour, "running": 0, "promised": 0, "unknown": 0} {
			if got := c.activity.idle(id, now); got != want {
				t.Errorf("%s: idle for %s, want %s", id, got, want)
			}
		}
		if at := c.activity.lastUse("running"); !at.Equal(now.Add(-time.Minute)) {
			t.Errorf("one with a command was used at %v", at)
		}
		time.Sleep(time.Minute)
		if got := c.activity.idle("unknown", time.Now()); got != time.Minute {
			t.Errorf("one of which nobody knew is idle for %s after a minute", got)
		}
	})
}
