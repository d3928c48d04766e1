package cluster

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/control"
	"hutch.dev/hutch/internal/runtime/fake"
)

// M11: one tenant's flood of creates costs another a place or two, not its whole length.
func TestCreatesAreServedInTurn(t *testing.T) {
	w := newWorld(t, func(w *world) { w.control.Creates, w.control.Queue = 1, 8 })
	release := w.host.Block(fake.OpStart)
	defer release()
	var wg sync.WaitGroup
	results := make(chan error, 100)
	create := func(p hutch.ProjectID, queued int) {
		t.Helper()
		ctx := w.ctx()
		wg.Go(func() {
			req := request()
			req.Project = p
			_, err := w.c.CreateSandbox(ctx, req)
			results <- err
		})
		eventually(t, "it is queued", func() error {
			if n := w.tally.queued(); n != queued {
				return fmt.Errorf("%d wait, want %d", n, queued)
			}
			return nil
		})
	}
	blocked := w.host.Blocked()
	create("flood", 0)
	within(t, "the first is being started", blocked)
	for i := range 8 {
		create("flood", i+1)
	}
	_, err := w.c.CreateSandbox(w.ctx(), hutch.CreateSandbox{Project: "flood", Template: "base"})
	wantError(t, "one more of the flood", err, hutch.ErrNoCapacity)
	create("late", 8)
	wantError(t, "the newest of the flood, which had more than its share", within(t, "it is told", results), hutch.ErrNoCapacity)
	release()
	wg.Wait()
	for range 9 {
		if err := <-results; err != nil {
			t.Errorf("one that had a place: %v", err)
		}
	}
	var late time.Time
	for _, sb := range w.records() {
		if sb.Project == "late" {
			late = sb.StartedAt
		}
	}
	before := 0
	for _, sb := range w.records() {
		if sb.StartedAt.Before(late) {
			before++
		}
	}
	if before > 2 { // the one under way and one whose turn it was
		t.Errorf("%d of the flood were started before the other's", before)
	}
	w.wantAgreement()
}

// M10: the limits count what is being started and what is paused, and hold across a restart.
func TestProjectsAreHeldToTheirLimits(t *testing.T) {
	w := newWorld(t, func(w *world) { w.control.ProjectSandboxes = 2 })
	limited := func(what string) {
		t.Helper()
		_, err := w.c.CreateSandbox(w.ctx(), request())
		wantError(t, what, err, hutch.ErrRateLimited)
		var e *hutch.Error
		if errors.As(err, &e) && e.RetryAfter < time.Second {
			t.Errorf("%s: to come again after %v", what, e.RetryAfter)
		}
	}
	sb := w.create()
	if _, err := w.c.PauseSandbox(w.ctx(), project, sb.ID); err != nil {
		t.Fatal(err)
	}
	blocked := w.host.Blocked()
	release := w.host.Block(fake.OpStart)
	defer release()
	second := make(chan error, 1)
	ctx := w.ctx()
	go func() {
		_, err := w.c.CreateSandbox(ctx, request())
		second <- err
	}()
	within(t, "the second is being started", blocked)
	limited("with one paused and one being started")
	if _, err := w.c.ResumeSandbox(w.ctx(), project, sb.ID); err != nil {
		t.Errorf("resume: %v", err)
	}
	release()
	if err := within(t, "the second", second); err != nil {
		t.Fatal(err)
	}
	other := request()
	other.Project = "another"
	if _, err := w.c.CreateSandbox(w.ctx(), other); err != nil {
		t.Errorf("another project: %v", err)
	}
	w.restart()
	limited("after a restart")
	if _, err := w.c.KillSandbox(w.ctx(), project, sb.ID); err != nil {
		t.Fatal(err)
	}
	w.create()
	limited("when one was ended and another made")
	w.wantAgreement()
}

// The same of what they may use in sum.
func TestProjectsAreHeldToTheirSizes(t *testing.T) {
	w := newWorld(t, func(w *world) { w.control.ProjectMilliCPU, w.control.ProjectMemoryMB = 2000, 2048 })
	size := func(milliCPU, mb int) func(*hutch.CreateSandbox) {
		return func(r *hutch.CreateSandbox) { r.Resources.MilliCPU, r.Resources.MemoryMB = milliCPU, mb }
	}
	refused := func(what string, milliCPU, mb int, want error) {
		t.Helper()
		req := request()
		size(milliCPU, mb)(&req)
		_, err := w.c.CreateSandbox(w.ctx(), req)
		wantError(t, what, err, want)
	}
	refused("CPUs that it never gets", 2100, 64, hutch.ErrBadRequest)
	refused("memory that it never gets", 100, 2049, hutch.ErrBadRequest)
	sb := w.create(size(1500, 1024))
	if _, err := w.c.PauseSandbox(w.ctx(), project, sb.ID); err != nil {
		t.Fatal(err)
	}
	refused("CPUs that a paused one has", 600, 64, hutch.ErrRateLimited)
	w.restart()
	refused("memory that a paused one has, after a restart", 100, 1025, hutch.ErrRateLimited)
	w.create(size(500, 1024))
	other := request()
	other.Project = "another"
	if _, err := w.c.CreateSandbox(w.ctx(), other); err != nil {
		t.Errorf("another project: %v", err)
	}
	if _, err := w.c.KillSandbox(w.ctx(), project, sb.ID); err != nil {
		t.Fatal(err)
	}
	w.create(size(1500, 1024))
	w.wantAgreement()
}

func TestCreateRate(t *testing.T) {
	w := newWorld(t, func(w *world) { w.control.ProjectCreates = 2 })
	first := request()
	first.ID = newID()
	for range 3 { // asked for three times, made once
		if _, err := w.c.CreateSandbox(w.ctx(), first); err != nil {
			t.Fatal(err)
		}
	}
	nothing := request()
	nothing.Template = "nothing"
	_, err := w.c.CreateSandbox(w.ctx(), nothing)
	wantError(t, "one that comes to nothing", err, hutch.ErrNotFound)
	w.create()
	_, err = w.c.CreateSandbox(w.ctx(), request())
	wantError(t, "the third in a minute", err, hutch.ErrRateLimited)
	var e *hutch.Error
	if errors.As(err, &e) && (e.RetryAfter < time.Second || e.RetryAfter > 30*time.Second) {
		t.Errorf("to come again after %v", e.RetryAfter)
	}
	other := request()
	other.Project = "another"
	if _, err := w.c.CreateSandbox(w.ctx(), other); err != nil {
		t.Errorf("another project: %v", err)
	}
}

// The sum of what sandboxes may use is held against what the host has, those being started and
// those of before a restart included.
func TestCreateByMemory(t *testing.T) {
	w := newWorld(t, func(w *world) {
		w.control.Overcommit, w.control.MemoryReserveMB = 2, 512
		w.control.HostMemory = func() (control.Memory, error) { return control.Memory{TotalMB: 1024, AvailableMB: 1024}, nil }
	})
	size := func(mb int) func(*hutch.CreateSandbox) {
		return func(r *hutch.CreateSandbox) { r.Resources.MemoryMB = mb }
	}
	refused := func(mb int, want error) {
		t.Helper()
		req := request()
		size(mb)(&req)
		_, err := w.c.CreateSandbox(w.ctx(), req)
		wantError(t, fmt.Sprintf("%d MiB", mb), err, want)
	}
	refused(1025, hutch.ErrBadRequest) // it would never fit
	sb := w.create(size(768))
	refused(512, hutch.ErrNoCapacity)
	w.create(size(256))
	refused(64, hutch.ErrNoCapacity)
	wantError(t, "ready", w.c.Ready(w.ctx()), hutch.ErrNoCapacity)
	w.restart()
	refused(64, hutch.ErrNoCapacity)
	if _, err := w.c.KillSandbox(w.ctx(), project, sb.ID); err != nil {
		t.Fatal(err)
	}
	if err := w.c.Ready(w.ctx()); err != nil {
		t.Errorf("ready: %v", err)
	}
	w.create(size(512))
	w.wantAgreement()
}

// Told to stop, a server makes what it has begun, refuses the rest, and keeps what runs.
func TestDrain(t *testing.T) {
	w := newWorld(t, func(w *world) { w.control.Creates = 1 })
	sb := w.create()
	blocked := w.host.Blocked()
	release := w.host.Block(fake.OpStart)
	defer release()
	results, waits := make(chan error, 1), make(chan error, 1)
	ctx := w.ctx()
	create := func(to chan error) {
		_, err := w.c.CreateSandbox(ctx, request())
		to <- err
	}
	go create(results)
	within(t, "one is being started", blocked)
	go create(waits)
	eventually(t, "another waits", func() error {
		if w.tally.queued() != 1 {
			return errors.New("not yet")
		}
		return nil
	})
	short, cancel := context.WithCancel(w.ctx())
	cancel()
	if err := w.c.Drain(short); !errors.Is(err, context.Canceled) {
		t.Errorf("with a start under way and no patience: %v", err)
	}
	wantError(t, "the one that waited", within(t, "it is told", waits), hutch.ErrUnavailable)
	_, err := w.c.CreateSandbox(w.ctx(), request())
	wantError(t, "a new one", err, hutch.ErrUnavailable)
	var e *hutch.Error
	if errors.As(err, &e) && e.RetryAfter == 0 {
		t.Error("it does not say when to come again")
	}
	wantError(t, "ready", w.c.Ready(w.ctx()), hutch.ErrUnavailable)
	w.wantEnd(w.exec(sb, "echo on"), hutch.ExecExit, 0, "on\n") // everything else goes on
	release()
	if err := w.c.Drain(w.ctx()); err != nil {
		t.Errorf("drain: %v", err)
	}
	if err := within(t, "the one under way", results); err != nil {
		t.Errorf("the one under way: %v", err)
	}
	w.restart()
	w.wantEnd(w.exec(sb, "echo on"), hutch.ExecExit, 0, "on\n")
	w.create()
	w.wantAgreement()
}

// However it is asked for, no sandbox lives longer than the operator's limit, and none forgets
// when it was made.
func TestMaxAge(t *testing.T) {
	const age = 10 * time.Minute
	w := newWorld(t, func(w *world) { w.control.MaxAge = age })
	hour, minute, most := time.Hour, time.Minute, time.Duration(0)
	for name, ttl := range map[string]*time.Duration{"as long as it takes": nil, "an hour": &hour, "the most": &most} {
		sb := w.create(func(r *hutch.CreateSandbox) { r.TTL = ttl })
		if got := sb.ExpiresAt.Sub(sb.CreatedAt); got != age || sb.TTL != age {
			t.Errorf("%s: it ends after %v (%v), want %v", name, got, sb.TTL, age)
		}
	}
	sb := w.create(func(r *hutch.CreateSandbox) { r.TTL = &minute })
	last := sb.CreatedAt.Add(age)
	if got := sb.ExpiresAt.Sub(sb.CreatedAt); got != minute {
		t.Errorf("a minute: it ends after %v", got)
	}
	wantLast := func(what string, sb hutch.Sandbox, err error) {
		t.Helper()
		if err != nil || !sb.ExpiresAt.Equal(last) || sb.TTL > age || sb.TTL < age-time.Minute {
			t.Errorf("%s: ends at %v (ttl %v), %v, want %v", what, sb.ExpiresAt, sb.TTL, err, last)
		}
		if r := w.record(sb.ID); !r.ExpiresAt.Equal(last) {
			t.Errorf("%s: on record it ends at %v", what, r.ExpiresAt)
		}
	}
	for range 2 {
		got, err := w.c.ExtendSandbox(w.ctx(), project, sb.ID, hour)
		wantLast("extend", got, err)
	}
	got, err := w.c.ExtendTo(w.ctx(), project, sb.ID, time.Now().Add(hour), true)
	wantLast("connect", got, err)
	got, err = w.c.ExtendTo(w.ctx(), project, sb.ID, time.Now().Add(hour), false)
	wantLast("a time", got, err)
	w.restart()
	got, err = w.c.ExtendSandbox(w.ctx(), project, sb.ID, most)
	wantLast("extend after a restart", got, err)

	// An operator who comes to want shorter lives has them.
	w.kill()
	w.control.MaxAge = time.Second
	w.start()
	w.wantDead(sb.ID, hutch.EndExpired)
	w.wantAgreement()
}
