package chaos

import (
	"strings"
	"testing"
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
