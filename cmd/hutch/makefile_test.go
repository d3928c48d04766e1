package main

import (
	"os"
	"strings"
	"testing"
)

// What the Makefile has the binary do takes hours: that a flag of it is not known must not show
// only then.
func TestTheMakefilesFlagsAreKnown(t *testing.T) {
	b, err := os.ReadFile("../../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for line := range strings.Lines(string(b)) {
		args := strings.Fields(strings.TrimLeft(line, "\t@ "))
		if len(args) < 2 || args[0] != "bin/hutch" {
			continue
		}
		for i := range args {
			args[i] = strings.Trim(args[i], `'"`)
		}
		seen++
		c, rest, err := newRoot().Find(args[1:])
		if err == nil {
			err = c.ParseFlags(rest)
		}
		if err != nil || !c.Runnable() {
			t.Errorf("%q: %v", strings.TrimSpace(line), err)
		}
	}
	if seen < 10 {
		t.Errorf("%d lines of the Makefile call the binary", seen)
	}
}
