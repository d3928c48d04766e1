package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// recording is a subject that notes its runs.
func recording(name string, to *[]string) subject {
	return subject{name, func(_ context.Context, c *clock) error {
		*to = append(*to, name)
		c.book("x", time.Millisecond)
		return nil
	}}
}

func TestMeasureTakesTurns(t *testing.T) {
	var made []string
	var progress []int
	s := series{n: 3, warmup: 1, parallel: 1, limit: time.Minute, progress: func(done int) { progress = append(progress, done) }}
	runs, err := measure(t.Context(), s, []subject{recording("a", &made), recording("b", &made)})
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"a", "b", "b", "a", "a", "b", "b", "a"}; !slices.Equal(made, want) {
		t.Errorf("order %v, want %v", made, want)
	}
	var got []string
	for _, r := range runs {
		got = append(got, fmt.Sprint(r.Subject, r.Pair))
		if r.US["x"] != 1000 || r.Error != "" {
			t.Errorf("run %+v", r)
		}
	}
	if want := []string{"b1", "a1", "a2", "b2", "b3", "a3"}; !slices.Equal(got, want) {
		t.Errorf("runs %v, want %v: the warm-up left out, the order kept", got, want)
	}
	if want := []int{1, 2, 3}; !slices.Equal(progress, want) {
		t.Errorf("progress %v, want %v", progress, want)
	}
}

func TestMeasureParallel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var now, most atomic.Int32
		sub := subject{"a", func(ctx context.Context, _ *clock) error {
			most.Store(max(most.Load(), now.Add(1)))
			defer now.Add(-1)
			time.Sleep(time.Second)
			return nil
		}}
		runs, err := measure(t.Context(), series{n: 5, warmup: 3, parallel: 2, limit: time.Minute}, []subject{sub})
		if err != nil || len(runs) != 5 || most.Load() != 2 {
			t.Errorf("%d runs, at most %d at once, %v: want 5, 2, no error", len(runs), most.Load(), err)
		}
		for i, r := range runs {
			if r.Pair != i+1 {
				t.Errorf("run %d has number %d", i, r.Pair)
			}
		}
	})
}

func TestMeasureKeepsFailures(t *testing.T) {
	n := 0
	sub := subject{"a", func(context.Context, *clock) error {
		if n++; n%2 == 0 {
			return errors.New("broken pipe")
		}
		return nil
	}}
	runs, err := measure(t.Context(), series{n: 30, parallel: 1, limit: time.Minute}, []subject{sub})
	if err != nil || len(runs) != 30 {
		t.Fatalf("%d runs, %v", len(runs), err)
	}
	if got := summarise(runs).Failed["a"]; got != 15 {
		t.Errorf("%d failed runs, want 15", got)
	}
}

func TestMeasureGivesUp(t *testing.T) {
	sub := subject{"a", func(context.Context, *clock) error { return errors.New("no server") }}
	runs, err := measure(t.Context(), series{n: 100, parallel: 1, limit: time.Minute}, []subject{sub})
	if err == nil || !strings.Contains(err.Error(), "no server") {
		t.Errorf("got %v, want an error that says why", err)
	}
	if len(runs) != maxInARow {
		t.Errorf("%d runs, want %d", len(runs), maxInARow)
	}
}

func TestMeasureLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hang := subject{"a", func(ctx context.Context, _ *clock) error {
			<-ctx.Done()
			return ctx.Err()
		}}
		began := time.Now()
		runs, err := measure(t.Context(), series{n: 2, parallel: 1, limit: time.Second}, []subject{hang})
		if err != nil || len(runs) != 2 || !strings.Contains(runs[0].Error, "longer than 1s") {
			t.Errorf("runs that hang: %+v, %v", runs, err)
		}
		if d := time.Since(began); d != 2*time.Second {
			t.Errorf("took %s, want 2s", d)
		}
		ctx, cancel := context.WithTimeoutCause(t.Context(), 90*time.Second, errLimit)
		defer cancel()
		slow := subject{"a", func(ctx context.Context, _ *clock) error {
			select {
			case <-time.After(time.Minute):
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}}
		runs, err = measure(ctx, series{n: 5, parallel: 1, limit: time.Hour}, []subject{slow})
		if !errors.Is(err, errLimit) || len(runs) != 1 {
			t.Errorf("a benchmark that takes too long: %d runs, %v; want 1 and the limit", len(runs), err)
		}
	})
}
