package node

import (
	"testing"

	"hutch.dev/hutch/internal/x/failpoint"
)

// A companion that dies when a sandbox that is coming has been given to it, and before that is in
// service: the next one is given it too.
func TestRefillWhileASandboxComes(t *testing.T) {
	for _, at := range []failpoint.Name{failpoint.StartUp, failpoint.AdoptTold} {
		t.Run(string(at), func(t *testing.T) {
			b := newBench(t)
			rec := record()
			if at == failpoint.AdoptTold {
				rec = b.start()
				b.restart()
			}
			disarm, err := failpoint.Arm(failpoint.Plan{Die: at, Do: func(failpoint.Name) {
				if err := b.shelf.Delete(b.ctx(), rec.ID); err != nil {
					t.Error(err)
				}
				if err := b.links.Detach(b.ctx(), rec.ID); err != nil {
					t.Error(err)
				}
				if err := b.RefillKeeper(b.ctx()); err != nil {
					t.Error(err)
				}
				if err := b.RefillEgress(b.ctx()); err != nil {
					t.Error(err)
				}
			}})
			if err != nil {
				t.Fatal(err)
			}
			defer disarm()
			if at == failpoint.AdoptTold {
				_, err = b.Adopt(b.ctx(), rec)
			} else {
				_, err = b.StartSandbox(b.ctx(), rec)
			}
			if err != nil {
				t.Fatal(err)
			}
			if k := b.shelf.has(rec.ID); k == nil || !k.lifetime.ExpiresAt.Equal(rec.ExpiresAt) || len(k.Handles.Procs) == 0 {
				t.Errorf("the new keeper has %+v", k)
			}
			if traces, err := b.links.List(b.ctx()); err != nil || len(traces) != 1 {
				t.Errorf("the new gateway has %+v, %v", traces, err)
			}
		})
	}
}
