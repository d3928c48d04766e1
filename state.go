package hutch

// State is what a sandbox settled in; it is durable.
type State string

// The states of a sandbox.
const (
	StateNew     State = "new"
	StateRunning State = "running"
	StatePaused  State = "paused" // frozen, memory stays where it is
	StateDead    State = "dead"
)

// Transition is the change of state under way; empty when there is none.
type Transition string

// The transitions of a sandbox.
const (
	Starting Transition = "starting"
	Pausing  Transition = "pausing"
	Resuming Transition = "resuming"
	Killing  Transition = "killing"
)

// Epoch is the number of a sandbox's current run: +1 whenever a transition
// begins. Whatever acts on a sandbox carries the epoch it was told, and whoever
// receives the act refuses an older one with [ErrStale].
type Epoch uint64

// transitions says which transitions each state allows and where success leads.
// What is not listed cannot happen.
var transitions = map[State]map[Transition]State{
	StateNew:     {Starting: StateRunning, Killing: StateDead},
	StateRunning: {Pausing: StatePaused, Killing: StateDead},
	StatePaused:  {Resuming: StateRunning, Killing: StateDead},
}

// Begin starts transition t and raises the epoch. Killing may overtake any other
// transition; anything else waits its turn with [ErrConflict]. From the state a
// transition would lead to, or from one that does not allow it, Begin returns
// [ErrInvalidState]; from dead, [ErrSandboxGone].
func (s *Sandbox) Begin(t Transition) error {
	if s.State == StateDead {
		e := Errorf(CodeSandboxGone, "sandbox %s has ended (%s)", s.ID, s.EndReason)
		e.Reason = string(s.EndReason)
		return e
	}
	if _, ok := transitions[s.State][t]; !ok {
		return Errorf(CodeInvalidState, "sandbox %s is %s: %s is not possible now", s.ID, s.State, t)
	}
	if s.Transition != "" && (t != Killing || s.Transition == Killing) {
		return Errorf(CodeConflict, "sandbox %s is %s: try again when that has ended", s.ID, s.Transition)
	}
	s.Transition = t
	s.Epoch++
	return nil
}

// Finish records that transition t, begun at epoch e, succeeded. It returns
// [ErrStale] if the news is about another run or an overtaken transition.
func (s *Sandbox) Finish(t Transition, e Epoch) error {
	if t == "" || s.Transition != t || s.Epoch != e {
		return ErrStale
	}
	s.State, s.Transition = transitions[s.State][t], ""
	return nil
}

// Abandon records that transition t, begun at epoch e, failed and left the
// sandbox as it was. It returns [ErrStale] like [Sandbox.Finish].
func (s *Sandbox) Abandon(t Transition, e Epoch) error {
	if t == "" || s.Transition != t || s.Epoch != e {
		return ErrStale
	}
	s.Transition = ""
	return nil
}

// End records that the sandbox has ended on its own or was found gone, whatever
// was under way. Ending twice keeps the first reason.
func (s *Sandbox) End(r SandboxEnd, detail string) {
	if s.State == StateDead {
		return
	}
	s.State, s.Transition = StateDead, ""
	s.Epoch++
	s.EndReason, s.EndDetail = r, detail
}
