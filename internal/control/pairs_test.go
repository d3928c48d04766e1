package control

import (
	"errors"
	"strings"
	"testing"

	"hutch.dev/hutch"
)

func TestPairsAreBounded(t *testing.T) {
	of := func(n, size int) map[string]string {
		m := map[string]string{}
		for i := range n {
			m[strings.Repeat("k", i+1)] = strings.Repeat("v", size)
		}
		return m
	}
	for name, c := range map[string]struct {
		m   map[string]string
		env bool
		ok  bool
	}{
		"none":                    {nil, false, true},
		"a few":                   {of(3, 1000), false, true},
		"too many":                {of(maxMetadata+1, 1), false, false},
		"one too long":            {of(1, maxPairLen), false, false},
		"together too long":       {of(3, 30<<10), false, false},
		"an environment may more": {of(3, 30<<10), true, true},
		"but not all":             {of(40, 30<<10), true, false},
		"no name":                 {map[string]string{"": "x"}, false, false},
		"a zero byte":             {map[string]string{"x": "\x00"}, false, false},
		"an equals sign":          {map[string]string{"a=b": "x"}, true, false},
	} {
		err := checkPairs("metadata", c.m, map[bool]int{true: maxEnv, false: maxMetadata}[c.env], c.env)
		if (err == nil) != c.ok || err != nil && !errors.Is(err, hutch.ErrBadRequest) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
