package cluster

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/node"
	"hutch.dev/hutch/internal/runtime"
	"hutch.dev/hutch/internal/runtime/fake"
)

// quick makes the second look follow the first at once, and no look be taken unasked.
func quick(w *world) {
	w.control.ReconcileEvery, w.control.SecondLook = time.Hour, time.Millisecond
}

// leaks looks, or sweeps.
func (w *world) leaks(sweep bool) (left, swept []hutch.Leak) {
	w.t.Helper()
	left, swept, err := w.c.Leaks(w.ctx(), sweep)
	if err != nil {
		w.t.Fatalf("leaks: %v", err)
	}
	return left, swept
}

// orphan makes a machine that no record knows, with its entry in the keeper and its link.
func (w *world) orphan() (hutch.SandboxID, runtime.Sandbox) {
	w.t.Helper()
	id := newID()
	sb, err := fake.New(w.host).Create(w.ctx(), specOf(id))
	if err != nil {
		w.t.Fatal(err)
	}
	if err := w.watch.Put(w.ctx(), id, 1, sb.Handles(), hutch.Lifetime{ExpiresAt: time.Now().Add(time.Hour)}); err != nil {
		w.t.Fatal(err)
	}
	if err := w.egress.attach(id, sb.Handles().Link); err != nil {
		w.t.Fatal(err)
	}
	return id, sb
}

// While it serves, a server removes what no record knows, and only that.
func TestOrphansAreRemovedWhileServing(t *testing.T) {
	w := newWorld(t, func(w *world) {
		w.control.ReconcileEvery, w.control.SecondLook = 10*time.Millisecond, time.Millisecond
	})
	sb := w.create()
	x := w.exec(sb, "echo before; cat", func(r *hutch.ExecRequest) { r.Spec.StdinOpen = true })
	w.sees(x, "before")
	w.storedStart(x)
	// They are made while no sweep looks: of one that is half made there would be two to count.
	w.kill()
	w.begin()
	if err := w.c.Recover(w.ctx()); err != nil {
		t.Fatal(err)
	}
	whole, _ := w.orphan()
	kept, machine := w.orphan()
	if err := machine.Kill(w.ctx()); err != nil { // its entry and its link are left
		t.Fatal(err)
	}
	w.run()
	w.wantAgreement()
	eventually(t, "both orphans are counted", func() error { // a moment after the last of them is gone
		if n := w.tally.operations("sweep_orphan"); n != 2 {
			return fmt.Errorf("%d are (%s, %s)", n, whole, kept)
		}
		return nil
	})
	if got := w.record(sb.ID); got.State != hutch.StateRunning || got.Transition != "" {
		t.Errorf("the one that lives is %s %s", got.State, got.Transition)
	}
	if _, err := w.c.CancelExec(w.ctx(), project, sb.ID, x.ID, new(time.Duration)); err != nil {
		t.Fatal(err)
	}
	w.wantEnd(x, hutch.ExecCancelled, 137, "before\n")
}

func TestLeaksAreNamedAndSwept(t *testing.T) {
	w := newWorld(t, quick)
	sb := w.create()
	if left, _ := w.leaks(false); len(left) != 0 {
		t.Fatalf("nothing leaks, and this is found: %+v", left)
	}
	id, _ := w.orphan()
	left, swept := w.leaks(false)
	if len(left) != 3 || len(swept) != 0 {
		t.Errorf("found %+v, swept %+v, want a machine, an entry and a link", left, swept)
	}
	for _, l := range left {
		if l.Sandbox != id || l.Why == "" {
			t.Errorf("%+v", l)
		}
	}
	left, swept = w.leaks(true)
	if len(left) != 0 || len(swept) != 3 {
		t.Errorf("after the sweep %+v is left, and swept was %+v", left, swept)
	}
	w.wantAgreement()
	w.wantEnd(w.exec(sb, "echo on"), hutch.ExecExit, 0, "on\n")
}

// insert puts a sandbox on record as running that no server made.
func (w *world) insert(sb hutch.Sandbox) hutch.Sandbox {
	w.t.Helper()
	now := time.Now()
	sb.Project, sb.Template, sb.State, sb.Epoch = project, "base", hutch.StateRunning, 1
	sb.Profile = hutch.ProfileRoot
	sb.CreatedAt, sb.StartedAt, sb.ExpiresAt = now, now, now.Add(time.Hour)
	made := hutch.Event{At: now, Project: project, Sandbox: sb.ID, Type: "sandbox.creating"}
	started := made
	started.Type = "sandbox.started"
	if err := w.db.CreateSandbox(w.ctx(), sb, made, started); err != nil {
		w.t.Fatal(err)
	}
	return sb
}

func TestARecordWithoutAMachineIsMarkedLost(t *testing.T) {
	w := newWorld(t, quick)
	sb := w.insert(hutch.Sandbox{ID: newID()})
	x := hutch.Exec{ID: newExecID(), Sandbox: sb.ID, Project: project, Spec: hutch.ExecSpec{Cmd: "hang"}, CreatedAt: time.Now()}
	if err := w.db.PutExec(w.ctx(), x, hutch.Event{At: time.Now(), Project: project, Sandbox: sb.ID, Exec: x.ID, Type: "exec.started"}); err != nil {
		t.Fatal(err)
	}
	left, _ := w.leaks(false)
	if len(left) != 1 || left[0].Kind != hutch.TraceRecord || left[0].Sandbox != sb.ID {
		t.Errorf("found %+v", left)
	}
	if left, swept := w.leaks(true); len(left) != 0 || len(swept) != 1 {
		t.Errorf("left %+v, swept %+v", left, swept)
	}
	w.wantDead(sb.ID, hutch.EndLost)
	w.wantEnd(x, hutch.ExecSandboxGone, 137, "")
	w.wantAgreement()
}

// A machine that lives, is on record and has slipped the node is worth more than a tidy host.
func TestARecordWhoseMachineLivesIsTakenBack(t *testing.T) {
	w := newWorld(t, quick)
	sb := w.insert(hutch.Sandbox{ID: newID(), Hostname: "taken-back", Resources: specOf("").Resources, Image: "sha256:1"})
	rt := fake.New(w.host)
	k := keeperPort{w.dialKeeper(), newFaults()}
	defer k.c.Close()
	cfg := w.node
	cfg.Log = w.logger()
	other := node.New(cfg, rt, k, egressPort{w.egress, newFaults()}, w.c)
	if _, err := other.StartSandbox(w.ctx(), sb); err != nil {
		t.Fatal(err)
	}
	x := hutch.Exec{ID: newExecID(), Sandbox: sb.ID, Project: project, Spec: hutch.ExecSpec{Cmd: "hang"}}
	var err error
	if x.PID, x.CreatedAt, err = other.StartExec(w.ctx(), sb.ID, sb.Epoch, x.ID, x.Spec); err != nil {
		t.Fatal(err)
	}
	if err := w.db.PutExec(w.ctx(), x, hutch.Event{At: x.CreatedAt, Project: project, Sandbox: sb.ID, Exec: x.ID, Type: "exec.started"}); err != nil {
		t.Fatal(err)
	}
	rt.Crash() // that process ends, and the machine lives
	other.Close()
	if left, swept := w.leaks(true); len(left) != 0 || len(swept) != 1 {
		t.Errorf("left %+v, swept %+v", left, swept)
	}
	w.wantEnd(w.exec(sb, "echo on"), hutch.ExecExit, 0, "on\n")
	if _, err := w.db.UpdateSandbox(w.ctx(), sb.ID, sb.Epoch, func(s *hutch.Sandbox) error { s.IdleTimeout = time.Second; return nil }); err != nil {
		t.Fatal(err)
	}
	over := time.After(1500 * time.Millisecond) // past its idle timeout: the command that runs is use
	<-over
	if got := w.record(sb.ID); got.State != hutch.StateRunning {
		t.Fatalf("it is %s (%s)", got.State, got.EndReason)
	}
	if _, err := w.c.CancelExec(w.ctx(), project, sb.ID, x.ID, new(time.Duration)); err != nil {
		t.Fatal(err)
	}
	w.wantEnd(x, hutch.ExecCancelled, 137, "")
	w.wantAgreement()
}

// Whatever step a create has come to, no look takes it for a leak, and no sweep touches it.
func TestNoSweepTouchesACreate(t *testing.T) {
	steps := map[string]func(w *world) (reached <-chan struct{}, release func()){
		"before the machine":  func(w *world) (<-chan struct{}, func()) { b := w.host.Blocked(); return b, w.host.Block(fake.OpCreate) },
		"machine not started": func(w *world) (<-chan struct{}, func()) { b := w.host.Blocked(); return b, w.host.Block(fake.OpStart) },
		"handles not kept":    func(w *world) (<-chan struct{}, func()) { return w.keeper.block("Put") },
		"nothing on record":   func(w *world) (<-chan struct{}, func()) { return w.store.block("CreateSandbox") },
		"start not on record": func(w *world) (<-chan struct{}, func()) { return w.store.block("UpdateSandbox") },
	}
	for name, step := range steps {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, quick)
			reached, release := step(w)
			defer release()
			req := request()
			req.ID = newID()
			done := make(chan error, 1)
			go func() {
				_, err := w.c.CreateSandbox(w.ctx(), req)
				done <- err
			}()
			within(t, "it has come that far", reached)
			if name == "nothing on record" {
				w.guest(req.ID) // a machine that no record knows
			}
			for range 3 {
				if left, swept := w.leaks(true); len(left)+len(swept) != 0 {
					t.Errorf("found %+v, swept %+v", left, swept)
				}
			}
			release()
			if err := within(t, "the create ends", done); err != nil {
				t.Fatal(err)
			}
			w.wantEnd(w.exec(w.record(req.ID), "echo on"), hutch.ExecExit, 0, "on\n")
			if n := w.tally.operations("sweep_orphan") + w.tally.operations("mend_record"); n != 0 {
				t.Errorf("%d sandboxes were mended", n)
			}
			w.wantAgreement()
		})
	}
}

// Nor does one touch what is being ended, paused or resumed.
func TestNoSweepTouchesAChange(t *testing.T) {
	pause := func(w *world, sb hutch.Sandbox) error {
		_, err := w.c.PauseSandbox(w.ctx(), project, sb.ID)
		return err
	}
	steps := map[string]struct {
		block func(w *world) (reached <-chan struct{}, release func())
		act   func(w *world, sb hutch.Sandbox) error
		want  hutch.State
	}{
		"a kill": {
			func(w *world) (<-chan struct{}, func()) { return w.keeper.block("Delete") },
			func(w *world, sb hutch.Sandbox) error {
				_, err := w.c.KillSandbox(w.ctx(), project, sb.ID)
				return err
			}, hutch.StateDead,
		},
		"a pause": {
			func(w *world) (<-chan struct{}, func()) { b := w.host.Blocked(); return b, w.host.Block(fake.OpPause) },
			pause, hutch.StatePaused,
		},
		"a resume": {
			func(w *world) (<-chan struct{}, func()) { b := w.host.Blocked(); return b, w.host.Block(fake.OpResume) },
			func(w *world, sb hutch.Sandbox) error {
				if err := pause(w, sb); err != nil {
					return err
				}
				_, err := w.c.ResumeSandbox(w.ctx(), project, sb.ID)
				return err
			}, hutch.StateRunning,
		},
	}
	for name, s := range steps {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, quick)
			sb := w.create()
			reached, release := s.block(w)
			defer release()
			done := make(chan error, 1)
			go func() { done <- s.act(w, sb) }()
			within(t, "it has come that far", reached)
			for range 3 {
				if left, swept := w.leaks(true); len(left)+len(swept) != 0 {
					t.Errorf("found %+v, swept %+v", left, swept)
				}
			}
			release()
			if err := within(t, "the call ends", done); err != nil {
				t.Fatal(err)
			}
			if got := w.record(sb.ID); got.State != s.want {
				t.Errorf("it is %s, want %s", got.State, s.want)
			}
			w.wantAgreement()
		})
	}
}

// A node refuses to sweep or adopt what it has in hand, whoever asks.
func TestANodeKeepsWhatItHas(t *testing.T) {
	w := newWorld(t, quick)
	sb := w.create()
	w.keeper.fail("Get", -1) // as of a keeper that was just replaced
	wantError(t, "sweep", w.n.Sweep(w.ctx(), sb.ID), hutch.ErrConflict)
	_, err := w.n.Adopt(w.ctx(), sb)
	wantError(t, "adopt", err, hutch.ErrConflict)
	w.keeper.fail("Get", 0)
	w.wantEnd(w.exec(sb, "echo on"), hutch.ExecExit, 0, "on\n")
}

// Sweeps all the time, beside everything that makes and ends sandboxes.
func TestSweepsBesideEverything(t *testing.T) {
	w := newWorld(t, quick)
	stop := make(chan struct{})
	var sweeps sync.WaitGroup
	var looks atomic.Int64
	sweeps.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			left, swept, err := w.c.Leaks(w.ctx(), true)
			if err != nil || len(left)+len(swept) != 0 {
				t.Errorf("found %+v, swept %+v, %v", left, swept, err)
			}
			looks.Add(1)
		}
	})
	var users sync.WaitGroup
	for range 4 {
		users.Go(func() {
			for i := range 4 {
				if err := w.visit(i); err != nil {
					t.Error(err)
				}
			}
		})
	}
	users.Wait()
	eventually(t, "there were looks", func() error {
		if n := looks.Load(); n < 5 {
			return fmt.Errorf("%d", n)
		}
		return nil
	})
	close(stop)
	sweeps.Wait()
	w.wantAgreement()
	if n := w.tally.operations("sweep_orphan") + w.tally.operations("mend_record"); n != 0 {
		t.Errorf("%d sandboxes were mended", n)
	}
}

// visit makes a sandbox, uses it, and ends it in one way or another.
func (w *world) visit(i int) error {
	ctx := w.ctx()
	sb, err := w.c.CreateSandbox(ctx, request())
	if err != nil {
		return fmt.Errorf("create: %w", err)
	}
	x, err := w.c.StartExec(ctx, project, sb.ID, hutch.ExecRequest{Spec: hutch.ExecSpec{Cmd: "echo on"}})
	if err == nil {
		x, err = w.c.WaitExec(ctx, project, sb.ID, x.ID)
	}
	if err != nil {
		return fmt.Errorf("exec in %s: %w", sb.ID, err)
	}
	if x.Result.End != hutch.ExecExit {
		return fmt.Errorf("exec in %s: %+v", sb.ID, x.Result)
	}
	switch i % 3 {
	case 0:
		w.host.Guest(sb.ID).Crash()
		tick := time.NewTicker(2 * time.Millisecond)
		defer tick.Stop()
		for err == nil {
			<-tick.C
			_, err = w.c.Sandbox(ctx, project, sb.ID)
		}
		if errors.Is(err, hutch.ErrSandboxGone) {
			err = nil
		}
	case 1:
		if _, err = w.c.PauseSandbox(ctx, project, sb.ID); err == nil {
			_, err = w.c.ResumeSandbox(ctx, project, sb.ID)
		}
		fallthrough
	default:
		if err == nil {
			_, err = w.c.KillSandbox(ctx, project, sb.ID)
		}
	}
	return err
}

// A look that its caller leaves ends.
func TestALookIsCutShort(t *testing.T) {
	w := newWorld(t, func(w *world) { w.control.ReconcileEvery, w.control.SecondLook = time.Hour, time.Hour })
	id, machine := w.orphan()
	ctx, cancel := context.WithCancel(w.ctx())
	done := make(chan error, 1)
	go func() {
		_, _, err := w.c.Leaks(ctx, true)
		done <- err
	}()
	cancel()
	if err := within(t, "the look ends", done); err == nil {
		t.Error("a look without its caller is not an error")
	}
	if l, err := fake.New(w.host).List(w.ctx()); err != nil || len(l) != 1 {
		t.Errorf("it was swept after one look: %v, %v", l, err)
	}
	if err := machine.Kill(w.ctx()); err != nil {
		t.Fatal(err)
	}
	if err := w.watch.Delete(w.ctx(), id); err != nil {
		t.Fatal(err)
	}
	w.egress.detach(id)
}
