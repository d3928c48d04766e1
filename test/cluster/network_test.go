package cluster

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/control"
	"hutch.dev/hutch/internal/egress/policy"
)

// allow is a policy that allows domains, or nothing.
func allow(domains ...string) *hutch.NetworkPolicy {
	p := &hutch.NetworkPolicy{Mode: hutch.NetworkCustom}
	for _, d := range domains {
		p.Rules = append(p.Rules, hutch.NetworkRule{Action: hutch.NetworkAllow, Domain: d})
	}
	return p
}

func asking(n hutch.NetworkPhases) func(*hutch.CreateSandbox) {
	return func(r *hutch.CreateSandbox) { r.Network = n }
}

// reaches is what the gateway lets a sandbox reach: the domains of its rules, in order.
func (w *world) reaches(id hutch.SandboxID) string {
	p := w.egress.policyOf(id)
	if p == nil {
		return ""
	}
	var all []string
	for _, r := range p.Rules {
		if r.Action == hutch.NetworkAllow {
			all = append(all, r.Domain+r.Preset)
		}
	}
	return strings.Join(all, " ")
}

func (w *world) wantReach(what string, sb hutch.Sandbox, want string) {
	w.t.Helper()
	if got := w.reaches(sb.ID); got != want {
		w.t.Errorf("%s: the gateway lets it reach %q, want %q", what, got, want)
	}
}

func TestNetworkOfASandboxIsTheGateways(t *testing.T) {
	w := newWorld(t)
	closed := w.create()
	w.wantReach("one that nothing was said of", closed, "")
	sb := w.create(asking(hutch.NetworkPhases{Agent: allow("a.example.com")}))
	w.wantReach("one that asked", sb, "a.example.com")

	sb, err := w.c.SetSandboxNetwork(w.ctx(), project, sb.ID, hutch.NetworkPhases{Agent: allow("b.example.com")})
	if err != nil {
		t.Fatal(err)
	}
	w.wantReach("once that was replaced", sb, "b.example.com")
	if sb.Network.Source != hutch.NetworkOfRequest || sb.Network.Revision != 1 {
		t.Errorf("the record says %+v", sb.Network)
	}
	// It outlives a pause and the server, and a new gateway is told.
	if _, err := w.c.PauseSandbox(w.ctx(), project, sb.ID); err != nil {
		t.Fatal(err)
	}
	w.restart()
	w.wantReach("after a restart", sb, "b.example.com")
	w.egress.detach(sb.ID)
	if err := w.n.RefillEgress(w.ctx()); err != nil {
		t.Fatal(err)
	}
	w.wantReach("on a new gateway", sb, "b.example.com")
	if _, err := w.c.SetSandboxNetwork(w.ctx(), project, sb.ID, hutch.NetworkPhases{}); err != nil {
		t.Fatal(err)
	}
	w.wantReach("paused, and taken away", sb, "")
}

// A server that dies between the record and the gateway's hearing of it leaves it to the next.
func TestNetworkChangeThatIsCutOffIsMadeGood(t *testing.T) {
	w := newWorld(t)
	sb := w.create(asking(hutch.NetworkPhases{Agent: allow("a.example.com")}))
	w.links.fail("Attach", -1)
	if _, err := w.c.SetSandboxNetwork(w.ctx(), project, sb.ID, hutch.NetworkPhases{Agent: allow("b.example.com")}); err == nil {
		t.Error("a change that the gateway does not hear of is answered as done")
	}
	w.restart()
	w.wantReach("after a restart", sb, "b.example.com")
}

// Whatever comes at once, the gateway keeps to what is on record.
func TestNetworkChangesAtOnceEndAlike(t *testing.T) {
	w := newWorld(t)
	sb := w.create()
	var all sync.WaitGroup
	for i := range 16 {
		all.Go(func() {
			if _, err := w.c.SetSandboxNetwork(w.ctx(), project, sb.ID, hutch.NetworkPhases{Agent: allow(fmt.Sprintf("%d.example.com", i))}); err != nil {
				t.Errorf("change %d: %v", i, err)
			}
		})
	}
	all.Wait()
	now, err := w.c.Sandbox(w.ctx(), project, sb.ID)
	if err != nil || now.Network.Revision != 16 {
		t.Fatalf("revision %d, %v; want 16", now.Network.Revision, err)
	}
	w.wantReach("after 16 changes", sb, now.Network.Holds.Rules[0].Domain)
}

func TestNetworkPhases(t *testing.T) {
	w := newWorld(t)
	sb := w.create(asking(hutch.NetworkPhases{Setup: allow("setup.example.com"), Agent: allow("agent.example.com")}))
	w.wantReach("in setup", sb, "setup.example.com")
	left := w.exec(sb, "sleep 1h")
	other := w.create(asking(hutch.NetworkPhases{Setup: allow("setup.example.com")}))
	running := w.exec(other, "sleep 1h")

	sb, err := w.c.LockSandboxNetwork(w.ctx(), project, sb.ID, true)
	if err != nil || sb.Network.Phase != hutch.PhaseAgent {
		t.Fatalf("lock: %+v, %v", sb.Network, err)
	}
	w.wantReach("once it is locked", sb, "agent.example.com")
	if x, err := w.c.Exec(w.ctx(), project, left.ID); err != nil || x.Result == nil || x.Result.End != hutch.ExecCancelled {
		t.Errorf("what setup left running: %+v, %v; want it cancelled", x.Result, err)
	}
	_, err = w.c.LockSandboxNetwork(w.ctx(), project, sb.ID, false)
	wantError(t, "a second lock", err, hutch.ErrInvalidState)
	_, err = w.c.SetSandboxNetwork(w.ctx(), project, sb.ID, hutch.NetworkPhases{Setup: allow("setup.example.com")})
	wantError(t, "back to setup", err, hutch.ErrBadRequest)

	if other, err = w.c.LockSandboxNetwork(w.ctx(), project, other.ID, false); err != nil {
		t.Fatal(err)
	}
	w.wantReach("locked without a policy for the agent", other, "")
	if x, err := w.c.Exec(w.ctx(), project, running.ID); err != nil || x.Result != nil {
		t.Errorf("a command in one that is locked without stop: %+v, %v; want it running", x.Result, err)
	}
}

func presets(names ...string) map[string]policy.Preset {
	out := map[string]policy.Preset{}
	for _, n := range names {
		out[n] = policy.Preset{Hosts: []policy.Host{{Domain: n + ".example.com"}}}
	}
	return out
}

func TestNetworkIsTheOperatorsToBound(t *testing.T) {
	w := newWorld(t, func(w *world) {
		w.network = control.NetworkConfig{
			Env:  policy.Env{Presets: presets("pypi"), Trusted: []string{"pypi"}},
			Base: allow("base.example.com"),
			Projects: map[hutch.ProjectID]control.ProjectNetwork{hutch.EveryProject: {
				Default: &hutch.NetworkPolicy{Mode: hutch.NetworkTrusted},
				Ceiling: &hutch.NetworkPolicy{Mode: hutch.NetworkCustom, Rules: []hutch.NetworkRule{
					{Action: hutch.NetworkAllow, Preset: hutch.PresetTrusted}, {Action: hutch.NetworkAllow, Domain: "*.example.org"},
				}},
			}},
		}
	})
	byDefault := w.create()
	w.wantReach("one that asks for nothing", byDefault, "base.example.com trusted")
	off := w.create(asking(hutch.NetworkPhases{Agent: &hutch.NetworkPolicy{Mode: hutch.NetworkOff}}))
	w.wantReach("one that asks for no network", off, "base.example.com")
	within := w.create(asking(hutch.NetworkPhases{Agent: allow("a.example.org")}))
	w.wantReach("one within the ceiling", within, "base.example.com a.example.org")

	beyond := hutch.NetworkPhases{Setup: allow("a.example.org"), Agent: allow("b.example.org", "a.example.net")}
	req := request()
	req.Network = beyond
	_, err := w.c.CreateSandbox(w.ctx(), req)
	wantField(t, "a create beyond the ceiling, in the phase to come", err, hutch.ErrForbidden, "network.rules[1]")
	_, err = w.c.SetSandboxNetwork(w.ctx(), project, within.ID, hutch.NetworkPhases{Setup: beyond.Agent})
	wantError(t, "a way back to setup", err, hutch.ErrBadRequest)
	_, err = w.c.SetSandboxNetwork(w.ctx(), project, within.ID, hutch.NetworkPhases{Agent: beyond.Agent})
	wantField(t, "a change beyond the ceiling", err, hutch.ErrForbidden, "network.rules[1]")
	w.wantReach("after a change that was refused", within, "base.example.com a.example.org")

	// The operator changes his mind: who holds to what is left keeps it, who does not keeps the
	// base, and is told why.
	cfg := w.network
	cfg.Projects = map[hutch.ProjectID]control.ProjectNetwork{project: {Ceiling: &hutch.NetworkPolicy{Mode: hutch.NetworkTrusted}}}
	if err := errors.Join(w.c.SetNetwork(cfg), w.c.ApplyNetwork(w.ctx())); err != nil {
		t.Fatal(err)
	}
	w.wantReach("without the default", byDefault, "base.example.com")
	w.wantReach("beyond the new ceiling", within, "base.example.com")
	sb, err := w.c.Sandbox(w.ctx(), project, within.ID)
	if err != nil || !strings.Contains(sb.Network.Problem, "beyond") {
		t.Errorf("the record says %q, %v; want why", sb.Network.Problem, err)
	}
	if err := errors.Join(w.c.SetNetwork(w.network), w.c.ApplyNetwork(w.ctx())); err != nil {
		t.Fatal(err)
	}
	w.wantReach("with the ceiling of before", within, "base.example.com a.example.org")

	// While the server is down, too.
	w.network = cfg
	w.restart()
	w.wantReach("after a restart with another configuration", within, "base.example.com")
}

func wantField(t *testing.T, what string, err, want error, field string) {
	t.Helper()
	he, ok := errors.AsType[*hutch.Error](err)
	if !ok || !errors.Is(err, want) || !strings.HasPrefix(he.Field, field) {
		t.Errorf("%s: got %+v, want %v at %s", what, err, want, field)
	}
}

func TestNetworkConfigurationIsChecked(t *testing.T) {
	w := newWorld(t)
	w.create(asking(hutch.NetworkPhases{Agent: allow("a.example.com")}))
	for name, cfg := range map[string]control.NetworkConfig{
		"a preset that is not there": {Base: &hutch.NetworkPolicy{Mode: hutch.NetworkCustom, Rules: []hutch.NetworkRule{{Action: hutch.NetworkAllow, Preset: "npm"}}}},
		"a default beyond its ceiling": {Projects: map[hutch.ProjectID]control.ProjectNetwork{
			"p": {Default: allow("a.example.com"), Ceiling: allow("b.example.com")},
		}},
		"a ceiling that is none":             {Projects: map[hutch.ProjectID]control.ProjectNetwork{"p": {Ceiling: &hutch.NetworkPolicy{}}}},
		"a trusted preset that is not there": {Env: policy.Env{Trusted: []string{"npm"}}},
	} {
		if err := w.c.SetNetwork(cfg); err == nil {
			t.Errorf("%s was taken", name)
		}
	}
}

func TestNetworkLogIsKept(t *testing.T) {
	list := &decided{}
	w := newWorld(t, func(w *world) {
		w.control.Decisions, w.control.DecisionsEvery, w.control.NetworkMetrics = list, 5*time.Millisecond, list
	})
	sb, quiet := w.create(), w.create()
	list.add(sb.ID, hutch.NetworkEntry{Proto: "tls", Name: "a.example.com", Addr: netip.MustParseAddr("203.0.113.7"), Port: 443, Allowed: true, Rule: "rules[0]", Out: 5, In: 7})
	for range 20 {
		list.add(sb.ID, hutch.NetworkEntry{Proto: "dns", Name: "b.example.com", Rule: "default", Count: 2})
	}
	list.add("i-nobody", hutch.NetworkEntry{Proto: "dns", Name: "c.example.com", Rule: "default"})
	read := func(q hutch.NetworkLogQuery) (l []hutch.NetworkEntry) {
		eventually(t, "everything is on record", func() (err error) {
			q.Project, q.Sandbox = project, sb.ID
			if l, err = w.c.NetworkLog(w.ctx(), q); err == nil && (len(l) == 0 || l[len(l)-1].Origin.Seq != 21) {
				err = fmt.Errorf("%d entries so far", len(l))
			}
			return err
		})
		return l
	}
	all := read(hutch.NetworkLogQuery{})
	if len(all) != 21 || all[0].Name != "a.example.com" || !all[0].Allowed || all[0].In != 7 {
		t.Errorf("the log has %d entries, the first %+v", len(all), all[0])
	}
	if denied := read(hutch.NetworkLogQuery{Denied: true}); len(denied) != 20 || denied[0].Count != 2 {
		t.Errorf("%d were denied, want 20 of 2", len(denied))
	}
	if l, err := w.c.NetworkLog(w.ctx(), hutch.NetworkLogQuery{Project: project, Sandbox: quiet.ID}); err != nil || len(l) != 0 {
		t.Errorf("the log of the other: %v, %v", l, err)
	}
	_, err := w.c.NetworkLog(w.ctx(), hutch.NetworkLogQuery{Project: "other", Sandbox: sb.ID})
	wantError(t, "another project's look", err, hutch.ErrNotFound)

	// There is an event of each denial, up to a rate.
	evs, err := w.c.Events(w.ctx(), hutch.EventQuery{Project: project, Sandbox: sb.ID})
	evs = slices.DeleteFunc(evs, func(e hutch.Event) bool { return e.Type != "network.denied" })
	if err != nil || len(evs) != 10 || evs[0].Data["host"] != "b.example.com" || evs[0].Data["proto"] != "dns" {
		t.Errorf("%d events, %v; want 10 of b.example.com", len(evs), err)
	}
	s, err := w.c.SuggestNetwork(w.ctx(), project, sb.ID)
	if err != nil || len(s.Rules) != 1 || s.Rules[0].Domain != "b.example.com" {
		t.Errorf("suggested is %+v, %v", s, err)
	}

	// A server that is killed loses none and stores none twice.
	w.restart()
	list.add(sb.ID, hutch.NetworkEntry{Proto: "dns", Name: "d.example.com", Rule: "default"})
	eventually(t, "the last is on record", func() error {
		l, err := w.c.NetworkLog(w.ctx(), hutch.NetworkLogQuery{Project: project, Sandbox: sb.ID})
		if err == nil && len(l) != 22 {
			err = fmt.Errorf("%d entries", len(l))
		}
		return err
	})
	if n := list.metered(); n < 23 {
		t.Errorf("%d were counted, want 23 or more", n)
	}
	if _, err := w.c.KillSandbox(w.ctx(), project, sb.ID); err != nil {
		t.Fatal(err)
	}
	if l, err := w.c.NetworkLog(w.ctx(), hutch.NetworkLogQuery{Project: project, Sandbox: sb.ID}); err != nil || len(l) != 22 {
		t.Errorf("the log of the dead: %d, %v", len(l), err)
	}
}

// decided is a gateway's list, which is read in pages of 8.
type decided struct {
	mu      sync.Mutex
	all     []hutch.NetworkEntry
	counted int
}

func (d *decided) add(id hutch.SandboxID, e hutch.NetworkEntry) {
	d.mu.Lock()
	defer d.mu.Unlock()
	e.Sandbox, e.At, e.Origin = id, time.Now(), hutch.NetworkOrigin{Gateway: "g", Seq: int64(len(d.all) + 1)}
	d.all = append(d.all, e)
}

func (d *decided) metered() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.counted
}

// NetworkEntries implements control.Decisions.
func (d *decided) NetworkEntries(_ context.Context, after hutch.NetworkOrigin) (hutch.NetworkEntries, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	rest := d.all[min(after.Seq, int64(len(d.all))):]
	out := hutch.NetworkEntries{More: len(rest) > 8, Next: hutch.NetworkOrigin{Gateway: "g", Seq: after.Seq}}
	if out.Entries = slices.Clone(rest[:min(len(rest), 8)]); len(out.Entries) > 0 {
		out.Next = out.Entries[len(out.Entries)-1].Origin
	}
	return out, nil
}

// NetworkDecided implements control.NetworkMetrics.
func (d *decided) NetworkDecided(hutch.NetworkEntry) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.counted++
}

// NetworkLost implements control.NetworkMetrics.
func (d *decided) NetworkLost(int64) {}
