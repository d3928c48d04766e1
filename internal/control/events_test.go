package control

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/store"
)

// eventStore is a store with one sandbox and its events.
type eventStore struct {
	store.Store
	sb     hutch.Sandbox
	events []hutch.Event
}

func (s eventStore) Sandbox(_ context.Context, id hutch.SandboxID) (hutch.Sandbox, error) {
	if id != s.sb.ID {
		return hutch.Sandbox{}, hutch.ErrNotFound
	}
	return s.sb, nil
}

func (s eventStore) Events(_ context.Context, f store.EventFilter) (l []hutch.Event, err error) {
	for _, ev := range s.events {
		if ev.Seq > f.After && (f.Sandbox == "" || f.Sandbox == ev.Sandbox) {
			l = append(l, ev)
		}
	}
	return l, nil
}

// TestWatchEventsEndsWithItsSandbox: also for who has seen its last event already. Who asks
// for what lives, or is to be made yet, is kept waiting.
func TestWatchEventsEndsWithItsSandbox(t *testing.T) {
	events := []hutch.Event{
		{Seq: 1, Project: "p", Sandbox: "i1", Type: "sandbox.creating"},
		{Seq: 2, Project: "p", Sandbox: "i1", Type: sandboxEnded},
	}
	for name, c := range map[string]struct {
		sandbox hutch.SandboxID
		project hutch.ProjectID
		state   hutch.State
		after   int64
		want    int  // events
		ends    bool // by itself
	}{
		"from the start":    {"i1", "p", hutch.StateDead, 0, 2, true},
		"from the last on":  {"i1", "p", hutch.StateDead, 2, 0, true},
		"alive":             {"i1", "p", hutch.StateRunning, 2, 0, false},
		"not there yet":     {"i2", "p", hutch.StateDead, 0, 0, false},
		"another project's": {"i1", "q", hutch.StateDead, 2, 0, false},
		"all sandboxes":     {"", "p", hutch.StateDead, 0, 2, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				st := eventStore{sb: hutch.Sandbox{ID: "i1", Project: "p", State: c.state}, events: events}
				ctl := &Control{store: st, watchers: newEventWatchers(), work: context.Background()}
				ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
				defer cancel()
				seen := 0
				err := ctl.WatchEvents(ctx, hutch.EventQuery{Project: c.project, Sandbox: c.sandbox, After: c.after}, func(hutch.Event) error {
					seen++
					return nil
				})
				if ended := !errors.Is(err, context.DeadlineExceeded); ended != c.ends || ended && err != nil || seen != c.want {
					t.Errorf("%d events, ended with %v; want %d, and an end by itself: %t", seen, err, c.want, c.ends)
				}
			})
		})
	}
}
