package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/client"
)

// renewals are how many times a lease is renewed in its length: two may go wrong.
const renewals = 3

// keepAlive renews the lease of a sandbox until ctx ends, which is no error, or the sandbox
// has ended, which is. What fails otherwise is said, and tried again: the server may be
// starting anew.
func (a *app) keepAlive(ctx context.Context, cl *client.Client, id hutch.SandboxID, lease time.Duration) error {
	t := time.NewTicker(lease / renewals)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
		_, err := cl.Renew(ctx, id)
		switch {
		case err == nil:
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, hutch.ErrSandboxGone), errors.Is(err, hutch.ErrNotFound), errors.Is(err, hutch.ErrUnauthenticated):
			return err
		default:
			fmt.Fprintf(a.Stderr, "hutch: renew %s: %s\n", id, clean(err.Error()))
		}
	}
}
