package control

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"hutch.dev/hutch"
)

func TestAdmissionBoundsStartsAndQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAdmission(Config{Creates: 1, Queue: 1, MaxSandboxes: 10}, func(int) {})
		leave, err := a.enter(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		second := make(chan error, 1)
		go func() {
			leave, err := a.enter(t.Context())
			if err == nil {
				leave()
			}
			second <- err
		}()
		synctest.Wait() // it waits now
		if _, err := a.enter(t.Context()); !errors.Is(err, hutch.ErrNoCapacity) {
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
		leave, err := a.enter(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer leave()
		ctx, cancel := context.WithCancel(t.Context())
		got := make(chan error, 1)
		go func() {
			_, err := a.enter(ctx)
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
	if err := a.reserve("one"); err != nil {
		t.Fatal(err)
	}
	if err := a.reserve("two"); !errors.Is(err, hutch.ErrNoCapacity) {
		t.Errorf("got %v, want no_capacity", err)
	}
	if err := a.ready(); !errors.Is(err, hutch.ErrNoCapacity) {
		t.Errorf("ready: got %v, want no_capacity", err)
	}
	for range 3 { // each of those who see it end gives its place back
		a.unreserve("one")
	}
	if err := a.reserve("two"); err != nil {
		t.Errorf("after one ended: %v", err)
	}
	if err := a.reserve("two"); !errors.Is(err, hutch.ErrConflict) {
		t.Errorf("twice: got %v, want a conflict", err)
	}
	if err := a.reserve("three"); !errors.Is(err, hutch.ErrNoCapacity) {
		t.Errorf("got %v, want no_capacity: three returns are one place", err)
	}
}
