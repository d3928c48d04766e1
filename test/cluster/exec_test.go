package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/store"
)

func TestExecManyWaiters(t *testing.T) {
	w := newWorld(t)
	sb := w.create()
	x := w.exec(sb, "cat", func(r *hutch.ExecRequest) { r.Spec.StdinOpen = true })
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() { w.wantEnd(x, hutch.ExecExit, 0, "done\n") })
		wg.Go(func() {
			got := ""
			if _, err := w.c.FollowExec(w.ctx(), project, sb.ID, x.ID, hutch.FollowOptions{}, collect(&got)); err != nil || got != "done\n" {
				t.Errorf("follow: %q, %v", got, err)
			}
		})
	}
	ctx, leave := context.WithCancel(w.ctx())
	leave()
	_, err := w.c.WaitExec(ctx, project, sb.ID, x.ID)
	wantError(t, "a waiter who leaves", err, hutch.ErrCancelled)
	if _, err := w.c.WriteStdin(w.ctx(), project, sb.ID, x.ID, hutch.StdinChunk{Data: strings.NewReader("done\n"), End: true}); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	if rec, err := w.db.Exec(w.ctx(), x.ID); err != nil || rec.Result == nil {
		eventually(t, "it is on record", func() error {
			if rec, err = w.db.Exec(w.ctx(), x.ID); err == nil && rec.Result == nil {
				err = errInjected
			}
			return err
		})
	}
}

// TestExecShortOnes starts commands that end before their start is answered: the end may
// be reported first, and must not be lost, nor come first on record.
func TestExecShortOnes(t *testing.T) {
	w := newWorld(t)
	sb := w.create()
	var wg sync.WaitGroup
	for i := range 50 {
		wg.Go(func() {
			x := w.wantEnd(w.exec(sb, fmt.Sprint("exit ", i)), hutch.ExecExit, i, "")
			if x.Spec.Cmd != fmt.Sprint("exit ", i) || x.PID == 0 {
				t.Errorf("its record: %+v", x)
			}
		})
	}
	wg.Wait()
	l, next, err := w.c.ListExecs(w.ctx(), hutch.ExecQuery{Project: project, Sandbox: sb.ID})
	if err != nil || len(l) != 50 || next != "" {
		t.Fatalf("%d commands listed, %q, %v", len(l), next, err)
	}
	for _, x := range l {
		if x.Result == nil || x.Spec.Cmd == "" {
			t.Errorf("listed: %+v", x)
		}
	}
	running, _, err := w.c.ListExecs(w.ctx(), hutch.ExecQuery{Project: project, Sandbox: sb.ID, Running: true})
	if err != nil || len(running) != 0 {
		t.Errorf("%d are listed as running, %v", len(running), err)
	}
	w.wantAgreement()
}

func TestExecSameIDStartsOnce(t *testing.T) {
	w := newWorld(t)
	sb := w.create()
	xid := newExecID()
	start := func() (hutch.Exec, error) {
		return w.c.StartExec(w.ctx(), project, sb.ID, hutch.ExecRequest{ID: xid, Spec: hutch.ExecSpec{Cmd: "echo x >> /count; cat /count"}})
	}
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			x, err := start()
			if err != nil || x.ID != xid || x.PID == 0 {
				t.Errorf("got %+v, %v", x, err)
				return
			}
			w.wantEnd(x, hutch.ExecExit, 0, "x\n")
			if x, err = start(); err != nil || x.Result == nil {
				t.Errorf("asked after its end: %+v, %v", x, err)
			}
		})
	}
	wg.Wait()
	other := w.create()
	_, err := w.c.StartExec(w.ctx(), project, other.ID, hutch.ExecRequest{ID: xid, Spec: hutch.ExecSpec{Cmd: "true"}})
	wantError(t, "one id for commands of two sandboxes", err, hutch.ErrConflict)
	w.wantAgreement()
}

func TestExecKeepsNoSecrets(t *testing.T) {
	w := newWorld(t)
	sb := w.create(func(r *hutch.CreateSandbox) { r.Env = map[string]string{"SB_KEY": "canary-1"} })
	x := w.exec(sb, "env EX_KEY; env SB_KEY", func(r *hutch.ExecRequest) { r.Spec.Env = map[string]string{"EX_KEY": "canary-2"} })
	w.wantEnd(x, hutch.ExecExit, 0, "canary-2\ncanary-1\n")
	if _, _, err := w.c.ListExecs(w.ctx(), hutch.ExecQuery{Project: project, Sandbox: sb.ID}); err != nil {
		t.Fatal(err)
	}
	rec, err := w.db.Exec(w.ctx(), x.ID)
	if err != nil {
		t.Fatal(err)
	}
	if v, ok := rec.Spec.Env["EX_KEY"]; !ok || v != "" {
		t.Errorf("the record has %q", rec.Spec.Env)
	}
	if got := w.log.String(); strings.Contains(got, "canary") {
		t.Error("the log has what belongs to the tenant")
	}
}

func TestExecFollowFromOffsets(t *testing.T) {
	w := newWorld(t)
	sb := w.create()
	const budget = 1000
	x := w.exec(sb, "out 5000; err oops; cat", func(r *hutch.ExecRequest) { r.Spec.StdinOpen, r.Spec.MaxOutputBytes = true, budget })
	w.sees(x, "0123456789")
	full := strings.Repeat("0123456789", 500)
	follow := func(o hutch.FollowOptions) (data string, gap [2]int64) {
		t.Helper()
		x, err := w.c.FollowExec(w.ctx(), project, sb.ID, x.ID, o, func(ev hutch.OutputEvent) error {
			if ev.Stream == hutch.Stdout {
				data += string(ev.Data)
				if ev.GapTo > 0 {
					gap = [2]int64{ev.Offset, ev.GapTo}
				}
			}
			return nil
		})
		if err != nil {
			t.Fatalf("follow %+v: %v", o, err)
		}
		if !o.NoWait && x.Result == nil {
			t.Errorf("followed to the end, without a result")
		}
		return data, gap
	}
	if got, _ := follow(hutch.FollowOptions{Stdout: 4321, NoWait: true}); got != full[4321:] {
		t.Errorf("from an offset: %d bytes", len(got))
	}
	sinkErr := errors.New("the caller's connection broke")
	_, err := w.c.FollowExec(w.ctx(), project, sb.ID, x.ID, hutch.FollowOptions{}, func(hutch.OutputEvent) error { return sinkErr })
	wantError(t, "a sink that fails", err, sinkErr)
	if _, err := w.c.WriteStdin(w.ctx(), project, sb.ID, x.ID, hutch.StdinChunk{Data: strings.NewReader("end"), End: true}); err != nil {
		t.Fatal(err)
	}
	r := w.wait(x).Result
	if r.Stdout.Total != 5003 || r.Stdout.Dropped != 4003 || string(r.Stderr.Head) != "oops\n" {
		t.Errorf("result: %d bytes, %d dropped, stderr %q", r.Stdout.Total, r.Stdout.Dropped, r.Stderr.Head)
	}
	full += "end"
	want := full[:budget/4] + full[len(full)-budget*3/4:]
	check := func(when string) {
		t.Helper()
		if got, gap := follow(hutch.FollowOptions{Budgeted: true}); got != want || gap != [2]int64{budget / 4, int64(len(full)) - budget*3/4} {
			t.Errorf("%s: %d bytes, gap %v", when, len(got), gap)
		}
		if got, _ := follow(hutch.FollowOptions{Stdout: int64(len(full)) - 10}); got != full[len(full)-10:] {
			t.Errorf("%s, from an offset: %q", when, got)
		}
	}
	check("after the end")
	if _, err := w.c.PauseSandbox(w.ctx(), project, sb.ID); err != nil {
		t.Fatal(err)
	}
	check("while it is paused")
	if _, err := w.c.KillSandbox(w.ctx(), project, sb.ID); err != nil {
		t.Fatal(err)
	}
	check("from the record of a dead sandbox")
	w.restart()
	check("after a restart")
	w.wantAgreement()
}

func TestExecInPausedAndDeadSandboxes(t *testing.T) {
	w := newWorld(t)
	sb := w.create()
	x := w.exec(sb, "hang")
	if _, err := w.c.PauseSandbox(w.ctx(), project, sb.ID); err != nil {
		t.Fatal(err)
	}
	calls := map[string]func() error{
		"exec": func() error {
			_, err := w.c.StartExec(w.ctx(), project, sb.ID, hutch.ExecRequest{Spec: hutch.ExecSpec{Cmd: "true"}})
			return err
		},
		"stdin": func() error {
			_, err := w.c.WriteStdin(w.ctx(), project, sb.ID, x.ID, hutch.StdinChunk{Data: strings.NewReader("")})
			return err
		},
		"signal": func() error { return w.c.SignalExec(w.ctx(), project, sb.ID, x.ID, "INT", false) },
	}
	running := map[string]func() error{
		"follow": func() error {
			_, err := w.c.FollowExec(w.ctx(), project, sb.ID, x.ID, hutch.FollowOptions{}, collect(new(string)))
			return err
		},
		"look": func() error {
			_, err := w.c.FollowExec(w.ctx(), project, sb.ID, x.ID, hutch.FollowOptions{NoWait: true}, collect(new(string)))
			return err
		},
		"cancel": func() error {
			_, err := w.c.CancelExec(w.ctx(), project, sb.ID, x.ID, nil)
			return err
		},
	}
	for name, call := range calls {
		wantError(t, name+" while paused", call(), hutch.ErrInvalidState)
	}
	for name, call := range running {
		wantError(t, name+" while paused", call(), hutch.ErrInvalidState)
	}
	if _, err := w.c.KillSandbox(w.ctx(), project, sb.ID); err != nil {
		t.Fatal(err)
	}
	for name, call := range calls {
		wantError(t, name+" when dead", call(), hutch.ErrSandboxGone)
	}
	for name, call := range running {
		if err := call(); err != nil {
			t.Errorf("%s of what is on record: %v", name, err)
		}
	}
	w.wantEnd(x, hutch.ExecSandboxGone, 137, "")
	if _, err := w.c.WaitExec(w.ctx(), project, sb.ID, newExecID()); !errors.Is(err, hutch.ErrNotFound) {
		t.Errorf("an unknown command: %v", err)
	}
	w.wantAgreement()
}

func TestExecCancel(t *testing.T) {
	w := newWorld(t)
	sb := w.create()
	x := w.exec(sb, "echo begun; sleep 1000")
	w.sees(x, "begun")
	var wg sync.WaitGroup
	for range 10 {
		wg.Go(func() {
			got, err := w.c.CancelExec(w.ctx(), project, sb.ID, x.ID, nil)
			if err != nil || got.Result == nil || got.Result.End != hutch.ExecCancelled || got.Result.ExitCode != 143 {
				t.Errorf("cancel: %+v, %v", got.Result, err)
			}
		})
	}
	wg.Wait()
	if got, err := w.c.CancelExec(w.ctx(), project, sb.ID, x.ID, nil); err != nil || got.Result.End != hutch.ExecCancelled {
		t.Errorf("cancel after the end: %+v, %v", got.Result, err)
	}
	deaf := w.exec(sb, "hang")
	grace := time.Millisecond
	if got, err := w.c.CancelExec(w.ctx(), project, sb.ID, deaf.ID, &grace); err != nil || !got.Result.Escalated || got.Result.ExitCode != 137 {
		t.Errorf("cancel what ignores TERM: %+v, %v", got.Result, err)
	}
	tooLong := hutch.MaxGrace + 1
	_, err := w.c.CancelExec(w.ctx(), project, sb.ID, x.ID, &tooLong)
	wantError(t, "a grace too long", err, hutch.ErrBadRequest)

	done := w.wantEnd(w.exec(sb, "echo fine"), hutch.ExecExit, 0, "fine\n")
	if got, err := w.c.CancelExec(w.ctx(), project, sb.ID, done.ID, nil); err != nil || got.Result.End != hutch.ExecExit {
		t.Errorf("cancel what ended well: %+v, %v", got.Result, err)
	}
	w.wantAgreement()
}

func TestExecSignal(t *testing.T) {
	w := newWorld(t)
	sb := w.create()
	x := w.exec(sb, "sleep 1000")
	if err := w.c.SignalExec(w.ctx(), project, sb.ID, x.ID, "INT", false); err != nil {
		t.Fatal(err)
	}
	w.wantEnd(x, hutch.ExecSignal, 130, "")
	err := w.c.SignalExec(w.ctx(), project, sb.ID, x.ID, "INT", false)
	if !errors.Is(err, hutch.ErrInvalidState) && !errors.Is(err, hutch.ErrNotFound) {
		t.Errorf("signal what has ended: %v", err)
	}
	y := w.exec(sb, "sleep 1000")
	wantError(t, "no such signal", w.c.SignalExec(w.ctx(), project, sb.ID, y.ID, "FROB", false), hutch.ErrBadRequest)
	wantError(t, "of another project", w.c.SignalExec(w.ctx(), "another", sb.ID, y.ID, "INT", false), hutch.ErrNotFound)
}

func TestExecStdinOffsets(t *testing.T) {
	w := newWorld(t)
	sb := w.create()
	x := w.exec(sb, "cat", func(r *hutch.ExecRequest) { r.Spec.StdinOpen = true })
	write := func(offset int64, s string, end bool) (int64, error) {
		return w.c.WriteStdin(w.ctx(), project, sb.ID, x.ID, hutch.StdinChunk{Offset: offset, Data: strings.NewReader(s), End: end})
	}
	for _, c := range []struct {
		at   int64
		s    string
		have int64
	}{{0, "abc", 3}, {0, "abc", 3}, {1, "bcde", 5}, {5, "", 5}, {5, "f", 6}} {
		if n, err := write(c.at, c.s, false); err != nil || n != c.have {
			t.Errorf("%q at %d: has %d (%v), want %d", c.s, c.at, n, err, c.have)
		}
	}
	_, err := write(10, "x", false)
	wantError(t, "a hole", err, hutch.ErrConflict)
	if _, err := write(6, "!", true); err != nil {
		t.Error(err)
	}
	w.wantEnd(x, hutch.ExecExit, 0, "abcdef!")

	// All of it known beforehand.
	y := w.exec(sb, "cat", func(r *hutch.ExecRequest) { r.Stdin = strings.NewReader("from the request") })
	w.wantEnd(y, hutch.ExecExit, 0, "from the request")
	z := w.exec(sb, "sleep 1000")
	_, err = w.c.WriteStdin(w.ctx(), project, sb.ID, z.ID, hutch.StdinChunk{Data: strings.NewReader("x")})
	wantError(t, "without stdin", err, hutch.ErrInvalidState)
}

func TestExecGuestFallsSilent(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(w *world) { w.node.CallTimeout, w.node.Silence = impatient, impatient })
	sb := w.create()
	x := w.exec(sb, "echo seen; cat", func(r *hutch.ExecRequest) { r.Spec.StdinOpen, r.Spec.Grace = true, 10*time.Millisecond })
	w.sees(x, "seen")
	w.watched(sb)
	got := ""
	followed := make(chan error, 1)
	seen := make(chan struct{}, 10)
	go func() {
		_, err := w.c.FollowExec(w.ctx(), project, sb.ID, x.ID, hutch.FollowOptions{}, func(ev hutch.OutputEvent) error {
			seen <- struct{}{}
			return collect(&got)(ev)
		})
		followed <- err
	}()
	within(t, "a follower is served", seen)
	w.guest(sb.ID).Silence(true)
	var wg sync.WaitGroup
	for name, call := range map[string]func() error{
		"start": func() error {
			_, err := w.c.StartExec(w.ctx(), project, sb.ID, hutch.ExecRequest{Spec: hutch.ExecSpec{Cmd: "true"}})
			return err
		},
		"follow": func() error {
			_, err := w.c.FollowExec(w.ctx(), project, sb.ID, x.ID, hutch.FollowOptions{}, collect(new(string)))
			return err
		},
		"stdin": func() error {
			_, err := w.c.WriteStdin(w.ctx(), project, sb.ID, x.ID, hutch.StdinChunk{Data: strings.NewReader("x")})
			return err
		},
		"signal": func() error { return w.c.SignalExec(w.ctx(), project, sb.ID, x.ID, "INT", false) },
		"cancel": func() error {
			_, err := w.c.CancelExec(w.ctx(), project, sb.ID, x.ID, nil)
			return err
		},
	} {
		wg.Go(func() { wantError(t, name, call(), hutch.ErrGuestUnresponsive) })
	}
	wg.Wait()
	wantError(t, "a follower from before", within(t, "it is told", followed), hutch.ErrGuestUnresponsive)
	if _, err := w.c.KillSandbox(w.ctx(), project, sb.ID); err != nil {
		t.Errorf("a silent sandbox could not be killed: %v", err)
	}
	w.wantEnd(x, hutch.ExecSandboxGone, 137, "seen\n")
	w.wantAgreement()
}

func TestExecGuestSpeaksGarbage(t *testing.T) {
	w := newWorld(t, func(w *world) { w.node.CallTimeout = impatient })
	sb := w.create()
	x := w.exec(sb, "hang")
	w.guest(sb.ID).Garble(true)
	_, err := w.c.StartExec(w.ctx(), project, sb.ID, hutch.ExecRequest{Spec: hutch.ExecSpec{Cmd: "true"}})
	wantError(t, "start", err, hutch.ErrGuestUnresponsive)
	_, err = w.c.FollowExec(w.ctx(), project, sb.ID, x.ID, hutch.FollowOptions{}, collect(new(string)))
	wantError(t, "follow", err, hutch.ErrGuestUnresponsive)
	_, err = w.c.CancelExec(w.ctx(), project, sb.ID, x.ID, nil)
	wantError(t, "cancel", err, hutch.ErrGuestUnresponsive)
	if _, err := w.c.KillSandbox(w.ctx(), project, sb.ID); err != nil {
		t.Errorf("it could not be killed: %v", err)
	}
	w.wantEnd(x, hutch.ExecSandboxGone, 137, "")
	w.wantAgreement()
}

func TestExecTimeouts(t *testing.T) {
	w := newWorld(t)
	sb := w.create()
	const long = 2 * time.Second // enough to say something on a busy machine
	x := w.exec(sb, "echo a; sleep 1000", func(r *hutch.ExecRequest) { r.Spec.Timeout = long })
	y := w.exec(sb, "echo b; sleep 1000", func(r *hutch.ExecRequest) { r.Spec.NoOutputTimeout = long })
	w.wantEnd(x, hutch.ExecTimeout, hutch.ExitTimeout, "a\n")
	w.wantEnd(y, hutch.ExecNoOutput, hutch.ExitTimeout, "b\n")
	for _, cmd := range []string{"oom", "oom-child"} {
		z := w.wantEnd(w.exec(sb, cmd), hutch.ExecOOM, 137, "")
		if z.Result.Signal != "KILL" || !strings.Contains(z.Result.Detail, "limit") {
			t.Errorf("%s: signal %q, %q", cmd, z.Result.Signal, z.Result.Detail)
		}
	}
	w.wantEnd(w.exec(sb, "exit 137"), hutch.ExecExit, 137, "")
	// One that goes on after it is told so, and the next is not.
	z := w.wantEnd(w.exec(sb, "oom-other; exit 3"), hutch.ExecExit, 3, "")
	if !slices.Equal(z.Result.LimitsHit, []string{"memory"}) || !strings.Contains(z.Result.Detail, "limit") {
		t.Errorf("a process of it was killed for memory: %v, %q", z.Result.LimitsHit, z.Result.Detail)
	}
	if z = w.wantEnd(w.exec(sb, "exit 3"), hutch.ExecExit, 3, ""); len(z.Result.LimitsHit) > 0 {
		t.Errorf("the next: %v, %q", z.Result.LimitsHit, z.Result.Detail)
	}
}

// TestExecBackstopEndsTheSandbox has a guest that does not hold a command's timeout, nor
// answers when it is asked to stop it.
func TestExecBackstopEndsTheSandbox(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(w *world) { w.node.CallTimeout = impatient })
	sb := w.create()
	x := w.exec(sb, "echo seen; hang", func(r *hutch.ExecRequest) {
		r.Spec.Timeout, r.Spec.Grace = 5*time.Second, 10*time.Millisecond // it is silent long before
	})
	w.sees(x, "seen")
	w.watched(sb)
	w.guest(sb.ID).Silence(true)
	w.wantEnd(x, hutch.ExecSandboxGone, 137, "seen\n")
	w.wantDead(sb.ID, hutch.EndUnstoppable)
	w.tally.wantEnds(t, map[hutch.SandboxEnd]int{hutch.EndUnstoppable: 1})
	w.wantAgreement()
}

// TestExecBackstopHoldsAfterARestart is the same for a command of an earlier server.
func TestExecBackstopHoldsAfterARestart(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(w *world) { w.node.CallTimeout = impatient })
	sb := w.create()
	x := w.exec(sb, "hang", func(r *hutch.ExecRequest) {
		r.Spec.Timeout, r.Spec.Grace = 500*time.Millisecond, 10*time.Millisecond
	})
	w.guest(sb.ID).Silence(true) // at once: the records may take longer than its timeout
	w.storedStart(x)
	w.restart()
	w.wantEnd(x, hutch.ExecSandboxGone, 137, "")
	w.wantDead(sb.ID, hutch.EndUnstoppable)
	w.wantAgreement()
}

// storedStart waits until a command's start is on record.
func (w *world) storedStart(x hutch.Exec) {
	w.t.Helper()
	eventually(w.t, "the start is on record", func() error {
		_, err := w.db.Exec(w.ctx(), x.ID)
		return err
	})
}

// watched lets time pass in the sandbox's terms: so many commands run one after the other
// through the same stream that the watch on x has long seen what x wrote before.
func (w *world) watched(sb hutch.Sandbox) {
	w.t.Helper()
	for range 10 {
		w.wait(w.exec(sb, "true"))
	}
}

func TestExecPauseDoesNotSpendTimeouts(t *testing.T) {
	w := newWorld(t, func(w *world) { w.node.StopSlack = time.Second }) // which a guest that is well never needs
	sb := w.create()
	x := w.exec(sb, "tick 10")
	w.sees(x, "tick 1")
	y := w.exec(sb, "hang", func(r *hutch.ExecRequest) {
		r.Spec.Timeout, r.Spec.Grace = 100*time.Millisecond, 10*time.Millisecond
	})
	if _, err := w.c.PauseSandbox(w.ctx(), project, sb.ID); err != nil {
		t.Fatal(err)
	}
	over := time.After(1500 * time.Millisecond) // past timeout, grace and slack
	<-over
	if now := w.record(sb.ID); now.State != hutch.StatePaused {
		t.Fatalf("a paused sandbox was ended for a command that could not run: %s %s", now.State, now.EndReason)
	}
	if _, err := w.c.ResumeSandbox(w.ctx(), project, sb.ID); err != nil {
		t.Fatal(err)
	}
	w.wantEnd(y, hutch.ExecTimeout, hutch.ExitTimeout, "")
	w.sees(x, "tick 3")
	w.wantAgreement()
}

func TestExecEventsAreWatchedAsTheyCome(t *testing.T) {
	w := newWorld(t)
	sb := w.create()
	var types []string
	watched := make(chan error, 1)
	started := make(chan struct{}, 1)
	go func() {
		watched <- w.c.WatchEvents(w.ctx(), hutch.EventQuery{Project: project, Sandbox: sb.ID}, func(ev hutch.Event) error {
			types = append(types, ev.Type)
			if ev.Type == "exec.started" {
				started <- struct{}{}
			}
			return nil
		})
	}()
	x := w.exec(sb, "cat", func(r *hutch.ExecRequest) { r.Spec.StdinOpen = true })
	within(t, "the start is seen while it runs", started)
	if _, err := w.c.WriteStdin(w.ctx(), project, sb.ID, x.ID, hutch.StdinChunk{Data: strings.NewReader(""), End: true}); err != nil {
		t.Fatal(err)
	}
	w.wait(x)
	if _, err := w.c.KillSandbox(w.ctx(), project, sb.ID); err != nil {
		t.Fatal(err)
	}
	if err := within(t, "the watch ends with its sandbox", watched); err != nil {
		t.Error(err)
	}
	if got, want := strings.Join(types, " "), "sandbox.creating sandbox.started exec.started exec.ended sandbox.ended"; got != want {
		t.Errorf("seen: %s\nwant: %s", got, want)
	}
	l, err := w.c.Events(w.ctx(), hutch.EventQuery{Project: project, Sandbox: sb.ID, Limit: store.Page{}.Limit})
	if err != nil || len(l) != 5 {
		t.Errorf("%d events on record, %v", len(l), err)
	}
}

// A start that was not answered in time may have been made all the same: then the command is
// on record, with what was asked for, and is watched to its end.
func TestStartThatIsNotAnswered(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(w *world) { w.node.CallTimeout = impatient })
	sb := w.create()
	g := w.guest(sb.ID)
	g.Mute(true) // it does what it is asked, and does not say so
	id := newExecID()
	req := hutch.ExecRequest{ID: id, Spec: hutch.ExecSpec{Cmd: "echo done", Tag: "asked"}}
	_, err := w.c.StartExec(w.ctx(), project, sb.ID, req)
	wantError(t, "a start that is not answered", err, hutch.ErrGuestUnresponsive)
	g.Mute(false)
	eventually(t, "the command is on record", func() error {
		_, err := w.c.Exec(w.ctx(), project, id)
		return err
	})
	x := w.wantEnd(hutch.Exec{ID: id, Sandbox: sb.ID}, hutch.ExecExit, 0, "done\n")
	if x.Spec.Tag != "asked" || x.Spec.Cmd != "echo done" || x.PID == 0 {
		t.Errorf("the record: %+v", x)
	}
	if again, err := w.c.StartExec(w.ctx(), project, sb.ID, req); err != nil || again.ID != id || again.PID != x.PID {
		t.Errorf("asked again: %+v, %v; want the same command", again, err)
	}
	// One that was not made is not.
	g.Silence(true)
	_, err = w.c.StartExec(w.ctx(), project, sb.ID, hutch.ExecRequest{Spec: hutch.ExecSpec{Cmd: "true"}})
	wantError(t, "a start by a silent guest", err, hutch.ErrGuestUnresponsive)
	g.Silence(false)
	w.wantEnd(w.exec(sb, "echo on"), hutch.ExecExit, 0, "on\n")
}
