package api

import (
	"time"

	"hutch.dev/hutch"
)

// Network says what a sandbox may reach: the body of PUT /v1/sandboxes/{id}/network, and
// CreateSandbox.Network. Mode, rules and expires_at are of phase agent; without a mode they are the
// template's, else the project's.
type Network struct {
	Mode      hutch.NetworkMode `json:"mode,omitempty"`      // "off", "trusted" (the presets that the operator trusts) or "custom" (rules)
	Rules     []NetworkRule     `json:"rules,omitempty"`     // for mode custom; the first that matches decides, what none allows is denied
	ExpiresAt time.Time         `json:"expires_at,omitzero"` // what is allowed is denied from then on; never when left out
	Setup     *NetworkPolicy    `json:"setup,omitempty"`     // what holds in phase setup, until it is locked; without it there is no such phase
}

// NetworkPolicy is what a sandbox may reach in one phase.
type NetworkPolicy struct {
	Mode      hutch.NetworkMode `json:"mode"`
	Rules     []NetworkRule     `json:"rules,omitempty"`
	ExpiresAt time.Time         `json:"expires_at,omitzero"`
}

// NetworkRule is one line of a policy, about exactly one of domain, cidr and preset.
type NetworkRule struct {
	Name      string                `json:"name,omitempty"`      // shown where the rule decided
	Action    hutch.NetworkAction   `json:"action"`              // "allow" or "deny"
	Domain    string                `json:"domain,omitempty"`    // a host name; "*.example.com" is everything below it and not itself, "*" every name
	CIDR      string                `json:"cidr,omitempty"`      // an address or a range of them
	Preset    string                `json:"preset,omitempty"`    // a list of hosts that the operator keeps; "trusted" is all those that he trusts
	Ports     []hutch.PortRange     `json:"ports,omitempty"`     // numbers, or ranges like "8000-8100"; when left out, of an allowed domain 80 and 443, of an allowed range all but those of mail
	Protocol  hutch.NetworkProtocol `json:"protocol,omitempty"`  // "tcp", "tls" or "http"; when left out, of a domain TLS and HTTP, of a range anything
	HTTP      *NetworkHTTP          `json:"http,omitempty"`      // limits a rule by domain to requests
	ExpiresAt time.Time             `json:"expires_at,omitzero"` // of a rule that allows; never when left out
}

// NetworkHTTP matches requests; an empty list matches all.
type NetworkHTTP struct {
	Methods []string `json:"methods,omitempty"`
	Paths   []string `json:"paths,omitempty"` // exact, or with "*" at the end
}

// SandboxNetwork is what a sandbox shows of its network; GET /v1/sandboxes/{id}/network has all of it.
type SandboxNetwork struct {
	Phase   hutch.NetworkPhase  `json:"phase"`             // "setup" or "agent"
	Source  hutch.NetworkSource `json:"source,omitempty"`  // whose policy it has: "request", "template" or "project"; absent = nobody said anything
	Rules   int                 `json:"rules"`             // how many hold, the operator's base included; 0 = it reaches nothing
	Problem string              `json:"problem,omitempty"` // why what was said does not hold any more
}

// NetworkState is the answer of the calls on /v1/sandboxes/{id}/network.
type NetworkState struct {
	Phase    hutch.NetworkPhase  `json:"phase"`
	Source   hutch.NetworkSource `json:"source,omitempty"`
	Asked    *Network            `json:"asked,omitempty"`    // as it was asked for
	Template *NetworkPolicy      `json:"template,omitempty"` // the template's, as it was when the sandbox was made
	Holds    []NetworkRule       `json:"holds"`              // what the gateway keeps to, in order
	Problem  string              `json:"problem,omitempty"`
	Revision int64               `json:"revision"` // grows whenever holds changes
}

// LockNetwork is the body of POST /v1/sandboxes/{id}/network/lock.
type LockNetwork struct {
	Stop bool `json:"stop,omitempty"` // end everything that commands and shell sessions left running, before the answer
}

// NetworkEntry is something that a sandbox was allowed or denied.
type NetworkEntry struct {
	Seq        int64               `json:"seq"`
	At         time.Time           `json:"at"`             // of the latest of count
	Count      int64               `json:"count"`          // how often the same was denied, in a row
	Action     hutch.NetworkAction `json:"action"`         // "allow" or "deny"
	Proto      string              `json:"proto"`          // tls, http, tcp, dns, udp, icmp, …
	Host       string              `json:"host,omitempty"` // its name, if it is known
	Addr       string              `json:"addr,omitempty"` // of the server
	Port       int                 `json:"port,omitempty"`
	Rule       string              `json:"rule"`             // what decided
	Reason     string              `json:"reason,omitempty"` // why it was denied, or failed
	SentBytes  int64               `json:"sent_bytes"`
	GotBytes   int64               `json:"got_bytes"`
	DurationMS int64               `json:"duration_ms"`
}

// NetworkLog is the answer of GET /v1/sandboxes/{id}/network/log.
type NetworkLog struct {
	Entries []NetworkEntry `json:"entries"`
	Next    int64          `json:"next"` // to ask on with, as after
}

// NetworkSuggestion is the answer of GET /v1/sandboxes/{id}/network/suggestion.
type NetworkSuggestion struct {
	Rules   []NetworkRule    `json:"rules"`    // what to add so that what was denied is allowed, and nothing beside it
	LeftOut []NetworkLeftOut `json:"left_out"` // what was denied and is not suggested
}

// NetworkLeftOut is something that was denied and is not suggested.
type NetworkLeftOut struct {
	Host  string `json:"host,omitempty"`
	Addr  string `json:"addr,omitempty"`
	Port  int    `json:"port,omitempty"`
	Count int64  `json:"count,omitempty"`
	Why   string `json:"why"`
}
