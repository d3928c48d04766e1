package runtimetest

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/guestapi"
	"hutch.dev/hutch/internal/runtime"
)

func nothingRunsBeforeStart(s *suite) {
	b := s.create()
	ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	if _, err := b.client.Health(ctx); !errors.Is(err, hutch.ErrGuestUnresponsive) {
		s.Fatalf("a guest answered before Start: %v", err)
	}
	// That nobody was there to answer is no hindrance later.
	b.boot("")
	b.hello()
	b.checkAlive()
}

func handlesAreComplete(s *suite) {
	b := s.create()
	h := b.sb.Handles()
	if h.Guest == nil || h.Link == nil || len(h.Procs) == 0 {
		s.Fatalf("handles are missing: %+v", h)
	}
	if h.LinkKind != runtime.LinkPackets && h.LinkKind != runtime.LinkEthernet {
		s.Errorf("link kind %q", h.LinkKind)
	}
	for _, p := range h.Procs {
		if err := s.signalProc(p, 0); err != nil {
			s.Errorf("a process of a prepared sandbox: %v", err)
		}
	}
}

func doubleCreateIsConflict(s *suite) {
	b := s.start()
	if sb, err := s.r.Create(s.ctx(), b.spec); !errors.Is(err, hutch.ErrConflict) {
		s.Errorf("Create of an id that exists: got %v, %v; want ErrConflict", sb, err)
	}
	b.checkAlive()
}

func cancelledCreateLeavesNothing(s *suite) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	spec := s.f.Spec(s.T, newID[hutch.SandboxID]('i'))
	if sb, err := s.r.Create(ctx, spec); err == nil {
		_ = sb.Kill(s.ctx())
		s.Fatal("Create under a cancelled context worked")
	}
	s.checkGone(spec.ID)
}

func createCancelledOnTheWay(s *suite) {
	for _, after := range []time.Duration{100 * time.Microsecond, time.Millisecond, 5 * time.Millisecond, 20 * time.Millisecond} {
		spec := s.f.Spec(s.T, newID[hutch.SandboxID]('i'))
		ctx, cancel := context.WithTimeout(context.Background(), after)
		sb, err := s.r.Create(ctx, spec)
		cancel()
		if err == nil {
			if err := sb.Kill(s.ctx()); err != nil {
				s.Errorf("Kill: %v", err)
			}
		}
		s.checkGone(spec.ID)
		// The name is free again.
		again, err := s.r.Create(s.ctx(), spec)
		if err != nil {
			s.Fatalf("Create after one cancelled after %v: %v", after, err)
		}
		if err := again.Kill(s.ctx()); err != nil {
			s.Errorf("Kill: %v", err)
		}
		s.checkGone(spec.ID)
	}
}

func severalAtOnce(s *suite) {
	var wg sync.WaitGroup
	for range 4 {
		spec := s.f.Spec(s.T, newID[hutch.SandboxID]('i'))
		wg.Go(func() {
			sb, err := s.r.Create(s.ctx(), spec)
			if err != nil {
				s.Errorf("Create: %v", err)
				return
			}
			if err := sb.Start(s.ctx(), runtime.StartOptions{}); err != nil {
				s.Errorf("Start: %v", err)
			}
			if err := sb.Kill(s.ctx()); err != nil {
				s.Errorf("Kill: %v", err)
			}
		})
	}
	wg.Wait()
}

func guestAnswers(s *suite) {
	b := s.create()
	b.boot("")
	// Nothing starts before the guest has been told who it is.
	if _, err := b.client.StartExec(s.ctx(), startExec(newID[hutch.ExecID]('e'), s.f.Commands.Echo("x"))); !notIdentified(err) {
		s.Errorf("a command before Hello: got %v, want code %s", err, guestapi.CodeNotIdentified)
	}
	b.hello()
	b.checkAlive()
	b.writeFile("kept")
	b.checkFile("kept")
}

func notIdentified(err error) bool {
	var e *hutch.Error
	return errors.As(err, &e) && e.Code == guestapi.CodeNotIdentified
}

func startTwice(s *suite) {
	b := s.start()
	if err := b.sb.Start(s.ctx(), runtime.StartOptions{}); !errors.Is(err, hutch.ErrInvalidState) {
		s.Errorf("Start of a running sandbox: got %v, want ErrInvalidState", err)
	}
	b.checkAlive()
}

func failedStart(s *suite) {
	b := s.create()
	if err := b.sb.Start(s.ctx(), runtime.StartOptions{Snapshot: filepath.Join(s.TempDir(), "missing")}); err == nil {
		s.Fatal("Start from a snapshot that does not exist worked")
	}
	if err := b.sb.Start(s.ctx(), runtime.StartOptions{}); err == nil {
		s.Error("Start after a failed one worked")
	}
	if err := b.sb.Kill(s.ctx()); err != nil {
		s.Errorf("Kill: %v", err)
	}
	s.checkGone(b.spec.ID)
}

func pauseAndResume(s *suite) {
	b := s.start()
	f := b.follow(b.launch(s.f.Commands.Tick), 0)
	for range 3 {
		s.data(f)
		if err := b.sb.Pause(s.ctx()); err != nil {
			s.Fatalf("Pause: %v", err)
		}
		s.checkQuiet(f)
		if err := b.sb.Resume(s.ctx()); err != nil {
			s.Fatalf("Resume: %v", err)
		}
		s.data(f) // the call that was under way goes on
	}
	b.checkAlive()
}

func pauseTwice(s *suite) {
	b := s.start()
	if err := b.sb.Resume(s.ctx()); err != nil {
		s.Errorf("Resume of a running sandbox: %v", err)
	}
	for range 2 {
		if err := b.sb.Pause(s.ctx()); err != nil {
			s.Errorf("Pause: %v", err)
		}
	}
	if err := b.sb.Resume(s.ctx()); err != nil {
		s.Errorf("Resume: %v", err)
	}
	b.checkAlive()
}

func checkpointLeavesRunning(s *suite) {
	b := s.start()
	f := b.follow(b.launch(s.f.Commands.Tick), 0)
	s.data(f)
	dir := b.checkpoint(true)
	if entries, err := os.ReadDir(dir); err != nil || len(entries) == 0 {
		s.Errorf("the snapshot holds %v, %v", entries, err)
	}
	for range 5 {
		s.data(f) // the call that was under way goes on
	}
	b.checkAlive()
}

func checkpointEnds(s *suite) {
	b := s.start()
	events := b.sb.Events()
	b.checkpoint(false)
	s.ended(events)
	b.checkRefused()
	if err := b.sb.Kill(s.ctx()); err != nil {
		s.Errorf("Kill: %v", err)
	}
	s.checkGone(b.spec.ID)
}

func failedCheckpoint(s *suite) {
	b := s.start()
	b.checkpoint(true) // skips the check if the runtime cannot
	full := s.TempDir()
	if err := os.WriteFile(filepath.Join(full, "something"), nil, 0o600); err != nil {
		s.Fatal(err)
	}
	for name, dir := range map[string]string{"missing": filepath.Join(s.TempDir(), "missing"), "not empty": full} {
		for _, leaveRunning := range []bool{true, false} {
			if err := b.sb.Checkpoint(s.ctx(), dir, leaveRunning); err == nil {
				s.Fatalf("Checkpoint into a directory that is %s worked", name)
			}
			b.checkAlive()
		}
	}
}

func restoreIntoOthers(s *suite) {
	source := s.start()
	source.writeFile("before")
	ticking := source.launch(s.f.Commands.Tick)
	f := source.follow(ticking, 0)
	s.data(f)
	dir := source.checkpoint(true)
	source.writeFile("source")

	var clones []*box
	for range 2 {
		c := s.create()
		c.boot(dir)
		if _, err := c.client.StartExec(s.ctx(), startExec(newID[hutch.ExecID]('e'), s.f.Commands.Echo("x"))); !notIdentified(err) {
			s.Errorf("a command in a clone before Hello: got %v, want code %s", err, guestapi.CodeNotIdentified)
		}
		if r := c.hello(); !r.Restored {
			s.Error("the clone does not know that it was restored")
		}
		c.checkFile("before")
		clones = append(clones, c)
	}
	clones[0].writeFile("first")
	clones[1].writeFile("second")
	for _, c := range clones {
		st, err := c.client.Exec(s.ctx(), ticking)
		if err != nil || !st.Running {
			s.Fatalf("the command that ran in the source: got %+v, %v in the clone", st, err)
		}
		s.data(c.follow(ticking, st.Stdout))
	}
	source.checkFile("source")
	clones[0].checkFile("first")
	clones[1].checkFile("second")
	if err := clones[0].sb.Kill(s.ctx()); err != nil {
		s.Errorf("Kill: %v", err)
	}
	s.data(f)
	source.checkAlive()
	clones[1].checkAlive()
}

func statsAreSane(s *suite) {
	b := s.start()
	first, err := b.sb.Stats(s.ctx())
	if err != nil {
		s.Fatalf("Stats: %v", err)
	}
	b.checkAlive()
	second, err := b.sb.Stats(s.ctx())
	if err != nil {
		s.Fatalf("Stats: %v", err)
	}
	for _, st := range []runtime.Stats{first, second} {
		if st.CPU < 0 || st.Memory <= 0 || st.MemoryPeak < st.Memory || st.MemoryLimit < st.Memory || st.Disk < 0 {
			s.Errorf("stats make no sense: %+v", st)
		}
	}
	if second.CPU <= first.CPU || second.MemoryPeak < first.MemoryPeak || second.MemoryLimit != first.MemoryLimit {
		s.Errorf("after more work, stats went from %+v to %+v", first, second)
	}
	if err := b.sb.Kill(s.ctx()); err != nil {
		s.Errorf("Kill: %v", err)
	}
	if _, err := b.sb.Stats(s.ctx()); err != nil {
		s.Errorf("Stats after Kill: got %v; it is one of the methods that go on", err)
	}
}

func endUnasked(s *suite) {
	b := s.start()
	events := b.sb.Events()
	if err := s.signalProc(b.sb.Handles().Procs[0], unix.SIGKILL); err != nil {
		s.Fatalf("kill the sandbox's process: %v", err)
	}
	if e := s.ended(events); e.OOM {
		s.Error("the end is said to be for memory")
	}
	b.checkRefused()
	if err := b.sb.Kill(s.ctx()); err != nil {
		s.Errorf("Kill: %v", err)
	}
	s.checkGone(b.spec.ID)
}

// yieldInEveryState is of runtimes whose sandboxes can stand back. What that changes is theirs to
// test: it shows only where there is not CPU enough.
func yieldInEveryState(s *suite) {
	yield := func(state string, b *box) {
		s.Helper()
		y, ok := b.sb.(runtime.Yielding)
		if !ok {
			s.Skip("the sandboxes of this runtime can't stand back")
		}
		for _, on := range []bool{true, true, false, false, true} {
			if err := y.Yield(on); err != nil {
				s.Errorf("Yield(%v) of one that is %s: %v", on, state, err)
			}
		}
	}
	yield("not started", s.create())
	b := s.start()
	yield("running", b)
	b.checkAlive()
	if err := b.sb.Pause(s.ctx()); err != nil {
		s.Fatalf("Pause: %v", err)
	}
	yield("paused", b)
	if err := b.sb.Resume(s.ctx()); err != nil {
		s.Fatalf("Resume: %v", err)
	}
	b.checkAlive()
	if err := b.sb.Kill(s.ctx()); err != nil {
		s.Fatalf("Kill: %v", err)
	}
	yield("gone", b)
}
