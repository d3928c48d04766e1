package hutch

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
)

var (
	allStates      = []State{StateNew, StateRunning, StatePaused, StateDead}
	allTransitions = []Transition{Starting, Pausing, Resuming, Killing}
)

// The whole table, written out a second time: what each state allows and where it leads.
func TestTransitionTable(t *testing.T) {
	leads := map[string]State{
		"new starting":    StateRunning,
		"new killing":     StateDead,
		"running pausing": StatePaused,
		"running killing": StateDead,
		"paused resuming": StateRunning,
		"paused killing":  StateDead,
	}
	for _, st := range allStates {
		for _, tr := range append(allTransitions, "", "unknown") {
			s := Sandbox{ID: "i1", State: st, Epoch: 7}
			err := s.Begin(tr)
			to, allowed := leads[fmt.Sprintf("%s %s", st, tr)]
			if !allowed {
				want := ErrInvalidState
				if st == StateDead {
					want = ErrSandboxGone
				}
				if !errors.Is(err, want) || s.State != st || s.Transition != "" || s.Epoch != 7 {
					t.Errorf("%s in %s: got %v and %+v; want %v and no change", tr, st, err, s, want)
				}
				continue
			}
			if err != nil || s.State != st || s.Transition != tr || s.Epoch != 8 {
				t.Errorf("%s in %s: got %v and %+v; want it under way at epoch 8", tr, st, err, s)
			}
			if err := s.Finish(tr, 8); err != nil || s.State != to || s.Transition != "" || s.Epoch != 8 {
				t.Errorf("the end of %s in %s: got %v and %+v; want %s", tr, st, err, s, to)
			}
		}
	}
}

// Only a kill overtakes, and only what is not a kill.
func TestOnlyAKillOvertakes(t *testing.T) {
	for _, under := range allTransitions {
		for _, tr := range allTransitions {
			for _, st := range allStates {
				s := Sandbox{ID: "i1", State: st}
				if s.Begin(under) != nil {
					continue
				}
				before := s
				err := s.Begin(tr)
				_, allowed := transitions[st][tr]
				switch {
				case !allowed:
					if !errors.Is(err, ErrInvalidState) {
						t.Errorf("%s in %s, %s: got %v, want ErrInvalidState", tr, st, under, err)
					}
				case tr == Killing && under != Killing:
					if err != nil || s.Transition != Killing || s.Epoch != before.Epoch+1 {
						t.Errorf("%s in %s, %s: got %v and %+v; want the kill under way", tr, st, under, err, s)
					}
					if err := s.Finish(under, before.Epoch); !errors.Is(err, ErrStale) {
						t.Errorf("the end of the overtaken %s: got %v, want ErrStale", under, err)
					}
					continue
				default:
					if !errors.Is(err, ErrConflict) {
						t.Errorf("%s in %s, %s: got %v, want ErrConflict", tr, st, under, err)
					}
				}
				if s.State != before.State || s.Transition != before.Transition || s.Epoch != before.Epoch {
					t.Errorf("a refused %s changed %+v to %+v", tr, before, s)
				}
			}
		}
	}
}

func TestFinishAndAbandonRefuseOldNews(t *testing.T) {
	for name, news := range map[string]func(*Sandbox, Transition, Epoch) error{"Finish": (*Sandbox).Finish, "Abandon": (*Sandbox).Abandon} {
		s := Sandbox{ID: "i1", State: StateRunning, Epoch: 4}
		if err := s.Begin(Pausing); err != nil {
			t.Fatal(err)
		}
		was := s
		for _, c := range []struct {
			tr Transition
			e  Epoch
		}{{Pausing, 4}, {Pausing, 6}, {Pausing, 0}, {Killing, 5}, {Resuming, 5}, {"", 5}, {"", 0}} {
			if err := news(&s, c.tr, c.e); !errors.Is(err, ErrStale) {
				t.Errorf("%s(%q, %d) while pausing at 5: got %v, want ErrStale", name, c.tr, c.e, err)
			}
			if s.State != was.State || s.Transition != was.Transition || s.Epoch != was.Epoch {
				t.Fatalf("%s of old news changed the sandbox to %+v", name, s)
			}
		}
		if err := news(&s, Pausing, 5); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if err := news(&s, Pausing, 5); !errors.Is(err, ErrStale) {
			t.Errorf("%s twice: got %v, want ErrStale", name, err)
		}
		// Nothing is under way now: news of nothing is refused too.
		if err := news(&s, "", s.Epoch); !errors.Is(err, ErrStale) {
			t.Errorf("%s of no transition: got %v, want ErrStale", name, err)
		}
	}
}

func TestAbandonLeavesTheState(t *testing.T) {
	s := Sandbox{ID: "i1", State: StatePaused}
	if err := s.Begin(Resuming); err != nil {
		t.Fatal(err)
	}
	if err := s.Abandon(Resuming, 1); err != nil || s.State != StatePaused || s.Transition != "" || s.Epoch != 1 {
		t.Errorf("Abandon: got %v and %+v; want paused at epoch 1", err, s)
	}
	if err := s.Begin(Resuming); err != nil || s.Epoch != 2 {
		t.Errorf("a second try: got %v at epoch %d, want epoch 2", err, s.Epoch)
	}
}

func TestEndKeepsTheFirstReason(t *testing.T) {
	for _, st := range []State{StateNew, StateRunning, StatePaused} {
		s := Sandbox{ID: "i1", State: st, Epoch: 3}
		if err := s.Begin(Killing); err != nil {
			t.Fatal(err)
		}
		s.End(EndOOM, "over its memory")
		s.End(EndKilled, "later")
		if s.State != StateDead || s.Transition != "" || s.Epoch != 5 || s.EndReason != EndOOM || s.EndDetail != "over its memory" {
			t.Errorf("from %s: %+v", st, s)
		}
		if err := s.Finish(Killing, 4); !errors.Is(err, ErrStale) {
			t.Errorf("the end of the kill it overtook: got %v, want ErrStale", err)
		}
		if err := s.Begin(Killing); !errors.Is(err, ErrSandboxGone) {
			t.Errorf("killing the dead: got %v, want ErrSandboxGone", err)
		}
	}
}

// model drives a sandbox with acts, some of them late or twice, and checks after each
// what must hold whatever happened.
type model struct {
	s     Sandbox
	begun []news // every transition ever begun
}

type news struct {
	tr Transition
	e  Epoch
}

func (m *model) act(t *testing.T, op, arg byte) {
	t.Helper()
	was := m.s
	what := ""
	var err error
	switch op % 4 {
	case 0:
		tr := append(allTransitions, "unknown")[int(arg)%5]
		what = fmt.Sprintf("begin %s", tr)
		if err = m.s.Begin(tr); err == nil {
			m.begun = append(m.begun, news{tr, m.s.Epoch})
		}
	case 1, 2:
		if len(m.begun) == 0 {
			return
		}
		n := m.begun[int(arg)%len(m.begun)]
		what = fmt.Sprintf("finish or abandon %s at %d", n.tr, n.e)
		f := m.s.Finish
		if op%4 == 2 {
			f = m.s.Abandon
		}
		err = f(n.tr, n.e)
		current := was.Transition != "" && n == m.begun[len(m.begun)-1]
		if (err == nil) != current {
			t.Fatalf("%s in %+v: got %v; it is the news of the transition under way: %v", what, was, err, current)
		}
	case 3:
		what = "end"
		m.s.End(EndCrashed, fmt.Sprint(arg))
	}
	m.check(t, what, was, err)
}

func (m *model) check(t *testing.T, what string, was Sandbox, err error) {
	t.Helper()
	now := m.s
	same := now.State == was.State && now.Transition == was.Transition && now.Epoch == was.Epoch && now.EndReason == was.EndReason && now.EndDetail == was.EndDetail
	switch {
	case err != nil && !same:
		t.Fatalf("%s failed with %v and changed %+v to %+v", what, err, was, now)
	case now.Epoch < was.Epoch || now.Epoch > was.Epoch+1:
		t.Fatalf("%s took the epoch from %d to %d", what, was.Epoch, now.Epoch)
	case was.State == StateDead && !same:
		t.Fatalf("%s changed a dead sandbox from %+v to %+v", what, was, now)
	case now.State == StateDead && now.Transition != "":
		t.Fatalf("%s left a dead sandbox %s", what, now.Transition)
	case now.Transition != "" && transitions[now.State][now.Transition] == "":
		t.Fatalf("%s left a sandbox %s that is %s: the table does not have it", what, now.State, now.Transition)
	case now.Transition != was.Transition && now.Transition != "" && now.Epoch == was.Epoch:
		t.Fatalf("%s began %s without a new epoch", what, now.Transition)
	case now.State == StateNew && was.State != StateNew:
		t.Fatalf("%s made a sandbox new again", what)
	}
}

func FuzzSandbox(f *testing.F) {
	f.Add([]byte{0, 0, 1, 0, 0, 1, 1, 1, 0, 2, 1, 2, 0, 3, 1, 3})
	f.Add([]byte{0, 0, 0, 3, 1, 0, 1, 1, 3, 0, 3, 1, 1, 1})
	f.Add([]byte{0, 0, 2, 0, 0, 0, 1, 0, 1, 1, 1, 1})
	f.Fuzz(func(t *testing.T, acts []byte) {
		m := &model{s: Sandbox{ID: "i1", State: StateNew}}
		for i := 0; i+1 < len(acts); i += 2 {
			m.act(t, acts[i], acts[i+1])
		}
	})
}

// The fuzz target in every run, over fixed random acts, and that they reach everything.
func TestRandomActs(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	reached := make(map[State]int)
	for range 3000 {
		m := &model{s: Sandbox{ID: "i1", State: StateNew}}
		for range 25 {
			op := byte(rng.IntN(4))
			if op == 3 && rng.IntN(8) > 0 {
				op = 0 // an end ends the game: seldom
			}
			m.act(t, op, byte(rng.IntN(256)))
			reached[m.s.State]++
		}
	}
	for _, st := range allStates {
		if reached[st] < 100 {
			t.Errorf("the random acts reached %s %d times: they test little", st, reached[st])
		}
	}
}
