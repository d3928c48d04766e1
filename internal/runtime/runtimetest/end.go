package runtimetest

import (
	"errors"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/guestclient"
	"hutch.dev/hutch/internal/runtime"
)

func killInEveryState(s *suite) {
	states := map[string]func(b *box){
		"created":      func(*box) {},
		"running":      func(b *box) { b.boot(""); b.hello() },
		"just started": func(b *box) { b.boot("") },
		"busy": func(b *box) {
			b.boot("")
			b.hello()
			b.launch(s.f.Commands.Tick)
		},
		"paused": func(b *box) {
			b.boot("")
			b.hello()
			if err := b.sb.Pause(s.ctx()); err != nil {
				s.Fatalf("Pause: %v", err)
			}
		},
		"broken by its start": func(b *box) {
			_ = b.sb.Start(s.ctx(), runtime.StartOptions{Snapshot: filepath.Join(s.TempDir(), "missing")})
		},
		"ended by itself": func(b *box) {
			b.boot("")
			if err := s.signalProc(b.sb.Handles().Procs[0], unix.SIGKILL); err != nil {
				s.Fatalf("kill the sandbox's process: %v", err)
			}
			s.ended(b.sb.Events())
		},
		"saved and ended": func(b *box) {
			b.boot("")
			b.hello()
			err := b.sb.Checkpoint(s.ctx(), s.TempDir(), false)
			if err != nil && !errors.Is(err, hutch.ErrUnsupported) {
				s.Errorf("Checkpoint: %v", err)
			}
		},
	}
	for name, bring := range states {
		b := s.create()
		bring(b)
		procs := s.duplicate(b.sb.Handles()).Procs
		if err := b.sb.Kill(s.ctx()); err != nil {
			s.Errorf("Kill of a sandbox that is %s: %v", name, err)
		}
		s.checkGone(b.spec.ID)
		s.checkProcsGone(procs)
	}
}

func killConcurrently(s *suite) {
	b := s.start()
	procs := s.duplicate(b.sb.Handles()).Procs
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			if err := b.sb.Kill(s.ctx()); err != nil {
				s.Errorf("Kill: %v", err)
			}
			s.checkGone(b.spec.ID) // each returns once nothing is left
		})
	}
	wg.Wait()
	s.checkProcsGone(procs)
	if err := b.sb.Kill(s.ctx()); err != nil {
		s.Errorf("Kill of what is gone: %v", err)
	}
}

func killDuringStart(s *suite) {
	for range 3 {
		b := s.create()
		procs := s.duplicate(b.sb.Handles()).Procs
		var wg sync.WaitGroup
		wg.Go(func() {
			_ = b.sb.Start(s.ctx(), runtime.StartOptions{}) // either way
		})
		if err := b.sb.Kill(s.ctx()); err != nil {
			s.Errorf("Kill: %v", err)
		}
		s.checkGone(b.spec.ID)
		wg.Wait()
		s.checkGone(b.spec.ID)
		s.checkProcsGone(procs)
	}
}

func afterKill(s *suite) {
	b := s.start()
	f := b.follow(b.launch(s.f.Commands.Tick), 0)
	s.data(f)
	if err := b.sb.Kill(s.ctx()); err != nil {
		s.Fatalf("Kill: %v", err)
	}
	b.checkRefused()
	for {
		if _, err := f.Next(s.ctx()); err != nil {
			if !errors.Is(err, hutch.ErrGuestUnresponsive) {
				s.Errorf("a call that was under way: got %v, want ErrGuestUnresponsive", err)
			}
			break
		}
	}
	// The name is free again, and nothing of the old sandbox is in the new one.
	sb, err := s.r.Create(s.ctx(), b.spec)
	if err != nil {
		s.Fatalf("Create after Kill: %v", err)
	}
	again := &box{s: s, spec: b.spec, sb: sb, client: guestclient.New(sb.Handles().Guest)}
	defer func() {
		_ = again.client.Close()
		if err := sb.Kill(s.ctx()); err != nil {
			s.Errorf("Kill: %v", err)
		}
	}()
	again.boot("")
	again.hello()
	again.checkAlive()
	// The old hold on the name must not end the new sandbox.
	if err := b.sb.Kill(s.ctx()); err != nil {
		s.Errorf("Kill of what is gone: %v", err)
	}
	again.checkAlive()
	if !s.listed(b.spec.ID) {
		s.Error("Kill of what is gone took the new sandbox off the list")
	}
}

func adoptInMidStream(s *suite) {
	b := s.start()
	b.writeFile("kept")
	ticking := b.launch(s.f.Commands.Tick)
	s.data(b.follow(ticking, 0)) // and never read to its end
	kept := s.duplicate(b.sb.Handles())
	// The process that spoke to the guest dies in the middle of a message. (It cannot
	// just go on: two readers of one stream would steal each other's bytes.)
	_ = b.client.Close()
	if _, err := kept.Guest.Write([]byte{0xF5, 0x01, 0x01, 0x01, 0xF5}); err != nil {
		s.Fatalf("write half a message: %v", err)
	}

	next := s.f.Again(s.T, s.r)
	sb, err := next.Adopt(s.ctx(), b.spec, s.duplicate(kept))
	if err != nil {
		s.Fatalf("Adopt: %v", err)
	}
	if _, err := next.Adopt(s.ctx(), b.spec, s.duplicate(kept)); !errors.Is(err, hutch.ErrConflict) {
		s.Errorf("Adopt of what is adopted: got %v, want ErrConflict", err)
	}
	a := &box{s: s, spec: b.spec, sb: sb, client: guestclient.New(sb.Handles().Guest)}
	defer func() { _ = a.client.Close() }()
	a.hello()
	a.checkFile("kept")
	st, err := a.client.Exec(s.ctx(), ticking)
	if err != nil || !st.Running {
		s.Fatalf("the command that ran: got %+v, %v", st, err)
	}
	f := a.follow(ticking, 0) // from the first byte, though another client has read it
	s.data(f)
	if err := sb.Pause(s.ctx()); err != nil {
		s.Errorf("Pause by the adopter: %v", err)
	}
	s.checkQuiet(f)
	if err := sb.Resume(s.ctx()); err != nil {
		s.Errorf("Resume by the adopter: %v", err)
	}
	s.data(f)
	if ids, err := next.List(s.ctx()); err != nil || len(ids) == 0 {
		s.Errorf("List by the adopter: got %v, %v", ids, err)
	}
	if st, err := sb.Stats(s.ctx()); err != nil || st.Memory <= 0 || st.MemoryLimit < st.Memory {
		s.Errorf("Stats by the adopter: got %+v, %v", st, err)
	}
	if err := sb.Kill(s.ctx()); err != nil {
		s.Errorf("Kill by the adopter: %v", err)
	}
	s.checkProcsGone(kept.Procs)
	s.checkGone(b.spec.ID)
}

func adopterHearsOfTheEnd(s *suite) {
	b := s.start()
	kept := s.duplicate(b.sb.Handles())
	sb, err := s.f.Again(s.T, s.r).Adopt(s.ctx(), b.spec, s.duplicate(kept))
	if err != nil {
		s.Fatalf("Adopt: %v", err)
	}
	if err := s.signalProc(kept.Procs[0], unix.SIGKILL); err != nil {
		s.Fatalf("kill the sandbox's process: %v", err)
	}
	s.ended(sb.Events())
	if err := sb.Kill(s.ctx()); err != nil {
		s.Errorf("Kill: %v", err)
	}
	s.checkGone(b.spec.ID)
}

func adoptWhatIsGone(s *suite) {
	ends := map[string]func(b *box){
		"killed": func(b *box) {
			if err := b.sb.Kill(s.ctx()); err != nil {
				s.Fatalf("Kill: %v", err)
			}
		},
		"ended by itself": func(b *box) {
			if err := s.signalProc(b.sb.Handles().Procs[0], unix.SIGKILL); err != nil {
				s.Fatalf("kill the sandbox's process: %v", err)
			}
			s.ended(b.sb.Events())
		},
	}
	for name, end := range ends {
		b := s.start()
		kept := s.duplicate(b.sb.Handles())
		end(b)
		if !s.exited(kept.Procs[0], s.f.Patience) {
			s.Fatalf("%s: the first process is still there", name)
		}
		next := s.f.Again(s.T, s.r)
		if sb, err := next.Adopt(s.ctx(), b.spec, kept); !errors.Is(err, hutch.ErrSandboxGone) {
			s.Errorf("Adopt of a sandbox that was %s: got %v, %v; want ErrSandboxGone", name, sb, err)
		}
		// The files are the runtime's, also on failure: it has closed them.
		for _, f := range append(kept.Procs, kept.Guest, kept.Link) {
			if err := f.Close(); !errors.Is(err, os.ErrClosed) {
				s.Errorf("%s: a refused Adopt left a file open", name)
			}
		}
		if err := next.Sweep(s.ctx(), b.spec.ID); err != nil {
			s.Errorf("Sweep: %v", err)
		}
		s.checkGone(b.spec.ID)
	}
}

func listAndSweep(s *suite) {
	b := s.create()
	if !s.listed(b.spec.ID) {
		s.Error("a prepared sandbox is not listed")
	}
	b.boot("")
	if !s.listed(b.spec.ID) {
		s.Error("a running sandbox is not listed")
	}
	for range 2 {
		if err := s.r.Sweep(s.ctx(), newID[hutch.SandboxID]('i')); err != nil {
			s.Errorf("Sweep of what never was: %v", err)
		}
	}
}

func sweepInUse(s *suite) {
	b := s.start()
	events := b.sb.Events()
	procs := s.duplicate(b.sb.Handles()).Procs
	// A runtime that has never seen the sandbox must be able to.
	if err := s.f.Again(s.T, s.r).Sweep(s.ctx(), b.spec.ID); err != nil {
		s.Fatalf("Sweep: %v", err)
	}
	s.checkGone(b.spec.ID)
	s.checkProcsGone(procs)
	s.ended(events)
	if err := s.r.Sweep(s.ctx(), b.spec.ID); err != nil {
		s.Errorf("Sweep of what is gone: %v", err)
	}
}

func eventsEndOnce(s *suite) {
	b := s.start()
	events := b.sb.Events()
	if b.sb.Events() != events {
		s.Error("two calls of Events gave two channels")
	}
	select {
	case e, ok := <-events:
		s.Errorf("an event of a sandbox to which nothing happened: %+v, %v", e, ok)
	default:
	}
	for range 3 {
		if err := b.sb.Kill(s.ctx()); err != nil {
			s.Errorf("Kill: %v", err)
		}
	}
	if e := s.ended(events); e.OOM {
		s.Error("the end is said to be for memory")
	}
	if b.sb.Events() != events {
		s.Error("after the end, Events gives another channel")
	}
}
