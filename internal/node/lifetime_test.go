package node

import (
	"strings"
	"testing"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/runtime/fake"
)

const (
	idleAfter = time.Minute
	idleSlack = 10 * time.Second // Config's own
)

// startIdler starts a sandbox with an idle timeout, and says when it was used.
func (b *bench) startIdler(used time.Time) hutch.Sandbox {
	b.t.Helper()
	rec := record()
	rec.IdleTimeout = idleAfter
	if _, err := b.StartSandbox(b.ctx(), rec); err != nil {
		b.t.Fatal(err)
	}
	if err := b.Used(b.ctx(), rec.ID, used); err != nil {
		b.t.Fatal(err)
	}
	return rec
}

// wantKept checks what the keeper has been told.
func (b *bench) wantKept(id hutch.SandboxID, used time.Time, idle time.Duration) {
	b.t.Helper()
	k := b.shelf.has(id)
	if k == nil || !k.lifetime.UsedAt.Equal(used) || k.lifetime.Idle != idle {
		b.t.Errorf("the keeper has %+v, want use at %v and %s", k, used, idle)
	}
}

func TestIdle(t *testing.T) {
	b := newBench(t)
	free := b.start()
	began := time.Now()
	idler := record()
	idler.IdleTimeout = idleAfter
	if _, err := b.StartSandbox(b.ctx(), idler); err != nil {
		t.Fatal(err)
	}
	first := b.LastUse(idler.ID)
	if first.Before(began) || first.After(time.Now()) || !strings.Contains(first.String(), " m=") {
		t.Errorf("a new one was used at %v, want by the monotonic clock at its start, %v", first, began)
	}
	b.wantKept(idler.ID, first, idleAfter+idleSlack)
	used := began.Add(5 * time.Minute)
	if err := b.Used(b.ctx(), idler.ID, used); err != nil {
		t.Fatal(err)
	}
	b.wantKept(idler.ID, used, idleAfter+idleSlack)
	if err := b.SetDeadline(b.ctx(), idler.ID, idler.Epoch, idler.ExpiresAt.Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	b.wantKept(idler.ID, used, idleAfter+idleSlack)
	b.endIdle(used.Add(idleAfter + idleSlack - 1))
	if b.find(idler.ID).isGone() || b.find(idler.ID).ending != "" {
		t.Error("it was ended before its time")
	}
	b.endIdle(used.Add(idleAfter + idleSlack))
	b.reports.until(t, "sandbox idle")
	if !b.Held()[free.ID] || b.reports.detail == "" {
		t.Errorf("of all, %v are left; it ended for %q", b.Held(), b.reports.detail)
	}
	wantError(t, "the use of one that is gone", b.Used(b.ctx(), "inothing", used), hutch.ErrSandboxGone)
	if at := b.LastUse("inothing"); !at.IsZero() {
		t.Errorf("one that is not here was used at %v", at)
	}
}

// What is paused can't be used, and begins anew when it goes on.
func TestIdleStandsStillInAPause(t *testing.T) {
	b := newBench(t)
	used := time.Now().Add(-time.Hour)
	rec := b.startIdler(used)
	if err := b.PauseSandbox(b.ctx(), rec.ID, rec.Epoch); err != nil {
		t.Fatal(err)
	}
	b.wantKept(rec.ID, used, 0)
	b.endIdle(time.Now())
	b.host.Fail(fake.OpPause, hutch.ErrInternal) // of one that goes on, the next one is refused
	before := time.Now()
	if err := b.ResumeSandbox(b.ctx(), rec.ID, rec.Epoch); err != nil {
		t.Fatal(err)
	}
	used = b.LastUse(rec.ID)
	if used.Before(before) {
		t.Errorf("resumed at %v, it was last used at %v", before, used)
	}
	b.wantKept(rec.ID, used, idleAfter+idleSlack)
	wantError(t, "a pause that fails", b.PauseSandbox(b.ctx(), rec.ID, rec.Epoch), hutch.ErrInternal)
	b.wantKept(rec.ID, b.LastUse(rec.ID), idleAfter+idleSlack)
	// A use that goes on for longer than the pause is not cut short by it.
	b.host.Fail(fake.OpPause, nil)
	long := time.Now().Add(time.Hour)
	if err := b.Used(b.ctx(), rec.ID, long); err != nil {
		t.Fatal(err)
	}
	if err := b.PauseSandbox(b.ctx(), rec.ID, rec.Epoch); err != nil {
		t.Fatal(err)
	}
	if err := b.ResumeSandbox(b.ctx(), rec.ID, rec.Epoch); err != nil {
		t.Fatal(err)
	}
	b.wantKept(rec.ID, long, idleAfter+idleSlack)
}

// The keeper tells the next node when a sandbox was used; one that does not know, as of an older
// version, makes the count begin anew.
func TestIdleOutlivesTheNode(t *testing.T) {
	b := newBench(t)
	used := time.Now().Add(-30 * time.Second)
	rec, unknown := b.startIdler(used), b.startIdler(used)
	b.restart()
	b.shelf.has(unknown.ID).lifetime = hutch.Lifetime{ExpiresAt: unknown.ExpiresAt}
	began := time.Now()
	for _, rec := range []hutch.Sandbox{rec, unknown} {
		if _, err := b.Adopt(b.ctx(), rec); err != nil {
			t.Fatal(err)
		}
	}
	if at := b.LastUse(rec.ID); !at.Equal(used) {
		t.Errorf("taken over, it was used at %v, want %v", at, used)
	}
	b.wantKept(rec.ID, used, idleAfter+idleSlack)
	if at := b.LastUse(unknown.ID); at.Before(began) {
		t.Errorf("one of which nobody knows was used at %v", at)
	}
	// A new keeper hears of it with everything else.
	if err := b.shelf.Delete(b.ctx(), rec.ID); err != nil {
		t.Fatal(err)
	}
	wantError(t, "use, with a keeper that is empty", b.Used(b.ctx(), rec.ID, used), hutch.ErrNotFound)
	if err := b.RefillKeeper(b.ctx()); err != nil {
		t.Fatal(err)
	}
	b.wantKept(rec.ID, used, idleAfter+idleSlack)
	// Without a keeper the node still knows.
	b.shelf.set(hutch.ErrUnavailable)
	later := used.Add(time.Second)
	wantError(t, "use, without a keeper", b.Used(b.ctx(), rec.ID, later), hutch.ErrUnavailable)
	b.shelf.set(nil)
	if at := b.LastUse(rec.ID); !at.Equal(later) {
		t.Errorf("used at %v, want %v", at, later)
	}
}

// As TestDeadlineHeldByAnother.
func TestIdleHeldByAnother(t *testing.T) {
	b := newBench(t)
	rec := b.startIdler(time.Now().Add(-time.Hour))
	b.host.Guest(rec.ID).Crash()
	b.reports.until(t, "sandbox idle")
}
