package process

import (
	"fmt"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/guest/cgroup"
	"hutch.dev/hutch/internal/guest/output"
)

// diskLow is the free space below which a disk counts as full: less than a page cache
// write or two of a usual program.
const diskLow = 1 << 20

// maxListed is how many processes a result names; the rest is counted in Detail.
const maxListed = 1000

// sampleMin and sampleMax are how often the memory of a running command is looked at: soon,
// then ever more rarely, since a look is work for the kernel, and a long command that
// grows shows it for long.
const (
	sampleMin = 100 * time.Millisecond
	sampleMax = 10 * time.Second
)

// supervise sees a started command to its end. It is the one goroutine that sets the
// result.
func (e *Exec) supervise() {
	x, stopped := e.watch()
	r := &hutch.ExecResult{}
	if stopped {
		killed, escalated, left := e.killTree()
		if x == nil {
			x = e.await(left)
		}
		r.Killed, r.Escalated = killed, escalated
		e.mu.Lock()
		r.End, r.Detail = e.stop.Reason, e.stop.Detail
		e.mu.Unlock()
		if left > 0 {
			r.Detail = join(r.Detail, fmt.Sprintf("%d processes could not be killed", left))
		}
		r.ExitCode, r.Signal = stoppedCode(r.End, *x)
	} else {
		r.End, r.ExitCode, r.Signal = exitCode(x.status)
	}
	if e.stdin != nil {
		e.stdin.close()
	}
	e.drain()
	if !stopped {
		for _, p := range e.members() {
			r.LeftRunning = append(r.LeftRunning, hutch.KilledProcess{PID: p.PID, Command: p.Comm})
		}
	}
	r.Detail = capped(&r.Killed, r.Detail)
	r.Detail = capped(&r.LeftRunning, r.Detail)
	e.account(r, *x)
	e.finish(r)
}

// watch waits for the leader's exit (x), or for a reason to stop the tree: a limit, or a
// call of Stop. Both can have happened; the exit then counts.
func (e *Exec) watch() (x *exit, stopped bool) {
	var timeout, quiet <-chan time.Time
	if e.spec.Timeout > 0 {
		t := time.NewTimer(e.spec.Timeout)
		defer t.Stop()
		timeout = t.C
	}
	every := sampleMin
	sample := time.NewTimer(every)
	defer sample.Stop()
	silence := time.NewTimer(e.spec.NoOutputTimeout)
	defer silence.Stop()
	if e.spec.NoOutputTimeout > 0 {
		quiet = silence.C
	}
	for {
		select {
		case got := <-e.exited:
			return &got, false
		case <-e.stopping:
		case <-sample.C:
			e.sampleMemory()
			every = min(2*every, sampleMax)
			sample.Reset(every)
			continue
		case <-timeout:
			e.requestStop(StopOptions{
				Reason: hutch.ExecTimeout, Grace: e.spec.Grace,
				Detail: fmt.Sprintf("over its timeout of %s", e.spec.Timeout),
			})
		case <-quiet:
			if rest := e.silentFor(e.spec.NoOutputTimeout); rest > 0 {
				silence.Reset(rest)
				continue
			}
			e.requestStop(StopOptions{
				Reason: hutch.ExecNoOutput, Grace: e.spec.Grace,
				Detail: fmt.Sprintf("wrote nothing for %s", e.spec.NoOutputTimeout),
			})
		}
		select {
		case got := <-e.exited: // it ended by itself just before
			return &got, false
		default:
			return nil, true
		}
	}
}

// sampleMemory notes the memory of the whole tree, on a kernel that keeps no peak.
func (e *Exec) sampleMemory() {
	group := e.measured()
	e.mu.Lock()
	defer e.mu.Unlock()
	if group != nil {
		e.peak = max(e.peak, group.Memory())
	}
}

// measured is the control group whose use is the command's: its own, or that of its shell
// session, where nothing else runs but what others have left. Nil: none.
func (e *Exec) measured() *cgroup.Group {
	if e.session != nil {
		return e.session.host.measured()
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.group
}

// await waits for the exit of a leader whose tree was killed. One that cannot be killed
// is given up: the sandbox is then ended from outside.
func (e *Exec) await(left int) *exit {
	limit := time.Second
	if left == 0 {
		limit = killTime
	}
	t := time.NewTimer(limit)
	defer t.Stop()
	select {
	case x := <-e.exited:
		return &x
	case <-t.C:
		return &exit{status: syscall.WaitStatus(unix.SIGKILL), at: time.Now()}
	}
}

// silentFor is how much longer the command must be silent to have been so for d. One that
// is made to wait for a reader cannot write.
func (e *Exec) silentFor(d time.Duration) time.Duration {
	if e.stdout.Holding() || e.stderr.Holding() {
		return d
	}
	return d - time.Duration(e.clock()-e.last.Load())
}

func (e *Exec) drain() {
	for _, p := range e.pumps {
		p.drain()
	}
	for _, p := range e.pumps {
		for !p.awaitDrained() {
		}
	}
}

// awaitDrained waits for the end of the second phase, or for a reader whom that waits for to
// have moved. One who does not for holdTime is waited for no more.
func (p *pump) awaitDrained() bool {
	moved := p.stream.Moved()
	still := time.NewTimer(holdTime)
	defer still.Stop()
	select {
	case <-p.drained:
		return true
	case <-moved:
	case <-still.C:
		p.stream.StopHolding()
	}
	return false
}

// account adds what the command used and which limits it met.
func (e *Exec) account(r *hutch.ExecResult, x exit) {
	r.CPU, r.PeakMemory = x.usage.cpu, x.usage.memory
	var refused int64
	group := e.measured()
	e.mu.Lock()
	r.PeakMemory = max(r.PeakMemory, e.peak)
	e.mu.Unlock()
	if group != nil {
		u := group.Usage()
		r.CPU = max(r.CPU, u.CPU-e.before.CPU)
		e.mu.Lock()
		e.all = max(e.table.cfg.Cgroups.CPU()-e.allBefore, r.CPU)
		e.mu.Unlock()
		refused = max(u.Refused-e.before.Refused, e.table.cfg.Cgroups.Refused()-e.baseline)
		if e.session == nil { // else the peak can be another's
			r.PeakMemory = max(r.PeakMemory, u.Memory)
		}
	}
	if e.stdout.DiskFull() || e.stderr.DiskFull() || e.diskLow() {
		r.LimitsHit = append(r.LimitsHit, "disk")
		if mb := e.settings.DiskMB; mb > 0 {
			r.Detail = join(r.Detail, fmt.Sprintf("the sandbox's disk, of %d MiB at most, was full when it ended", mb))
		}
	}
	if refused > 0 {
		r.LimitsHit = append(r.LimitsHit, "pids")
		if r.End == hutch.ExecExit && r.ExitCode != 0 {
			r.End = hutch.ExecPidsLimit
			r.Detail = join(r.Detail, fmt.Sprintf("failed while the sandbox's limit of %d processes refused it more", e.settings.Limits.Pids))
		}
	}
}

// diskLow reports whether a disk that commands write to is full: the root, /tmp and the
// command's own directory can be different ones.
func (e *Exec) diskLow() bool {
	for _, p := range []string{"/", "/tmp", e.cwd} {
		if free, ok := output.Free(p); ok && free < diskLow {
			return true
		}
	}
	return false
}

// finish sets the result. The streams take no more from here on.
func (e *Exec) finish(r *hutch.ExecResult) {
	r.StartedAt = e.started
	r.EndedAt = e.started.Add(time.Since(e.started)) // the wall clock may have been set meanwhile
	if len(r.LeftRunning) == 0 {
		e.removeGroup()
	}
	e.mu.Lock()
	e.result = r
	e.mu.Unlock()
	e.stdout.End()
	e.stderr.End()
	close(e.done) // last: who sees it finds everything
}

// exitCode is how a leader that nobody stopped ended, in a shell's terms.
func exitCode(w syscall.WaitStatus) (hutch.ExecEnd, int, string) {
	if w.Signaled() {
		return hutch.ExecSignal, 128 + int(w.Signal()), signalName(w.Signal())
	}
	return hutch.ExecExit, w.ExitStatus(), ""
}

// stoppedCode is the exit code of a command that was stopped: 124 for a time limit, else
// 128 and the signal that ended its leader, which is TERM for one that took the hint.
func stoppedCode(end hutch.ExecEnd, x exit) (int, string) {
	sig := unix.SIGTERM
	if x.status.Signaled() {
		sig = x.status.Signal()
	}
	if end == hutch.ExecTimeout || end == hutch.ExecNoOutput {
		return hutch.ExitTimeout, signalName(sig)
	}
	return 128 + int(sig), signalName(sig)
}

// capped bounds a list of processes and says in the detail what is not on it.
func capped(list *[]hutch.KilledProcess, detail string) string {
	if n := len(*list); n > maxListed {
		*list = (*list)[:maxListed]
		return join(detail, fmt.Sprintf("%d more processes are not listed", n-maxListed))
	}
	return detail
}

func join(a, b string) string {
	if a == "" {
		return b
	}
	return a + "; " + b
}
