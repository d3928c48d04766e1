// Package cleanup undoes half-built things: a stack of steps that run in reverse
// unless what they belong to was completed.
//
//	undo := cleanup.New(func() { os.RemoveAll(dir) })
//	defer undo.Run()
//	…
//	undo.Add(func() { f.Close() })
//	…
//	undo.Release() // it is whole: keep everything
//
// A Stack is for one goroutine. Start with [New].
package cleanup

// Stack is a list of undo steps. The zero value is empty and ready to use.
type Stack struct {
	steps []func()
}

// New returns a stack that holds steps.
func New(steps ...func()) *Stack { return &Stack{steps: steps} }

// Add adds a step; steps run in the reverse order of their additions.
func (s *Stack) Add(step func()) { s.steps = append(s.steps, step) }

// Run runs the steps that are left, the last added first, and empties the stack.
// A step that panics does not keep the earlier ones from running.
func (s *Stack) Run() {
	if len(s.steps) == 0 {
		return
	}
	last := s.steps[len(s.steps)-1]
	s.steps = s.steps[:len(s.steps)-1]
	defer s.Run()
	last()
}

// Release forgets the steps: what they would have undone stays.
func (s *Stack) Release() { s.steps = nil }
