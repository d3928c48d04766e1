package chaos

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/api"
)

func TestCompare(t *testing.T) {
	b := &box{tokens: []string{"a", "c"}, maybe: []string{"a", "b", "c", "d"}}
	for found, bad := range map[string]bool{
		"a c": false, "a b c": false, "a c d": false, "a b c d": false,
		"": true, "a": true, "c a": true, "a c c": true, "a a c": true, "a c x": true, "x a c": true, "a b b c": true,
	} {
		if err := b.compare(strings.Fields(found)); (err != nil) != bad {
			t.Errorf("%q: %v", found, err)
		}
	}
}

// Each thing that was promised and not kept is found, and nothing else.
func TestViolations(t *testing.T) {
	now := time.Now()
	rec := func(state hutch.State, why hutch.SandboxEnd) api.Sandbox {
		return api.Sandbox{ID: "i1", State: state, EndReason: why, ExpiresAt: now.Add(time.Hour)}
	}
	ended := func(why hutch.SandboxEnd, late time.Duration) api.Sandbox {
		return api.Sandbox{ID: "i1", State: hutch.StateDead, EndReason: why, ExpiresAt: now, EndedAt: now.Add(late)}
	}
	boxed := func(b box) []*box {
		b.id = "i1"
		return []*box{&b}
	}
	for name, c := range map[string]struct {
		s     sight
		boxes []*box
		want  string // empty = nothing
	}{
		"all well":                     {s: sight{records: []api.Sandbox{rec(hutch.StateRunning, "")}, kernels: 1}, boxes: boxed(box{})},
		"killed":                       {s: sight{records: []api.Sandbox{rec(hutch.StateDead, hutch.EndKilled)}}, boxes: boxed(box{killed: true})},
		"broken":                       {s: sight{records: []api.Sandbox{rec(hutch.StateDead, hutch.EndCrashed)}}, boxes: boxed(box{struck: true})},
		"a start that was cut off":     {s: sight{records: []api.Sandbox{rec(hutch.StateDead, hutch.EndStartFailed)}}},
		"lost":                         {s: sight{records: []api.Sandbox{rec(hutch.StateDead, hutch.EndLost)}}, boxes: boxed(box{}), want: "nothing was done to it"},
		"a wrong reason":               {s: sight{records: []api.Sandbox{rec(hutch.StateDead, hutch.EndIdle)}}, boxes: boxed(box{struck: true}), want: "is on record as idle"},
		"a kill that was asked for":    {s: sight{records: []api.Sandbox{rec(hutch.StateDead, hutch.EndKilled)}}, boxes: boxed(box{struck: true, asked: true})},
		"a kill that nobody asked for": {s: sight{records: []api.Sandbox{rec(hutch.StateDead, hutch.EndKilled)}}, boxes: boxed(box{struck: true}), want: "is on record as killed"},
		"left, and on time":            {s: sight{records: []api.Sandbox{ended(hutch.EndExpired, time.Second)}}, boxes: boxed(box{left: true})},
		"left, and early":              {s: sight{records: []api.Sandbox{ended(hutch.EndExpired, -2*time.Second)}}, boxes: boxed(box{left: true}), want: "left to its deadline"},
		"left, and late":               {s: sight{records: []api.Sandbox{ended(hutch.EndExpired, time.Minute)}}, boxes: boxed(box{left: true}), want: "left to its deadline"},
		"left, and ended otherwise":    {s: sight{records: []api.Sandbox{ended(hutch.EndCrashed, time.Second)}}, boxes: boxed(box{left: true}), want: "left to its deadline"},
		"left, and alive":              {s: sight{records: []api.Sandbox{{ID: "i1", State: hutch.StateRunning, ExpiresAt: now.Add(-time.Minute)}}, kernels: 1}, boxes: boxed(box{left: true}), want: "beyond its end"},
		"a wrong reason of a kill":     {s: sight{records: []api.Sandbox{rec(hutch.StateDead, hutch.EndCrashed)}}, boxes: boxed(box{killed: true}), want: "was killed by its caller"},
		"killed and alive":             {s: sight{records: []api.Sandbox{rec(hutch.StateRunning, "")}, kernels: 1}, boxes: boxed(box{killed: true}), want: "told that it was killed"},
		"broken and alive":             {s: sight{records: []api.Sandbox{rec(hutch.StateRunning, "")}, kernels: 1}, boxes: boxed(box{struck: true}), want: "was broken"},
		"one too many":                 {s: sight{records: []api.Sandbox{rec(hutch.StateRunning, "")}, kernels: 1}, want: "no caller was told of it"},
		"one too few":                  {boxes: boxed(box{}), want: "is not on record"},
		"no kernel":                    {s: sight{records: []api.Sandbox{rec(hutch.StateRunning, "")}}, boxes: boxed(box{}), want: "0 sandboxes are on the host"},
		"a kernel too many":            {s: sight{kernels: 1}, want: "1 sandboxes are on the host"},
		"a leak":                       {s: sight{leaks: []string{"cgroup x"}}, want: "leaks: cgroup x"},
		"half done":                    {s: sight{records: []api.Sandbox{{ID: "i1", State: hutch.StateRunning, Transition: hutch.Pausing, ExpiresAt: now.Add(time.Hour)}}, kernels: 1}, boxes: boxed(box{}), want: "is running pausing"},
		"past its end":                 {s: sight{records: []api.Sandbox{{ID: "i1", State: hutch.StateRunning, ExpiresAt: now.Add(-time.Second)}}, kernels: 1}, boxes: boxed(box{}), want: "beyond its end"},
		"something written is missing": {s: sight{records: []api.Sandbox{rec(hutch.StateRunning, "")}, kernels: 1}, boxes: boxed(box{tokens: []string{"a"}, maybe: []string{"a"}}), want: "said to be written"},
	} {
		got := c.s.violations(c.boxes, now)
		if c.want == "" && len(got) > 0 || c.want != "" && (len(got) != 1 || !strings.Contains(got[0], c.want)) {
			t.Errorf("%s: %q", name, got)
		}
	}
}

// A sandbox whose time is nearly over is waited for, and no other.
func TestAwaited(t *testing.T) {
	now := time.Now()
	for _, c := range []struct {
		sb   api.Sandbox
		want bool
	}{
		{api.Sandbox{State: hutch.StateRunning, ExpiresAt: now.Add(time.Second)}, true},
		{api.Sandbox{State: hutch.StateRunning, ExpiresAt: now.Add(time.Hour)}, false},
		{api.Sandbox{State: hutch.StateDead, ExpiresAt: now.Add(time.Second)}, false},
	} {
		if got := (sight{records: []api.Sandbox{c.sb}}).awaited(now); (got != "") != c.want {
			t.Errorf("%+v: %q", c.sb, got)
		}
	}
}

// However much goes wrong, the notes do not grow without end, and none of it is forgotten.
func TestNotesAreBounded(t *testing.T) {
	n := newNotes()
	for range maxViolates + 3 {
		n.violated("something")
	}
	if len(n.violates) != maxViolates || n.unsaid != 3 {
		t.Errorf("%d are kept, %d are counted", len(n.violates), n.unsaid)
	}
}

// What was seen last is judged when the server does not come to rest in time.
func TestUntilSaysThatItTookTooLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, ask := range map[string]func(context.Context) (string, error){
			"never at rest":     func(context.Context) (string, error) { return "busy", nil },
			"cut off in a look": func(ctx context.Context) (string, error) { <-ctx.Done(); return "", ctx.Err() },
		} {
			if err := (&run{}).until(t.Context(), "it rests", ask); !errors.Is(err, errTooLong) {
				t.Errorf("%s: %v", name, err)
			}
		}
		other := errors.New("another")
		if err := (&run{}).until(t.Context(), "it rests", func(context.Context) (string, error) { return "", other }); !errors.Is(err, other) || errors.Is(err, errTooLong) {
			t.Errorf("got %v", err)
		}
	})
}
