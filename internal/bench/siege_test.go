package bench

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func TestSiegeClaims(t *testing.T) {
	b := &book{}
	b.page(phaseRest, SubjectHutch, 1).add(MetricRoundTrip, Microseconds, 900_000) // counts for nothing
	b.page(phaseSiege, SubjectHutch, 1).add(MetricRoundTrip, Microseconds, 10_000, 90_000)
	b.page(phaseSiege, SubjectFloor, 1).add(MetricRoundTrip, Microseconds, 10_000, 30_000)
	b.page("fork bomb", SubjectHutch, 1).add(MetricList, Microseconds, 5_000)
	b.page("fork bomb", SubjectHutch, 1).add(MetricRead, Microseconds, 1_200_000, 5_000)
	b.page("fork bomb", SubjectHutch, 2).add(MetricKill, Microseconds, 300_000)
	b.page("fork bomb", SubjectHutch, 2).add(MetricCPU, CPUShare, 1_900_000_000)
	b.page("CPU burner", SubjectHutch, 1).add(MetricKill, Microseconds, 1_000_000)
	b.page("CPU burner", SubjectFloor, 1).add(MetricKill, Microseconds, 9_000_000)
	got := claimsOf("siege", Settings{}, b)
	for what, want := range map[string]Claim{
		"a neighbour's command under siege, of the floor's at p99":   {Value: 3, Limit: 3, Unit: "×", Within: true},
		"slowest call that controls the sandbox with the fork bomb":  {Value: 1200, Limit: 1000, Unit: "ms"},
		"slowest call that controls the sandbox with the CPU burner": {Value: 1000, Limit: 1000, Unit: "ms", Within: true},
	} {
		want.What = what
		if got[what] != want {
			t.Errorf("got  %+v\nwant %+v", got[what], want)
		}
	}
	if len(got) != 3 {
		t.Errorf("claims of what was not measured: %+v", got)
	}
}

// madeWard is a ward whose answers are made up.
type madeWard struct {
	mu     *sync.Mutex
	log    *[]string
	script map[string][]error // what each call answers, in turn; then nil
	ends   []bool             // whether the load is found to have ended, in turn; then it goes on
}

func (w *madeWard) did(what string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	*w.log = append(*w.log, what)
	if s := w.script[what]; len(s) > 0 {
		w.script[what] = s[1:]
		return s[0]
	}
	return nil
}

func (w *madeWard) begin(context.Context, string) error { return w.did("begin") }
func (w *madeWard) kill(context.Context) error          { return w.did("kill") }

func (w *madeWard) running(context.Context) (bool, error) {
	if len(w.ends) > 0 {
		ended := w.ends[0]
		w.ends = w.ends[1:]
		return !ended, nil
	}
	return true, nil
}

func (w *madeWard) calls() map[string]func(context.Context) error {
	return map[string]func(context.Context) error{MetricRead: func(context.Context) error { return w.did("read") }}
}

func (w *madeWard) used(context.Context) (time.Duration, int64, error) { return time.Second, 7, nil }

// A load that was ended over memory is begun anew, and a sandbox that it took is replaced; what
// nothing should have ended is a fault.
func TestALoadIsKeptUp(t *testing.T) {
	for name, tt := range map[string]struct {
		memory      bool
		script      map[string][]error
		ends        []bool
		did         string
		anew, taken int64
		fault       string
	}{
		"nothing ends":                  {did: "begin read read"},
		"a load for memory ends":        {memory: true, ends: []bool{true}, did: "begin read begin read", anew: 1},
		"another load ends":             {ends: []bool{true}, did: "begin read read", fault: "nothing should have"},
		"a load takes the sandbox":      {memory: true, script: map[string][]error{"read": {errTaken}}, did: "begin read kill begin read", taken: 1},
		"and none takes its place":      {memory: true, script: map[string][]error{"read": {errTaken}, "begin": {nil, errors.New("refused")}}, did: "begin read kill begin read", taken: 1, fault: "refused"},
		"a sandbox ends without reason": {script: map[string][]error{"read": {errTaken}}, did: "begin read read", fault: "ended over its load"},
		"a call fails":                  {memory: true, script: map[string][]error{"read": {errors.New("no answer")}}, did: "begin read read", fault: "read: no answer"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var (
					b   book
					mu  sync.Mutex
					log []string
				)
				w := &madeWard{mu: &mu, log: &log, script: tt.script, ends: tt.ends}
				p := &post{load: load{name: "load", memory: tt.memory}, page: b.page("load", SubjectHutch, 1), found: func(context.Context) (ward, error) { return w, nil }}
				if err := p.begin(t.Context()); err != nil {
					t.Fatal(err)
				}
				over, stop := context.WithCancel(t.Context())
				time.AfterFunc(mindEvery+mindEvery/2, stop) // two rounds of questions
				p.mind(t.Context(), over.Done())
				if err := p.weigh(t.Context()); err != nil {
					t.Fatal(err)
				}
				if got := strings.Join(log, " "); got != tt.did {
					t.Errorf("did %q, want %q", got, tt.did)
				}
				fs := figures(figuresOf(b.samples))
				anew, _ := fs.of("load", MetricAnew, SubjectHutch)
				taken, _ := fs.of("load", MetricTaken, SubjectHutch)
				if anew.Max != tt.anew || taken.Max != tt.taken {
					t.Errorf("begun anew %d times, taken %d times; want %d and %d", anew.Max, taken.Max, tt.anew, tt.taken)
				}
				has := slices.ContainsFunc(b.faults, func(f Fault) bool { return strings.Contains(f.Error, tt.fault) })
				if len(b.faults) > 0 != (tt.fault != "") || tt.fault != "" && !has {
					t.Errorf("faults %+v, want %q", b.faults, tt.fault)
				}
			})
		})
	}
}

// What is under load is killed also when the benchmark was ended, and a kill of what its load had
// taken is no kill.
func TestASiegeIsLifted(t *testing.T) {
	var (
		b   book
		mu  sync.Mutex
		log []string
	)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	ended, taken := &madeWard{mu: &mu, log: &log}, &madeWard{mu: &mu, log: &log, script: map[string][]error{"kill": {errTaken}}}
	posts := []*post{
		{load: load{name: "a"}, page: b.page("a", SubjectHutch, 1), ward: ended},
		{load: load{name: "b"}, page: b.page("b", SubjectHutch, 1), ward: taken},
		{load: load{name: "c"}, page: b.page("c", SubjectHutch, 1)},
	}
	if err := lift(ctx, posts); err != nil || len(log) != 2 {
		t.Errorf("%v; did %q, want two kills", err, log)
	}
	fs := figures(figuresOf(b.samples))
	if d, _ := fs.of("a", MetricKill, SubjectHutch); d.N != 1 {
		t.Errorf("kill: %+v", d)
	}
	if _, ok := fs.of("b", MetricKill, SubjectHutch); ok {
		t.Error("the end that a load made is taken for a kill")
	}
	broken := &madeWard{mu: &mu, log: &log, script: map[string][]error{"kill": {errors.New("it stays")}}}
	if err := lift(ctx, []*post{{load: load{name: "d"}, page: b.page("d", SubjectHutch, 1), ward: broken}}); err == nil || !strings.Contains(err.Error(), "d: kill: it stays") {
		t.Errorf("a kill that failed: %v", err)
	}
}
