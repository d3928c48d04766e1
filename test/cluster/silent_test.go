package cluster

import (
	"errors"
	"slices"
	"testing"
	"time"

	"hutch.dev/hutch"
)

// signs are the events of a sandbox that say whether it answers.
func (w *world) signs(id hutch.SandboxID) (l []string) {
	w.t.Helper()
	for _, ev := range w.events(id) {
		if ev.Type == "sandbox.unresponsive" || ev.Type == "sandbox.responsive" {
			l = append(l, ev.Type)
		}
	}
	return l
}

func (w *world) wantSigns(id hutch.SandboxID, want ...string) {
	w.t.Helper()
	eventually(w.t, "it is on record whether the sandbox answers", func() error {
		if got := w.signs(id); !slices.Equal(got, want) {
			return errors.New("so far: " + show(w.events(id)))
		}
		return nil
	})
}

// A guest that falls silent is noticed by who asks it for something, in short, and by who waits
// for a command, soon. When it goes on, so does everything else.
func TestSilentGuest(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(w *world) { w.node.CallTimeout, w.node.Silence = limit, limit })
	sb, other := w.create(), w.create()
	x := w.exec(sb, "echo seen; hang")
	w.sees(x, "seen")
	w.guest(sb.ID).Silence(true)
	waits := map[string]chan error{"wait": make(chan error, 1), "follow": make(chan error, 1)}
	ctx := w.ctx()
	go func() {
		_, err := w.c.WaitExec(ctx, project, sb.ID, x.ID)
		waits["wait"] <- err
	}()
	go func() {
		got := ""
		_, err := w.c.FollowExec(ctx, project, sb.ID, x.ID, hutch.FollowOptions{Stdout: 5}, collect(&got))
		waits["follow"] <- err
	}()
	began := time.Now()
	_, err := w.c.StartExec(w.ctx(), project, sb.ID, hutch.ExecRequest{Spec: hutch.ExecSpec{Cmd: "true"}})
	wantError(t, "a command", err, hutch.ErrGuestUnresponsive)
	// Far from the minute that the call might have taken: how far is for who measures.
	if d := time.Since(began); d > limit/2 {
		t.Errorf("that took %v", d)
	}
	wantError(t, "a signal", w.c.SignalExec(w.ctx(), project, sb.ID, x.ID, "TERM", true), hutch.ErrGuestUnresponsive)
	w.wantSigns(sb.ID, "sandbox.unresponsive")
	for what, ch := range waits {
		wantError(t, what, within(t, what, ch), hutch.ErrGuestUnresponsive)
	}
	w.wantEnd(w.exec(other, "echo fine"), hutch.ExecExit, 0, "fine\n")
	if sb := w.record(sb.ID); sb.State != hutch.StateRunning {
		t.Errorf("it is %s, which nobody asked for", sb.State)
	}
	w.guest(sb.ID).Silence(false)
	w.wantSigns(sb.ID, "sandbox.unresponsive", "sandbox.responsive")
	w.wantEnd(w.exec(sb, "echo again"), hutch.ExecExit, 0, "again\n")
	if _, err := w.c.CancelExec(w.ctx(), project, sb.ID, x.ID, new(time.Duration)); err != nil {
		t.Errorf("cancel: %v", err)
	}
	w.wantEnd(x, hutch.ExecCancelled, 137, "seen\n")
	w.wantSigns(other.ID)
	w.wantAgreement()
}

// Where the operator wants that, a sandbox that stays silent is ended, whatever runs in it;
// never one that is paused, and not one that answers.
func TestSilentSandboxIsEnded(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(w *world) { w.node.EndSilent, w.node.CallTimeout = 5*time.Second, limit })
	sb, paused, well := w.create(), w.create(), w.create()
	x, y := w.exec(sb, "echo seen; hang"), w.exec(well, "hang")
	w.sees(x, "seen")
	w.watched(sb)
	if _, err := w.c.PauseSandbox(w.ctx(), project, paused.ID); err != nil {
		t.Fatal(err)
	}
	w.guest(paused.ID).Silence(true)
	w.guest(sb.ID).Silence(true)
	if dead := w.wantDead(sb.ID, hutch.EndSilent); dead.EndDetail == "" {
		t.Error("it does not say how long it was silent")
	}
	w.wantEnd(x, hutch.ExecSandboxGone, 137, "seen\n")
	w.wantSigns(sb.ID, "sandbox.unresponsive")
	if r := w.record(paused.ID); r.State != hutch.StatePaused || len(w.signs(paused.ID)) > 0 {
		t.Errorf("the paused one is %s\n%s", r.State, show(w.events(paused.ID)))
	}
	if _, err := w.c.CancelExec(w.ctx(), project, well.ID, y.ID, new(time.Duration)); err != nil {
		t.Errorf("the one that is well: %v", err)
	}
	w.wantAgreement()
	w.tally.wantEnds(t, map[hutch.SandboxEnd]int{hutch.EndSilent: 1})
}

// After a restart of the server nobody need ask for anything: the guests of all sandboxes are.
func TestSilentAcrossARestart(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(w *world) { w.node.EndSilent = 5 * time.Second })
	sb, well := w.create(), w.create()
	w.kill()
	w.host.Guest(sb.ID).Silence(true)
	w.start()
	w.wantDead(sb.ID, hutch.EndSilent)
	w.wantEnd(w.exec(well, "echo fine"), hutch.ExecExit, 0, "fine\n")
	w.wantAgreement()
}
