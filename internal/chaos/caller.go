package chaos

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/api"
)

// caller makes sandboxes and uses them, one call at a time, and notes what it was told.
type caller struct {
	*run

	n    int
	rnd  *rand.Rand
	seq  int
	mine []*box
}

func newCaller(r *run, n int) *caller {
	return &caller{run: r, n: n, rnd: rand.New(rand.NewPCG(r.Seed, uint64(n)+1))}
}

// work goes on until ctx ends. A call under way is finished: what it would have been answered
// would not be known otherwise.
func (c *caller) work(ctx context.Context) {
	ops := []struct {
		weight int
		name   string
		do     func(context.Context, *box) error
	}{
		{8, "exec", c.exec},
		{2, "read back", c.readBack},
		{2, "pause", c.pause},
		{1, "extend", c.extend},
		{1, "kill", c.kill},
		{1, "leave", c.leave},
	}
	sum := 0
	for _, o := range ops {
		sum += o.weight
	}
	for ctx.Err() == nil {
		call := context.WithoutCancel(ctx)
		if len(c.mine) < c.Boxes {
			c.create(call)
			continue
		}
		b := c.mine[c.rnd.IntN(len(c.mine))]
		n := c.rnd.IntN(sum)
		for _, o := range ops {
			if n -= o.weight; n >= 0 {
				continue
			}
			err := o.do(call, b)
			c.settle(b, o.name, err)
			break
		}
	}
}

// settle notes what a call came to. A sandbox of which one failed is used no more: what becomes
// of it is looked at in the end.
func (c *caller) settle(b *box, op string, err error) {
	switch {
	case err == nil:
		c.notes.answered(op)
	case errors.Is(err, errStruck), c.notes.isStruck(b): // its end is what it was struck for, however it shows
		c.drop(b)
	default:
		c.notes.violated("%s of %s, to which nothing had been done: %v", op, b.id, err)
		c.drop(b)
	}
	if b.killed {
		c.drop(b)
	}
}

func (c *caller) drop(b *box) {
	for i, m := range c.mine {
		if m == b {
			c.mine = append(c.mine[:i], c.mine[i+1:]...)
			return
		}
	}
}

func (c *caller) create(ctx context.Context) {
	ttl := time.Hour.Seconds()
	sb, err := c.c.CreateSandbox(ctx, api.CreateSandbox{
		Template: c.Template, MemoryMB: &c.MemoryMB, TTLSeconds: &ttl, Metadata: map[string]string{"caller": fmt.Sprint(c.n)},
	})
	switch {
	case err == nil:
		b := &box{id: sb.ID}
		c.notes.add(b)
		c.mine = append(c.mine, b)
		c.notes.answered("create")
	case errors.Is(err, hutch.ErrSandboxGone):
		// The server died in it, and what was begun could not be finished: the caller is told so.
		c.notes.answered("create that was cut off")
	default:
		c.notes.violated("a create: %v", err)
	}
}

// exec has a command write a token into a file and say it. However often it is asked for, it
// runs once.
func (c *caller) exec(ctx context.Context, b *box) error {
	c.seq++
	token := fmt.Sprintf("t%d.%d", c.n, c.seq)
	b.maybe = append(b.maybe, token)
	res, err := c.c.Exec(ctx, b.id, api.ExecRequest{Cmd: "echo " + token + " >> /root/tokens; echo " + token})
	if err != nil {
		return err
	}
	if res.Stdout != token+"\n" || res.ExitCode != 0 {
		return fmt.Errorf("the command ended %s with %d and %q", res.EndReason, res.ExitCode, res.Stdout)
	}
	b.tokens = append(b.tokens, token)
	return nil
}

// readBack looks whether everything that was said to be written is there, once and in order.
func (c *caller) readBack(ctx context.Context, b *box) error {
	res, err := c.c.Exec(ctx, b.id, api.ExecRequest{Cmd: "cat /root/tokens 2>/dev/null; true"})
	if err != nil {
		return err
	}
	return b.compare(strings.Fields(res.Stdout))
}

func (c *caller) pause(ctx context.Context, b *box) error {
	if err := c.c.Pause(ctx, b.id); err != nil {
		return err
	}
	sb, err := c.c.Sandbox(ctx, b.id)
	if err != nil {
		return err
	}
	if sb.State != hutch.StatePaused {
		return fmt.Errorf("it is %s after a pause", sb.State)
	}
	return c.c.Resume(ctx, b.id)
}

func (c *caller) extend(ctx context.Context, b *box) error {
	l, err := c.c.Extend(ctx, b.id, 2*time.Hour)
	if err != nil {
		return err
	}
	if l.TTLSeconds != (2 * time.Hour).Seconds() {
		return fmt.Errorf("its time to live is %v after it was set", l.TTLSeconds)
	}
	return nil
}

func (c *caller) kill(ctx context.Context, b *box) error {
	c.notes.killing(b)
	if err := c.c.Kill(ctx, b.id); err != nil {
		return err
	}
	c.notes.killed(b)
	return nil
}

// leftFor is how long a sandbox that is left to its deadline has to live.
const leftFor = 3 * time.Second

// leave gives a sandbox a deadline that is near, and uses it no more. It has to end then, whoever
// is dead at that time.
func (c *caller) leave(ctx context.Context, b *box) error {
	if !c.notes.leave(b) {
		return errStruck
	}
	c.drop(b)
	_, err := c.c.Extend(ctx, b.id, leftFor)
	if errors.Is(err, hutch.ErrSandboxGone) {
		return nil // the call was made again when its time was over
	}
	return err
}

// errStruck says that something was done to a sandbox before its caller could do what it meant to.
var errStruck = errors.New("it was struck")
