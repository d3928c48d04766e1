// Package pattern has regular expressions that are compiled when they are first used.
//
// One binary is the server, the command line and the kernel of every sandbox: what a package
// compiles when the binary starts, each sandbox pays for, in memory of its own, and uses none
// of it.
//
// Start with [New].
package pattern

import (
	"regexp"
	"sync"
)

// Pattern is a regular expression. It is safe for concurrent use.
type Pattern struct{ compiled func() *regexp.Regexp }

// New returns the pattern of an expression. If that is none, the first use of it panics.
func New(expr string) *Pattern {
	return &Pattern{sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expr) })}
}

// MatchString is as of a regexp.Regexp.
func (p *Pattern) MatchString(s string) bool { return p.compiled().MatchString(s) }

// FindStringSubmatch is as of a regexp.Regexp.
func (p *Pattern) FindStringSubmatch(s string) []string { return p.compiled().FindStringSubmatch(s) }

// ReplaceAllString is as of a regexp.Regexp.
func (p *Pattern) ReplaceAllString(s, with string) string {
	return p.compiled().ReplaceAllString(s, with)
}
