package bench

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"hutch.dev/hutch/client"
)

// RateLimit is how many creates a second there must be, in parts of the floor's, whatever
// the number at once.
const RateLimit = 0.8

func atOncePhase(n int) string { return fmt.Sprintf("%d at once", n) }

// Creates measures how many sandboxes a second can be made and ended, and how long each
// caller waits, when so many callers as s.Levels has each make one after the other. The
// floor is driven by as many, in turn with the server: s.N rounds of each, in each of
// which those are counted that are done within s.Window. It begins when as many are done as
// there are callers, so what is counted is the steady state. When it is ended early the report is of
// the rounds until then, and the error says why.
func Creates(ctx context.Context, s Settings, c *client.Client, floor *Floor, progress func(done int)) (*Report, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, s.Limit, errLimit)
	defer cancel()
	rep, err := begin(ctx, "creates", s, c)
	if err != nil {
		return nil, err
	}
	subjects := []maker{{SubjectHutch, func(ctx context.Context, t *clock) error { return cycleRun(ctx, c, s, t) }}}
	if s.Baseline {
		like := *rep.Settings.Sandbox
		subjects = append(subjects, maker{SubjectFloor, func(ctx context.Context, t *clock) error { return floor.cycleRun(ctx, like, t) }})
	}
	b := &book{}
	err = s.rounds(ctx, b, subjects, progress)
	return rep.conclude(b, err)
}

// maker makes a sandbox and ends it.
type maker = subject

// rounds has all subjects take turns at every level. The order alternates, and the levels
// are gone through in every round, so that whatever else the machine does weighs on all alike.
func (s Settings) rounds(ctx context.Context, b *book, subjects []maker, progress func(done int)) error {
	done := 0
	for round := 1; round <= s.N; round++ {
		for _, level := range s.Levels {
			turn := slices.Clone(subjects)
			if round%2 == 0 {
				slices.Reverse(turn)
			}
			for _, sub := range turn {
				p := b.page(atOncePhase(level), sub.name, round)
				if err := sustain(ctx, p, level, s.Window, sub.run); err != nil {
					return err
				}
			}
			if done++; progress != nil {
				progress(done)
			}
		}
	}
	return nil
}

// window is the time in which runs are counted.
type window struct {
	mu     sync.Mutex
	warm   int       // runs still to end before it opens
	opened time.Time // zero before
	length time.Duration
	done   int
}

// ended notes the end of a run. counted says whether it was in the window; it is closed
// once over is true.
func (w *window) ended(now time.Time, ok bool) (counted, over bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.opened.IsZero() {
		if w.warm--; w.warm <= 0 {
			w.opened = now
		}
		return false, false
	}
	if now.Sub(w.opened) > w.length {
		return false, true
	}
	if ok {
		w.done++
	}
	return true, false
}

// sustain has level callers run one thing after the other, until the window is over, and
// books the times of those in it, and their rate. What is under way at its end is finished
// off the clock.
func sustain(ctx context.Context, p page, level int, length time.Duration, run func(context.Context, *clock) error) error {
	w := &window{warm: level, length: length}
	var wg sync.WaitGroup
	for range level {
		wg.Go(func() {
			for ctx.Err() == nil {
				c := &clock{us: map[string]int64{}}
				rctx, cancel := context.WithTimeout(ctx, runLimit)
				err := run(rctx, c)
				cancel()
				counted, over := w.ended(time.Now(), err == nil)
				switch {
				case over || ctx.Err() != nil:
					return
				case err != nil:
					p.fault("%v", err)
					if p.b.hopeless(p.phase) != nil {
						return
					}
				case counted:
					p.times(c)
				}
			}
		})
	}
	wg.Wait()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err := p.b.hopeless(p.phase); err != nil {
		return err
	}
	p.add(MetricRate, PerKilosec, rate(w.done, length))
	return nil
}

// rate is how many in a thousand seconds.
func rate(done int, in time.Duration) int64 {
	return int64(float64(done)*1000/in.Seconds() + 0.5)
}

// cycleRun makes a sandbox through the API and ends it.
func cycleRun(ctx context.Context, c *client.Client, s Settings, t *clock) error {
	begun := time.Now()
	sb, err := c.CreateSandbox(ctx, s.request())
	if err != nil {
		return fmt.Errorf("create: %w", err)
	}
	t.since(MetricCreate, begun)
	ended := time.Now()
	if err := killBox(ctx, c, sb.ID); err != nil {
		return fmt.Errorf("kill: %w", err)
	}
	t.since(MetricKill, ended)
	return nil
}

// cycleRun is the same by hand.
func (f *Floor) cycleRun(ctx context.Context, like Sandbox, t *clock) error {
	begun := time.Now()
	b, err := f.start(ctx, like)
	if err != nil {
		return err
	}
	t.since(MetricCreate, begun)
	ended := time.Now()
	if err := b.kill(ctx); err != nil {
		return fmt.Errorf("kill: %w", err)
	}
	t.since(MetricKill, ended)
	return nil
}

// createsClaims are what is held of rates: the median of the rounds, over the floor's.
func createsClaims(fs figures) []Claim {
	var out []Claim
	for _, phase := range fs.phases(MetricRate) {
		if !strings.HasSuffix(phase, " at once") {
			continue
		}
		h, ok := fs.of(phase, MetricRate, SubjectHutch)
		f, ok2 := fs.of(phase, MetricRate, SubjectFloor)
		if ok && ok2 {
			out = append(out, atLeast("creates a second over the floor's, "+phase, over(h.P50, f.P50), RateLimit))
		}
	}
	return out
}
