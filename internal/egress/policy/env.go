package policy

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"hutch.dev/hutch"
)

// compileEnv checks what the operator configured.
func compileEnv(env Env) (*environment, error) {
	e, err := env.compile()
	if err != nil {
		return nil, fmt.Errorf("network configuration: %w", err)
	}
	return e, nil
}

func (env Env) compile() (*environment, error) {
	e := &environment{presets: env.Presets, trusted: env.Trusted, kinds: slices.Clone(kinds), names: make(map[string]Override)}
	for _, name := range slices.Sorted(maps.Keys(env.Presets)) {
		if err := checkPreset(name, env.Presets[name]); err != nil {
			return nil, err
		}
	}
	for _, name := range env.Trusted {
		if _, ok := env.Presets[name]; !ok {
			return nil, fmt.Errorf("trusted: there is no preset %q", name)
		}
	}
	for _, a := range env.Own {
		a, err := normalAddr(a.WithZone(""))
		if err != nil {
			return nil, fmt.Errorf("own: %w", err)
		}
		e.kinds = append(e.kinds, kind{netip.PrefixFrom(a, a.BitLen()), "the host's own"})
	}
	for _, p := range env.Neighbours {
		p, err := normalPrefix(p.Masked())
		if err != nil {
			return nil, fmt.Errorf("neighbours: %w", err)
		}
		e.kinds = append(e.kinds, kind{p, "in the host's own network"})
	}
	for _, x := range env.Exceptions {
		made, err := e.compileException(x)
		if err != nil {
			return nil, fmt.Errorf("exception %s: %w", x.CIDR, err)
		}
		e.exceptions = append(e.exceptions, made)
	}
	for host, o := range env.Names {
		name, made, err := compileOverride(host, o)
		if err != nil {
			return nil, fmt.Errorf("name %q: %w", host, err)
		}
		e.names[name] = made
	}
	return e, nil
}

func checkPreset(name string, p Preset) error {
	if name == "" || name == hutch.PresetTrusted {
		return fmt.Errorf("a preset cannot be called %q", name)
	}
	if len(p.Hosts) == 0 {
		return fmt.Errorf("preset %q has no hosts: leave it out", name)
	}
	for _, h := range p.Hosts {
		d, err := parsePattern(h.Domain)
		if err == nil && d.name == "" {
			err = errors.New("a preset is no place for every name")
		}
		if err != nil {
			return fmt.Errorf("preset %q: host %q: %w", name, h.Domain, err)
		}
		for _, r := range h.Ports {
			if !r.Valid() {
				return fmt.Errorf("preset %q: host %q: %s is no range of ports", name, h.Domain, r)
			}
		}
	}
	return nil
}

func (e *environment) compileException(x Exception) (exception, error) {
	p, err := normalPrefix(x.CIDR)
	if err != nil {
		return exception{}, err
	}
	if !slices.ContainsFunc(e.kinds, func(k kind) bool { return covers(k.prefix, p) }) {
		return exception{}, errors.New("it is not within one kind of range that is out of reach: write one for each, or leave it out if rules can allow it anyway")
	}
	made := exception{prefix: p}
	for _, h := range x.Hosts {
		d, err := parsePattern(h)
		if err != nil {
			return exception{}, fmt.Errorf("host %q: %w", h, err)
		}
		made.hosts = append(made.hosts, d)
	}
	return made, nil
}

func compileOverride(host string, o Override) (string, Override, error) {
	d, err := parsePattern(host)
	if err != nil {
		return "", o, err
	}
	if d.wildcard {
		return "", o, errors.New("one name has one address: a wildcard has no place here")
	}
	if len(o.Addrs) == 0 && o.CA == "" {
		return "", o, errors.New("it says nothing: give addrs or ca")
	}
	made := Override{CA: o.CA}
	for _, a := range o.Addrs {
		a, err := normalAddr(a)
		if err != nil {
			return "", o, err
		}
		made.Addrs = append(made.Addrs, a)
	}
	return d.name, made, nil
}
