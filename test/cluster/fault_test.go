package cluster

import (
	"errors"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/control"
	"hutch.dev/hutch/internal/keeper"
	"hutch.dev/hutch/internal/x/failpoint"
)

// The fault walk on the fake isolator: the server is killed at each failpoint of control plane
// and node, in the middle of what reaches it, and another one takes over. The walk on real
// sandboxes, with the points below these, is in test/e2e.

// scene is what a server is killed in.
type scene struct {
	name   string
	points []failpoint.Name
	nth    int            // 0 = 1
	world  []func(*world) // what is special about it
	ready  func(w *world) // comes before act, on a server that is well
	// act is what reaches the points; it gets the sandbox that there is.
	act func(w *world, c *control.Control, sb hutch.Sandbox)
	// check says what must have become of it.
	check func(w *world, sb hutch.Sandbox, at failpoint.Name)
}

func scenes() []scene {
	dead := func(why hutch.SandboxEnd) func(*world, hutch.Sandbox, failpoint.Name) {
		return func(w *world, sb hutch.Sandbox, _ failpoint.Name) { w.wantDead(sb.ID, why) }
	}
	return []scene{
		{
			name: "create",
			points: []failpoint.Name{
				failpoint.CreateBegun, failpoint.CreateRecorded, failpoint.StartKept, failpoint.StartLinked, failpoint.StartUp,
				failpoint.StartGreeted, failpoint.CreateMade, failpoint.CreateFinished,
			},
			act: createNext,
			check: func(w *world, sb hutch.Sandbox, at failpoint.Name) {
				alive(w, sb, at)
				w.checkNext(at == failpoint.CreateMade || at == failpoint.CreateFinished)
			},
		},
		{
			name: "exec", points: []failpoint.Name{failpoint.ExecLaunched, failpoint.ExecRecorded, failpoint.ExecReported}, act: runOne, check: ranOnce,
		},
		{name: "long exec", points: []failpoint.Name{failpoint.ExecRecorded}, act: runLong, check: ranLong},
		{name: "long exec's end", points: []failpoint.Name{failpoint.ExecRecorded}, nth: 2, act: runLong, check: ranLong},
		{
			name: "pause", points: []failpoint.Name{failpoint.TurnBegun, failpoint.TurnMade, failpoint.TurnFinished},
			act: func(w *world, c *control.Control, sb hutch.Sandbox) { _, _ = c.PauseSandbox(w.ctx(), project, sb.ID) },
			check: func(w *world, sb hutch.Sandbox, at failpoint.Name) {
				if rec := w.record(sb.ID); rec.Transition != "" || rec.State != hutch.StatePaused {
					w.t.Errorf("it is %s %s", rec.State, rec.Transition)
				}
				if _, err := w.c.ResumeSandbox(w.ctx(), project, sb.ID); err != nil {
					w.t.Error(err)
				}
				alive(w, sb, at)
			},
		},
		{
			name: "extend", points: []failpoint.Name{failpoint.ExtendRecorded, failpoint.DeadlineKept},
			act: func(w *world, c *control.Control, sb hutch.Sandbox) {
				_, _ = c.ExtendSandbox(w.ctx(), project, sb.ID, 5*time.Hour)
			},
			check: func(w *world, sb hutch.Sandbox, at failpoint.Name) {
				rec := w.record(sb.ID)
				infos, err := w.watch.List(w.ctx())
				i := slices.IndexFunc(infos, func(i keeper.Info) bool { return i.Name == sb.ID })
				if err != nil || i < 0 || !infos[i].Deadline.Equal(rec.ExpiresAt) || time.Until(rec.ExpiresAt) < 4*time.Hour {
					w.t.Errorf("it ends at %s on record, with the keeper %+v, %v", rec.ExpiresAt, infos, err)
				}
				alive(w, sb, at)
			},
		},
		{
			name: "kill",
			points: []failpoint.Name{
				failpoint.KillBegun, failpoint.EndCleared, failpoint.EndForgotten, failpoint.KillMade, failpoint.EndExecs, failpoint.EndCharged, failpoint.EndRecorded,
			},
			act:   func(w *world, c *control.Control, sb hutch.Sandbox) { _, _ = c.KillSandbox(w.ctx(), project, sb.ID) },
			check: dead(hutch.EndKilled),
		},
		{
			name:   "crash",
			points: []failpoint.Name{failpoint.EndCleared, failpoint.EndExecs, failpoint.EndCharged, failpoint.EndRecorded, failpoint.EndTold, failpoint.EndForgotten},
			act:    func(w *world, _ *control.Control, sb hutch.Sandbox) { w.guest(sb.ID).Crash() },
			check:  dead(hutch.EndCrashed),
		},
		{
			name:   "an owner who is gone",
			points: []failpoint.Name{failpoint.ReapDue, failpoint.EndCleared, failpoint.EndExecs, failpoint.EndCharged, failpoint.EndRecorded},
			act:    func(w *world, _ *control.Control, sb hutch.Sandbox) { w.lapse(sb.ID) },
			check:  dead(hutch.EndOwnerGone),
		},
	}
}

// alive says that the sandbox there was runs.
func alive(w *world, sb hutch.Sandbox, _ failpoint.Name) {
	w.t.Helper()
	w.wantEnd(w.exec(sb, "echo on"), hutch.ExecExit, 0, "on\n")
}

// preparedScenes are those of machines that are made before anybody asks for them.
func preparedScenes() []scene {
	return []scene{
		{
			name: "create on a machine made ready", world: []func(*world){ahead}, ready: claimed,
			points: []failpoint.Name{
				failpoint.PrepareTaken, failpoint.CreateBegun, failpoint.CreateRecorded, failpoint.StartRuns, failpoint.StartKept,
				failpoint.StartLinked, failpoint.StartUp, failpoint.StartGreeted, failpoint.CreateMade, failpoint.CreateFinished,
			},
			act: createNext,
			check: func(w *world, sb hutch.Sandbox, at failpoint.Name) {
				alive(w, sb, at)
				w.checkNext(at == failpoint.CreateMade || at == failpoint.CreateFinished)
			},
		},
		{
			name: "machine made ready", world: []func(*world){ahead}, ready: claimed,
			points: []failpoint.Name{failpoint.PrepareMade, failpoint.PrepareShelved},
			act:    createNext, // in place of the one it takes, there is to be another
			check: func(w *world, sb hutch.Sandbox, at failpoint.Name) {
				alive(w, sb, at)
				w.checkNext(false) // it may have been under way still
			},
		},
		{
			name: "machine that makes room", world: []func(*world){ahead, func(w *world) { w.control.MaxSandboxes = 2 }},
			points: []failpoint.Name{failpoint.PrepareDiscarded},
			ready:  func(w *world) { w.prepared(1) },
			act: func(w *world, c *control.Control, _ hutch.Sandbox) {
				req := request()
				req.ID, req.Resources.MemoryMB = w.next, 64
				_, _ = c.CreateSandbox(w.ctx(), req)
			},
			check: func(w *world, sb hutch.Sandbox, at failpoint.Name) {
				alive(w, sb, at)
				w.checkNext(false)
			},
		},
		{
			name: "create on a machine that died", world: []func(*world){ahead}, ready: claimed,
			points: []failpoint.Name{failpoint.PrepareDisposed},
			act: func(w *world, c *control.Control, sb hutch.Sandbox) {
				w.host.Kill(w.next)
				for w.n.Prepared()[w.next] { // until that is seen
					runtime.Gosched()
				}
				createNext(w, c, sb)
			},
			check: func(w *world, sb hutch.Sandbox, at failpoint.Name) {
				alive(w, sb, at)
				w.checkNext(false)
			},
		},
	}
}

// claimed waits for a machine that stands ready, and takes its id as a call under a key does.
func claimed(w *world) {
	eventually(w.t, "a machine can be claimed", func() error {
		id, _ := w.c.ClaimPrepared(w.ctx(), request())
		if id == "" {
			return errors.New("not yet")
		}
		w.next = id
		return nil
	})
}

func createNext(w *world, c *control.Control, _ hutch.Sandbox) {
	req := request()
	req.ID, req.Env = w.next, map[string]string{"A": "b"}
	_, _ = c.CreateSandbox(w.ctx(), req)
}

// checkNext says what must have become of a create that was cut off: it was made, or its record
// says that it was not, or there is none; and a guest that runs knows who it is.
func (w *world) checkNext(made bool) {
	w.t.Helper()
	rec, err := w.db.Sandbox(w.ctx(), w.next)
	switch {
	case made && (err != nil || rec.State != hutch.StateRunning):
		w.t.Errorf("it was made, and is %s, %v", rec.State, err)
	case err == nil && rec.State != hutch.StateRunning && rec.EndReason != hutch.EndStartFailed:
		w.t.Errorf("it is %s, %s", rec.State, rec.EndReason)
	case err == nil && rec.State == hutch.StateRunning:
		if h := w.guest(w.next).Hello(); h.Sandbox != w.next || h.Env["A"] != "b" || h.Epoch != rec.Epoch {
			w.t.Errorf("its guest was told %+v", h)
		}
	}
}

func runOne(w *world, c *control.Control, sb hutch.Sandbox) {
	_, _ = c.StartExec(w.ctx(), project, sb.ID, hutch.ExecRequest{ID: w.nextExec, Spec: hutch.ExecSpec{Cmd: "echo once"}})
}

// runLong runs a command that does not end before its start is on record.
func runLong(w *world, c *control.Control, sb hutch.Sandbox) {
	spec := hutch.ExecSpec{Cmd: "cat", StdinOpen: true}
	_, _ = c.StartExec(w.ctx(), project, sb.ID, hutch.ExecRequest{ID: w.nextExec, Spec: spec})
	_, _, _ = c.ListExecs(w.ctx(), hutch.ExecQuery{Project: project, Sandbox: sb.ID})
	endLong(w, c, sb)
}

func endLong(w *world, c *control.Control, sb hutch.Sandbox) {
	_, _ = c.WriteStdin(w.ctx(), project, sb.ID, w.nextExec, hutch.StdinChunk{Data: strings.NewReader("once\n"), End: true})
}

// ranLong ends it, if it goes on: its stdin has offsets, and takes nothing twice.
func ranLong(w *world, sb hutch.Sandbox, at failpoint.Name) {
	eventually(w.t, "the command is on record", func() error {
		_, err := w.c.Exec(w.ctx(), project, w.nextExec)
		return err
	})
	endLong(w, w.c, sb)
	ranOnce(w, sb, at)
}

func ranOnce(w *world, sb hutch.Sandbox, _ failpoint.Name) {
	eventually(w.t, "the command is on record", func() error {
		_, err := w.c.Exec(w.ctx(), project, w.nextExec)
		return err
	})
	w.wantEnd(hutch.Exec{ID: w.nextExec, Sandbox: sb.ID}, hutch.ExecExit, 0, "once\n")
}

func TestFaultWalk(t *testing.T) {
	for _, sc := range append(scenes(), preparedScenes()...) {
		t.Run(sc.name, func(t *testing.T) {
			w := newWorld(t, sc.world...)
			for _, at := range sc.points {
				t.Logf("killed at %s", at)
				w.next, w.nextExec = newID(), newExecID()
				sb := w.create(leased(time.Hour))
				if sc.ready != nil {
					sc.ready(w)
				}
				c := w.c
				w.killAt(at, sc.nth, func() { sc.act(w, c, sb) })
				w.start()
				sc.check(w, sb, at)
				w.wantAgreement()
			}
		})
	}
}

// killAt does something, in which the server is killed as it comes to a point, and returns once
// the dead server is buried.
func (w *world) killAt(at failpoint.Name, nth int, do func()) {
	w.t.Helper()
	s := w.server
	reached := make(chan struct{})
	var once atomic.Bool
	disarm, err := failpoint.Arm(failpoint.Plan{Die: at, Nth: nth, Do: func(failpoint.Name) {
		if once.CompareAndSwap(false, true) {
			w.cut()
			close(reached)
		}
	}})
	if err != nil {
		w.t.Fatal(err)
	}
	defer disarm()
	done := make(chan struct{})
	go func() {
		defer close(done)
		do()
	}()
	within(w.t, "the server comes to "+string(at), reached)
	if s.stop == nil { // it was not taken into service: who starts it is no caller
		within(w.t, "its start has given up", done)
	}
	w.bury(s)
	within(w.t, "the caller has given up", done)
}

// A server that is killed while it takes over what the last one left.
func TestFaultWalkOfARestart(t *testing.T) {
	w := newWorld(t, ahead)
	for _, at := range []failpoint.Name{
		failpoint.AdoptFetched, failpoint.AdoptLinked, failpoint.AdoptMade, failpoint.AdoptTold, failpoint.RecoverAdopted,
		failpoint.AdoptGone, failpoint.RecoverLost, failpoint.SweepNoLink, failpoint.EndExecs, failpoint.EndCharged, failpoint.EndRecorded,
		failpoint.RecoverMended, failpoint.RecoverBuilds,
	} {
		t.Logf("killed at %s", at)
		stays, crashes := w.create(), w.create()
		x := w.exec(stays, "echo seen; hang")
		w.storedStart(x)
		w.prepared(2) // nobody's, and still there at the next start
		w.kill()
		w.host.Guest(crashes.ID).Crash()
		w.wantNoted(crashes.ID)
		w.begin()
		c := w.c
		w.killAt(at, 0, func() {
			_ = c.Recover(w.ctx()) // behind the last points nothing is left to go wrong
		})
		w.start()
		w.wantDead(crashes.ID, hutch.EndCrashed)
		w.sees(x, "seen")
		w.wantAgreement()
	}
}

// wantNoted waits until the keeper has noted that a sandbox exited.
func (w *world) wantNoted(id hutch.SandboxID) {
	w.t.Helper()
	eventually(w.t, "the keeper has a note", func() error {
		infos, err := w.watch.List(w.ctx())
		for _, i := range infos {
			if i.Name == id && !i.ExitedAt.IsZero() {
				return nil
			}
		}
		return errors.Join(err, errors.New("it has none"))
	})
}
