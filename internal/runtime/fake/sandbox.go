package fake

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/runtime"
)

// eventBuffer is how many unread events a sandbox keeps. The last place is the end's.
const eventBuffer = 8

// baseMemory is what a fake sandbox is said to use for itself.
const baseMemory = 32 << 20

// snapshotFile is the one file of a fake snapshot.
const snapshotFile = "state.json"

// Sandbox is one Runtime's hold on a machine.
type Sandbox struct {
	r       *Runtime
	m       *machine
	handles runtime.Handles

	mu     sync.Mutex
	events chan runtime.Event
	ended  bool // events is closed
}

var (
	_ runtime.Sandbox   = (*Sandbox)(nil)
	_ runtime.Scheduled = (*Sandbox)(nil)
	_ runtime.Yielding  = (*Sandbox)(nil)
	_ runtime.Counted   = (*Sandbox)(nil)
)

// Start implements runtime.Sandbox.
func (s *Sandbox) Start(ctx context.Context, o runtime.StartOptions) error {
	m := s.m
	m.mu.Lock()
	if err := m.goneLocked(); err != nil {
		m.mu.Unlock()
		return err
	}
	if m.mode != created {
		m.mu.Unlock()
		return hutch.Errorf(hutch.CodeInvalidState, "sandbox %s has been started", m.spec.ID)
	}
	m.mode = starting
	m.mu.Unlock()

	err := s.start(ctx, o)
	if err != nil {
		m.mu.Lock()
		if m.mode == starting {
			m.mode = broken
		}
		m.mu.Unlock()
	}
	return err
}

func (s *Sandbox) start(ctx context.Context, o runtime.StartOptions) error {
	if err := s.r.enter(ctx, OpStart); err != nil {
		return err
	}
	var state *snapshot
	if o.Snapshot != "" {
		b, err := os.ReadFile(filepath.Join(o.Snapshot, snapshotFile))
		if err != nil {
			return hutch.Wrap(hutch.CodeInternal, err, "the snapshot cannot be read")
		}
		state = new(snapshot)
		if err := json.Unmarshal(b, state); err != nil {
			return hutch.Wrap(hutch.CodeInternal, err, "the snapshot is damaged")
		}
		if lockedBy(state.Hello.Profile) != lockedBy(s.m.spec.Profile) {
			return hutch.Errorf(hutch.CodeUnsupported, "the snapshot was made with another profile")
		}
	}
	return s.m.boot(state)
}

// Checkpoint implements runtime.Sandbox.
func (s *Sandbox) Checkpoint(ctx context.Context, dir string, leaveRunning bool) error {
	if err := s.inMode(ctx, OpCheckpoint, running); err != nil {
		return err
	}
	entries, err := os.ReadDir(dir)
	if err == nil && len(entries) > 0 {
		err = fmt.Errorf("%s is not empty", dir)
	}
	if err != nil {
		return hutch.Wrap(hutch.CodeInternal, err, "the snapshot cannot be written")
	}
	state, err := s.m.guest.save()
	if err != nil {
		return hutch.Wrap(hutch.CodeInternal, err, "the snapshot cannot be made")
	}
	file := filepath.Join(dir, snapshotFile)
	if err := os.WriteFile(file, state, 0o600); err != nil {
		_ = os.Remove(file)
		return hutch.Wrap(hutch.CodeInternal, err, "the snapshot cannot be written")
	}
	if !leaveRunning {
		s.m.exit(false)
		<-s.m.reaped
	}
	return nil
}

// Pause implements runtime.Sandbox.
func (s *Sandbox) Pause(ctx context.Context) error {
	return s.freeze(ctx, OpPause, paused)
}

// Resume implements runtime.Sandbox.
func (s *Sandbox) Resume(ctx context.Context) error {
	return s.freeze(ctx, OpResume, running)
}

func (s *Sandbox) freeze(ctx context.Context, op Op, to mode) error {
	if err := s.inMode(ctx, op, running, paused); err != nil {
		return err
	}
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	if err := s.m.goneLocked(); err != nil {
		return err
	}
	s.m.mode = to
	s.m.guest.freeze(to == paused)
	return nil
}

// inMode is the beginning of a call that needs a machine in one of modes.
func (s *Sandbox) inMode(ctx context.Context, op Op, modes ...mode) error {
	check := func() error {
		s.m.mu.Lock()
		defer s.m.mu.Unlock()
		if err := s.m.goneLocked(); err != nil {
			return err
		}
		if !slices.Contains(modes, s.m.mode) {
			return hutch.Errorf(hutch.CodeInvalidState, "sandbox %s: %s is not possible now", s.m.spec.ID, op)
		}
		return nil
	}
	if err := check(); err != nil {
		return err
	}
	if err := s.r.enter(ctx, op); err != nil {
		return err
	}
	return check() // enter may have taken its time
}

// Kill implements runtime.Sandbox.
func (s *Sandbox) Kill(ctx context.Context) error {
	if err := s.r.enter(ctx, OpKill); err != nil {
		return err
	}
	s.m.host.remove(s.m)
	s.r.letGo(s)
	return nil
}

// Stats implements runtime.Sandbox. After the end it returns the last figures.
func (s *Sandbox) Stats(ctx context.Context) (runtime.Stats, error) {
	if err := s.r.enter(ctx, OpStats); err != nil {
		return runtime.Stats{}, err
	}
	m := s.m
	m.mu.Lock()
	defer m.mu.Unlock()
	st := runtime.Stats{MemoryLimit: int64(m.spec.Resources.MemoryMB) << 20, OOMKills: m.kills.Load(), PidsLimit: int64(m.spec.Resources.Pids)}
	if m.pids {
		st.PidsPeak = st.PidsLimit
	}
	if m.guest != nil {
		cpu, held, files := m.guest.usage()
		st.CPU = cpu
		if m.mode != dead {
			st.Memory = min(baseMemory+held, st.MemoryLimit)
			if m.short.Load() {
				st.Memory = st.MemoryLimit
			}
			st.WorkingSet = st.Memory
		}
		if m.spec.Resources.DiskTier == hutch.TierDisk {
			st.Disk = files
		}
	}
	m.peak = max(m.peak, st.Memory)
	st.MemoryPeak = m.peak
	return st, nil
}

// CPU implements runtime.Counted.
func (s *Sandbox) CPU() (time.Duration, error) {
	s.m.mu.Lock()
	g := s.m.guest
	s.m.mu.Unlock()
	if g == nil {
		return 0, nil
	}
	cpu, _, _ := g.usage()
	return cpu, nil
}

// Turns implements runtime.Scheduled: what its guest was told to say.
func (s *Sandbox) Turns() (ran, waited time.Duration) {
	s.m.mu.Lock()
	g := s.m.guest
	s.m.mu.Unlock()
	if g == nil {
		return 0, 0
	}
	return g.turns()
}

// Yield implements runtime.Yielding.
func (s *Sandbox) Yield(on bool) error {
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	s.m.yields = on
	return nil
}

// Handles implements runtime.Sandbox.
func (s *Sandbox) Handles() runtime.Handles { return s.handles }

// Events implements runtime.Sandbox.
func (s *Sandbox) Events() <-chan runtime.Event { return s.events }

// tell passes an event on, or merges it with the unread ones: there is one like it
// among them, or so many that one more tells nothing new.
func (s *Sandbox) tell(e runtime.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.ended && len(s.events) < eventBuffer-1 {
		s.events <- e
	}
}

// tellExit passes the last event on. There is a place left for it.
func (s *Sandbox) tellExit(e runtime.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return
	}
	s.ended = true
	e.Kind = runtime.KindExited
	s.events <- e
	close(s.events)
}

// forget drops the hold without a word, as the end of a process does.
func (s *Sandbox) forget() {
	s.m.mu.Lock()
	s.m.sandboxes = slices.DeleteFunc(s.m.sandboxes, func(o *Sandbox) bool { return o == s })
	s.m.mu.Unlock()
	s.closeFiles()
}

func (s *Sandbox) closeFiles() {
	closeAll(append(slices.Clone(s.handles.Procs), s.handles.Guest, s.handles.Link))
}
