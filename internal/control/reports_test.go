package control

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/store"
)

// execStore is a store of which only commands are asked.
type execStore struct {
	store.Store
	mem *memExecs
}

func (s execStore) Exec(ctx context.Context, id hutch.ExecID) (hutch.Exec, error) {
	return s.mem.Exec(ctx, id)
}

// TestExecFoundBeforeItsStartIsGivenUp: a guest that is late says that a command runs while
// the call that started it is about to give up. The command is on record then, as it was
// asked for, not only once it has ended.
func TestExecFoundBeforeItsStartIsGivenUp(t *testing.T) {
	for name, givenUp := range map[string]bool{"given up": true, "answered": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := newMemExecs()
				l, _ := newTestLog(m)
				defer l.close()
				c := &Control{store: execStore{mem: m}, execs: l, activity: newActivity(), log: slog.New(slog.DiscardHandler)}
				if first, _ := l.begin(testExec); !first {
					t.Fatal("a new command is not new")
				}
				found := make(chan error, 1)
				go func() { found <- c.ExecFound(t.Context(), testExec.Sandbox, testExec.ID, 7, testExec.CreatedAt) }()
				synctest.Wait()
				if givenUp {
					c.strays.expect(testExec)
					l.abandon(testExec.ID)
				} else {
					l.started(testExec.ID, 7, testExec.CreatedAt, startEvent())
				}
				if err := <-found; err != nil {
					t.Fatalf("found: %v", err)
				}
				time.Sleep(shortCommand)
				synctest.Wait()
				if x, ok := l.get(testExec.ID); !ok || x.PID != 7 || x.Spec.Cmd != testExec.Spec.Cmd {
					t.Errorf("known of it: %t, %+v", ok, x)
				}
				if _, events := m.written(); len(events) != 1 || events[0] != execStarted {
					t.Errorf("events %v, want one start", events)
				}
			})
		})
	}
}
