package control

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"hutch.dev/hutch"
)

// Whoever asks while it is being made shares what comes of it; who asks afterwards, or for
// another turn, makes his own.
func TestTurnsAreShared(t *testing.T) {
	failed := errors.New("failed")
	synctest.Test(t, func(t *testing.T) {
		var ts turns
		pause := turnOf{"a", hutch.Pausing}
		release := make(chan struct{})
		makes := 0
		do := func() (hutch.Sandbox, error) {
			makes++
			<-release
			return hutch.Sandbox{ID: "a"}, failed
		}
		outcomes := make(chan error, 20)
		for range cap(outcomes) {
			go func() {
				_, err := ts.join(t.Context(), pause, do)
				outcomes <- err
			}()
		}
		synctest.Wait()
		ctx, leave := context.WithCancel(t.Context())
		leave()
		if _, err := ts.join(ctx, pause, do); !errors.Is(err, hutch.ErrCancelled) {
			t.Errorf("who leaves: %v", err)
		}
		for _, other := range []turnOf{{"a", hutch.Resuming}, {"b", hutch.Pausing}} {
			if sb, err := ts.join(t.Context(), other, func() (hutch.Sandbox, error) { return hutch.Sandbox{ID: other.id}, nil }); err != nil || sb.ID != other.id {
				t.Errorf("%+v meanwhile: %s, %v", other, sb.ID, err)
			}
		}
		close(release)
		for range cap(outcomes) {
			if err := <-outcomes; !errors.Is(err, failed) {
				t.Errorf("one of many: %v", err)
			}
		}
		if makes != 1 {
			t.Errorf("it was made %d times", makes)
		}
		if _, err := ts.join(t.Context(), pause, do); !errors.Is(err, failed) || makes != 2 {
			t.Errorf("afterwards: %v, made %d times", err, makes)
		}
		if len(ts.m) != 0 {
			t.Errorf("%d turns are under way", len(ts.m))
		}
	})
}
