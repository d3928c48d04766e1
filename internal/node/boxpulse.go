package node

import (
	"context"
	"errors"
	"math"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/runtime"
)

// How often a guest is asked for a sign of life, when it has given none by itself.
const (
	// eagerAfter is how long somebody waits for an answer before the guest is asked whether it
	// is there: calls that are answered at once cost no question.
	eagerAfter = time.Second
	// patientAfter is the same for what may well be quiet: a command that runs, a connection to
	// a port, a watched directory. A command's stream says every 10 s that it has nothing to
	// say, so that as long as one runs a question is put every 10 s at the most.
	patientAfter = 5 * time.Second
	// patience is how long a guest may be silent before those are sent away who follow a
	// command. They wait for the command, not for an answer, and a sandbox that runs out of
	// memory may well be still for some seconds before it says how that went.
	patience = 10 * time.Second
	// probeLimit is how long one question is left open: an answer that comes within it counts,
	// however late it is.
	probeLimit = 20 * time.Second
	// mercy is how many times as long as otherwise a guest may be silent for the host's sake, on
	// a host so busy that it hardly runs. It bounds what callers wait for a guest that spins,
	// which can't be told from one that is kept from its work.
	mercy = 4
	// A guest that nobody waits for is as it was when it answered last if its sandbox has had less
	// CPU time since than asItWas, which is what an answer takes until the clocks of its kernel
	// stand still again: nothing has run there that could have broken it. It is not woken to be asked
	// for that long but each askedAnyway times Config.Idle, for what stops a sandbox from outside.
	asItWas     = 3 * time.Millisecond
	askedAnyway = 12
)

// never is the time of what has not happened.
const never = time.Duration(math.MinInt64)

// pulse is what is known of a guest's signs of life; box.mu guards it, but for heard, which is
// in box. Times are of the node's own clock (see [Node.tick]).
type pulse struct {
	asked   moment // when the first question was put that has no answer; at never, none is open
	probing bool   // a question is on its way
	waiting map[*waiter]struct{}
	silent  bool // no answer for Config.Answer
	told    bool // the last thing Reports was told of silent
	telling bool
	rested  time.Duration // the sandbox's CPU time when it answered the last call, at resting
	resting time.Duration // 0 = it has answered none

	spared   time.Duration // in all: what was not the guest's time to answer
	weighing bool          // it is being found out how much more of it there is
	weighed  time.Duration // as of when it is known
	turns    turns         // as of then
}

// moment is a point in time, and what a guest had been spared until then.
type moment struct{ at, spared time.Duration }

// turns is for how long a sandbox's threads ran, and for how long they could have and did not
// get to.
type turns struct{ ran, waited time.Duration }

// since is how long it is since m, as far as the guest could have answered meanwhile.
func (p *pulse) since(m moment, now time.Duration) time.Duration {
	passed := now - m.at
	return max(passed-(p.spared-m.spared), passed/mercy)
}

// denied is how much of the time that passed between two looks a sandbox was kept from its work:
// something of it could have run and did not, and it has not had that much of a CPU besides.
func denied(before, now turns, passed time.Duration) time.Duration {
	return max(0, min(passed, now.waited-before.waited)-(now.ran-before.ran))
}

// waiter is a call that goes on for as long as its guest gives signs of life.
type waiter struct {
	since  moment
	quiet  time.Duration // how long nothing need come before the guest is asked
	bears  time.Duration // how long it may leave that without an answer, if more than Config.Answer
	cancel context.CancelCauseFunc
}

// hear notes a sign of life.
func (b *box) hear() { b.heard.Store(b.clock.Load()) }

// await ends a call when its guest has stopped answering, until stop is called. quiet is
// eagerAfter or patientAfter.
func (b *box) await(quiet time.Duration, cancel context.CancelCauseFunc) (stop func()) {
	leave := b.awaitAs(&waiter{quiet: quiet, cancel: cancel})
	if quiet != eagerAfter {
		return leave
	}
	release := b.favour()
	return func() { release(); leave() }
}

func (b *box) awaitAs(w *waiter) (stop func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	w.since = moment{time.Duration(b.clock.Load()), b.pulse.spared}
	b.pulse.waiting[w] = struct{}{}
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(b.pulse.waiting, w)
	}
}

// answered makes a short call to b's guest, which is over when the guest has not given a sign
// of life for Config.Answer, and after Config.CallTimeout even if it has.
func (n *Node) answered(ctx context.Context, b *box, f func(context.Context) error) error {
	return awaited(ctx, b, func(ctx context.Context) error { return n.call(ctx, f) })
}

// awaited runs f, which asks b's guest for something, until it ends or the guest has stopped
// answering.
func awaited(ctx context.Context, b *box, f func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer b.await(eagerAfter, cancel)()
	err := f(ctx)
	if err != nil && errors.Is(context.Cause(ctx), hutch.ErrGuestUnresponsive) {
		return context.Cause(ctx)
	}
	return err
}

// tick moves the node's clock on and looks at every guest. The clock counts only while the
// node runs: if a suspended or overloaded host kept it from running, it kept the guests from
// answering too, and that time is not held against them.
func (n *Node) tick(passed time.Duration) {
	now := time.Duration(n.clock.Add(int64(min(passed, 2*deadlineInterval))))
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, b := range n.boxes {
		probe, weigh := b.beat(now, n.cfg)
		if probe {
			n.wg.Go(func() { n.probe(b) })
		}
		if weigh {
			n.wg.Go(func() { n.weigh(b, now) })
		}
		if b.beginTelling() {
			n.wg.Go(func() { n.tellSilence(b) })
		}
	}
}

// beat says what a guest's signs of life, or their lack, ask for now: a question, or, if one
// is open, that what passed since be weighed.
func (b *box) beat(now time.Duration, cfg Config) (probe, weigh bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	p := &b.pulse
	if b.answeredLocked() {
		if p.probing || b.paused || b.ending != "" || !b.questionable(now, cfg) {
			return false, false
		}
		p.asked, p.probing = moment{now, p.spared}, true
		return true, false
	}
	weigh = !p.weighing
	p.weighing = true
	return false, weigh
}

// answeredLocked reports whether no question is open: the last one was answered, or nobody
// answers there, and nobody is to.
func (b *box) answeredLocked() bool {
	p := &b.pulse
	switch {
	case b.paused || b.ending != "":
		p.asked.at = never
	case p.asked.at != never && time.Duration(b.heard.Load()) >= p.asked.at:
		p.asked.at, p.silent = never, false
	}
	return p.asked.at == never
}

// weigh looks how a sandbox fares that owes an answer, and does what that asks for. None of it is
// done under a lock.
func (n *Node) weigh(b *box, now time.Duration) {
	var t turns
	if s, ok := b.sb.(runtime.Scheduled); ok {
		t.ran, t.waited = s.Turns()
	}
	probe, over := b.judge(now, t, b.guest.Unread(), n.cfg)
	if probe {
		n.wg.Go(func() { n.probe(b) })
	}
	if over {
		n.wg.Go(func() {
			n.end(b, hutch.EndSilent, "its guest agent did not answer for "+n.cfg.EndSilent.String())
		})
	}
	if b.beginTelling() {
		n.wg.Go(func() { n.tellSilence(b) })
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.pulse.weighing = false
}

// judge decides about a guest that owes an answer: whether it is to be asked again, and
// whether its sandbox is to be ended. Calls that have waited in vain it ends itself. It is told
// what turns the sandbox's threads had, and whether something of the guest's lies unread, which
// may be the answer.
//
// Only what the host's load cannot bring about counts: time in which the sandbox had a CPU, or
// wanted none, and had sent nothing that this process had not come to read.
func (b *box) judge(now time.Duration, t turns, unread bool, cfg Config) (probe, over bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	p := &b.pulse
	if b.answeredLocked() {
		return false, false
	}
	switch passed := now - max(p.weighed, p.asked.at); {
	case unread:
		p.spared += passed
	case p.weighed >= p.asked.at: // else the last look was at another time's turns
		p.spared += denied(p.turns, t, passed)
	}
	p.weighed, p.turns = now, t
	for w := range p.waiting {
		since := p.asked
		if w.since.at > since.at {
			since = w.since
		}
		if p.since(since, now) >= max(w.bears, cfg.Answer) {
			w.cancel(hutch.Errorf(hutch.CodeGuestUnresponsive, "sandbox %s does not answer", b.id))
			delete(p.waiting, w)
		}
	}
	silent := p.since(p.asked, now)
	p.silent = p.silent || silent >= cfg.Answer
	probe = !p.probing // the last one broke, or was open for long enough
	p.probing = true
	return probe, cfg.EndSilent > 0 && silent >= cfg.EndSilent
}

// questionable reports whether the guest is to be asked for a sign of life.
func (b *box) questionable(now time.Duration, cfg Config) bool {
	if b.pulse.silent { // as it was before a pause
		return true
	}
	quiet := cfg.Idle
	if len(b.watched) > 0 {
		quiet = min(quiet, patientAfter)
	}
	heard := time.Duration(b.heard.Load())
	for w := range b.pulse.waiting {
		if now-w.since.at >= w.quiet {
			quiet = min(quiet, w.quiet)
		}
	}
	return now-heard >= quiet
}

// probe asks the guest for a sign of life, which ask notes, unless it is known to be as it was.
func (n *Node) probe(b *box) {
	defer func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.pulse.probing = false
	}()
	if b.isAsItWas(b.cpu(), n.cfg) {
		return
	}
	b.mu.Lock()
	run := b.run
	b.mu.Unlock()
	ctx, cancel := context.WithTimeout(run, probeLimit)
	defer cancel()
	_ = b.ask(ctx, func(ctx context.Context) error { // what failed is asked again
		_, err := b.guest.Health(ctx)
		return err
	})
}

// noteAnswer notes that the guest has answered a call, and what CPU time its sandbox had used then.
func (b *box) noteAnswer(cpu time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.pulse.rested, b.pulse.resting = cpu, time.Duration(b.clock.Load())
}

// isAsItWas reports whether a guest that was to be asked, whose sandbox has used so much CPU time
// by now, need not be, and notes that it lives.
func (b *box) isAsItWas(cpu time.Duration, cfg Config) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	p := &b.pulse
	now := time.Duration(b.clock.Load())
	switch {
	case len(b.watched) > 0 || len(p.waiting) > 0 || p.silent:
		return false
	case p.resting == 0 || now-p.resting >= askedAnyway*cfg.Idle:
		return false
	case cpu == unknown || p.rested == unknown || cpu-p.rested >= asItWas:
		return false
	}
	b.hear()
	return true
}

// beginTelling reports whether Reports has to be told something that nobody is telling.
func (b *box) beginTelling() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	p := &b.pulse
	if p.telling || p.silent == p.told || b.ending != "" {
		return false
	}
	p.telling = true
	return true
}

// tellSilence tells Reports whether the guest answers, one at a time and the last of it last.
func (n *Node) tellSilence(b *box) {
	b.mu.Lock()
	silent, e := b.pulse.silent, b.epoch
	b.mu.Unlock()
	n.log.Warn("a guest fell silent, or answers again", "sandbox", b.id, "op", "heartbeat", "silent", silent)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(n.work), undoTimeout)
	defer cancel()
	n.reports.SandboxSilent(ctx, b.id, e, silent)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.pulse.told, b.pulse.telling = silent, false
}
