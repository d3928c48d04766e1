package cluster

import (
	"strings"
	"testing"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/runtime/fake"
)

func TestRestartTakesOver(t *testing.T) {
	w := newWorld(t)
	running, paused := w.create(), w.create()
	x := w.exec(running, "echo before; cat", func(r *hutch.ExecRequest) { r.Spec.StdinOpen = true })
	y := w.exec(paused, "echo before; cat", func(r *hutch.ExecRequest) { r.Spec.StdinOpen = true })
	w.sees(x, "before")
	w.sees(y, "before")
	w.storedStart(x)
	w.storedStart(y)
	if _, err := w.c.PauseSandbox(w.ctx(), project, paused.ID); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		w.restart()
		w.wantAgreement()
		if got, err := w.c.Sandbox(w.ctx(), project, paused.ID); err != nil || got.State != hutch.StatePaused {
			t.Errorf("the paused one is %s, %v", got.State, err)
		}
	}
	if _, err := w.c.ResumeSandbox(w.ctx(), project, paused.ID); err != nil {
		t.Fatal(err)
	}
	for _, x := range []hutch.Exec{x, y} {
		if _, err := w.c.WriteStdin(w.ctx(), project, x.Sandbox, x.ID, hutch.StdinChunk{Data: strings.NewReader("after\n"), End: true}); err != nil {
			t.Fatal(err)
		}
		got := w.wantEnd(x, hutch.ExecExit, 0, "before\nafter\n")
		if got.Spec.Cmd != "echo before; cat" {
			t.Errorf("its record lost what it was: %+v", got.Spec)
		}
	}
	w.wantEnd(w.exec(running, "echo new"), hutch.ExecExit, 0, "new\n")
	w.tally.wantExecs(t, hutch.ExecExit, 3)
	if _, err := w.c.KillSandbox(w.ctx(), project, running.ID); err != nil {
		t.Fatal(err)
	}
	w.restart()
	w.wantDead(running.ID, hutch.EndKilled)
	w.wantAgreement()
}

// TestRestartRecordsWhatEndedMeanwhile lets commands end while the server is away, with
// their starts on record and not.
func TestRestartRecordsWhatEndedMeanwhile(t *testing.T) {
	for _, stored := range []bool{true, false} {
		t.Run(map[bool]string{true: "start on record", false: "start not on record"}[stored], func(t *testing.T) {
			w := newWorld(t)
			sb := w.create()
			if !stored {
				w.store.fail("PutExec", -1)
			}
			x := w.exec(sb, "out 3000; await /go; echo end; echo > /flag", func(r *hutch.ExecRequest) { r.Spec.MaxOutputBytes = 1000 })
			if stored {
				w.storedStart(x)
			}
			w.kill()
			g := w.guest(sb.ID)
			g.WriteFile("/go", nil)
			eventually(t, "the command has ended", func() error {
				if !g.HasFile("/flag") {
					return errInjected
				}
				return nil
			})
			w.start()
			eventually(t, "its end is on record", func() error {
				rec, err := w.db.Exec(w.ctx(), x.ID)
				if err == nil && rec.Result == nil {
					err = errInjected
				}
				return err
			})
			got, err := w.db.Exec(w.ctx(), x.ID)
			if err != nil {
				t.Fatal(err)
			}
			r := got.Result
			if r.End != hutch.ExecExit || r.Stdout.Total != 3004 || len(r.Stdout.Head) != 250 || !strings.HasSuffix(string(r.Stdout.Tail), "end\n") {
				t.Errorf("recorded: %s, %d bytes, head %d, tail %d", r.End, r.Stdout.Total, len(r.Stdout.Head), len(r.Stdout.Tail))
			}
			if stored && got.Spec.Cmd == "" {
				t.Errorf("its record lost what it was")
			}
			w.wantAgreement()
			w.restart() // and it is told of once
			w.wantAgreement()
			w.tally.wantExecs(t, hutch.ExecExit, 1)
		})
	}
}

// TestRestartAfterRecordedNotForgotten is a crash between the record of an end and the
// guest's being told to forget it.
func TestRestartAfterRecordedNotForgotten(t *testing.T) {
	w := newWorld(t)
	sb := w.create()
	reached, release := w.store.block("PutResult")
	x := w.exec(sb, "echo once")
	within(t, "the end is about to be recorded", reached)
	// The record is made, and the server dies before it knows.
	rec := w.wait(x)
	if err := w.db.PutExec(w.ctx(), rec, hutch.Event{At: time.Now(), Project: project, Sandbox: sb.ID, Exec: x.ID, Type: "exec.ended"}); err != nil {
		t.Fatal(err)
	}
	go release()
	w.restart()
	w.wantEnd(x, hutch.ExecExit, 0, "once\n")
	w.watched(sb)
	ends := 0
	for _, ev := range w.events(sb.ID) {
		if ev.Exec == x.ID && ev.Type == "exec.ended" {
			ends++
		}
	}
	if ends != 1 {
		t.Errorf("its end is on record %d times", ends)
	}
}

// TestRestartDuringStart kills the server at each step of a create.
func TestRestartDuringStart(t *testing.T) {
	steps := map[string]struct {
		block func(w *world) (reached <-chan struct{}, release func())
		want  string // what becomes of it: running, start_failed, or nothing on record
	}{
		"before the machine": {func(w *world) (<-chan struct{}, func()) {
			b := w.host.Blocked()
			return b, w.host.Block(fake.OpCreate)
		}, "start_failed"},
		"machine not started": {func(w *world) (<-chan struct{}, func()) {
			b := w.host.Blocked()
			return b, w.host.Block(fake.OpStart)
		}, "start_failed"},
		"handles not kept":  {func(w *world) (<-chan struct{}, func()) { return w.keeper.block("Put") }, "start_failed"},
		"nothing on record": {func(w *world) (<-chan struct{}, func()) { return w.store.block("CreateSandbox") }, ""},
		"start not on record": {
			func(w *world) (<-chan struct{}, func()) { return w.store.block("UpdateSandbox") },
			"running",
		},
	}
	for name, s := range steps {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, func(w *world) { w.control.MaxSandboxes = 1 })
			reached, release := s.block(w)
			defer release()
			req := request()
			req.ID = newID()
			done := make(chan struct{})
			go func() {
				defer close(done)
				_, _ = w.c.CreateSandbox(w.ctx(), req) // its caller dies with it
			}()
			within(t, "it has come that far", reached)
			if s.want != "" {
				eventually(t, "it is on record", func() error {
					_, err := w.db.Sandbox(w.ctx(), req.ID)
					return err
				})
			} else {
				w.guest(req.ID)
			}
			old := w.server
			w.cut()
			release()
			within(t, "the caller is gone", done)
			w.bury(old)
			w.start()
			switch s.want {
			case "":
				if n := len(w.records()); n != 0 {
					t.Errorf("%d records", n)
				}
			case "running":
				sb := w.record(req.ID)
				if sb.State != hutch.StateRunning || sb.Transition != "" || sb.StartedAt.IsZero() {
					t.Errorf("it is %s %s", sb.State, sb.Transition)
				}
				w.wantEnd(w.exec(sb, "whoami"), hutch.ExecExit, 0, string(sb.ID)+"\n")
			default:
				w.wantDead(req.ID, hutch.SandboxEnd(s.want))
			}
			w.wantAgreement()
			if s.want != "running" {
				w.create() // its place is free
			}
		})
	}
}

// TestRestartDuringChanges kills the server while a transition is on record as under way,
// before and after its act.
func TestRestartDuringChanges(t *testing.T) {
	for _, tr := range []hutch.Transition{hutch.Pausing, hutch.Resuming, hutch.Killing} {
		for _, acted := range []bool{false, true} {
			name := string(tr) + map[bool]string{false: " not done", true: " done"}[acted]
			t.Run(name, func(t *testing.T) {
				w := newWorld(t)
				sb := w.create()
				x := w.exec(sb, "echo seen; hang")
				w.sees(x, "seen")
				w.storedStart(x)
				if tr == hutch.Resuming {
					if _, err := w.c.PauseSandbox(w.ctx(), project, sb.ID); err != nil {
						t.Fatal(err)
					}
				}
				now, err := w.db.UpdateSandbox(w.ctx(), sb.ID, w.record(sb.ID).Epoch, func(s *hutch.Sandbox) error { return s.Begin(tr) })
				if err != nil {
					t.Fatal(err)
				}
				if acted {
					act := map[hutch.Transition]func() error{
						hutch.Pausing:  func() error { return w.n.PauseSandbox(w.ctx(), sb.ID, now.Epoch) },
						hutch.Resuming: func() error { return w.n.ResumeSandbox(w.ctx(), sb.ID, now.Epoch) },
						hutch.Killing:  func() error { w.store.kill(); w.host.Guest(sb.ID).Crash(); return nil },
					}
					if err := act[tr](); err != nil {
						t.Fatal(err)
					}
				}
				w.restart()
				switch tr {
				case hutch.Killing:
					w.wantDead(sb.ID, hutch.EndKilled)
					w.wait(x)
				case hutch.Pausing:
					if got := w.record(sb.ID); got.State != hutch.StatePaused || got.Transition != "" {
						t.Errorf("it is %s %s", got.State, got.Transition)
					}
					if _, err := w.c.ResumeSandbox(w.ctx(), project, sb.ID); err != nil {
						t.Fatal(err)
					}
					fallthrough
				case hutch.Resuming:
					if got := w.record(sb.ID); got.State != hutch.StateRunning || got.Transition != "" {
						t.Errorf("it is %s %s", got.State, got.Transition)
					}
					if _, err := w.c.CancelExec(w.ctx(), project, sb.ID, x.ID, new(time.Duration)); err != nil {
						t.Fatal(err)
					}
					w.wantEnd(x, hutch.ExecCancelled, 137, "seen\n")
				}
				w.wantAgreement()
			})
		}
	}
}

func TestRestartFindsThemGone(t *testing.T) {
	w := newWorld(t)
	crashed, lost, dark := w.create(), w.create(), w.create()
	var execs []hutch.Exec
	for _, sb := range []hutch.Sandbox{crashed, lost, dark} {
		x := w.exec(sb, "hang")
		w.storedStart(x)
		execs = append(execs, x)
	}
	w.kill()
	w.host.Guest(crashed.ID).Crash()
	eventually(t, "the keeper has noticed", func() error {
		kept, err := w.watch.Get(w.ctx(), crashed.ID)
		closeHandles(kept.Handles)
		if err == nil && kept.ExitedAt.IsZero() {
			err = errInjected
		}
		return err
	})
	if err := w.watch.Delete(w.ctx(), lost.ID); err != nil { // as if the keeper had died too
		t.Fatal(err)
	}
	orphan := newID()
	if _, err := fake.New(w.host).Create(w.ctx(), specOf(orphan)); err != nil {
		t.Fatal(err)
	}
	w.begin()
	w.host.Fail(fake.OpAdopt, hutch.Errorf(hutch.CodeInternal, "out of descriptors"))
	if err := w.c.Recover(w.ctx()); err == nil {
		t.Error("the server is ready though it could not take over a living sandbox")
	}
	w.host.Fail(fake.OpAdopt, nil)
	w.restart()
	w.wantDead(crashed.ID, hutch.EndCrashed)
	w.wantDead(lost.ID, hutch.EndLost)
	w.wantEnd(execs[0], hutch.ExecSandboxGone, 137, "")
	w.wantEnd(execs[1], hutch.ExecSandboxGone, 137, "")
	if now := w.record(dark.ID); now.State != hutch.StateRunning {
		t.Errorf("one that could not be taken over at once is %s (%s)", now.State, now.EndReason)
	}
	if _, err := w.c.CancelExec(w.ctx(), project, dark.ID, execs[2].ID, new(time.Duration)); err != nil {
		t.Fatal(err)
	}
	w.wantAgreement()
}

// TestRestartGuestForgot takes over a sandbox whose guest does not know a command that is
// on record as running.
func TestRestartGuestForgot(t *testing.T) {
	w := newWorld(t)
	sb := w.create()
	ghost := hutch.Exec{ID: newExecID(), Sandbox: sb.ID, Project: project, Spec: hutch.ExecSpec{Cmd: "ghost"}, CreatedAt: time.Now()}
	started := hutch.Event{At: time.Now(), Project: project, Sandbox: sb.ID, Exec: ghost.ID, Type: "exec.started"}
	if err := w.db.PutExec(w.ctx(), ghost, started); err != nil {
		t.Fatal(err)
	}
	w.restart()
	w.wantEnd(ghost, hutch.ExecSandboxGone, 137, "")
	if now := w.record(sb.ID); now.State != hutch.StateRunning {
		t.Errorf("the sandbox is %s", now.State)
	}
	w.wantAgreement()
}

// TestRestartWithADeafGuest must not keep the server from starting.
func TestRestartWithADeafGuest(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(w *world) { w.node.CallTimeout = impatient })
	sb, starting, resuming := w.create(), w.create(), w.create()
	if _, err := w.c.PauseSandbox(w.ctx(), project, resuming.ID); err != nil {
		t.Fatal(err)
	}
	for _, id := range []hutch.SandboxID{sb.ID, starting.ID, resuming.ID} {
		w.guest(id).Silence(true)
	}
	w.kill()
	set := func(id hutch.SandboxID, fn func(*hutch.Sandbox) error) {
		t.Helper()
		if _, err := w.db.UpdateSandbox(w.ctx(), id, w.record(id).Epoch, fn); err != nil {
			t.Fatal(err)
		}
	}
	set(resuming.ID, func(s *hutch.Sandbox) error { return s.Begin(hutch.Resuming) })
	set(starting.ID, func(s *hutch.Sandbox) error { s.State, s.Transition = hutch.StateNew, hutch.Starting; return nil })
	w.start()
	if err := w.c.Ready(w.ctx()); err != nil {
		t.Errorf("ready: %v", err)
	}
	w.wantDead(starting.ID, hutch.EndStartFailed)
	if got := w.record(resuming.ID); got.State != hutch.StatePaused || got.Transition != "" {
		t.Errorf("the one that did not come back from its pause is %s %s", got.State, got.Transition)
	}
	_, err := w.c.StartExec(w.ctx(), project, sb.ID, hutch.ExecRequest{Spec: hutch.ExecSpec{Cmd: "true"}})
	wantError(t, "exec", err, hutch.ErrGuestUnresponsive)
	w.guest(sb.ID).Silence(false)
	w.guest(resuming.ID).Silence(false)
	w.wantEnd(w.exec(sb, "echo on"), hutch.ExecExit, 0, "on\n")
	if _, err := w.c.ResumeSandbox(w.ctx(), project, resuming.ID); err != nil {
		t.Errorf("resume: %v", err)
	}
	w.wantEnd(w.exec(resuming, "echo on"), hutch.ExecExit, 0, "on\n")
}

// TestRestartKeepsTheRowsDeadline is a crash between the row and the node of an extension.
func TestRestartKeepsTheRowsDeadline(t *testing.T) {
	w := newWorld(t)
	sb := w.create()
	at := sb.ExpiresAt.Add(time.Hour)
	w.kill()
	if _, err := w.db.UpdateSandbox(w.ctx(), sb.ID, sb.Epoch, func(s *hutch.Sandbox) error { s.ExpiresAt = at; return nil }); err != nil {
		t.Fatal(err)
	}
	w.start()
	kept, err := w.watch.Get(w.ctx(), sb.ID)
	closeHandles(kept.Handles)
	if err != nil || !kept.Deadline.Equal(at) {
		t.Errorf("the keeper holds %v (%v), the row %v", kept.Deadline, err, at)
	}
}
