package hutch

import (
	"encoding/json"
	"strconv"
	"strings"
	"time"
)

// NetworkMode says how a policy is meant.
type NetworkMode string

// The modes.
const (
	NetworkOff     NetworkMode = "off"     // nothing
	NetworkTrusted NetworkMode = "trusted" // the package registries that the operator trusts
	NetworkCustom  NetworkMode = "custom"  // what the rules say
)

// PresetTrusted is the preset that stands for all those that the operator trusts.
const PresetTrusted = "trusted"

// NetworkPolicy says what a sandbox may reach. What no rule allows is denied.
//
// Some destinations are out of reach whatever the rules say: private and shared ranges,
// loopback, link-local and metadata addresses, multicast, the host and its neighbours.
// Only the operator's configuration makes exceptions.
type NetworkPolicy struct {
	Mode NetworkMode `json:"mode"`
	// Rules are for NetworkCustom; the first that matches decides.
	Rules []NetworkRule `json:"rules,omitempty"`
	// ExpiresAt ends what the policy allows; what it denies stays denied. Zero = never.
	ExpiresAt time.Time `json:"expires_at,omitzero"`
}

// NetworkAction is what a rule does with what it matches.
type NetworkAction string

// The actions.
const (
	NetworkAllow NetworkAction = "allow"
	NetworkDeny  NetworkAction = "deny"
)

// NetworkProtocol limits a rule to what is spoken over TCP. Nothing else leaves a sandbox:
// names are looked up at the gateway.
type NetworkProtocol string

// The protocols.
const (
	// NetworkAny, for a rule by name, is TLS and HTTP, which say the name they are for; for a
	// rule by address it is whatever is spoken.
	NetworkAny NetworkProtocol = ""
	// NetworkTCP is whatever is spoken. For a rule by name that is a connection to an address
	// which that name was last resolved to.
	NetworkTCP  NetworkProtocol = "tcp"
	NetworkTLS  NetworkProtocol = "tls"
	NetworkHTTP NetworkProtocol = "http" // without TLS
)

// NetworkRule is one line of a policy. It is about exactly one of Domain, CIDR and Preset.
type NetworkRule struct {
	Name   string        `json:"name,omitempty"` // shown where the rule decided; empty = its place in the list
	Action NetworkAction `json:"action"`

	// Domain is a host name; "*.example.com" is everything below that name and not the name
	// itself, "*" every name.
	Domain string `json:"domain,omitempty"`
	// CIDR is an address or a range of them: connections to these, with a name or without.
	CIDR string `json:"cidr,omitempty"`
	// Preset is a list of hosts that the operator keeps, by its name.
	Preset string `json:"preset,omitempty"`

	// Ports limits the rule. Without them, an allowed domain is 80 and 443, an allowed range
	// every port but those of mail, and what is denied every port. Mail's ports are allowed
	// only if they are given one by one. A preset has its own.
	Ports    []PortRange     `json:"ports,omitempty"`
	Protocol NetworkProtocol `json:"protocol,omitempty"`
	// HTTP limits a rule by domain to requests. Over TLS it needs a gateway that reads them.
	HTTP *HTTPMatch `json:"http,omitempty"`
	// ExpiresAt ends the rule; only what allows can end. Zero = never.
	ExpiresAt time.Time `json:"expires_at,omitzero"`
}

// HTTPMatch matches requests; an empty list matches all.
type HTTPMatch struct {
	Methods []string `json:"methods,omitempty"`
	// Paths are exact, or end in "*" and match what begins so. A request whose path can be
	// read in two ways ("//", "/../", "%2F") matches no rule that allows by path, and every
	// rule that denies by path.
	Paths []string `json:"paths,omitempty"`
}

// NetworkPhase is a part of a sandbox's life with a policy of its own.
type NetworkPhase string

// The phases. A sandbox begins in setup if it has a policy for that, and is locked into
// agent once; there is no way back.
const (
	PhaseSetup NetworkPhase = "setup"
	PhaseAgent NetworkPhase = "agent"
)

// NetworkPhases are the policies of one sandbox. Nil is that nothing was said.
type NetworkPhases struct {
	Setup *NetworkPolicy `json:"setup,omitempty"`
	Agent *NetworkPolicy `json:"agent,omitempty"`
}

// First is the phase that a sandbox begins in.
func (n NetworkPhases) First() NetworkPhase {
	if n.Setup != nil {
		return PhaseSetup
	}
	return PhaseAgent
}

// In is the policy of a phase; nil = nothing was said for it.
func (n NetworkPhases) In(p NetworkPhase) *NetworkPolicy {
	if p == PhaseSetup {
		return n.Setup
	}
	return n.Agent
}

// Lock returns the phase that follows p, ErrInvalidState if there is none.
func (p NetworkPhase) Lock() (NetworkPhase, error) {
	if p == PhaseSetup {
		return PhaseAgent, nil
	}
	return p, Errorf(CodeInvalidState, "the sandbox is in phase %q, which is the last: only one in %q can be locked", PhaseAgent, PhaseSetup)
}

// PortRange is a range of ports, both ends in it. On the wire one port is a number, more
// are text: "8000-8100".
type PortRange struct{ First, Last uint16 }

// Port is the range of one.
func Port(n uint16) PortRange { return PortRange{n, n} }

// ParsePortRange reads "443" and "8000-8100".
func ParsePortRange(s string) (PortRange, error) {
	first, last, ranged := strings.Cut(s, "-")
	if !ranged {
		last = first
	}
	a, errA := strconv.ParseUint(first, 10, 16)
	b, errB := strconv.ParseUint(last, 10, 16)
	if errA != nil || errB != nil || a == 0 || a > b {
		return PortRange{}, Errorf(CodeBadRequest, "%.40q is no port from 1 to 65535 and no range of them (8000-8100)", s)
	}
	return PortRange{uint16(a), uint16(b)}, nil
}

// Valid reports whether there is a port in r, and not 0.
func (r PortRange) Valid() bool { return r.First > 0 && r.First <= r.Last }

func (r PortRange) String() string {
	if r.First == r.Last {
		return strconv.Itoa(int(r.First))
	}
	return strconv.Itoa(int(r.First)) + "-" + strconv.Itoa(int(r.Last))
}

// MarshalJSON writes one port as a number.
func (r PortRange) MarshalJSON() ([]byte, error) {
	if r.First == r.Last {
		return []byte(r.String()), nil
	}
	return json.Marshal(r.String())
}

// UnmarshalJSON reads a number or text.
func (r *PortRange) UnmarshalJSON(b []byte) error {
	s := string(b)
	if len(b) > 0 && b[0] == '"' {
		if err := json.Unmarshal(b, &s); err != nil {
			return err
		}
	}
	p, err := ParsePortRange(s)
	if err != nil {
		return err
	}
	*r = p
	return nil
}
