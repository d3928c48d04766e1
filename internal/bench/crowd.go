package bench

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"hutch.dev/hutch"
	"hutch.dev/hutch/api"
	"hutch.dev/hutch/client"
)

// fillAtOnce is how many sandboxes of a crowd are made or ended at once: what a caller who
// needs many of them would do on a machine with few CPUs.
const fillAtOnce = 4

// errOwn is why a benchmark that looks at the host refuses a server elsewhere.
var errOwn = errors.New("this benchmark looks at the server's processes: it needs a server of its own")

// crowd is the sandboxes that stand at once, in the order of their making.
type crowd struct {
	api *client.Client
	req api.CreateSandbox

	beside []int // processes that have nothing to do with it: see bystanders

	mu  sync.Mutex
	ids []hutch.SandboxID
}

// gather returns an empty crowd of sandboxes that outlive the benchmark's limit.
func gather(s Settings, c *client.Client) *crowd {
	req := s.request()
	ttl := (s.Limit + time.Minute).Seconds()
	req.TTLSeconds = &ttl
	return &crowd{api: c, req: req}
}

// fill makes n sandboxes more, and books how long each took. made is called after each,
// one call at a time.
func (w *crowd) fill(ctx context.Context, n int, p page, made func()) error {
	var g errgroup.Group
	g.SetLimit(fillAtOnce)
	for range n {
		if ctx.Err() != nil {
			break
		}
		g.Go(func() error {
			rctx, cancel := context.WithTimeout(ctx, runLimit)
			defer cancel()
			begun := time.Now()
			sb, err := w.api.CreateSandbox(rctx, w.req)
			if err != nil {
				p.fault("create: %v", err)
				return p.b.hopeless(p.phase)
			}
			p.time(MetricCreate, time.Since(begun))
			w.mu.Lock()
			defer w.mu.Unlock()
			w.ids = append(w.ids, sb.ID)
			made()
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if len(w.ids) == 0 {
		return errors.New("not one sandbox could be made: what went wrong is in the report")
	}
	return nil
}

// end kills all of the crowd, also when ctx has ended, and books how long each kill took.
func (w *crowd) end(ctx context.Context, p page) error {
	var g errgroup.Group
	g.SetLimit(fillAtOnce)
	for _, id := range w.ids {
		g.Go(func() error {
			begun := time.Now()
			if err := killBox(ctx, w.api, id); err != nil {
				return fmt.Errorf("kill %s: %w", id, err)
			}
			p.time(MetricKill, time.Since(begun))
			return nil
		})
	}
	w.ids = nil
	return g.Wait()
}

// answers has every sandbox of the crowd run a command, one after the other, and books how
// long each took to its result.
func (w *crowd) answers(ctx context.Context, p page) error {
	for _, id := range w.ids {
		rctx, cancel := context.WithTimeout(ctx, runLimit)
		begun := time.Now()
		res, err := w.api.Exec(rctx, id, api.ExecRequest{Argv: []string{"/bin/echo", string(id)}})
		took := time.Since(begun)
		cancel()
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err != nil:
			p.fault("exec in %s: %v", id, err)
		case res.ExitCode != 0 || res.Stdout != string(id)+"\n":
			p.fault("exec in %s: exit code %d and %d bytes of output, not its name", id, res.ExitCode, len(res.Stdout))
		default:
			p.time(MetricAnswer, took)
		}
		if err := p.b.hopeless(p.phase); err != nil {
			return err
		}
	}
	return nil
}

// memory books what each sandbox of the crowd has of the host's memory.
func (w *crowd) memory(h *Host, p page) {
	for _, id := range w.ids {
		use, err := h.boxMemory(id)
		if err != nil {
			p.fault("memory of %s: %v", id, err)
			continue
		}
		p.add(MetricPSS, Bytes, use.PSS)
		p.add(MetricOwn, Bytes, use.own())
		p.add(MetricShared, Bytes, use.File)
		p.add(MetricRSS, Bytes, use.RSS)
		p.add(MetricCharge, Bytes, use.Charge)
		p.add(MetricProcesses, Count, int64(use.Processes))
	}
}

// pause waits; ctx ends it.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
