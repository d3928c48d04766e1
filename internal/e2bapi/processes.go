package e2bapi

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"connectrpc.com/connect"

	"hutch.dev/hutch"
)

// The messages of process.Process that act on a process.
type (
	// selector names a process: by one of both.
	selector struct {
		PID *uint32 `json:"pid"`
		Tag *string `json:"tag"`
	}
	selected struct {
		Process selector `json:"process"`
	}
	updateProcess struct {
		Process selector  `json:"process"`
		PTY     *terminal `json:"pty"`
	}
	input struct {
		Stdin []byte `json:"stdin"`
		PTY   []byte `json:"pty"`
	}
	sendInput struct {
		Process selector `json:"process"`
		Input   input    `json:"input"`
	}
	// streamInput is one message of a stream of input: the first says to whom.
	streamInput struct {
		Start *selected `json:"start"`
		Data  *struct {
			Input input `json:"input"`
		} `json:"data"`
		Keepalive *empty `json:"keepalive"`
	}
	sendSignal struct {
		Process selector   `json:"process"`
		Signal  signalName `json:"signal"`
	}
)

// signalName is a signal as an enumeration has it: by its name, or by its number.
type signalName string

// The signals that can be asked for.
const (
	sigKill signalName = "SIGNAL_SIGKILL"
	sigTerm signalName = "SIGNAL_SIGTERM"
)

// UnmarshalJSON takes both forms.
func (s *signalName) UnmarshalJSON(b []byte) error {
	var n int
	if err := json.Unmarshal(b, &n); err == nil {
		switch n {
		case 9:
			*s = sigKill
		case 15:
			*s = sigTerm
		default:
			*s = signalName(fmt.Sprintf("%d", n))
		}
		return nil
	}
	return json.Unmarshal(b, (*string)(s))
}

// processes remembers which command a pid is, so that input and signals need no look into the
// records, and those that have ended for as long as their end may still be asked for. What it
// has forgotten is found in the records.
type processes struct {
	mu sync.Mutex
	of map[hutch.SandboxID]map[int]remembered
}

type remembered struct {
	exec hutch.ExecID
	tag  string
	end  *hutch.Exec // how it ended; nil = it runs, as far as is known

	inputClosed bool // by a client
}

// Bounds on what is remembered: more than the processes that run in a sandbox at once, and the
// sandboxes of a machine.
const (
	maxRemembered = 4095 // one less than a multiple of 64: see add
	maxSandboxes  = 4096
)

func newProcesses() *processes {
	return &processes{of: make(map[hutch.SandboxID]map[int]remembered)}
}

func (p *processes) add(x hutch.Exec, keep time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	known := p.of[x.Sandbox]
	if known == nil {
		for sb := range p.of {
			if len(p.of) < maxSandboxes {
				break
			}
			delete(p.of, sb) // any will do: the records have it
		}
		known = make(map[int]remembered)
		p.of[x.Sandbox] = known
	}
	if len(known)%64 == 63 { // now and then: it looks at all of them
		for pid, r := range known {
			if r.end != nil && time.Since(r.end.Result.EndedAt) > keep || len(known) >= maxRemembered {
				delete(known, pid)
			}
		}
	}
	known[x.PID] = remembered{exec: x.ID, tag: x.Spec.Tag}
}

// ended remembers the end of a process: clients have been told of it, and it may be in no
// record yet.
func (p *processes) ended(x hutch.Exec) {
	end := *x.Result
	end.Stdout, end.Stderr = hutch.Output{}, hutch.Output{} // which may be megabytes, and nobody asks for here
	x.Result = &end
	p.mu.Lock()
	defer p.mu.Unlock()
	known := p.of[x.Sandbox]
	if r, ok := known[x.PID]; ok && r.exec == x.ID && r.end == nil {
		r.end = &x
		known[x.PID] = r
	}
}

// closeInput records that a process's input was closed, and reports whether it was before.
func (p *processes) closeInput(x hutch.Exec) (before bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	known := p.of[x.Sandbox]
	r, ok := known[x.PID]
	if !ok || r.exec != x.ID {
		return false
	}
	before, r.inputClosed = r.inputClosed, true
	known[x.PID] = r
	return before
}

// inputClosed reports whether a process's input is known to be closed.
func (p *processes) inputClosed(x hutch.Exec) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := p.of[x.Sandbox][x.PID]
	return r.exec == x.ID && r.inputClosed
}

// get finds what is remembered of a process, of one that runs rather than of one that has
// ended.
func (p *processes) get(sb hutch.SandboxID, s selector) (found remembered, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s.PID != nil {
		found, ok = p.of[sb][int(*s.PID)]
		return found, ok
	}
	for _, r := range p.of[sb] {
		if r.tag == *s.Tag && (!ok || r.end == nil) {
			found, ok = r, true
		}
	}
	return found, ok
}

// knownEnd reports whether a command that the records have running is known to have ended.
func (p *processes) knownEnd(x hutch.Exec) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := p.of[x.Sandbox][x.PID]
	return r.exec == x.ID && r.end != nil
}

// forget drops what is remembered of a sandbox.
func (p *processes) forget(sb hutch.SandboxID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.of, sb)
}

// find returns the command that a client names. One that has ended is found only if ended is
// set, and not for long.
func (a *API) find(ctx context.Context, s selector, ended bool) (hutch.Exec, error) {
	if s.PID == nil && (s.Tag == nil || *s.Tag == "") {
		return hutch.Exec{}, rpcError(connect.CodeInvalidArgument, "process is missing: name it by its pid or its tag")
	}
	sb := accountOf(ctx).sb
	if r, ok := a.processes.get(sb.ID, s); ok {
		x, err := a.latest(ctx, r)
		if err != nil || x.Result == nil {
			return x, err
		}
		if ended && time.Since(x.Result.EndedAt) < a.cfg.Retained {
			return x, nil
		}
	}
	// Unknown, or its pid is another's by now: the records know what runs.
	var found hutch.Exec
	err := a.running(ctx, func(x hutch.Exec) bool {
		if s.PID != nil && x.PID == int(*s.PID) || s.PID == nil && x.Spec.Tag == *s.Tag {
			found = x
		}
		return found.ID == ""
	})
	if err != nil {
		return found, err
	}
	if found.ID == "" {
		return found, rpcError(connect.CodeNotFound, s.missing())
	}
	a.processes.add(found, a.cfg.Retained)
	return found, nil
}

// latest is what is known of a process now.
func (a *API) latest(ctx context.Context, r remembered) (hutch.Exec, error) {
	if r.end != nil {
		return *r.end, nil
	}
	x, err := a.svc.Execs.Exec(ctx, accountOf(ctx).sb.Project, r.exec)
	if err == nil && x.Result != nil {
		a.processes.ended(x)
	}
	return x, err
}

func (s selector) missing() string {
	if s.PID != nil {
		return fmt.Sprintf("process with pid %d not found", *s.PID)
	}
	if s.Tag != nil {
		return fmt.Sprintf("process with tag %.64q not found", *s.Tag)
	}
	return "process not found"
}

func (a *API) updateProcess(ctx context.Context, m *updateProcess) (*empty, error) {
	x, err := a.find(ctx, m.Process, false)
	if err != nil {
		return nil, err
	}
	if m.PTY == nil {
		return &empty{}, nil
	}
	if x.Spec.Terminal == nil {
		return nil, rpcError(connect.CodeInternal, "the process has no terminal")
	}
	return &empty{}, a.svc.ExecControl.ResizeExec(ctx, x.Project, x.Sandbox, x.ID, *m.PTY.size())
}

func (a *API) sendInput(ctx context.Context, m *sendInput) (*empty, error) {
	x, err := a.find(ctx, m.Process, false)
	if err != nil {
		return nil, err
	}
	return &empty{}, a.write(ctx, x, m.Input)
}

func (a *API) streamInput(ctx context.Context, in *connect.ClientStream[streamInput]) error {
	var x hutch.Exec
	for in.Receive() {
		m := in.Msg()
		var err error
		switch {
		case m.Start != nil && x.ID == "":
			x, err = a.find(ctx, m.Start.Process, false)
		case m.Start != nil:
			err = rpcError(connect.CodeInvalidArgument, "the stream has begun: its process cannot be changed")
		case m.Data != nil && x.ID == "":
			err = rpcError(connect.CodeInvalidArgument, "the stream must begin with the process that the input is for")
		case m.Data != nil:
			err = a.write(ctx, x, m.Data.Input)
		}
		if err != nil {
			return err
		}
	}
	return in.Err()
}

func (a *API) sendSignal(ctx context.Context, m *sendSignal) (*empty, error) {
	x, err := a.find(ctx, m.Process, false)
	if err != nil {
		return nil, err
	}
	switch m.Signal {
	case sigKill:
		// The whole tree, and only once nothing of it is left: who asks next whether the
		// process lives must be told that it does not.
		var now time.Duration
		_, err = a.svc.ExecControl.CancelExec(ctx, x.Project, x.Sandbox, x.ID, &now)
	case sigTerm:
		err = a.svc.ExecControl.SignalExec(ctx, x.Project, x.Sandbox, x.ID, "TERM", false)
	default:
		err = rpcError(connect.CodeInvalidArgument, fmt.Sprintf("%.40q cannot be sent: use %s or %s", string(m.Signal), sigTerm, sigKill))
	}
	return &empty{}, err
}
