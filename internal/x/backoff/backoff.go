// Package backoff computes how long to wait before trying again.
//
// It owns the arithmetic only: an exponential ceiling and full jitter under it, so
// that callers refused together do not come back together. It does not decide what
// may be tried again, and it keeps no state. Chance and the clock are handed in.
//
// Start with [Policy.Delay].
package backoff

import (
	"context"
	"time"
)

// Policy is a ceiling that doubles from Base to Cap.
type Policy struct {
	Base time.Duration // ceiling of the first wait; must be positive
	Cap  time.Duration // ceiling of every later one
}

// Ceiling is the longest that the wait after failed attempt n may be; n counts from 0.
func (p Policy) Ceiling(n int) time.Duration {
	d := p.Base
	for range n {
		if d >= p.Cap/2 {
			return p.Cap
		}
		d *= 2
	}
	return min(d, p.Cap)
}

// Delay is the wait after failed attempt n: evenly distributed between zero and the
// ceiling. random returns a number in [0, 1).
func (p Policy) Delay(n int, random func() float64) time.Duration {
	return time.Duration(random() * float64(p.Ceiling(n)))
}

// Sleep waits for d or until ctx ends, whose cause it then returns.
func Sleep(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return context.Cause(ctx)
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-t.C:
		return nil
	}
}
