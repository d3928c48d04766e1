package cluster

import (
	"context"
	"errors"
	"sync"
	"testing"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/runtime/fake"
)

func TestCreateThenUseThenKill(t *testing.T) {
	w := newWorld(t)
	sb := w.create(func(r *hutch.CreateSandbox) {
		r.Env = map[string]string{"GREETING": "hello"}
		r.Metadata = map[string]string{"who": "me"}
	})
	if sb.State != hutch.StateRunning || sb.Epoch != 1 || sb.StartedAt.IsZero() || sb.BootMode != "cold" {
		t.Errorf("created: %+v", sb)
	}
	w.wantAgreement()
	w.wantEnd(w.exec(sb, "env GREETING; whoami"), hutch.ExecExit, 0, "hello\n"+string(sb.ID)+"\n")
	if _, err := w.c.KillSandbox(w.ctx(), project, sb.ID); err != nil {
		t.Fatal(err)
	}
	w.wantDead(sb.ID, hutch.EndKilled)
	w.wantAgreement()
	_, err := w.c.Sandbox(w.ctx(), project, sb.ID)
	wantError(t, "look at a dead one", err, hutch.ErrSandboxGone)
	_, err = w.c.Sandbox(w.ctx(), "another", sb.ID)
	wantError(t, "look at another project's", err, hutch.ErrNotFound)
}

func TestCreateWithoutTemplate(t *testing.T) {
	w := newWorld(t)
	req := request()
	req.Template = "nothing"
	_, err := w.c.CreateSandbox(w.ctx(), req)
	wantError(t, "create", err, hutch.ErrNotFound)
	if len(w.records()) != 0 || w.host.Calls(fake.OpCreate) != 0 {
		t.Error("something was made for a template that does not exist")
	}
}

// TestCreateFails makes every step of a create fail, and looks for what is left.
func TestCreateFails(t *testing.T) {
	type step struct {
		name   string
		inject func(w *world) (heal func())
		record bool // the attempt is on record, as start_failed
	}
	host := func(op fake.Op) func(*world) func() {
		return func(w *world) func() {
			w.host.Fail(op, errInjected)
			return func() { w.host.Fail(op, nil) }
		}
	}
	heal := func(*world) func() { return func() {} }
	steps := []step{
		{"machine not made", host(fake.OpCreate), true},
		{"machine not started", host(fake.OpStart), true},
		{"handles not kept", func(w *world) func() { w.keeper.fail("Put", 1); return heal(w) }, true},
		{"link not attached", func(w *world) func() { w.links.fail("Attach", 1); return heal(w) }, true},
		{"record not made", func(w *world) func() { w.store.fail("CreateSandbox", 1); return heal(w) }, false},
		{"record made, answer lost", func(w *world) func() { w.store.failAfter("CreateSandbox", 1); return heal(w) }, true},
		{"start not recorded", func(w *world) func() { w.store.fail("UpdateSandbox", 1); return heal(w) }, true},
		{"start recorded, answer lost", func(w *world) func() { w.store.failAfter("UpdateSandbox", 1); return heal(w) }, true},
		{"nothing recorded for a while", func(w *world) func() { w.store.fail("UpdateSandbox", 5); return heal(w) }, true},
		{"records unreadable after", func(w *world) func() {
			w.keeper.fail("Put", 1)
			w.store.failNth("ExecsOf", 1)
			return heal(w)
		}, true},
	}
	for _, s := range steps {
		t.Run(s.name, func(t *testing.T) {
			w := newWorld(t, func(w *world) { w.control.MaxSandboxes = 1 })
			healed := s.inject(w)
			req := request()
			req.ID = newID()
			sb, err := w.c.CreateSandbox(w.ctx(), req)
			if err == nil {
				t.Fatalf("it succeeded: %+v", sb)
			}
			healed()
			if s.record {
				dead := w.wantDead(req.ID, hutch.EndStartFailed)
				var told *hutch.Error
				if !errors.As(err, &told) || dead.EndDetail != told.Message {
					t.Errorf("its record says %q, its caller was told %v", dead.EndDetail, err)
				}
			}
			w.wantAgreement()
			if n := len(w.records()); n > 0 != s.record {
				t.Errorf("%d records", n)
			}
			// The one place is free again, and there is only one. A sweep may have to
			// make that true.
			eventually(t, "there is room again", func() error {
				_, err := w.c.CreateSandbox(w.ctx(), request())
				return err
			})
			_, err = w.c.CreateSandbox(w.ctx(), request())
			wantError(t, "one too many", err, hutch.ErrNoCapacity)
			w.wantAgreement()
		})
	}
}

func TestCreateGuestNeverAnswers(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(w *world) { w.node.StartTimeout = impatient })
	req := request()
	req.ID = newID()
	w.host.Deafen(true)
	_, err := w.c.CreateSandbox(w.ctx(), req)
	wantError(t, "create", err, hutch.ErrGuestUnresponsive)
	w.wantDead(req.ID, hutch.EndStartFailed)
	w.wantAgreement()
}

func TestCreateQueue(t *testing.T) {
	w := newWorld(t, func(w *world) { w.control.Creates, w.control.Queue = 1, 1 })
	blocked := w.host.Blocked()
	release := w.host.Block(fake.OpStart)
	defer release()
	results := make(chan error, 2)
	create := func(ctx context.Context) {
		_, err := w.c.CreateSandbox(ctx, request())
		results <- err
	}
	go create(w.ctx())
	within(t, "the first is being started", blocked)
	ctx, leave := context.WithCancel(w.ctx())
	go create(ctx)
	eventually(t, "the second is queued", func() error {
		if n := w.tally.queued(); n != 1 {
			return errInjected
		}
		return nil
	})
	_, err := w.c.CreateSandbox(w.ctx(), request())
	wantError(t, "with a full queue", err, hutch.ErrNoCapacity)
	leave()
	wantError(t, "the one who left while queued", within(t, "the second returns", results), hutch.ErrCancelled)
	if n := len(w.records()); n > 1 {
		t.Errorf("%d records: the one who left has one too", n)
	}
	release()
	if err := within(t, "the first returns", results); err != nil {
		t.Errorf("the first: %v", err)
	}
	w.wantAgreement()
}

func TestCreateGoesOnWithoutItsCaller(t *testing.T) {
	w := newWorld(t)
	blocked := w.host.Blocked()
	release := w.host.Block(fake.OpStart)
	defer release()
	ctx, leave := context.WithCancel(w.ctx())
	req := request()
	req.ID = newID()
	got := make(chan error, 1)
	go func() {
		_, err := w.c.CreateSandbox(ctx, req)
		got <- err
	}()
	within(t, "it is being started", blocked)
	leave()
	release()
	if err := within(t, "it returns", got); err != nil {
		t.Errorf("a start under way was not finished: %v", err)
	}
	if sb := w.record(req.ID); sb.State != hutch.StateRunning {
		t.Errorf("it is %s %s", sb.State, sb.Transition)
	}
	w.wantAgreement()
}

func TestCreateSameIDAtOnce(t *testing.T) {
	w := newWorld(t)
	req := request()
	req.ID = newID()
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			sb, err := w.c.CreateSandbox(w.ctx(), req)
			if err != nil || sb.ID != req.ID || sb.State != hutch.StateRunning {
				t.Errorf("got %s %s, %v", sb.ID, sb.State, err)
			}
		})
	}
	wg.Wait()
	if n := w.host.Calls(fake.OpCreate); n != 1 {
		t.Errorf("%d machines were made", n)
	}
	if n := len(w.records()); n != 1 {
		t.Errorf("%d records", n)
	}
	w.wantAgreement()
	// Of another project it is not there, and cannot be taken.
	req.Project = "another"
	_, err := w.c.CreateSandbox(w.ctx(), req)
	wantError(t, "another project with the same id", err, hutch.ErrConflict)
	if sb := w.record(req.ID); sb.State != hutch.StateRunning {
		t.Errorf("another project's create made it %s", sb.State)
	}
	w.wantAgreement()
}

func TestCreateUpToTheLimit(t *testing.T) {
	w := newWorld(t, func(w *world) { w.control.MaxSandboxes = 3 })
	var wg sync.WaitGroup
	var mu sync.Mutex
	made, refused := 0, 0
	for range 10 {
		wg.Go(func() {
			_, err := w.c.CreateSandbox(w.ctx(), request())
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				made++
			} else {
				wantError(t, "create", err, hutch.ErrNoCapacity)
				refused++
			}
		})
	}
	wg.Wait()
	if made != 3 || refused != 7 {
		t.Errorf("%d were made and %d refused, want 3 and 7", made, refused)
	}
	wantError(t, "ready", w.c.Ready(w.ctx()), hutch.ErrNoCapacity)
	if _, err := w.c.KillSandbox(w.ctx(), project, w.records()[0].ID); err != nil {
		t.Fatal(err)
	}
	if err := w.c.Ready(w.ctx()); err != nil {
		t.Errorf("ready with room: %v", err)
	}
	w.create()
	w.wantAgreement()
}
