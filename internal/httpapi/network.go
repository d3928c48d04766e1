package httpapi

import (
	"errors"
	"net/http"
	"strings"

	"hutch.dev/hutch"
	"hutch.dev/hutch/api"
)

func (a *API) getNetwork(w http.ResponseWriter, r *http.Request) error {
	if err := newQuery(r).check(); err != nil {
		return err
	}
	sb, err := a.alive(r)
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, networkState(sb.Network))
}

func (a *API) setNetwork(w http.ResponseWriter, r *http.Request) error {
	body, err := a.bodyWithoutQuery(w, r)
	if err != nil {
		return err
	}
	var in api.Network
	if err := decode(body, &in); err != nil {
		return err
	}
	asked, err := networkPhases("", &in)
	if err != nil {
		return err
	}
	sb, err := a.svc.Network.SetSandboxNetwork(r.Context(), project(r), sandboxID(r), asked)
	if err != nil {
		return wholeBody(err)
	}
	return writeJSON(w, http.StatusOK, networkState(sb.Network))
}

// wholeBody names the field of an error as it stands in a body that is all about the network.
func wholeBody(err error) error {
	const within = "network."
	he, ok := errors.AsType[*hutch.Error](err)
	if !ok || !strings.HasPrefix(he.Field, within) {
		return err
	}
	out := *he
	out.Field = strings.TrimPrefix(he.Field, within)
	out.Message = strings.Replace(he.Message, he.Field, out.Field, 1)
	return &out
}

func (a *API) lockNetwork(w http.ResponseWriter, r *http.Request) error {
	body, err := a.bodyWithoutQuery(w, r)
	if err != nil {
		return err
	}
	var in api.LockNetwork
	if len(body) > 0 {
		if err := decode(body, &in); err != nil {
			return err
		}
	}
	sb, err := a.svc.Network.LockSandboxNetwork(r.Context(), project(r), sandboxID(r), in.Stop)
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, networkState(sb.Network))
}

func (a *API) networkLog(w http.ResponseWriter, r *http.Request) error {
	q := newQuery(r)
	want := hutch.NetworkLogQuery{
		Project: project(r), Sandbox: sandboxID(r), After: q.num("after", 0), Denied: q.flag("denied", false), Limit: q.limit(maxPage),
	}
	if err := q.check(); err != nil {
		return err
	}
	l, err := a.svc.Network.NetworkLog(r.Context(), want)
	if err != nil {
		return err
	}
	out := api.NetworkLog{Entries: make([]api.NetworkEntry, 0, len(l)), Next: want.After}
	for _, e := range l {
		out.Entries = append(out.Entries, showEntry(e))
		out.Next = e.Seq
	}
	return writeJSON(w, http.StatusOK, out)
}

func (a *API) networkSuggestion(w http.ResponseWriter, r *http.Request) error {
	if err := newQuery(r).check(); err != nil {
		return err
	}
	s, err := a.svc.Network.SuggestNetwork(r.Context(), project(r), sandboxID(r))
	if err != nil {
		return err
	}
	out := api.NetworkSuggestion{Rules: showRules(s.Rules), LeftOut: make([]api.NetworkLeftOut, 0, len(s.Left))}
	for _, l := range s.Left {
		left := api.NetworkLeftOut{Host: l.Name, Port: int(l.Port), Count: l.Count, Why: l.Why}
		if l.Addr.IsValid() {
			left.Addr = l.Addr.String()
		}
		out.LeftOut = append(out.LeftOut, left)
	}
	return writeJSON(w, http.StatusOK, out)
}

// networkPhases is what a request asks for; nil asks for nothing. What the rules say is for the
// service to judge. Within is where it stands in the request.
func networkPhases(within string, in *api.Network) (out hutch.NetworkPhases, err error) {
	if in == nil {
		return out, nil
	}
	if in.Mode == "" && (len(in.Rules) > 0 || !in.ExpiresAt.IsZero()) {
		return out, hutch.FieldErrorf(within+"mode", "must be %q for rules, or %q or %q", hutch.NetworkCustom, hutch.NetworkTrusted, hutch.NetworkOff)
	}
	if in.Mode != "" {
		out.Agent = networkPolicy(api.NetworkPolicy{Mode: in.Mode, Rules: in.Rules, ExpiresAt: in.ExpiresAt})
	}
	if in.Setup != nil {
		out.Setup = networkPolicy(*in.Setup)
	}
	return out, nil
}

func networkPolicy(in api.NetworkPolicy) *hutch.NetworkPolicy {
	out := &hutch.NetworkPolicy{Mode: in.Mode, ExpiresAt: in.ExpiresAt}
	for _, r := range in.Rules {
		rule := hutch.NetworkRule{
			Name: r.Name, Action: r.Action, Domain: r.Domain, CIDR: r.CIDR, Preset: r.Preset,
			Ports: r.Ports, Protocol: r.Protocol, ExpiresAt: r.ExpiresAt,
		}
		if r.HTTP != nil {
			rule.HTTP = &hutch.HTTPMatch{Methods: r.HTTP.Methods, Paths: r.HTTP.Paths}
		}
		out.Rules = append(out.Rules, rule)
	}
	return out
}

func showPolicy(p *hutch.NetworkPolicy) *api.NetworkPolicy {
	if p == nil {
		return nil
	}
	return &api.NetworkPolicy{Mode: p.Mode, Rules: showRules(p.Rules), ExpiresAt: p.ExpiresAt}
}

func showRules(rules []hutch.NetworkRule) []api.NetworkRule {
	out := make([]api.NetworkRule, 0, len(rules))
	for _, r := range rules {
		rule := api.NetworkRule{
			Name: r.Name, Action: r.Action, Domain: r.Domain, CIDR: r.CIDR, Preset: r.Preset,
			Ports: r.Ports, Protocol: r.Protocol, ExpiresAt: r.ExpiresAt,
		}
		if r.HTTP != nil {
			rule.HTTP = &api.NetworkHTTP{Methods: r.HTTP.Methods, Paths: r.HTTP.Paths}
		}
		out = append(out, rule)
	}
	return out
}

// phaseOf is the phase that a sandbox is in; those of before there were any are the agent's.
func phaseOf(n hutch.SandboxNetwork) hutch.NetworkPhase {
	if n.Phase == "" {
		return hutch.PhaseAgent
	}
	return n.Phase
}

func networkState(n hutch.SandboxNetwork) api.NetworkState {
	out := api.NetworkState{
		Phase: phaseOf(n), Source: n.Source, Template: showPolicy(n.Template), Holds: []api.NetworkRule{}, Problem: n.Problem, Revision: n.Revision,
	}
	if n.Asked != (hutch.NetworkPhases{}) {
		out.Asked = &api.Network{Setup: showPolicy(n.Asked.Setup)}
		if p := showPolicy(n.Asked.Agent); p != nil {
			out.Asked.Mode, out.Asked.Rules, out.Asked.ExpiresAt = p.Mode, p.Rules, p.ExpiresAt
		}
	}
	if n.Holds != nil {
		out.Holds = showRules(n.Holds.Rules)
	}
	return out
}

// showNetwork is what a sandbox shows of its network.
func showNetwork(n hutch.SandboxNetwork) api.SandboxNetwork {
	out := api.SandboxNetwork{Phase: phaseOf(n), Source: n.Source, Problem: n.Problem}
	if n.Holds != nil {
		out.Rules = len(n.Holds.Rules)
	}
	return out
}

func showEntry(e hutch.NetworkEntry) api.NetworkEntry {
	out := api.NetworkEntry{
		Seq: e.Seq, At: milli(e.At), Count: e.Count, Action: hutch.NetworkDeny, Proto: e.Proto, Host: e.Name, Port: int(e.Port),
		Rule: e.Rule, Reason: e.Reason, SentBytes: e.Out, GotBytes: e.In, DurationMS: e.Took.Milliseconds(),
	}
	if e.Allowed {
		out.Action = hutch.NetworkAllow
	}
	if e.Addr.IsValid() {
		out.Addr = e.Addr.String()
	}
	return out
}
