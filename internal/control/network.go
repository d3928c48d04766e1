package control

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/egress/policy"
	"hutch.dev/hutch/internal/store"
)

// NetworkConfig is what the operator says of the sandboxes' network. The zero value lets
// nothing out.
type NetworkConfig struct {
	// Env has the presets, and what is reachable though its kind is not. The gateway is told of
	// it by whoever sets this, before.
	Env policy.Env
	// Base comes before everything else, for every sandbox; nil = nothing does.
	Base *hutch.NetworkPolicy
	// Projects has what projects get and may get. That of [hutch.EveryProject] is for each that
	// has no entry.
	Projects map[hutch.ProjectID]ProjectNetwork
}

// ProjectNetwork is what the operator says of a project's sandboxes.
type ProjectNetwork struct {
	Default *hutch.NetworkPolicy // where neither request nor template says anything; nil = nothing is reached
	Ceiling *hutch.NetworkPolicy // the most that may be asked for; nil = anything
}

// of is what holds for a project.
func (n NetworkConfig) of(p hutch.ProjectID) ProjectNetwork {
	if x, ok := n.Projects[p]; ok {
		return x
	}
	return n.Projects[hutch.EveryProject]
}

// Check refuses what could not be held, with the field: a policy in which a rule has no effect,
// or a project's default that is beyond its ceiling.
func (n NetworkConfig) Check() error {
	if _, err := policy.Compile(hutch.NetworkPolicy{Mode: hutch.NetworkOff}, n.Env); err != nil {
		return err
	}
	if n.Base != nil {
		if err := policy.Check(*n.Base, n.Env); err != nil {
			return within(err, "base")
		}
	}
	for _, p := range slices.Sorted(maps.Keys(n.Projects)) {
		x := n.Projects[p]
		if x.Ceiling != nil {
			if err := policy.Check(*x.Ceiling, n.Env); err != nil {
				return within(err, "projects."+string(p)+".ceiling")
			}
		}
		if x.Default != nil {
			if _, err := policy.Merge(policy.Layers{Base: n.Base, Request: x.Default, Ceilings: x.ceilings()}, n.Env); err != nil {
				return within(err, "projects."+string(p)+".default")
			}
		}
	}
	return nil
}

func (x ProjectNetwork) ceilings() []policy.Ceiling {
	if x.Ceiling == nil {
		return nil
	}
	return []policy.Ceiling{{Of: "this project", Policy: *x.Ceiling}}
}

// within puts the field of a policy's error where the policy is. An error without a field is the
// caller's only if it is typed.
func within(err error, where string) error {
	he, ok := errors.AsType[*hutch.Error](err)
	if !ok || he.Field == "" {
		return err
	}
	out := *he
	out.Field = where + "." + he.Field
	out.Message = strings.Replace(out.Message, he.Field, out.Field, 1)
	return &out
}

// network is the operator's configuration as it holds now. The zero value is ready.
type network struct {
	mu  sync.Mutex
	cfg NetworkConfig
}

func (n *network) get() NetworkConfig {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.cfg
}

func (n *network) set(cfg NetworkConfig) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.cfg = cfg
}

// SetNetwork sets what the operator says, in the place of all that was said before. It holds for
// what is made from then on; [Control.ApplyNetwork] has it hold for the others. If it can't be held
// nothing is set.
func (c *Control) SetNetwork(cfg NetworkConfig) error {
	if err := cfg.Check(); err != nil {
		return err
	}
	c.network.set(cfg)
	return nil
}

// ApplyNetwork holds every living sandbox to what the operator says now. One whose policy does
// not hold any more keeps the operator's base and nothing else, and says why.
func (c *Control) ApplyNetwork(ctx context.Context) error {
	alive, err := c.allAlive(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for _, sb := range alive {
		out, changed, err := c.remerge(ctx, sb)
		if err == nil && changed && out.State != hutch.StateNew { // a start looks when it has ended
			_, err = c.passNetwork(ctx, out)
		}
		if err != nil && !errors.Is(err, hutch.ErrSandboxGone) && !errors.Is(err, hutch.ErrNotFound) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// remerge makes a sandbox's record say what holds by the operator's configuration of now.
func (c *Control) remerge(ctx context.Context, sb hutch.Sandbox) (_ hutch.Sandbox, changed bool, err error) {
	cfg := c.network.get()
	now := cfg.held(sb.Project, sb.Network)
	if sameNetwork(now, sb.Network) {
		return sb, false, nil
	}
	out, err := c.mutate(ctx, sb, func(s *hutch.Sandbox) error {
		if s.State == hutch.StateDead {
			return goneError(*s)
		}
		now = cfg.held(s.Project, s.Network)
		now.Revision = s.Network.Revision + 1
		s.Network = now
		return nil
	}, event(sb, "network.changed", "by", "operator", "problem", now.Problem))
	if err != nil {
		return sb, false, fmt.Errorf("apply the network configuration to %s: %w", sb.ID, err)
	}
	if now.Problem != "" {
		c.log.Warn("a sandbox's network policy does not hold any more", "sandbox", sb.ID, "op", "network", "error", now.Problem)
	}
	return out, true, nil
}

func sameNetwork(a, b hutch.SandboxNetwork) bool {
	return reflect.DeepEqual(a.Holds, b.Holds) && a.Source == b.Source && a.Problem == b.Problem
}

// merged fills in what a sandbox's network comes to, or says why it can't be had: what is wrong
// with what was asked for is a *hutch.Error with the field, also in the phase that is yet to come.
func (cfg NetworkConfig) merged(p hutch.ProjectID, n hutch.SandboxNetwork) (hutch.SandboxNetwork, error) {
	phases := []hutch.NetworkPhase{n.Phase}
	if next, err := n.Phase.Lock(); err == nil {
		phases = append(phases, next)
	}
	out := n
	for i, phase := range phases {
		holds, source, err := cfg.merge(p, n, phase)
		if err != nil {
			return n, err
		}
		if i == 0 {
			out.Holds, out.Source, out.Problem = holds, source, ""
		}
	}
	return out, nil
}

// held is merged where there is nobody to refuse: of what does not hold, the operator's base is left.
func (cfg NetworkConfig) held(p hutch.ProjectID, n hutch.SandboxNetwork) hutch.SandboxNetwork {
	holds, source, err := cfg.merge(p, n, n.Phase)
	n.Holds, n.Source, n.Problem = holds, source, ""
	if err != nil {
		n.Problem = err.Error()
		if he, ok := errors.AsType[*hutch.Error](err); ok {
			n.Problem = he.Message
		}
		if n.Holds, _, err = cfg.merge(p, hutch.SandboxNetwork{Asked: hutch.NetworkPhases{Agent: &hutch.NetworkPolicy{Mode: hutch.NetworkOff}}}, hutch.PhaseAgent); err != nil {
			n.Holds = nil // the base was checked when it was set
		}
	}
	return n
}

// merge is what holds in one phase.
func (cfg NetworkConfig) merge(p hutch.ProjectID, n hutch.SandboxNetwork, phase hutch.NetworkPhase) (*hutch.NetworkPolicy, hutch.NetworkSource, error) {
	of := cfg.of(p)
	l := policy.Layers{Base: cfg.Base, Template: n.Template, Request: n.Asked.In(phase), Ceilings: of.ceilings()}
	source := hutch.NetworkOfRequest
	switch {
	case l.Request != nil:
	case l.Template != nil:
		source = hutch.NetworkOfTemplate
	case of.Default != nil:
		l.Template, source = of.Default, hutch.NetworkOfProject
	default:
		source = ""
	}
	m, err := policy.Merge(l, cfg.Env)
	if err != nil {
		where := "network"
		if phase == hutch.PhaseSetup {
			where = "network.setup"
		}
		return nil, source, within(err, where)
	}
	if source == hutch.NetworkOfProject { // Merge calls whatever nobody asked for the template's
		for i := range m.Rules {
			if rest, ok := strings.CutPrefix(m.Rules[i].Name, "template: "); ok {
				m.Rules[i].Name = "project: " + rest
			}
		}
	}
	if len(m.Rules) == 0 { // not nil: the gateway says what was tried only of who has a policy
		return &hutch.NetworkPolicy{Mode: hutch.NetworkOff}, source, nil
	}
	return &m, source, nil
}

// planNetwork is the network of a sandbox to be.
func (c *Control) planNetwork(req hutch.CreateSandbox, t hutch.Template) (hutch.SandboxNetwork, error) {
	return c.network.get().merged(req.Project, hutch.SandboxNetwork{Phase: req.Network.First(), Asked: req.Network, Template: t.Network})
}

// SetSandboxNetwork replaces what a sandbox may reach, and returns once that holds: connections
// that are open and denied now are cut. Without a policy for setup it is in phase agent from then
// on. What is beyond the project's ceiling is refused whole.
func (c *Control) SetSandboxNetwork(ctx context.Context, p hutch.ProjectID, id hutch.SandboxID, asked hutch.NetworkPhases) (hutch.Sandbox, error) {
	return c.changeNetwork(ctx, p, id, "network.changed", func(n *hutch.SandboxNetwork) error {
		if asked.Setup != nil && n.Phase != hutch.PhaseSetup {
			return hutch.FieldErrorf("network.setup", "the sandbox is in phase %q and does not go back: leave setup out", hutch.PhaseAgent)
		}
		n.Asked, n.Phase = asked, asked.First()
		return nil
	})
}

// LockSandboxNetwork moves a sandbox from phase setup to phase agent, and returns once what is
// denied there is cut. With stop, everything that its commands and shell sessions left running is
// ended before it returns. One that is in phase agent is hutch.ErrInvalidState.
func (c *Control) LockSandboxNetwork(ctx context.Context, p hutch.ProjectID, id hutch.SandboxID, stop bool) (hutch.Sandbox, error) {
	if stop { // asked before, so that one that is paused is not locked with all of it left
		if _, err := c.running(ctx, p, id); err != nil {
			return hutch.Sandbox{}, err
		}
	}
	sb, err := c.changeNetwork(ctx, p, id, "network.locked", func(n *hutch.SandboxNetwork) error {
		next, err := n.Phase.Lock()
		if err != nil {
			return err
		}
		n.Phase = next
		return nil
	})
	if err != nil || !stop {
		return sb, err
	}
	return sb, errors.Join(c.closeShells(ctx, p, id), c.cancelAll(ctx, p, id))
}

// closeShells ends every shell session of a sandbox.
func (c *Control) closeShells(ctx context.Context, p hutch.ProjectID, id hutch.SandboxID) error {
	g, done, err := c.Guest(ctx, p, id)
	if err != nil {
		return err
	}
	defer done()
	shells, err := g.ListShells(ctx)
	if errors.Is(err, hutch.ErrUnsupported) { // by a guest agent from before there were any
		return nil
	}
	if err != nil {
		return err
	}
	var errs []error
	for _, sh := range shells {
		if err := g.CloseShell(ctx, sh.Name); !errors.Is(err, hutch.ErrNotFound) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// cancelParallel is how many commands are ended at once.
const cancelParallel = 8

// cancelAll ends every command of a sandbox, and what those that have ended left running.
func (c *Control) cancelAll(ctx context.Context, p hutch.ProjectID, id hutch.SandboxID) error {
	if err := c.execs.settleAll(ctx, id); err != nil {
		return err
	}
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(cancelParallel)
	for cursor := ""; ; {
		l, next, err := c.store.ExecsOf(ctx, store.ExecFilter{Sandbox: id, Oldest: true, Brief: true}, store.Page{Cursor: cursor, Limit: 1000})
		if err != nil {
			return errors.Join(fmt.Errorf("list commands of %s: %w", id, err), g.Wait())
		}
		for _, x := range l {
			g.Go(func() error {
				if _, err := c.CancelExec(gctx, p, id, x.ID, nil); !errors.Is(err, hutch.ErrNotFound) {
					return err
				}
				return nil
			})
		}
		if next == "" {
			return g.Wait()
		}
		cursor = next
	}
}

// changeNetwork has fn change what was asked for, and tells the node.
func (c *Control) changeNetwork(ctx context.Context, p hutch.ProjectID, id hutch.SandboxID, what string, fn func(*hutch.SandboxNetwork) error) (hutch.Sandbox, error) {
	sb, err := c.alive(ctx, p, id)
	if err != nil {
		return sb, err
	}
	ctx, cancel := finish(ctx, finishTimeout)
	defer cancel()
	cfg := c.network.get()
	out, err := c.mutate(ctx, sb, func(s *hutch.Sandbox) error {
		switch s.State {
		case hutch.StateDead:
			return goneError(*s)
		case hutch.StateNew:
			return hutch.Errorf(hutch.CodeConflict, "sandbox %s is starting: try again when that has ended", id)
		default:
		}
		n := s.Network
		if n.Phase == "" {
			n.Phase = hutch.PhaseAgent
		}
		if err := fn(&n); err != nil {
			return err
		}
		n, err := cfg.merged(s.Project, n)
		if err != nil {
			return err
		}
		n.Revision = s.Network.Revision + 1
		s.Network = n
		return nil
	}, event(sb, what))
	if err != nil {
		return hutch.Sandbox{}, err
	}
	c.activity.touch(id)
	return c.passNetwork(ctx, out)
}

// passNetwork has the gateway told what the record says. If it is changed meanwhile whoever
// comes last makes it right, and the node takes no older news after newer.
func (c *Control) passNetwork(ctx context.Context, sb hutch.Sandbox) (hutch.Sandbox, error) {
	for {
		err := c.nodes.SetNetwork(ctx, sb.ID, sb.Epoch, sb.Network)
		if err != nil && !errors.Is(err, hutch.ErrStale) {
			return sb, c.explainGone(ctx, sb.Project, sb.ID, err)
		}
		now, rerr := c.alive(ctx, sb.Project, sb.ID)
		if rerr != nil || err == nil && now.Network.Revision == sb.Network.Revision {
			return now, rerr
		}
		sb = now
	}
}

// SandboxNetwork is what is known of a sandbox's way out.
func (c *Control) SandboxNetwork(ctx context.Context, p hutch.ProjectID, id hutch.SandboxID) (hutch.SandboxNetwork, error) {
	sb, err := c.alive(ctx, p, id)
	return sb.Network, err
}

// NetworkLog returns what a sandbox was allowed and denied, oldest first, also once it has ended.
func (c *Control) NetworkLog(ctx context.Context, q hutch.NetworkLogQuery) ([]hutch.NetworkEntry, error) {
	if _, err := c.load(ctx, q.Project, q.Sandbox); err != nil {
		return nil, err
	}
	l, err := c.store.NetworkEntries(ctx, store.NetworkFilter{Sandbox: q.Sandbox, After: q.After, Denied: q.Denied, Limit: q.Limit})
	if err != nil {
		return nil, fmt.Errorf("read the network log of %s: %w", q.Sandbox, err)
	}
	return l, nil
}
