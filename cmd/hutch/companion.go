package main

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"hutch.dev/hutch/internal/x/backoff"
)

// client is a connection to a process of ours that serve starts and that outlives it.
type client interface {
	Done() <-chan struct{} // closed when the process behind it is gone
	Close()
}

// companion keeps one such process running: it is started again when it dies, and what
// it held is given to the new one.
type companion[C client] struct {
	name    string
	start   func(context.Context) (C, error) // connects to the process, starting it if need be
	refill  func(context.Context) error      // gives a new process what the old one held
	log     *slog.Logger
	mu      sync.Mutex
	current C
}

// open makes the first connection.
func (c *companion[C]) open(ctx context.Context) error {
	cl, err := c.start(ctx)
	if err != nil {
		return fmt.Errorf("start %s: %w", c.name, err)
	}
	c.set(cl)
	return nil
}

func (c *companion[C]) get() C {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.current
}

func (c *companion[C]) set(cl C) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.current = cl
}

// restartPolicy spaces the tries to start a process that does not come up.
var restartPolicy = backoff.Policy{Base: 50 * time.Millisecond, Cap: 5 * time.Second}

// run replaces the process whenever it dies, until ctx ends.
func (c *companion[C]) run(ctx context.Context) error {
	defer func() { c.get().Close() }()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-c.get().Done():
		}
		c.log.Error("a process of ours died; starting another", "process", c.name)
		for n := 0; ctx.Err() == nil; n++ {
			err := c.open(ctx)
			if err == nil {
				err = c.refill(ctx)
			}
			if err == nil {
				break
			}
			c.log.Error("restart", "process", c.name, "error", err)
			if err := backoff.Sleep(ctx, restartPolicy.Delay(n, rand.Float64)); err != nil {
				return nil
			}
		}
	}
}
