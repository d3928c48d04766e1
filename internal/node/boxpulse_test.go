package node

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/runtime/fake"
)

// pass lets the node's clock go on by d. A guest that is there has all the time it needs to
// answer each question: how busy the machine is has no part in these tests.
func (b *bench) pass(rec hutch.Sandbox, d time.Duration) {
	b.t.Helper()
	for range d / deadlineInterval {
		b.tick(deadlineInterval)
		if bx := b.find(rec.ID); bx != nil {
			b.settle(bx)
		}
	}
}

// settle waits until the guest has answered, if it is one that does.
func (b *bench) settle(bx *box) {
	b.t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		bx.mu.Lock()
		p := bx.pulse
		over := !p.weighing && (b.deaf || !p.probing && !p.telling) || bx.ending != ""
		bx.mu.Unlock()
		if over {
			return
		}
		if <-tick.C; time.Now().After(deadline) {
			b.t.Fatal("a guest did not answer that does")
		}
	}
}

// fallSilent makes a guest silent, or lets it go on.
func (b *bench) fallSilent(rec hutch.Sandbox, how func(*fake.Guest, bool), on bool) {
	b.deaf = on
	how(b.host.Guest(rec.ID), on)
}

// tells returns what was told, once it is n things.
func (b *bench) tells(n int) []string {
	b.t.Helper()
	deadline := time.After(20 * time.Second)
	for {
		b.reports.mu.Lock()
		told := slices.Clone(b.reports.told)
		b.reports.mu.Unlock()
		if len(told) >= n {
			return told
		}
		select {
		case <-b.reports.news:
		case <-deadline:
			b.t.Fatalf("only %q was told", told)
		}
	}
}

// An idle sandbox is asked once in a long while, one in which a command runs now and then, and
// one that somebody waits for as soon as he has waited for a second.
func TestHowOftenAGuestIsAsked(t *testing.T) {
	cfg := Config{Answer: 3 * time.Second, Idle: 5 * time.Minute}
	for name, c := range map[string]struct {
		box  func(*box)
		want time.Duration
	}{
		"idle":                     {func(*box) {}, 5 * time.Minute},
		"a command runs":           {func(b *box) { b.watched["x"] = nil }, patientAfter},
		"somebody waits":           {func(b *box) { b.await(eagerAfter, func(error) {}) }, eagerAfter},
		"somebody watches":         {func(b *box) { b.await(patientAfter, func(error) {}) }, patientAfter},
		"somebody waited":          {func(b *box) { b.await(eagerAfter, func(error) {})() }, 5 * time.Minute},
		"somebody waits, paused":   {func(b *box) { b.paused = true; b.await(eagerAfter, func(error) {}) }, 0},
		"somebody waits, it ends":  {func(b *box) { b.ending = hutch.EndExpired; b.await(eagerAfter, func(error) {}) }, 0},
		"it was silent in a pause": {func(b *box) { b.pulse.silent = true }, deadlineInterval},
	} {
		t.Run(name, func(t *testing.T) {
			n := New(Config{Log: newBench(t).cfg.Log}, nil, nil, nil, nil)
			b := &box{watched: map[hutch.ExecID]*execWatch{}, clock: &n.clock, pulse: pulse{asked: moment{at: never}, weighed: never, waiting: map[*waiter]struct{}{}}}
			c.box(b)
			var got time.Duration
			for now := deadlineInterval; now < time.Hour && got == 0; now += deadlineInterval {
				if probe, weigh := b.beat(now, cfg); weigh {
					t.Fatal("it is judged before it was asked")
				} else if probe {
					got = now
				}
			}
			if got != c.want {
				t.Errorf("asked after %v, want %v", got, c.want)
			}
		})
	}
}

// A guest in whose sandbox nothing has run since it answered is not woken to say that it is there;
// one in which something has is, and each is now and then, since what stops it may come from outside.
func TestGuestThatIsAsItWasIsLeftAlone(t *testing.T) {
	for name, c := range map[string]struct {
		burnt time.Duration // meanwhile
		asked time.Duration // since the first question
	}{
		"nothing ran":    {0, askedAnyway * 5 * time.Minute},
		"its clocks did": {asItWas - time.Millisecond, askedAnyway * 5 * time.Minute},
		"something ran":  {asItWas, 10 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			rec := b.start()
			b.pass(rec, 6*time.Minute)
			bx := b.find(rec.ID)
			bx.mu.Lock()
			first := bx.pulse.resting
			bx.mu.Unlock()
			if first < 4*time.Minute || first > 6*time.Minute {
				t.Fatalf("asked after %v", first)
			}
			b.pass(rec, 5*time.Minute) // as it was
			b.fallSilent(rec, (*fake.Guest).Silence, true)
			b.host.Guest(rec.ID).Burn(c.burnt)
			open := func() bool {
				bx.mu.Lock()
				defer bx.mu.Unlock()
				return bx.pulse.silent
			}
			for !open() && time.Duration(b.clock.Load())-first < 2*time.Hour {
				b.pass(rec, 10*time.Second)
			}
			if got := time.Duration(b.clock.Load()) - first; got < c.asked || got > c.asked+30*time.Second {
				t.Errorf("it is found to be silent after %v, asked after %v", got, c.asked)
			}
			b.tells(1)
		})
	}
}

// However a guest falls silent, whoever asks it for something hears within five seconds, it is
// told once, and once more when it answers again.
func TestGuestFallsSilent(t *testing.T) {
	for name, how := range map[string]func(*fake.Guest, bool){
		"it stands still": (*fake.Guest).Silence, "it speaks nonsense": (*fake.Guest).Garble, "it is mute": (*fake.Guest).Mute,
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, func(c *Config) { c.CallTimeout = time.Hour })
			rec := b.start()
			b.fallSilent(rec, how, true)
			over := make(chan error, 1)
			ctx := b.ctx()
			go func() {
				_, err := b.Processes(ctx, rec.ID, rec.Epoch)
				over <- err
			}()
			if name != "it speaks nonsense" { // that is an answer, of a kind
				b.awaitWaiters(rec, 1)
				b.pass(rec, 3500*time.Millisecond)
				select {
				case err := <-over:
					t.Fatalf("after 3.5 s: %v", err)
				default:
				}
			} else {
				_ = b.find(rec.ID).await(eagerAfter, func(error) {})
			}
			b.pass(rec, time.Second)
			wantError(t, "the call", ended(t, "the call", over), hutch.ErrGuestUnresponsive)
			b.pass(rec, 10*time.Second)
			b.fallSilent(rec, how, false)
			b.pass(rec, time.Minute)
			if told := b.tells(2); !slices.Equal(told, []string{"silent", "answers"}) {
				t.Errorf("told %q", told)
			}
			if _, err := b.Processes(b.ctx(), rec.ID, rec.Epoch); err != nil {
				t.Errorf("afterwards: %v", err)
			}
		})
	}
}

// awaitWaiters waits until n calls wait for the guest.
func (b *bench) awaitWaiters(rec hutch.Sandbox, n int) {
	b.t.Helper()
	bx := b.find(rec.ID)
	deadline := time.Now().Add(20 * time.Second)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		bx.mu.Lock()
		got := len(bx.pulse.waiting)
		bx.mu.Unlock()
		if got >= n {
			return
		}
		if <-tick.C; time.Now().After(deadline) {
			b.t.Fatalf("%d calls wait, want %d", got, n)
		}
	}
}

// A sandbox whose guest stays silent is ended, if that is the operator's will, and only then.
func TestSilentSandboxIsEnded(t *testing.T) {
	b := newBench(t, func(c *Config) { c.EndSilent = time.Minute })
	rec, kept := b.start(), b.start()
	paused := b.start()
	if err := b.PauseSandbox(b.ctx(), paused.ID, paused.Epoch+1); err != nil {
		t.Fatal(err)
	}
	b.host.Guest(rec.ID).Silence(true)
	b.host.Guest(paused.ID).Silence(true)
	b.deaf = true
	stop := b.find(rec.ID).await(eagerAfter, func(error) {})
	defer stop()
	b.pass(rec, time.Minute)
	b.settle(b.find(kept.ID))
	if told := b.tells(1); !slices.Equal(told, []string{"silent"}) {
		t.Errorf("after a minute, of which it was asked for less: told %q", told)
	}
	b.pass(rec, 2*time.Second)
	b.reports.until(t, "sandbox unresponsive")
	b.deaf = false
	b.pass(kept, 10*time.Minute)
	if told := b.tells(2); !slices.Equal(told, []string{"silent", "sandbox unresponsive"}) {
		t.Errorf("told %q", told)
	}
	for _, r := range []hutch.Sandbox{kept, paused} {
		if _, err := b.box(r.ID, r.Epoch+1); err != nil {
			t.Errorf("another sandbox: %v", err)
		}
	}
	b.host.Guest(paused.ID).Silence(false)
	if err := b.ResumeSandbox(b.ctx(), paused.ID, paused.Epoch+2); err != nil {
		t.Errorf("the paused one: %v", err)
	}
}

// What keeps the node itself from running is not held against the guests.
func TestTimeThatTheNodeDoesNotRun(t *testing.T) {
	b := newBench(t, func(c *Config) { c.EndSilent = time.Minute })
	rec := b.start()
	b.host.Guest(rec.ID).Silence(true)
	b.deaf = true
	stop := b.find(rec.ID).await(eagerAfter, func(err error) { t.Errorf("a call was ended: %v", err) })
	for range 3 {
		b.tick(time.Hour) // the host was suspended
	}
	stop()
	b.host.Guest(rec.ID).Silence(false)
	b.deaf = false
	b.pass(rec, 20*time.Second)
	if _, err := b.Processes(b.ctx(), rec.ID, rec.Epoch); err != nil {
		t.Error(err)
	}
	b.reports.mu.Lock()
	defer b.reports.mu.Unlock()
	if len(b.reports.told) > 0 {
		t.Errorf("told %q", b.reports.told)
	}
}

// An answer that comes late is one.
func TestLateAnswer(t *testing.T) {
	b := newBench(t, func(c *Config) { c.EndSilent = 5 * time.Second })
	rec := b.start()
	g := b.host.Guest(rec.ID)
	ctx := b.ctx()
	for range 5 { // each time it is late, and each time it comes
		b.deaf = true
		g.Silence(true)
		over := make(chan error, 1)
		ready := len(b.find(rec.ID).pulse.waiting) + 1
		go func() {
			_, err := b.Processes(ctx, rec.ID, rec.Epoch)
			over <- err
		}()
		b.awaitWaiters(rec, ready)
		b.pass(rec, 3*time.Second)
		g.Silence(false)
		b.deaf = false
		if err := ended(t, "the call", over); err != nil && !errors.Is(err, context.Canceled) {
			t.Errorf("a call that was answered late: %v", err)
		}
		b.pass(rec, time.Second)
	}
	b.reports.mu.Lock()
	defer b.reports.mu.Unlock()
	if len(b.reports.told) > 0 {
		t.Errorf("told %q", b.reports.told)
	}
}

func (b *box) isEnding() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.ending != ""
}

// A guest that the host keeps from its work is not held to be silent for that. Only for so long,
// since one that wants every CPU and answers nobody looks alike.
func TestGuestOnABusyHost(t *testing.T) {
	for name, c := range map[string]struct {
		ran, waited time.Duration    // in each half second
		over        [2]time.Duration // when the call is, at the earliest and the latest
	}{
		"an idle host":                 {0, 0, [2]time.Duration{3 * time.Second, 5 * time.Second}},
		"a host that takes a quarter":  {0, 125 * time.Millisecond, [2]time.Duration{4 * time.Second, 6 * time.Second}},
		"a host that takes all":        {10 * time.Millisecond, 2 * time.Second, [2]time.Duration{12 * time.Second, 14 * time.Second}},
		"its own programs take a CPU":  {500 * time.Millisecond, 2 * time.Second, [2]time.Duration{3 * time.Second, 5 * time.Second}},
		"they share one with the host": {250 * time.Millisecond, time.Second, [2]time.Duration{6 * time.Second, 8 * time.Second}},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, func(c *Config) { c.EndSilent = 10 * time.Second })
			rec := b.start()
			g := b.host.Guest(rec.ID)
			b.fallSilent(rec, (*fake.Guest).Silence, true)
			var now, over time.Duration
			bx := b.find(rec.ID)
			stop := bx.await(eagerAfter, func(error) { over = now })
			defer stop()
			for now < 5*time.Minute && b.find(rec.ID) == bx && !bx.isEnding() {
				now += deadlineInterval
				g.Turns(c.ran, c.waited)
				b.pass(rec, deadlineInterval)
			}
			if over < c.over[0] || over > c.over[1] {
				t.Errorf("the call was over after %v, want %v to %v", over, c.over[0], c.over[1])
			}
			// The same for the end: asked after a second, three and a third times as patient.
			if least, most := (c.over[0]-time.Second)*10/3, c.over[1]*10/3+time.Second; now < least || now > most {
				t.Errorf("it was ended after %v, want %v to %v", now, least, most)
			}
			b.reports.until(t, "sandbox unresponsive")
		})
	}
}

// What has come and was not read yet may be the answer: the time it lies there is this
// process's own.
func TestAnswerThatIsNotReadYet(t *testing.T) {
	cfg := Config{Answer: 3 * time.Second, Idle: time.Minute, EndSilent: 10 * time.Second}
	for _, unread := range []bool{false, true} {
		b := &box{clock: &atomic.Int64{}, pulse: pulse{asked: moment{at: time.Second}, weighed: never, waiting: map[*waiter]struct{}{}}}
		var told, over time.Duration
		for now := time.Second; over == 0; now += deadlineInterval {
			_, end := b.judge(now, turns{}, unread, cfg)
			if b.pulse.silent && told == 0 {
				told = now - time.Second
			}
			if end {
				over = now - time.Second
			}
		}
		want := [2]time.Duration{3 * time.Second, 10 * time.Second}
		if unread {
			want = [2]time.Duration{mercy * 3 * time.Second, mercy * 10 * time.Second}
		}
		if got := [2]time.Duration{told, over}; got != want {
			t.Errorf("unread %v: told and ended after %v, want %v", unread, got, want)
		}
	}
}
