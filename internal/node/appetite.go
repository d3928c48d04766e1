package node

import (
	"context"
	"math"
	"sync"
	"time"

	"hutch.dev/hutch/internal/runtime"
)

// Sandboxes that keep the CPUs busy stand back behind those that want one now and then, so that
// what somebody waits for is not kept waiting by what runs for minutes: a scheduler with
// feedback, over sandboxes instead of processes. Where there is CPU enough for all, standing
// back costs nothing; beside others that do, neither.
const (
	// appetiteInterval is how often sandboxes are looked at that may be hungry.
	appetiteInterval = 100 * time.Millisecond
	// calmLooks is how many of those looks are made at once while nobody may be hungry: a machine
	// on which nothing happens is woken as seldom.
	calmLooks = 5
	// A sandbox that takes more than hungryFrom CPUs stands back, until it takes fewer than
	// sated. Between the two it stays what it is, so that it does not flap.
	hungryFrom, sated = 0.25, 0.12
	// One that stands back takes little also where others leave it no more. So only one that
	// takes next to nothing, below crumb, is sated at once; any other has to take few CPUs for
	// all of doubt, and if it was starved it shows its hunger again within two looks. Without
	// it all of those that burn would take turns in not standing back, whenever somebody is
	// let ahead of them.
	crumb = 0.02
	doubt = 5 * time.Second
	// appetiteMemory is how far back what a sandbox took weighs in what it is said to take:
	// shorter than a second, as those beside it suffer meanwhile, and longer than the start of a
	// program, which is no sign of hunger.
	appetiteMemory = 200 * time.Millisecond
	// roundOf is in how many looks each sandbox has its turn that nothing is known to run in: a
	// thousand of them should cost next to nothing.
	roundOf = 64
)

// appetite is how much CPU a sandbox takes, and what follows from that.
type appetite struct {
	mu     sync.Mutex // held while the runtime is told
	at     time.Time  // of the last look
	cpu    time.Duration
	rate   float64 // CPUs
	hungry bool
	little time.Time // since when it has been taking fewer than sated; zero: it does not
	asked  int       // calls into it that wait for an answer
	told   bool      // the runtime has been told
	yields bool      // what it was told last
}

// note takes in that the sandbox had used so much CPU time by now. One that takes none for long
// has had its last meal forgotten.
func (a *appetite) note(now time.Time, cpu time.Duration) {
	passed := now.Sub(a.at)
	if a.at.IsZero() || passed <= 0 || cpu < a.cpu {
		a.at, a.cpu = now, cpu
		return
	}
	old := math.Exp(-float64(passed) / float64(appetiteMemory))
	a.rate = old*a.rate + (1-old)*float64(cpu-a.cpu)/float64(passed)
	a.at, a.cpu = now, cpu
	switch {
	case a.rate >= sated:
		a.hungry, a.little = a.hungry || a.rate > hungryFrom, time.Time{}
	case a.little.IsZero():
		a.little = now
	}
	if a.rate < crumb || !a.little.IsZero() && now.Sub(a.little) >= doubt {
		a.hungry = false
	}
}

// settleLocked tells the runtime whether the sandbox stands back: one that is hungry does, but
// for the time in which somebody waits for it to answer. What fails is not tried again before
// there is something else to tell.
func (b *box) settleLocked() error {
	a := &b.appetite
	want := a.hungry && a.asked == 0
	y, ok := b.sb.(runtime.Yielding)
	if !ok || a.told && a.yields == want {
		return nil
	}
	a.told, a.yields = true, want
	return y.Yield(want)
}

// favour has a sandbox not stand back, until release is called.
func (b *box) favour() (release func()) {
	a := &b.appetite
	a.mu.Lock()
	defer a.mu.Unlock()
	a.asked++
	if a.yields {
		_ = b.settleLocked() // it is slower then, no more
	}
	return func() { // it stands back again at once: somebody may be waiting for another one
		a.mu.Lock()
		defer a.mu.Unlock()
		a.asked--
		if a.hungry {
			_ = b.settleLocked() // it is tried again when it is hungry anew
		}
	}
}

// taste looks at what a sandbox takes.
func (b *box) taste(now time.Time) error {
	cpu := b.cpu()
	if cpu == unknown {
		return nil
	}
	a := &b.appetite
	a.mu.Lock()
	defer a.mu.Unlock()
	a.note(now, cpu)
	return b.settleLocked()
}

// mayBeHungry reports whether something runs in the sandbox that somebody knows of, or it has
// been hungry.
func (b *box) mayBeHungry() bool {
	b.mu.Lock()
	busy := len(b.watched) > 0 || len(b.pulse.waiting) > 0
	b.mu.Unlock()
	b.appetite.mu.Lock()
	defer b.appetite.mu.Unlock()
	return busy || b.appetite.hungry || !b.appetite.told
}

// weighSandboxes looks at the sandboxes until ctx ends.
func (n *Node) weighSandboxes(ctx context.Context) {
	t := time.NewTimer(appetiteInterval)
	defer t.Stop()
	for round, looks := 0, 1; ; {
		select {
		case <-ctx.Done():
			return
		case now := <-t.C:
			busy := false
			for i := range looks {
				busy = n.tasteAll(now, round+i) || busy
			}
			next := 1
			if !busy {
				next = calmLooks
			}
			t.Reset(time.Duration(next) * appetiteInterval)
			round, looks = round+looks, next
		}
	}
}

// tasteAll looks at those that may be hungry, and at some of the others. It reports whether any
// may be.
func (n *Node) tasteAll(now time.Time, round int) (busy bool) {
	n.mu.Lock()
	all := make([]*box, 0, len(n.boxes))
	for _, b := range n.boxes {
		all = append(all, b)
	}
	n.mu.Unlock()
	for _, b := range all {
		may := b.mayBeHungry()
		busy = busy || may
		if may || b.turn%roundOf == round%roundOf {
			if err := b.taste(now); err != nil {
				n.log.Warn("a sandbox's weight can't be set; it keeps the one it has", "op", "weigh", "sandbox", b.id, "error", err)
			}
		}
	}
	return busy
}
