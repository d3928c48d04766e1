package policy

import (
	"slices"

	"hutch.dev/hutch"
)

// maxPieces bounds what is left of a rule while a ceiling is taken from it. A rule that
// falls into more is called too wide.
const maxPieces = 200

// Within returns nil if p allows nothing, now or later, that ceiling does not: no
// connection, and no name to be looked up. Else it is a hutch.ErrForbidden with the field of
// the rule that goes too far; of is whose ceiling it is, for its text ("this project").
//
// It never passes what goes beyond. It may refuse what does not where that follows only
// from several rules together; to write the ceiling's own rules is always within it.
func (p *Policy) Within(ceiling *Policy, of string) error {
	for i := range p.rules {
		if r := &p.rules[i]; r.allow {
			if err := p.ruleWithin(i, ceiling, of); err != nil {
				return err
			}
		}
	}
	return nil
}

func (p *Policy) ruleWithin(i int, ceiling *Policy, of string) error {
	r := &p.rules[i]
	left := []region{r.region()}
	for j := range ceiling.rules {
		c := &ceiling.rules[j]
		if c.allow {
			if c.outlives(r) && (c.byName() || !r.byName()) { // a name must be one that may be looked up
				left = minusAll(left, c.region())
			}
			continue
		}
		for _, s := range left {
			if cr := c.region(); s.overlaps(cr) && !p.decidesBefore(i, s.and(cr), c) {
				return beyond(r, "%s is denied to all of %s by %s: deny it in a rule before this one too, or ask for less", s.and(cr).describe(), of, c.label)
			}
		}
		if c.http == nil && (c.byName() || !r.byName()) {
			left = minusAll(left, c.region())
		}
	}
	for _, s := range left {
		if !p.decidesBefore(i, s, nil) {
			return beyond(r, "%s is beyond what %s may reach: ask its operator, or for less", s.describe(), of)
		}
	}
	return nil
}

// beyond is a refusal of a rule.
func beyond(r *rule, format string, args ...any) error {
	e := hutch.FieldErrorf(r.field, format, args...)
	e.Code = hutch.CodeForbidden
	return e
}

// decidesBefore reports whether one rule before the i-th decides about all of s as long as
// that one lives: then s is not what the i-th allows. Denied is the ceiling's rule that
// denies s; nil = its default.
func (p *Policy) decidesBefore(i int, s region, denied *rule) bool {
	r := &p.rules[i]
	return slices.ContainsFunc(p.rules[:i], func(b rule) bool {
		if !b.outlives(r) || !b.region().contains(s) {
			return false
		}
		if b.http == nil {
			return true
		}
		// One that allows by path does not match a path that can be read in two ways, so it does
		// not decide about all of s; and one that looks at requests does not deny a name.
		return !b.allow && denied != nil && denied.http != nil
	})
}

// outlives reports whether a ends no earlier than b.
func (a *rule) outlives(b *rule) bool {
	return a.until.IsZero() || !b.until.IsZero() && !a.until.Before(b.until)
}

// minusAll takes b from each of s, as long as that makes no more than maxPieces.
func minusAll(s []region, b region) []region {
	var out []region
	for _, a := range s {
		out = append(out, a.minus(b)...)
	}
	if len(out) > maxPieces {
		return s
	}
	return out
}
