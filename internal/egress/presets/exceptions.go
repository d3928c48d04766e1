package presets

import (
	"context"
	"maps"
	"net/netip"
	"slices"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/egress/policy"
)

// shared is what providers and companies use between them, RFC 6598.
var shared = netip.MustParsePrefix("100.64.0.0/10")

// exceptions notes the host's addresses, and opens those that hosts of presets have though
// they are out of reach: for these hosts only. What no mirror has any business at (the host
// itself, its loopback, a metadata service) is left to the operator.
func (f *finder) exceptions(ctx context.Context, env *policy.Env) {
	for _, p := range f.m.Addrs {
		a := p.Addr().Unmap().WithZone("")
		if !a.IsLoopback() && !a.IsLinkLocalUnicast() {
			if !slices.Contains(env.Own, a) {
				env.Own = append(env.Own, a)
			}
			if !p.IsSingleIP() && p.Bits() > 0 {
				env.Neighbours = append(env.Neighbours, netip.PrefixFrom(a, p.Bits()).Masked())
			}
		}
	}
	if f.m.Resolve == nil {
		return
	}
	p, err := policy.Compile(hutch.NetworkPolicy{Mode: hutch.NetworkOff}, *env)
	if err != nil {
		f.say("the presets are not valid together: %v", err)
		return
	}
	byAddr := make(map[netip.Addr][]string)
	for _, host := range f.all() {
		addrs, err := f.m.Resolve(ctx, host)
		if err != nil {
			f.say("%s cannot be resolved here, so whether it needs an exception is not known", host)
			continue
		}
		for _, a := range addrs {
			a = a.Unmap()
			d := p.Resolved(host, a)
			switch {
			case d.Action == policy.Allow || slices.Contains(byAddr[a], host):
			case mirrorable(a, env):
				byAddr[a] = append(byAddr[a], host)
			default:
				f.say("%s: %s; if it is meant, make an exception or map the name", host, d.Reason)
			}
		}
	}
	for _, a := range slices.SortedFunc(maps.Keys(byAddr), netip.Addr.Compare) {
		env.Exceptions = append(env.Exceptions, policy.Exception{CIDR: netip.PrefixFrom(a, a.BitLen()), Hosts: byAddr[a]})
	}
}

// mirrorable reports whether a may be a mirror's though it is out of reach.
func mirrorable(a netip.Addr, env *policy.Env) bool {
	if slices.Contains(env.Own, a) || policy.IsMetadata(a) {
		return false
	}
	return a.IsPrivate() || shared.Contains(a) || slices.ContainsFunc(env.Neighbours, func(p netip.Prefix) bool { return p.Contains(a) && a.IsGlobalUnicast() })
}

// all are the hosts of all presets.
func (f *finder) all() []string {
	var out []string
	for _, hosts := range f.hosts {
		out = slices.AppendSeq(out, maps.Keys(hosts))
	}
	slices.Sort(out)
	return slices.Compact(out)
}
