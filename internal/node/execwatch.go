package node

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/guestapi"
	"hutch.dev/hutch/internal/guestclient"
	"hutch.dev/hutch/internal/x/backoff"
	"hutch.dev/hutch/internal/x/failpoint"
)

const (
	// unhurt is how long a command that ended well must have run to be asked about
	// out-of-memory kills: the question takes some 0.2 ms, which those that are shorter
	// would notice, and to use up all memory takes longer.
	unhurt = 50 * time.Millisecond
	// adoptTimeout bounds the question to a guest which commands it knows.
	adoptTimeout = 30 * time.Second
	// maxRefused is how many commands of a guest may be refused before it is not listened to.
	maxRefused = 16
	// headKept is how much of each stream's head is kept in case the sandbox takes the rest.
	headKept = 64 << 10
)

// retryPolicy spaces the tries of what must succeed in the end: to follow a command whose
// guest does not answer, to report an end to records that can't be written, to kill.
var retryPolicy = backoff.Policy{Base: 100 * time.Millisecond, Cap: 2 * time.Second}

// execWatch is the watch on one command.
type execWatch struct {
	n        *Node
	b        *box
	id       hutch.ExecID
	oomKills int64         // of the sandbox when the command began
	cpu      time.Duration // the sandbox's when it began, or unknown

	ended chan struct{} // closed once the command's result is known, or the watch is over
	done  chan struct{} // closed once the watch is over

	spec  hutch.ExecSpec // under box.mu: zero until the watch is armed
	armed bool           // under box.mu

	stdout, stderr bytes.Buffer // the live head of its output, for when the sandbox takes the rest with it
}

// begun is a command as it is when its watch begins.
type begun struct {
	guestapi.ExecStatus
	follow   *guestclient.Follow // its output, if it is being followed; the watch's then
	oomKills int64               // how many of the sandbox's processes the kernel had ended when it began
	cpu      time.Duration       // the sandbox's when it began, or unknown
}

// watchExec follows a command to its end in a goroutine, if that is not being done. It
// returns nil if the sandbox has ended.
func (n *Node) watchExec(b *box, st begun) *execWatch {
	b.mu.Lock()
	defer b.mu.Unlock()
	if w := b.watched[st.ID]; w != nil || b.closed {
		if st.follow != nil {
			_ = st.follow.Close()
		}
		if b.closed {
			return nil
		}
		return w
	}
	if len(b.watched) == 0 {
		b.shares.begin(st.cpu)
	}
	w := &execWatch{n: n, b: b, id: st.ID, oomKills: st.oomKills, cpu: st.cpu, ended: make(chan struct{}), done: make(chan struct{})}
	b.watched[st.ID] = w
	n.wg.Go(func() {
		defer close(w.done)
		told := w.run(st)
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(b.watched, st.ID)
		b.untold = b.untold || !told
	})
	return w
}

// arm tells the watch what was asked of the command, so that it can hold its timeout if
// the guest does not.
func (w *execWatch) arm(spec hutch.ExecSpec, began time.Time) {
	w.b.mu.Lock()
	defer w.b.mu.Unlock()
	if w.armed {
		return
	}
	w.spec, w.armed = spec, true
	if spec.Timeout <= 0 {
		return
	}
	over := spec.Timeout + spec.Grace + w.n.cfg.StopSlack
	w.n.wg.Go(func() { w.backstop(max(over-time.Since(began), w.n.cfg.StopSlack)) })
}

// awaitExecs returns once every watch on a command of this box has ended, and no other
// can begin. It returns false if the node stopped before all of them were reported.
func (b *box) awaitExecs() bool {
	b.mu.Lock()
	b.closed = true
	all := slices.Collect(maps.Values(b.watched))
	b.mu.Unlock()
	for _, w := range all {
		<-w.done
	}
	return !b.isUntold()
}

func (b *box) isUntold() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.untold
}

// adoptExecs watches the commands that the guest knows and this process does not, as
// after a restart.
func (n *Node) adoptExecs(b *box) {
	if b.isPaused() {
		return // done when it is resumed
	}
	ctx, cancel := context.WithTimeout(n.work, adoptTimeout)
	defer cancel()
	defer b.await(eagerAfter, func(error) {})() // one that is silent is found out now
	var l guestapi.ExecList
	err := b.ask(ctx, func(ctx context.Context) (err error) {
		l, err = b.guest.Execs(ctx)
		return err
	})
	if err != nil {
		if n.work.Err() == nil {
			n.log.Warn("the guest did not say which commands it runs", "sandbox", b.id, "op", "adopt", "error", err)
		}
		return
	}
	refused := 0
	for _, st := range l.Execs {
		if err := n.reports.ExecFound(ctx, b.id, st.ID, st.PID, time.Unix(0, st.StartedAt)); err != nil {
			n.log.Error("a command that was found is not on record before its end", "sandbox", b.id, "exec", st.ID, "op", "adopt", "error", err)
			if errors.Is(err, hutch.ErrNotFound) {
				if refused++; refused >= maxRefused {
					return // a guest that goes on like this is not worth the questions
				}
				continue
			}
		}
		st.Result = nil // those in a list are without output: the stream has the whole
		n.watchExec(b, begun{ExecStatus: st, oomKills: b.oomKillCount(), cpu: unknown})
	}
}

// run follows the command to its end and reports it. It returns false if the node stops
// before that is done: the command is told of again after the restart.
func (w *execWatch) run(st begun) bool {
	res, ok := w.result(w.n.work, st)
	close(w.ended)
	if !ok {
		return false
	}
	w.nameOOM(&res)
	if !w.report(res) {
		return false
	}
	failpoint.At(failpoint.ExecReported)
	if res.End != hutch.ExecSandboxGone {
		// The guest forgets at its leisure: what it keeps is bounded, and a failure here
		// only means that the end is reported once more after a restart.
		_ = w.n.call(w.n.work, func(ctx context.Context) error { return w.b.guest.Delete(ctx, w.id) })
	}
	return true
}

// report tells of the command's end until it is on record, or the node stops.
func (w *execWatch) report(res hutch.ExecResult) bool {
	for tries := 0; ; tries++ {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(w.n.work), adoptTimeout)
		err := w.n.reports.ExecEnded(ctx, w.b.id, w.id, res)
		cancel()
		if err == nil {
			return true
		}
		if errors.Is(err, hutch.ErrNotFound) {
			w.n.log.Error("the end of a command whose sandbox is not on record", "sandbox", w.b.id, "exec", w.id, "op", "report", "error", err)
			return true
		}
		if tries == 0 {
			w.n.log.Error("the end of a command could not be recorded; it will be told of again", "sandbox", w.b.id, "exec", w.id, "op", "report", "error", err)
		}
		if backoff.Sleep(w.n.work, retryPolicy.Delay(tries, rand.Float64)) != nil {
			return false
		}
	}
}

// result waits for the command's end. It returns false if the node stops first.
func (w *execWatch) result(ctx context.Context, start begun) (hutch.ExecResult, bool) {
	st, f, tries := start.ExecStatus, start.follow, 0
	for {
		if st.Result != nil {
			r := *st.Result
			r.CPU = w.b.shareCPU(st, w.cpu)
			return r, true
		}
		next, err := w.follow(ctx, f)
		f = nil
		switch {
		case err == nil:
			st, tries = next, 0
			continue
		case errors.Is(err, hutch.ErrNotFound):
			r := hutch.EndedUnder("", "", time.Unix(0, st.StartedAt))
			r.Detail = "the sandbox's agent does not know this command any more"
			return w.lost(r), true
		}
		select {
		case <-w.b.gone:
			return w.lost(w.b.endedUnder(st)), true
		case <-w.n.work.Done():
			return hutch.ExecResult{}, false
		case <-time.After(retryPolicy.Delay(tries, rand.Float64)):
			tries++
		}
	}
}

// watching is what a watch follows of a command, from the offsets that it has got to.
func watching(stdout, stderr, budget int) guestclient.FollowOptions {
	return guestclient.FollowOptions{Stdout: int64(stdout), Stderr: int64(stderr), Budgeted: true, Budget: budget}
}

// follow reads the command's stream once, up to its end or the stream's: f, or if that is nil a
// new one.
func (w *execWatch) follow(ctx context.Context, f *guestclient.Follow) (_ guestapi.ExecStatus, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() { // a dead sandbox's socket may stay silent: do not wait for it
		select {
		case <-w.b.gone:
			cancel()
		case <-ctx.Done():
		}
	}()
	if f == nil {
		if f, err = w.b.follow(ctx, w.id, watching(w.stdout.Len(), w.stderr.Len(), w.budget())); err != nil {
			return guestapi.ExecStatus{}, err
		}
	}
	defer func() { _ = f.Close() }()
	for {
		fr, err := f.Next(ctx)
		if err != nil {
			return guestapi.ExecStatus{}, err
		}
		w.b.hear()
		switch fr.Type {
		case guestapi.FrameEnd:
			return f.Status(), nil
		case guestapi.FrameStdout:
			w.keep(&w.stdout, fr)
		case guestapi.FrameStderr:
			w.keep(&w.stderr, fr)
		default: // what lies past the head is in the result
		}
	}
}

// budget is what the command's result may hold of each stream. One of which nothing is known
// yet is asked again when it is.
func (w *execWatch) budget() int {
	w.b.mu.Lock()
	defer w.b.mu.Unlock()
	return budgetIn(w.spec)
}

func budgetIn(spec hutch.ExecSpec) int { return cmp.Or(spec.MaxOutputBytes, hutch.DefaultOutputBytes) }

// keep adds to a head what continues it, up to a quarter of the budget.
func (w *execWatch) keep(buf *bytes.Buffer, fr guestapi.Frame) {
	room := min(w.budget()/4, headKept) - buf.Len()
	if fr.Offset != int64(buf.Len()) || room <= 0 {
		return
	}
	buf.Write(fr.Payload[:min(room, len(fr.Payload))])
}

// lost is the result of a command whose sandbox took its real one with it, with what was seen
// of its output.
func (w *execWatch) lost(r hutch.ExecResult) hutch.ExecResult {
	r.Stdout = hutch.Output{Head: w.stdout.Bytes(), Total: int64(w.stdout.Len())}
	r.Stderr = hutch.Output{Head: w.stderr.Bytes(), Total: int64(w.stderr.Len())}
	return r
}

// endedUnder is the result of a command under which the sandbox has ended.
func (b *box) endedUnder(st guestapi.ExecStatus) hutch.ExecResult {
	b.mu.Lock()
	defer b.mu.Unlock()
	return hutch.EndedUnder(b.ending, b.detail, time.Unix(0, st.StartedAt))
}

// nameOOM says of a command what the kernel ended for memory while it ran. If that was its
// first process, or a child whose end a shell made its own, it was the command's end; else it
// is a limit met on the way. The kernel counts before the process is gone, so there is no
// waiting for the news.
func (w *execWatch) nameOOM(r *hutch.ExecResult) {
	if r.End == hutch.ExecSandboxGone || r.End == hutch.ExecExit && r.ExitCode == 0 && r.EndedAt.Sub(r.StartedAt) < unhurt {
		return
	}
	st := w.n.stats(w.b)
	if st.OOMKills <= w.oomKills || r.End == hutch.ExecOOM {
		return
	}
	used := "over the sandbox's memory limit: the sandbox used " + memoryUse(st, w.b.memoryMax)
	if r.ExitCode == 128+9 && (r.End == hutch.ExecExit || r.End == hutch.ExecSignal) {
		r.End, r.Signal = hutch.ExecOOM, "KILL"
		r.Detail = "the kernel ended it " + used
		return
	}
	r.LimitsHit = append(r.LimitsHit, "memory")
	if r.Detail != "" {
		r.Detail += "; "
	}
	r.Detail += "meanwhile the kernel ended a process " + used
}

// backstop ends the command, then the sandbox, if the guest does not hold the timeout.
// A paused sandbox's commands do not run, and get the slack anew when it goes on.
func (w *execWatch) backstop(limit time.Duration) {
	slack := w.n.cfg.StopSlack
	for ; ; limit = slack {
		if w.endsWithin(limit) {
			return
		}
		if w.b.stoodStill(slack) {
			continue
		}
		w.n.log.Warn("a command outlived its timeout; stopping it from outside", "sandbox", w.b.id, "exec", w.id, "op", "backstop")
		err := w.stop()
		// That a guest says it has stopped the command proves nothing: its stream must end.
		last := time.Duration(0)
		if err == nil || errors.Is(err, hutch.ErrNotFound) {
			last = slack
		}
		if w.endsWithin(last) {
			return
		}
		if w.b.stoodStill(slack) {
			continue
		}
		w.n.end(w.b, hutch.EndUnstoppable, "a command in it could not be stopped at its timeout")
		return
	}
}

// stop asks the guest to end the command at its timeout. A guest that the host keeps from its
// work is given the time that costs.
func (w *execWatch) stop() error {
	ctx, cancel := context.WithTimeout(w.n.work, mercy*w.n.cfg.CallTimeout)
	defer cancel()
	return awaited(ctx, w.b, func(ctx context.Context) error {
		return w.b.ask(ctx, func(ctx context.Context) error {
			_, err := w.b.guest.Stop(ctx, w.id, guestapi.Stop{Reason: hutch.ExecTimeout, Detail: "stopped by the node"})
			return err
		})
	})
}

// endsWithin reports whether the watch is over, or the node stops, before d has passed.
func (w *execWatch) endsWithin(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-w.ended:
		return true
	case <-t.C:
	}
	select { // in the same moment
	case <-w.ended:
		return true
	default:
		return false
	}
}
