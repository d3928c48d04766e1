// Package policy decides what a sandbox may reach: from a policy, what the operator
// configured and a destination to a decision.
//
// It is pure. It looks nothing up, opens nothing, and knows no clock: time is handed in
// ([Policy.At]). Who learns names from bytes, resolves them, and holds connections is the
// gateway; it vouches for what it puts into a [Query], above all that an address was
// resolved, for this sandbox, from the name that stands beside it.
//
// What always holds:
//
//   - what no rule allows is denied, and so is what can be read in two ways;
//   - an address that is never to be reached is denied before any rule is looked at, in
//     every form it can be written in, unless the operator's [Env] names it;
//   - the first rule that matches decides;
//   - what expires only ever takes permissions away;
//   - [Policy.Within] may refuse what is harmless and never passes what is not.
//
// The gateway asks in this order: [Policy.Name] when a name is looked up, [Policy.Resolved]
// for each address of the answer, [Policy.Early] when a connection is tried, and
// [Policy.Connect] once its first bytes are known. It calls [Policy.At] at [Policy.Until],
// and asks again about what is open.
//
// Start with [Compile] and [Policy.Connect].
package policy

import (
	"fmt"
	"net/netip"
	"time"

	"hutch.dev/hutch"
)

// Bounds of a policy: far above what people write, and low enough that a decision stays a
// matter of microseconds.
const (
	maxWritten = 200  // rules of one layer, as somebody wrote them
	maxTotal   = 1000 // ports, methods and paths of all of these: they are compared pair by pair
	maxRules   = 1000 // with presets written out, all layers together
	maxItems   = 100  // ports, methods or paths of one rule
	maxText    = 1024 // bytes of a path, name or label
)

// Env is what the operator configured: the same for all sandboxes of a host.
type Env struct {
	// Presets are lists of hosts by name.
	Presets map[string]Preset `json:"presets,omitempty"`
	// Trusted are the presets that hutch.PresetTrusted stands for; none = it allows nothing.
	Trusted []string `json:"trusted,omitempty"`
	// Exceptions are reachable, where a rule allows them, though their kind is not.
	Exceptions []Exception `json:"exceptions,omitempty"`
	// Own are the host's addresses, Neighbours the networks that it is on. Only exceptions
	// for exactly that address, or within that network, lift them.
	Own        []netip.Addr   `json:"own,omitempty"`
	Neighbours []netip.Prefix `json:"neighbours,omitempty"`
	// Names are hosts whose addresses the operator gives, by host name.
	Names map[string]Override `json:"names,omitempty"`
}

// Preset is a list of hosts.
type Preset struct {
	Hosts []Host `json:"hosts"`
}

// Host is one of a preset.
type Host struct {
	Domain string            `json:"domain"`          // as in a rule
	Ports  []hutch.PortRange `json:"ports,omitempty"` // none = 80 and 443
}

// Exception is a range that is reachable though its kind is not. It lies within one kind
// (a private range, say): a wider one would not say what it is meant for.
type Exception struct {
	CIDR netip.Prefix `json:"cidr"`
	// Hosts limits it to connections to these names, as in a rule. None = to any, and to the
	// bare addresses.
	Hosts []string `json:"hosts,omitempty"`
}

// Override is what the operator says of a name. These addresses are reachable under that
// name, whatever their kind, and no others are.
type Override struct {
	Addrs []netip.Addr `json:"addrs,omitempty"` // none = as resolved
	// CA is the name of the authority that the host's certificate is from, among those that
	// the operator configured; empty = the usual ones.
	CA string `json:"ca,omitempty"`
}

// Action is what becomes of a connection.
type Action string

// The actions.
const (
	Allow Action = "allow"
	Deny  Action = "deny"
	// Inspect is that more must be known: from Connect the request (ask again with
	// Query.HTTP), from Early the first bytes.
	Inspect Action = "inspect"
)

// What decided when it was no rule.
const (
	RuleDefault     = "default"     // no rule matched
	RuleUnreachable = "unreachable" // the address is never reached
	RuleMalformed   = "malformed"   // it can't be understood, or in two ways
)

// Decision is what is done, why, and which rule said so.
type Decision struct {
	Action Action
	Rule   string // label of a rule, or one of the Rule constants
	Reason string // a sentence for people; it quotes nothing that is longer than a host name
}

// Proto is what is spoken on a connection.
type Proto string

// The protocols.
const (
	ProtoTCP  Proto = "tcp"  // neither of the following
	ProtoTLS  Proto = "tls"  // TLS, whatever is inside
	ProtoHTTP Proto = "http" // HTTP without TLS
	ProtoUDP  Proto = "udp"  // denied: names are looked up at the gateway, which does not ask about that
)

// Query is a connection that a sandbox tries.
type Query struct {
	Proto Proto // empty = ProtoTCP
	// Name is the host that the connection says it is for (TLS: SNI, HTTP: Host), else one
	// that was resolved to Addr for this sandbox. Empty = none: only a rule by address can
	// allow it. In every case Addr must be an address that Name was resolved to.
	Name string
	Addr netip.Addr // as dialled by the sandbox
	Port uint16
	// HTTP is the request, if it could be read.
	HTTP *HTTPQuery
}

// HTTPQuery is a request.
type HTTPQuery struct {
	Host   string // as sent, perhaps with a port; it must agree with Query.Name
	Method string
	Path   string // as sent, perhaps with a query
}

// Policy is a policy that can be asked. It is immutable.
type Policy struct {
	rules []rule
	env   *environment
	until time.Time
}

// rule is one rule, about one domain or one range.
type rule struct {
	label  string
	field  string // of the request, for errors
	preset string // that it is from; else empty
	allow  bool
	name   pattern      // zero for a rule by address
	prefix netip.Prefix // zero for a rule by name
	ports  portSet
	proto  hutch.NetworkProtocol
	http   *httpMatch
	until  time.Time
}

// Compile makes a policy of np and env. What is wrong with np is a *hutch.Error with the
// field; what is wrong with env is an error without a code: it is the operator's. It takes
// rules without effect, as merging makes them; [Check] does not.
func Compile(np hutch.NetworkPolicy, env Env) (*Policy, error) {
	e, err := compileEnv(env)
	if err != nil {
		return nil, err
	}
	rules, err := flatten(np)
	if err != nil {
		return nil, err
	}
	return e.compile(rules)
}

// Check is Compile for a policy as somebody wrote it: it refuses rules that can have no
// effect too, and names of rules that could be taken for ours.
func Check(np hutch.NetworkPolicy, env Env) error {
	e, err := compileEnv(env)
	if err != nil {
		return err
	}
	_, err = e.check(np)
	return err
}

func (e *environment) check(np hutch.NetworkPolicy) (*Policy, error) {
	if len(np.Rules) > maxWritten {
		return nil, hutch.FieldErrorf("rules", "there are %d, at most %d: use wildcards or ranges", len(np.Rules), maxWritten)
	}
	total := 0
	for i, r := range np.Rules {
		if err := checkLabel(r.Name); err != nil {
			return nil, hutch.FieldErrorf(fmt.Sprintf("rules[%d].name", i), "%.80q: %v", r.Name, err)
		}
		total += len(r.Ports)
		if r.HTTP != nil {
			total += len(r.HTTP.Methods) + len(r.HTTP.Paths)
		}
	}
	if total > maxTotal {
		return nil, hutch.FieldErrorf("rules", "they have %d ports, methods and paths, at most %d: use ranges, and paths that end in a star", total, maxTotal)
	}
	rules, err := flatten(np)
	if err != nil {
		return nil, err
	}
	p, err := e.compile(rules)
	if err != nil {
		return nil, err
	}
	return p, contradictions(p.rules)
}

// source is a rule with the field that it came from.
type source struct {
	hutch.NetworkRule
	field string
}

// flatten writes a policy's mode and expiry as rules.
func flatten(np hutch.NetworkPolicy) ([]source, error) {
	var out []source
	switch np.Mode {
	case hutch.NetworkCustom:
		if len(np.Rules) > maxRules {
			return nil, hutch.FieldErrorf("rules", "there are %d, at most %d", len(np.Rules), maxRules)
		}
		for i, r := range np.Rules {
			out = append(out, source{r, fmt.Sprintf("rules[%d]", i)})
		}
	case hutch.NetworkOff, hutch.NetworkTrusted:
		if len(np.Rules) > 0 {
			return nil, hutch.FieldErrorf("rules", "mode %q takes none: use mode %q, and a rule with preset %q for the trusted registries", np.Mode, hutch.NetworkCustom, hutch.PresetTrusted)
		}
		if np.Mode == hutch.NetworkTrusted {
			r := hutch.NetworkRule{Name: "mode trusted", Action: hutch.NetworkAllow, Preset: hutch.PresetTrusted}
			out = append(out, source{r, "mode"})
		}
	default:
		return nil, hutch.FieldErrorf("mode", "%.40q is none of %q, %q and %q", np.Mode, hutch.NetworkOff, hutch.NetworkTrusted, hutch.NetworkCustom)
	}
	for i := range out {
		if r := &out[i]; r.Action == hutch.NetworkAllow {
			r.ExpiresAt = earlier(r.ExpiresAt, np.ExpiresAt)
		}
	}
	return out, nil
}

func (e *environment) compile(rules []source) (*Policy, error) {
	p := &Policy{env: e}
	for _, r := range rules {
		label := r.Name
		if len(label) > maxText {
			return nil, hutch.FieldErrorf(r.field+".name", "it has %d bytes, at most %d", len(label), maxText)
		}
		if label == "" {
			label = r.field
		}
		made, err := e.compileRule(r.NetworkRule, label, r.field)
		if err != nil {
			return nil, err
		}
		p.rules = append(p.rules, made...)
		if len(p.rules) > maxRules {
			return nil, hutch.FieldErrorf("rules", "there are more than %d with presets written out: use wildcards or ranges", maxRules)
		}
	}
	p.setUntil()
	return p, nil
}

// At is the policy as it holds from now on: p itself if nothing has expired.
func (p *Policy) At(now time.Time) *Policy {
	if p.until.IsZero() || now.Before(p.until) {
		return p
	}
	q := &Policy{env: p.env}
	for _, r := range p.rules {
		if r.until.IsZero() || now.Before(r.until) {
			q.rules = append(q.rules, r)
		}
	}
	q.setUntil()
	return q
}

// Until is when a permission expires next; zero = never.
func (p *Policy) Until() time.Time { return p.until }

func (p *Policy) setUntil() {
	for _, r := range p.rules {
		p.until = earlier(p.until, r.until)
	}
}

// earlier is the first of two instants, of which zero is never.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
