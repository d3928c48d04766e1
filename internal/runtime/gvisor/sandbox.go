package gvisor

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"sync"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/runtime"
	"hutch.dev/hutch/internal/x/cgroup"
	"hutch.dev/hutch/internal/x/pidfd"
	"hutch.dev/hutch/internal/x/schedstat"
)

// phase is how far a sandbox's life has come. It is kept in the record, so that an
// adopted sandbox goes on where it was.
type phase string

const (
	prepared phase = "prepared" // nothing runs in it
	starting phase = "starting" // or its start failed: only Kill is of use
	running  phase = "running"
	pausing  phase = "pausing" // between the record and the sentry's answer
	paused   phase = "paused"
	resuming phase = "resuming"
	leaving  phase = "leaving" // paused for the checkpoint that ends it
)

// sandbox is one sandbox of a Runtime. It implements runtime.Sandbox.
type sandbox struct {
	r     *Runtime
	id    hutch.SandboxID
	spec  runtime.Spec
	log   *slog.Logger
	group *cgroup.Group
	procs []*os.File // pidfds: sentry, then gofer if there is one
	guest *os.File
	link  *os.File
	upper *os.File // path descriptor of the writable layer's file; nil on the memory tier
	turns schedstat.Watch

	// op is held by the one Start, Checkpoint, Pause or Resume under way. It is a
	// channel so that waiting for it can be given up.
	op      chan struct{}
	killing chan struct{} // held by the one Kill under way
	events  mailbox
	exited  chan struct{} // closed once the sentry is gone

	keeping sync.Mutex // held while the record is written; before mu

	mu     sync.Mutex
	rec    record
	killed bool // Kill was called
	gone   bool // Kill has removed everything
	// counter is of the control group's CPU time, which is looked at every few seconds all its
	// life; nil until the first look, and no more opened once it is gone.
	counter *cgroup.Counter
	last    runtime.Stats
	highAt  time.Time // when its memory was last seen near the limit
	stages  map[string]time.Duration
}

var (
	_ runtime.Sandbox   = (*sandbox)(nil)
	_ runtime.Scheduled = (*sandbox)(nil)
	_ runtime.Yielding  = (*sandbox)(nil)
	_ runtime.Counted   = (*sandbox)(nil)
)

func newSandbox(r *Runtime, spec runtime.Spec) *sandbox {
	return &sandbox{
		r: r, id: spec.ID, spec: spec, log: r.log.With("sandbox", spec.ID),
		op:      make(chan struct{}, 1),
		killing: make(chan struct{}, 1),
		events:  newMailbox(),
		exited:  make(chan struct{}),
		stages:  map[string]time.Duration{},
	}
}

// Handles returns the descriptors the sandbox lives by.
func (s *sandbox) Handles() runtime.Handles {
	return runtime.Handles{Guest: s.guest, Link: s.link, LinkKind: runtime.LinkPackets, Procs: s.procs}
}

// Events returns the sandbox's one channel of events.
func (s *sandbox) Events() <-chan runtime.Event { return s.events.ch }

// Stages says how long the parts of Create and Start took.
func (s *sandbox) Stages() map[string]time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.stages)
}

func (s *sandbox) stage(name string, since time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stages[name] = time.Since(since)
}

// Stats reads the sandbox's control groups. Once it is gone it returns what was last
// accounted to it.
func (s *sandbox) Stats(context.Context) (runtime.Stats, error) {
	s.mu.Lock()
	gone, last := s.gone, s.last
	s.mu.Unlock()
	if gone {
		return last, nil
	}
	st, err := s.readStats()
	if errors.Is(err, fs.ErrNotExist) { // Kill came first
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.last, nil
	}
	if err != nil {
		return runtime.Stats{}, hutch.Wrap(hutch.CodeInternal, err, "what sandbox %s uses cannot be read", s.id)
	}
	return st, nil
}

func (s *sandbox) readStats() (runtime.Stats, error) {
	st, err := statsOf(s.group)
	if err != nil {
		return runtime.Stats{}, err
	}
	if s.upper != nil {
		// After Kill has closed the file this is an error, and the caller falls back.
		fi, err := s.upper.Stat()
		if err != nil {
			return runtime.Stats{}, fs.ErrNotExist
		}
		st.Disk = diskBytes(fi)
	}
	return st, nil
}

// statsOf reads what a control group says; Disk is none of it.
func statsOf(g *cgroup.Group) (runtime.Stats, error) {
	u, err := g.Usage()
	if err != nil {
		return runtime.Stats{}, err
	}
	st := runtime.Stats{CPU: u.CPU, Memory: u.Memory, MemoryPeak: u.MemoryPeak, MemoryLimit: u.MemoryLimit, OOMKills: u.OOMKills, PidsPeak: u.Pids.Peak, PidsLimit: u.Pids.Limit}
	if st.WorkingSet, err = g.Unreclaimable(); err != nil {
		return runtime.Stats{}, err
	}
	return st, nil
}

// CPU implements runtime.Counted.
func (s *sandbox) CPU() (time.Duration, error) {
	var cpu time.Duration
	counter, err := s.openCounter()
	if err == nil && counter != nil {
		cpu, err = counter.CPU()
	}
	if counter == nil && err == nil || errors.Is(err, fs.ErrNotExist) { // Kill came first
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.last.CPU, nil
	}
	return cpu, err
}

// openCounter returns the counter of the CPU time, nil once the sandbox is gone.
func (s *sandbox) openCounter() (*cgroup.Counter, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone || s.counter != nil {
		return s.counter, nil
	}
	var err error
	s.counter, err = s.group.Counter()
	return s.counter, err
}

// Turns implements runtime.Scheduled: the threads are those of the kernel, and those it runs
// the tenant's programs on.
func (s *sandbox) Turns() (ran, waited time.Duration) {
	threads, err := s.group.Threads()
	if err != nil { // it is gone: nothing comes on top
		threads = nil
	}
	t := s.turns.Look(threads)
	return t.Ran, t.Waited
}

// Yield implements runtime.Yielding, by the weight of its control group.
func (s *sandbox) Yield(on bool) error {
	s.mu.Lock()
	gone := s.killed
	s.mu.Unlock()
	if gone { // the group, if there is one, is another's of the same name
		return nil
	}
	milli := s.spec.Resources.MilliCPU
	if on {
		milli /= runtime.YieldShare
	}
	if err := s.group.Weigh(milli); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// begin waits for the turn of an operation and checks that the sandbox is in one of
// the phases it is possible in. end must be called after it.
func (s *sandbox) begin(ctx context.Context, what string, from ...phase) (end func(), err error) {
	select {
	case s.op <- struct{}{}:
	case <-s.exited:
		return nil, s.errGone()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	end = func() { <-s.op }
	s.mu.Lock()
	now, killed := s.rec.Phase, s.killed
	s.mu.Unlock()
	if killed || !pidfd.Alive(s.procs[0]) {
		end()
		return nil, s.errGone()
	}
	for _, p := range from {
		if p == now {
			return end, nil
		}
	}
	end()
	return nil, hutch.Errorf(hutch.CodeInvalidState, "sandbox %s is %s: %s is not possible now", s.id, now, what)
}

// enter records that the sandbox is in phase p now.
func (s *sandbox) enter(p phase) error {
	return s.keep(func(rec *record) { rec.Phase = p })
}

// keep changes what is kept beside the sandbox.
func (s *sandbox) keep(change func(*record)) error {
	s.keeping.Lock() // so that the last change is what is kept
	defer s.keeping.Unlock()
	s.mu.Lock()
	change(&s.rec)
	rec := s.rec
	s.mu.Unlock()
	return s.r.writeRecord(s.id, rec)
}

func (s *sandbox) phase() phase {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.rec.Phase
}

// call makes a call to the sentry. It gives up as soon as the sandbox is gone.
func (s *sandbox) call(ctx context.Context, c call) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	watch := make(chan struct{})
	defer close(watch)
	go func() {
		select {
		case <-s.exited:
			cancel(s.errGone())
		case <-watch:
		}
	}()
	return c.do(ctx, s.r.socket(s.id))
}

// fail says why an operation came to nothing, for the tenant and for the operator.
func (s *sandbox) fail(err error, what string) error {
	var known *hutch.Error
	switch {
	case err == nil:
		return nil
	case errors.As(err, &known):
		return err
	case !pidfd.Alive(s.procs[0]):
		return s.errGone()
	case errors.Is(err, context.DeadlineExceeded):
		return hutch.Wrap(hutch.CodeGuestUnresponsive, err, "sandbox %s could not be %s in time", s.id, what)
	case errors.Is(err, context.Canceled):
		return hutch.Wrap(hutch.CodeCancelled, err, "sandbox %s was not %s: the call was cancelled", s.id, what)
	}
	return hutch.Wrap(hutch.CodeInternal, err, "sandbox %s could not be %s", s.id, what)
}

func (s *sandbox) errGone() error {
	return hutch.Errorf(hutch.CodeSandboxGone, "sandbox %s has ended", s.id)
}
