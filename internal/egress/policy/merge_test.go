package policy_test

import (
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/egress/policy"
)

func merged(t *testing.T, l policy.Layers) *policy.Policy {
	t.Helper()
	np, err := policy.Merge(l, registries)
	if err != nil {
		t.Fatal(err)
	}
	// As it is sent elsewhere.
	b, err := json.Marshal(np)
	if err != nil {
		t.Fatal(err)
	}
	var sent hutch.NetworkPolicy
	if err := json.Unmarshal(b, &sent); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(np, sent) {
		t.Fatalf("sent %s\nread %+v\nwas  %+v", b, sent, np)
	}
	p, err := policy.Compile(sent, registries)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// The operator's rules come first, then those of the request, or else of the template.
func TestMergeOrder(t *testing.T) {
	base := custom(deny(domain("blocked.index.example")), allow(hutch.NetworkRule{Name: "infra", Domain: "infra.example"}), deny(preset("forge")))
	template := custom(allow(preset("pypi")), allow(domain("template.example")))
	request := custom(deny(domain("*.not.example")), allow(domain("*")))
	off := hutch.NetworkPolicy{Mode: hutch.NetworkOff}
	trusted := hutch.NetworkPolicy{Mode: hutch.NetworkTrusted}
	for name, tt := range map[string]struct {
		l    policy.Layers
		want map[string]string // rule that decides about a name
	}{
		"nothing": {policy.Layers{}, map[string]string{"a.example": policy.RuleDefault}},
		"the operator's alone": {policy.Layers{Base: &base}, map[string]string{
			"infra.example": "operator: infra", "blocked.index.example": "operator: rules[0]", "a.forge.example": "operator: preset forge", "index.example": policy.RuleDefault,
		}},
		"nothing asked": {policy.Layers{Base: &base, Template: &template}, map[string]string{
			"infra.example": "operator: infra", "index.example": "template: preset pypi", "template.example": "template: rules[1]", "a.example": policy.RuleDefault,
		}},
		"asked": {policy.Layers{Base: &base, Template: &template, Request: &request}, map[string]string{
			"blocked.index.example": "operator: rules[0]", "infra.example": "operator: infra", "a.forge.example": "operator: preset forge",
			"a.not.example": "rules[0]", "template.example": "rules[1]",
		}},
		"asked for nothing": {policy.Layers{Base: &base, Template: &template, Request: &off}, map[string]string{
			"infra.example": "operator: infra", "index.example": policy.RuleDefault, "template.example": policy.RuleDefault,
		}},
		"asked for the trusted":  {policy.Layers{Request: &trusted}, map[string]string{"index.example": "mode trusted", "a.forge.example": policy.RuleDefault}},
		"the template's trusted": {policy.Layers{Template: &trusted}, map[string]string{"index.example": "template: mode trusted"}},
	} {
		t.Run(name, func(t *testing.T) {
			p := merged(t, tt.l)
			for host, rule := range tt.want {
				if d := p.Connect(tls(host, 443)); d.Rule != rule {
					t.Errorf("%s: %+v, want it decided by %q", host, d, rule)
				}
			}
		})
	}
}

// Each layer ends when it said so.
func TestMergeKeepsExpiry(t *testing.T) {
	request := custom(allow(domain("a.example")), deny(domain("b.example")))
	request.ExpiresAt = time.Unix(100, 0).UTC()
	base := custom(allow(domain("infra.example")))
	p := merged(t, policy.Layers{Base: &base, Request: &request})
	if !p.Until().Equal(time.Unix(100, 0)) {
		t.Errorf("until %v", p.Until())
	}
	p = p.At(time.Unix(100, 0))
	if p.Connect(tls("a.example", 443)).Action != policy.Deny || p.Connect(tls("infra.example", 443)).Action != policy.Allow {
		t.Error("want the request ended, and the operator's rules not")
	}
}

func TestMergeRefuses(t *testing.T) {
	base := custom(deny(domain("*.forge.example")), allow(domain("infra.example")))
	project := policy.Ceiling{Of: "this project", Policy: custom(allow(preset(hutch.PresetTrusted)), allow(domain("*.example", 443)))}
	ask := func(rules ...hutch.NetworkRule) *hutch.NetworkPolicy { np := custom(rules...); return &np }
	for name, tt := range map[string]struct {
		l     policy.Layers
		code  hutch.Code // empty = it is no caller's mistake
		field string
		says  string
	}{
		"a mistake":                      {policy.Layers{Request: ask(allow(domain("a b")))}, hutch.CodeBadRequest, "rules[0].domain", "character"},
		"beyond the ceiling":             {policy.Layers{Base: &base, Request: ask(allow(domain("a.example", 443)), allow(domain("a.example", 22))), Ceilings: []policy.Ceiling{project}}, hutch.CodeForbidden, "rules[1]", "a.example on port 22 is beyond what this project may reach"},
		"beyond the second ceiling":      {policy.Layers{Request: ask(allow(domain("a.example", 443))), Ceilings: []policy.Ceiling{project, {Of: "this template", Policy: custom()}}}, hutch.CodeForbidden, "rules[0]", "this template"},
		"opens what the operator denies": {policy.Layers{Base: &base, Request: ask(allow(domain("a.example")), allow(domain("a.forge.example")))}, hutch.CodeBadRequest, "rules[1]", "operator: rules[0] comes first"},
		"denies what the operator opens": {policy.Layers{Base: &base, Request: ask(deny(domain("infra.example", 443)))}, hutch.CodeBadRequest, "rules[0]", "operator: rules[1] comes first"},
		"a template beyond the ceiling":  {policy.Layers{Template: ask(allow(domain("a.other"))), Ceilings: []policy.Ceiling{project}}, hutch.CodeForbidden, "", "network policy of the template: rules[0]"},
		"a template with a mistake":      {policy.Layers{Template: ask(allow(preset("npm")))}, "", "", "network policy of the template"},
		"an operator with a mistake":     {policy.Layers{Base: ask(allow(preset("npm"))), Request: ask()}, "", "", "network policy of the operator"},
		"a ceiling with a mistake":       {policy.Layers{Request: ask(), Ceilings: []policy.Ceiling{{Of: "x", Policy: hutch.NetworkPolicy{Mode: "?"}}}}, "", "", "network policy of the ceiling of x"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := policy.Merge(tt.l, registries)
			if err == nil || !strings.Contains(err.Error(), tt.says) {
				t.Fatalf("got %v, want %q in it", err, tt.says)
			}
			var code hutch.Code
			if e, ok := errors.AsType[*hutch.Error](err); ok {
				code = e.Code
			}
			if code != tt.code || fieldOf(err) != tt.field {
				t.Errorf("code %q, field %q; want %q, %q", code, fieldOf(err), tt.code, tt.field)
			}
		})
	}
	if _, err := policy.Merge(policy.Layers{Base: &base, Request: ask(allow(domain("a.example", 443))), Ceilings: []policy.Ceiling{project}}, registries); err != nil {
		t.Errorf("within all: %v", err)
	}
}

// What is merged is the merger's: a caller's policy does not change with it.
func TestMergeCopies(t *testing.T) {
	request := custom(allow(hutch.NetworkRule{Domain: "a.example", Ports: single([]uint16{443}), HTTP: &hutch.HTTPMatch{Methods: []string{"GET"}}}))
	np, err := policy.Merge(policy.Layers{Request: &request}, registries)
	if err != nil {
		t.Fatal(err)
	}
	np.Rules[0].Ports[0] = hutch.Port(1)
	np.Rules[0].HTTP.Methods[0] = "PUT"
	if request.Rules[0].Ports[0] != hutch.Port(443) || request.Rules[0].HTTP.Methods[0] != "GET" || request.Rules[0].Name != "" {
		t.Errorf("changed to %+v", request.Rules[0])
	}
}
