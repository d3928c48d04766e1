package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/x/backoff"
	"hutch.dev/hutch/internal/x/failpoint"
	"hutch.dev/hutch/internal/x/pidfd"
)

// client is a connection to a process of ours that serve starts and that outlives it.
type client interface {
	Done() <-chan struct{} // closed when the process behind it is gone
	Close()
}

// companion keeps one such process running: it is started again when it dies, and when it
// hangs, and what it held is given to the new one.
type companion[C client] struct {
	name    string
	start   func(context.Context) (C, error) // connects to the process, starting it if need be
	refill  func(context.Context) error      // gives a new process what the old one held
	ping    func(context.Context, C) error   // returns once the process has answered, whatever it says
	kill    func(C) error                    // ends a process that does not answer
	log     *slog.Logger
	every   time.Duration // between two pings; 0 = pingEvery
	timeout time.Duration // of a ping; 0 = pingTimeout

	mu      sync.Mutex
	current C
	renewed chan struct{} // closed when current is replaced; nil before the first
	down    error         // why it is of no use now; nil while it is
}

const (
	pingEvery = 2 * time.Second
	// pingTimeout is long: on a machine whose CPUs are all taken, an answer has been seen
	// to take 2 s, and a process that is replaced for nothing costs more than one that is
	// waited for.
	pingTimeout = 5 * time.Second
	// pingTries is how many pings in a row have to fail before a process is taken to hang.
	pingTries = 2
)

// open makes the first connection.
func (c *companion[C]) open(ctx context.Context) error {
	cl, err := c.start(ctx)
	if err != nil {
		return fmt.Errorf("start %s: %w", c.name, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.current = cl
	if c.renewed != nil {
		close(c.renewed)
	}
	c.renewed = make(chan struct{})
	return nil
}

func (c *companion[C]) get() C {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.current
}

// renewWait is how long a call that a process died under waits for the next one.
const renewWait = 5 * time.Second

// call makes a call that may be made twice. One that the process dies under, or that finds it
// dead, is made again of the next process.
func (c *companion[C]) call(ctx context.Context, f func(C) error) error {
	c.mu.Lock()
	cl, renewed := c.current, c.renewed
	c.mu.Unlock()
	err := f(cl)
	if !errors.Is(err, hutch.ErrUnavailable) {
		return err
	}
	select {
	case <-cl.Done():
	default:
		return err // it said so itself
	}
	t := time.NewTimer(renewWait)
	defer t.Stop()
	select {
	case <-renewed:
		return f(c.get())
	case <-t.C:
		return err
	case <-ctx.Done():
		return err
	}
}

// ready returns nil while the process is of use, else why it is not.
func (c *companion[C]) ready() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.down
}

func (c *companion[C]) setDown(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.down = err
}

// restartPolicy spaces the tries to start a process that does not come up.
var restartPolicy = backoff.Policy{Base: 50 * time.Millisecond, Cap: 5 * time.Second}

// run replaces the process whenever it dies or hangs, until ctx ends.
func (c *companion[C]) run(ctx context.Context) error {
	defer func() { c.get().Close() }()
	for {
		err := c.watch(ctx)
		if ctx.Err() != nil {
			return nil
		}
		c.setDown(err)
		c.log.Error("a process of ours is of no use any more; starting another", "process", c.name, "error", err)
		for n := 0; ctx.Err() == nil; n++ {
			c.get().Close() // of a process that died, hung, or could not be given what the old one held
			err := c.open(ctx)
			if err == nil {
				failpoint.At(failpoint.CompanionEmpty)
				err = c.refill(ctx)
			}
			if err == nil {
				failpoint.At(failpoint.CompanionFilled)
				c.setDown(nil)
				break
			}
			c.log.Error("restart", "process", c.name, "error", err)
			if err := backoff.Sleep(ctx, restartPolicy.Delay(n, rand.Float64)); err != nil {
				return nil
			}
		}
	}
}

// watch returns, with the reason, once the process has died or has been ended because it
// hung, or ctx has ended.
func (c *companion[C]) watch(ctx context.Context) error {
	every, cl := c.every, c.get()
	if every == 0 {
		every = pingEvery
	}
	t := time.NewTicker(every)
	defer t.Stop()
	for failed := 0; ; {
		select {
		case <-ctx.Done():
			return nil
		case <-cl.Done():
			return hutch.Errorf(hutch.CodeUnavailable, "the %s has died: another one is being started", c.name)
		case <-t.C:
		}
		if !c.hangs(ctx, cl) {
			failed = 0
			c.setDown(nil)
			continue
		}
		failed++
		c.setDown(hutch.Errorf(hutch.CodeUnavailable, "the %s does not answer", c.name))
		if failed == pingTries {
			return c.end(cl)
		}
	}
}

// hangs asks for a sign of life.
func (c *companion[C]) hangs(ctx context.Context, cl C) bool {
	limit := c.timeout
	if limit == 0 {
		limit = pingTimeout
	}
	pctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	err := c.ping(pctx, cl)
	return err != nil && pctx.Err() != nil && ctx.Err() == nil
}

// end kills a process that hangs and gives the connection to it up, so that whoever waits
// for an answer waits no longer.
func (c *companion[C]) end(cl C) error {
	if err := c.kill(cl); err != nil {
		c.log.Error("kill", "process", c.name, "error", err)
	}
	cl.Close()
	return hutch.Errorf(hutch.CodeUnavailable, "the %s did not answer: another one is being started", c.name)
}

// killProcess ends the process of that number and returns once it is gone.
func killProcess(pid int) error {
	f, err := pidfd.Open(pid)
	if errors.Is(err, os.ErrProcessDone) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	if err := pidfd.Signal(f, unix.SIGKILL); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), pingTimeout)
	defer cancel()
	return pidfd.Wait(ctx, f)
}
