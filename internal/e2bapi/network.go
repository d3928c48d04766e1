package e2bapi

import (
	"errors"
	"net/http"
	"net/netip"
	"slices"

	"hutch.dev/hutch"
)

// everything is what a list of denials has to have here: E2B's API lets out what is not denied, and no
// sandbox of this server does.
const everything = "0.0.0.0/0"

// networkUpdate is the body of a change of the network. What it leaves out is cleared.
type networkUpdate struct {
	network
	Internet *bool `json:"allow_internet_access"`
}

// isAddress reports whether an entry of a list is an address or a range of them.
func isAddress(s string) bool {
	if _, err := netip.ParseAddr(s); err == nil {
		return true
	}
	_, err := netip.ParsePrefix(s)
	return err == nil
}

// policy is what was asked of the network; nil = nothing was, and older clients' internet = true asks
// for nothing. Of E2B's rule that what is allowed beats what is denied, and of denials that have to be
// of everything, what is allowed is left.
func (n *network) policy(internet *bool) (*hutch.NetworkPolicy, error) {
	off := internet != nil && !*internet
	if n == nil || len(n.AllowOut)+len(n.DenyOut) == 0 {
		if off {
			return &hutch.NetworkPolicy{Mode: hutch.NetworkOff}, nil
		}
		return nil, nil
	}
	for _, dst := range n.DenyOut {
		if !isAddress(dst) {
			return nil, hutch.FieldErrorf("network.denyOut", "%.100q is no address and no range of addresses", dst)
		}
	}
	if !off && !slices.Contains(n.DenyOut, everything) {
		if i := slices.IndexFunc(n.AllowOut, func(s string) bool { return !isAddress(s) }); i >= 0 {
			return nil, hutch.FieldErrorf("network.allowOut", "%.100q is a name: that needs %q in denyOut", n.AllowOut[i], everything)
		}
		return nil, unsupported("network.denyOut: without %q it would let out everything else: add that, and name in allowOut what is to be reached", everything)
	}
	p := &hutch.NetworkPolicy{Mode: hutch.NetworkCustom}
	for _, dst := range n.AllowOut {
		r := hutch.NetworkRule{Action: hutch.NetworkAllow, Domain: dst}
		if isAddress(dst) {
			r.Domain, r.CIDR = "", dst
		}
		p.Rules = append(p.Rules, r)
	}
	if len(p.Rules) == 0 {
		p.Mode = hutch.NetworkOff
	}
	return p, nil
}

// showPolicy says what was asked of a sandbox's network in E2B's words.
func (n *network) showPolicy(sb hutch.Sandbox) {
	p := sb.Network.Asked.Agent
	if p == nil {
		return
	}
	n.DenyOut = []string{everything}
	for _, r := range p.Rules {
		if r.Action == hutch.NetworkAllow && r.Domain+r.CIDR != "" {
			n.AllowOut = append(n.AllowOut, r.Domain+r.CIDR)
		}
	}
}

// updateNetwork replaces what a sandbox may reach.
func (a *API) updateNetwork(w http.ResponseWriter, c call) error {
	var body networkUpdate
	if err := a.readJSON(w, c, &body, true); err != nil {
		return err
	}
	if err := body.refuse(); err != nil {
		return err
	}
	if body.AllowPublicTraffic != nil || body.MaskRequestHost != "" {
		return unsupported("network: who reaches a sandbox's ports is said when it is created: leave allowPublicTraffic and maskRequestHost out")
	}
	p, err := body.policy(body.Internet)
	if err != nil {
		return err
	}
	sb, err := a.shown(c)
	if err != nil {
		return err
	}
	_, err = a.svc.Network.SetSandboxNetwork(c.Context(), sb.Project, sb.ID, hutch.NetworkPhases{Agent: p})
	if errors.Is(err, hutch.ErrSandboxGone) {
		return notFound(sb.ID, err)
	}
	if err != nil {
		return err
	}
	return noContent(w)
}
