package process

import (
	"context"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/guest/account"
	"hutch.dev/hutch/internal/guest/cgroup"
	"hutch.dev/hutch/internal/guest/output"
	"hutch.dev/hutch/internal/guestapi"
)

// maxFileCap is the most a stream's file may hold, however large the disk.
const maxFileCap = 1 << 30

// Exec is one command.
type Exec struct {
	id       hutch.ExecID
	table    *Table
	spec     hutch.ExecSpec
	settings Settings

	ready    chan struct{} // closed once started, or not
	startErr error         // set before ready is closed: the request was wrong
	done     chan struct{} // closed once ended

	started time.Time // both clocks
	stdout  *output.Stream
	stderr  *output.Stream
	pumps   []*pump
	last    atomic.Int64 // when there was output last, ns since started
	pid     int          // of the leader; 0 = it never ran. Set before ready is closed
	exited  <-chan exit
	born    uint64 // start of the leader as /proc has it; 0 = not known, or not needed. As pid
	cwd     string // where it started; set before ready is closed
	stdin   *stdin // nil: /dev/null
	// terminal is nil if there is none. As pid.
	terminal *terminal

	hosts    *session     // the shell session whose shell this is; nil: it is a command
	session  *session     // the one it runs in; nil: none. As pid
	keepers  []*os.File   // ends of pipes to close with the command; as pid
	replaced string       // why the session before that one ended; as pid
	before   cgroup.Usage // of the session's group, before this command

	stopping chan struct{} // closed by the first stop
	stopMu   sync.Mutex    // one killing of the tree at a time

	mu        sync.Mutex
	stop      *StopOptions      // the first one
	killAt    time.Time         // when a stop under way turns to KILL
	group     *cgroup.Group     // nil: none
	baseline  int64             // forks refused to all commands before this one
	allBefore time.Duration     // CPU time of all commands before this one
	peak      int64             // most memory of the tree that was seen
	seen      map[int]uint64    // processes once seen in the tree: pid → start
	result    *hutch.ExecResult // set once ended, without the output
	all       time.Duration     // CPU time of all commands while it ran; set with result
	readers   int               // of the output
	settled   bool              // the result is recorded elsewhere
	gone      bool              // nobody will come to read any more
}

func newExec(t *Table, id hutch.ExecID, spec hutch.ExecSpec, set Settings) *Exec {
	return &Exec{
		id: id, table: t, spec: spec, settings: set,
		ready: make(chan struct{}), done: make(chan struct{}), stopping: make(chan struct{}),
		started: time.Now(),
		seen:    map[int]uint64{},
	}
}

// start starts the command. If its program cannot be run, it has ended on return.
func (e *Exec) start() error {
	if e.spec.Shell != "" {
		return e.startInShell()
	}
	p, err := e.table.newPlan(e.spec, e.settings)
	if err != nil {
		return err
	}
	e.cwd = p.cwd
	owner := e.outputOwner(p.user.UID, p.user.GID)
	e.stdout, e.stderr = e.newStream("stdout", owner), e.newStream("stderr", owner)

	var files pipes
	defer files.closeTheirs()
	if err := files.open(e, p.user); err != nil {
		files.closeOurs()
		return hutch.Wrap(hutch.CodeUnavailable, err, "the sandbox has no room for another command: stop some first")
	}
	if tree := e.table.cfg.Cgroups; tree != nil {
		e.baseline, e.allBefore = tree.Refused(), tree.CPU()
		if e.group, err = tree.New(string(e.id), e.settings.Limits); err != nil {
			e.table.cfg.Log.Warn("running a command without a control group", "err", err)
		} else {
			defer e.group.CloseFD()
		}
	}
	l, err := e.launch(p, files.theirs)
	if err != nil || l.pid == 0 {
		files.closeOurs()
		e.removeGroup()
	}
	if err != nil {
		return err
	}
	if l.pid == 0 {
		e.complain(l.sentence)
		e.finish(&hutch.ExecResult{End: l.end, ExitCode: l.exitCode, Detail: l.sentence})
		return nil
	}
	e.pid, e.exited, e.pumps = l.pid, l.exit, files.pumps
	e.terminal = files.terminal
	if files.stdin != nil {
		e.stdin = newStdin(files.stdin, files.terminal)
	}
	if e.table.cfg.Cgroups == nil {
		if p, err := e.table.cfg.Proc.Read(l.pid); err == nil {
			e.born = p.Start
		}
	}
	if e.table.cfg.Protected {
		unprotect(e.table.cfg.Proc.Root, l.pid)
	}
	for _, p := range e.pumps {
		go p.run()
	}
	go e.supervise()
	return nil
}

// outputOwner is whose a command's output files are: its user's, or, where a user may write to
// few places, root's. Everybody may read them.
func (e *Exec) outputOwner(uid, gid uint32) output.Owner {
	if e.settings.Locked {
		return output.Owner{}
	}
	return output.Owner{UID: int(uid), GID: int(gid)}
}

func (e *Exec) newStream(name string, owner output.Owner) *output.Stream {
	limit := int64(maxFileCap)
	if e.settings.DiskMB > 0 {
		limit = min(limit, int64(e.settings.DiskMB)<<20/4)
	}
	return e.table.cfg.Pool.NewStream(output.Options{
		Budget:  e.spec.MaxOutputBytes,
		FileCap: limit,

		Lossless: e.spec.Lossless,
		Open: func() (*output.File, error) {
			f, err := e.table.cfg.Output.Create(string(e.id), name, owner)
			if err != nil {
				e.table.cfg.Log.Warn("keeping output without a file", "err", err)
			}
			return f, err
		},
	})
}

// complain says in the command's output why there is none of its own.
func (e *Exec) complain(sentence string) {
	out, end := e.stderr, "\n"
	if e.spec.Terminal != nil {
		out, end = e.stdout, "\r\n"
	}
	_, _ = out.Write([]byte("hutch: " + sentence + end)) // a stream takes everything
}

// pipes are the ends of a command's 0, 1 and 2.
type pipes struct {
	theirs   [3]*os.File // with a terminal only the first
	terminal *terminal   // nil: there is none
	stdin    *os.File    // nil: /dev/null
	pumps    []*pump
}

func (p *pipes) open(e *Exec, u account.User) (err error) {
	if e.spec.Terminal != nil {
		if p.terminal, p.theirs[0], err = openTerminal(*e.spec.Terminal, u); err != nil {
			return err
		}
		p.stdin = p.terminal.in
		return p.addPump(e, p.terminal.out, e.stdout)
	}
	if e.spec.StdinOpen || e.hosts != nil {
		p.stdin, p.theirs[0], err = newPipe(true)
	} else {
		p.theirs[0], err = os.Open(os.DevNull)
	}
	if err != nil {
		return err
	}
	if e.hosts != nil { // its commands have their own; what it says itself is for nobody
		p.theirs[1], err = os.OpenFile(os.DevNull, os.O_WRONLY, 0)
		p.theirs[2] = p.theirs[1]
		return err
	}
	for i, s := range []*output.Stream{e.stdout, e.stderr} {
		ours, theirs, err := newPipe(false)
		if err != nil {
			return err
		}
		p.theirs[i+1] = theirs
		if err := p.addPump(e, ours, s); err != nil {
			return err
		}
	}
	return nil
}

// addPump makes a pump from f, which it owns from now on.
func (p *pipes) addPump(e *Exec, f *os.File, s *output.Stream) error {
	pump, err := newPump(f, s, &e.last, e.clock)
	if err != nil {
		f.Close()
		return err
	}
	if e.spec.Terminal != nil {
		pump.gulps = nil // somebody sits before it
	}
	p.pumps = append(p.pumps, pump)
	return nil
}

func (p *pipes) closeTheirs() {
	for _, f := range p.theirs {
		if f != nil {
			f.Close()
		}
	}
}

func (p *pipes) closeOurs() {
	if p.stdin != nil {
		p.stdin.Close()
	}
	for _, pump := range p.pumps {
		pump.pipe.Close()
	}
}

// clock is the time since the start on the monotonic clock, in ns.
func (e *Exec) clock() int64 { return int64(time.Since(e.started)) }

func (e *Exec) isReady() bool {
	select {
	case <-e.ready:
		return true
	default:
		return false
	}
}

// ID is the command's id.
func (e *Exec) ID() hutch.ExecID { return e.id }

// Done is closed once the command has ended and its result is there.
func (e *Exec) Done() <-chan struct{} { return e.done }

// Stdout is what it wrote to its standard output.
func (e *Exec) Stdout() *output.Stream { return e.stdout }

// Stderr is what it wrote to its standard error.
func (e *Exec) Stderr() *output.Stream { return e.stderr }

// Status is the command as it is now. With its output, once it has ended, if full.
func (e *Exec) Status(full bool) guestapi.ExecStatus {
	s := guestapi.ExecStatus{
		ID: e.id, PID: e.pid, Running: true, Tag: e.spec.Tag,
		StartedAt: e.started.UnixNano(),
		Stdout:    e.stdout.Total(), Stderr: e.stderr.Total(),
	}
	if e.session != nil {
		s.PID = e.session.host.pid
	}
	e.mu.Lock()
	if e.result != nil {
		r := *e.result
		s.Result, s.Running, s.AllCPU = &r, false, e.all
	}
	e.mu.Unlock()
	if s.Result != nil && full {
		s.Result.Stdout, s.Result.Stderr = e.stdout.Output(), e.stderr.Output()
	}
	return s
}

// Wait waits until the command has ended.
func (e *Exec) Wait(ctx context.Context) error {
	select {
	case <-e.done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// removeGroup removes the control group; false while something is in it.
func (e *Exec) removeGroup() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.group != nil && e.group.Remove() != nil {
		return false
	}
	e.group = nil
	return true
}
