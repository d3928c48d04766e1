package e2e

import (
	"strings"
	"testing"

	"hutch.dev/hutch"
	"hutch.dev/hutch/api"
)

func TestCaseA13ASetupHasItsOwnLimit(t *testing.T) {
	t.Parallel()
	s := common(t)
	sb := s.create(t, api.CreateSandbox{Setup: "echo setting up; until [ -e /tmp/go ]; do sleep 0.1; done; touch /tmp/ok; echo done >&2"})
	// Other commands need not wait for it, and their limits are not its.
	if got := s.out(t, sb.ID, "echo at once; touch /tmp/go", timeout(30)); got != "at once" {
		t.Errorf("got %q", got)
	}
	x := s.ended(t, sb.SetupExecID)
	if x.Tag != "setup" || x.Result.ExitCode != 0 || x.Result.Stdout != "setting up\n" || x.Result.Stderr != "done\n" {
		t.Errorf("%+v", x)
	}
	if x.TimeoutSeconds != 3600 {
		t.Errorf("its limit is %v, want an hour", x.TimeoutSeconds)
	}
	s.out(t, sb.ID, "test -e /tmp/ok")

	limit := 1.0
	slow := s.create(t, api.CreateSandbox{Setup: "echo begun; sleep 1000", SetupTimeoutSeconds: &limit})
	if r := s.ended(t, slow.SetupExecID).Result; r.EndReason != hutch.ExecTimeout || r.Stdout != "begun\n" {
		t.Errorf("over its limit: %s %q", r.EndReason, r.Stdout)
	}

	out, errOut, err := s.hutchCLI(t, "create", "--memory", "512M", "--setup", "echo by hand; exit 3")
	id := hutch.SandboxID(strings.TrimSpace(out))
	if err == nil || err.Error() != "exit status 3" || errOut != "by hand\n" || len(id) != 21 {
		t.Errorf("%v, %q, %q", err, out, errOut)
	}
	if err := s.client.Kill(t.Context(), id); err != nil {
		t.Error(err)
	}
}
