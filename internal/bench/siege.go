package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

// What a siege may cost those who are not part of it, and those who have to end it.
const (
	// SiegeLimit is how long a neighbour's command may take at p99, in multiples of what the
	// floor's takes under the same load.
	SiegeLimit = 3.0
	// ControlLimit bounds every call that controls a sandbox under load.
	ControlLimit = time.Second
)

// What is measured of a sandbox under load, besides its end.
const (
	MetricList  = "list"  // asking which commands run in it, to the answer
	MetricRead  = "read"  // asking for a small file of it, to its last byte
	MetricAnew  = "anew"  // how often the load was begun anew because it had been ended
	MetricTaken = "taken" // how often the whole sandbox was, and another one took its place
)

// Phases of a siege, besides the name of each load.
const (
	phaseRest  = "no load"
	phaseSiege = "under siege"
)

// Siege puts a load of every kind under way, each in a sandbox of its own, and keeps all of them
// up while a command that does nothing is run again and again in a neighbour. Meanwhile each of
// the sandboxes under load is asked what whoever minds it would ask, and in the end it is
// killed. The floor has sandboxes of its own, neighbour and loads, and is besieged in turn with the
// server: s.Rounds rounds of each, of s.N commands each. When it is ended early the report is of
// the rounds until then, and the error says why.
func Siege(ctx context.Context, s Settings, srv Server, floor *Floor, progress func(done int)) (_ *Report, err error) {
	if srv.Host == nil {
		return nil, errOwn
	}
	ctx, cancel := context.WithTimeoutCause(ctx, s.Limit, errLimit)
	defer cancel()
	st, rep, err := stand(ctx, "siege", s, srv.API, floor)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, st.kill(ctx)) }()
	req := wardRequest(s)
	if rep.Settings.Loaded, err = learn(ctx, srv.API, req); err != nil {
		return nil, err
	}
	camps := []camp{{
		name: SubjectHutch, neighbour: &apiRunner{c: srv.API, sid: st.sid},
		found: func(ctx context.Context) (ward, error) { return makeAPIWard(ctx, srv, req) },
	}}
	if st.floor != nil {
		camps = append(camps, camp{
			name: SubjectFloor, neighbour: &floorRunner{b: st.floor},
			found: func(ctx context.Context) (ward, error) { return floor.makeWard(ctx, *rep.Settings.Loaded) },
		})
	}
	g := &siege{s: s, b: &book{}}
	return rep.conclude(g.b, g.rounds(ctx, camps, progress))
}

// siege is one run of the benchmark.
type siege struct {
	s Settings
	b *book
}

// camp is the sandboxes of a subject.
type camp struct {
	name      string
	neighbour commandRunner
	found     func(ctx context.Context) (ward, error) // makes a sandbox for a load
}

// rounds has the camps besieged in turn. The order alternates.
func (g *siege) rounds(ctx context.Context, camps []camp, progress func(done int)) error {
	for round := 1; round <= g.s.Rounds; round++ {
		turn := slices.Clone(camps)
		if round%2 == 0 {
			slices.Reverse(turn)
		}
		for _, c := range turn {
			if err := g.round(ctx, c, round); err != nil {
				return err
			}
		}
		if progress != nil {
			progress(round)
		}
	}
	return nil
}

// round measures a camp without load, then besieged. It leaves nothing but the neighbour.
func (g *siege) round(ctx context.Context, c camp, round int) (err error) {
	if err := g.trips(ctx, c.neighbour, g.b.page(phaseRest, c.name, round)); err != nil {
		return err
	}
	var posts []*post
	for _, l := range loads {
		posts = append(posts, &post{load: l, page: g.b.page(l.name, c.name, round), found: c.found})
	}
	defer func() { err = errors.Join(err, lift(ctx, posts)) }()
	if err := each(posts, func(p *post) error { return p.begin(ctx) }); err != nil {
		return err
	}
	over, stop := context.WithCancel(ctx)
	var minders sync.WaitGroup
	for _, p := range posts {
		minders.Go(func() { p.mind(ctx, over.Done()) })
	}
	err = g.trips(ctx, c.neighbour, g.b.page(phaseSiege, c.name, round))
	stop()
	minders.Wait()
	if err != nil {
		return err
	}
	for _, p := range posts {
		if err := errors.Join(p.weigh(ctx), g.b.hopeless(p.page.phase)); err != nil {
			return err
		}
	}
	return nil
}

// each calls f for all posts at once.
func each(posts []*post, f func(*post) error) error {
	var g errgroup.Group
	for _, p := range posts {
		g.Go(func() error {
			if err := f(p); err != nil {
				return fmt.Errorf("%s: %w", p.load.name, err)
			}
			return nil
		})
	}
	return g.Wait()
}

// trips runs s.N commands in the neighbour, one after the other, after some that are not counted.
func (g *siege) trips(ctx context.Context, r commandRunner, p page) error {
	for i := range g.s.Warmup + g.s.N {
		rctx, cancel := context.WithTimeout(ctx, runLimit)
		t := &clock{us: map[string]int64{}}
		err := tripRun(rctx, r, t)
		cancel()
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err != nil:
			p.fault("%v", err)
			if err := p.b.hopeless(p.phase); err != nil {
				return err
			}
		case i >= g.s.Warmup:
			p.times(t)
		}
	}
	return nil
}

// lift kills what is under load, all at once, also when ctx has ended, and books how long each
// kill took.
func lift(ctx context.Context, posts []*post) error {
	return each(posts, func(p *post) error {
		if p.ward == nil {
			return nil
		}
		begun := time.Now()
		if err := p.ward.kill(ctx); err != nil && !errors.Is(err, errTaken) {
			return fmt.Errorf("kill: %w", err)
		} else if err == nil {
			p.page.time(MetricKill, time.Since(begun))
		}
		p.ward = nil
		return nil
	})
}

// siegeClaims are what is held of a siege.
func siegeClaims(fs figures) []Claim {
	var out []Claim
	h, ok := fs.of(phaseSiege, MetricRoundTrip, SubjectHutch)
	f, ok2 := fs.of(phaseSiege, MetricRoundTrip, SubjectFloor)
	if ok && ok2 {
		out = append(out, atMost("a neighbour's command under siege, of the floor's at p99", over(h.P99, f.P99), SiegeLimit, "×"))
	}
	for _, l := range loads {
		slowest, asked := int64(0), false
		for _, m := range []string{MetricList, MetricRead, MetricKill} {
			if d, ok := fs.of(l.name, m, SubjectHutch); ok {
				slowest, asked = max(slowest, d.Max), true
			}
		}
		if asked {
			out = append(out, atMost("slowest call that controls the sandbox with the "+l.name, float64(slowest)/1000, float64(ControlLimit.Milliseconds()), "ms"))
		}
	}
	return out
}
