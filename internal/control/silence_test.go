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

func closed(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}

// Whoever waits is sent away some time after his sandbox fell silent, and not if it answers
// before that; who comes afterwards is not, until it falls silent again.
func TestSilences(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s silences
		given, leave := s.wait("a")
		s.begin("a")
		s.begin("a") // told twice
		time.Sleep(waitPatience - 1)
		s.end("a")
		s.end("a")
		time.Sleep(time.Hour)
		if closed(given) {
			t.Error("waiting for one that answers was given up")
		}
		s.begin("a")
		time.Sleep(waitPatience - 1)
		synctest.Wait()
		if closed(given) {
			t.Error("waiting was given up too early")
		}
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		late, leaveLate := s.wait("a")
		if !closed(given) || !closed(late) {
			t.Error("waiting for one that stays silent was not given up")
		}
		s.end("a")
		anew, leaveAnew := s.wait("a")
		if closed(anew) {
			t.Error("waiting for one that answers again is given up at once")
		}
		for _, f := range []func(){leave, leaveLate, leaveAnew, leaveAnew} {
			f()
		}
		if len(s.m) != 0 {
			t.Errorf("%d are remembered", len(s.m))
		}
	})
}

// A timer that fires while the guest answers, and falls silent again, has no say in the new
// silence.
func TestSilencesOutlastALateTimer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s silences
		given, leave := s.wait("a")
		defer leave()
		s.begin("a")
		first := s.m["a"].times
		s.end("a")
		s.begin("a")
		s.giveUp("a", s.m["a"], first)
		if closed(given) {
			t.Error("waiting was given up for an earlier silence")
		}
		time.Sleep(waitPatience)
		synctest.Wait()
		if !closed(given) {
			t.Error("waiting was not given up for this one")
		}
		s.end("a")
	})
}

// noRecords is a store that has no sandbox.
type noRecords struct{ store.Store }

func (noRecords) Sandbox(context.Context, hutch.SandboxID) (hutch.Sandbox, error) {
	return hutch.Sandbox{}, hutch.ErrNotFound
}

// Of a sandbox that never comes to be on record nobody says that it has ended.
func TestSilenceWithoutARecordIsForgotten(t *testing.T) {
	c := &Control{store: noRecords{}, log: slog.New(slog.DiscardHandler)}
	c.SandboxSilent(t.Context(), "a", 1, true)
	if len(c.silences.m) != 0 {
		t.Errorf("%d are remembered", len(c.silences.m))
	}
}
