package policy

import (
	"errors"
	"fmt"
	"slices"

	"hutch.dev/hutch"
)

// Layers are what is said of one sandbox's network, and by whom.
type Layers struct {
	// Base is the operator's. Its rules come first, for every sandbox and in every mode: what
	// it allows nobody can take away, and what it denies nobody can open.
	Base *hutch.NetworkPolicy
	// Template is for sandboxes that ask for nothing.
	Template *hutch.NetworkPolicy
	// Request is what was asked for; nil = nothing was, which is not the same as mode off.
	Request *hutch.NetworkPolicy
	// Ceilings are what neither of the two may go beyond.
	Ceilings []Ceiling
}

// Ceiling is the most that a sandbox may reach.
type Ceiling struct {
	Of     string // whose it is, for messages: "this project"
	Policy hutch.NetworkPolicy
}

// Merge makes one policy of l, in mode custom, with a name for each rule that says where it
// is from: it can be sent elsewhere and compiled there. Request replaces Template, it does
// not add to it. Errors about the request are *hutch.Error with its field; they refuse it
// whole, so that nobody gets less than he asked for without being told.
func Merge(l Layers, env Env) (hutch.NetworkPolicy, error) {
	e, err := compileEnv(env)
	if err != nil {
		return hutch.NetworkPolicy{}, err
	}
	var rules []source
	if l.Base != nil {
		if _, rules, err = e.layer(*l.Base, "operator"); err != nil {
			return hutch.NetworkPolicy{}, err
		}
	}
	chosen, whose := l.Request, ""
	if chosen == nil {
		chosen, whose = l.Template, "template"
	}
	if chosen != nil {
		p, own, err := e.layer(*chosen, whose)
		if err != nil {
			return hutch.NetworkPolicy{}, err
		}
		if err := e.withinAll(p, l.Ceilings); err != nil {
			return hutch.NetworkPolicy{}, told(err, whose)
		}
		rules = append(rules, own...)
	}
	p, err := e.compile(rules)
	if err != nil {
		return hutch.NetworkPolicy{}, err
	}
	if l.Request != nil {
		if err := contradictions(p.rules); err != nil {
			return hutch.NetworkPolicy{}, err
		}
	}
	out := hutch.NetworkPolicy{Mode: hutch.NetworkCustom}
	for _, r := range rules {
		out.Rules = append(out.Rules, r.NetworkRule)
	}
	return out, nil
}

// layer checks one layer and names its rules; whose is empty for the request's.
func (e *environment) layer(np hutch.NetworkPolicy, whose string) (*Policy, []source, error) {
	p, err := e.check(np)
	if err != nil {
		return nil, nil, told(err, whose)
	}
	rules, err := flatten(np)
	for i := range rules {
		r := &rules[i]
		r.HTTP = cloneHTTP(r.HTTP)
		r.Ports = slices.Clone(r.Ports)
		if r.Name == "" && r.Preset == "" {
			r.Name = r.field
		}
		if whose != "" {
			r.field = whose + " " + r.field
			if r.Name == "" {
				r.Name = "preset " + r.Preset
			}
			r.Name = whose + ": " + r.Name
		}
	}
	return p, rules, err
}

func cloneHTTP(m *hutch.HTTPMatch) *hutch.HTTPMatch {
	if m == nil {
		return nil
	}
	return &hutch.HTTPMatch{Methods: slices.Clone(m.Methods), Paths: slices.Clone(m.Paths)}
}

func (e *environment) withinAll(p *Policy, ceilings []Ceiling) error {
	for _, c := range ceilings {
		rules, err := flatten(c.Policy)
		if err != nil {
			return told(err, "ceiling of "+c.Of)
		}
		ceiling, err := e.compile(rules)
		if err != nil {
			return told(err, "ceiling of "+c.Of)
		}
		if err := p.Within(ceiling, c.Of); err != nil {
			return err
		}
	}
	return nil
}

// told is an error about what somebody else than the caller said: none of the caller's
// fields is wrong, and unless it goes beyond a ceiling, it is the operator's to mend.
func told(err error, whose string) error {
	if whose == "" {
		return err
	}
	if he, ok := errors.AsType[*hutch.Error](err); ok && he.Code == hutch.CodeForbidden {
		return &hutch.Error{Code: he.Code, Message: "network policy of the " + whose + ": " + he.Message}
	}
	return fmt.Errorf("network policy of the %s: %s", whose, err.Error())
}
