package node

import (
	"errors"
	"testing"

	"hutch.dev/hutch"
)

// What a sandbox may reach holds when the gateway is replaced, before it is given the link and
// after; older news changes nothing.
func TestNetworkPolicyOutlivesTheGateway(t *testing.T) {
	b := newBench(t)
	rec := b.start()
	first, second := &hutch.NetworkPolicy{Mode: hutch.NetworkTrusted}, &hutch.NetworkPolicy{Mode: hutch.NetworkCustom}
	want := func(what string, err error, p *hutch.NetworkPolicy) {
		t.Helper()
		if got := b.links.policy(rec.ID); err != nil || got != p {
			t.Errorf("%s: %v, the gateway has %+v, want %+v", what, err, got, p)
		}
	}
	set := func(p *hutch.NetworkPolicy, revision int64) error {
		return b.SetNetwork(b.ctx(), rec.ID, rec.Epoch, hutch.SandboxNetwork{Holds: p, Revision: revision})
	}
	replace := func() {
		if err := b.links.Detach(b.ctx(), rec.ID); err != nil {
			t.Fatal(err)
		}
	}
	want("set", set(first, 1), first)
	replace()
	want("after a refill", b.RefillEgress(b.ctx()), first)
	replace() // and one is set before it is refilled
	want("set at a new gateway", set(second, 3), second)
	want("late news", set(first, 2), second)
	replace()
	want("after a refill", b.RefillEgress(b.ctx()), second)
	if err := b.SetNetwork(b.ctx(), rec.ID, rec.Epoch-1, hutch.SandboxNetwork{Revision: 4}); !errors.Is(err, hutch.ErrStale) {
		t.Errorf("of an older epoch: %v, want ErrStale", err)
	}

	// One that the gateway refuses is said to be, and keeps no gateway from being refilled.
	b.links.refuse(first)
	if err := set(first, 5); !errors.Is(err, hutch.ErrBadRequest) {
		t.Errorf("one that is refused: %v", err)
	}
	replace()
	want("after a refill with one that is refused", b.RefillEgress(b.ctx()), nil)
	if err := b.KillSandbox(b.ctx(), rec.ID, rec.Epoch); err != nil {
		t.Fatal(err)
	}
	if err := set(second, 6); !errors.Is(err, hutch.ErrSandboxGone) || b.links.policy(rec.ID) != nil {
		t.Errorf("of one that has ended: %v, the gateway has %+v", err, b.links.policy(rec.ID))
	}
}
