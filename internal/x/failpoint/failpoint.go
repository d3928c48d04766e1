// Package failpoint names the moments at which a process of ours may be killed that it must
// have thought of: each lies right behind a durable step, before the next one. A test has
// the process die at one of them, starts another, and looks at what that makes of it.
//
// It owns the list of names and the death. It does not own what must be true afterwards: that
// is for the fault walk (test/e2e) to say. In production nothing is armed, and a point is one
// look at a nil pointer.
//
// Invariants, which test/archtest holds: each name is on the list once, and reached in one
// place.
//
// Start with points.go; a process is armed by [Arm].
package failpoint

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Name is a moment in the life of one of our processes.
type Name string

// Plan says what happens at which points.
type Plan struct {
	// Die is where the process ends as kill -9 ends it; empty = nowhere.
	Die Name
	// Nth is at the how manieth time; 0 = at the first.
	Nth int
	// Hold are points that nobody gets past: who reaches one waits for the end. So what runs
	// side by side is as far as a test wants it when the process dies elsewhere.
	Hold []Held
	// Do happens instead of the death, for tests in one process. It may be called from
	// several goroutines, and must not return if they are not to go on.
	Do func(Name)
}

// Held is a point that nobody gets past.
type Held struct {
	At Name
	// From is from the how manieth time on; 0 = from the first.
	From int
}

// armed is the plan of this process; nil in production.
var armed atomic.Pointer[state]

type state struct {
	Plan

	seen atomic.Int64   // how often Die was reached
	came []atomic.Int64 // and each of Hold
}

// At says that the process has come to a point. Nothing happens there but what was armed.
func At(n Name) {
	if s := armed.Load(); s != nil {
		s.reach(n)
	}
}

// Arm makes p the plan of this process, for good in a process that is to die; disarm takes it
// back. A name that is not on the list is an error: a test that arms it would test nothing.
func Arm(p Plan) (disarm func(), err error) {
	all := All()
	for _, h := range append([]Held{{p.Die, p.Nth}}, p.Hold...) {
		if h.At != "" && !slices.Contains(all, h.At) {
			return nil, fmt.Errorf("there is no failpoint %q", h.At)
		}
		if h.From < 0 {
			return nil, fmt.Errorf("a failpoint cannot be reached for the %dth time", h.From)
		}
	}
	p.Nth = max(p.Nth, 1)
	if p.Do == nil {
		p.Do = die
	}
	s := &state{Plan: p, came: make([]atomic.Int64, len(p.Hold))}
	armed.Store(s)
	return func() { armed.CompareAndSwap(s, nil) }, nil
}

// Parse reads NAME or NAME@N, where to die and at the how manieth time, and what to hold, and
// from the how manieth time on, separated by commas.
func Parse(dieAt, holdAt string) (p Plan, err error) {
	if p.Die, p.Nth, err = parsePoint(dieAt); err != nil {
		return Plan{}, err
	}
	if holdAt == "" {
		return p, nil
	}
	for text := range strings.SplitSeq(holdAt, ",") {
		n, from, err := parsePoint(text)
		if err != nil {
			return Plan{}, err
		}
		p.Hold = append(p.Hold, Held{n, from})
	}
	return p, nil
}

// parsePoint reads NAME or NAME@N; N is 0 without one.
func parsePoint(text string) (_ Name, nth int, err error) {
	name, number, numbered := strings.Cut(text, "@")
	if !numbered {
		return Name(name), 0, nil
	}
	if nth, err = strconv.Atoi(number); err != nil || nth < 1 {
		return "", 0, fmt.Errorf("%q: want a number from 1 behind the @", text)
	}
	return Name(name), nth, nil
}

func (s *state) reach(n Name) {
	if n == s.Die && s.seen.Add(1) == int64(s.Nth) {
		s.Do(n)
	}
	for i, h := range s.Hold {
		if h.At == n && s.came[i].Add(1) >= int64(h.From) {
			select {}
		}
	}
}

// Mark begins the line that a process which dies at a point leaves on its standard error.
const Mark = "dies at failpoint "

// die ends the process as kill -9 does: nothing of it runs any more.
func die(n Name) {
	_, _ = io.WriteString(os.Stderr, Mark+string(n)+"\n") // for whoever wants to know that it was here
	_ = unix.Kill(os.Getpid(), unix.SIGKILL)              // it cannot fail: the process is ours
	select {}
}
