package gen_test

import (
	"os"
	"regexp"
	"testing"

	"hutch.dev/hutch/internal/runtime/gvisor/gen"
)

// Programs of another version than the sentry's are not used, which would cost every
// start 12 ms without anybody noticing.
func TestProgramsAreOfTheGvisorInUse(t *testing.T) {
	b, err := os.ReadFile("../../../../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`(?m)^\s*(?:require\s+)?gvisor\.dev/gvisor (\S+)`).FindSubmatch(b)
	if m == nil {
		t.Fatal("go.mod does not require gVisor")
	}
	if got := string(m[1]); got != gen.GvisorVersion {
		t.Errorf("go.mod has gVisor %s, the programs are of %s: run go generate ./internal/runtime/gvisor", got, gen.GvisorVersion)
	}
}

func TestThereAreProgramsForOurConfiguration(t *testing.T) {
	if len(gen.Sentry) != 1 || len(gen.Gofer) != 2 {
		t.Fatalf("%d sentry and %d gofer programs, want 1 and 2", len(gen.Sentry), len(gen.Gofer))
	}
	for _, p := range append(gen.Sentry, gen.Gofer...) {
		if len(p.Bytecode32) < 100 || len(p.Bytecode32)%2 != 0 {
			t.Errorf("%s: %d words are no program", p.Name, len(p.Bytecode32))
		}
	}
}
