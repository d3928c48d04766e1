package node

import (
	"context"
	"crypto/rand"
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/guestapi"
	"hutch.dev/hutch/internal/guestclient"
	"hutch.dev/hutch/internal/runtime"
)

// box is one sandbox on this host.
type box struct {
	id     hutch.SandboxID
	sb     runtime.Sandbox
	proc   *os.File // its first process, which is the machine's life; nil = not known
	stream *os.File // what guest speaks through; sb's
	guest  *guestclient.Client
	calls  hutch.Guest     // what guest can be asked for besides commands
	work   context.Context //nolint:containedctx // the node's: what a run of the sandbox is part of
	hello  guestapi.Hello  // Time and Seed are filled in anew at each sending

	cpus      int
	memoryMax int64 // bytes
	diskMax   int64

	gone chan struct{} // closed once the sandbox is off this host
	done chan struct{} // closed once its end and those of its commands are reported, or never will be

	clock *atomic.Int64 // the node's
	heard atomic.Int64  // by it, when the guest last gave a sign of life

	telling sync.Mutex    // orders what the keeper is told of its lifetime
	idle    time.Duration // how long it is kept without use; 0 = to its deadline

	measured measured
	appetite appetite // for the CPU
	turn     int      // when it is looked at though nothing is known to run in it: a count

	mu       sync.Mutex
	pulse    pulse
	epoch    hutch.Epoch
	deadline time.Time
	used     time.Time // hutch.Lifetime.UsedAt
	paused   bool
	run      context.Context //nolint:containedctx // ends, with the reason, when the sandbox is paused or ended
	endRun   context.CancelCauseFunc
	resumed  time.Time        // when it was last resumed
	ending   hutch.SandboxEnd // why this node is ending it; empty while it is not
	detail   string           // a sentence to go with ending
	oomKills int64            // processes of it the kernel ended so far, as last seen
	shares   shares           // of its CPU time, among its commands
	closed   bool             // no more watches on commands begin
	untold   bool             // the node stopped before everything was reported
	watched  map[hutch.ExecID]*execWatch
	sought   []sought // commands that may run; while there are any, findExecs runs
}

// newBox makes the box of a machine; client is of its guest, nil if there is none yet.
func newBox(n *Node, rec hutch.Sandbox, sb runtime.Sandbox, client *guestclient.Client) *box {
	h := sb.Handles()
	if client == nil {
		client = guestclient.New(h.Guest)
	}
	b := &box{
		id: rec.ID, sb: sb, stream: h.Guest, guest: client, calls: client, work: n.work, clock: &n.clock,
		cpus: rec.Resources.CPUs(), memoryMax: int64(rec.Resources.MemoryMB) << 20, diskMax: int64(rec.Resources.DiskMB) << 20,
		turn:     int(n.made.Add(1)),
		hello:    helloOf(rec),
		gone:     make(chan struct{}),
		done:     make(chan struct{}),
		epoch:    rec.Epoch,
		deadline: wall(rec.ExpiresAt),
		used:     time.Now(),
		paused:   rec.State == hutch.StatePaused,
		watched:  map[hutch.ExecID]*execWatch{},
	}
	if rec.IdleTimeout > 0 {
		b.idle = rec.IdleTimeout + n.cfg.IdleSlack
	}
	if len(h.Procs) > 0 {
		b.proc = h.Procs[0]
	}
	b.pulse = pulse{asked: moment{at: never}, weighed: never, waiting: map[*waiter]struct{}{}}
	b.hear()
	b.beginRunLocked()
	return b
}

// wall is t by the wall clock alone: what is compared with it follows the clock's steps, and a
// host that was suspended.
func wall(t time.Time) time.Time { return t.Round(0) }

// helloOf is what a sandbox's guest is told; Epoch, Time and Seed are for greet.
func helloOf(rec hutch.Sandbox) guestapi.Hello {
	if len(rec.Env) == 0 {
		rec.Env = nil
	}
	if len(rec.Defaults.Env) == 0 {
		rec.Defaults.Env = nil
	}
	return guestapi.Hello{
		Protocol: guestapi.ProtocolVersion,
		Sandbox:  rec.ID,
		Hostname: rec.Hostname,
		CPUs:     rec.Resources.CPUs(),
		Pids:     rec.Resources.Pids,
		DiskMB:   rec.Resources.DiskMB,
		Env:      rec.Env,
		Defaults: rec.Defaults,
		Profile:  told(rec.Profile),
	}
}

// greet says hello to a guest, under an epoch.
func greet(ctx context.Context, c *guestclient.Client, h guestapi.Hello, e hutch.Epoch) error {
	h.Epoch = e
	h.Seed = make([]byte, 64)
	if _, err := rand.Read(h.Seed); err != nil {
		return err
	}
	h.Time = time.Now().UnixNano()
	_, err := c.Hello(ctx, h)
	return err
}

// told is a profile as a guest is told of it: agents that run since before there were any know
// only the one that needs no word.
func told(p hutch.Profile) hutch.Profile {
	if p == hutch.ProfileRoot {
		return ""
	}
	return p
}

// beginRunLocked begins a run of the sandbox, until it is paused or ended.
func (b *box) beginRunLocked() { b.run, b.endRun = context.WithCancelCause(b.work) }

// fence refuses an epoch older than the box's and takes on a newer one.
func (b *box) fence(e hutch.Epoch) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if e < b.epoch {
		return hutch.ErrStale
	}
	b.epoch = e
	return nil
}

func (b *box) currentEpoch() hutch.Epoch {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.epoch
}

// sayHello tells the guest who it is and what time it is.
func (b *box) sayHello(ctx context.Context) error {
	err := greet(ctx, b.guest, b.hello, b.currentEpoch())
	if err == nil {
		b.hear()
	}
	return err
}

// ask makes a call to the guest, after a new hello if the guest does not know itself:
// whenever its stream was cut, it starts from there.
func (b *box) ask(ctx context.Context, f func(context.Context) error) error {
	err := f(ctx)
	if notIdentified(err) {
		if err := b.sayHello(ctx); err != nil {
			return err
		}
		err = f(ctx)
	}
	if err == nil || errors.Is(err, hutch.ErrNotFound) {
		b.hear()
		b.noteAnswer(b.cpu())
	}
	return err
}

func notIdentified(err error) bool {
	var e *hutch.Error
	return errors.As(err, &e) && e.Code == guestapi.CodeNotIdentified
}

// beginEnding notes why the node ends the sandbox; the first reason stays.
func (b *box) beginEnding(why hutch.SandboxEnd, detail string) {
	b.favour() // for good: to end takes CPU time too
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ending == "" {
		b.ending, b.detail = why, detail
		b.endRun(b.goneLocked(nil))
	}
}

// noteOOMKills notes how many of its processes the kernel had ended when it was looked at.
func (b *box) noteOOMKills(n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.oomKills = max(b.oomKills, n)
}

func (b *box) oomKillCount() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.oomKills
}

// setPaused notes whether the sandbox stands still. What is under way when it is made to
// does not outlive that: nobody can say when it would go on.
func (b *box) setPaused(p bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case p && !b.paused:
		b.endRun(hutch.Errorf(hutch.CodeInvalidState, "sandbox %s was paused", b.id))
	case b.paused && !p:
		b.resumed = time.Now()
		if b.used.Before(b.resumed) {
			b.used = b.resumed
		}
		b.beginRunLocked()
		if b.ending != "" {
			b.endRun(b.goneLocked(nil))
		}
	}
	b.paused = p
}

func (b *box) isPaused() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.paused
}

// stoodStill reports whether the sandbox was paused within the last d.
func (b *box) stoodStill(d time.Duration) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.paused || time.Since(b.resumed) < d
}
