// Package control is the control plane: it decides and keeps the records.
//
// It owns every sandbox's record and its changes of state, admission, deadlines as rows, the
// records of commands, templates and their builds, audited calls and events, what was measured
// of sandboxes within the last hour, what each is charged (ledger.go, usage.go), and what they and
// their projects may use (budget.go, projectbudget.go). It acts on no host: what must be done to
// a sandbox it asks of [Nodes], with the sandbox's epoch, and what happens there unasked it is
// told (SandboxEnded and its like, in reports.go).
//
// A change of state is three steps: Begin in the store, which raises the epoch; the
// act on the node under that epoch; Finish in the store, which does nothing if the
// sandbox has moved on meanwhile. A crash between any two of them is mended by Recover.
//
// Records of commands are written behind: a guest keeps each command's result until
// this package says that it is stored, so an answer need not wait for a disk and a
// crash loses nothing (see execlog.go). Audited calls are written behind too, and those
// that a crash overtakes are lost.
//
// Builds are made by a [Builder], one at a time; a build that the end of the server cuts off
// is on record as failed.
//
// Machines are prepared ahead for creates like those of the last minutes (spares.go).
//
// Locks: each of admission, spares, execLog, activity and their like has its own; none is held
// across a call to the store or a node, and no two are held at once.
//
// Start with create.go, then reports.go and recover.go. What is asked of a running
// sandbox's inside begins in guest.go, what makes records and host agree in leaks.go, and what
// others are told of its use in idle.go.
package control

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/store"
	"hutch.dev/hutch/internal/x/quota"
)

// Nodes is what control asks of the hosts. In one process it is the node agent itself.
type Nodes interface {
	Sandboxer
	Preparer
	Execer
	Insider
	Idler
	Recoverer
	Surveyor
}

// Sandboxer acts on whole sandboxes.
type Sandboxer interface {
	// StartSandbox makes the machine and returns once its guest answers, with how long
	// each stage took. If it fails nothing is left of the sandbox. A machine that was prepared
	// under the id is used if it fits; hutch.BootPrepared is then a stage, how long it had stood.
	StartSandbox(ctx context.Context, sb hutch.Sandbox) (map[string]time.Duration, error)
	PauseSandbox(ctx context.Context, id hutch.SandboxID, e hutch.Epoch) error
	ResumeSandbox(ctx context.Context, id hutch.SandboxID, e hutch.Epoch) error
	// KillSandbox returns once nothing is left; hutch.ErrSandboxGone if there was nothing.
	KillSandbox(ctx context.Context, id hutch.SandboxID, e hutch.Epoch) error
	SetDeadline(ctx context.Context, id hutch.SandboxID, e hutch.Epoch, t time.Time) error
}

// Preparer makes machines before anybody asks for them. In one runs the guest agent, and nobody has greeted it.
type Preparer interface {
	// Prepare makes one, for StartSandbox of that id, like the sandbox: what counts is its
	// image, resources and profile.
	Prepare(ctx context.Context, sb hutch.Sandbox) error
	// Prepared names those that stand ready.
	Prepared() map[hutch.SandboxID]bool
	// Discard removes one that was not started. That there is none is no error.
	Discard(ctx context.Context, id hutch.SandboxID) error
}

// Execer acts on commands in sandboxes.
type Execer interface {
	// StartExec starts a command; starting one id twice starts it once. It returns its
	// pid inside and when it began.
	StartExec(ctx context.Context, id hutch.SandboxID, e hutch.Epoch, x hutch.ExecID, spec hutch.ExecSpec) (pid int, at time.Time, err error)
	// FollowExec hands output to sink until the command ends, sink fails or ctx ends.
	FollowExec(ctx context.Context, id hutch.SandboxID, e hutch.Epoch, x hutch.ExecID, o hutch.FollowOptions, sink func(hutch.OutputEvent) error) (*hutch.ExecResult, error)
	WriteStdin(ctx context.Context, id hutch.SandboxID, e hutch.Epoch, x hutch.ExecID, c hutch.StdinChunk) (int64, error)
	// StopExec ends a command as cancelled and returns once it has ended; a negative
	// grace is the command's own.
	StopExec(ctx context.Context, id hutch.SandboxID, e hutch.Epoch, x hutch.ExecID, grace time.Duration) (*hutch.ExecResult, error)
	SignalExec(ctx context.Context, id hutch.SandboxID, e hutch.Epoch, x hutch.ExecID, signal string, tree bool) error
}

// Insider looks into sandboxes.
type Insider interface {
	// Guest returns a running sandbox's inside, good for this epoch.
	Guest(ctx context.Context, id hutch.SandboxID, e hutch.Epoch) (hutch.Guest, error)
	// ResizeExec changes the size of a command's terminal.
	ResizeExec(ctx context.Context, id hutch.SandboxID, e hutch.Epoch, x hutch.ExecID, size hutch.TerminalSize) error
	// Usage measures a sandbox from outside, but for its CPUPercent, and returns the CPU
	// time it has used since its start.
	Usage(ctx context.Context, id hutch.SandboxID, e hutch.Epoch) (hutch.Sample, time.Duration, error)
}

// Idler holds idle timeouts when this package does not, a little longer than it would.
type Idler interface {
	// Used says when a sandbox was last used, or when at the latest that ends which goes on in
	// it now; what is said last holds. When it returns nil that outlives this server.
	Used(ctx context.Context, id hutch.SandboxID, at time.Time) error
	// LastUse is what was said last, also to an earlier server's node; zero if that is not known.
	LastUse(id hutch.SandboxID) time.Time
}

// Builder makes templates.
type Builder interface {
	// Build makes the template that req asks for and returns its record, for the caller to
	// store. What it does it says by log, line by line, each with the step it is part of.
	// It ends soon after ctx does.
	Build(ctx context.Context, req hutch.BuildRequest, log func(step, line string)) (hutch.Template, error)
}

// Recoverer finds out what is on the hosts after a restart.
type Recoverer interface {
	// Adopt takes a running or paused sandbox over from an earlier process. If it is
	// gone the error is hutch.ErrSandboxGone and why says what ended it; Sweep is to be
	// called once that is on record.
	Adopt(ctx context.Context, sb hutch.Sandbox) (why hutch.SandboxEnd, err error)
	// WatchExecs makes the node hold the timeouts and report the ends of these commands,
	// which it may not know: one that the guest does not know either is reported as lost.
	WatchExecs(ctx context.Context, id hutch.SandboxID, e hutch.Epoch, execs []hutch.Exec) error
	// Sweep removes what is left of a sandbox. One that a node has in hand is
	// hutch.ErrConflict, and is not touched.
	Sweep(ctx context.Context, id hutch.SandboxID) error
}

// Surveyor says what is on the hosts.
type Surveyor interface {
	// Held names the sandboxes that a node runs, starts, takes over or removes now.
	Held() map[hutch.SandboxID]bool
	// Traces names everything that is there of sandboxes; deep looks for what takes long to
	// find as well.
	Traces(ctx context.Context, deep bool) ([]hutch.Trace, error)
}

// Metrics is told what is worth counting. Implementations do not block.
type Metrics interface {
	CreateStage(stage string, d time.Duration)
	Operation(phase string, err error)
	ExecEnded(end hutch.ExecEnd, d time.Duration)
	SandboxEnded(why hutch.SandboxEnd)
	QueueLength(n int)
}

// Config holds what an operator may set; zero fields get the default named.
type Config struct {
	DefaultTTL    time.Duration // of a sandbox that asks for none; 1 h
	MaxTTL        time.Duration // the longest; 0 in a request means this; 24 h
	Retention     time.Duration // how long the dead, and builds that have ended, are remembered; 24 h
	AuditFor      time.Duration // how long audited calls are remembered; 30 days
	UsageFor      time.Duration // how long what the dead used is remembered; 90 days
	UsageEvery    time.Duration // how often one in which something changes is measured; 1 s
	RateCard      *hutch.RateCard
	MaxSandboxes  int // alive at once on the node; 1000
	Creates       int // starts under way at once; 2 a CPU
	Queue         int // creates that may wait; 256
	MaxResources  hutch.Resources
	SweepInterval time.Duration // how often expiry, idleness and retention are looked at; 2 s
	UseEvery      time.Duration // how often the nodes are told what was used; 5 s
	SampleEvery   time.Duration // how often running sandboxes are measured; 5 s
	Builder       Builder       // makes templates; nil = the server builds none
	Images        Images        // loses the images that nothing needs; nil = all stay
	ImagesEvery   time.Duration // how often they are looked through; 10 min

	// MaxAge is how long a sandbox may live at the most, however often it is extended, from
	// its creation; 0 = as long as it is extended.
	MaxAge           time.Duration
	ProjectSandboxes int // alive at once of one project; 0 = any
	ProjectMilliCPU  int // that those may use, in all; 0 = any
	ProjectMemoryMB  int // likewise
	ProjectCreates   int // a minute by one project; 0 = any
	// ProjectProfiles are of sandboxes for which neither their request nor their template says
	// one, by project; none = root.
	ProjectProfiles map[hutch.ProjectID]hutch.Profile
	// HostMemory says what memory the host has; nil = sandboxes' memory is not counted.
	HostMemory      func() (Memory, error)
	MemoryReserveMB int     // of it sandboxes do not get; a twentieth, at least 512
	Overcommit      float64 // how many times the rest is given out; 10

	Prepare    int           // machines kept ready at the most; 0 = none
	PrepareFor time.Duration // how long a create is a reason to keep one like it ready; 5 min

	// Now says in which period of a project's budget it is; time.Now.
	Now func() time.Time

	ReconcileEvery time.Duration // how often records and host are compared; 1 min
	SecondLook     time.Duration // how long after the first look the second is taken; 2 s
}

// Control is the control plane. Its methods are safe for concurrent use.
type Control struct {
	cfg     Config
	store   store.Store
	log     *slog.Logger
	metrics Metrics

	nodes Nodes // set once by Attach, before Run

	admission *admission
	spares    *spares
	creating  claims[hutch.SandboxID] // ids of creates under way
	swept     claims[hutch.SandboxID] // sandboxes that a sweep ends or carries on
	owedEnds  owed[owedEnd]
	turns     turns
	owedTurns owed[hutch.Epoch] // pauses and resumes whose outcome is not on record
	strays    strays
	silences  silences
	execs     *execLog
	activity  *activity
	telling   claims[hutch.SandboxID] // sandboxes of whose use the node is being told
	watchers  *eventWatchers
	tails     *quota.Quota[hutch.ProjectID]
	roster    roster
	meter     *meter
	ledger    *ledger
	budgets   projectBudgets
	counting  claims[hutch.ProjectID] // projects whose use in a period is being read from the records
	builds    *builds
	audit     *auditLog

	// work ends when Close is called; what must be finished for callers who left runs under it.
	work   context.Context
	cancel context.CancelCauseFunc
	wg     sync.WaitGroup

	readyMu sync.Mutex
	ready   error // nil: a create would work now
}

// New returns a Control. It does no I/O and starts no goroutine. Attach must be called
// before anything else.
func New(cfg Config, st store.Store, m Metrics, log *slog.Logger) *Control {
	cfg = cfg.withDefaults()
	work, cancel := context.WithCancelCause(context.Background())
	c := &Control{
		cfg: cfg, store: st, metrics: m, log: log.With("component", "control"),
		admission: newAdmission(cfg, m.QueueLength), spares: newSpares(cfg.Prepare, cfg.PrepareFor),
		activity: newActivity(), watchers: newEventWatchers(), tails: quota.New[hutch.ProjectID](maxTails),
		work: work, cancel: cancel,
		ready: hutch.Errorf(hutch.CodeUnavailable, "starting: sandboxes of the last run are being taken over"),
	}
	c.meter, c.ledger = newMeter(), newLedger()
	c.builds = newBuilds()
	c.audit = newAuditLog(st, c.log)
	c.execs = newExecLog(st, c.log, c.watchers.wake)
	c.execs.onEnd = m.ExecEnded // counted when it is on record: what is told of again is counted once
	return c
}

// Attach tells control its nodes. Node and control know each other, so one of them has
// to be told after it was made.
func (c *Control) Attach(n Nodes) { c.nodes = n }

// Close waits for what is under way for callers, and for every record to be written.
func (c *Control) Close() {
	c.admission.stop()
	c.cancel(hutch.Errorf(hutch.CodeUnavailable, "the server is stopping"))
	c.builds.close()
	c.wg.Wait()
	c.writeUsage(context.Background(), choice{grown: true})
	c.execs.close()
	c.audit.close()
}

// Drain refuses creates from now on, also those that wait for their turn, and returns once those
// under way are finished, or with ctx. Prepared machines are removed. Everything else goes on.
func (c *Control) Drain(ctx context.Context) error {
	over := c.admission.stop()
	select {
	case <-over:
		c.removeSpares(ctx)
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Ready returns nil if a create would work now, else why not.
func (c *Control) Ready(ctx context.Context) error {
	c.readyMu.Lock()
	err := c.ready
	c.readyMu.Unlock()
	if err != nil {
		return err
	}
	if err := c.admission.ready(); err != nil {
		return err
	}
	ts, err := c.store.Templates(ctx)
	if err != nil {
		return hutch.Wrap(hutch.CodeUnavailable, err, "the records cannot be read")
	}
	if len(ts) == 0 {
		return hutch.Errorf(hutch.CodeUnavailable, "there is no template yet: build one with `hutch template build base`")
	}
	return nil
}

func (c *Control) setReady(err error) {
	c.readyMu.Lock()
	defer c.readyMu.Unlock()
	c.ready = err
}

// finish returns a context for work that goes on when its caller has left: it ends with
// the given limit, or some time after Close at the latest.
func finish(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), limit)
}
