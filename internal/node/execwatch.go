package node

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/guestapi"
	"hutch.dev/hutch/internal/guestclient"
	"hutch.dev/hutch/internal/x/backoff"
)

const (
	// stopSlack is how much longer than its timeout and grace a command may take to be
	// reported ended before the node steps in. The guest needs milliseconds; a machine
	// with every CPU taken has been seen to need two seconds.
	stopSlack = 5 * time.Second
	// oomNews is how long the kernel's report of an out-of-memory kill may come after
	// the command's end.
	oomNews = 200 * time.Millisecond
	// adoptTimeout bounds the question to a guest which commands it knows.
	adoptTimeout = 30 * time.Second
)

// followRetry spaces the tries to follow a command whose guest does not answer.
var followRetry = backoff.Policy{Base: 100 * time.Millisecond, Cap: 2 * time.Second}

// watchExec follows a command to its end in a goroutine, if that is not being done.
func (n *Node) watchExec(b *box, st guestapi.ExecStatus, spec hutch.ExecSpec, oomKills int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, ok := b.watched[st.ID]; ok {
		return
	}
	done := make(chan struct{})
	b.watched[st.ID] = done
	n.wg.Go(func() {
		defer func() {
			b.mu.Lock()
			delete(b.watched, st.ID)
			b.mu.Unlock()
			close(done)
		}()
		w := &execWatch{n: n, b: b, id: st.ID, spec: spec, oomKills: oomKills}
		w.run(st)
	})
}

// awaitExecs returns once every watch on a command of this box has ended.
func (b *box) awaitExecs() {
	b.mu.Lock()
	var all []chan struct{}
	for _, c := range b.watched {
		all = append(all, c)
	}
	b.mu.Unlock()
	for _, c := range all {
		<-c
	}
}

// adoptExecs watches the commands that the guest knows and this process does not, as
// after a restart.
func (n *Node) adoptExecs(b *box) {
	if b.isPaused() {
		return // done when it is resumed
	}
	ctx, cancel := context.WithTimeout(n.work, adoptTimeout)
	defer cancel()
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
	for _, st := range l.Execs {
		n.watchExec(b, st, hutch.ExecSpec{}, b.oomKillCount())
	}
}

// execWatch is the watch on one command.
type execWatch struct {
	n        *Node
	b        *box
	id       hutch.ExecID
	spec     hutch.ExecSpec // zero for an adopted command: its guest alone holds its timeout
	oomKills int            // of the sandbox when the command began

	stdout, stderr bytes.Buffer // the live head of its output, for when the sandbox takes the rest with it
}

func (w *execWatch) run(st guestapi.ExecStatus) {
	ctx, cancel := context.WithCancel(w.n.work)
	defer cancel()
	if w.spec.Timeout > 0 {
		stop := make(chan struct{})
		defer close(stop)
		w.n.wg.Go(func() { w.backstop(ctx, stop) })
	}
	res, ok := w.result(ctx, st)
	if !ok {
		return // the node is stopping: the command is told of again after the restart
	}
	w.nameOOM(&res)
	rctx, rcancel := context.WithTimeout(context.WithoutCancel(ctx), adoptTimeout)
	defer rcancel()
	if err := w.n.reports.ExecEnded(rctx, w.b.id, w.id, res); err != nil {
		w.n.log.Error("the end of a command could not be recorded; it will be told of again", "sandbox", w.b.id, "exec", w.id, "error", err)
		return
	}
	if res.End != hutch.ExecSandboxGone {
		// The guest forgets at its leisure: what it keeps is bounded, and a failure here
		// only means that the end is reported once more after a restart.
		_ = w.n.call(ctx, func(ctx context.Context) error { return w.b.guest.Delete(ctx, w.id) })
	}
}

// result waits for the command's end. It returns false if the node stops first.
func (w *execWatch) result(ctx context.Context, st guestapi.ExecStatus) (hutch.ExecResult, bool) {
	tries := 0
	for {
		if st.Result != nil {
			return *st.Result, true
		}
		next, err := w.follow(ctx)
		switch {
		case err == nil:
			st, tries = next, 0
			continue
		case errors.Is(err, hutch.ErrNotFound):
			return w.lost(st, "the sandbox's agent does not know this command any more"), true
		}
		select {
		case <-w.b.gone:
			return w.lost(st, "the sandbox ended under it"), true
		case <-w.n.work.Done():
			return hutch.ExecResult{}, false
		case <-time.After(followRetry.Delay(tries, rand.Float64)):
			tries++
		}
	}
}

// follow reads the command's stream once, up to its end or the stream's.
func (w *execWatch) follow(ctx context.Context) (guestapi.ExecStatus, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() { // a dead sandbox's socket may stay silent: do not wait for it
		select {
		case <-w.b.gone:
			cancel()
		case <-ctx.Done():
		}
	}()
	f, err := w.b.follow(ctx, w.id, guestclient.FollowOptions{
		Stdout: int64(w.stdout.Len()), Stderr: int64(w.stderr.Len()), Budgeted: true,
	})
	if err != nil {
		return guestapi.ExecStatus{}, err
	}
	defer f.Close()
	for {
		fr, err := f.Next(ctx)
		if err != nil {
			return guestapi.ExecStatus{}, err
		}
		switch fr.Type {
		case guestapi.FrameEnd:
			return guestclient.DecodeStatus(fr.Payload)
		case guestapi.FrameStdout:
			w.keep(&w.stdout, fr)
		case guestapi.FrameStderr:
			w.keep(&w.stderr, fr)
		}
	}
}

// keep adds to a head what continues it, up to a quarter of the budget.
func (w *execWatch) keep(buf *bytes.Buffer, fr guestapi.Frame) {
	budget := w.spec.MaxOutputBytes
	if budget == 0 {
		budget = hutch.DefaultOutputBytes
	}
	room := budget/4 - buf.Len()
	if fr.Offset != int64(buf.Len()) || room <= 0 {
		return
	}
	buf.Write(fr.Payload[:min(room, len(fr.Payload))])
}

// lost is the result of a command whose sandbox took its real one with it.
func (w *execWatch) lost(st guestapi.ExecStatus, why string) hutch.ExecResult {
	end := time.Now()
	return hutch.ExecResult{
		End: hutch.ExecSandboxGone, ExitCode: 128 + 9, Signal: "KILL", Detail: why,
		Stdout:    hutch.Output{Head: w.stdout.Bytes(), Total: int64(w.stdout.Len())},
		Stderr:    hutch.Output{Head: w.stderr.Bytes(), Total: int64(w.stderr.Len())},
		StartedAt: time.Unix(0, st.StartedAt), EndedAt: end,
	}
}

// nameOOM renames a kill that nobody here sent, if the kernel says it was for memory.
func (w *execWatch) nameOOM(r *hutch.ExecResult) {
	if r.End != hutch.ExecSignal || r.Signal != "KILL" || r.ExitCode != 128+9 {
		return
	}
	t := time.NewTimer(oomNews)
	defer t.Stop()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		if w.b.oomKillCount() > w.oomKills {
			r.End = hutch.ExecOOM
			r.Detail = "the kernel ended it over the sandbox's memory limit"
			return
		}
		select {
		case <-t.C:
			return
		case <-w.b.gone:
			return
		case <-tick.C:
		}
	}
}

// backstop ends the command, then the sandbox, if the guest does not hold the timeout.
// A paused sandbox's commands do not run, and get the slack anew when it goes on.
func (w *execWatch) backstop(ctx context.Context, stop <-chan struct{}) {
	limit := w.spec.Timeout + w.spec.Grace + stopSlack
	for {
		t := time.NewTimer(limit)
		select {
		case <-stop:
			t.Stop()
			return
		case <-ctx.Done():
			t.Stop()
			return
		case <-t.C:
		}
		if !w.b.isPaused() {
			break
		}
		limit = stopSlack
	}
	w.n.log.Warn("a command outlived its timeout; stopping it from outside", "sandbox", w.b.id, "exec", w.id, "op", "backstop")
	err := w.n.call(ctx, func(ctx context.Context) error {
		return w.b.ask(ctx, func(ctx context.Context) error {
			_, err := w.b.guest.Stop(ctx, w.id, guestapi.Stop{Reason: hutch.ExecTimeout, Detail: "stopped by the node"})
			return err
		})
	})
	if err == nil || ctx.Err() != nil {
		return
	}
	select {
	case <-stop:
	default:
		w.n.end(w.b, hutch.EndUnstoppable, "a command in it could not be stopped at its timeout")
	}
}
