package cluster

import (
	"fmt"
	"testing"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/keeper"
)

// promptly makes a server tell its companions at once of what is used, and those not wait for
// long for more.
func promptly(w *world) {
	w.control.UseEvery, w.node.IdleSlack = 5*time.Millisecond, 500*time.Millisecond
}

func idleAfter(d time.Duration) func(*hutch.CreateSandbox) {
	return func(r *hutch.CreateSandbox) { r.IdleTimeout = d }
}

// kept is what the keeper has of a sandbox.
func (w *world) kept(id hutch.SandboxID) keeper.Kept {
	w.t.Helper()
	k, err := w.watch.Get(w.ctx(), id)
	closeHandles(k.Handles)
	if err != nil {
		w.t.Fatalf("the keeper has no %s: %v", id, err)
	}
	return k
}

// unused makes it so, while there is no server, that a sandbox was made and last used some time
// ago. The keeper does not end it for that: the next server may.
func (w *world) unused(sb hutch.Sandbox, ago time.Duration) {
	w.t.Helper()
	at := time.Now().Add(-ago)
	rec, err := w.db.UpdateSandbox(w.ctx(), sb.ID, w.record(sb.ID).Epoch, func(s *hutch.Sandbox) error { s.ActiveAt = at; return nil })
	if err == nil {
		err = w.watch.SetLifetime(w.ctx(), sb.ID, rec.Epoch, hutch.Lifetime{ExpiresAt: sb.ExpiresAt, UsedAt: at})
	}
	if err != nil {
		w.t.Fatal(err)
	}
}

func TestIdleWithoutTheServer(t *testing.T) {
	t.Parallel()
	w := newWorld(t, promptly, func(w *world) { w.node.IdleSlack = 2 * time.Second })
	const patience = time.Second
	quiet := w.create(idleAfter(patience))
	w.kill()
	for w.record(quiet.ID).Transition != "" || w.record(quiet.ID).State == hutch.StateDead {
		// On a busy machine the server may have come to end it itself: that is another story.
		w.start()
		w.wantDead(quiet.ID, hutch.EndIdle)
		quiet = w.create(idleAfter(patience))
		w.kill()
	}
	eventually(t, "the keeper ends it", func() error {
		if k := w.kept(quiet.ID); k.ExitedAt.IsZero() {
			return fmt.Errorf("it has %+v", k.Info)
		}
		return nil
	})
	if k := w.kept(quiet.ID); k.Reason != keeper.ReasonIdle || k.KilledAt.Sub(quiet.CreatedAt) < patience {
		t.Errorf("made at %v, it was ended at %v as %q", quiet.CreatedAt, k.KilledAt, k.Reason)
	}
	w.start()
	if dead := w.wantDead(quiet.ID, hutch.EndIdle); dead.EndDetail == "" {
		t.Error("its record does not say why in a sentence")
	}
	w.wantAgreement()
}

// The node ends what the control plane does not.
func TestIdleWithoutSweeps(t *testing.T) {
	t.Parallel()
	w := newWorld(t, promptly, func(w *world) { w.control.SweepInterval = time.Hour })
	const patience = time.Second
	quiet, busy := w.create(idleAfter(patience)), w.create(idleAfter(time.Hour))
	w.wantDead(quiet.ID, hutch.EndIdle)
	w.wantEnd(w.exec(busy, "echo on"), hutch.ExecExit, 0, "on\n")
	w.tally.wantEnds(t, map[hutch.SandboxEnd]int{hutch.EndIdle: 1})
	w.wantAgreement()
}

// A restart does not make a sandbox's idle time begin anew.
func TestIdleTimeOutlivesTheServer(t *testing.T) {
	t.Parallel()
	w := newWorld(t, promptly)
	used, over := w.create(idleAfter(time.Hour)), w.create(idleAfter(time.Hour))
	x := w.create(idleAfter(time.Hour))
	hangs := w.exec(x, "hang")
	w.storedStart(hangs)
	paused := w.create(idleAfter(time.Hour))
	if _, err := w.c.PauseSandbox(w.ctx(), project, paused.ID); err != nil {
		t.Fatal(err)
	}
	w.kill()
	w.unused(used, 30*time.Minute)
	w.unused(over, 2*time.Hour)
	w.unused(paused, 2*time.Hour)
	back := time.Now()
	w.start()
	got, err := w.c.Sandbox(w.ctx(), project, used.ID)
	if ago := back.Sub(got.ActiveAt); err != nil || ago < 29*time.Minute || ago > 30*time.Minute+limit {
		t.Errorf("after a restart it was used %s before that, want half an hour; %v", ago, err)
	}
	dead := w.wantDead(over.ID, hutch.EndIdle)
	if ago := back.Sub(dead.ActiveAt); ago < time.Hour {
		t.Errorf("the record of the one that idled says that it was used %s before the restart", ago)
	}
	// With a command that runs, and in a pause, nobody idles; nor just after them.
	if _, err := w.c.CancelExec(w.ctx(), project, x.ID, hangs.ID, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := w.c.ResumeSandbox(w.ctx(), project, paused.ID); err != nil {
		t.Fatal(err)
	}
	w.restart()
	for _, sb := range []hutch.Sandbox{used, x, paused} {
		if now := w.record(sb.ID); now.State != hutch.StateRunning {
			t.Errorf("%s is %s (%s)", sb.ID, now.State, now.EndReason)
		}
	}
	w.wantEnd(w.exec(used, "echo on"), hutch.ExecExit, 0, "on\n")
	w.tally.wantEnds(t, map[hutch.SandboxEnd]int{hutch.EndIdle: 1})
	w.wantAgreement()
}

// A server that dies when a resume is made and not on record leaves a sandbox that was not used
// for as long as it was paused.
func TestAResumeThatIsCutOffIsUse(t *testing.T) {
	w := newWorld(t, promptly)
	sb := w.create(idleAfter(time.Hour))
	if _, err := w.c.PauseSandbox(w.ctx(), project, sb.ID); err != nil {
		t.Fatal(err)
	}
	w.kill()
	w.unused(sb, 2*time.Hour)
	if _, err := w.db.UpdateSandbox(w.ctx(), sb.ID, w.record(sb.ID).Epoch, func(s *hutch.Sandbox) error { return s.Begin(hutch.Resuming) }); err != nil {
		t.Fatal(err)
	}
	w.start()
	if now := w.record(sb.ID); now.State != hutch.StateRunning || now.Transition != "" {
		t.Fatalf("it is %s %s", now.State, now.Transition)
	}
	w.wantEnd(w.exec(sb, "echo on"), hutch.ExecExit, 0, "on\n")
}

// What the keeper knows of use follows it, now and then; of a command at once.
func TestKeeperIsToldOfUse(t *testing.T) {
	t.Parallel()
	w := newWorld(t, promptly)
	sb := w.create(idleAfter(time.Hour))
	at := w.kept(sb.ID).UsedAt
	if ago := time.Since(at); ago < 0 || ago > limit {
		t.Errorf("new, it was used %s ago", ago)
	}
	for _, c := range []struct {
		cmd     string
		timeout time.Duration
		atLeast time.Duration
	}{{"hang", 0, 365 * 24 * time.Hour}, {"hang", 2 * time.Hour, 2 * time.Hour}} {
		x := w.exec(sb, c.cmd, func(r *hutch.ExecRequest) { r.Spec.Timeout, r.Spec.Background = c.timeout, c.timeout == 0 })
		if left := time.Until(w.kept(sb.ID).UsedAt); left < c.atLeast-limit {
			t.Errorf("with a command of %s the keeper knows of use for %s", c.timeout, left)
		}
		if _, err := w.c.CancelExec(w.ctx(), project, sb.ID, x.ID, new(time.Duration)); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the keeper hears that it has ended", func() error {
			if left := time.Until(w.kept(sb.ID).UsedAt); left > 0 {
				return fmt.Errorf("in use for %s", left)
			}
			return nil
		})
	}
	_, done, err := w.c.Guest(w.ctx(), project, sb.ID)
	if err != nil {
		t.Fatal(err)
	}
	defer done()
	for range 2 {
		last := w.kept(sb.ID).UsedAt
		eventually(t, "a call that goes on is told of", func() error {
			if now := w.kept(sb.ID).UsedAt; now.Sub(last) < time.Second/2 {
				return fmt.Errorf("used at %v, before at %v", now, last)
			}
			return nil
		})
	}
}
