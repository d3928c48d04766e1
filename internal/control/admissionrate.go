package control

import (
	"time"

	"hutch.dev/hutch"
)

// rates bounds how many creates a minute each project may ask for. A project may use a
// minute's worth at once, which then comes back evenly. It is not safe for concurrent use.
type rates struct {
	perMinute int // 0 = any
	of        map[hutch.ProjectID]rate
}

type rate struct {
	left float64
	at   time.Time // as of when
}

func newRates(perMinute int) *rates {
	return &rates{perMinute: perMinute, of: map[hutch.ProjectID]rate{}}
}

// take uses one of a project's creates at now, or says how long it is until there is one.
func (r *rates) take(p hutch.ProjectID, now time.Time) (wait time.Duration) {
	if r.perMinute == 0 {
		return 0
	}
	most, each := float64(r.perMinute), time.Minute/time.Duration(r.perMinute)
	x, ok := r.of[p]
	if !ok {
		x = rate{most, now}
	}
	if passed := now.Sub(x.at); passed > 0 { // a clock that was set back gives nothing
		x.left = min(most, x.left+float64(passed)/float64(each))
	}
	x.at = now
	if x.left < 1 {
		wait = time.Duration((1 - x.left) * float64(each))
	} else {
		x.left--
	}
	r.of[p] = x
	return wait
}

// giveBack returns one that came to nothing.
func (r *rates) giveBack(p hutch.ProjectID) {
	if x, ok := r.of[p]; ok {
		x.left = min(float64(r.perMinute), x.left+1)
		r.of[p] = x
	}
}
