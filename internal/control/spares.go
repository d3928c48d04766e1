package control

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/x/id"
)

// sparePause is how long after a create the next machine is prepared at the earliest: the first
// command of what was just made comes first. On 2 CPUs it has printed 20 ms after the create.
const sparePause = 100 * time.Millisecond

// machineKind is what two sandboxes share if one can be started on a machine that was prepared
// for the other.
type machineKind struct {
	image     string
	profile   hutch.Profile
	resources hutch.Resources
}

func kindOf(sb hutch.Sandbox) machineKind { return machineKind{sb.Image, sb.Profile, sb.Resources} }

// spareState is what a prepared machine is to whoever looks for one.
type spareState int

const (
	spareMade   spareState = iota // being made
	spareReady                    // stands, and is nobody's
	spareTaken                    // its id was handed out to a create
	spareDoomed                   // to be removed
)

type spare struct {
	kind  machineKind
	since time.Time
	state spareState
}

// spares knows which machines were prepared ahead, and how many are worth it: of each kind as
// many as were asked for within a while, and no more than most in all, those first whose kind was asked
// for last. It decides; the machines are the node's.
type spares struct {
	most int           // in all; 0 = none is ever made
	keep time.Duration // how long a create counts
	wake chan struct{} // a create has ended

	mu    sync.Mutex
	asked map[machineKind][]time.Time           // the latest creates, most at the most, oldest first
	told  map[machineKind]hutch.ProcessDefaults // what the guest of the last one was told, which the next one's may be
	all   map[hutch.SandboxID]*spare
}

func newSpares(most int, keep time.Duration) *spares {
	return &spares{
		most: most, keep: keep, wake: make(chan struct{}, 1),
		asked: map[machineKind][]time.Time{}, told: map[machineKind]hutch.ProcessDefaults{}, all: map[hutch.SandboxID]*spare{},
	}
}

// note counts a create.
func (s *spares) note(k machineKind, now time.Time) {
	if s.most == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	l := append(s.asked[k], now)
	s.asked[k] = slices.Clone(l[max(0, len(l)-s.most):])
}

// forget drops what was counted of a kind.
func (s *spares) forget(k machineKind) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.asked, k)
	delete(s.told, k)
}

// tells says what the guest of a sandbox of a kind, which was noted, is told.
func (s *spares) tells(k machineKind, d hutch.ProcessDefaults) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.asked[k]) > 0 {
		s.told[k] = d
	}
}

// toldOf is what the guest of a machine of a kind is likely to be told.
func (s *spares) toldOf(k machineKind) hutch.ProcessDefaults {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.told[k]
}

// poke says that a create has ended.
func (s *spares) poke() {
	if s.most == 0 {
		return
	}
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// take hands out the machine of a kind that has stood longest.
func (s *spares) take(k machineKind) (hutch.SandboxID, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	id, ok := s.oldestLocked(func(x *spare) bool { return x.state == spareReady && x.kind == k })
	if ok {
		s.all[id].state = spareTaken
	}
	return id, ok
}

// giveBack takes back a machine that was handed out and not used.
func (s *spares) giveBack(id hutch.SandboxID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if x := s.all[id]; x != nil && x.state == spareTaken {
		x.state = spareReady
	}
}

// doom chooses the machine that has stood longest, of any kind, to be removed.
func (s *spares) doom() (hutch.SandboxID, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	id, ok := s.oldestLocked(func(x *spare) bool { return x.state == spareReady })
	if ok {
		s.all[id].state = spareDoomed
	}
	return id, ok
}

func (s *spares) oldestLocked(which func(*spare) bool) (oldest hutch.SandboxID, found bool) {
	for id, x := range s.all {
		if which(x) && (!found || x.since.Before(s.all[oldest].since)) {
			oldest, found = id, true
		}
	}
	return oldest, found
}

// making says that a machine is being made, standing that it is there.
func (s *spares) making(id hutch.SandboxID, k machineKind, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all[id] = &spare{kind: k, since: now}
}

func (s *spares) standing(id hutch.SandboxID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all[id].state = spareReady
}

// drop forgets a machine: it is a sandbox's now, or is gone.
func (s *spares) drop(id hutch.SandboxID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.all, id)
}

// empty reports whether there is none to hand out, of any kind.
func (s *spares) empty() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.all) == 0
}

// standingOf counts those that a create can be given; alive names those whose processes live.
func (s *spares) standingOf(alive map[hutch.SandboxID]bool) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, x := range s.all {
		if x.state == spareReady && alive[id] {
			n++
		}
	}
	return n
}

// plan says which machines are too many, and of which kind one is wanting. Alive names those
// whose processes live: the others are too many.
func (s *spares) plan(now time.Time, alive map[hutch.SandboxID]bool) (tooMany []hutch.SandboxID, wanting *machineKind) {
	s.mu.Lock()
	defer s.mu.Unlock()
	have := map[machineKind][]hutch.SandboxID{}
	for id, x := range s.all {
		if x.state == spareReady && !alive[id] {
			x.state = spareDoomed
		}
		switch x.state {
		case spareDoomed:
			tooMany = append(tooMany, id)
		case spareReady, spareMade:
			have[x.kind] = append(have[x.kind], id)
		case spareTaken: // no longer there for others
		}
	}
	room := s.most
	for _, k := range s.wantedLocked(now) {
		want := min(len(s.asked[k]), room)
		room -= want
		if len(have[k]) < want && wanting == nil {
			wanting = &k
		}
		tooMany = append(tooMany, s.beyondLocked(have[k], want)...)
		delete(have, k)
	}
	for _, ids := range have { // of kinds that nobody asks for any more
		tooMany = append(tooMany, s.beyondLocked(ids, 0)...)
	}
	return tooMany, wanting
}

// wantedLocked forgets the creates that are too long ago, and returns the kinds that are still
// asked for, the one asked for last first.
func (s *spares) wantedLocked(now time.Time) []machineKind {
	for k, l := range s.asked {
		l = slices.DeleteFunc(l, func(at time.Time) bool { return now.Sub(at) > s.keep })
		if s.asked[k] = l; len(l) == 0 {
			delete(s.asked, k)
			delete(s.told, k)
		}
	}
	last := func(k machineKind) time.Time { return s.asked[k][len(s.asked[k])-1] }
	return slices.SortedFunc(maps.Keys(s.asked), func(a, b machineKind) int { return last(b).Compare(last(a)) })
}

// beyondLocked dooms what stands beyond a number of one kind: those made last, since those made
// first are handed out first.
func (s *spares) beyondLocked(ids []hutch.SandboxID, want int) (doomed []hutch.SandboxID) {
	slices.SortFunc(ids, func(a, b hutch.SandboxID) int {
		return cmp.Or(s.all[a].since.Compare(s.all[b].since), cmp.Compare(a, b))
	})
	for _, id := range ids[min(want, len(ids)):] {
		if s.all[id].state == spareReady {
			s.all[id].state = spareDoomed
			doomed = append(doomed, id)
		}
	}
	return doomed
}

// ClaimPrepared returns the id of a machine that was prepared for a sandbox like the one asked
// for, empty if there is none: the sandbox that is then made under that id is started on it.
// Release must be called after that; what was not used is there for others again. Nothing is
// recorded of a claim, so its id can be part of what a caller has on record before it asks:
// an id that never comes to name a sandbox is swept from the host.
func (c *Control) ClaimPrepared(ctx context.Context, req hutch.CreateSandbox) (_ hutch.SandboxID, release func()) {
	none := func() {}
	if c.spares.empty() {
		return "", none
	}
	t, err := c.store.Template(ctx, req.Template)
	if err != nil {
		return "", none // which the create itself will say
	}
	if req.ID == "" {
		req.ID = hutch.SandboxID(id.NewSandbox())
	}
	sb, err := c.plan(req, t, time.Now())
	if err != nil {
		return "", none
	}
	claimed, ok := c.spares.take(kindOf(sb))
	if !ok {
		return "", none
	}
	return claimed, func() { c.spares.giveBack(claimed) }
}

// PreparedMachines is how many stand ready for a create.
func (c *Control) PreparedMachines() int { return c.spares.standingOf(c.nodes.Prepared()) }

// preparing keeps as many machines ready as are worth it, until ctx ends.
func (c *Control) preparing(ctx context.Context) {
	if c.spares.most == 0 {
		return
	}
	t := time.NewTicker(c.cfg.SweepInterval)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		case <-c.spares.wake:
			select {
			case <-ctx.Done():
				return
			case <-time.After(sparePause):
			}
			if len(c.spares.wake) > 0 { // another create has ended meanwhile
				continue
			}
		}
		c.prepare(ctx)
	}
}

// prepare removes the machines that are too many, and makes those that are wanting, one by one
// and only while nothing is being started for a caller.
func (c *Control) prepare(ctx context.Context) {
	c.makeRoom(ctx)
	for ctx.Err() == nil {
		tooMany, wanting := c.spares.plan(time.Now(), c.nodes.Prepared())
		for _, id := range tooMany {
			c.discard(ctx, id)
		}
		if wanting == nil || !c.prepareOne(ctx, *wanting) {
			return
		}
	}
}

// prepareOne makes a machine, if there is room for it.
func (c *Control) prepareOne(ctx context.Context, k machineKind) bool {
	sid := id.NewSandbox()
	sb := hutch.Sandbox{ID: hutch.SandboxID(sid), Hostname: sid, Image: k.image, Profile: k.profile, Resources: k.resources, Defaults: c.spares.toldOf(k)}
	leave, ok := c.admission.spare(sb)
	if !ok {
		return false
	}
	defer leave()
	c.spares.making(sb.ID, k, time.Now())
	if err := c.nodes.Prepare(ctx, sb); err != nil {
		c.spares.drop(sb.ID)
		c.admission.unspare(sb.ID)
		c.spares.forget(k) // until the next one asks
		if ctx.Err() == nil {
			c.log.Warn("no machine could be prepared", "op", "prepare", "sandbox", sb.ID, "error", err)
		}
		return false
	}
	c.spares.standing(sb.ID)
	return true
}

// discard removes a doomed machine. One that cannot be removed stays doomed.
func (c *Control) discard(ctx context.Context, id hutch.SandboxID) {
	ctx, cancel := finish(ctx, finishTimeout)
	defer cancel()
	if err := c.nodes.Discard(ctx, id); err != nil {
		c.log.Error("a prepared machine cannot be removed", "op", "prepare", "sandbox", id, "error", err)
		return
	}
	c.spares.drop(id)
	c.admission.unspare(id)
}

// makeRoom removes prepared machines until the limits hold of them and all sandboxes together.
func (c *Control) makeRoom(ctx context.Context) {
	for c.admission.crowded() {
		id, ok := c.spares.doom()
		if !ok {
			return
		}
		c.discard(ctx, id)
	}
}

// removeSpares removes every prepared machine.
func (c *Control) removeSpares(ctx context.Context) {
	for id, ok := c.spares.doom(); ok; id, ok = c.spares.doom() {
		c.discard(ctx, id)
	}
}
