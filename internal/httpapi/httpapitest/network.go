package httpapitest

import (
	"context"
	"net/netip"

	"hutch.dev/hutch"
)

// Forbidden is a domain that no sandbox of a Fake may ask for.
const Forbidden = "forbidden.example.com"

// checkNetwork judges as the service does, as far as a Fake knows.
func checkNetwork(n hutch.NetworkPhases) error {
	for within, p := range map[string]*hutch.NetworkPolicy{"network.": n.Agent, "network.setup.": n.Setup} {
		if p == nil {
			continue
		}
		if p.Mode != hutch.NetworkOff && p.Mode != hutch.NetworkTrusted && p.Mode != hutch.NetworkCustom {
			return hutch.FieldErrorf(within+"mode", "is none")
		}
		for _, r := range p.Rules {
			if r.Domain == Forbidden {
				e := hutch.FieldErrorf(within+"rules[0].domain", "is beyond what this project may reach")
				e.Code, e.Reason = hutch.CodeForbidden, "network_ceiling"
				return e
			}
		}
	}
	return nil
}

// plannedNetwork is what a sandbox has of what was asked for.
func plannedNetwork(n hutch.NetworkPhases) hutch.SandboxNetwork {
	out := hutch.SandboxNetwork{Phase: n.First(), Asked: n}
	if out.Holds = n.In(out.Phase); out.Holds != nil {
		out.Source = hutch.NetworkOfRequest
	}
	return out
}

// SetSandboxNetwork implements httpapi.Network.
func (f *Fake) SetSandboxNetwork(_ context.Context, p hutch.ProjectID, sid hutch.SandboxID, asked hutch.NetworkPhases) (hutch.Sandbox, error) {
	if err := f.called("SetSandboxNetwork"); err != nil {
		return hutch.Sandbox{}, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	sb, err := f.liveLocked(p, sid)
	if err != nil {
		return hutch.Sandbox{}, err
	}
	if err := checkNetwork(asked); err != nil {
		return hutch.Sandbox{}, err
	}
	was := sb.Network.Revision
	sb.Network = plannedNetwork(asked)
	sb.Network.Revision = was + 1
	return *sb, nil
}

// LockSandboxNetwork implements httpapi.Network.
func (f *Fake) LockSandboxNetwork(_ context.Context, p hutch.ProjectID, sid hutch.SandboxID, stop bool) (hutch.Sandbox, error) {
	if err := f.called("LockSandboxNetwork"); err != nil {
		return hutch.Sandbox{}, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	sb, err := f.liveLocked(p, sid)
	if err != nil {
		return hutch.Sandbox{}, err
	}
	next, err := sb.Network.Phase.Lock()
	if err != nil {
		return hutch.Sandbox{}, err
	}
	sb.Network.Phase, sb.Network.Holds = next, sb.Network.Asked.In(next)
	sb.Network.Revision++
	f.Stopped = stop
	return *sb, nil
}

// NetworkLog implements httpapi.Network: each sandbox was allowed one thing and denied another.
func (f *Fake) NetworkLog(_ context.Context, q hutch.NetworkLogQuery) ([]hutch.NetworkEntry, error) {
	if err := f.called("NetworkLog"); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, err := f.liveLocked(q.Project, q.Sandbox); err != nil {
		return nil, err
	}
	web := netip.MustParseAddr("203.0.113.7")
	var out []hutch.NetworkEntry
	for _, e := range []hutch.NetworkEntry{
		{Seq: 1, At: Epoch, Count: 1, Proto: "tls", Name: "web.example.com", Addr: web, Port: 443, Allowed: true, Rule: "rules[0]", Out: 10, In: 20},
		{Seq: 2, At: Epoch, Count: 3, Proto: "dns", Name: "other.example.com", Rule: "default", Reason: "no rule allows it"},
	} {
		if e.Seq > q.After && (!q.Denied || !e.Allowed) && (q.Limit == 0 || len(out) < q.Limit) {
			out = append(out, e)
		}
	}
	return out, nil
}

// SuggestNetwork implements httpapi.Network.
func (f *Fake) SuggestNetwork(_ context.Context, p hutch.ProjectID, sid hutch.SandboxID) (hutch.NetworkSuggestion, error) {
	if err := f.called("SuggestNetwork"); err != nil {
		return hutch.NetworkSuggestion{}, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, err := f.liveLocked(p, sid); err != nil {
		return hutch.NetworkSuggestion{}, err
	}
	return hutch.NetworkSuggestion{
		Rules: []hutch.NetworkRule{{Action: hutch.NetworkAllow, Domain: "other.example.com"}},
		Left:  []hutch.NetworkLeftOut{{Addr: netip.MustParseAddr("169.254.169.254"), Port: 80, Count: 2, Why: "it is a metadata service"}},
	}, nil
}
