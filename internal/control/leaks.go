package control

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"hutch.dev/hutch"
)

// Sighting is one look at records and host together.
type Sighting struct {
	Records []hutch.Sandbox // of those that live
	Traces  []hutch.Trace
	// Busy names sandboxes that a node has in hand, or that are being made or ended just
	// now: what is there of them is in order, and so is what is not.
	Busy map[hutch.SandboxID]bool
	// Served says that a server runs.
	Served bool
}

// Leaks compares what was seen: each trace that no record accounts for is one, and each
// record that nothing on the host bears out. It looks at nothing but s. The order is that
// of kinds, names and sandboxes.
func Leaks(s Sighting) []hutch.Leak {
	living := make(map[hutch.SandboxID]bool, len(s.Records))
	for _, sb := range s.Records {
		living[sb.ID] = true
	}
	has := make(map[hutch.SandboxID]bool, len(living)) // a machine, or a note on its end
	var out []hutch.Leak
	for _, t := range s.Traces {
		if t.Kind == hutch.TraceProcess || t.Kind == hutch.TraceMachine || t.Noted {
			has[t.Sandbox] = true
		}
		if why := s.stray(t, living); why != "" {
			out = append(out, hutch.Leak{Kind: t.Kind, Name: t.Name, Sandbox: t.Sandbox, Why: why, Since: t.Since})
		}
	}
	for _, sb := range s.Records {
		why := ""
		switch {
		case s.Busy[sb.ID]:
		case sb.State == hutch.StateNew && s.Served:
			why = "on record as being started, and nobody starts it"
		case sb.State == hutch.StateNew || sb.Transition != "":
			// The next server, or the next sweep of this one, finishes or undoes it.
		case s.Served:
			why = fmt.Sprintf("on record as %s, and the node does not run it", sb.State)
		case !has[sb.ID]:
			why = fmt.Sprintf("on record as %s, and there is no process of it", sb.State)
		}
		if why != "" {
			since := sb.StartedAt
			if since.IsZero() {
				since = sb.CreatedAt
			}
			out = append(out, hutch.Leak{Kind: hutch.TraceRecord, Name: string(sb.ID), Sandbox: sb.ID, Why: why, Since: since})
		}
	}
	slices.SortFunc(out, compareLeaks)
	return out
}

// stray says why nobody accounts for a trace; empty if somebody does.
func (s Sighting) stray(t hutch.Trace, living map[hutch.SandboxID]bool) string {
	switch {
	case t.Shared:
		if !s.Served && len(living) == 0 {
			return "there is neither a server nor a sandbox that it is for"
		}
		return ""
	case t.Sandbox != "" && (living[t.Sandbox] || s.Busy[t.Sandbox]):
		return ""
	case t.Sandbox != "":
		return "no sandbox of that name is on record as living"
	case t.Kind == hutch.TraceProcess:
		return "it has ended, and its parent has not taken note of that"
	case t.Kind == hutch.TraceTemp:
		return "who made it has ended without removing it"
	}
	return "it is of no sandbox"
}

func compareLeaks(a, b hutch.Leak) int {
	return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Sandbox, b.Sandbox))
}

// Confirmed returns the leaks of a later look that an earlier one had seen too: what was
// only under way at one of them is none.
func Confirmed(earlier, later []hutch.Leak) []hutch.Leak {
	var out []hutch.Leak
	for _, l := range later {
		if slices.ContainsFunc(earlier, func(e hutch.Leak) bool { return compareLeaks(e, l) == 0 }) {
			out = append(out, l)
		}
	}
	return out
}

// SecondLook is how long after the first look the second is taken. What is made or removed
// side by side with a look is done in milliseconds, on a machine with every CPU taken in
// a second.
const SecondLook = 2 * time.Second

// Leaks returns the difference between the records and what is on the hosts, as two looks in a
// row see it. With sweep, what is the remains of a sandbox is removed, and records whose
// machine is gone are marked: left is what there is afterwards, swept what went.
func (c *Control) Leaks(ctx context.Context, sweep bool) (left, swept []hutch.Leak, err error) {
	before, err := c.lookTwice(ctx, true)
	if err != nil || !sweep || len(before) == 0 {
		return before, nil, err
	}
	if err := c.mend(ctx, before); err != nil {
		return nil, nil, err
	}
	if left, err = c.look(ctx, true); err != nil {
		return nil, nil, err
	}
	left = Confirmed(before, left)
	swept = slices.DeleteFunc(before, func(l hutch.Leak) bool {
		return slices.ContainsFunc(left, func(e hutch.Leak) bool { return compareLeaks(e, l) == 0 })
	})
	return left, swept, nil
}

// lookTwice looks again if there is anything to be sure of.
func (c *Control) lookTwice(ctx context.Context, deep bool) ([]hutch.Leak, error) {
	first, err := c.look(ctx, deep)
	if err != nil || len(first) == 0 {
		return first, err
	}
	t := time.NewTimer(c.cfg.SecondLook)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
		return nil, hutch.Wrap(hutch.CodeCancelled, context.Cause(ctx), "the caller left between two looks")
	}
	second, err := c.look(ctx, deep)
	return Confirmed(first, second), err
}

// look compares once. The order of its reads is what makes a single look right about all
// that is started meanwhile: whoever has left a trace has claimed its id before, and gives
// the claim back when the record is there.
func (c *Control) look(ctx context.Context, deep bool) ([]hutch.Leak, error) {
	busy := c.nodes.Held()
	traces, err := c.nodes.Traces(ctx, deep)
	if err != nil {
		return nil, fmt.Errorf("look at the host: %w", err)
	}
	for _, id := range c.creating.ids() {
		busy[id] = true
	}
	records, err := c.allAlive(ctx)
	if err != nil {
		return nil, err
	}
	for _, id := range c.swept.ids() {
		busy[id] = true
	}
	for id := range c.owedEnds.all() {
		busy[id] = true
	}
	for id := range c.owedTurns.all() {
		busy[id] = true
	}
	for id := range c.nodes.Held() {
		busy[id] = true
	}
	return Leaks(Sighting{Records: records, Traces: traces, Busy: busy, Served: true}), nil
}
