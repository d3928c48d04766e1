package policy

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"hutch.dev/hutch"
)

// compileRule makes one rule, or those that a preset stands for.
func (e *environment) compileRule(r hutch.NetworkRule, label, field string) ([]rule, error) {
	base := rule{label: label, field: field, proto: r.Protocol, until: r.ExpiresAt}
	switch r.Action {
	case hutch.NetworkAllow:
		base.allow = true
	case hutch.NetworkDeny:
		if !r.ExpiresAt.IsZero() {
			return nil, hutch.FieldErrorf(field+".expires_at", "a rule that denies cannot end: what it denied would be open then; let the rules that allow end")
		}
	default:
		return nil, hutch.FieldErrorf(field+".action", "%.40q is neither %q nor %q", r.Action, hutch.NetworkAllow, hutch.NetworkDeny)
	}
	if err := checkSubject(r, field); err != nil {
		return nil, err
	}
	if r.Preset != "" {
		return e.compilePreset(r, base)
	}
	var err error
	if base.http, err = compileHTTP(r.HTTP, field+".http"); err != nil {
		return nil, err
	}
	if err := checkProtocol(r, field); err != nil {
		return nil, err
	}
	if r.Domain != "" {
		if base.name, err = parsePattern(r.Domain); err != nil {
			return nil, hutch.FieldErrorf(field+".domain", "%.100q: %v", r.Domain, err)
		}
	} else {
		if base.prefix, err = parseCIDR(r.CIDR); err != nil {
			return nil, hutch.FieldErrorf(field+".cidr", "%.64q: %v", r.CIDR, err)
		}
		if what := e.deadRange(base); what != "" {
			return nil, hutch.FieldErrorf(field+".cidr", "%s cannot be allowed: it is %s, and the operator made no exception for it", base.prefix, what)
		}
	}
	if base.ports, err = rulePorts(r, base.allow, field); err != nil {
		return nil, err
	}
	return []rule{base}, nil
}

// checkSubject checks that a rule is about one thing.
func checkSubject(r hutch.NetworkRule, field string) error {
	n := 0
	for _, s := range []string{r.Domain, r.CIDR, r.Preset} {
		if s != "" {
			n++
		}
	}
	if n != 1 {
		return hutch.FieldErrorf(field, "it must have exactly one of domain, cidr and preset")
	}
	if r.HTTP != nil && r.Domain == "" {
		return hutch.FieldErrorf(field+".http", "only a rule with a domain can look at requests")
	}
	if r.Preset != "" && (len(r.Ports) > 0 || r.Protocol != "") {
		return hutch.FieldErrorf(field, "a preset has its own ports and protocols: leave them out")
	}
	return nil
}

func checkProtocol(r hutch.NetworkRule, field string) error {
	switch r.Protocol {
	case hutch.NetworkAny, hutch.NetworkTLS, hutch.NetworkHTTP:
		return nil
	case hutch.NetworkTCP:
		if r.HTTP != nil {
			return hutch.FieldErrorf(field+".protocol", "a rule about requests is %q, %q or both (leave it out)", hutch.NetworkTLS, hutch.NetworkHTTP)
		}
		return nil
	case "udp":
		return hutch.FieldErrorf(field+".protocol", "UDP does not leave a sandbox; names are looked up at the gateway, which needs no rule for that")
	}
	return hutch.FieldErrorf(field+".protocol", "%.40q is none of %q, %q and %q", r.Protocol, hutch.NetworkTCP, hutch.NetworkTLS, hutch.NetworkHTTP)
}

// rulePorts is what a rule's ports mean.
func rulePorts(r hutch.NetworkRule, allow bool, field string) (portSet, error) {
	if len(r.Ports) > maxItems {
		return nil, hutch.FieldErrorf(field+".ports", "there are more than %d", maxItems)
	}
	for i, p := range r.Ports {
		if !p.Valid() {
			return nil, hutch.FieldErrorf(fmt.Sprintf("%s.ports[%d]", field, i), "%s is no range of ports from 1 to 65535", p)
		}
	}
	switch {
	case !allow && len(r.Ports) == 0:
		return allPorts, nil
	case !allow:
		return newPortSet(r.Ports), nil
	case len(r.Ports) == 0 && r.Domain != "":
		return webPorts, nil
	case len(r.Ports) == 0:
		return allPorts.minus(mailPorts), nil
	}
	single := slices.DeleteFunc(slices.Clone(r.Ports), func(p hutch.PortRange) bool { return p.First != p.Last })
	wide := newPortSet(r.Ports).minus(mailPorts)
	return newPortSet(append(slices.Clone(wide), single...)), nil
}

// compilePreset writes a preset out.
func (e *environment) compilePreset(r hutch.NetworkRule, base rule) ([]rule, error) {
	names := []string{r.Preset}
	if r.Preset == hutch.PresetTrusted {
		names = e.trusted
	}
	var out []rule
	for _, name := range names {
		preset, ok := e.presets[name]
		if !ok {
			return nil, hutch.FieldErrorf(base.field+".preset", "there is no preset %.40q here; there are: %s", name, e.presetNames())
		}
		for _, h := range preset.Hosts {
			made := base
			made.preset = name
			if r.Name == "" {
				made.label = "preset " + name
			}
			made.name, _ = parsePattern(h.Domain) // checked with the environment
			as := hutch.NetworkRule{Domain: h.Domain, Ports: h.Ports}
			made.ports, _ = rulePorts(as, base.allow, base.field)
			out = append(out, made)
		}
	}
	return out, nil
}

// presetNames are the presets one can ask for.
func (e *environment) presetNames() string {
	return strings.Join(append(slices.Sorted(maps.Keys(e.presets)), hutch.PresetTrusted), ", ")
}

// deadRange says why an allowed range can never be reached; empty if some of it can.
func (e *environment) deadRange(r rule) string {
	if !r.allow || slices.ContainsFunc(e.exceptions, func(x exception) bool { return x.prefix.Overlaps(r.prefix) }) {
		return ""
	}
	for _, k := range e.kinds {
		if covers(k.prefix, r.prefix) {
			return k.what
		}
	}
	if r.prefix.Addr().Is6() && !r.prefix.Overlaps(global6) {
		return "reserved"
	}
	return ""
}

// contradictions finds rules that can have no effect because an earlier one of the other
// action decides all that they are about. Who wrote them meant something else. What a
// preset stands for is left out: a rule before it may be there to take some of it away.
func contradictions(rules []rule) error {
	for i := range rules {
		r := &rules[i]
		if r.preset != "" {
			continue
		}
		what := r.region()
		if r.proto == hutch.NetworkAny && r.byName() && !decidesLater(rules[i+1:], what) {
			what.protos = bitTLS | bitHTTP // the rest is denied by default
		}
		for j := range rules[:i] {
			b := &rules[j]
			if b.allow != r.allow && b.outlives(r) && b.region().contains(what) {
				return hutch.FieldErrorf(r.field, "it has no effect: %s comes first, matches all that it does, and decides otherwise; the first match counts", b.label)
			}
		}
	}
	return nil
}

// decidesLater reports whether what is neither TLS nor HTTP is allowed by some rule of later.
func decidesLater(later []rule, what region) bool {
	what.protos = bitTCP
	return slices.ContainsFunc(later, func(r rule) bool { return r.allow && r.region().overlaps(what) })
}

// checkLabel checks the name that somebody gave a rule. It is shown beside ours, and must
// not look like one.
func checkLabel(s string) error {
	if len(s) > 60 {
		return errors.New("it has more than 60 characters")
	}
	for i := range len(s) {
		c := s[i]
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && !strings.ContainsRune(" ._-/", rune(c)) {
			return errors.New("it takes letters, digits, blanks and . _ - / only")
		}
	}
	if s == RuleDefault || s == RuleUnreachable || s == RuleMalformed || strings.HasPrefix(s, "preset ") || strings.HasPrefix(s, "mode ") {
		return errors.New("that is what decisions without this rule are called")
	}
	return nil
}
