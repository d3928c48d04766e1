package gvisor

import (
	"context"
	"time"

	"gvisor.dev/gvisor/pkg/sentry/control"
)

const (
	// calmAfter is how long after its start a sentry is asked to give back what the start
	// took: the guest agent's own start, and most callers' first command, are over by then.
	calmAfter = time.Second
	// calmLimit bounds that. A collection of a sentry that idles takes some milliseconds.
	calmLimit = 10 * time.Second

	reduceCall = "Usage.Reduce"
)

// calmLater has the sentry, some time after its start, collect its garbage, for the first time
// in its life. What it does then is in cmd/hutch: it becomes less lazy, and gives the host's
// memory back. That costs nothing but memory if it does not come to pass.
func (s *sandbox) calmLater() {
	time.AfterFunc(calmAfter, func() {
		ctx, cancel := context.WithTimeout(context.Background(), calmLimit)
		defer cancel()
		end, err := s.begin(ctx, "collecting", running) // beside a checkpoint it would be in the way
		if err != nil {
			return
		}
		defer end()
		c := call{method: reduceCall, arg: &control.UsageReduceOpts{}, limit: calmLimit}
		if err := s.call(ctx, c); err != nil {
			s.log.Debug("the sentry keeps the memory of its start", "op", "start", "err", err)
		}
	})
}
