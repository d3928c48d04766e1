package gvisor

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"gvisor.dev/gvisor/runsc/boot"
)

const (
	// settleLimit bounds how long the calls of a process that is gone may be under way in a
	// sentry that is being taken over.
	settleLimit = 10 * time.Second
	settlePoll  = 20 * time.Millisecond
	stacksLimit = 5 * time.Second
	// maxStacks bounds the answer with them: gVisor's own bound, of which JSON makes more.
	maxStacks = 48 << 20
)

// settle finds out whether a sandbox is paused whose process before this one ended between
// its record and the sentry's answer, and records it. The sentry counts pauses and says
// nothing of the count, so neither of the two calls may be made on a guess; what its tasks
// stand still for is in its stacks.
func (s *sandbox) settle() error {
	ctx, cancel := context.WithTimeout(context.Background(), settleLimit)
	defer cancel()
	t := time.NewTicker(settlePoll)
	defer t.Stop()
	for {
		var text string
		c := call{method: boot.DebugStacks, limit: stacksLimit, result: &text, most: maxStacks}
		if err := c.do(ctx, s.r.socket(s.id)); err != nil {
			return fmt.Errorf("find out whether the sandbox is paused: %w", err)
		}
		if st := readStacks(text); st.calls == 1 && st.tasks > 0 {
			if st.still == st.tasks {
				return s.enter(paused)
			}
			return s.enter(running)
		}
		select {
		case <-ctx.Done():
			return errors.New("it does not come out whether the sandbox is paused")
		case <-t.C:
		}
	}
}

// stacks is what the stacks of a sentry's goroutines tell.
type stacks struct {
	calls int // being handled, the one that asks included; each has a goroutine from its connection on
	tasks int // of the sandbox, each of them a goroutine
	still int // of those, how many are stopped; one that was let go is not, although it may not have run yet
}

// readStacks takes a text as the runtime of Go writes it apart: a paragraph for each
// goroutine, which begins with what it is at.
func readStacks(text string) stacks {
	const (
		handler = "/pkg/urpc.(*Server).StartHandling"
		task    = "/pkg/sentry/kernel.(*Task).run("
		stop    = "/pkg/sentry/kernel.(*Task).doStop("
		waiting = "[sync.Cond.Wait"
	)
	var st stacks
	for g := range strings.SplitSeq(text, "\n\n") {
		head, _, _ := strings.Cut(g, "\n")
		switch {
		case strings.Contains(g, handler):
			st.calls++
		case !strings.Contains(g, task):
		case strings.Contains(g, stop) && strings.Contains(head, waiting):
			st.tasks++
			st.still++
		default:
			st.tasks++
		}
	}
	return st
}
