package control

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/store"
)

// Types of events that the code asks for.
const (
	sandboxEnded = "sandbox.ended" // a sandbox's last
	execStarted  = "exec.started"  // a command's first
)

// Events returns a project's events by number, oldest first.
func (c *Control) Events(ctx context.Context, q hutch.EventQuery) ([]hutch.Event, error) {
	if err := c.execs.settleAll(ctx, q.Sandbox); err != nil {
		return nil, err
	}
	l, err := c.store.Events(ctx, store.EventFilter{Project: q.Project, Sandbox: q.Sandbox, After: q.After, Limit: q.Limit})
	if err != nil {
		return nil, fmt.Errorf("read events: %w", err)
	}
	return l, nil
}

// WatchEvents hands events to sink as they come, from q.After on, until sink fails, ctx
// ends, or the sandbox that q names has. It reads them from the store, so a slow sink delays
// nobody and misses nothing.
func (c *Control) WatchEvents(ctx context.Context, q hutch.EventQuery, sink func(hutch.Event) error) error {
	over := false // nothing comes any more: its last event may lie before q.After
	if q.Sandbox != "" {
		sb, err := c.load(ctx, q.Project, q.Sandbox)
		if err != nil && !errors.Is(err, hutch.ErrNotFound) {
			return err
		}
		over = err == nil && sb.State == hutch.StateDead
	}
	for {
		wake := c.watchers.next()
		q.Limit = 1000
		l, err := c.store.Events(ctx, store.EventFilter{Project: q.Project, Sandbox: q.Sandbox, After: q.After, Limit: q.Limit})
		if err != nil {
			return fmt.Errorf("read events: %w", err)
		}
		for _, ev := range l {
			if err := sink(ev); err != nil {
				return err
			}
			q.After = ev.Seq
			if q.Sandbox != "" && ev.Type == sandboxEnded {
				return nil
			}
		}
		if len(l) == q.Limit {
			continue
		}
		if over {
			return nil
		}
		select {
		case <-wake:
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-c.work.Done():
			return context.Cause(c.work)
		}
	}
}

// eventWatchers wakes whoever waits for events.
type eventWatchers struct {
	mu sync.Mutex
	ch chan struct{}
}

func newEventWatchers() *eventWatchers { return &eventWatchers{ch: make(chan struct{})} }

// next returns a channel that is closed when there may be new events.
func (w *eventWatchers) next() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.ch
}

func (w *eventWatchers) wake() {
	w.mu.Lock()
	defer w.mu.Unlock()
	close(w.ch)
	w.ch = make(chan struct{})
}
