package policy

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
)

const metadata = "a metadata service"

// kind is a range that is never reached, unless an exception within it says so.
type kind struct {
	prefix netip.Prefix
	what   string
}

// kinds are those that are the same everywhere: IANA's special-purpose registries, without
// the ranges for documentation, in which nothing is; and the addresses at which clouds
// answer their machines, first, and apart: an exception for a range does not open these.
var kinds = []kind{
	{netip.MustParsePrefix("100.100.100.200/32"), metadata},
	{netip.MustParsePrefix("168.63.129.16/32"), metadata},
	{netip.MustParsePrefix("169.254.169.254/32"), metadata},
	{netip.MustParsePrefix("169.254.170.2/32"), metadata},
	{netip.MustParsePrefix("192.0.0.192/32"), metadata},
	{netip.MustParsePrefix("255.255.255.255/32"), "broadcast"},
	{netip.MustParsePrefix("fd00:ec2::254/128"), metadata},
	{netip.MustParsePrefix("fd20:ce::254/128"), metadata},

	{netip.MustParsePrefix("0.0.0.0/8"), "unspecified"},
	{netip.MustParsePrefix("10.0.0.0/8"), "private"},
	{netip.MustParsePrefix("100.64.0.0/10"), "shared by a provider"},
	{netip.MustParsePrefix("127.0.0.0/8"), "loopback"},
	{netip.MustParsePrefix("169.254.0.0/16"), "link-local"},
	{netip.MustParsePrefix("172.16.0.0/12"), "private"},
	{netip.MustParsePrefix("192.0.0.0/24"), "reserved"},
	{netip.MustParsePrefix("192.88.99.0/24"), "reserved"},
	{netip.MustParsePrefix("192.168.0.0/16"), "private"},
	{netip.MustParsePrefix("198.18.0.0/15"), "reserved"},
	{netip.MustParsePrefix("224.0.0.0/4"), "multicast"},
	{netip.MustParsePrefix("240.0.0.0/4"), "reserved"},
	{netip.MustParsePrefix("::/128"), "unspecified"},
	{netip.MustParsePrefix("::1/128"), "loopback"},
	{netip.MustParsePrefix("64:ff9b:1::/48"), "translated by a private gateway"},
	{netip.MustParsePrefix("100::/64"), "discarded"},
	{netip.MustParsePrefix("2001::/32"), "an obsolete notation of an IPv4 address"},
	{netip.MustParsePrefix("2001:2::/48"), "reserved"},
	{netip.MustParsePrefix("2001:10::/28"), "reserved"},
	{netip.MustParsePrefix("2001:20::/28"), "reserved"},
	{netip.MustParsePrefix("2002::/16"), "an obsolete notation of an IPv4 address"},
	{netip.MustParsePrefix("fc00::/7"), "private"},
	{netip.MustParsePrefix("fe80::/10"), "link-local"},
	{netip.MustParsePrefix("fec0::/10"), "private"},
	{netip.MustParsePrefix("ff00::/8"), "multicast"},
}

var (
	global6 = netip.MustParsePrefix("2000::/3") // all there is of IPv6 that anybody could mean
	nat64   = netip.MustParsePrefix("64:ff9b::/96")
)

// IsMetadata reports whether a cloud answers its machines at a, in whatever notation.
func IsMetadata(a netip.Addr) bool {
	a, err := normalAddr(a)
	return err == nil && slices.ContainsFunc(kinds, func(k kind) bool { return k.what == metadata && k.prefix.Contains(a) })
}

// tunnelled is the IPv4 address that a site's tunnel (ISATAP, RFC 5214) would take a to.
func tunnelled(a netip.Addr) (netip.Addr, bool) {
	if b := a.As16(); a.Is6() && b[8]&^2 == 0 && b[9] == 0 && b[10] == 0x5e && b[11] == 0xfe {
		return netip.AddrFrom4([4]byte(b[12:])), true
	}
	return netip.Addr{}, false
}

// normalAddr is an address as it is compared: IPv4 as such, also if it came mapped or as
// NAT64 writes it. An address with a zone is of one link, which is none of ours.
func normalAddr(a netip.Addr) (netip.Addr, error) {
	switch {
	case !a.IsValid():
		return a, errors.New("there is no address")
	case a.Zone() != "":
		return a, errors.New("the address has a zone")
	}
	a = a.Unmap()
	if nat64.Contains(a) {
		b := a.As16()
		a = netip.AddrFrom4([4]byte(b[12:]))
	}
	return a, nil
}

// parseCIDR reads an address or range of a rule.
func parseCIDR(s string) (netip.Prefix, error) {
	if len(s) > 64 {
		return netip.Prefix{}, errors.New("it is neither an address nor a range of them")
	}
	p, err := netip.ParsePrefix(s)
	if err != nil {
		a, err := netip.ParseAddr(s)
		if err != nil {
			return netip.Prefix{}, errors.New("it is neither an address nor a range of them (203.0.113.0/24)")
		}
		if a.Zone() != "" {
			return netip.Prefix{}, errors.New("it has a zone")
		}
		p = netip.PrefixFrom(a, a.BitLen())
	}
	return normalPrefix(p)
}

// normalPrefix is a range as it is compared. A range that mixes IPv4 and IPv6 would not be
// what it looks like.
func normalPrefix(p netip.Prefix) (netip.Prefix, error) {
	if !p.IsValid() {
		return p, errors.New("it is no range")
	}
	if p != p.Masked() {
		return p, fmt.Errorf("it has bits behind its length: did you mean %s?", p.Masked())
	}
	if a, _ := normalAddr(p.Addr()); a != p.Addr() && p.Bits() >= 96 {
		return netip.PrefixFrom(a, p.Bits()-96), nil
	} else if p.Addr().Is4In6() {
		return p, errors.New("it holds more than IPv4 in IPv6's notation: write IPv4 plainly")
	}
	return p, nil
}

// covers reports whether p holds all of q.
func covers(p, q netip.Prefix) bool {
	return p.Addr().Is4() == q.Addr().Is4() && p.Bits() <= q.Bits() && p.Contains(q.Addr())
}

// exception is a compiled one.
type exception struct {
	prefix netip.Prefix
	hosts  []pattern // none = any, and no name
}

func (x exception) holdsFor(name string) bool {
	return len(x.hosts) == 0 || slices.ContainsFunc(x.hosts, func(p pattern) bool { return p.matches(name) })
}

// environment is a compiled Env.
type environment struct {
	presets    map[string]Preset
	trusted    []string
	kinds      []kind // with the host's own and its neighbours
	exceptions []exception
	names      map[string]Override
}

// unreachable says what the address is that must not be reached under that name; empty if
// it may. It takes normal values.
func (e *environment) unreachable(name string, a netip.Addr) string {
	if o, ok := e.names[name]; ok && len(o.Addrs) > 0 {
		if slices.Contains(o.Addrs, a) {
			return ""
		}
		return "none of those that the operator gave for this name"
	}
	if what := e.never(name, a); what != "" {
		return what
	}
	if v4, ok := tunnelled(a); ok {
		if what := e.never(name, v4); what != "" {
			return "another notation of one that is " + what
		}
	}
	return ""
}

// never looks at one notation.
func (e *environment) never(name string, a netip.Addr) string {
	known := false
	for _, k := range e.kinds {
		if k.prefix.Contains(a) {
			if !e.lifts(name, a, k.prefix) {
				return k.what
			}
			known = true
		}
	}
	if a.Is6() && !known && !global6.Contains(a) {
		return "reserved"
	}
	return ""
}

// lifts reports whether an exception opens a, which lies in a kind's range.
func (e *environment) lifts(name string, a netip.Addr, within netip.Prefix) bool {
	return slices.ContainsFunc(e.exceptions, func(x exception) bool {
		return x.prefix.Contains(a) && covers(within, x.prefix) && x.holdsFor(name)
	})
}
