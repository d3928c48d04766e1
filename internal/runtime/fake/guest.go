package fake

import (
	"bytes"
	"encoding/json"
	"maps"
	"slices"
	"sync"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/guestapi"
)

// Guest is the scripted guest of one sandbox. Its exported methods inject failures.
type Guest struct {
	m *machine

	mu         sync.Mutex
	changed    chan struct{} // closed and replaced whenever something changes
	frozen     bool          // by Pause
	silent     bool          // by Silence
	garbled    bool          // by Garble
	mute       bool          // by Mute
	dead       bool
	identified bool
	restored   bool // and no hello since
	hello      guestapi.Hello
	execs      map[hutch.ExecID]*execution
	files      map[string][]byte
	lastPID    int
	steps      int // what it did, for its CPU time

	ran, waited time.Duration // by Turns
	burnt       time.Duration // by Burn
}

// execution is one command. Its exported fields are what a snapshot keeps.
type execution struct {
	ID          hutch.ExecID
	Spec        hutch.ExecSpec
	PID         int
	StartedAt   time.Time
	Script      []step
	PC          int
	Code        int // of the last step
	Wake        time.Time
	Ticks       int
	Stdout      []byte
	Stderr      []byte
	Stdin       []byte
	StdinClosed bool
	Copied      int // bytes of stdin that cat has copied
	LastOutput  time.Time
	Stop        *stopping
	Children    []hutch.KilledProcess
	Result      *hutch.ExecResult
	Steps       int           // what it did
	Before      int           // what all had done when it began
	All         time.Duration // see guestapi.ExecStatus.AllCPU
}

// guestStep is what a guest says that a step took: three times what the host does, as a guest
// that had to wait for its CPU.
const guestStep = 3 * time.Millisecond

// stopping is a stop under way: TERM has been sent.
type stopping struct {
	Reason hutch.ExecEnd
	Detail string
	KillAt time.Time
}

// snapshot is what a checkpoint keeps of a guest.
type snapshot struct {
	Hello   guestapi.Hello
	Execs   []*execution
	Files   map[string][]byte
	LastPID int
}

func newGuest(m *machine, from *snapshot) *Guest {
	g := &Guest{
		m: m, changed: make(chan struct{}), lastPID: 1,
		execs: map[hutch.ExecID]*execution{}, files: map[string][]byte{},
	}
	if from != nil {
		g.restored, g.hello, g.lastPID = true, from.Hello, from.LastPID
		maps.Copy(g.files, from.Files)
		for _, e := range from.Execs {
			g.execs[e.ID] = e
		}
	}
	return g
}

// save returns the guest's state as a snapshot keeps it.
func (g *Guest) save() ([]byte, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return json.Marshal(snapshot{Hello: g.hello, Execs: g.allLocked(), Files: g.files, LastPID: g.lastPID})
}

func (g *Guest) freeze(on bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.frozen = on
	g.changeLocked()
}

func (g *Guest) die() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.dead = true
	g.changeLocked()
}

// thaw waits while the guest stands still.
func (g *Guest) thaw() {
	for {
		g.mu.Lock()
		if (!g.frozen && !g.silent) || g.dead {
			g.mu.Unlock()
			return
		}
		changed := g.changed
		g.mu.Unlock()
		<-changed
	}
}

// usage says what CPU time the guest took, a millisecond for each step of a script, what it
// holds in memory, and what its files take.
func (g *Guest) usage() (cpu time.Duration, held, files int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, e := range g.execs {
		held += int64(len(e.Stdout) + len(e.Stderr) + len(e.Stdin))
	}
	for _, b := range g.files {
		files += int64(len(b))
	}
	return time.Duration(g.steps)*time.Millisecond + g.burnt, held, files
}

func (g *Guest) changeLocked() {
	close(g.changed)
	g.changed = make(chan struct{})
}

func (g *Guest) pidLocked() int {
	g.lastPID++
	return g.lastPID
}

// allLocked is every command, the oldest first.
func (g *Guest) allLocked() []*execution {
	return slices.SortedFunc(maps.Values(g.execs), func(a, b *execution) int { return a.PID - b.PID })
}

// resumeExecs lets the commands of a snapshot go on.
func (g *Guest) resumeExecs() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, e := range g.execs {
		if e.Result == nil {
			g.m.host.wait.Go(func() { g.run(e) })
		}
	}
}

// startLocked starts a command.
func (g *Guest) startLocked(s guestapi.StartExec) *execution {
	now := time.Now()
	e := &execution{ID: s.ID, Spec: s.Spec, PID: g.pidLocked(), StartedAt: now, LastOutput: now, Script: script(s.Spec), Before: g.steps}
	g.execs[s.ID] = e
	g.changeLocked()
	g.m.host.wait.Go(func() { g.run(e) })
	return e
}

// run lets a command go on until it ends or the machine does.
func (g *Guest) run(e *execution) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		g.thaw()
		g.mu.Lock()
		if g.dead {
			g.mu.Unlock()
			return
		}
		if g.frozen || g.silent {
			g.mu.Unlock()
			continue
		}
		now := time.Now()
		next := g.advanceLocked(e, now)
		over, changed := e.Result != nil, g.changed
		g.mu.Unlock()
		if over {
			return
		}
		var fires <-chan time.Time
		if !next.IsZero() {
			timer.Reset(next.Sub(now))
			fires = timer.C
		}
		select {
		case <-changed:
		case <-fires:
		}
	}
}

// advanceLocked lets e go as far as it goes now, and returns when to look again; the
// zero time is when something changes.
func (g *Guest) advanceLocked(e *execution, now time.Time) (next time.Time) {
	for e.Result == nil {
		if next = g.limitsLocked(e, now); e.Result != nil {
			return next
		}
		if e.PC >= len(e.Script) {
			g.endLocked(e, hutch.ExecExit, e.Code, "", now)
			return next
		}
		if e.Script[e.PC].And && e.Code != 0 {
			e.PC++
			continue
		}
		g.steps++
		e.Steps++
		o := g.doLocked(e, now)
		if o.wait {
			return earlier(next, o.till)
		}
		e.PC, e.Code, e.Wake = e.PC+1, o.code, time.Time{}
	}
	return next
}

// limitsLocked ends what is over one of its limits, and returns when to look again.
func (g *Guest) limitsLocked(e *execution, now time.Time) (next time.Time) {
	if e.Stop == nil && e.Spec.Timeout > 0 {
		at := e.StartedAt.Add(e.Spec.Timeout)
		if next = at; !now.Before(at) {
			g.stopLocked(e, guestapi.Stop{Reason: hutch.ExecTimeout, Detail: "over its timeout of " + e.Spec.Timeout.String(), Grace: -1}, now)
		}
	}
	if e.Stop == nil && e.Result == nil && e.Spec.NoOutputTimeout > 0 {
		at := e.LastOutput.Add(e.Spec.NoOutputTimeout)
		if next = earlier(next, at); !now.Before(at) {
			g.stopLocked(e, guestapi.Stop{Reason: hutch.ExecNoOutput, Detail: "silent for " + e.Spec.NoOutputTimeout.String(), Grace: -1}, now)
		}
	}
	if e.Stop != nil && e.Result == nil {
		if next = e.Stop.KillAt; !now.Before(next) {
			g.killLocked(e, "KILL", now)
		}
	}
	return next
}

// stopLocked begins to stop e: TERM, which ends all but "hang", and KILL later.
func (g *Guest) stopLocked(e *execution, s guestapi.Stop, now time.Time) {
	grace := time.Duration(s.Grace)
	if grace < 0 {
		if grace = e.Spec.Grace; grace == 0 {
			grace = hutch.DefaultGrace
		}
	}
	if e.Stop == nil {
		e.Stop = &stopping{Reason: s.Reason, Detail: s.Detail, KillAt: now.Add(grace)}
	}
	if at := now.Add(grace); at.Before(e.Stop.KillAt) {
		e.Stop.KillAt = at
	}
	switch {
	case grace == 0:
		g.killLocked(e, "KILL", now)
	case !e.ignoresTerm():
		g.killLocked(e, "TERM", now)
	}
	g.changeLocked()
}

func (e *execution) ignoresTerm() bool {
	return e.PC < len(e.Script) && e.Script[e.PC].Words[0] == "hang"
}

// killLocked ends a command that is being stopped.
func (g *Guest) killLocked(e *execution, signal string, now time.Time) {
	code := 128 + signals[signal]
	if e.Stop.Reason == hutch.ExecTimeout || e.Stop.Reason == hutch.ExecNoOutput {
		code = hutch.ExitTimeout
	}
	g.endLocked(e, e.Stop.Reason, code, signal, now)
	r := e.Result
	r.Detail, r.Escalated = e.Stop.Detail, signal == "KILL" && e.ignoresTerm()
	r.LeftRunning = nil
	r.Killed = append(r.Killed, hutch.KilledProcess{PID: e.PID, Command: e.command(), Signal: signal})
	for _, c := range e.Children {
		c.Signal = signal
		r.Killed = append(r.Killed, c)
	}
	e.Children = nil
}

func (e *execution) command() string {
	if e.PC < len(e.Script) {
		return e.Script[e.PC].Words[0]
	}
	return "sh"
}

// endLocked ends a command.
func (g *Guest) endLocked(e *execution, end hutch.ExecEnd, code int, signal string, now time.Time) {
	if e.Result != nil {
		return
	}
	e.Result = &hutch.ExecResult{
		End: end, ExitCode: code, Signal: signal,
		Stdout: e.output(e.Stdout, "stdout"), Stderr: e.output(e.Stderr, "stderr"),
		LeftRunning: slices.Clone(e.Children),
		StartedAt:   e.StartedAt, EndedAt: now,
		CPU: time.Duration(max(1, e.Steps)) * guestStep, PeakMemory: 1 << 20,
	}
	e.All = max(time.Duration(g.steps-e.Before)*guestStep, e.Result.CPU)
	g.changeLocked()
}

// budget is a command's output budget a stream.
func (e *execution) budget() int {
	if e.Spec.MaxOutputBytes > 0 {
		return e.Spec.MaxOutputBytes
	}
	return hutch.DefaultOutputBytes
}

// output cuts a stream to the budget.
func (e *execution) output(b []byte, name string) hutch.Output {
	budget := e.budget()
	if len(b) <= budget {
		return hutch.Output{Head: bytes.Clone(b), Total: int64(len(b))}
	}
	head := budget / 4
	return hutch.Output{
		Head:    bytes.Clone(b[:head]),
		Tail:    bytes.Clone(b[len(b)-(budget-head):]),
		Total:   int64(len(b)),
		Dropped: int64(len(b) - budget),
		Path:    "/var/log/hutch/" + string(e.ID) + "." + name,
	}
}

// status is a command as a call sees it.
func (e *execution) status() guestapi.ExecStatus {
	return guestapi.ExecStatus{
		ID: e.ID, PID: e.PID, Running: e.Result == nil, StartedAt: e.StartedAt.UnixNano(),
		Stdout: int64(len(e.Stdout)), Stderr: int64(len(e.Stderr)), Result: e.Result, AllCPU: e.All,
	}
}

// earlier is the earlier of two times, of which the zero time is never.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || (!b.IsZero() && b.Before(a)) {
		return b
	}
	return a
}

// signals are the signals that a guest knows, by name.
var signals = map[string]int{"HUP": 1, "INT": 2, "QUIT": 3, "KILL": 9, "USR1": 10, "USR2": 12, "TERM": 15}
