package e2e

import (
	"net/http"
	"testing"
	"time"

	"hutch.dev/hutch/api"
	"hutch.dev/hutch/internal/x/cgroup"
)

// A sandbox that the host hardly lets run answers late, and is not said to be silent for it. The
// host is made to look busy by a hundredth of a CPU for a sandbox that could use twenty.
func TestSandboxOnABusyHostIsNotCondemned(t *testing.T) {
	t.Parallel()
	s := own(t)
	sb := s.create(t, api.CreateSandbox{}).ID
	s.background(t, sb, "for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do while :; do :; done & done; wait")
	tree, err := cgroup.Detect(s.cgroup())
	if err != nil {
		t.Fatal(err)
	}
	group, err := tree.Open(string(sb))
	if err != nil {
		t.Fatal(err)
	}
	if err := group.Limit(cgroup.Limits{MilliCPU: 10}); err != nil {
		t.Fatal(err)
	}
	answer := make(chan asked, 1)
	go func() {
		defer close(answer)
		answer <- s.ask(t, http.MethodGet, "/v1/sandboxes/"+string(sb)+"/fs?path=/etc/hostname", "")
	}()
	var a asked
	select {
	case a = <-answer:
	case <-time.After(6 * time.Second): // longer than a guest may be silent that has all it needs
	}
	if err := group.Limit(cgroup.Limits{MilliCPU: 2000}); err != nil {
		t.Fatal(err)
	}
	if a.t == nil {
		a = received(t, "the call is answered", answer)
	}
	if a.t == nil {
		t.FailNow() // it has said why
	}
	a.want(http.StatusOK)
	if got := s.signs(t, sb); len(got) != 0 {
		t.Errorf("on record: %q", got)
	}
}
