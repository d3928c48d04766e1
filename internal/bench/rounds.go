package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"
)

// maxInARow is how many failures of one subject in a row end a benchmark: the machine or
// the server is broken then, and going on would only take time.
const maxInARow = 10

// Run is one run of one subject, in the order they were made.
type Run struct {
	Series  string           `json:"series,omitempty"` // what kind of run, when there are several
	Subject string           `json:"subject"`
	Pair    int              `json:"pair"`         // from 1; runs of both subjects with one number belong together
	US      map[string]int64 `json:"us,omitempty"` // microseconds by metric
	Error   string           `json:"error,omitempty"`
}

func (r Run) pairKey() string { return r.Series + "/" + strconv.Itoa(r.Pair) }

// subject is something that is measured.
type subject struct {
	name string
	// run does one run and books its times. Whatever it does before the first and after
	// the last of them is on nobody's clock.
	run func(ctx context.Context, c *clock) error
}

// clock books the times of one run.
type clock struct{ us map[string]int64 }

// since books the time from then to now.
func (c *clock) since(metric string, then time.Time) { c.book(metric, time.Since(then)) }

func (c *clock) book(metric string, d time.Duration) { c.us[metric] = d.Microseconds() }

// series is a number of runs of all subjects.
type series struct {
	name     string // in Run.Series
	n        int    // counted runs of each subject
	warmup   int
	parallel int
	limit    time.Duration // for a single run
	progress func(done int)
}

// errLimit is why a benchmark that took too long was ended.
var errLimit = errors.New("the time limit of the benchmark was reached")

// batch is a number of runs of one subject that are made at once.
type batch struct {
	first   int // number of the first pair
	n       int
	counted bool
}

// batches is the series cut into batches, the warm-up first.
func (s series) batches() []batch {
	var out []batch
	cut := func(total int, counted bool) {
		for done := 0; done < total; done += s.parallel {
			out = append(out, batch{first: done + 1, n: min(s.parallel, total-done), counted: counted})
		}
	}
	cut(s.warmup, false)
	cut(s.n, true)
	return out
}

// measure makes the runs of a series, pair by pair. A failed run is a result. An error
// says why there are fewer runs than asked for; those that there are are returned with it.
func measure(ctx context.Context, s series, subjects []subject) ([]Run, error) {
	var runs []Run
	inARow := map[string]int{}
	for i, b := range s.batches() {
		turn := slices.Clone(subjects)
		if i%2 == 1 { // neither subject may profit from always coming second
			slices.Reverse(turn)
		}
		for _, sub := range turn {
			got := s.atOnce(ctx, sub, b)
			if ctx.Err() != nil {
				return runs, context.Cause(ctx)
			}
			if b.counted {
				runs = append(runs, got...)
			}
			for _, r := range got {
				if r.Error == "" {
					inARow[sub.name] = 0
				} else if inARow[sub.name]++; inARow[sub.name] >= maxInARow {
					return runs, fmt.Errorf("%d runs of %s failed in a row, the last one: %s", maxInARow, sub.name, r.Error)
				}
			}
		}
		if s.progress != nil && b.counted {
			s.progress(b.first - 1 + b.n)
		}
	}
	return runs, nil
}

// atOnce makes a batch of runs of a subject side by side.
func (s series) atOnce(ctx context.Context, sub subject, b batch) []Run {
	out := make([]Run, b.n)
	var wg sync.WaitGroup
	for i := range out {
		wg.Go(func() {
			c := &clock{us: map[string]int64{}}
			rctx, cancel := context.WithTimeoutCause(ctx, s.limit, fmt.Errorf("the run took longer than %s", s.limit))
			defer cancel()
			out[i] = Run{Series: s.name, Subject: sub.name, Pair: b.first + i, US: c.us}
			if err := sub.run(rctx, c); err != nil {
				if rctx.Err() != nil {
					err = fmt.Errorf("%w: %w", context.Cause(rctx), err)
				}
				out[i].Error = err.Error()
			}
		})
	}
	wg.Wait()
	return out
}
