package cluster

import (
	"errors"
	"sync"
	"testing"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/runtime/fake"
)

func TestOldEpochsAreRefused(t *testing.T) {
	w := newWorld(t)
	sb := w.create()
	for range 2 {
		if _, err := w.c.PauseSandbox(w.ctx(), project, sb.ID); err != nil {
			t.Fatal(err)
		}
		if _, err := w.c.ResumeSandbox(w.ctx(), project, sb.ID); err != nil {
			t.Fatal(err)
		}
	}
	if e := w.record(sb.ID).Epoch; e != 5 {
		t.Errorf("epoch %d after five transitions", e)
	}
	ctx, x := w.ctx(), newExecID()
	for name, call := range map[string]func(e hutch.Epoch) error{
		"pause":    func(e hutch.Epoch) error { return w.n.PauseSandbox(ctx, sb.ID, e) },
		"resume":   func(e hutch.Epoch) error { return w.n.ResumeSandbox(ctx, sb.ID, e) },
		"kill":     func(e hutch.Epoch) error { return w.n.KillSandbox(ctx, sb.ID, e) },
		"deadline": func(e hutch.Epoch) error { return w.n.SetDeadline(ctx, sb.ID, e, time.Now()) },
		"watch":    func(e hutch.Epoch) error { return w.n.WatchExecs(ctx, sb.ID, e, []hutch.Exec{{ID: x}}) },
		"exec": func(e hutch.Epoch) error {
			_, _, err := w.n.StartExec(ctx, sb.ID, e, x, hutch.ExecSpec{Cmd: "true"})
			return err
		},
		"follow": func(e hutch.Epoch) error {
			_, err := w.n.FollowExec(ctx, sb.ID, e, x, hutch.FollowOptions{}, nil)
			return err
		},
		"stdin": func(e hutch.Epoch) error {
			_, err := w.n.WriteStdin(ctx, sb.ID, e, x, hutch.StdinChunk{})
			return err
		},
		"stop": func(e hutch.Epoch) error {
			_, err := w.n.StopExec(ctx, sb.ID, e, x, 0)
			return err
		},
		"signal": func(e hutch.Epoch) error { return w.n.SignalExec(ctx, sb.ID, e, x, "KILL", true) },
		"processes": func(e hutch.Epoch) error {
			_, err := w.n.Processes(ctx, sb.ID, e)
			return err
		},
	} {
		wantError(t, name+" of the first run", call(1), hutch.ErrStale)
		wantError(t, name+" of the run before", call(4), hutch.ErrStale)
	}
	w.wantEnd(w.exec(sb, "echo unharmed"), hutch.ExecExit, 0, "unharmed\n")
}

func TestPauseAndResumeTwice(t *testing.T) {
	w := newWorld(t)
	sb := w.create()
	x := w.exec(sb, "tick 5")
	w.sees(x, "tick 2")
	for i := range 2 {
		got, err := w.c.PauseSandbox(w.ctx(), project, sb.ID)
		if err != nil || got.State != hutch.StatePaused || got.Epoch != 2 {
			t.Errorf("pause %d: %s, epoch %d, %v", i, got.State, got.Epoch, err)
		}
	}
	for i := range 2 {
		got, err := w.c.ResumeSandbox(w.ctx(), project, sb.ID)
		if err != nil || got.State != hutch.StateRunning || got.Epoch != 3 {
			t.Errorf("resume %d: %s, epoch %d, %v", i, got.State, got.Epoch, err)
		}
	}
	w.sees(x, "tick 5")
	if e := w.host.Guest(sb.ID).Hello().Epoch; e != 3 {
		t.Errorf("the guest was told epoch %d", e)
	}
	w.wantAgreement()
}

func TestKillOvertakesAPause(t *testing.T) {
	for _, op := range []fake.Op{fake.OpPause, fake.OpResume} {
		t.Run(string(op), func(t *testing.T) {
			w := newWorld(t)
			sb := w.create()
			change, opposite := w.c.PauseSandbox, w.c.ResumeSandbox
			if op == fake.OpResume {
				if _, err := w.c.PauseSandbox(w.ctx(), project, sb.ID); err != nil {
					t.Fatal(err)
				}
				change, opposite = opposite, change
			}
			blocked := w.host.Blocked()
			release := w.host.Block(op)
			defer release()
			got := make(chan error, 2)
			ctx := w.ctx()
			ask := func() {
				_, err := change(ctx, project, sb.ID)
				got <- err
			}
			go ask()
			within(t, "it is under way", blocked)
			_, err := opposite(w.ctx(), project, sb.ID)
			wantError(t, "the opposite meanwhile", err, hutch.ErrConflict)
			go ask() // the same again waits for what comes of it
			if _, err := w.c.KillSandbox(w.ctx(), project, sb.ID); err != nil {
				t.Errorf("kill: %v", err)
			}
			w.wantDead(sb.ID, hutch.EndKilled)
			release()
			for range 2 {
				wantError(t, "what was overtaken", within(t, "it returns", got), hutch.ErrSandboxGone)
			}
			w.wantAgreement()
			w.tally.wantEnds(t, map[hutch.SandboxEnd]int{hutch.EndKilled: 1})
		})
	}
}

func TestKillTwiceAtOnce(t *testing.T) {
	w := newWorld(t)
	sb := w.create()
	blocked := w.host.Blocked()
	release := w.host.Block(fake.OpKill)
	defer release()
	results := make(chan error, 10)
	for range 10 {
		go func() {
			sb, err := w.c.KillSandbox(w.ctx(), project, sb.ID)
			if err == nil && sb.State != hutch.StateDead {
				t.Errorf("a kill that returned left it %s", sb.State)
			}
			results <- err
		}()
	}
	within(t, "the kill is under way", blocked)
	release()
	for range 10 {
		if err := within(t, "every kill returns", results); err != nil {
			wantError(t, "kill", err, hutch.ErrSandboxGone) // it came after the end
		}
	}
	_, err := w.c.KillSandbox(w.ctx(), project, sb.ID)
	wantError(t, "kill once more", err, hutch.ErrSandboxGone)
	w.tally.wantEnds(t, map[hutch.SandboxEnd]int{hutch.EndKilled: 1})
	w.wantAgreement()
}

func TestKillDuringCreate(t *testing.T) {
	for _, op := range []fake.Op{fake.OpCreate, fake.OpStart} {
		t.Run(string(op), func(t *testing.T) {
			w := newWorld(t, func(w *world) { w.control.MaxSandboxes = 1 })
			blocked := w.host.Blocked()
			release := w.host.Block(op)
			defer release()
			req := request()
			req.ID = newID()
			got := make(chan error, 1)
			go func() {
				_, err := w.c.CreateSandbox(w.ctx(), req)
				got <- err
			}()
			within(t, "it is being made", blocked)
			eventually(t, "it is on record", func() error {
				_, err := w.db.Sandbox(w.ctx(), req.ID)
				return err
			})
			if _, err := w.c.KillSandbox(w.ctx(), project, req.ID); err != nil {
				t.Errorf("kill: %v", err)
			}
			wantError(t, "the create", within(t, "it returns", got), hutch.ErrSandboxGone)
			release()
			w.wantDead(req.ID, hutch.EndKilled)
			w.wantAgreement()
			w.tally.wantEnds(t, map[hutch.SandboxEnd]int{hutch.EndKilled: 1})
			w.create() // its place is free
		})
	}
}

// TestKillInTheMomentOfTheStart kills a sandbox that runs and whose record does not say so.
func TestKillInTheMomentOfTheStart(t *testing.T) {
	w := newWorld(t)
	reached, release := w.store.block("UpdateSandbox")
	defer release()
	req := request()
	req.ID = newID()
	created, killed := make(chan error, 1), make(chan error, 1)
	go func() {
		_, err := w.c.CreateSandbox(w.ctx(), req)
		created <- err
	}()
	within(t, "the start is about to be recorded", reached)
	go func() {
		_, err := w.c.KillSandbox(w.ctx(), project, req.ID)
		killed <- err
	}()
	eventually(t, "both want to write", func() error {
		if n := w.store.count("UpdateSandbox"); n < 2 {
			return errInjected
		}
		return nil
	})
	release()
	if err := within(t, "the kill returns", killed); err != nil {
		t.Errorf("kill: %v", err)
	}
	if err := within(t, "the create returns", created); err != nil {
		wantError(t, "create", err, hutch.ErrSandboxGone)
	}
	w.wantDead(req.ID, hutch.EndKilled)
	w.wantAgreement()
}

func TestLateNewsChangesNothing(t *testing.T) {
	w := newWorld(t)
	sb := w.create()
	x := w.wantEnd(w.exec(sb, "echo right"), hutch.ExecExit, 0, "right\n")
	late := hutch.ExecResult{End: hutch.ExecSandboxGone, ExitCode: 137, StartedAt: time.Now(), EndedAt: time.Now()}
	for range 3 {
		if err := w.c.ExecEnded(w.ctx(), sb.ID, x.ID, late); err != nil {
			t.Errorf("late news of a command: %v", err)
		}
	}
	w.wantEnd(x, hutch.ExecExit, 0, "right\n")
	if _, err := w.c.KillSandbox(w.ctx(), project, sb.ID); err != nil {
		t.Fatal(err)
	}
	w.c.SandboxEnded(w.ctx(), sb.ID, 1, hutch.EndCrashed, "late")
	w.wantDead(sb.ID, hutch.EndKilled)
	w.c.SandboxEnded(w.ctx(), newID(), 1, hutch.EndCrashed, "unheard of")
	w.wantAgreement()
	w.tally.wantEnds(t, map[hutch.SandboxEnd]int{hutch.EndKilled: 1})
}

func TestPauseFails(t *testing.T) {
	w := newWorld(t)
	sb := w.create()
	w.host.Fail(fake.OpPause, errInjected)
	if _, err := w.c.PauseSandbox(w.ctx(), project, sb.ID); err == nil {
		t.Error("a pause that failed was reported as done")
	}
	w.host.Fail(fake.OpPause, nil)
	if now := w.record(sb.ID); now.State != hutch.StateRunning || now.Transition != "" {
		t.Errorf("it is %s %s", now.State, now.Transition)
	}
	w.wantEnd(w.exec(sb, "echo on"), hutch.ExecExit, 0, "on\n")

	// A keeper that is away for a moment is no reason to fail a pause.
	w.keeper.fail("SetLifetime", 1)
	if _, err := w.c.PauseSandbox(w.ctx(), project, sb.ID); err != nil {
		t.Errorf("pause without the keeper: %v", err)
	}
	// A guest that does not answer leaves the sandbox paused, as its record says.
	w.host.Guest(sb.ID).Garble(true)
	_, err := w.c.ResumeSandbox(w.ctx(), project, sb.ID)
	wantError(t, "resume with a guest out of its mind", err, hutch.ErrGuestUnresponsive)
	w.host.Guest(sb.ID).Garble(false)
	if now := w.record(sb.ID); now.State != hutch.StatePaused || now.Transition != "" {
		t.Errorf("it is %s %s", now.State, now.Transition)
	}
	if _, err := w.c.ResumeSandbox(w.ctx(), project, sb.ID); err != nil {
		t.Errorf("resume: %v", err)
	}
	w.wantEnd(w.exec(sb, "echo on"), hutch.ExecExit, 0, "on\n")
	w.wantAgreement()
}

// TestPauseNotRecorded lets the end of a pause, and of its failure, miss the records.
func TestPauseNotRecorded(t *testing.T) {
	w := newWorld(t)
	sb := w.create()
	settled := func(s hutch.State) {
		t.Helper()
		eventually(t, "a sweep carries it on", func() error {
			if now := w.record(sb.ID); now.State != s || now.Transition != "" {
				return errInjected
			}
			return nil
		})
	}
	w.store.failNth("UpdateSandbox", 2) // Begin is stored, Finish is not
	if _, err := w.c.PauseSandbox(w.ctx(), project, sb.ID); !errors.Is(err, errInjected) {
		t.Errorf("pause, and the record fails: %v", err)
	}
	settled(hutch.StatePaused)
	w.store.failNth("UpdateSandbox", 2)
	if _, err := w.c.ResumeSandbox(w.ctx(), project, sb.ID); !errors.Is(err, errInjected) {
		t.Errorf("resume, and the record fails: %v", err)
	}
	settled(hutch.StateRunning)
	w.wantEnd(w.exec(sb, "echo on"), hutch.ExecExit, 0, "on\n")
	w.wantAgreement()
}

func TestChangesAtOnceAgreeInTheEnd(t *testing.T) {
	w := newWorld(t)
	sb := w.create()
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			change := w.c.PauseSandbox
			if i%2 == 1 {
				change = w.c.ResumeSandbox
			}
			if _, err := change(w.ctx(), project, sb.ID); err != nil {
				wantError(t, "a change among others", err, hutch.ErrConflict)
			}
		})
		wg.Go(func() {
			if _, err := w.c.ExtendSandbox(w.ctx(), project, sb.ID, time.Duration(i+1)*time.Minute); err != nil {
				t.Errorf("extend among changes: %v", err)
			}
		})
	}
	wg.Wait()
	now := w.record(sb.ID)
	if now.Transition != "" {
		t.Errorf("it is %s %s", now.State, now.Transition)
	}
	kept, err := w.watch.Get(w.ctx(), sb.ID)
	if err != nil || !kept.Deadline.Equal(now.ExpiresAt) || kept.Epoch != now.Epoch {
		t.Errorf("the keeper has %v of run %d, the record %v of run %d (%v)", kept.Deadline, kept.Epoch, now.ExpiresAt, now.Epoch, err)
	}
	closeHandles(kept.Handles)
	if _, err := w.c.ResumeSandbox(w.ctx(), project, sb.ID); err != nil {
		t.Fatal(err)
	}
	w.wantEnd(w.exec(sb, "echo on"), hutch.ExecExit, 0, "on\n")
	w.wantAgreement()
}
