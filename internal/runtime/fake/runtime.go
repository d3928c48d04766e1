package fake

import (
	"context"
	"slices"
	"sync"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/runtime"
)

// Runtime is one node agent's view of a Host.
type Runtime struct {
	host *Host

	mu        sync.Mutex
	crashed   bool
	sandboxes []*Sandbox
}

var _ runtime.Runtime = (*Runtime)(nil)

// New returns a Runtime on h.
func New(h *Host) *Runtime { return &Runtime{host: h} }

// Crash is the sudden end of the process that this Runtime stands for: its descriptors
// are closed, the sandboxes run on. Whoever holds duplicates of the handles can adopt
// them. No method of it or of its sandboxes is of use afterwards.
func (r *Runtime) Crash() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.crashed = true
	for _, s := range r.sandboxes {
		s.forget()
	}
}

// Name implements runtime.Runtime.
func (r *Runtime) Name() string { return "fake" }

// enter is the beginning of every call. One that a crash finds waiting comes to nothing.
func (r *Runtime) enter(ctx context.Context, op Op) error {
	if err := r.alive(); err != nil {
		return err
	}
	err := r.host.enter(ctx, op)
	if dead := r.alive(); dead != nil {
		return dead
	}
	return err
}

func (r *Runtime) alive() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.crashed {
		return errCrashed
	}
	return nil
}

var errCrashed = hutch.Errorf(hutch.CodeInternal, "this runtime's process has crashed")

// Create implements runtime.Runtime.
func (r *Runtime) Create(ctx context.Context, spec runtime.Spec) (runtime.Sandbox, error) {
	if spec.ID == "" {
		return nil, hutch.FieldErrorf("id", "a sandbox needs one")
	}
	if spec.Profile != "" && !spec.Profile.Valid() {
		return nil, hutch.FieldErrorf("profile", "%q is not known", spec.Profile)
	}
	if err := r.host.reserve(spec.ID); err != nil {
		return nil, err
	}
	m, handles, err := r.create(ctx, spec)
	r.host.settle(spec.ID, m)
	if err != nil {
		return nil, err
	}
	s, err := r.attach(m, handles)
	if err != nil {
		closeAll(append(slices.Clone(handles.Procs), handles.Guest, handles.Link))
		return nil, err
	}
	return s, nil
}

func (r *Runtime) create(ctx context.Context, spec runtime.Spec) (*machine, runtime.Handles, error) {
	if err := r.enter(ctx, OpCreate); err != nil {
		return nil, runtime.Handles{}, err
	}
	m, handles, err := newMachine(r.host, spec)
	if err != nil {
		return nil, handles, hutch.Wrap(hutch.CodeInternal, err, "the sandbox could not be made")
	}
	return m, handles, nil
}

// attach makes a Sandbox of a machine, the only one that this Runtime has of it. Of one that
// has died meanwhile it tells the end at once.
func (r *Runtime) attach(m *machine, h runtime.Handles) (*Sandbox, error) {
	s := &Sandbox{r: r, m: m, handles: h, events: make(chan runtime.Event, eventBuffer)}
	if err := r.hold(s); err != nil {
		return nil, err
	}
	m.mu.Lock()
	m.sandboxes = append(m.sandboxes, s)
	gone, end := m.mode == dead, runtime.Event{OOM: m.oom, Pids: m.pids}
	m.mu.Unlock()
	if gone {
		s.tellExit(end)
	}
	return s, nil
}

func (r *Runtime) hold(s *Sandbox) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.crashed {
		return errCrashed
	}
	for _, o := range r.sandboxes {
		if o.m.spec.ID == s.m.spec.ID {
			return hutch.Errorf(hutch.CodeConflict, "sandbox %s is here already", s.m.spec.ID)
		}
	}
	r.sandboxes = append(r.sandboxes, s)
	return nil
}

// letGo forgets a sandbox of which nothing is left, and closes its files.
func (r *Runtime) letGo(s *Sandbox) {
	s.closeFiles()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sandboxes = slices.DeleteFunc(r.sandboxes, func(o *Sandbox) bool { return o == s })
}

// held returns what this Runtime has of a machine.
func (r *Runtime) held(m *machine) *Sandbox {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.sandboxes {
		if s.m == m {
			return s
		}
	}
	return nil
}

// Adopt implements runtime.Runtime.
func (r *Runtime) Adopt(ctx context.Context, spec runtime.Spec, h runtime.Handles) (_ runtime.Sandbox, err error) {
	defer func() {
		if err != nil {
			closeAll(append(slices.Clone(h.Procs), h.Guest, h.Link))
		}
	}()
	if err := r.enter(ctx, OpAdopt); err != nil {
		return nil, err
	}
	if h.Guest == nil || h.Link == nil || len(h.Procs) == 0 {
		return nil, hutch.Errorf(hutch.CodeInternal, "sandbox %s cannot be adopted without all of its handles", spec.ID)
	}
	m := r.host.find(spec.ID)
	if m == nil {
		return nil, hutch.Errorf(hutch.CodeSandboxGone, "sandbox %s has ended", spec.ID)
	}
	m.mu.Lock()
	err = m.goneLocked()
	m.mu.Unlock()
	if err != nil {
		return nil, err
	}
	s, err := r.attach(m, h)
	if err != nil {
		return nil, err
	}
	return s, nil
}

// Ended implements runtime.Coroner.
func (r *Runtime) Ended(_ context.Context, spec runtime.Spec, _ time.Time) (runtime.Event, runtime.Stats, error) {
	m := r.host.find(spec.ID)
	if m == nil {
		return runtime.Event{}, runtime.Stats{}, hutch.ErrNotFound
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return runtime.Event{Kind: runtime.KindExited, OOM: m.oom, Pids: m.pids}, runtime.Stats{}, nil
}

// List implements runtime.Runtime.
func (r *Runtime) List(ctx context.Context) ([]hutch.SandboxID, error) {
	if err := r.enter(ctx, OpList); err != nil {
		return nil, err
	}
	r.host.mu.Lock()
	defer r.host.mu.Unlock()
	var ids []hutch.SandboxID
	for id := range r.host.machines {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids, nil
}

// Sweep implements runtime.Runtime.
func (r *Runtime) Sweep(ctx context.Context, id hutch.SandboxID) error {
	if err := r.enter(ctx, OpSweep); err != nil {
		return err
	}
	if m := r.host.find(id); m != nil {
		r.host.remove(m)
		if s := r.held(m); s != nil {
			r.letGo(s)
		}
	}
	return nil
}
