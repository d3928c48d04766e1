package main

import (
	"context"
	"errors"
	"log/slog"
	"os/exec"
	"sync"
	"testing"
	"time"

	"hutch.dev/hutch"
)

// process is a companion's other side as a test plays it.
type process struct {
	done chan struct{}
	once sync.Once

	mu    sync.Mutex
	hangs int // so many pings are not answered
	pings int
}

func newProcess() *process { return &process{done: make(chan struct{})} }

func (p *process) Done() <-chan struct{} { return p.done }
func (p *process) Close()                { p.once.Do(func() { close(p.done) }) }

func (p *process) hang(pings int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.hangs = pings
}

func (p *process) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.pings
}

func (p *process) ping(ctx context.Context) error {
	p.mu.Lock()
	p.pings++
	hangs := p.hangs > 0
	p.hangs = max(0, p.hangs-1)
	p.mu.Unlock()
	if hangs {
		<-ctx.Done()
		return ctx.Err()
	}
	return hutch.ErrNotFound // an answer is an answer
}

// crew is a companion whose processes are made by a test.
type crew struct {
	*companion[*process]
	processes chan *process // started, in order
	killed    chan *process
	refills   chan struct{}
	failures  chan error // of the next starts
	unfilled  chan error // of the next refills
}

func newCrew(t *testing.T) *crew {
	t.Helper()
	c := &crew{
		processes: make(chan *process, 10), killed: make(chan *process, 10),
		refills: make(chan struct{}, 10), failures: make(chan error, 10), unfilled: make(chan error, 10),
	}
	c.companion = &companion[*process]{
		name: "helper", log: slog.New(slog.DiscardHandler),
		start: func(context.Context) (*process, error) {
			select {
			case err := <-c.failures:
				return nil, err
			default:
			}
			p := newProcess()
			c.processes <- p
			return p, nil
		},
		refill: func(context.Context) error {
			select {
			case err := <-c.unfilled:
				return err
			default:
			}
			c.refills <- struct{}{}
			return nil
		},
		ping:  func(ctx context.Context, p *process) error { return p.ping(ctx) },
		kill:  func(p *process) error { c.killed <- p; return nil },
		every: time.Millisecond, timeout: 20 * time.Millisecond,
	}
	if err := c.open(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	over := make(chan error, 1)
	go func() { over <- c.run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-over; err != nil {
			t.Errorf("run: %v", err)
		}
	})
	return c
}

func next[T any](t *testing.T, what string, ch <-chan T) T {
	t.Helper()
	select {
	case v := <-ch:
		return v
	case <-time.After(20 * time.Second):
		t.Fatalf("%s: not in 20 s", what)
		panic("unreachable")
	}
}

// until polls.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.NewTimer(20 * time.Second)
	defer deadline.Stop()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("%s: not in 20 s", what)
		}
	}
}

func TestCompanionThatDiesIsReplaced(t *testing.T) {
	c := newCrew(t)
	first := next(t, "a process", c.processes)
	c.failures <- errors.New("not yet")
	first.Close()
	second := next(t, "another process", c.processes)
	next(t, "it is given what the first held", c.refills)
	until(t, "it is of use", func() bool { return c.ready() == nil && c.get() == second })
	if len(c.killed) != 0 {
		t.Error("the dead was killed")
	}
}

func TestCompanionThatHangsIsReplaced(t *testing.T) {
	c := newCrew(t)
	first := next(t, "a process", c.processes)
	until(t, "it is pinged", func() bool { return first.count() > 5 })
	if err := c.ready(); err != nil || len(c.processes) != 0 {
		t.Fatalf("one that answers is not of use: %v", err)
	}
	first.hang(1000)
	until(t, "it is said not to answer", func() bool { return errors.Is(c.ready(), hutch.ErrUnavailable) })
	if p := next(t, "it is killed", c.killed); p != first {
		t.Error("another was killed")
	}
	second := next(t, "another process", c.processes)
	next(t, "it is given what the first held", c.refills)
	next(t, "who waits for the first waits no longer", first.Done())
	until(t, "it is of use", func() bool { return c.ready() == nil && c.get() == second })
}

// What was connected to and could not be used is let go of.
func TestCompanionThatCannotBeRefilledIsLetGo(t *testing.T) {
	c := newCrew(t)
	first := next(t, "a process", c.processes)
	c.unfilled <- errors.New("it takes nothing")
	first.Close()
	second := next(t, "another connection", c.processes)
	third := next(t, "a third", c.processes)
	next(t, "the second is closed", second.Done())
	next(t, "the third is given what the first held", c.refills)
	until(t, "it is of use", func() bool { return c.ready() == nil && c.get() == third })
}

// One ping that got lost is no reason.
func TestCompanionMayBeSlowOnce(t *testing.T) {
	c := newCrew(t)
	first := next(t, "a process", c.processes)
	for range 5 {
		before := first.count()
		first.hang(1)
		until(t, "it is asked again", func() bool { return first.count() > before+2 })
		until(t, "it is of use", func() bool { return c.ready() == nil })
	}
	if len(c.processes) != 0 || len(c.killed) != 0 {
		t.Error("it was replaced")
	}
}

// A call that its process dies under is made of the next one.
func TestCallOutlivesItsProcess(t *testing.T) {
	c := newCrew(t)
	first := next(t, "a process", c.processes)
	calls := 0
	err := c.call(t.Context(), func(p *process) error {
		if calls++; p == first {
			p.Close()
			return hutch.Errorf(hutch.CodeUnavailable, "it is gone")
		}
		return nil
	})
	if err != nil || calls != 2 {
		t.Errorf("the call: %v after %d tries; want nil after 2", err, calls)
	}
	err = c.call(t.Context(), func(*process) error { calls++; return hutch.ErrUnavailable })
	if !errors.Is(err, hutch.ErrUnavailable) || calls != 3 {
		t.Errorf("what a living process says: %v after %d tries", err, calls)
	}
}

func TestKillProcess(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	gone := make(chan error, 1)
	go func() { gone <- cmd.Wait() }()
	if err := killProcess(cmd.Process.Pid); err != nil {
		t.Errorf("killProcess: %v", err)
	}
	if err := next(t, "it ends", gone); err == nil {
		t.Error("it ended by itself")
	}
	if err := killProcess(cmd.Process.Pid); err != nil {
		t.Errorf("one that is gone: %v", err)
	}
}
