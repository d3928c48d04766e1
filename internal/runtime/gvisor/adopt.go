package gvisor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/runtime"
	"hutch.dev/hutch/internal/x/cleanup"
)

// Adopt takes over a sandbox that an earlier process made. Handles that are missing
// cannot be made up for: they are hutch.ErrSandboxGone too, since nothing can be done
// with the sandbox but to sweep it.
func (r *Runtime) Adopt(_ context.Context, spec runtime.Spec, h runtime.Handles) (runtime.Sandbox, error) {
	s := newSandbox(r, spec)
	s.guest, s.link, s.procs = h.Guest, h.Link, slices.Clone(h.Procs)
	undo := cleanup.New(s.closeFiles)
	defer undo.Run()
	if err := check(spec); err != nil {
		return nil, err
	}
	release, err := r.reserve(spec.ID)
	if err != nil {
		return nil, err
	}
	undo.Add(release)
	if err := s.adopt(); err != nil {
		return nil, hutch.Wrap(hutch.CodeSandboxGone, err, "sandbox %s has ended", spec.ID)
	}
	undo.Release()
	r.hold(s)
	s.watch()
	return s, nil
}

// adopt checks the handles against what the sandbox's directory says, and opens the
// rest.
func (s *sandbox) adopt() error {
	rec, err := s.r.readRecord(s.id)
	if err != nil {
		return fmt.Errorf("read record: %w", err)
	}
	s.rec = rec
	if s.guest == nil || s.link == nil || len(s.procs) == 0 {
		return errors.New("not all handles were stored")
	}
	switch rec.Phase {
	case prepared, running, paused, pausing, resuming:
	default:
		return fmt.Errorf("the process before this one ended while the sandbox was %s", rec.Phase)
	}
	tree, err := s.r.tree()
	if err != nil {
		return err
	}
	if s.group, err = tree.Open(string(s.id)); err != nil {
		return err
	}
	// The handles are only worth something if they are of the processes that the
	// record names.
	want := []proc{rec.Sentry}
	if rec.Gofer.PID != 0 {
		want = append(want, rec.Gofer)
	}
	if len(want) != len(s.procs) {
		return fmt.Errorf("%d processes were stored of %d", len(s.procs), len(want))
	}
	for i, p := range want {
		if err := s.r.checkProc(s.procs[i], p, s.id); err != nil {
			return err
		}
	}
	if s.spec.Resources.DiskTier == hutch.TierDisk {
		if s.upper, err = openUpper(rec.Sentry.PID, s.r.upperDir(s.id)); err != nil {
			return err
		}
	}
	if rec.Phase == pausing || rec.Phase == resuming {
		if err := s.settle(); err != nil {
			return err
		}
	}
	if rec.Phase != prepared {
		// The process before may have ended between the start and this.
		if err := s.limitCPU(); err != nil {
			return err
		}
	}
	kills, err := s.group.OOMKills()
	if err != nil {
		return err
	}
	if kills > s.rec.OOMKills { // not seen before, but not long ago either
		s.rec.OOMKills, s.rec.OOMAt = kills, time.Now()
	}
	return nil
}

// List names every sandbox of which anything is left on this host.
func (r *Runtime) List(context.Context) ([]hutch.SandboxID, error) {
	var ids []hutch.SandboxID
	es, err := os.ReadDir(r.boxesDir())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list state directories: %w", err)
	}
	for _, e := range es {
		ids = append(ids, hutch.SandboxID(e.Name()))
	}
	tree, err := r.tree()
	if err != nil {
		return nil, err
	}
	groups, err := tree.List()
	if err != nil {
		return nil, fmt.Errorf("list cgroups: %w", err)
	}
	for _, g := range groups {
		ids = append(ids, hutch.SandboxID(g))
	}
	procs, err := r.scan()
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	for _, p := range procs {
		ids = append(ids, p.id)
	}
	slices.Sort(ids)
	return slices.Compact(ids), nil
}
