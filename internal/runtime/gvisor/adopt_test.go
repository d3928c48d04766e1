package gvisor

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/runtime"
	"hutch.dev/hutch/internal/x/pidfd"
)

// duplicate returns handles as a keeper would give them to another process.
func duplicate(t *testing.T, h runtime.Handles) runtime.Handles {
	t.Helper()
	dup := func(f *os.File) *os.File {
		var d *os.File
		err := withFDs([]*os.File{f}, nil, func(fds []int) error {
			n, err := unix.FcntlInt(uintptr(fds[0]), unix.F_DUPFD_CLOEXEC, 0)
			d = os.NewFile(uintptr(n), f.Name())
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	out := runtime.Handles{Guest: dup(h.Guest), Link: dup(h.Link), LinkKind: h.LinkKind}
	for _, p := range h.Procs {
		out.Procs = append(out.Procs, dup(p))
	}
	return out
}

// adopt takes s over into another Runtime, as a restarted process would.
func adopt(t *testing.T, s *sandbox) (*Runtime, *sandbox) {
	t.Helper()
	r := again(s.r.cfg.StateDir)
	sb, err := r.Adopt(t.Context(), s.spec, duplicate(t, s.Handles()))
	if err != nil {
		t.Fatalf("adopt: %v", detail(err))
	}
	return r, sb.(*sandbox)
}

func TestAdoptGoesOnWhereItWas(t *testing.T) {
	r := newRuntime(t)
	for _, tier := range tiers {
		t.Run(string(tier), func(t *testing.T) {
			s := create(t, r, newSpec(tier))
			_, s = adopt(t, s)
			if err := s.Start(t.Context(), runtime.StartOptions{}); err != nil {
				t.Fatalf("start of an adopted one: %v", detail(err))
			}
			g := attach(t, s)
			g.sh(t, "echo kept > /root/file")
			g.detach()
			_, s = adopt(t, s)
			g = attach(t, s)
			if got := g.sh(t, "cat /root/file"); got != "kept" {
				t.Errorf("after adoption the file holds %q", got)
			}
			g.detach()
			if err := s.Start(t.Context(), runtime.StartOptions{}); !errors.Is(err, hutch.ErrInvalidState) {
				t.Errorf("start of an adopted one that runs: %v", err)
			}
			if err := s.Pause(t.Context()); err != nil {
				t.Fatal(detail(err))
			}
			r3, s := adopt(t, s)
			if err := s.Resume(t.Context()); err != nil {
				t.Fatal(detail(err))
			}
			attach(t, s).ping(t)
			if st, err := s.Stats(t.Context()); err != nil || st.Memory == 0 {
				t.Errorf("stats of an adopted one: %+v, %v", st, err)
			}
			kill(t, s)
			mustBeGone(t, r3, s.id)
			if e := <-s.Events(); e.Kind != runtime.KindExited || e.OOM {
				t.Errorf("event after kill: %+v", e)
			}
		})
	}
}

// Whether a sandbox is paused is found out, however far a pause or resume had come when the
// process that made it ended.
func TestAdoptInTheMiddleOfAPause(t *testing.T) {
	for name, c := range map[string]struct {
		during phase
		paused bool
	}{
		"pause not made":   {pausing, false},
		"pause made":       {pausing, true},
		"resume not made":  {resuming, true},
		"resume just made": {resuming, false},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRuntime(t)
			s, g := start(t, r, newSpec(hutch.TierDisk))
			g.spawn(t, "while :; do :; done")
			g.spawn(t, "sleep 1000")
			g.detach()
			if c.paused || c.during == resuming {
				if err := s.Pause(t.Context()); err != nil {
					t.Fatal(detail(err))
				}
			}
			if c.during == resuming && !c.paused {
				if err := s.Resume(t.Context()); err != nil {
					t.Fatal(detail(err))
				}
			}
			if err := s.enter(c.during); err != nil {
				t.Fatal(err)
			}
			_, s = adopt(t, s)
			want := running
			if c.paused {
				want = paused
			}
			if got := s.phase(); got != want {
				t.Fatalf("taken over as %s, want %s", got, want)
			}
			for range 3 { // whatever it was, it can be paused and resumed as any other
				if err := errors.Join(s.Pause(t.Context()), s.Resume(t.Context())); err != nil {
					t.Fatal(detail(err))
				}
			}
			attach(t, s).ping(t)
		})
	}
}

func TestReadStacks(t *testing.T) {
	const (
		asking  = "goroutine 9 [running]:\ngvisor.dev/gvisor/pkg/log.Stacks(...)\ncreated by gvisor.dev/gvisor/pkg/urpc.(*Server).StartHandling in goroutine 1\n"
		stopped = "goroutine 2 [sync.Cond.Wait, 3 minutes]:\nsync.(*Cond).Wait(0x1)\ngvisor.dev/gvisor/pkg/sentry/kernel.(*Task).doStop(0x1)\ngvisor.dev/gvisor/pkg/sentry/kernel.(*Task).run(0x1, 0x2)\n"
		letGo   = "goroutine 2 [runnable]:\nsync.(*Cond).Wait(0x1)\ngvisor.dev/gvisor/pkg/sentry/kernel.(*Task).doStop(0x1)\ngvisor.dev/gvisor/pkg/sentry/kernel.(*Task).run(0x1, 0x2)\n"
		works   = "goroutine 3 [select]:\ngvisor.dev/gvisor/pkg/sentry/kernel.(*Task).block(0x1)\ngvisor.dev/gvisor/pkg/sentry/kernel.(*Task).run(0x1, 0x2)\n"
		other   = "goroutine 4 [sync.Cond.Wait]:\nsync.(*Cond).Wait(0x1)\n"
	)
	for _, c := range []struct {
		text []string
		want stacks
	}{
		{nil, stacks{}},
		{[]string{asking, other}, stacks{calls: 1}},
		{[]string{asking, stopped, stopped}, stacks{1, 2, 2}},
		{[]string{asking, stopped, letGo}, stacks{1, 2, 1}},
		{[]string{asking, works, stopped, asking}, stacks{2, 2, 1}},
	} {
		if got := readStacks(strings.Join(c.text, "\n")); got != c.want {
			t.Errorf("%q: %+v, want %+v", c.text, got, c.want)
		}
	}
}

func TestAdoptRefusesWhatIsGone(t *testing.T) {
	r := newRuntime(t)
	for name, spoil := range map[string]func(*testing.T, *sandbox, *runtime.Handles){
		"dead": func(t *testing.T, s *sandbox, _ *runtime.Handles) {
			signal(t, s.procs[0], unix.SIGKILL)
			<-s.exited
		},
		"killed": func(t *testing.T, s *sandbox, _ *runtime.Handles) { kill(t, s) },
		"no guest stream": func(_ *testing.T, _ *sandbox, h *runtime.Handles) {
			h.Guest.Close()
			h.Guest = nil
		},
		"no processes": func(_ *testing.T, _ *sandbox, h *runtime.Handles) {
			for _, p := range h.Procs {
				p.Close()
			}
			h.Procs = nil
		},
		"another's processes": func(t *testing.T, _ *sandbox, h *runtime.Handles) {
			f, err := pidfd.Open(os.Getpid())
			if err != nil {
				t.Fatal(err)
			}
			h.Procs[0].Close()
			h.Procs[0] = f
		},
		"unclear how far a start came": func(t *testing.T, s *sandbox, _ *runtime.Handles) {
			if err := s.enter(starting); err != nil {
				t.Fatal(err)
			}
		},
		"record lost": func(t *testing.T, s *sandbox, _ *runtime.Handles) {
			if err := os.Remove(s.r.recordPath(s.id)); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := create(t, r, newSpec(hutch.TierMemory))
			h := duplicate(t, s.Handles())
			spoil(t, s, &h)
			r2 := again(r.cfg.StateDir)
			_, err := r2.Adopt(t.Context(), s.spec, h)
			if !errors.Is(err, hutch.ErrSandboxGone) {
				t.Errorf("adopt: %v, want ErrSandboxGone", err)
			}
			for _, f := range append([]*os.File{h.Guest, h.Link}, h.Procs...) {
				if f != nil && !errors.Is(f.Close(), os.ErrClosed) {
					t.Errorf("a refused adoption left %s open", f.Name())
				}
			}
			if err := r2.Sweep(t.Context(), s.id); err != nil {
				t.Errorf("sweep: %v", detail(err))
			}
			mustBeGone(t, r2, s.id)
		})
	}
}

func TestAdoptTwiceIsConflict(t *testing.T) {
	r := newRuntime(t)
	s := create(t, r, newSpec(hutch.TierMemory))
	if _, err := r.Adopt(t.Context(), s.spec, duplicate(t, s.Handles())); !errors.Is(err, hutch.ErrConflict) {
		t.Errorf("adopt of one's own: %v", err)
	}
}

// Whatever alone is left of a sandbox, it is found and removed.
func TestSweepFindsByAnyTrace(t *testing.T) {
	for name, lose := range map[string]func(*testing.T, *sandbox){
		"all is there": func(*testing.T, *sandbox) {},
		"state directory lost": func(t *testing.T, s *sandbox) {
			if err := os.RemoveAll(s.r.boxesDir()); err != nil {
				t.Fatal(err)
			}
			for _, f := range s.r.runscFiles(s.id) {
				_ = os.Remove(f)
			}
		},
		"only the directory": func(t *testing.T, s *sandbox) {
			for _, p := range s.procs {
				signal(t, p, unix.SIGKILL)
			}
			if err := s.group.Remove(t.Context()); err != nil {
				t.Fatal(err)
			}
		},
		"only cgroups": func(t *testing.T, s *sandbox) {
			for _, p := range s.procs {
				signal(t, p, unix.SIGKILL)
			}
			<-s.exited
			if err := s.r.removeFiles(s.id); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRuntime(t)
			s, _ := start(t, r, newSpec(hutch.TierDisk))
			lose(t, s)
			r2 := again(r.cfg.StateDir)
			ids, err := r2.List(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Contains(ids, s.id) {
				t.Errorf("list is %v, want %s in it", ids, s.id)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			for range 2 {
				if err := r2.Sweep(ctx, s.id); err != nil {
					t.Fatalf("sweep: %v", detail(err))
				}
			}
			mustBeGone(t, r2, s.id)
			if pidfd.Alive(s.procs[0]) {
				t.Error("the sentry lives")
			}
		})
	}
}

func TestSweepRefusesPaths(t *testing.T) {
	r := newRuntime(t)
	for _, id := range []hutch.SandboxID{"", ".", "..", "a/b", "../x", "a\x00b"} {
		if err := r.Sweep(t.Context(), id); !errors.Is(err, hutch.ErrBadRequest) {
			t.Errorf("sweep of %q: %v", id, err)
		}
	}
}

// A create whose child is killed in the middle leaves nothing, also if the process
// that ran it never gets to undo it.
func TestKilledCreateChild(t *testing.T) {
	r := newRuntime(t)
	spec := newSpec(hutch.TierDisk)
	// An image that nobody ever writes holds the child where it opens it, so that it is
	// killed in the middle however slow this test is to find it.
	spec.Image = filepath.Join(t.TempDir(), "image")
	if err := unix.Mkfifo(spec.Image, 0o644); err != nil {
		t.Fatal(err)
	}
	failed := make(chan error, 1)
	go func() {
		sb, err := r.Create(t.Context(), spec)
		if err == nil {
			kill(t, sb)
		}
		failed <- err
	}()
	until(t, "the child to be there", func() bool {
		procs, err := r.scan()
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range procs {
			if p.id == spec.ID {
				return r.endProc(p) == nil
			}
		}
		return false
	})
	if err := <-failed; err == nil {
		t.Error("create succeeded although its child was killed")
	}
	mustBeGone(t, r, spec.ID)
}

func TestSweepDuringCreate(t *testing.T) {
	r := newRuntime(t)
	r2 := again(r.cfg.StateDir)
	for range 5 {
		spec := newSpec(hutch.TierDisk)
		failed := make(chan error, 1)
		go func() {
			sb, err := r.Create(t.Context(), spec)
			if err == nil {
				kill(t, sb)
			}
			failed <- err
		}()
		until(t, "something of the sandbox", func() bool {
			ids, err := r2.List(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			return slices.Contains(ids, spec.ID)
		})
		if err := r2.Sweep(t.Context(), spec.ID); err != nil {
			t.Fatalf("sweep: %v", detail(err))
		}
		<-failed
		mustBeGone(t, r, spec.ID)
	}
}

// What ended a sandbox that no process watched can be read from what is left of it.
func TestEndedUnseen(t *testing.T) {
	r := newRuntime(t)
	unseen := again(r.cfg.StateDir) // as the next process, which has not come yet
	for name, c := range map[string]struct {
		spec func(*runtime.Spec)
		end  func(*testing.T, *sandbox, *guest)
		oom  bool
		pids bool
	}{
		"killed": {end: func(t *testing.T, s *sandbox, _ *guest) { signal(t, s.procs[0], unix.SIGKILL) }},
		"over its memory": {
			spec: func(s *runtime.Spec) { s.Resources.DiskTier = hutch.TierMemory },
			end: func(t *testing.T, _ *sandbox, g *guest) {
				g.send(t, true, "/bin/sh", "-c", "mount -t tmpfs -o size=2g none /mnt && dd if=/dev/zero of=/mnt/x bs=1M")
			}, oom: true,
		},
		"over its processes": {
			spec: func(s *runtime.Spec) { s.Resources.Pids = 32 },
			end: func(t *testing.T, _ *sandbox, g *guest) {
				g.send(t, true, "/bin/sh", "-c", "while sleep 1000 & do :; done")
			}, pids: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			spec := newSpec(hutch.TierDisk)
			if c.spec != nil {
				c.spec(&spec)
			}
			s, g := start(t, r, spec)
			c.end(t, s, g)
			if err := pidfd.Wait(t.Context(), s.procs[0]); err != nil {
				t.Fatal(err)
			}
			e, st, err := unseen.Ended(t.Context(), spec, time.Now())
			if err != nil || e != (runtime.Event{Kind: runtime.KindExited, OOM: c.oom, Pids: c.pids}) {
				t.Errorf("got %+v, %v", e, err)
			}
			if c.oom && st.MemoryPeak < 200<<20 || c.pids && st.PidsPeak < st.PidsLimit {
				t.Errorf("its use: %+v", st)
			}
			kill(t, s)
			if e, _, err := unseen.Ended(t.Context(), spec, time.Now()); err != nil || e.OOM || e.Pids {
				t.Errorf("with nothing left: %+v, %v", e, err)
			}
		})
	}
}
