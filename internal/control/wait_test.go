package control

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/store"
)

// execRecords is a store with nothing but commands in it.
type execRecords struct {
	store.Store

	execs *memExecs
}

func (r execRecords) Exec(ctx context.Context, id hutch.ExecID) (hutch.Exec, error) {
	return r.execs.Exec(ctx, id)
}

// Somebody asks anew for a command that has just ended and takes its place until he finds that
// out: who waits for the command meanwhile must not wait for that place, of which nothing comes.
func TestWaitersMeetAPlaceThatComesToNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := newMemExecs()
		x := hutch.Exec{ID: "x", Sandbox: "a", Project: "p"}
		st.recs["x"] = x
		c := &Control{store: execRecords{execs: st}, execs: newExecLog(st, slog.New(slog.DiscardHandler), func() {})}
		defer c.execs.close()
		c.execs.begin(x)
		type outcome struct {
			x   hutch.Exec
			err error
		}
		got := make(chan outcome, 1)
		go func() {
			x, err := c.WaitExec(t.Context(), "p", "a", "x")
			got <- outcome{x, err}
		}()
		synctest.Wait()
		st.mu.Lock()
		x.Result = &hutch.ExecResult{ExitCode: 7}
		st.recs["x"] = x
		st.mu.Unlock()
		c.execs.abandon("x")
		synctest.Wait()
		select {
		case o := <-got:
			if o.err != nil || o.x.Result == nil || o.x.Result.ExitCode != 7 {
				t.Errorf("got %+v, %v", o.x, o.err)
			}
		default:
			t.Error("he waits for ever")
		}
	})
}
