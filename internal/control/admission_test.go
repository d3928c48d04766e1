package control

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"hutch.dev/hutch"
)

func TestAdmissionBoundsStartsAndQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAdmission(Config{Creates: 1, Queue: 1, MaxSandboxes: 10}, func(int) {})
		leave, err := a.enter(t.Context(), "p")
		if err != nil {
			t.Fatal(err)
		}
		second := make(chan error, 1)
		go func() {
			leave, err := a.enter(t.Context(), "p")
			if err == nil {
				leave()
			}
			second <- err
		}()
		synctest.Wait() // it waits now
		if _, err := a.enter(t.Context(), "p"); !errors.Is(err, hutch.ErrNoCapacity) {
			t.Errorf("with a full queue: got %v, want no_capacity", err)
		}
		if err := a.ready(); !errors.Is(err, hutch.ErrNoCapacity) {
			t.Errorf("ready with a full queue: got %v", err)
		}
		leave()
		if err := <-second; err != nil {
			t.Errorf("the one that waited: %v", err)
		}
		if err := a.ready(); err != nil {
			t.Errorf("ready with an empty queue: %v", err)
		}
	})
}

func TestAdmissionDropsCallersWhoLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		waiting := 0
		a := newAdmission(Config{Creates: 1, Queue: 5, MaxSandboxes: 10}, func(n int) { waiting = n })
		leave, err := a.enter(t.Context(), "p")
		if err != nil {
			t.Fatal(err)
		}
		defer leave()
		ctx, cancel := context.WithCancel(t.Context())
		got := make(chan error, 1)
		go func() {
			_, err := a.enter(ctx, "p")
			got <- err
		}()
		synctest.Wait()
		if waiting != 1 {
			t.Errorf("the queue is reported as %d long, want 1", waiting)
		}
		cancel()
		if err := <-got; !errors.Is(err, hutch.ErrCancelled) {
			t.Errorf("got %v, want cancelled", err)
		}
		synctest.Wait()
		if waiting != 0 {
			t.Errorf("the queue is reported as %d long, want 0", waiting)
		}
	})
}

func TestAdmissionBoundsTheLiving(t *testing.T) {
	a := newAdmission(Config{Creates: 1, Queue: 1, MaxSandboxes: 1}, func(int) {})
	if err := a.reserve(hutch.Sandbox{ID: "one"}); err != nil {
		t.Fatal(err)
	}
	if err := a.reserve(hutch.Sandbox{ID: "two"}); !errors.Is(err, hutch.ErrNoCapacity) || !strings.Contains(err.Error(), "the one sandbox") {
		t.Errorf("got %v, want no_capacity", err)
	}
	if err := a.ready(); !errors.Is(err, hutch.ErrNoCapacity) {
		t.Errorf("ready: got %v, want no_capacity", err)
	}
	for range 3 { // each of those who see it end gives its place back
		a.unreserve("one")
	}
	if err := a.reserve(hutch.Sandbox{ID: "two"}); err != nil {
		t.Errorf("after one ended: %v", err)
	}
	if err := a.reserve(hutch.Sandbox{ID: "two"}); !errors.Is(err, hutch.ErrConflict) {
		t.Errorf("twice: got %v, want a conflict", err)
	}
	if err := a.reserve(hutch.Sandbox{ID: "three"}); !errors.Is(err, hutch.ErrNoCapacity) {
		t.Errorf("got %v, want no_capacity: three returns are one place", err)
	}
}

// One project's flood costs another a place in the turn, not the whole queue.
func TestAdmissionIsFair(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAdmission(Config{Creates: 2, Queue: 8, MaxSandboxes: 100}, func(int) {})
		served := make(chan hutch.ProjectID, 100)
		go1 := make(chan struct{})
		refused := 0
		errs := make(chan error, 100)
		ask := func(p hutch.ProjectID) {
			go func() {
				leave, err := a.enter(t.Context(), p)
				if err != nil {
					errs <- err
					return
				}
				served <- p
				<-go1
				leave()
			}()
			synctest.Wait()
		}
		for range 20 {
			ask("flood")
		}
		ask("late")
		for len(served) > 0 {
			<-served
		}
		before := 0
		for {
			go1 <- struct{}{} // one start is over
			if <-served == "late" {
				break
			}
			before++
		}
		if before > 1 {
			t.Errorf("it was served after %d of the flood", before)
		}
		close(go1)
		synctest.Wait()
		for len(errs) > 0 {
			refused++
			if err := <-errs; !errors.Is(err, hutch.ErrNoCapacity) {
				t.Errorf("refused with %v", err)
			}
		}
		if refused != 11 { // of 20, two were served at once and eight waited, one of whom made room
			t.Errorf("%d were refused, want 11", refused)
		}
	})
}

func TestAdmissionHoldsProjectsToTheirLimits(t *testing.T) {
	a := newAdmission(Config{Creates: 1, Queue: 1, MaxSandboxes: 10, ProjectSandboxes: 1, ProjectCreates: 2}, func(int) {})
	one, two, other := hutch.Sandbox{ID: "one", Project: "p"}, hutch.Sandbox{ID: "two", Project: "p"}, hutch.Sandbox{ID: "other", Project: "q"}
	limited := func(what string, err error) {
		t.Helper()
		var e *hutch.Error
		if !errors.As(err, &e) || e.Code != hutch.CodeRateLimited || e.RetryAfter < time.Second {
			t.Errorf("%s: got %v, want rate_limited with a time to wait", what, err)
		}
	}
	now := time.Now()
	if err := errors.Join(a.ask(one, now), a.reserve(one), a.ask(other, now)); err != nil {
		t.Fatal(err)
	}
	limited("a second, asked for", a.ask(two, now))
	limited("a second, when its turn comes", a.reserve(two))
	if err := a.ready(); err != nil {
		t.Errorf("ready: %v", err)
	}
	a.unreserve("one")
	if err := a.ask(two, now); err != nil { // what was refused was not counted
		t.Errorf("after the first has ended: %v", err)
	}
	limited("a third in a minute", a.ask(two, now))
	a.askedInVain("p")
	if err := errors.Join(a.ask(two, now), a.reserve(other)); err != nil {
		t.Errorf("after one came to nothing: %v", err)
	}
}

// What a project's sandboxes may use in sum is a limit like their number, and one that would not
// fit alone is told so.
func TestAdmissionHoldsProjectsToTheirSizes(t *testing.T) {
	a := newAdmission(Config{Creates: 1, Queue: 1, MaxSandboxes: 10, ProjectMilliCPU: 3000, ProjectMemoryMB: 1024}, func(int) {})
	box := func(id hutch.SandboxID, p hutch.ProjectID, milliCPU, mb int) hutch.Sandbox {
		return hutch.Sandbox{ID: id, Project: p, Resources: hutch.Resources{MilliCPU: milliCPU, MemoryMB: mb}}
	}
	refused := func(sb hutch.Sandbox, code hutch.Code, field string) {
		t.Helper()
		for what, err := range map[string]error{"asked for": a.ask(sb, time.Now()), "when its turn comes": a.reserve(sb)} {
			var e *hutch.Error
			if !errors.As(err, &e) || e.Code != code || e.Field != field || (code == hutch.CodeRateLimited) != (e.RetryAfter >= time.Second) {
				t.Errorf("%s of %+v, %s: got %v", sb.Project, sb.Resources, what, err)
			}
		}
	}
	refused(box("x", "p", 3001, 64), hutch.CodeBadRequest, "cpu")
	refused(box("x", "p", 100, 1025), hutch.CodeBadRequest, "memory_mb")
	if err := errors.Join(a.reserve(box("a", "p", 2000, 512)), a.reserve(box("b", "p", 500, 500))); err != nil {
		t.Fatal(err)
	}
	refused(box("x", "p", 501, 1), hutch.CodeRateLimited, "")
	refused(box("x", "p", 100, 13), hutch.CodeRateLimited, "")
	if err := errors.Join(a.reserve(box("c", "q", 3000, 1024)), a.reserve(box("d", "p", 500, 12)), a.ready()); err != nil {
		t.Errorf("another project's, and one that fits: %v", err)
	}
	a.unreserve("a")
	a.unreserve("a")
	refused(box("x", "p", 2001, 1), hutch.CodeRateLimited, "")
	if err := a.reserve(box("x", "p", 2000, 512)); err != nil {
		t.Errorf("in the place of one that ended: %v", err)
	}
	for _, id := range []hutch.SandboxID{"b", "c", "d", "x"} {
		a.unreserve(id)
	}
	if len(a.projects) != 0 || a.memoryMB != 0 {
		t.Errorf("of nothing %+v is counted, and %d MiB", a.projects, a.memoryMB)
	}
}

func TestAdmissionByMemory(t *testing.T) {
	host := Memory{TotalMB: 4096, AvailableMB: 4000}
	cfg := Config{
		Creates: 1, Queue: 1, MaxSandboxes: 100, Overcommit: 2, MemoryReserveMB: 1024,
		HostMemory: func() (Memory, error) { return host, nil },
	}
	box := func(id hutch.SandboxID, mb int) hutch.Sandbox {
		return hutch.Sandbox{ID: id, Resources: hutch.Resources{MemoryMB: mb}}
	}
	a := newAdmission(cfg, func(int) {})
	if err := a.ask(box("x", 6145), time.Now()); !errors.Is(err, hutch.ErrBadRequest) {
		t.Errorf("more than there will ever be: got %v, want bad_request", err)
	}
	if err := errors.Join(a.reserve(box("a", 4096)), a.reserve(box("b", 2000))); err != nil {
		t.Fatal(err)
	}
	for _, f := range []func() error{
		func() error { return a.ask(box("c", 64), time.Now()) },
		func() error { return a.reserve(box("c", 64)) }, // b may still be starting: it counts
		a.ready,
	} {
		if err := f(); !errors.Is(err, hutch.ErrNoCapacity) {
			t.Errorf("over the sum: got %v, want no_capacity", err)
		}
	}
	a.unreserve("b")
	a.restore(box("a", 4096)) // counted already
	if err := errors.Join(a.reserve(box("c", 2048)), a.ask(box("d", 0), time.Now())); err != nil {
		t.Errorf("up to the sum: %v", err)
	}
	a.unreserve("c")
	host.AvailableMB = 1023
	if err := a.reserve(box("c", 64)); !errors.Is(err, hutch.ErrNoCapacity) {
		t.Errorf("on a host that is short of memory: got %v, want no_capacity", err)
	}
	for total, want := range map[int]int{2048: 512, 16384: 819} {
		if got := (Config{}).reserveMB(Memory{TotalMB: total}); got != want {
			t.Errorf("of %d MiB %d are kept back, want %d", total, got, want)
		}
	}
}

// Told to stop, it finishes what is under way and nothing else.
func TestAdmissionStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAdmission(Config{Creates: 1, Queue: 5, MaxSandboxes: 10}, func(int) {})
		leave, err := a.enter(t.Context(), "p")
		if err != nil {
			t.Fatal(err)
		}
		waiting := make(chan error, 1)
		go func() {
			_, err := a.enter(t.Context(), "p")
			waiting <- err
		}()
		synctest.Wait()
		over := a.stop()
		_, later := a.enter(t.Context(), "p")
		for what, err := range map[string]error{"one that waited": <-waiting, "a new one": later, "ready": a.ready(), "asked": a.ask(hutch.Sandbox{}, time.Now())} {
			var e *hutch.Error
			if !errors.As(err, &e) || e.Code != hutch.CodeUnavailable || e.RetryAfter == 0 {
				t.Errorf("%s: got %v, want unavailable with a time to wait", what, err)
			}
		}
		if a.reserve(hutch.Sandbox{ID: "x"}) == nil {
			t.Error("one was reserved that comes too late")
		}
		select {
		case <-over:
			t.Error("it is over while one is under way")
		default:
		}
		leave()
		<-over
		if a.stop() != over {
			t.Error("stopping twice is not the same")
		}
	})
}
