package control

import (
	"slices"
	"testing"
	"time"

	"hutch.dev/hutch"
)

func TestLeaks(t *testing.T) {
	at := time.Unix(1_800_000_000, 0)
	trace := func(kind hutch.TraceKind, id hutch.SandboxID) hutch.Trace {
		return hutch.Trace{Kind: kind, Name: string(kind) + " of " + string(id), Sandbox: id, Since: at}
	}
	whole := func(id hutch.SandboxID) []hutch.Trace { // what a living sandbox has
		var out []hutch.Trace
		for _, k := range []hutch.TraceKind{hutch.TraceProcess, hutch.TraceCgroup, hutch.TraceState, hutch.TraceKeeper, hutch.TraceLink, hutch.TraceDisk} {
			out = append(out, trace(k, id))
		}
		return out
	}
	running := hutch.Sandbox{ID: "a", State: hutch.StateRunning, CreatedAt: at, StartedAt: at}
	paused := hutch.Sandbox{ID: "p", State: hutch.StatePaused, CreatedAt: at, StartedAt: at}
	starting := hutch.Sandbox{ID: "s", State: hutch.StateNew, Transition: hutch.Starting, CreatedAt: at}
	killing := hutch.Sandbox{ID: "k", State: hutch.StateRunning, Transition: hutch.Killing, CreatedAt: at, StartedAt: at}
	busy := func(ids ...hutch.SandboxID) map[hutch.SandboxID]bool {
		m := map[hutch.SandboxID]bool{}
		for _, id := range ids {
			m[id] = true
		}
		return m
	}
	shared := hutch.Trace{Kind: hutch.TraceMount, Name: "null-netns", Shared: true, Since: at}
	noted := hutch.Trace{Kind: hutch.TraceKeeper, Name: "a", Sandbox: "a", Noted: true}
	for name, c := range map[string]struct {
		in   Sighting
		want []string // kind and name of each
	}{
		"nothing at all":                          {in: Sighting{Served: true}},
		"what lives, with a server":               {in: Sighting{Records: []hutch.Sandbox{running, paused}, Traces: append(whole("a"), whole("p")...), Busy: busy("a", "p"), Served: true}},
		"what lives, without one":                 {in: Sighting{Records: []hutch.Sandbox{running, paused}, Traces: append(whole("a"), whole("p")...)}},
		"a start that is not on record yet":       {in: Sighting{Traces: whole("s"), Busy: busy("s"), Served: true}},
		"a start without a machine yet":           {in: Sighting{Records: []hutch.Sandbox{starting}, Busy: busy("s"), Served: true}},
		"an end that is on record":                {in: Sighting{Traces: whole("k")[3:4], Busy: busy("k"), Served: true}},
		"a kill under way":                        {in: Sighting{Records: []hutch.Sandbox{killing}, Served: true}},
		"a start that the server was killed in":   {in: Sighting{Records: []hutch.Sandbox{starting}, Traces: whole("s")}},
		"a kill that the server was killed in":    {in: Sighting{Records: []hutch.Sandbox{killing}}},
		"a note of the keeper's for the next one": {in: Sighting{Records: []hutch.Sandbox{running}, Traces: []hutch.Trace{noted}}},
		"what all share, with a server":           {in: Sighting{Traces: []hutch.Trace{shared}, Served: true}},
		"what all share, without one":             {in: Sighting{Records: []hutch.Sandbox{running}, Traces: append(whole("a"), shared)}},
		"what nobody shares any more":             {in: Sighting{Traces: []hutch.Trace{shared}}, want: []string{"mount null-netns"}},
		"everything of one without a record": {
			in:   Sighting{Records: []hutch.Sandbox{running}, Traces: append(whole("a"), whole("x")...), Busy: busy("a"), Served: true},
			want: []string{"cgroup cgroup of x", "disk disk of x", "keeper keeper of x", "link link of x", "process process of x", "state state of x"},
		},
		"one thing of one without a record": {
			in:   Sighting{Traces: whole("x")[1:2]},
			want: []string{"cgroup cgroup of x"},
		},
		"a note on one without a record": {
			in:   Sighting{Traces: []hutch.Trace{noted}, Served: true},
			want: []string{"keeper a"},
		},
		"what is of no sandbox": {
			in: Sighting{Records: []hutch.Sandbox{running}, Busy: busy("a"), Served: true, Traces: []hutch.Trace{
				{Kind: hutch.TraceTemp, Name: "/srv/x"}, {Kind: hutch.TraceMount, Name: "/run/y"},
			}},
			want: []string{"mount /run/y", "temp /srv/x"},
		},
		"a record that the node does not run": {
			in:   Sighting{Records: []hutch.Sandbox{running}, Traces: whole("a"), Served: true},
			want: []string{"record a"},
		},
		"a record without a process": {
			in:   Sighting{Records: []hutch.Sandbox{running, paused}, Traces: whole("a")[1:]},
			want: []string{"record a", "record p"},
		},
		"a start that nobody makes": {
			in:   Sighting{Records: []hutch.Sandbox{starting}, Served: true},
			want: []string{"record s"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, l := range Leaks(c.in) {
				got = append(got, string(l.Kind)+" "+l.Name)
				if l.Why == "" || l.Kind != hutch.TraceTemp && l.Kind != hutch.TraceMount && l.Sandbox == "" {
					t.Errorf("%+v does not say why, or whose it is", l)
				}
				if l.Kind == hutch.TraceRecord && !l.Since.Equal(at) {
					t.Errorf("%+v is as old as %s", l, at)
				}
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

func TestConfirmed(t *testing.T) {
	leak := func(kind hutch.TraceKind, name string, id hutch.SandboxID) hutch.Leak {
		return hutch.Leak{Kind: kind, Name: name, Sandbox: id}
	}
	before := []hutch.Leak{leak("cgroup", "a", "a"), leak("process", "7", "a"), leak("state", "/x", "x")}
	after := []hutch.Leak{leak("cgroup", "a", "a"), leak("process", "7", "b"), leak("process", "8", "a"), leak("state", "/x", "x")}
	after[0].Why = "told otherwise"
	got := Confirmed(before, after)
	if len(got) != 2 || got[0].Kind != "cgroup" || got[0].Why != "told otherwise" || got[1].Name != "/x" {
		t.Errorf("got %+v", got)
	}
	if got := Confirmed(nil, after); len(got) != 0 {
		t.Errorf("seen once: %+v", got)
	}
}

func TestLeaseBounds(t *testing.T) {
	for d, ok := range map[time.Duration]bool{
		0: true, minLease: true, maxLease: true, time.Hour: true,
		time.Nanosecond: false, minLease - 1: false, maxLease + 1: false, -time.Second: false,
	} {
		if err := checkLease(d); (err == nil) != ok {
			t.Errorf("%s: %v", d, err)
		}
	}
}

func TestLapsed(t *testing.T) {
	at := time.Now()
	for name, c := range map[string]struct {
		sb   hutch.Sandbox
		want bool
	}{
		"no owner":    {hutch.Sandbox{}, false},
		"renewed":     {hutch.Sandbox{Lease: minLease, LeasedTo: at.Add(1)}, false},
		"to the end":  {hutch.Sandbox{Lease: minLease, LeasedTo: at}, true},
		"a while ago": {hutch.Sandbox{Lease: minLease, LeasedTo: at.Add(-time.Hour)}, true},
	} {
		if got := lapsed(c.sb, at); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
