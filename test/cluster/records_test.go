package cluster

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/guestapi"
	"hutch.dev/hutch/internal/store"
)

// TestRecordsFailForAWhile ends commands while their records can't be written.
func TestRecordsFailForAWhile(t *testing.T) {
	w := newWorld(t)
	sb := w.create()
	w.store.fail("PutResult", -1)
	x := w.exec(sb, "echo kept")
	w.wantEnd(x, hutch.ExecExit, 0, "kept\n") // readers see it at once
	if got, err := w.c.Exec(w.ctx(), project, x.ID); err != nil || got.Result == nil {
		t.Errorf("looked at: %+v, %v", got.Result, err)
	}
	// What is read from the records themselves does not pretend.
	_, _, err := w.c.ListExecs(w.ctx(), hutch.ExecQuery{Project: project, Sandbox: sb.ID})
	wantError(t, "list", err, hutch.ErrUnavailable)
	_, err = w.c.Events(w.ctx(), hutch.EventQuery{Project: project, Sandbox: sb.ID})
	wantError(t, "events", err, hutch.ErrUnavailable)
	if rec, err := w.db.Exec(w.ctx(), x.ID); err == nil && rec.Result != nil {
		t.Error("it is on record, and the record fails")
	}
	if !w.guestKeeps(x) {
		t.Error("the guest was told to forget what is not on record")
	}
	w.store.fail("PutResult", 0)
	l, _, err := w.c.ListExecs(w.ctx(), hutch.ExecQuery{Project: project, Sandbox: sb.ID})
	if err != nil || len(l) != 1 || l[0].Result == nil || l[0].Result.Stdout.Total != 5 || l[0].Result.Stdout.Head != nil {
		t.Errorf("listed when the records work again: %+v, %v", l, err)
	}
	eventually(t, "the guest forgets", func() error {
		if w.guestKeeps(x) {
			return errInjected
		}
		return nil
	})
	w.wantAgreement()
	w.tally.wantExecs(t, hutch.ExecExit, 1)
}

// guestKeeps says whether the guest still knows a command.
func (w *world) guestKeeps(x hutch.Exec) bool {
	w.t.Helper()
	_, err := w.n.FollowExec(w.ctx(), x.Sandbox, w.record(x.Sandbox).Epoch, x.ID, hutch.FollowOptions{NoWait: true}, collect(new(string)))
	return err == nil
}

func TestRecordsAnswerLost(t *testing.T) {
	w := newWorld(t)
	sb := w.create()
	w.store.failAfter("PutExec", 3) // written, and the writer is told that it was not
	w.store.failAfter("PutResult", 3)
	x := w.wantEnd(w.exec(sb, "echo once"), hutch.ExecExit, 0, "once\n")
	eventually(t, "it is settled", func() error {
		_, _, err := w.c.ListExecs(w.ctx(), hutch.ExecQuery{Project: project, Sandbox: sb.ID})
		return err
	})
	rec, err := w.db.Exec(w.ctx(), x.ID)
	if err != nil || rec.Result == nil || rec.Result.End != hutch.ExecExit {
		t.Errorf("on record: %+v, %v", rec, err)
	}
	w.wantAgreement()
	w.tally.wantExecs(t, hutch.ExecExit, 1)
}

// TestRecordsCloseWhileFailing must neither hang nor lose what the guest can tell again.
func TestRecordsCloseWhileFailing(t *testing.T) {
	w := newWorld(t)
	sb := w.create()
	w.store.fail("PutExec", -1)
	w.store.fail("PutResult", -1)
	x := w.exec(sb, "echo kept")
	w.wantEnd(x, hutch.ExecExit, 0, "kept\n")
	w.restart()
	eventually(t, "it is on record", func() error {
		rec, err := w.db.Exec(w.ctx(), x.ID)
		if err == nil && rec.Result == nil {
			err = errInjected
		}
		return err
	})
	w.wantEnd(x, hutch.ExecExit, 0, "kept\n")
	w.wantAgreement()
}

func TestListsPage(t *testing.T) {
	w := newWorld(t)
	var all []string
	for range 5 {
		all = append(all, string(w.create(func(r *hutch.CreateSandbox) { r.Metadata = map[string]string{"a": "b"} }).ID))
	}
	w.create()
	var got []string
	q := hutch.SandboxQuery{Project: project, Metadata: map[string]string{"a": "b"}, Limit: 2}
	for {
		l, next, err := w.c.ListSandboxes(w.ctx(), q)
		if err != nil {
			t.Fatal(err)
		}
		for _, sb := range l {
			got = append([]string{string(sb.ID)}, got...)
			if sb.ActiveAt.Before(sb.CreatedAt) {
				t.Errorf("%s was last used before it was made", sb.ID)
			}
		}
		if q.Cursor = next; next == "" {
			break
		}
	}
	if strings.Join(got, " ") != strings.Join(all, " ") {
		t.Errorf("listed %v of %v", got, all)
	}
	l, _, err := w.c.ListSandboxes(w.ctx(), hutch.SandboxQuery{Project: "another"})
	if err != nil || len(l) != 0 {
		t.Errorf("another project sees %v, %v", l, err)
	}
}

func TestProcesses(t *testing.T) {
	w := newWorld(t)
	sb := w.create()
	x := w.exec(sb, "hang")
	l, err := w.n.Processes(w.ctx(), sb.ID, sb.Epoch)
	if err != nil || len(l) != 1 || l[0] != (guestapi.Process{PID: x.PID, PPID: 1, Exec: x.ID, State: "S", Command: "hang"}) {
		t.Errorf("processes: %+v, %v", l, err)
	}
	w.guest(sb.ID).MemoryWasHigh() // the news is old: whoever is the largest now is not at fault
	y := w.exec(sb, "out 100; hang")
	w.sees(y, strings.Repeat("0123456789", 10))
	w.wantEnd(w.exec(sb, "memory-high"), hutch.ExecExit, 0, "")
	w.wantEnd(y, hutch.ExecOOM, 137, strings.Repeat("0123456789", 10))
	w.wantEnd(w.exec(sb, "memory-high"), hutch.ExecExit, 0, "")
	w.wantEnd(x, hutch.ExecOOM, 137, "") // the guest ended its largest command; "hang" ignores TERM
}

func TestTemplates(t *testing.T) {
	w := newWorld(t)
	if err := w.c.PutTemplate(w.ctx(), hutch.Template{Name: "other", BuildID: "build-2", Image: "sha256:2"}); err != nil {
		t.Fatal(err)
	}
	l, err := w.c.ListTemplates(w.ctx())
	if err != nil || len(l) != 2 || l[0].Name != "base" {
		t.Errorf("templates: %+v, %v", l, err)
	}
	if tpl, err := w.c.Template(w.ctx(), "other"); err != nil || tpl.BuildID != "build-2" {
		t.Errorf("template: %+v, %v", tpl, err)
	}
	_, err = w.c.Template(w.ctx(), "none")
	wantError(t, "no such template", err, hutch.ErrNotFound)
	sb := w.create(func(r *hutch.CreateSandbox) { r.Template = "other" })
	if sb.BuildID != "build-2" || sb.Image != "sha256:2" {
		t.Errorf("made from %s, %s", sb.BuildID, sb.Image)
	}
}

// TestRefill gives what the node holds to a keeper and a gateway that lost all.
func TestRefill(t *testing.T) {
	w := newWorld(t)
	a, b := w.create(), w.create()
	for _, sb := range []hutch.Sandbox{a, b} {
		if err := w.watch.Delete(w.ctx(), sb.ID); err != nil {
			t.Fatal(err)
		}
		w.egress.detach(sb.ID)
	}
	if err := w.n.RefillKeeper(w.ctx()); err != nil {
		t.Errorf("refill keeper: %v", err)
	}
	if err := w.n.RefillEgress(w.ctx()); err != nil {
		t.Errorf("refill gateway: %v", err)
	}
	w.wantAgreement()
	w.keeper.fail("Put", 1)
	if err := w.n.RefillKeeper(w.ctx()); err == nil {
		t.Error("a refill that failed was reported as done")
	}
	w.restart()
	w.wantEnd(w.exec(a, "echo on"), hutch.ExecExit, 0, "on\n")
	if w.n.Count() != 2 || w.n.Runtime() != "fake" {
		t.Errorf("%d sandboxes on %s", w.n.Count(), w.n.Runtime())
	}
}

func TestRetention(t *testing.T) {
	w := newWorld(t, func(w *world) { w.control.Retention = 1 }) // a nanosecond
	sb := w.create()
	x := w.wantEnd(w.exec(sb, "true"), hutch.ExecExit, 0, "")
	if _, err := w.c.KillSandbox(w.ctx(), project, sb.ID); err != nil {
		t.Fatal(err)
	}
	w.restart() // whose first sweep removes old records
	eventually(t, "it is forgotten", func() error {
		if len(w.records()) > 0 {
			return errInjected
		}
		return nil
	})
	_, err := w.c.Exec(w.ctx(), project, x.ID)
	wantError(t, "its command", err, hutch.ErrNotFound)
	if l, err := w.db.Events(context.Background(), store.EventFilter{Sandbox: sb.ID}); err != nil || len(l) != 0 {
		t.Errorf("its events: %v, %v", l, err)
	}
}

// A guest can name the id of another sandbox's command; that changes nothing.
func TestAGuestCannotSpeakForAnotherSandbox(t *testing.T) {
	w := newWorld(t)
	mine, other := w.create(), w.create()
	x := w.exec(mine, "cat", func(r *hutch.ExecRequest) { r.Spec.StdinOpen = true })
	forged := hutch.ExecResult{End: hutch.ExecExit, Stdout: hutch.Output{Head: []byte("forged"), Total: 6}, StartedAt: time.Now(), EndedAt: time.Now()}
	for when, err := range map[string]error{
		"end of a running one": w.c.ExecEnded(w.ctx(), other.ID, x.ID, forged),
		"found while it runs":  w.c.ExecFound(w.ctx(), other.ID, x.ID, 7, time.Now()),
	} {
		if !errors.Is(err, hutch.ErrNotFound) {
			t.Errorf("%s: got %v, want not_found", when, err)
		}
	}
	if got, err := w.c.Exec(w.ctx(), project, x.ID); err != nil || got.Result != nil {
		t.Errorf("its record: got %+v, %v; want it running", got.Result, err)
	}
	if _, err := w.c.CancelExec(w.ctx(), project, mine.ID, x.ID, nil); err != nil {
		t.Fatal(err)
	}
	if err := w.c.ExecEnded(w.ctx(), other.ID, x.ID, forged); !errors.Is(err, hutch.ErrNotFound) {
		t.Errorf("end of an ended one: got %v, want not_found", err)
	}
	if got, err := w.c.Exec(w.ctx(), project, x.ID); err != nil || got.Result == nil || got.Result.End != hutch.ExecCancelled {
		t.Errorf("its record: got %+v, %v; want it cancelled", got.Result, err)
	}
}

// A guest that invents commands fills neither the records nor memory.
func TestAGuestCannotInventCommandsWithoutEnd(t *testing.T) {
	w := newWorld(t)
	sb := w.create()
	taken := 0
	for range 500 {
		err := w.c.ExecFound(w.ctx(), sb.ID, newExecID(), 7, time.Now())
		if err == nil {
			taken++
		} else if !errors.Is(err, hutch.ErrNotFound) {
			t.Fatal(err)
		}
	}
	if taken == 0 || taken > 100 {
		t.Errorf("%d of 500 invented commands were taken, want a few", taken)
	}
	if _, err := w.c.KillSandbox(w.ctx(), project, sb.ID); err != nil {
		t.Fatal(err)
	}
}
