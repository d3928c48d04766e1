package gvisor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/runtime"
	"hutch.dev/hutch/internal/x/pidfd"
)

// Kill must work in whatever state a sandbox is.
func TestKillInEveryState(t *testing.T) {
	r := newRuntime(t)
	started := func(t *testing.T, s *sandbox) {
		t.Helper()
		if err := s.Start(t.Context(), runtime.StartOptions{}); err != nil {
			t.Fatal(detail(err))
		}
	}
	for name, bring := range map[string]func(*testing.T, *sandbox){
		"prepared": func(*testing.T, *sandbox) {},
		"running":  started,
		"paused": func(t *testing.T, s *sandbox) {
			started(t, s)
			if err := s.Pause(t.Context()); err != nil {
				t.Fatal(detail(err))
			}
		},
		"sentry hangs": func(t *testing.T, s *sandbox) {
			started(t, s)
			stop(t, s)
		},
		"sentry is dead": func(t *testing.T, s *sandbox) {
			started(t, s)
			signal(t, s.procs[0], unix.SIGKILL)
			<-s.exited
		},
		"gofer is dead": func(t *testing.T, s *sandbox) {
			started(t, s)
			signal(t, s.procs[1], unix.SIGKILL)
		},
		"fork bomb": func(t *testing.T, s *sandbox) {
			started(t, s)
			g := attach(t, s)
			g.send(t, true, "/bin/sh", "-c", "f() { f | f & }; f")
			until(t, "many processes", func() bool {
				pids, err := s.group.Procs()
				return err != nil || len(pids) > 100 || !pidfd.Alive(s.procs[0])
			})
		},
		"start fails": func(t *testing.T, s *sandbox) {
			err := s.Start(t.Context(), runtime.StartOptions{Snapshot: t.TempDir()})
			if !errors.Is(err, hutch.ErrBadRequest) {
				t.Fatalf("start from an empty directory: %v", err)
			}
			if err := s.Start(t.Context(), runtime.StartOptions{}); !errors.Is(err, hutch.ErrInvalidState) {
				t.Fatalf("start after a failed start: %v", err)
			}
		},
		"start under way": func(t *testing.T, s *sandbox) {
			stop(t, s)
			go func() { _ = s.Start(context.WithoutCancel(t.Context()), runtime.StartOptions{}) }()
			until(t, "start", func() bool { return s.phase() == starting })
		},
	} {
		t.Run(name, func(t *testing.T) {
			spec := newSpec(hutch.TierDisk)
			s := create(t, r, spec)
			bring(t, s)
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			if err := s.Kill(ctx); err != nil {
				t.Fatalf("kill: %v", detail(err))
			}
			mustBeGone(t, r, spec.ID)
			var last runtime.Event
			for e := range s.Events() {
				last = e
			}
			if last.Kind != runtime.KindExited {
				t.Errorf("last event: %+v", last)
			}
		})
	}
}

// signal sends a signal to a process of a sandbox.
func signal(t *testing.T, f *os.File, sig unix.Signal) {
	t.Helper()
	if err := pidfd.Signal(f, sig); err != nil {
		t.Fatal(err)
	}
}

// stop makes the sentry of s hang: it answers nothing any more.
func stop(t *testing.T, s *sandbox) {
	t.Helper()
	signal(t, s.procs[0], unix.SIGSTOP)
	until(t, "stop of the sentry", func() bool {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", s.rec.Sentry.PID))
		return err == nil && strings.Contains(string(b), ") T ")
	})
}

// A sentry that does not answer must not hold a call longer than its deadline.
func TestHungSentryHoldsNoCall(t *testing.T) {
	r := newRuntime(t)
	s, _ := start(t, r, newSpec(hutch.TierMemory))
	stop(t, s)
	dir := t.TempDir()
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	begun := time.Now()
	err := s.Checkpoint(ctx, dir, true)
	if !errors.Is(err, hutch.ErrGuestUnresponsive) {
		t.Errorf("checkpoint of a hung sentry: %v", err)
	}
	if took := time.Since(begun); took > 15*time.Second {
		t.Errorf("it took %v to give up after 0.3 s", took)
	}
	if es, err := os.ReadDir(dir); err != nil || len(es) > 0 {
		t.Errorf("left in the snapshot's directory: %v, %v", es, err)
	}
}

// Fifty lives must leave the host, and this process, as they were.
func TestNothingIsLeftAfterManyLives(t *testing.T) {
	r := newRuntime(t)
	live := func(i int) {
		spec := newSpec(tiers[i%2])
		s := create(t, r, spec)
		if i%5 != 0 {
			if err := s.Start(t.Context(), runtime.StartOptions{}); err != nil {
				t.Fatal(detail(err))
			}
		}
		if i%3 == 0 {
			signal(t, s.procs[0], unix.SIGKILL)
		}
		kill(t, s)
		if left := leftovers(t, r, spec.ID); len(left) > 0 {
			t.Fatalf("left of life %d: %v", i, left)
		}
	}
	live(1) // opens what stays open: the poller, the test's own
	files, procs := countFiles(t), allProcs(t)
	for i := range 50 {
		live(i)
	}
	if now := countFiles(t); now > files {
		t.Errorf("%d files are open in this process, %d were before", now, files)
	}
	until(t, "the end of every process", func() bool { return allProcs(t) <= procs })
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.boxes) > 0 {
		t.Errorf("the runtime still holds %d sandboxes", len(r.boxes))
	}
}

func countFiles(t *testing.T) int {
	t.Helper()
	es, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(es)
}

// allProcs counts the processes of sandboxes of any state directory of this process's
// tests, by their group: a zombie has no arguments any more, but is in /proc.
func allProcs(t *testing.T) int {
	t.Helper()
	es, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, e := range es {
		b, err := os.ReadFile("/proc/" + e.Name() + "/cgroup")
		if err == nil && strings.Contains(string(b), cgroupParent) {
			n++
		}
	}
	return n
}
