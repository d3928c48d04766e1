package bench

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"hutch.dev/hutch/api"
	"hutch.dev/hutch/client"
)

// HeapLimit is how much the server's heap may have grown from the beginning of the cycles to
// their end, each after a collection, in parts of what it was.
const HeapLimit = 0.05

const (
	phaseBefore = "before"
	phaseCycles = "cycles"
	phaseAfter  = "after"
)

// Cycles makes, uses and ends s.N sandboxes, s.Parallel at once, and compares what the
// server holds before and after: descriptors, goroutines and, after a collection, heap,
// and what is on the host of sandboxes. The server must run in this process; srv.HTTP's
// connections are closed before each look, so that what is left is the server's own.
func Cycles(ctx context.Context, s Settings, srv Server, progress func(done int)) (*Report, error) {
	if srv.Host == nil {
		return nil, errOwn
	}
	ctx, cancel := context.WithTimeoutCause(ctx, s.Limit, errLimit)
	defer cancel()
	rep, err := begin(ctx, "cycles", s, srv.API)
	if err != nil {
		return nil, err
	}
	b := &book{}
	err = cyclesOf(ctx, s, srv, b, progress)
	return rep.conclude(b, err)
}

func cyclesOf(ctx context.Context, s Settings, srv Server, b *book, progress func(done int)) error {
	warm := &book{}
	if err := spin(ctx, s, srv.API, warm.page("warm-up", SubjectHutch, 0), s.Warmup, nil); err != nil {
		return err
	}
	cycles := b.page(phaseCycles, SubjectHutch, 0)
	for _, m := range []string{MetricCreate, MetricAnswer, MetricKill} {
		cycles.reserve(m, Microseconds, s.N) // what is booked is in the same heap
	}
	before, err := srv.rest(ctx, nil)
	if err != nil {
		return err
	}
	if err := s.heapProfile("heap-before"); err != nil {
		return err
	}
	before.book(b.page(phaseBefore, SubjectHutch, 0))
	stop, err := s.profile()
	if err != nil {
		return err
	}
	err = errors.Join(spin(ctx, s, srv.API, cycles, s.N, progress), stop())
	if err != nil {
		return err
	}
	after, err := srv.rest(ctx, before)
	if err != nil {
		return err
	}
	if err := s.heapProfile("heap-after"); err != nil {
		return err
	}
	end := b.page(phaseAfter, SubjectHutch, 0)
	after.book(end)
	for _, more := range after.beyond(before) {
		end.fault("%s", more)
	}
	leaks, err := srv.Host.Leaks(ctx)
	if err != nil {
		return fmt.Errorf("look for leaks: %w", err)
	}
	for _, l := range leaks {
		end.fault("leak: %s", l)
	}
	end.add(MetricLeaks, Count, int64(len(leaks)))
	return nil
}

// spin makes n cycles, s.Parallel at once.
func spin(ctx context.Context, s Settings, c *client.Client, p page, n int, progress func(done int)) error {
	var wg sync.WaitGroup
	var done atomic.Int64 // without an error
	todo := make(chan int)
	for range s.Parallel {
		wg.Go(func() {
			for i := range todo {
				rctx, cancel := context.WithTimeout(ctx, runLimit)
				t := &clock{us: map[string]int64{}}
				if err := cycle(rctx, c, s, t); err == nil {
					p.times(t)
					done.Add(1)
				} else if ctx.Err() == nil {
					p.fault("cycle %d: %v", i, err)
				}
				cancel()
			}
		})
	}
	begun := time.Now()
	for i := range n {
		if ctx.Err() != nil || p.b.hopeless(p.phase) != nil {
			break
		}
		todo <- i + 1
		if progress != nil {
			progress(i + 1)
		}
	}
	close(todo)
	wg.Wait()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	p.add(MetricRate, PerKilosec, rate(int(done.Load()), time.Since(begun)))
	return p.b.hopeless(p.phase)
}

// cycle makes a sandbox, has it run a command, and ends it.
func cycle(ctx context.Context, c *client.Client, s Settings, t *clock) (err error) {
	begun := time.Now()
	sb, err := c.CreateSandbox(ctx, s.request())
	if err != nil {
		return fmt.Errorf("create: %w", err)
	}
	t.since(MetricCreate, begun)
	defer func() {
		ended := time.Now()
		if kerr := killBox(ctx, c, sb.ID); kerr != nil {
			err = errors.Join(err, fmt.Errorf("kill: %w", kerr))
			return
		}
		t.since(MetricKill, ended)
	}()
	asked := time.Now()
	res, err := c.Exec(ctx, sb.ID, api.ExecRequest{Argv: helloArgv})
	if err != nil {
		return fmt.Errorf("exec: %w", err)
	}
	t.since(MetricAnswer, asked)
	if res.ExitCode != 0 || res.Stdout != helloText {
		return fmt.Errorf("exec: exit code %d and %d bytes of output, not 0 and %q", res.ExitCode, len(res.Stdout), helloText)
	}
	return nil
}

// cyclesClaims are what is held of cycles.
func cyclesClaims(s Settings, fs figures) []Claim {
	var out []Claim
	if d, ok := fs.of(phaseCycles, MetricKill, SubjectHutch); ok {
		out = append(out, atLeast("cycles without an error", float64(d.N), float64(s.N)))
	}
	for _, f := range fs {
		if f.Phase != phaseAfter {
			continue
		}
		before, ok := fs.of(phaseBefore, f.Metric, SubjectHutch)
		if !ok {
			if f.Metric == MetricLeaks {
				out = append(out, atMost(titleOf(f.Metric), float64(f.Dist.Max), 0, ""))
			}
			continue
		}
		more := float64(f.Dist.Max - before.Max)
		switch f.Metric {
		case MetricHeap:
			out = append(out, atMost("heap after over heap before, each after a collection", over(f.Dist.Max, before.Max), 1+HeapLimit, ""))
		case MetricFiles + filesOfRecords:
			out = append(out, atMost(titleOf(f.Metric)+", more than before", more, readersFiles, ""))
		default:
			out = append(out, atMost(titleOf(f.Metric)+", more than before", more, 0, ""))
		}
	}
	return out
}
