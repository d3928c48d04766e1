package httpapitest

import (
	"context"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/x/id"
)

// Program is what a command does. Its return is the exit code.
type Program func(p *Process) int

// Process is a running command as its program sees it.
type Process struct {
	Args    []string // without the program's name
	Env     map[string]string
	Spec    hutch.ExecSpec
	Stdin   io.Reader
	Stdout  io.Writer
	Stderr  io.Writer
	Stopped <-chan struct{} // closed when the command is to end
	Signals <-chan string
	Resized <-chan hutch.TerminalSize
}

// Program makes a program known: commands whose first word is name run it.
func (f *Fake) Program(name string, p Program) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.programs[name] = p
}

func builtins(f *Fake) {
	f.programs["true"] = func(*Process) int { return 0 }
	f.programs["false"] = func(*Process) int { return 1 }
	f.programs["exit7"] = func(*Process) int { return 7 }
	f.programs["echo"] = func(p *Process) int {
		_, _ = io.WriteString(p.Stdout, strings.Join(p.Args, " ")+"\n")
		return 0
	}
	f.programs["cat"] = func(p *Process) int {
		_, _ = io.Copy(p.Stdout, p.Stdin)
		return 0
	}
	f.programs["sleep"] = func(p *Process) int {
		<-p.Stopped
		return 143
	}
}

// command is a command, running or ended.
type command struct {
	id      hutch.ExecID
	sandbox hutch.SandboxID
	project hutch.ProjectID
	spec    hutch.ExecSpec
	created time.Time
	signals chan string
	resized chan hutch.TerminalSize
	stopped chan struct{}
	done    chan struct{}

	mu      sync.Mutex
	changed chan struct{} // closed and replaced at every change
	why     hutch.ExecEnd
	out     map[string][]byte
	stdin   []byte
	given   int64 // bytes of stdin taken in all
	closed  bool  // stdin has ended
	result  *hutch.ExecResult
}

func (c *command) wakeLocked() {
	close(c.changed)
	c.changed = make(chan struct{})
}

// stream is one output of a command.
type stream struct {
	c    *command
	name string
}

func (s *stream) Write(p []byte) (int, error) {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	s.c.out[s.name] = append(s.c.out[s.name], p...)
	s.c.wakeLocked()
	return len(p), nil
}

// stdin is the reading end of a command's stdin.
type stdin struct{ c *command }

func (s stdin) Read(p []byte) (int, error) {
	for {
		s.c.mu.Lock()
		n := copy(p, s.c.stdin)
		s.c.stdin = s.c.stdin[n:]
		closed, changed := s.c.closed, s.c.changed
		s.c.mu.Unlock()
		if n > 0 || len(p) == 0 {
			return n, nil
		}
		if closed {
			return 0, io.EOF
		}
		select {
		case <-changed:
		case <-s.c.stopped:
			return 0, io.ErrClosedPipe
		}
	}
}

func (c *command) stop(why hutch.ExecEnd) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.why == "" && c.result == nil {
		c.why = why
		close(c.stopped)
	}
}

func (c *command) record() hutch.Exec {
	c.mu.Lock()
	defer c.mu.Unlock()
	spec := c.spec
	if len(spec.Env) > 0 {
		names := make(map[string]string, len(spec.Env))
		for k := range spec.Env {
			names[k] = ""
		}
		spec.Env = names
	}
	return hutch.Exec{ID: c.id, Sandbox: c.sandbox, Project: c.project, Spec: spec, PID: 42, CreatedAt: c.created, Result: c.result}
}

func (c *command) run(program Program, args []string) {
	code := program(&Process{
		Args: args, Env: c.spec.Env, Spec: c.spec, Stdin: stdin{c},
		Stdout: &stream{c, hutch.Stdout}, Stderr: &stream{c, hutch.Stderr},
		Stopped: c.stopped, Signals: c.signals, Resized: c.resized,
	})
	c.mu.Lock()
	defer c.mu.Unlock()
	res := &hutch.ExecResult{
		End: hutch.ExecExit, ExitCode: code, StartedAt: c.created, EndedAt: c.created.Add(5 * time.Millisecond),
		Stdout: keep(c.out[hutch.Stdout], c.spec.MaxOutputBytes, hutch.Stdout), Stderr: keep(c.out[hutch.Stderr], c.spec.MaxOutputBytes, hutch.Stderr),
		CPU: 2 * time.Millisecond, PeakMemory: 1 << 20,
	}
	if c.why != "" {
		res.End = c.why
		res.Killed = []hutch.KilledProcess{{PID: 42, Command: "prog", Signal: "TERM"}}
	}
	c.result = res
	c.wakeLocked()
	close(c.done)
}

// keep cuts a stream to its budget: a quarter of head, the rest tail.
func keep(b []byte, budget int, name string) hutch.Output {
	if budget == 0 {
		budget = hutch.DefaultOutputBytes
	}
	if len(b) <= budget {
		return hutch.Output{Head: b, Total: int64(len(b))}
	}
	head := budget / 4
	tail := budget - head
	return hutch.Output{
		Head: b[:head], Tail: b[len(b)-tail:], Total: int64(len(b)),
		Dropped: int64(len(b) - budget), Path: "/var/lib/hutch/output/" + name,
	}
}

// StartExec implements httpapi.Execs.
func (f *Fake) StartExec(_ context.Context, p hutch.ProjectID, sid hutch.SandboxID, req hutch.ExecRequest) (hutch.Exec, error) {
	if err := f.called("StartExec"); err != nil {
		return hutch.Exec{}, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if c, ok := f.execs[req.ID]; ok && req.ID != "" {
		return c.record(), nil
	}
	sb, err := f.liveLocked(p, sid)
	if err != nil {
		return hutch.Exec{}, err
	}
	if sb.State != hutch.StateRunning {
		return hutch.Exec{}, hutch.Errorf(hutch.CodeInvalidState, "sandbox %s is %s: resume it first", sid, sb.State)
	}
	args := req.Spec.Argv
	if len(args) == 0 {
		args = strings.Fields(req.Spec.Cmd)
	}
	if len(args) == 0 {
		return hutch.Exec{}, hutch.FieldErrorf("cmd", "give cmd or argv")
	}
	program, ok := f.programs[args[0]]
	if !ok {
		name := args[0]
		program = func(p *Process) int {
			_, _ = io.WriteString(p.Stderr, name+": not found\n")
			return hutch.ExitNotFound
		}
	}
	if req.ID == "" {
		req.ID = hutch.ExecID(id.NewExec())
	}
	c := &command{
		id: req.ID, sandbox: sid, project: p, spec: req.Spec, created: f.Now(),
		signals: make(chan string, 16), resized: make(chan hutch.TerminalSize, 16), stopped: make(chan struct{}), done: make(chan struct{}),
		changed: make(chan struct{}), out: make(map[string][]byte), closed: !req.Spec.StdinOpen && req.Spec.Terminal == nil,
	}
	if req.Stdin != nil {
		if c.stdin, err = io.ReadAll(req.Stdin); err != nil {
			return hutch.Exec{}, err
		}
	}
	f.execs[c.id] = c
	f.execOrder = append(f.execOrder, c.id)
	f.recordLocked("exec.started", p, sid, c.id)
	go c.run(program, args[1:])
	return c.record(), nil
}

func (f *Fake) commandOf(p hutch.ProjectID, xid hutch.ExecID) (*command, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	c, ok := f.execs[xid]
	if !ok || c.project != p {
		return nil, hutch.Errorf(hutch.CodeNotFound, "there is no command %q", xid)
	}
	return c, nil
}

// Exec implements httpapi.Execs.
func (f *Fake) Exec(_ context.Context, p hutch.ProjectID, xid hutch.ExecID) (hutch.Exec, error) {
	c, err := f.commandOf(p, xid)
	if err != nil {
		return hutch.Exec{}, err
	}
	return c.record(), nil
}

// ListExecs implements httpapi.Execs.
func (f *Fake) ListExecs(_ context.Context, q hutch.ExecQuery) ([]hutch.Exec, string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if sb, ok := f.sandboxes[q.Sandbox]; !ok || sb.Project != q.Project {
		return nil, "", hutch.Errorf(hutch.CodeNotFound, "there is no sandbox %q", q.Sandbox)
	}
	var all []hutch.Exec
	for _, xid := range slices.Backward(f.execOrder) {
		if x := f.execs[xid].record(); x.Sandbox == q.Sandbox && (!q.Running || x.Result == nil) {
			all = append(all, x)
		}
	}
	return page(all, q.Cursor, q.Limit)
}

// WaitExec implements httpapi.Execs.
func (f *Fake) WaitExec(ctx context.Context, p hutch.ProjectID, _ hutch.SandboxID, xid hutch.ExecID) (hutch.Exec, error) {
	if err := f.called("WaitExec"); err != nil {
		return hutch.Exec{}, err
	}
	c, err := f.commandOf(p, xid)
	if err != nil {
		return hutch.Exec{}, err
	}
	select {
	case <-c.done:
		return c.record(), nil
	case <-ctx.Done():
		return hutch.Exec{}, hutch.Wrap(hutch.CodeCancelled, context.Cause(ctx), "the caller stopped waiting")
	}
}

// FollowExec implements httpapi.Execs.
func (f *Fake) FollowExec(ctx context.Context, p hutch.ProjectID, _ hutch.SandboxID, xid hutch.ExecID, o hutch.FollowOptions, sink func(hutch.OutputEvent) error) (hutch.Exec, error) {
	if err := f.called("FollowExec"); err != nil {
		return hutch.Exec{}, err
	}
	c, err := f.commandOf(p, xid)
	if err != nil {
		return hutch.Exec{}, err
	}
	at := map[string]int64{hutch.Stdout: o.Stdout, hutch.Stderr: o.Stderr}
	if o.Live {
		c.mu.Lock()
		for name := range at {
			at[name] = max(0, int64(len(c.out[name]))-o.Last)
		}
		c.mu.Unlock()
	}
	for {
		c.mu.Lock()
		res, changed := c.result, c.changed
		// What has been written stays as it is, so the slices may be read without the lock.
		out := map[string][]byte{hutch.Stdout: c.out[hutch.Stdout], hutch.Stderr: c.out[hutch.Stderr]}
		c.mu.Unlock()
		for _, name := range []string{hutch.Stdout, hutch.Stderr} {
			s := shown{name: name, all: out[name], budget: c.spec.MaxOutputBytes, ended: res != nil}
			for _, ev := range s.from(at[name], o.Budgeted) {
				if err := sink(ev); err != nil {
					return hutch.Exec{}, err
				}
				at[name] = max(ev.GapTo, ev.Offset+int64(len(ev.Data)))
			}
		}
		if res != nil || o.NoWait {
			return c.record(), nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return hutch.Exec{}, context.Cause(ctx)
		}
	}
}

// shown is an output as a follower sees it.
type shown struct {
	name   string
	all    []byte
	budget int
	ended  bool
}

// from is what a follower at offset at is to be given now.
func (s shown) from(at int64, budgeted bool) []hutch.OutputEvent {
	if !budgeted {
		if at >= int64(len(s.all)) {
			return nil
		}
		return []hutch.OutputEvent{{Stream: s.name, Offset: at, Data: s.all[at:]}}
	}
	cut := keep(s.all, s.budget, s.name)
	head := int64(len(cut.Head))
	if !s.ended {
		head = min(int64(max(s.budget, hutch.MinOutputBytes)/4), head)
	}
	var out []hutch.OutputEvent
	if at < head {
		out = append(out, hutch.OutputEvent{Stream: s.name, Offset: at, Data: s.all[at:head]})
		at = head
	}
	if tail := cut.Total - int64(len(cut.Tail)); s.ended && cut.Dropped > 0 && at < tail {
		out = append(out,
			hutch.OutputEvent{Stream: s.name, Offset: at, GapTo: tail},
			hutch.OutputEvent{Stream: s.name, Offset: tail, Data: cut.Tail})
	}
	return out
}

// WriteStdin implements httpapi.ExecControl.
func (f *Fake) WriteStdin(_ context.Context, p hutch.ProjectID, _ hutch.SandboxID, xid hutch.ExecID, chunk hutch.StdinChunk) (int64, error) {
	if err := f.called("WriteStdin"); err != nil {
		return 0, err
	}
	offset, r, end := chunk.Offset, chunk.Data, chunk.End
	c, err := f.commandOf(p, xid)
	if err != nil {
		return 0, err
	}
	buf := make([]byte, 32<<10)
	for {
		n, err := r.Read(buf)
		c.mu.Lock()
		if c.closed {
			c.mu.Unlock()
			return c.given, hutch.Errorf(hutch.CodeInvalidState, "the stdin of command %s is closed", xid)
		}
		if chunk.Append {
			offset = c.given
		}
		if offset > c.given {
			c.mu.Unlock()
			return c.given, hutch.FieldErrorf("offset", "only %d bytes have been written", c.given)
		}
		fresh := buf[:n]
		if skip := c.given - offset; skip > 0 {
			fresh = fresh[min(skip, int64(n)):]
		}
		c.stdin = append(c.stdin, fresh...)
		c.given += int64(len(fresh))
		offset += int64(n)
		c.closed = c.closed || (err == io.EOF && end)
		c.wakeLocked()
		given := c.given
		c.mu.Unlock()
		if err == io.EOF {
			return given, nil
		}
		if err != nil {
			return given, err
		}
	}
}

// CancelExec implements httpapi.ExecControl.
func (f *Fake) CancelExec(_ context.Context, p hutch.ProjectID, _ hutch.SandboxID, xid hutch.ExecID, _ *time.Duration) (hutch.Exec, error) {
	if err := f.called("CancelExec"); err != nil {
		return hutch.Exec{}, err
	}
	c, err := f.commandOf(p, xid)
	if err != nil {
		return hutch.Exec{}, err
	}
	c.stop(hutch.ExecCancelled)
	<-c.done
	return c.record(), nil
}

// ResizeExec implements httpapi.ExecControl.
func (f *Fake) ResizeExec(_ context.Context, p hutch.ProjectID, _ hutch.SandboxID, xid hutch.ExecID, size hutch.TerminalSize) error {
	c, err := f.commandOf(p, xid)
	if err != nil {
		return err
	}
	if c.spec.Terminal == nil {
		return hutch.Errorf(hutch.CodeInvalidState, "command %s has no terminal", xid)
	}
	c.resized <- size
	return nil
}

// SignalExec implements httpapi.ExecControl.
func (f *Fake) SignalExec(_ context.Context, p hutch.ProjectID, _ hutch.SandboxID, xid hutch.ExecID, signal string, _ bool) error {
	c, err := f.commandOf(p, xid)
	if err != nil {
		return err
	}
	c.signals <- signal
	return nil
}
