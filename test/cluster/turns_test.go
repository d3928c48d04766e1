package cluster

import (
	"sync"
	"testing"

	"hutch.dev/hutch"
)

// Of many who ask for the same turn at once one makes it, and the others wait for it; the
// opposite one is refused meanwhile or made before or after.
func TestTheSameTurnAtOnce(t *testing.T) {
	w := newWorld(t)
	sb := w.create()
	for range 5 {
		for _, turn := range []struct {
			do func() (hutch.Sandbox, error)
			to hutch.State
		}{
			{func() (hutch.Sandbox, error) { return w.c.PauseSandbox(w.ctx(), project, sb.ID) }, hutch.StatePaused},
			{func() (hutch.Sandbox, error) { return w.c.ResumeSandbox(w.ctx(), project, sb.ID) }, hutch.StateRunning},
		} {
			before := w.record(sb.ID).Epoch
			var wg sync.WaitGroup
			for range 20 {
				wg.Go(func() {
					if got, err := turn.do(); err != nil || got.State != turn.to || got.Transition != "" {
						t.Errorf("to %s: %s %s, %v", turn.to, got.State, got.Transition, err)
					}
				})
			}
			wg.Wait()
			if now := w.record(sb.ID); now.Epoch != before+1 || now.State != turn.to {
				t.Errorf("to %s: epoch %d after %d, %s", turn.to, now.Epoch, before, now.State)
			}
		}
	}
	w.wantEnd(w.exec(sb, "echo on"), hutch.ExecExit, 0, "on\n")
}
