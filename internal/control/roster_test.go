package control

import (
	"errors"
	"slices"
	"sync/atomic"
	"testing"

	"hutch.dev/hutch"
)

// tallied is records of which only the number of their changes is known.
type tallied struct{ atomic.Uint64 }

func (c *tallied) SandboxChanges() uint64 { return c.Load() }

func TestRosterReadsWhatHasChanged(t *testing.T) {
	var (
		r     roster
		st    tallied
		reads int
		now   = []hutch.Sandbox{{ID: "i1"}, {ID: "i2"}}
	)
	plain := func() ([]hutch.Sandbox, error) { reads++; return now, nil }
	steps := []struct {
		what  string
		do    func()
		read  func() ([]hutch.Sandbox, error)
		reads int // in all
	}{
		{"the first time", func() {}, plain, 1},
		{"nothing has changed", func() {}, plain, 1},
		{"a write is under way", func() { st.Add(1) }, plain, 2},
		{"and under way yet", func() { now = now[:1] }, plain, 2}, // nobody has been told of it
		{"it is made", func() { st.Add(1) }, plain, 3},
		{"nothing has changed again", func() {}, plain, 3},
		{"a write came and went while it was read", func() { st.Add(2) }, func() ([]hutch.Sandbox, error) {
			l, err := plain()
			st.Add(2)
			return l, err
		}, 4},
		{"so it is read again", func() {}, plain, 5},
		{"and kept", func() {}, plain, 5},
	}
	for _, s := range steps {
		s.do()
		got, err := r.get(&st, s.read)
		if err != nil || reads != s.reads {
			t.Errorf("%s: %d reads in all, want %d; %v", s.what, reads, s.reads, err)
		}
		if s.what != "and under way yet" && !slices.EqualFunc(got, now, func(a, b hutch.Sandbox) bool { return a.ID == b.ID }) {
			t.Errorf("%s: %d sandboxes, want %d", s.what, len(got), len(now))
		}
	}
	st.Add(2)
	broken := errors.New("the disk is gone")
	if _, err := r.get(&st, func() ([]hutch.Sandbox, error) { return nil, broken }); !errors.Is(err, broken) {
		t.Errorf("a list that can't be read: %v", err)
	}
	if got, err := r.get(&st, plain); err != nil || len(got) != len(now) {
		t.Errorf("after that: %d sandboxes, %v", len(got), err)
	}
}
