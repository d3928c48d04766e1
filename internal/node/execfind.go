package node

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/guestapi"
)

// maxSought is how many starts a guest may leave without an answer before it is asked for no
// other: so many commands are looked for when it answers again.
const maxSought = 64

// sought is a command whose start was not answered: it may run all the same.
type sought struct {
	id   hutch.ExecID
	spec hutch.ExecSpec
	// What the sandbox had used when it was asked for: see watchExec.
	kills int64
	cpu   time.Duration
}

// mayStart refuses the start of a command in a sandbox whose guest has left too many without an
// answer.
func (b *box) mayStart() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.sought) < maxSought {
		return nil
	}
	return hutch.Errorf(hutch.CodeGuestUnresponsive, "sandbox %s has left %d starts of commands without an answer: try again when it answers", b.id, maxSought)
}

// seek has it found out whether a command runs, by one goroutine for all of its sandbox. What is
// too many is not looked for: it was asked for beside others, before any of them was given up.
func (n *Node) seek(b *box, s sought) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.sought) >= maxSought {
		n.log.Warn("a command whose start was not answered is not looked for: there are too many", "sandbox", b.id, "exec", s.id, "op", "exec")
		return
	}
	b.sought = append(b.sought, s)
	if len(b.sought) == 1 {
		n.wg.Go(func() { n.findExecs(b) })
	}
}

// findExecs finds out of all commands whose start was not answered whether they run, and watches
// those that do. It ends with the last of them, with the sandbox or with the node.
func (n *Node) findExecs(b *box) {
	for tries := 0; ; {
		b.mu.Lock()
		s := b.sought[0]
		b.mu.Unlock()
		select {
		case <-b.gone:
			return
		case <-n.work.Done():
			return // the next process asks for all that the guest knows
		case <-time.After(retryPolicy.Delay(tries, rand.Float64)):
		}
		if b.isPaused() {
			continue
		}
		if errors.Is(n.findExec(b, s), hutch.ErrGuestUnresponsive) {
			tries++
			continue
		}
		tries = 0
		b.mu.Lock()
		b.sought = b.sought[1:]
		over := len(b.sought) == 0
		b.mu.Unlock()
		if over {
			return
		}
	}
}

// findExec asks the guest for a command, and watches it if it is there.
func (n *Node) findExec(b *box, s sought) error {
	var st guestapi.ExecStatus
	err := n.call(n.work, func(ctx context.Context) error {
		return b.ask(ctx, func(ctx context.Context) (err error) {
			st, err = b.guest.Exec(ctx, s.id)
			return err
		})
	})
	if err != nil { // not found: it was not started
		return err
	}
	at := time.Unix(0, st.StartedAt)
	if err := n.reports.ExecFound(n.work, b.id, s.id, st.PID, at); err != nil {
		n.log.Error("a command whose start was not answered is not on record before its end", "sandbox", b.id, "exec", s.id, "op", "exec", "error", err)
	}
	if w := n.watchExec(b, begun{ExecStatus: st, oomKills: s.kills, cpu: s.cpu}); w != nil {
		w.arm(s.spec, at)
	}
	return nil
}
