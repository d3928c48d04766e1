package client

import (
	"context"
	"iter"
	"net/http"
	"net/url"
	"strconv"

	"hutch.dev/hutch"
	"hutch.dev/hutch/api"
)

// Network says what a sandbox may reach.
func (c *Client) Network(ctx context.Context, id hutch.SandboxID) (out api.NetworkState, err error) {
	err = c.do(ctx, get(pathOf("sandboxes", string(id), "network"), nil), &out)
	return out, err
}

// SetNetwork replaces what a sandbox may reach, and returns once it holds. What the project may
// not ask for is hutch.ErrForbidden.
func (c *Client) SetNetwork(ctx context.Context, id hutch.SandboxID, req api.Network) (out api.NetworkState, err error) {
	err = c.do(ctx, change(http.MethodPut, pathOf("sandboxes", string(id), "network"), req), &out)
	return out, err
}

// LockNetwork moves a sandbox from phase setup to phase agent; with stop it ends what was left
// running.
func (c *Client) LockNetwork(ctx context.Context, id hutch.SandboxID, stop bool) (out api.NetworkState, err error) {
	err = c.do(ctx, change(http.MethodPost, pathOf("sandboxes", string(id), "network", "lock"), api.LockNetwork{Stop: stop}), &out)
	return out, err
}

// NetworkLog walks what a sandbox was allowed and denied from an entry's number on, oldest first, to
// the end that there is now. It ends with the first error.
func (c *Client) NetworkLog(ctx context.Context, id hutch.SandboxID, after int64, denied bool) iter.Seq2[api.NetworkEntry, error] {
	return func(yield func(api.NetworkEntry, error) bool) {
		for at := after; ; {
			q := url.Values{"after": {strconv.FormatInt(at, 10)}}
			if denied {
				q.Set("denied", "true")
			}
			var page api.NetworkLog
			if err := c.do(ctx, get(pathOf("sandboxes", string(id), "network", "log"), q), &page); err != nil {
				yield(api.NetworkEntry{}, err)
				return
			}
			for _, e := range page.Entries {
				if !yield(e, nil) {
					return
				}
			}
			if len(page.Entries) == 0 || page.Next <= at {
				return
			}
			at = page.Next
		}
	}
}

// SuggestNetwork says what would allow what a sandbox was denied.
func (c *Client) SuggestNetwork(ctx context.Context, id hutch.SandboxID) (out api.NetworkSuggestion, err error) {
	err = c.do(ctx, get(pathOf("sandboxes", string(id), "network", "suggestion"), nil), &out)
	return out, err
}
