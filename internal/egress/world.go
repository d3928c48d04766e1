package egress

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"syscall"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/egress/dns"
	"hutch.dev/hutch/internal/egress/policy"
)

// inside is the network that every sandbox sees, and no other part of it: itself, and the
// gateway by an address that it answers nothing on.
var inside = netip.MustParsePrefix("10.200.0.0/30")

// World is what is outside: the zero value is the host's own.
type World struct {
	Resolver dns.Resolver
	// Dial connects to an address over TCP.
	Dial func(ctx context.Context, to netip.AddrPort) (net.Conn, error)
	// Addrs are the addresses of the host with their networks.
	Addrs func() ([]net.Addr, error)
}

// keepAlive is how often a connection that idles is checked for whether its server is there.
const keepAlive = time.Minute

func (w World) withDefaults() World {
	if w.Resolver == nil {
		w.Resolver = &net.Resolver{PreferGo: true}
	}
	if w.Dial == nil {
		w.Dial = dial
	}
	if w.Addrs == nil {
		w.Addrs = net.InterfaceAddrs
	}
	return w
}

// dial connects to exactly that address.
func dial(ctx context.Context, to netip.AddrPort) (net.Conn, error) {
	d := net.Dialer{
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: keepAlive, Interval: keepAlive, Count: 5},
		Control: func(_, address string, _ syscall.RawConn) error {
			if got, err := netip.ParseAddrPort(address); err != nil || got.Addr().Unmap() != to.Addr().Unmap() || got.Port() != to.Port() {
				return fmt.Errorf("about to connect to %s in place of %s", address, to)
			}
			return nil
		},
	}
	return d.DialContext(ctx, "tcp", to.String())
}

// withOwn adds the host's addresses and networks, if env names none. A host whose addresses
// can't be read reaches nothing: see setEnv.
func (g *Gateway) withOwn(env policy.Env) policy.Env {
	if env.Own != nil || env.Neighbours != nil {
		return env
	}
	all, err := g.world.Addrs()
	if err != nil {
		g.log.Error("the host's own addresses are not known; nothing is reachable", "op", "env", "error", err)
		env.Own = nil
		env.Neighbours = []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")}
		return env
	}
	for _, a := range all {
		p, err := netip.ParsePrefix(a.String())
		if err != nil {
			continue
		}
		addr := p.Addr().Unmap().WithZone("")
		env.Own = append(env.Own, addr)
		if n, err := addr.Prefix(min(p.Bits(), addr.BitLen())); err == nil && n.Bits() > 0 && !n.IsSingleIP() {
			env.Neighbours = append(env.Neighbours, n)
		}
	}
	return env
}

// setEnv replaces what the operator configured, and holds every policy against it.
func (g *Gateway) setEnv(env policy.Env) error {
	env = g.withOwn(env)
	if _, err := policy.Compile(hutch.NetworkPolicy{Mode: hutch.NetworkOff}, env); err != nil {
		return hutch.Wrap(hutch.CodeBadRequest, err, "the operator's network configuration: %v", err)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.env = env
	for _, o := range g.outlets {
		g.applyLocked(o)
	}
	g.log.Info("network configuration set", "presets", len(env.Presets), "exceptions", len(env.Exceptions), "names", len(env.Names))
	return nil
}

// setPolicy replaces what a sandbox may reach.
func (g *Gateway) setPolicy(id hutch.SandboxID, e hutch.Epoch, rules *hutch.NetworkPolicy) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	o := g.outlets[id]
	switch {
	case o == nil:
		return hutch.ErrNotFound
	case e < o.epoch:
		return hutch.ErrStale
	}
	var compiled *policy.Policy
	if rules != nil {
		var err error
		if compiled, err = policy.Compile(*rules, g.env); err != nil {
			return err
		}
	}
	o.rules = rules
	o.SetPolicy(compiled)
	g.log.Info("network policy set", "sandbox", id, "epoch", e, "rules", ruleCount(rules))
	return nil
}

func ruleCount(p *hutch.NetworkPolicy) int {
	if p == nil {
		return 0
	}
	return len(p.Rules)
}

// applyLocked holds a sandbox's rules against what the operator configured. If they do not hold,
// nothing is allowed.
func (g *Gateway) applyLocked(o *outlet) {
	if o.rules == nil {
		o.SetPolicy(nil)
		return
	}
	p, err := policy.Compile(*o.rules, g.env)
	if err != nil {
		g.log.Error("a network policy does not hold any more: the sandbox reaches nothing", "sandbox", o.id, "op", "env", "error", err)
		p = nil
	}
	o.SetPolicy(p)
}
