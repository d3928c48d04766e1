package hutch

import (
	"slices"
	"testing"
	"time"
)

func TestEndedUnder(t *testing.T) {
	began := time.Now().Add(-time.Minute)
	for _, c := range []struct {
		why    SandboxEnd
		detail string
		want   string
		hit    []string
	}{
		{"", "", "the sandbox ended under it", nil},
		{EndKilled, "", "the sandbox ended under it (killed)", nil},
		{EndOOM, "at most 5 bytes", "the sandbox ended under it (oom): at most 5 bytes", []string{"memory"}},
		{EndPidsLimit, "at most 5", "the sandbox ended under it (pids_limit): at most 5", []string{"pids"}},
	} {
		r := EndedUnder(c.why, c.detail, began)
		if r.End != ExecSandboxGone || r.ExitCode != 137 || r.Signal != "KILL" || r.Detail != c.want || !slices.Equal(r.LimitsHit, c.hit) || !r.StartedAt.Equal(began) || r.EndedAt.Before(began) {
			t.Errorf("%s: %+v", c.why, r)
		}
	}
}
