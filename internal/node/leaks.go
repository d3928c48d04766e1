package node

import (
	"context"
	"fmt"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/runtime"
)

// Held names the sandboxes that the node runs, starts, takes over or sweeps now, and those
// whose machines are prepared.
func (n *Node) Held() map[hutch.SandboxID]bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	held := make(map[hutch.SandboxID]bool, len(n.boxes)+len(n.comes)+len(n.ready))
	for id := range n.boxes {
		held[id] = true
	}
	for id := range n.comes {
		held[id] = true
	}
	for id := range n.ready {
		held[id] = true
	}
	return held
}

// Traces names everything of sandboxes that is on this host, those that the node runs
// included: what the isolator made, what the keeper stores, what the gateway serves. Deep
// looks through every process's open files as well, and for what was left half made.
func (n *Node) Traces(ctx context.Context, deep bool) ([]hutch.Trace, error) {
	return Survey{Runtime: n.rt, Keeper: n.keeper, Egress: n.egress, Temp: n.cfg.Temp}.Traces(ctx, deep)
}

// Lister names what it holds.
type Lister interface {
	List(ctx context.Context) ([]hutch.Trace, error)
}

// Survey looks at a host, whether a node works there or not. Parts that are nil are left out.
type Survey struct {
	Runtime runtime.Runtime
	Keeper  Lister
	Egress  Lister
	Temp    func(ctx context.Context) ([]hutch.Trace, error)
}

// Traces is [Node.Traces].
func (s Survey) Traces(ctx context.Context, deep bool) ([]hutch.Trace, error) {
	all, err := machines(ctx, s.Runtime, deep)
	if err != nil {
		return nil, fmt.Errorf("list machines: %w", err)
	}
	for _, part := range []struct {
		name string
		from Lister
	}{{"keeper", s.Keeper}, {"egress gateway", s.Egress}} {
		if part.from == nil {
			continue
		}
		more, err := part.from.List(ctx)
		if err != nil {
			return nil, fmt.Errorf("list what the %s holds: %w", part.name, err)
		}
		all = append(all, more...)
	}
	if !deep || s.Temp == nil {
		return all, nil
	}
	more, err := s.Temp(ctx)
	if err != nil {
		return nil, fmt.Errorf("list what was left half made: %w", err)
	}
	return append(all, more...), nil
}

// machines names what the isolator has; one that does not say what it is, by sandbox.
func machines(ctx context.Context, rt runtime.Runtime, deep bool) ([]hutch.Trace, error) {
	if t, ok := rt.(runtime.Tracer); ok {
		return t.Traces(ctx, deep)
	}
	ids, err := rt.List(ctx)
	if err != nil {
		return nil, err
	}
	all := make([]hutch.Trace, 0, len(ids))
	for _, id := range ids {
		all = append(all, hutch.Trace{Kind: hutch.TraceMachine, Name: string(id), Sandbox: id})
	}
	return all, nil
}
