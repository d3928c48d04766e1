package process

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/guest/procfs"
)

const (
	// killTime bounds how long KILL is repeated. What is still there after it is stuck in
	// the kernel, and only the end of the sandbox ends it.
	killTime = 10 * time.Second
	// hangUpTime is how long a terminal's programs have to end by themselves after its
	// hang-up before they get TERM too.
	hangUpTime = 200 * time.Millisecond
	// pollMin and pollMax are how often a dying tree is looked at: soon at first, since most
	// programs end within a few milliseconds of TERM.
	pollMin = 2 * time.Millisecond
	pollMax = 25 * time.Millisecond
)

// StopOptions say how a command is stopped.
type StopOptions struct {
	Reason hutch.ExecEnd // becomes the result's end if it was running
	Detail string
	Grace  time.Duration // between TERM and KILL; 0 = KILL at once; negative = the command's own
}

// Stop ends a command with its tree and returns once it has ended. The first reason
// stays; a later call with less grace hastens the stop under way. Stopping one that has
// ended kills what it left running. It may be called any number of times, from anywhere.
func (e *Exec) Stop(ctx context.Context, o StopOptions) error {
	if o.Grace < 0 {
		o.Grace = e.spec.Grace
	}
	e.requestStop(o)
	if err := e.Wait(ctx); err != nil {
		return err
	}
	return e.killLeft()
}

// requestStop notes the first reason and the earliest time of KILL.
func (e *Exec) requestStop(o StopOptions) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.stdout.StopHolding() // what is being stopped waits for nobody
	e.stderr.StopHolding()
	killAt := time.Now().Add(o.Grace)
	if e.stop == nil {
		e.stop, e.killAt = &o, killAt
		close(e.stopping)
	} else if killAt.Before(e.killAt) {
		e.killAt = killAt
	}
}

// killLeft kills what an ended command left running, by the stop that was asked for last.
func (e *Exec) killLeft() error {
	e.stopMu.Lock()
	defer e.stopMu.Unlock()
	if len(e.members()) == 0 {
		e.removeGroup()
		return nil
	}
	killed, escalated, left := e.killTreeLocked()
	e.mu.Lock()
	r := *e.result
	r.Killed = append(slices.Clip(r.Killed), killed...)
	r.Detail = capped(&r.Killed, r.Detail)
	r.Escalated = r.Escalated || escalated
	e.result = &r
	e.mu.Unlock()
	e.removeGroup()
	if left > 0 {
		return hutch.Errorf(hutch.CodeGuestUnresponsive, "%d processes of the command could not be killed: kill the sandbox", left)
	}
	return nil
}

func (e *Exec) killTree() (killed []hutch.KilledProcess, escalated bool, left int) {
	e.stopMu.Lock()
	defer e.stopMu.Unlock()
	return e.killTreeLocked()
}

// killTreeLocked sends TERM to every process of the tree (after HUP, if it has a
// terminal), waits for the grace, and then sends KILL until nothing of it is alive. left is what it could not kill. It holds
// stopMu, and no other lock.
func (e *Exec) killTreeLocked() (killed []hutch.KilledProcess, escalated bool, left int) {
	list := map[int]hutch.KilledProcess{}
	if time.Now().Before(e.killTime()) {
		if e.spec.Terminal != nil {
			// The terminal hangs up, which shells tell their jobs and take as their end,
			// while they ignore TERM.
			e.hint(list, unix.SIGHUP)
			hungUp := time.Now().Add(hangUpTime)
			e.awaitTree(func() bool { return time.Now().Before(hungUp) && time.Now().Before(e.killTime()) })
		}
		e.hint(list, unix.SIGTERM)
		e.awaitTree(func() bool { return time.Now().Before(e.killTime()) })
		escalated = len(e.members()) > 0
	}
	deadline := time.Now().Add(killTime)
	for wait := pollMin; ; wait = min(2*wait, pollMax) {
		ps := e.members()
		left = len(ps)
		if left == 0 || !time.Now().Before(deadline) {
			break
		}
		for _, p := range ps {
			list[p.PID] = hutch.KilledProcess{PID: p.PID, Command: p.Comm, Signal: "KILL"}
		}
		e.killGroup()
		for _, p := range ps {
			e.kill(p, unix.SIGKILL)
		}
		pause(wait)
	}
	for _, k := range list {
		killed = append(killed, k)
	}
	sortKilled(killed)
	return killed, escalated, left
}

func sortKilled(list []hutch.KilledProcess) {
	slices.SortFunc(list, func(a, b hutch.KilledProcess) int { return cmp.Compare(a.PID, b.PID) })
}

// hint sends every process of the tree a signal that asks it to end.
func (e *Exec) hint(list map[int]hutch.KilledProcess, sig syscall.Signal) {
	for _, p := range e.members() {
		list[p.PID] = hutch.KilledProcess{PID: p.PID, Command: p.Comm, Signal: signalName(sig)}
		e.kill(p, sig)
		e.kill(p, unix.SIGCONT) // one that is stopped does not see it until it goes on
	}
}

// awaitTree waits until nothing of the tree is alive, or as long as more says so.
func (e *Exec) awaitTree(more func() bool) {
	for wait := pollMin; more(); wait = min(2*wait, pollMax) {
		if !e.anySeenAlive() && len(e.members()) == 0 {
			return
		}
		pause(wait)
	}
}

// pause lets the processes die. There is nothing to wait on: those of a tree are not the
// agent's children, for the most part, and not every kernel tells when a group is empty.
func pause(d time.Duration) { <-time.After(d) }

func (e *Exec) killTime() time.Time {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.killAt
}

func (e *Exec) killGroup() {
	e.mu.Lock()
	g := e.group
	e.mu.Unlock()
	if g != nil {
		_ = g.Kill() // missing on some kernels: each process is killed by itself as well
	}
}

// kill sends sig to a process of the tree. Its pid may have been another's for a moment
// only if it ended and the numbers went all the way around since it was seen.
func (e *Exec) kill(p procfs.Process, sig syscall.Signal) {
	if p.PID == e.pid {
		_ = e.table.reaper.signal(p.PID, sig)
		return
	}
	_ = unix.Kill(p.PID, sig) // gone already is as good
}

// Signal sends a signal by name to the leader, or to the whole tree.
func (e *Exec) Signal(name string, tree bool) error {
	sig, ok := signalNumber(name)
	if !ok {
		return hutch.FieldErrorf("signal", "%.20q is not the name of a signal", name)
	}
	if tree || e.session != nil && !e.ended() { // a command in a session has no leader
		for _, p := range e.members() {
			e.kill(p, sig)
		}
		return nil
	}
	if e.pid == 0 || e.table.reaper.signal(e.pid, sig) != nil {
		return hutch.Errorf(hutch.CodeInvalidState, "command %s has ended", e.id)
	}
	return nil
}

func (e *Exec) ended() bool {
	select {
	case <-e.done:
		return true
	default:
		return false
	}
}

// signalNumber reads "INT" or "SIGINT", in either case.
func signalNumber(name string) (syscall.Signal, bool) {
	name = strings.ToUpper(name)
	if !strings.HasPrefix(name, "SIG") {
		name = "SIG" + name
	}
	sig := unix.SignalNum(name)
	return sig, sig != 0
}

// signalName is the short name of a signal, "KILL", or its number, which is all that a
// real-time one has.
func signalName(sig syscall.Signal) string {
	if name := unix.SignalName(sig); name != "" {
		return strings.TrimPrefix(name, "SIG")
	}
	return strconv.Itoa(int(sig))
}
