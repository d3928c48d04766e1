package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/guestapi"
	"hutch.dev/hutch/internal/guestclient"
	"hutch.dev/hutch/internal/x/pidfd"
)

// StartExec starts a command, begins to watch it, and returns its pid inside and when it
// began. Starting the same id twice starts it once.
func (n *Node) StartExec(ctx context.Context, id hutch.SandboxID, e hutch.Epoch, x hutch.ExecID, spec hutch.ExecSpec) (pid int, at time.Time, err error) {
	b, err := n.box(id, e)
	if err != nil {
		return 0, at, err
	}
	if b.isPaused() {
		return 0, at, hutch.Errorf(hutch.CodeInvalidState, "sandbox %s is paused: resume it first", id)
	}
	if err := b.mayStart(); err != nil {
		return 0, at, b.whyGone(err)
	}
	kills, cpu := b.oomKillCount(), b.cpu()
	var (
		st guestapi.ExecStatus
		f  *guestclient.Follow
	)
	err = n.answered(ctx, b, func(ctx context.Context) error {
		return b.ask(ctx, func(ctx context.Context) error {
			st, f, err = b.guest.StartFollow(ctx, n.work, guestapi.StartExec{ID: x, Spec: spec}, watching(0, 0, budgetIn(spec)))
			return err
		})
	})
	if err != nil {
		if errors.Is(err, hutch.ErrGuestUnresponsive) {
			n.seek(b, sought{x, spec, kills, cpu})
		}
		return 0, at, b.whyGone(err)
	}
	w := n.watchExec(b, begun{st, f, kills, cpu})
	if w == nil {
		return 0, at, b.goneError()
	}
	at = time.Unix(0, st.StartedAt)
	w.arm(spec, at)
	return st.PID, at, nil
}

// WatchExecs makes the node report the ends of commands that were started before it took
// the sandbox over, and hold their timeouts. One that the guest does not know is reported as
// lost with the sandbox.
func (n *Node) WatchExecs(_ context.Context, id hutch.SandboxID, e hutch.Epoch, execs []hutch.Exec) error {
	b, err := n.box(id, e)
	if err != nil {
		return err
	}
	for _, x := range execs {
		st := guestapi.ExecStatus{ID: x.ID, PID: x.PID, Running: true, StartedAt: x.CreatedAt.UnixNano()}
		w := n.watchExec(b, begun{ExecStatus: st, oomKills: b.oomKillCount(), cpu: unknown})
		if w == nil {
			return b.goneError()
		}
		w.arm(x.Spec, x.CreatedAt)
	}
	return nil
}

// FollowExec hands what a command has written and writes to sink, from the offsets in o,
// and returns its result, nil if it still runs (o.NoWait). It ends when the command has,
// when sink fails, or with ctx.
func (n *Node) FollowExec(ctx context.Context, id hutch.SandboxID, e hutch.Epoch, x hutch.ExecID, o hutch.FollowOptions, sink func(hutch.OutputEvent) error) (*hutch.ExecResult, error) {
	b, err := n.box(id, e)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	late := time.AfterFunc(n.cfg.CallTimeout, func() {
		cancel(hutch.Errorf(hutch.CodeGuestUnresponsive, "the sandbox did not answer in %s", n.cfg.CallTimeout))
	})
	fo := guestclient.FollowOptions{
		Stdout: o.Stdout, Stderr: o.Stderr, Budgeted: o.Budgeted, Budget: b.budgetOf(x), NoWait: o.NoWait,
		Live: o.Live, Last: o.Last,
	}
	if o.Live {
		fo.Stdout, fo.Stderr, fo.Budgeted = 0, 0, false
	}
	began := b.await(eagerAfter, cancel)
	f, err := b.follow(ctx, x, fo)
	began()
	if err == nil {
		defer func() { _ = f.Close() }()
	}
	if !late.Stop() || errors.Is(context.Cause(ctx), hutch.ErrGuestUnresponsive) {
		return nil, b.whyGone(context.Cause(ctx))
	}
	if err != nil {
		return nil, b.whyGone(err)
	}
	defer b.awaitAs(&waiter{quiet: patientAfter, bears: patience, cancel: cancel})()
	for {
		fr, err := n.next(ctx, b, f)
		if errors.Is(context.Cause(ctx), hutch.ErrGuestUnresponsive) {
			err = context.Cause(ctx)
		}
		if err != nil {
			return nil, b.whyGone(err)
		}
		if fr.Type == guestapi.FrameEnd {
			return f.Status().Result, nil
		}
		ev, err := outputEvent(fr)
		if err != nil {
			return nil, err
		}
		if err := sink(ev); err != nil {
			return nil, err
		}
	}
}

// next reads a frame. A guest that is silent for longer than its keepalives leave it does
// not answer any more, unless it stands still with its sandbox.
func (n *Node) next(ctx context.Context, b *box, f *guestclient.Follow) (guestapi.Frame, error) {
	for {
		quiet, cancel := context.WithTimeout(ctx, n.cfg.Silence)
		fr, err := f.Next(quiet)
		over := quiet.Err() != nil && ctx.Err() == nil
		cancel()
		if err == nil {
			b.hear()
		}
		if err == nil || !over || !b.stoodStill(n.cfg.Silence) {
			return fr, err
		}
	}
}

// budgetOf is the output budget of a command that is being watched; 0 if it is not.
func (b *box) budgetOf(x hutch.ExecID) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	if w := b.watched[x]; w != nil {
		return w.spec.MaxOutputBytes
	}
	return 0
}

// follow opens a follow stream, after a hello if the guest asks for one.
func (b *box) follow(ctx context.Context, x hutch.ExecID, o guestclient.FollowOptions) (f *guestclient.Follow, err error) {
	err = b.ask(ctx, func(ctx context.Context) error {
		f, err = b.guest.Follow(ctx, x, o)
		return err
	})
	return f, err
}

func outputEvent(fr guestapi.Frame) (hutch.OutputEvent, error) {
	switch fr.Type {
	case guestapi.FrameStdout:
		return hutch.OutputEvent{Stream: "stdout", Offset: fr.Offset, Data: fr.Payload}, nil
	case guestapi.FrameStderr:
		return hutch.OutputEvent{Stream: "stderr", Offset: fr.Offset, Data: fr.Payload}, nil
	case guestapi.FrameKeepalive:
		return hutch.OutputEvent{Keepalive: true}, nil
	case guestapi.FrameGap:
		var g guestapi.Gap
		if err := json.Unmarshal(fr.Payload, &g); err != nil || g.From < 0 || g.To <= g.From || (g.Stream != "stdout" && g.Stream != "stderr") {
			return hutch.OutputEvent{}, hutch.Errorf(hutch.CodeGuestUnresponsive, "the sandbox's agent sent a malformed gap")
		}
		return hutch.OutputEvent{Stream: g.Stream, Offset: g.From, GapTo: g.To}, nil
	default:
		return hutch.OutputEvent{}, hutch.Errorf(hutch.CodeGuestUnresponsive, "the sandbox's agent sent an unexpected frame")
	}
}

// WriteStdin gives a command a part of its stdin and returns how much it has in all.
func (n *Node) WriteStdin(ctx context.Context, id hutch.SandboxID, e hutch.Epoch, x hutch.ExecID, c hutch.StdinChunk) (int64, error) {
	b, err := n.box(id, e)
	if err != nil {
		return 0, err
	}
	data := c.Data
	if data == nil {
		data = http.NoBody
	}
	var rep guestapi.StdinReply
	err = awaited(ctx, b, func(ctx context.Context) (err error) {
		// No ask: the reader cannot be read twice. A caller that gets an error asks how far
		// it came by writing nothing.
		if err := n.identified(ctx, b); err != nil {
			return err
		}
		if c.Append {
			rep, err = b.guest.AppendStdin(ctx, x, data, c.End)
		} else {
			rep, err = b.guest.Stdin(ctx, x, c.Offset, data, c.End)
		}
		return err
	})
	return rep.Offset, b.whyGone(err)
}

// StopExec ends a command as cancelled and returns once it has ended. Grace 0 kills at
// once, a negative one is the command's own.
func (n *Node) StopExec(ctx context.Context, id hutch.SandboxID, e hutch.Epoch, x hutch.ExecID, grace time.Duration) (*hutch.ExecResult, error) {
	b, err := n.box(id, e)
	if err != nil {
		return nil, err
	}
	limit := n.cfg.CallTimeout + hutch.MaxGrace
	if grace >= 0 {
		limit = n.cfg.CallTimeout + grace
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	var st guestapi.ExecStatus
	err = awaited(ctx, b, func(ctx context.Context) error {
		return b.ask(ctx, func(ctx context.Context) error {
			st, err = b.guest.Stop(ctx, x, guestapi.Stop{Reason: hutch.ExecCancelled, Grace: int64(grace)})
			return err
		})
	})
	return st.Result, b.whyGone(err)
}

// SignalExec sends a signal to a command's leader, or to all of its processes (tree).
func (n *Node) SignalExec(ctx context.Context, id hutch.SandboxID, e hutch.Epoch, x hutch.ExecID, signal string, tree bool) error {
	b, err := n.box(id, e)
	if err != nil {
		return err
	}
	return b.whyGone(n.answered(ctx, b, func(ctx context.Context) error {
		return b.ask(ctx, func(ctx context.Context) error {
			return b.guest.Signal(ctx, x, guestapi.Signal{Signal: signal, Tree: tree})
		})
	}))
}

// Processes lists the processes inside.
func (n *Node) Processes(ctx context.Context, id hutch.SandboxID, e hutch.Epoch) ([]guestapi.Process, error) {
	b, err := n.box(id, e)
	if err != nil {
		return nil, err
	}
	var l guestapi.ProcessList
	err = n.answered(ctx, b, func(ctx context.Context) error {
		return b.ask(ctx, func(ctx context.Context) error {
			l, err = b.guest.Processes(ctx)
			return err
		})
	})
	return l.Processes, b.whyGone(err)
}

const (
	// deathRattle is how long a machine that has died may show as a guest that does not
	// answer while its process can still be seen: its stream breaks first.
	deathRattle = 200 * time.Millisecond
	// lastBreath is the same where the other end of its stream is closed: nothing but its end
	// does that to an honest one, and on a host whose CPUs are taken a process that is ended for
	// memory needs seconds from there. Calls are still answered within 5 s.
	lastBreath = 3 * time.Second
)

// awaitDeath gives a machine that may have died the time to be seen to have, and one that
// has the time to be cleared: until then nobody can say why it ended.
func (b *box) awaitDeath() {
	limit := deathRattle
	if hungUp(b.stream) {
		limit = lastBreath
	}
	if b.proc != nil && !b.isGone() {
		ctx, cancel := context.WithTimeout(b.work, limit)
		defer cancel()
		switch err := pidfd.Wait(ctx, b.proc); {
		case err == nil:
			limit = undoTimeout
		case ctx.Err() != nil:
			return // it lives
		default: // its file is closed, which comes just before it is gone
		}
	}
	select {
	case <-b.gone:
	case <-b.work.Done():
	case <-time.After(limit):
	}
}

// hungUp reports whether the other end of a stream is closed.
func hungUp(stream *os.File) bool {
	if stream == nil {
		return false
	}
	c, err := stream.SyscallConn()
	if err != nil { // it is closed here too
		return false
	}
	hup := false
	err = c.Control(func(fd uintptr) {
		p := []unix.PollFd{{Fd: int32(fd)}}
		_, err := unix.Poll(p, 0)
		hup = err == nil && p[0].Revents&unix.POLLHUP != 0
	})
	return err == nil && hup
}

func (b *box) isGone() bool {
	select {
	case <-b.gone:
		return true
	default:
		return false
	}
}

// whyGone makes of a failed call to a guest that has ended the error that says so.
func (b *box) whyGone(err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, hutch.ErrGuestUnresponsive) {
		b.awaitDeath()
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ending != "" {
		return b.goneLocked(err)
	}
	return fmt.Errorf("ask sandbox %s: %w", b.id, err)
}
