package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/store"
)

// quickly is a server that measures every few milliseconds.
func quickly(w *world) {
	w.control.SampleEvery, w.control.UsageEvery = 20*time.Millisecond, 5*time.Millisecond
}

// intervals is what is on record of a sandbox, in the order of time.
func (w *world) intervals(id hutch.SandboxID) []hutch.Usage {
	w.t.Helper()
	var all []hutch.Usage
	for p := (store.Page{}); ; {
		l, next, err := w.db.Usage(w.ctx(), store.UsageFilter{Sandbox: id}, p)
		if err != nil {
			w.t.Fatal(err)
		}
		all = append(all, l...)
		if p.Cursor = next; next == "" {
			break
		}
	}
	slices.SortFunc(all, func(a, b hutch.Usage) int { return a.From.Compare(b.From) })
	return all
}

// wantWhole checks that a dead sandbox is charged from its start to its end without a hole,
// and returns the sum.
func (w *world) wantWhole(id hutch.SandboxID) (hutch.UsageTotal, []hutch.Usage) {
	w.t.Helper()
	sb, err := w.db.Sandbox(w.ctx(), id)
	if err != nil || sb.State != hutch.StateDead {
		w.t.Fatalf("the sandbox: %s, %v", sb.State, err)
	}
	all := w.intervals(id)
	at := sb.StartedAt
	var sum hutch.UsageTotal
	for _, u := range all {
		if !u.From.Equal(at) || u.Project != sb.Project || (u.State == hutch.StatePaused && u.CPU != 0) {
			w.t.Fatalf("after %s comes %+v", at, u)
		}
		at = u.To
		sum.Add(u)
	}
	if !at.Equal(sb.EndedAt) || sum.Wall != sb.EndedAt.Sub(sb.StartedAt) {
		w.t.Errorf("charged for %s up to %s; it lived from %s to %s", sum.Wall, at, sb.StartedAt, sb.EndedAt)
	}
	return sum, all
}

// counter is what the host says of a sandbox's CPU time.
func (w *world) counter(sb hutch.Sandbox) time.Duration {
	w.t.Helper()
	now, err := w.db.Sandbox(w.ctx(), sb.ID)
	if err != nil {
		w.t.Fatal(err)
	}
	_, cpu, err := w.n.Usage(w.ctx(), sb.ID, now.Epoch)
	if err != nil {
		w.t.Fatal(err)
	}
	return cpu
}

func (w *world) killIt(sb hutch.Sandbox) {
	w.t.Helper()
	if _, err := w.c.KillSandbox(w.ctx(), project, sb.ID); err != nil {
		w.t.Fatal(err)
	}
}

// A sandbox that may live for a day and is killed at once is charged for what it lived.
func TestUsageFromStartToEnd(t *testing.T) {
	w := newWorld(t, quickly)
	day := 24 * time.Hour
	sb := w.create(func(r *hutch.CreateSandbox) { r.TTL = &day })
	busy := w.exec(sb, "tick 1")
	w.sees(busy, "tick 30\n")
	if _, err := w.c.PauseSandbox(w.ctx(), project, sb.ID); err != nil {
		t.Fatal(err)
	}
	if l := w.intervals(sb.ID); len(l) == 0 || l[len(l)-1].State != hutch.StateRunning {
		t.Errorf("when it was paused there is on record: %+v", l)
	}
	standing := w.counter(sb)
	eventually(t, "it is charged as paused", func() error {
		r, err := w.c.UsageReport(w.ctx(), hutch.UsageQuery{Project: project, Sandbox: sb.ID, Limit: 1000})
		if l := r.Intervals; err == nil && l[len(l)-1].State != hutch.StatePaused {
			err = fmt.Errorf("last is %+v", l[len(l)-1])
		}
		return err
	})
	if now := w.counter(sb); now != standing {
		t.Fatalf("the fake works while it is paused: %s, then %s", standing, now)
	}
	if _, err := w.c.ResumeSandbox(w.ctx(), project, sb.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := w.c.CancelExec(w.ctx(), project, sb.ID, busy.ID, nil); err != nil {
		t.Fatal(err)
	}
	used := w.counter(sb)
	w.killIt(sb)
	sum, all := w.wantWhole(sb.ID)
	if sum.CPU != used || used < 30*time.Millisecond || sum.Paused <= 0 || sum.MemoryGiBHours <= 0 {
		t.Errorf("charged: %+v; the host says %s of CPU", sum, used)
	}
	r, err := w.c.UsageReport(w.ctx(), hutch.UsageQuery{Project: project, By: hutch.UsageByProject})
	if total := r.Total; err != nil || total.CPU != sum.CPU || total.Wall != sum.Wall {
		t.Errorf("in all: %+v, %v; want %+v", total, err, sum)
	}
	mid := all[len(all)/2].From
	r, err = w.c.UsageReport(w.ctx(), hutch.UsageQuery{Project: project, To: mid})
	if err != nil {
		t.Fatal(err)
	}
	first := r.Total
	r, err = w.c.UsageReport(w.ctx(), hutch.UsageQuery{Project: project, Sandbox: sb.ID, By: hutch.UsageBySandbox, From: mid})
	l := r.Sandboxes
	if err != nil || len(l) != 1 || first.CPU+l[0].Total.CPU != sum.CPU || first.Wall+l[0].Total.Wall != sum.Wall || !l[0].From.Equal(mid) {
		t.Errorf("cut in two: %+v and %+v, %v", first, l, err)
	}
	_, err = w.c.UsageReport(w.ctx(), hutch.UsageQuery{Project: "other", Sandbox: sb.ID})
	wantError(t, "another project's look at it", err, hutch.ErrNotFound)
	if r, err := w.c.UsageReport(w.ctx(), hutch.UsageQuery{Project: "other", By: hutch.UsageBySandbox}); err != nil || len(r.Sandboxes) != 0 {
		t.Errorf("another project's: %+v, %v", r, err)
	}
}

// Entries and total are of one look, however much is used meanwhile.
func TestAReportIsOfOneInstant(t *testing.T) {
	w := newWorld(t, quickly)
	sb := w.create()
	w.sees(w.exec(sb, "tick 1"), "tick 10\n")
	for i := range 20 {
		r, err := w.c.UsageReport(w.ctx(), hutch.UsageQuery{Project: project, Sandbox: sb.ID, Limit: 1000})
		if err != nil {
			t.Fatal(err)
		}
		if i > 0 && r.Next != "" { // on a slow machine it takes more than a page
			return
		}
		var sum hutch.UsageTotal
		for _, u := range r.Intervals {
			sum.Add(u)
		}
		if sum.CPU != r.Total.CPU || sum.Wall != r.Total.Wall {
			t.Errorf("intervals of %+v, in all %+v", sum, r.Total)
		}
		r, err = w.c.UsageReport(w.ctx(), hutch.UsageQuery{Project: project, Sandbox: sb.ID, By: hutch.UsageBySandbox})
		if err != nil || len(r.Sandboxes) != 1 || r.Sandboxes[0].Total.CPU != r.Total.CPU || r.Sandboxes[0].Total.Wall != r.Total.Wall {
			t.Errorf("by sandbox %+v, in all %+v, %v", r.Sandboxes, r.Total, err)
		}
	}
}

// One that nobody measured before it was gone: the host's last word counts.
func TestUsageOfAShortLife(t *testing.T) {
	w := newWorld(t, func(w *world) { w.control.SampleEvery, w.control.UsageEvery = time.Hour, time.Hour })
	for name, end := range map[string]func(hutch.Sandbox){
		"killed":  w.killIt,
		"crashed": func(sb hutch.Sandbox) { w.guest(sb.ID).Crash() },
	} {
		sb := w.create()
		w.wait(w.exec(sb, "echo 1; echo 2; echo 3"))
		used := w.counter(sb)
		end(sb)
		eventually(t, "it is dead", func() error {
			now, err := w.db.Sandbox(w.ctx(), sb.ID)
			if err == nil && now.State != hutch.StateDead {
				err = errors.New(string(now.State))
			}
			return err
		})
		if sum, _ := w.wantWhole(sb.ID); sum.CPU != used || used == 0 {
			t.Errorf("%s: charged %s of CPU, the host says %s", name, sum.CPU, used)
		}
	}
}

func TestUsageOverARestart(t *testing.T) {
	w := newWorld(t, quickly)
	sb, lost, still := w.create(), w.create(), w.create()
	if _, err := w.c.PauseSandbox(w.ctx(), project, still.ID); err != nil {
		t.Fatal(err)
	}
	busy := w.exec(sb, "tick 1")
	for range 3 {
		w.sees(busy, "tick 10\n")
		eventually(t, "something is on record", func() error {
			_, err := w.c.UsageReport(w.ctx(), hutch.UsageQuery{Project: project})
			if err == nil && len(w.intervals(lost.ID)) == 0 {
				err = errors.New("not yet")
			}
			return err
		})
		w.restart()
	}
	w.kill()
	w.guest(lost.ID).Crash()
	eventually(t, "the keeper has noticed", func() error {
		kept, err := w.watch.Get(w.ctx(), lost.ID)
		closeHandles(kept.Handles)
		if err == nil && kept.ExitedAt.IsZero() {
			err = errInjected
		}
		return err
	})
	w.start()
	if _, err := w.c.CancelExec(w.ctx(), project, sb.ID, busy.ID, nil); err != nil {
		t.Fatal(err)
	}
	used := w.counter(sb)
	w.killIt(sb)
	if sum, _ := w.wantWhole(sb.ID); sum.CPU != used || used < 10*time.Millisecond {
		t.Errorf("charged %s of CPU, the host says %s", sum.CPU, used)
	}
	// What nobody saw of the lost one is an interval in which it used nothing.
	_, all := w.wantWhole(lost.ID)
	if u := all[len(all)-1]; u.CPU != 0 || u.Memory != 0 {
		t.Errorf("charged to one that was gone: %+v", u)
	}
	w.killIt(still)
	if sum, _ := w.wantWhole(still.ID); sum.Paused < sum.Wall/2 || sum.CPU > 100*time.Millisecond {
		t.Errorf("one that stood still over four restarts: %+v", sum)
	}
}

func TestUsageWhileTheStoreIsFull(t *testing.T) {
	w := newWorld(t, quickly)
	w.store.fail("AppendUsage", -1) // before there is anything to write
	sb := w.create()
	busy := w.exec(sb, "tick 1")
	w.sees(busy, "tick 20\n")
	if _, err := w.c.UsageReport(w.ctx(), hutch.UsageQuery{Project: project, Sandbox: sb.ID}); err != nil {
		t.Fatal(err)
	}
	if l := w.intervals(sb.ID); len(l) != 0 {
		t.Fatalf("on record: %+v", l)
	}
	w.store.fail("AppendUsage", 0)
	if _, err := w.c.CancelExec(w.ctx(), project, sb.ID, busy.ID, nil); err != nil {
		t.Fatal(err)
	}
	used := w.counter(sb)
	w.killIt(sb)
	if sum, _ := w.wantWhole(sb.ID); sum.CPU != used {
		t.Errorf("charged %s of CPU, the host says %s", sum.CPU, used)
	}
}

// The fake's guests count three times what their host does, as one does that has to wait for
// its CPU: what is said of commands is the host's.
func TestCommandsShareTheCPU(t *testing.T) {
	w := newWorld(t, quickly)
	sb := w.create()
	long, short := w.exec(sb, "tick 1"), w.exec(sb, "tick 1")
	streamed := make(chan hutch.Exec, 1)
	go func() {
		x, _ := w.c.FollowExec(w.ctx(), project, sb.ID, long.ID, hutch.FollowOptions{}, func(hutch.OutputEvent) error { return nil })
		streamed <- x
	}()
	w.sees(short, "tick 10\n")
	if _, err := w.c.CancelExec(w.ctx(), project, sb.ID, short.ID, nil); err != nil {
		t.Fatal(err)
	}
	w.sees(long, "tick 40\n")
	if _, err := w.c.CancelExec(w.ctx(), project, sb.ID, long.ID, nil); err != nil {
		t.Fatal(err)
	}
	a, b := w.wait(long).Result.CPU, w.wait(short).Result.CPU
	if used := w.counter(sb); a+b > used || a+b < used*3/4 || a <= b {
		t.Errorf("commands used %s and %s, the host says %s", a, b, used)
	}
	if x := within(t, "the end of the stream", streamed); x.Result == nil || x.Result.CPU != a {
		t.Errorf("who followed it hears %+v, the record says %s", x.Result, a)
	}
}

func TestUsageIsForgottenInTheEnd(t *testing.T) {
	w := newWorld(t, quickly, func(w *world) { w.control.UsageFor, w.control.Retention = time.Nanosecond, time.Nanosecond })
	alive := w.create()
	eventually(t, "it is on record", func() error {
		_, err := w.c.UsageReport(w.ctx(), hutch.UsageQuery{Project: project})
		if err == nil && len(w.intervals(alive.ID)) == 0 {
			err = errors.New("not yet")
		}
		return err
	})
	sb := w.create()
	w.killIt(sb)
	w.restart() // which is when it purges next
	eventually(t, "the dead one's is gone", func() error {
		if l := w.intervals(sb.ID); len(l) > 0 {
			return fmt.Errorf("%d intervals", len(l))
		}
		return nil
	})
	if l := w.intervals(alive.ID); len(l) == 0 {
		t.Error("the living one's is gone too")
	}
}

func TestBudgetEndsTheSandbox(t *testing.T) {
	card := &hutch.RateCard{Currency: "EUR", CPUHour: 3600, MemoryGiBHour: 1e6}
	for name, c := range map[string]struct {
		budget hutch.Budget
		cmd    string
		card   *hutch.RateCard
		detail string
	}{
		"cpu":            {hutch.Budget{CPU: 20 * time.Millisecond}, "tick 1", nil, " of its 0.020 CPU-seconds"},
		"money for cpu":  {hutch.Budget{Cost: 0.02}, "tick 1", &hutch.RateCard{Currency: "EUR", CPUHour: 3600}, " of its 0.020000 EUR"},
		"money for time": {hutch.Budget{Cost: 0.02}, "", card, " of its 0.020000 EUR"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, quickly, func(w *world) { w.control.RateCard = c.card })
			rich := w.create(func(r *hutch.CreateSandbox) { r.Budget.CPU = time.Hour })
			sb := w.create(func(r *hutch.CreateSandbox) { r.Budget = c.budget })
			if sb.Budget != c.budget {
				t.Errorf("its budget is %+v", sb.Budget)
			}
			if c.cmd != "" {
				if x := w.wait(w.exec(sb, c.cmd)); x.Result.End != hutch.ExecSandboxGone {
					t.Errorf("its command ended %s", x.Result.End)
				}
			}
			w.wantBudgetEnd(sb, c.detail)
			if _, err := w.c.Sandbox(w.ctx(), project, rich.ID); err != nil {
				t.Errorf("one that is within its budget: %v", err)
			}
		})
	}
}

// wantBudgetEnd waits for the end of a sandbox over its budget.
func (w *world) wantBudgetEnd(sb hutch.Sandbox, detail string) {
	w.t.Helper()
	eventually(w.t, "it is dead", func() error {
		now, err := w.db.Sandbox(w.ctx(), sb.ID)
		if err == nil && (now.State != hutch.StateDead || now.EndReason != hutch.EndBudget || !strings.HasSuffix(now.EndDetail, detail)) {
			err = fmt.Errorf("%s, %q, %q", now.State, now.EndReason, now.EndDetail)
		}
		return err
	})
	w.wantWhole(sb.ID)
	_, err := w.c.Sandbox(context.Background(), project, sb.ID)
	var e *hutch.Error
	if !errors.As(err, &e) || e.Code != hutch.CodeSandboxGone || e.Reason != string(hutch.EndBudget) {
		w.t.Errorf("whoever asks for it hears %v", err)
	}
}

// What was used before a restart counts, and so does what was used during it.
func TestBudgetOverARestart(t *testing.T) {
	w := newWorld(t, quickly)
	sb := w.create(func(r *hutch.CreateSandbox) { r.Budget.CPU = 60 * time.Millisecond })
	w.sees(w.exec(sb, "tick 1"), "tick 20\n")
	w.restart()
	w.wantBudgetEnd(sb, " of its 0.060 CPU-seconds")
}
