package backoff_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"hutch.dev/hutch/internal/x/backoff"
)

func TestCeilingDoublesUpToCap(t *testing.T) {
	p := backoff.Policy{Base: 100 * time.Millisecond, Cap: time.Second}
	for n, want := range []int64{100, 200, 400, 800, 1000, 1000} {
		if got := p.Ceiling(n).Milliseconds(); got != want {
			t.Errorf("Ceiling(%d) = %d ms, want %d", n, got, want)
		}
	}
	if got := p.Ceiling(1 << 20); got != p.Cap {
		t.Errorf("Ceiling after very many attempts = %v, want the cap", got)
	}
	if got := (backoff.Policy{Base: time.Minute, Cap: time.Second}).Ceiling(0); got != time.Second {
		t.Errorf("Ceiling with a base over the cap = %v, want the cap", got)
	}
}

func TestDelaySpansTheWholeRange(t *testing.T) {
	p := backoff.Policy{Base: time.Second, Cap: 8 * time.Second}
	for _, c := range []struct {
		chance float64
		want   time.Duration
	}{{0, 0}, {0.5, 2 * time.Second}, {0.999, 3996 * time.Millisecond}} {
		got := p.Delay(2, func() float64 { return c.chance })
		if (got - c.want).Abs() > time.Microsecond {
			t.Errorf("Delay at chance %v = %v, want %v", c.chance, got, c.want)
		}
	}
}

func TestSleep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		if err := backoff.Sleep(t.Context(), 3*time.Second); err != nil || time.Since(start) != 3*time.Second {
			t.Errorf("Sleep = %v after %v, want nil after 3s", err, time.Since(start))
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		gone := errors.New("gone")
		time.AfterFunc(time.Second, func() { cancel(gone) })
		start = time.Now()
		if err := backoff.Sleep(ctx, time.Hour); !errors.Is(err, gone) || time.Since(start) != time.Second {
			t.Errorf("Sleep under a cancelled context = %v after %v, want its cause after 1s", err, time.Since(start))
		}
		if err := backoff.Sleep(ctx, 0); !errors.Is(err, gone) {
			t.Errorf("Sleep(0) under a cancelled context = %v, want its cause", err)
		}
	})
}
