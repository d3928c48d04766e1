package pattern

import (
	"slices"
	"sync"
	"testing"
)

func TestPattern(t *testing.T) {
	p := New(`^([a-z]+)-([0-9]+)$`)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if !p.MatchString("box-12") || p.MatchString("box-") {
				t.Error("it matches something else")
			}
		})
	}
	wg.Wait()
	if got := p.FindStringSubmatch("box-12"); !slices.Equal(got, []string{"box-12", "box", "12"}) {
		t.Errorf("found %q", got)
	}
	if got := New(`\d+`).ReplaceAllString("a1b22", "*"); got != "a*b*" {
		t.Errorf("replaced: %q", got)
	}
}

// The memory of one that nobody uses is what this package is for.
func TestNothingIsCompiledBeforeItIsUsed(t *testing.T) {
	broken := New(`(`)
	defer func() {
		if recover() == nil {
			t.Error("a pattern that is none was used")
		}
	}()
	broken.MatchString("x")
}
