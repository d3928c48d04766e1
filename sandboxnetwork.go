package hutch

import (
	"net/netip"
	"slices"
	"time"
)

// NetworkSource says whose policy a sandbox has beside the operator's base.
type NetworkSource string

// The sources. Empty is that nobody said anything.
const (
	NetworkOfRequest  NetworkSource = "request"
	NetworkOfTemplate NetworkSource = "template"
	NetworkOfProject  NetworkSource = "project"
)

// SandboxNetwork is what is known of a sandbox's way out.
type SandboxNetwork struct {
	// Phase is the one it is in.
	Phase NetworkPhase `json:"phase,omitempty"`
	// Asked is what was asked for it.
	Asked NetworkPhases `json:"asked,omitzero"`
	// Template is its template's policy as it was when the sandbox was made.
	Template *NetworkPolicy `json:"template,omitempty"`
	// Holds is what all that is said of it comes to in its phase, the operator's base included:
	// what the gateway is told. Without rules it reaches nothing, and what it tries is on record;
	// nil, of sandboxes from before there was a network, reaches nothing either.
	Holds  *NetworkPolicy `json:"holds,omitempty"`
	Source NetworkSource  `json:"source,omitempty"`
	// Problem is why what was said does not hold, but for the operator's base: his
	// configuration has changed since. Empty = it holds.
	Problem string `json:"problem,omitempty"`
	// Revision grows whenever Holds changes; older news is not told after newer.
	Revision int64 `json:"revision,omitempty"`
}

// Clone shares nothing with n.
func (n SandboxNetwork) Clone() SandboxNetwork {
	n.Asked.Setup, n.Asked.Agent = n.Asked.Setup.Clone(), n.Asked.Agent.Clone()
	n.Template, n.Holds = n.Template.Clone(), n.Holds.Clone()
	return n
}

// Clone shares nothing with p; nil stays nil.
func (p *NetworkPolicy) Clone() *NetworkPolicy {
	if p == nil {
		return nil
	}
	out := *p
	out.Rules = slices.Clone(p.Rules)
	for i := range out.Rules {
		r := &out.Rules[i]
		r.Ports = slices.Clone(r.Ports)
		if h := r.HTTP; h != nil {
			r.HTTP = &HTTPMatch{Methods: slices.Clone(h.Methods), Paths: slices.Clone(h.Paths)}
		}
	}
	return &out
}

// NetworkEntry is something that a sandbox was allowed or denied by the gateway.
type NetworkEntry struct {
	Seq     int64 // grows; unique in the installation
	Sandbox SandboxID
	At      time.Time // of the latest of Count
	Count   int64     // how often the same was denied, in a row
	// Proto is what was spoken, as far as it was seen: tls, http, tcp, dns, udp, icmp, …
	Proto   string
	Name    string     // of the host, if it is known
	Addr    netip.Addr // of the server; zero for a question about a name
	Port    uint16     // 0 where there is none
	Allowed bool
	Rule    string // what decided
	Reason  string // a sentence: why it was denied, or failed; may be empty
	Out, In int64  // bytes that left, and came
	Took    time.Duration

	// Origin is the entry's place in the gateway's own list, by which it is stored once.
	Origin NetworkOrigin
}

// NetworkOrigin is a place in the list of a gateway. The zero value is the beginning of
// whichever runs.
type NetworkOrigin struct {
	Gateway string // which process
	Seq     int64  // of it
}

// NetworkEntries is a part of a gateway's list.
type NetworkEntries struct {
	Entries []NetworkEntry
	Next    NetworkOrigin // to go on from
	More    bool          // there are more just now
	Lost    int64         // entries of that process that made room for others before they were read
	Anew    bool          // the list is another process's: what that before had and was not read is lost
}

// NetworkLogQuery asks for what a sandbox was allowed or denied, oldest first.
type NetworkLogQuery struct {
	Project ProjectID
	Sandbox SandboxID
	After   int64 // only those with a higher Seq
	Denied  bool  // only what was denied
	Limit   int   // 0 = 100
}

// NetworkSuggestion is what to add to a sandbox's policy so that it allows what was denied.
type NetworkSuggestion struct {
	Rules []NetworkRule
	Left  []NetworkLeftOut
}

// NetworkLeftOut is what was denied and is not suggested.
type NetworkLeftOut struct {
	Name  string
	Addr  netip.Addr
	Port  uint16
	Count int64
	Why   string // a sentence
}
