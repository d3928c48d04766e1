package bench

import (
	"context"
	"errors"
	"maps"
	"os"
	"runtime"
	"slices"
	"testing"
	"time"

	"hutch.dev/hutch"
)

func TestIdleTimeOfTheMachine(t *testing.T) {
	const stat = "cpu  10132153 290696 3084719 46828483 16683 0 25195 0 0 0\ncpu0 1 2 3 4 5 6\n"
	if d, err := parseIdle(stat); err != nil || d != (46828483+16683)*10*time.Millisecond {
		t.Errorf("%v, %v", d, err)
	}
	for _, bad := range []string{"", "cpu 1 2 3", "cpu0 1 2 3 4 5 6", "cpu 1 2 3 x 5"} {
		if d, err := parseIdle(bad); err == nil {
			t.Errorf("%q is %v", bad, d)
		}
	}
	if d, err := machineIdle(); err != nil || d <= 0 {
		t.Errorf("this machine's: %v, %v", d, err)
	}
	for _, c := range []struct {
		passed, idle time.Duration
		want         int64
	}{
		{10 * time.Second, 20 * time.Second, 0},
		{10 * time.Second, 19 * time.Second, 100_000},
		{10 * time.Second, 0, 2_000_000},
		{10 * time.Second, 20*time.Second + clockTick, 0}, // as the kernel counts, a tick more than passed
	} {
		if got := busy(c.passed, c.idle, 2); got != c.want {
			t.Errorf("idle for %v of %v: busy %d, want %d", c.idle, c.passed, got, c.want)
		}
	}
}

func TestWhatACrowdSpent(t *testing.T) {
	at := time.Unix(1000, 0)
	then := spent{at: at, boxes: map[hutch.SandboxID]time.Duration{"a": time.Second, "b": 0}}
	now := spent{at: at.Add(10 * time.Second), boxes: map[hutch.SandboxID]time.Duration{"a": 1010 * time.Millisecond, "b": 40 * time.Millisecond}}
	if got := now.boxesSince(then); got != 5_000 {
		t.Errorf("%d millionths of a CPU, want 5000", got)
	}
	if got := (spent{at: at.Add(time.Second)}).boxesSince(spent{at: at}); got != 0 {
		t.Errorf("nobody took %d millionths of a CPU", got)
	}
}

// What bystanders took is no matter of ours, nor is one that has ended or just begun.
func TestWhatTheMachineDid(t *testing.T) {
	at := time.Unix(1000, 0)
	idle := time.Duration(runtime.NumCPU()) * 10 * time.Second
	then := glance{at: at, beside: map[int]time.Duration{1: time.Second, 2: time.Hour}}
	now := glance{at: at.Add(10 * time.Second), idle: idle - 500*time.Millisecond, beside: map[int]time.Duration{1: 1300 * time.Millisecond, 3: time.Hour}}
	b := &book{}
	now.since(then, b.page("x", SubjectHutch, 0))
	got := map[string]int64{}
	for _, s := range b.samples {
		got[s.Metric] = s.Values[0]
	}
	if want := map[string]int64{MetricCPUMachine: 50_000, MetricCPUBeside: 30_000, MetricCPUOurs: 20_000}; !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// With nobody alive, what is looked at is the machine.
func TestIdlenessOfNobody(t *testing.T) {
	b := &book{}
	w := gather(Settings{}, nil)
	if err := w.idleness(t.Context(), &Host{}, b.page("none", SubjectHutch, 0), 20*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	var metrics []string
	for _, s := range b.samples {
		metrics = append(metrics, s.Metric)
	}
	if !slices.Equal(metrics, []string{MetricCPUMachine, MetricCPUBeside, MetricCPUOurs}) {
		t.Errorf("%q", metrics)
	}
	if !slices.Contains(w.beside, 1) || slices.Contains(w.beside, os.Getpid()) {
		t.Errorf("bystanders: %v", w.beside)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	left := errors.New("the caller left")
	cancel(left)
	if err := w.idleness(ctx, &Host{}, b.page("none", SubjectHutch, 0), time.Hour); !errors.Is(err, left) {
		t.Errorf("a look that was ended: %v", err)
	}
	if err := w.rest(ctx, &Host{}, b.page("none", SubjectHutch, 0), time.Hour); !errors.Is(err, left) {
		t.Errorf("a rest that was ended: %v", err)
	}
}
