package gvisor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/x/failpoint"
	"hutch.dev/hutch/internal/x/pidfd"
)

// Kill ends the sandbox and removes everything of it. It asks the kernel only, so it
// works whatever state the sandbox, its sentry or another call is in.
func (s *sandbox) Kill(ctx context.Context) error {
	select {
	case s.killing <- struct{}{}:
		defer func() { <-s.killing }()
	case <-ctx.Done():
		return fmt.Errorf("kill sandbox %s: %w", s.id, context.Cause(ctx))
	}
	s.mu.Lock()
	s.killed = true
	gone := s.gone
	s.mu.Unlock()
	if gone {
		return nil
	}
	if err := s.kill(ctx); err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return hutch.Wrap(hutch.CodeInternal, err, "sandbox %s could not be removed from its host yet", s.id)
	}
	return nil
}

// end ends the sandbox's processes and waits until they have ended and the last event
// is out.
func (s *sandbox) end(ctx context.Context) error {
	for _, p := range s.procs {
		if err := pidfd.Signal(p, unix.SIGKILL); err != nil && !errors.Is(err, os.ErrProcessDone) {
			return fmt.Errorf("kill process: %w", err)
		}
	}
	for _, p := range s.procs {
		if err := pidfd.Wait(ctx, p); err != nil {
			return fmt.Errorf("wait for the end of a process: %w", err)
		}
	}
	select {
	case <-s.exited:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (s *sandbox) kill(ctx context.Context) error {
	if err := s.end(ctx); err != nil {
		return err
	}
	failpoint.At(failpoint.MachineDead)
	reap(s.rec.Sentry.PID)
	if s.rec.Gofer.PID != 0 {
		reap(s.rec.Gofer.PID)
	}
	last, statErr := s.readStats()
	if err := s.group.Remove(ctx); err != nil {
		return err
	}
	failpoint.At(failpoint.MachineNoGroup)
	if err := s.r.removeFiles(s.id); err != nil {
		return err
	}
	failpoint.At(failpoint.MachineNoFiles)
	s.mu.Lock()
	s.gone = true
	if statErr == nil {
		s.last = last
	}
	s.mu.Unlock()
	s.closeFiles()
	s.r.forget(s.id)
	return nil
}

func (s *sandbox) closeFiles() {
	for _, f := range append([]*os.File{s.guest, s.link, s.upper}, s.procs...) {
		if f != nil {
			f.Close()
		}
	}
	s.mu.Lock()
	counter := s.counter
	s.mu.Unlock()
	if counter != nil {
		_ = counter.Close()
	}
}

// removeFiles removes all files of id; that there are none is fine.
func (r *Runtime) removeFiles(id hutch.SandboxID) error {
	var errs []error
	for _, f := range r.runscFiles(id) {
		if err := os.Remove(f); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	failpoint.At(failpoint.MachineNoState)
	return errors.Join(append(errs, os.RemoveAll(r.boxDir(id)))...)
}
