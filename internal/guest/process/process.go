// Package process runs the commands of a sandbox.
//
// It owns every process inside but the agent: it starts commands, keeps what they
// write (package output), enforces their time limits, stops them with everything they
// started, and reaps them and every orphan. It knows nothing of HTTP.
//
// A command is an [Exec]. Its leader is the process that was started; the leader's
// exit ends the command. Its tree is every process that came of it, wherever it went: those
// in its control group, those in the leader's session, their descendants, those that carry
// the marker HUTCH_EXEC_ID in the environment they were started with, and those once
// seen to be one of these. Control groups are used where there are any and are never
// relied on alone, because root inside can move processes.
//
// Invariants:
//   - nothing else in the process calls wait: [Table.Run] reaps every child exactly once;
//   - a child is registered before it can be reaped (reaper.mu is held over both);
//   - a result is set once, when the leader is dead, and after it only Killed may grow;
//   - nobody who reads a command's output can block it, unless it was started lossless.
//
// A command with a shell is one of several that a session's bash runs in turn (session.go):
// the bash is an Exec of its own that no list has, and what it starts is counted as the
// command's it was started by.
//
// Time limits are measured on the monotonic clock, which goes on while a sandbox is
// paused, and jumps by the time it was away when it is restored: a limit that passed
// meanwhile is over at once.
//
// Lock order: Table.mu, session.mu, Exec.mu, reaper.mu; none is held while a command is being
// stopped. Start with [Table.Start], then supervise in supervise.go.
package process

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"sync"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/guest/account"
	"hutch.dev/hutch/internal/guest/cgroup"
	"hutch.dev/hutch/internal/guest/output"
	"hutch.dev/hutch/internal/guest/procfs"
	"hutch.dev/hutch/internal/guestapi"
)

// maxExecs is how many commands may be known at once, running or not yet deleted. It
// bounds what a caller who never deletes can make the agent keep.
const maxExecs = 4096

// Config is what a Table works with.
type Config struct {
	Proc     procfs.FS
	Cgroups  *cgroup.Tree // nil: there are none
	Accounts account.Database
	Output   output.Dir
	Pool     *output.Pool
	ShellDir string // for the pipes of shell sessions
	// Protected says that the agent asked the kernel to spare it when memory runs out,
	// which its children must not inherit.
	Protected bool
	Log       *slog.Logger
}

// Settings are what the sandbox's identity says of commands. They hold for commands
// started after [Table.Configure].
type Settings struct {
	Env      map[string]string // for every command, below its own
	Defaults hutch.ProcessDefaults
	Limits   cgroup.Limits
	DiskMB   int // size of the writable layer
	// Locked says that commands must have no way to gain rights.
	Locked bool
}

// Table is every command the agent knows.
type Table struct {
	cfg    Config
	reaper reaper

	mu        sync.Mutex
	settings  Settings
	execs     map[hutch.ExecID]*Exec
	lingering map[hutch.ExecID]*Exec // deleted, with processes left
	kept      []*Exec                // deleted, without; their output files can be read. Oldest first
	noJail    bool                   // the kernel refuses cgroup namespaces
	shells    map[string]*session    // by name; also those that ended, until there is a new one
}

// New makes a table. Nothing runs until [Table.Run].
func New(cfg Config) *Table {
	return &Table{
		cfg:       cfg,
		reaper:    reaper{exits: map[int]chan<- exit{}},
		execs:     map[hutch.ExecID]*Exec{},
		lingering: map[hutch.ExecID]*Exec{},
		shells:    map[string]*session{},
	}
}

// Run reaps children until ctx ends. The process must be the first one of its PID
// namespace or a subreaper, or orphans go elsewhere.
func (t *Table) Run(ctx context.Context) error { return t.reaper.run(ctx) }

// Configure sets what commands started from now on get.
func (t *Table) Configure(s Settings) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.settings = s
}

// Limit has the kernel hold all commands together to the limits that are set. An error says
// which of them has no effect; the others have.
func (t *Table) Limit() error {
	t.mu.Lock()
	l := t.settings.Limits
	t.mu.Unlock()
	if t.cfg.Cgroups == nil {
		return nil
	}
	return t.cfg.Cgroups.SetLimits(l)
}

// Start starts a command, or finds the one that was started as id before. A command
// whose program cannot be run has ended when Start returns; what is wrong with the
// request itself is an error and leaves nothing.
func (t *Table) Start(id hutch.ExecID, spec hutch.ExecSpec) (*Exec, error) {
	if !validID(id) {
		return nil, hutch.FieldErrorf("id", "must be \"e\" and 20 letters or digits")
	}
	spec, err := checkSpec(spec)
	if err != nil {
		return nil, err
	}
	t.mu.Lock()
	if e := t.execs[id]; e != nil {
		t.mu.Unlock()
		<-e.ready
		return e, e.startErr
	}
	if len(t.execs) >= maxExecs {
		t.mu.Unlock()
		return nil, hutch.Errorf(hutch.CodeUnavailable, "the sandbox keeps %d commands already: delete ended ones first", maxExecs)
	}
	e := newExec(t, id, spec, t.settings)
	t.execs[id] = e
	t.mu.Unlock()
	t.sweep()

	e.startErr = e.start()
	if e.startErr != nil {
		t.mu.Lock()
		delete(t.execs, id)
		t.mu.Unlock()
		e.letGo()
	}
	close(e.ready)
	return e, e.startErr
}

// Get finds a command.
func (t *Table) Get(id hutch.ExecID) (*Exec, error) {
	t.mu.Lock()
	e := t.execs[id]
	t.mu.Unlock()
	if e == nil {
		return nil, hutch.Errorf(hutch.CodeNotFound, "there is no command %s in this sandbox", clean(id))
	}
	<-e.ready
	return e, e.startErr
}

// List is every command, in the order of their ids.
func (t *Table) List() []*Exec {
	t.mu.Lock()
	es := slices.Collect(maps.Values(t.execs))
	t.mu.Unlock()
	es = slices.DeleteFunc(es, func(e *Exec) bool { return !e.isReady() })
	slices.SortFunc(es, func(a, b *Exec) int { return compareID(a.id, b.id) })
	return es
}

// Running is how many commands run.
func (t *Table) Running() int {
	n := 0
	for _, e := range t.List() {
		select {
		case <-e.done:
		default:
			n++
		}
	}
	return n
}

// Zombies counts children that have ended and wait to be reaped. More than a moment's
// few mean that the agent is broken.
func (t *Table) Zombies() int {
	if !t.reaper.pending() {
		return 0
	}
	ps, err := t.cfg.Proc.List()
	if err != nil {
		return 0
	}
	n, self := 0, os.Getpid()
	for _, p := range ps {
		if p.State == 'Z' && p.PPID == self {
			n++
		}
	}
	return n
}

// Processes is every process inside but the agent, with the command it belongs to.
func (t *Table) Processes() ([]guestapi.Process, error) {
	all, err := t.listBetweenForks()
	if err != nil {
		return nil, hutch.Wrap(hutch.CodeInternal, err, "the list of processes cannot be read")
	}
	owner := map[int]hutch.ExecID{}
	for _, o := range t.attributeAll(all, t.known()) {
		if o.exec.hosts == nil { // a session's shell is no command's
			owner[o.PID] = o.exec.id
		}
	}
	list := make([]guestapi.Process, 0, len(all))
	for _, p := range all {
		if p.PID != os.Getpid() {
			list = append(list, guestapi.Process{PID: p.PID, PPID: p.PPID, Exec: owner[p.PID], State: string(p.State), Command: p.Comm})
		}
	}
	return list, nil
}

// known is every command that may have processes.
func (t *Table) known() []*Exec {
	t.mu.Lock()
	defer t.mu.Unlock()
	return append(slices.Collect(maps.Values(t.execs)), slices.Collect(maps.Values(t.lingering))...)
}

// What a process costs the host besides its own memory, and what a command must cost to be
// worth ending: less is not what memory is short of.
const (
	processCost = 4 << 20
	leastCost   = 16 << 20
)

// use is what a command holds.
type use struct {
	memory    int64
	processes int64
}

func (u use) cost() int64 { return u.memory + u.processes*processCost }

// Relieve ends the command that costs most memory, at once, and returns it; nil if no command
// is worth it.
func (t *Table) Relieve(ctx context.Context) (*Exec, error) {
	uses := map[*Exec]use{}
	for _, o := range t.attribute(t.known()) {
		u := uses[o.exec]
		uses[o.exec] = use{u.memory + o.RSS, u.processes + 1}
	}
	var most *Exec
	for e, u := range uses {
		if u.cost() >= leastCost && (most == nil || u.cost() > uses[most].cost()) {
			most = e
		}
	}
	if most == nil {
		return nil, nil
	}
	u := uses[most]
	if s := most.hosts; s != nil {
		if e := s.current(); e != nil {
			most = e // the shell, by what runs in it
		}
	}
	detail := fmt.Sprintf("ended to free memory: it used %d MiB in %d processes", u.memory>>20, u.processes)
	if limit := t.cfg.Proc.Memory(); limit > 0 {
		detail += fmt.Sprintf(", of the sandbox's %d MiB", limit>>20)
	}
	return most, most.Stop(ctx, StopOptions{Reason: hutch.ExecOOM, Detail: detail})
}

// Clean kills every tree: for tests and for the end of the agent.
func (t *Table) Clean(ctx context.Context) {
	var wg sync.WaitGroup
	for _, e := range t.known() {
		wg.Go(func() {
			<-e.ready
			if e.startErr == nil {
				_ = e.Stop(ctx, StopOptions{Reason: hutch.ExecCancelled})
			}
		})
	}
	wg.Wait()
}
