package cluster

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/runtime/fake"
)

func TestEndUnasked(t *testing.T) {
	for name, c := range map[string]struct {
		end  func(*fake.Guest)
		want hutch.SandboxEnd
		hit  []string
	}{
		"crash": {(*fake.Guest).Crash, hutch.EndCrashed, nil},
		"oom":   {(*fake.Guest).OOM, hutch.EndOOM, []string{"memory"}},
		"pids":  {(*fake.Guest).PidsLimit, hutch.EndPidsLimit, []string{"pids"}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			sb := w.create()
			var execs []hutch.Exec
			for range 5 {
				x := w.exec(sb, "echo seen; hang")
				w.sees(x, "seen")
				execs = append(execs, x)
			}
			done := w.wantEnd(w.exec(sb, "echo done"), hutch.ExecExit, 0, "done\n")
			w.watched(sb)
			c.end(w.guest(sb.ID))
			for _, x := range execs {
				x = w.wantEnd(x, hutch.ExecSandboxGone, 137, "seen\n")
				if r := x.Result; !slices.Equal(r.LimitsHit, c.hit) || !strings.Contains(r.Detail, "("+string(c.want)+")") {
					t.Errorf("its end says %q, %v", r.Detail, r.LimitsHit)
				}
			}
			w.wantEnd(done, hutch.ExecExit, 0, "done\n")
			w.wantDead(sb.ID, c.want)
			_, err := w.c.StartExec(w.ctx(), project, sb.ID, hutch.ExecRequest{Spec: hutch.ExecSpec{Cmd: "true"}})
			wantError(t, "exec after the end", err, hutch.ErrSandboxGone)
			w.wantAgreement()
			w.tally.wantEnds(t, map[hutch.SandboxEnd]int{c.want: 1})

			// The same while there is no server to see it.
			sb = w.create()
			x := w.exec(sb, "echo seen; hang")
			w.storedStart(x)
			w.kill()
			c.end(w.host.Guest(sb.ID))
			w.wantNoted(sb.ID)
			w.start()
			w.wantDead(sb.ID, c.want)
			if r := w.wait(x).Result; r.End != hutch.ExecSandboxGone || !slices.Equal(r.LimitsHit, c.hit) || !strings.Contains(r.Detail, "("+string(c.want)+")") {
				t.Errorf("unseen, its end says %s, %q, %v", r.End, r.Detail, r.LimitsHit)
			}
		})
	}
}

// TestEndMeetsStarts ends a sandbox while commands are being started in it.
func TestEndMeetsStarts(t *testing.T) {
	w := newWorld(t)
	for range 5 {
		sb := w.create()
		var wg sync.WaitGroup
		guest := w.guest(sb.ID)
		for range 10 {
			wg.Go(func() {
				x, err := w.c.StartExec(w.ctx(), project, sb.ID, hutch.ExecRequest{Spec: hutch.ExecSpec{Cmd: "hang"}})
				if err != nil {
					wantError(t, "a start that lost", err, hutch.ErrSandboxGone)
					return
				}
				if x = w.wait(x); x.Result.End != hutch.ExecSandboxGone {
					t.Errorf("ended as %s", x.Result.End)
				}
			})
		}
		guest.Crash()
		wg.Wait()
		w.wantDead(sb.ID, hutch.EndCrashed)
	}
	w.wantAgreement()
}

func TestEndAtTheDeadline(t *testing.T) {
	t.Parallel()
	near := 3 * time.Second // what is to be done before it takes milliseconds
	// What is done in a sandbox before its deadline is done before it has a near one.
	soon := func(w *world, sb hutch.Sandbox) {
		w.t.Helper()
		if _, err := w.c.ExtendSandbox(w.ctx(), project, sb.ID, near); err != nil {
			w.t.Fatalf("extend: %v", err)
		}
	}
	t.Run("by the node", func(t *testing.T) {
		w := newWorld(t, func(w *world) { w.control.SweepInterval = time.Hour })
		sb, other := w.create(), w.create(func(r *hutch.CreateSandbox) { r.TTL = &near })
		x := w.exec(sb, "hang")
		soon(w, sb)
		w.wantEnd(x, hutch.ExecSandboxGone, 137, "")
		for _, id := range []hutch.SandboxID{sb.ID, other.ID} {
			dead := w.wantDead(id, hutch.EndExpired)
			if late := dead.EndedAt.Sub(dead.ExpiresAt); late < 0 || late > limit {
				t.Errorf("it ended %s after its deadline", late)
			}
		}
		w.tally.wantEnds(t, map[hutch.SandboxEnd]int{hutch.EndExpired: 2})
		w.wantAgreement()
	})
	t.Run("by control", func(t *testing.T) {
		w := newWorld(t)
		sb := w.create()
		// The row alone has the new deadline, as after a crash in between.
		if _, err := w.db.UpdateSandbox(w.ctx(), sb.ID, sb.Epoch, func(s *hutch.Sandbox) error {
			s.ExpiresAt = time.Now()
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		w.wantDead(sb.ID, hutch.EndExpired)
		w.tally.wantEnds(t, map[hutch.SandboxEnd]int{hutch.EndExpired: 1})
		w.wantAgreement()
	})
	t.Run("by the keeper while the server is away", func(t *testing.T) {
		w := newWorld(t)
		sb, paused := w.create(), w.create()
		x := w.exec(sb, "hang")
		w.storedStart(x)
		if _, err := w.c.PauseSandbox(w.ctx(), project, paused.ID); err != nil {
			t.Fatal(err)
		}
		soon(w, sb)
		soon(w, paused)
		w.kill()
		if infos, err := w.watch.List(w.ctx()); err != nil || len(infos) != 2 || !infos[0].ExitedAt.IsZero() || !infos[1].ExitedAt.IsZero() {
			t.Fatalf("when the server is killed the keeper has %+v, %v; want two that live", infos, err)
		}
		eventually(t, "the keeper ends them", func() error {
			infos, err := w.watch.List(w.ctx())
			for _, i := range infos {
				if i.ExitedAt.IsZero() {
					return errInjected
				}
			}
			return err
		})
		w.start()
		w.wantDead(sb.ID, hutch.EndExpired)
		w.wantDead(paused.ID, hutch.EndExpired)
		w.wantEnd(x, hutch.ExecSandboxGone, 137, "")
		w.wantAgreement()
	})
}

func TestEndWhenIdle(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const patience = 3 * time.Second // a command starts within it
	idle := func(r *hutch.CreateSandbox) { r.IdleTimeout = patience }
	busy := w.create(idle)
	x := w.exec(busy, "hang") // as silent as can be, and still use
	paused := w.create(idle)
	if _, err := w.c.PauseSandbox(w.ctx(), project, paused.ID); err != nil {
		t.Fatal(err)
	}
	quiet := w.create(idle)
	w.wantDead(quiet.ID, hutch.EndIdle)
	for _, sb := range []hutch.Sandbox{busy, paused} {
		if now := w.record(sb.ID); now.State == hutch.StateDead {
			t.Errorf("%s ended as %s", sb.ID, now.EndReason)
		}
	}
	// Once more, after a restart: the command is still use of its sandbox.
	w.storedStart(x)
	w.restart()
	<-time.After(patience + 500*time.Millisecond) // nothing comes: it is not ended
	if now := w.record(busy.ID); now.State == hutch.StateDead {
		t.Errorf("with a running command, after a restart: ended as %s", now.EndReason)
	}
	if _, err := w.c.CancelExec(w.ctx(), project, busy.ID, x.ID, nil); err != nil {
		t.Fatal(err)
	}
	w.wantDead(busy.ID, hutch.EndIdle)
	w.wantAgreement()
}

func TestExtend(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const near = 3 * time.Second // the next call is made within it
	sb, err := w.c.ExtendSandbox(w.ctx(), project, w.create().ID, near)
	if err != nil {
		t.Fatalf("shorten: %v", err)
	}
	out, err := w.c.ExtendSandbox(w.ctx(), project, sb.ID, time.Hour)
	if err != nil || time.Until(out.ExpiresAt) < 59*time.Minute || out.TTL != time.Hour {
		t.Errorf("extend: %v, %v", out.ExpiresAt, err)
	}
	// Nothing comes: it is not ended. The node looks each half second.
	<-time.After(time.Until(sb.ExpiresAt) + 700*time.Millisecond)
	if now := w.record(sb.ID); now.State != hutch.StateRunning {
		t.Errorf("it ended at its old deadline: %s", now.EndReason)
	}
	_, err = w.c.ExtendSandbox(w.ctx(), project, sb.ID, 100*time.Hour)
	wantError(t, "past the longest", err, hutch.ErrBadRequest)
	if _, err := w.c.ExtendSandbox(w.ctx(), project, sb.ID, near); err != nil {
		t.Errorf("shorten: %v", err)
	}
	w.wantDead(sb.ID, hutch.EndExpired)
	_, err = w.c.ExtendSandbox(w.ctx(), project, sb.ID, near)
	wantError(t, "extend a dead one", err, hutch.ErrSandboxGone)
	w.wantAgreement()
}

// TestEndsRace has everybody end one sandbox at once.
func TestEndsRace(t *testing.T) {
	w := newWorld(t)
	for range 10 {
		sb := w.create()
		x := w.exec(sb, "hang")
		guest := w.guest(sb.ID)
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() {
				if _, err := w.c.KillSandbox(w.ctx(), project, sb.ID); err != nil {
					wantError(t, "kill", err, hutch.ErrSandboxGone)
				}
			})
		}
		wg.Go(guest.OOM)
		wg.Go(func() { w.c.SandboxEnded(w.ctx(), sb.ID, 1, hutch.EndExpired, "") })
		wg.Wait()
		w.wantEnd(x, hutch.ExecSandboxGone, 137, "")
		var ended int
		eventually(t, "it is dead", func() error {
			if w.record(sb.ID).State != hutch.StateDead {
				return errInjected
			}
			return nil
		})
		for _, ev := range w.events(sb.ID) {
			if ev.Type == "sandbox.ended" {
				ended++
				if got := hutch.SandboxEnd(ev.Data["reason"]); got != w.record(sb.ID).EndReason {
					t.Errorf("the event says %s, the record %s", got, w.record(sb.ID).EndReason)
				}
			}
		}
		if ended != 1 {
			t.Errorf("%d events of its end", ended)
		}
	}
	w.wantAgreement()
	eventually(t, "each is counted once", func() error {
		w.tally.mu.Lock()
		defer w.tally.mu.Unlock()
		sum := 0
		for _, n := range w.tally.sandboxes {
			sum += n
		}
		if sum != 10 {
			return fmt.Errorf("%d ends were counted, of 10 sandboxes: %v", sum, w.tally.sandboxes)
		}
		return nil
	})
}

// TestEndOfTheRecords ends sandboxes while nothing can be recorded.
func TestEndOfTheRecords(t *testing.T) {
	w := newWorld(t)
	sb, other := w.create(), w.create()
	x := w.exec(sb, "echo seen; hang")
	w.sees(x, "seen")
	w.watched(sb)
	w.store.fail("UpdateSandbox", -1)
	w.store.fail("PutResult", -1)
	if _, err := w.c.KillSandbox(w.ctx(), project, other.ID); err == nil {
		t.Error("a kill that is not on record was reported as done")
	}
	if left, err := w.rt.List(w.ctx()); err != nil || slices.Contains(left, other.ID) {
		t.Errorf("what was killed is there until that is on record: %v, %v", left, err)
	}
	w.guest(sb.ID).Crash()
	// Readers are told at once, whatever the records can take.
	w.wantEnd(x, hutch.ExecSandboxGone, 137, "seen\n")
	if now := w.record(sb.ID); now.State == hutch.StateDead {
		t.Errorf("it is on record as dead before its command's end is")
	}
	w.store.fail("PutResult", 0)
	w.store.fail("UpdateSandbox", 0)
	w.wantDead(sb.ID, hutch.EndCrashed)
	w.wantDead(other.ID, hutch.EndKilled)
	w.wantAgreement()
	w.tally.wantEnds(t, map[hutch.SandboxEnd]int{hutch.EndCrashed: 1, hutch.EndKilled: 1})
}
