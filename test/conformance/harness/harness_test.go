package harness

import (
	"strings"
	"testing"
)

// TestTally: a script that breaks off, or reports less than it did, is no success.
func TestTally(t *testing.T) {
	three, none := 3, 0
	for name, c := range map[string]struct {
		sum  tally
		want string
	}{
		"all there":     {tally{3, &three}, ""},
		"broke off":     {tally{3, nil}, "broke off"},
		"one got lost":  {tally{2, &three}, "reported 2"},
		"made no check": {tally{0, &none}, "no check"},
	} {
		t.Run(name, func(t *testing.T) {
			err := c.sum.whole()
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

func TestReportReadsChecks(t *testing.T) {
	sum := report(t, strings.NewReader("hello\n{\"check\":\"a\",\"ms\":2}\n{\"other\":1}\n{\"check\":\"b\",\"error\":\"\"}\n{\"done\":2}\n"))
	if err := sum.whole(); err != nil || sum.checks != 2 {
		t.Errorf("got %d checks, %v", sum.checks, err)
	}
}
