package fake

import (
	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/runtime"
)

// Die makes a guest dead, as the end of its machine does a moment later.
func (g *Guest) Die() { g.die() }

// Attach is what Adopt ends with.
func (r *Runtime) Attach(id hutch.SandboxID, h runtime.Handles) (runtime.Sandbox, error) {
	return r.attach(r.host.find(id), h)
}

// ParseScript returns the words of the steps of a line.
func ParseScript(line string) (words [][]string) {
	for _, s := range parseScript(line) {
		words = append(words, s.Words)
	}
	return words
}
