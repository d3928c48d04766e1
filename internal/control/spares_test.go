package control

import (
	"slices"
	"testing"
	"time"

	"hutch.dev/hutch"
)

func kind(image string) machineKind { return machineKind{image: image} }

// stood puts machines of a kind on the shelf, the first the oldest.
func (s *spares) stood(k machineKind, from time.Time, ids ...hutch.SandboxID) map[hutch.SandboxID]bool {
	alive := map[hutch.SandboxID]bool{}
	for i, id := range ids {
		s.making(id, k, from.Add(time.Duration(i)))
		s.standing(id)
		alive[id] = true
	}
	return alive
}

func TestSparesAreAsManyAsWereAskedFor(t *testing.T) {
	now := time.Now()
	a, b := kind("a"), kind("b")
	tests := map[string]struct {
		ask     func(s *spares)
		stand   map[machineKind][]hutch.SandboxID
		dead    []hutch.SandboxID
		tooMany []hutch.SandboxID
		wanting *machineKind
	}{
		"nobody asked":           {},
		"one asked":              {ask: func(s *spares) { s.note(a, now) }, wanting: &a},
		"one asked, one stands":  {ask: func(s *spares) { s.note(a, now) }, stand: map[machineKind][]hutch.SandboxID{a: {"1"}}},
		"two asked, one stands":  {ask: func(s *spares) { s.note(a, now); s.note(a, now) }, stand: map[machineKind][]hutch.SandboxID{a: {"1"}}, wanting: &a},
		"asked long ago":         {ask: func(s *spares) { s.note(a, now.Add(-2*time.Minute)) }, stand: map[machineKind][]hutch.SandboxID{a: {"1"}}, tooMany: []hutch.SandboxID{"1"}},
		"asked for less by now":  {ask: func(s *spares) { s.note(a, now.Add(-2*time.Minute)); s.note(a, now) }, stand: map[machineKind][]hutch.SandboxID{a: {"1", "2"}}, tooMany: []hutch.SandboxID{"2"}},
		"the other kind, later":  {ask: func(s *spares) { s.note(a, now.Add(-time.Second)); s.note(b, now) }, stand: map[machineKind][]hutch.SandboxID{a: {"1"}}, wanting: &b},
		"no room for the older":  {ask: func(s *spares) { s.note(a, now.Add(-1)); s.note(b, now); s.note(b, now); s.note(b, now) }, stand: map[machineKind][]hutch.SandboxID{a: {"1"}, b: {"2", "3", "4"}}, tooMany: []hutch.SandboxID{"1"}},
		"no more than the most":  {ask: func(s *spares) { s.note(a, now); s.note(a, now); s.note(a, now); s.note(a, now) }, stand: map[machineKind][]hutch.SandboxID{a: {"1", "2", "3"}}},
		"one that stands, dead":  {ask: func(s *spares) { s.note(a, now) }, stand: map[machineKind][]hutch.SandboxID{a: {"1"}}, dead: []hutch.SandboxID{"1"}, tooMany: []hutch.SandboxID{"1"}, wanting: &a},
		"of a kind that is gone": {ask: func(s *spares) { s.note(a, now); s.forget(a) }, stand: map[machineKind][]hutch.SandboxID{a: {"1"}}, tooMany: []hutch.SandboxID{"1"}},
	}
	for name, c := range tests {
		t.Run(name, func(t *testing.T) {
			s := newSpares(3, time.Minute)
			alive := map[hutch.SandboxID]bool{}
			for k, ids := range c.stand {
				for id := range s.stood(k, now, ids...) {
					alive[id] = !slices.Contains(c.dead, id)
				}
			}
			if c.ask != nil {
				c.ask(s)
			}
			tooMany, wanting := s.plan(now, alive)
			if !slices.Equal(tooMany, c.tooMany) || (wanting == nil) != (c.wanting == nil) || wanting != nil && *wanting != *c.wanting {
				t.Errorf("too many: %v, wanting: %v; want %v and %v", tooMany, wanting, c.tooMany, c.wanting)
			}
			for _, id := range c.tooMany { // nobody gets one that is to be removed
				s.giveBack(id)
			}
			if again, _ := s.plan(now, alive); len(again) != len(c.tooMany) {
				t.Errorf("asked again, %v are too many", again)
			}
		})
	}
}

func TestASpareIsHandedOutOnce(t *testing.T) {
	now := time.Now()
	s := newSpares(5, time.Minute)
	a := kind("a")
	s.stood(a, now, "1", "2")
	s.making("3", a, now)
	if _, ok := s.take(kind("b")); ok {
		t.Error("one of another kind was handed out")
	}
	first, _ := s.take(a)
	second, _ := s.take(a)
	if _, ok := s.take(a); ok || first != "1" || second != "2" {
		t.Errorf("handed out %q, %q and a third: %v", first, second, ok)
	}
	if tooMany, _ := s.plan(now, nil); len(tooMany) != 0 { // they are a create's
		t.Errorf("%v are to be removed that were handed out", tooMany)
	}
	if id, ok := s.doom(); ok {
		t.Errorf("%s is to be removed, and was handed out", id)
	}
	s.giveBack("2")
	if id, ok := s.take(a); !ok || id != "2" {
		t.Errorf("of what was given back got %q", id)
	}
	s.drop("2")
	s.giveBack("2") // too late: it is a sandbox's
	if id, ok := s.take(a); ok {
		t.Errorf("%q was handed out twice", id)
	}
	s.note(a, now)
	for none := range 2 { // a server that prepares none keeps no book
		n := newSpares(none, time.Minute)
		n.note(a, now)
		n.poke()
		if _, wanting := n.plan(now, nil); (wanting != nil) != (none > 0) || len(n.wake) != none {
			t.Errorf("of %d at the most %v is wanting", none, wanting)
		}
	}
}

func TestSparesTakeNothingFromSandboxes(t *testing.T) {
	host := Memory{TotalMB: 2048, AvailableMB: 2000}
	a := newAdmission(Config{
		Creates: 2, Queue: 1, MaxSandboxes: 3, Overcommit: 1, MemoryReserveMB: 1024,
		HostMemory: func() (Memory, error) { return host, nil },
	}, func(int) {})
	box := func(id hutch.SandboxID, mb int) hutch.Sandbox {
		return hutch.Sandbox{ID: id, Resources: hutch.Resources{MemoryMB: mb}}
	}
	spare := func(id hutch.SandboxID, mb int) bool {
		leave, ok := a.spare(box(id, mb))
		if ok {
			leave()
		}
		return ok
	}
	starting, err := a.enter(t.Context(), "p")
	if err != nil {
		t.Fatal(err)
	}
	if spare("s1", 64) {
		t.Error("one is prepared while another is started")
	}
	starting()
	if spare("s0", 1025) {
		t.Error("one is prepared with more memory than there is")
	}
	if !spare("s1", 512) || !spare("s2", 512) || spare("s3", 64) || a.crowded() {
		t.Error("prepared machines are counted as less or more than they are")
	}
	if err := a.ready(); err != nil { // they stand in nobody's way
		t.Errorf("ready: %v", err)
	}
	if err := a.reserve(box("s1", 512)); err != nil || a.crowded() { // the place becomes the sandbox's
		t.Errorf("the sandbox of a prepared machine: %v, crowded %v", err, a.crowded())
	}
	if err := a.reserve(box("x", 512)); err != nil || !a.crowded() {
		t.Errorf("a sandbox in a prepared machine's place: %v, crowded %v", err, a.crowded())
	}
	a.unspare("s2")
	a.unspare("s2")
	if a.crowded() || a.spareMB != 0 {
		t.Errorf("crowded by nothing, %d MiB", a.spareMB)
	}
	a.unreserve("s1")
	a.unreserve("x")
	if !spare("s4", 64) {
		t.Error("there is room again, and none is prepared")
	}
	host.AvailableMB = 1000
	if !a.crowded() || spare("s5", 64) {
		t.Error("a host that is short of memory keeps its prepared machines, or makes more")
	}
	host.AvailableMB = 2000
	for _, id := range []hutch.SandboxID{"1", "2", "3"} {
		if err := a.reserve(box(id, 1)); err != nil {
			t.Fatal(err)
		}
	}
	if !a.crowded() {
		t.Error("more sandboxes and prepared machines than the server may have")
	}
	leave, err := a.enter(t.Context(), "p")
	if err != nil {
		t.Fatal(err)
	}
	a.unspare("s4")
	over := a.stop()
	leave()
	<-over
	a.unreserve("1")
	if spare("s6", 1) {
		t.Error("a server that stops prepares one")
	}
}

// What the guest of a machine is told ahead is what the last one of its kind was told, for as long as
// its kind is asked for.
func TestSparesKnowWhatIsTold(t *testing.T) {
	s := newSpares(1, time.Minute)
	k, now := kind("a"), time.Now()
	s.tells(k, hutch.ProcessDefaults{User: "early"})
	if got := s.toldOf(k); got.User != "" {
		t.Errorf("of a kind that nobody asked for: %+v", got)
	}
	s.note(k, now)
	s.tells(k, hutch.ProcessDefaults{User: "user"})
	if got := s.toldOf(k); got.User != "user" || s.toldOf(kind("b")).User != "" {
		t.Errorf("told %+v", got)
	}
	s.plan(now.Add(time.Hour), nil)
	if got := s.toldOf(k); got.User != "" {
		t.Errorf("of a kind that is not asked for any more: %+v", got)
	}
	s.note(k, now)
	s.tells(k, hutch.ProcessDefaults{User: "user"})
	s.forget(k)
	if got := s.toldOf(k); got.User != "" {
		t.Errorf("of a kind that was forgotten: %+v", got)
	}
}
