package sqlite

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"hutch.dev/hutch"
)

// BenchmarkWrite is a durable change of state with its event, as a control plane makes
// them, by so many callers at once. Run it with -benchtime=2000x for a p99 of use.
func BenchmarkWrite(b *testing.B) {
	for _, callers := range []int{1, 8, 32, 128} {
		b.Run(fmt.Sprintf("callers=%d", callers), func(b *testing.B) { benchmarkWrite(b, callers) })
	}
}

func benchmarkWrite(b *testing.B, callers int) {
	s := open(b, b.TempDir())
	defer s.Close()
	id := func(i int) hutch.SandboxID { return hutch.SandboxID(fmt.Sprintf("i%d", i)) }
	for i := range callers {
		sb := hutch.Sandbox{ID: id(i), Project: "p1", Epoch: 1, Metadata: map[string]string{"k": "v"}}
		if err := s.CreateSandbox(b.Context(), sb); err != nil {
			b.Fatal(err)
		}
	}
	took := make([]time.Duration, b.N)
	var next atomic.Int64
	var wg sync.WaitGroup
	b.ResetTimer()
	for c := range callers {
		wg.Go(func() {
			for i := next.Add(1) - 1; i < int64(b.N); i = next.Add(1) - 1 {
				start := time.Now()
				_, err := s.UpdateSandbox(b.Context(), id(c), 1, func(sb *hutch.Sandbox) error {
					sb.ActiveAt = start
					return nil
				}, hutch.Event{At: start, Project: "p1", Sandbox: id(c), Type: "sandbox.touched"})
				if err != nil {
					b.Error(err)
					return
				}
				took[i] = time.Since(start)
			}
		})
	}
	wg.Wait()
	b.StopTimer()
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-µs")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-µs")
}

// BenchmarkRead is one record by its id.
func BenchmarkRead(b *testing.B) {
	s := open(b, b.TempDir())
	defer s.Close()
	if err := s.CreateSandbox(b.Context(), hutch.Sandbox{ID: "i1", Metadata: map[string]string{"k": "v"}}); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, err := s.Sandbox(b.Context(), "i1"); err != nil {
			b.Fatal(err)
		}
	}
}
