package cluster

import (
	"errors"
	"testing"
	"time"

	"hutch.dev/hutch"
)

// leased makes a sandbox that has an owner.
func leased(d time.Duration) func(*hutch.CreateSandbox) {
	return func(r *hutch.CreateSandbox) { r.Lease = d }
}

// lapse makes a sandbox's lease run out as if its owner had been silent: the shortest lease
// is longer than a test should wait.
func (w *world) lapse(id hutch.SandboxID) {
	w.t.Helper()
	if _, err := w.db.UpdateSandbox(w.ctx(), id, w.record(id).Epoch, func(s *hutch.Sandbox) error {
		s.LeasedTo = time.Now().Add(-time.Millisecond)
		return nil
	}); err != nil {
		w.t.Fatal(err)
	}
}

func TestOwnerGone(t *testing.T) {
	w := newWorld(t)
	owned, paused, free := w.create(leased(time.Minute)), w.create(leased(time.Minute)), w.create()
	if got := owned.LeasedTo.Sub(owned.StartedAt); got != time.Minute {
		t.Errorf("it is leased for %s from its start", got)
	}
	if free.Lease != 0 || !free.LeasedTo.IsZero() {
		t.Errorf("one without an owner is leased: %+v", free)
	}
	if _, err := w.c.PauseSandbox(w.ctx(), project, paused.ID); err != nil {
		t.Fatal(err)
	}
	x := w.exec(owned, "hang") // working is no sign of life of its owner's
	w.lapse(owned.ID)
	w.lapse(paused.ID)
	sb := w.wantDead(owned.ID, hutch.EndOwnerGone)
	if sb.EndDetail == "" {
		t.Error("its record does not say why in a sentence")
	}
	w.wantDead(paused.ID, hutch.EndOwnerGone)
	w.wantEnd(x, hutch.ExecSandboxGone, 137, "")
	_, err := w.c.RenewSandbox(w.ctx(), project, owned.ID)
	wantError(t, "renew a dead one", err, hutch.ErrSandboxGone)
	w.wantEnd(w.exec(free, "echo on"), hutch.ExecExit, 0, "on\n")
	w.tally.wantEnds(t, map[hutch.SandboxEnd]int{hutch.EndOwnerGone: 2})
	w.wantAgreement()
}

func TestRenew(t *testing.T) {
	w := newWorld(t)
	sb := w.create(leased(10 * time.Second))
	before := time.Now()
	out, err := w.c.RenewSandbox(w.ctx(), project, sb.ID)
	if err != nil || out.LeasedTo.Before(before.Add(10*time.Second)) || !out.ExpiresAt.Equal(sb.ExpiresAt) {
		t.Errorf("renewed at %s: %+v, %v", before, out, err)
	}
	if rec := w.record(sb.ID); !rec.LeasedTo.Equal(out.LeasedTo) || rec.Epoch != sb.Epoch || rec.ActiveAt.After(before) {
		t.Errorf("on record: %+v", rec)
	}
	if _, err := w.c.PauseSandbox(w.ctx(), project, sb.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := w.c.RenewSandbox(w.ctx(), project, sb.ID); err != nil {
		t.Errorf("a paused one: %v", err)
	}
	_, err = w.c.RenewSandbox(w.ctx(), "another", sb.ID)
	wantError(t, "another project's", err, hutch.ErrNotFound)
	_, err = w.c.RenewSandbox(w.ctx(), project, w.create().ID)
	wantError(t, "one without a lease", err, hutch.ErrInvalidState)
	for _, d := range []time.Duration{time.Second, 25 * time.Hour, -time.Second} {
		req := request()
		req.Lease = d
		_, err := w.c.CreateSandbox(w.ctx(), req)
		var e *hutch.Error
		if !errors.As(err, &e) || e.Field != "lease_seconds" {
			t.Errorf("a lease of %s: %v", d, err)
		}
	}
}

// A renewal that answered holds, and one that came too late is refused: whatever a sweep does
// at the same moment.
func TestRenewalsAndSweepsAgree(t *testing.T) {
	w := newWorld(t)
	for range 6 {
		sb := w.create(leased(time.Minute))
		at := time.Now().Add(20 * time.Millisecond)
		if _, err := w.db.UpdateSandbox(w.ctx(), sb.ID, sb.Epoch, func(s *hutch.Sandbox) error { s.LeasedTo = at; return nil }); err != nil {
			t.Fatal(err)
		}
		<-time.After(time.Until(at) - time.Millisecond)
		out, err := w.c.RenewSandbox(w.ctx(), project, sb.ID)
		switch {
		case err == nil:
			if out.LeasedTo.Before(time.Now().Add(50 * time.Second)) {
				t.Errorf("renewed to %s", out.LeasedTo)
			}
			w.wantEnd(w.exec(sb, "echo on"), hutch.ExecExit, 0, "on\n")
			if _, err := w.c.KillSandbox(w.ctx(), project, sb.ID); err != nil {
				t.Error(err)
			}
			w.wantDead(sb.ID, hutch.EndKilled)
		case errors.Is(err, hutch.ErrSandboxGone):
			w.wantDead(sb.ID, hutch.EndOwnerGone)
		default:
			t.Error(err)
		}
	}
	w.wantAgreement()
}

// While the server is away nobody can renew: its next start gives every owner a whole lease.
func TestALeaseOutlivesAnOutage(t *testing.T) {
	w := newWorld(t)
	owned, dead := w.create(leased(time.Minute)), w.create(leased(10*time.Second))
	w.kill()
	w.lapse(owned.ID)
	w.lapse(dead.ID)
	back := time.Now()
	w.start()
	for _, id := range []hutch.SandboxID{owned.ID, dead.ID} {
		rec := w.record(id)
		if rec.State != hutch.StateRunning || rec.LeasedTo.Before(back.Add(rec.Lease)) {
			t.Errorf("%s is %s (%s), leased to %s", id, rec.State, rec.EndReason, rec.LeasedTo)
		}
	}
	w.lapse(dead.ID) // and it is a row like any other: what nobody renews now ends
	w.wantDead(dead.ID, hutch.EndOwnerGone)
	w.wantEnd(w.exec(owned, "echo on"), hutch.ExecExit, 0, "on\n")
}
