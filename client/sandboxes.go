package client

import (
	"context"
	"iter"
	"maps"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/api"
)

// CreateSandbox makes a sandbox and returns once it runs.
func (c *Client) CreateSandbox(ctx context.Context, req api.CreateSandbox) (api.Sandbox, error) {
	var out api.Sandbox
	err := c.do(ctx, change(http.MethodPost, pathOf("sandboxes"), req), &out)
	return out, err
}

// Sandbox returns a sandbox; hutch.ErrSandboxGone if it has ended.
func (c *Client) Sandbox(ctx context.Context, id hutch.SandboxID) (api.Sandbox, error) {
	var out api.Sandbox
	err := c.do(ctx, get(pathOf("sandboxes", string(id)), nil), &out)
	return out, err
}

// SandboxFilter chooses sandboxes; zero fields do not filter.
type SandboxFilter struct {
	Template string
	States   []hutch.State // none = those that live
	All      bool          // in every state, dead ones too
	Metadata map[string]string
	PageSize int // 0 = the server's
}

func (f SandboxFilter) query() url.Values {
	q := url.Values{}
	if f.Template != "" {
		q.Set("template", f.Template)
	}
	if len(f.States) > 0 {
		names := make([]string, 0, len(f.States))
		for _, s := range f.States {
			names = append(names, string(s))
		}
		q.Set("state", strings.Join(names, ","))
	}
	if f.All {
		q.Set("state", "all")
	}
	for k, v := range f.Metadata {
		q.Set("metadata."+k, v)
	}
	if f.PageSize > 0 {
		q.Set("limit", strconv.Itoa(f.PageSize))
	}
	return q
}

// Sandboxes lists sandboxes, newest first, page by page as they are taken. It ends with
// the first error.
func (c *Client) Sandboxes(ctx context.Context, f SandboxFilter) iter.Seq2[api.Sandbox, error] {
	return pages[api.Sandbox](ctx, c, pathOf("sandboxes"), f.query())
}

// pages walks a listing.
func pages[T any](ctx context.Context, c *Client, path string, query url.Values) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		query := maps.Clone(query) // whoever ranges again begins anew
		for {
			var page []T
			header, err := c.retry(ctx, get(path, query), func(res *http.Response) error {
				page = nil
				return decodeAnswer(res, &page)
			})
			if err != nil {
				var none T
				yield(none, err)
				return
			}
			for _, v := range page {
				if !yield(v, nil) {
					return
				}
			}
			cursor := header.Get(api.HeaderNextCursor)
			if cursor == "" {
				return
			}
			query.Set("cursor", cursor)
		}
	}
}

// Lifecycle says when a sandbox ends.
func (c *Client) Lifecycle(ctx context.Context, id hutch.SandboxID) (api.Lifecycle, error) {
	var out api.Lifecycle
	err := c.do(ctx, get(pathOf("sandboxes", string(id), "lifecycle"), nil), &out)
	return out, err
}

// Extend moves a sandbox's end to ttl from now; 0 = the most the operator allows.
func (c *Client) Extend(ctx context.Context, id hutch.SandboxID, ttl time.Duration) (api.Lifecycle, error) {
	s := ttl.Seconds()
	var out api.Lifecycle
	err := c.do(ctx, change(http.MethodPatch, pathOf("sandboxes", string(id), "lifecycle"), api.UpdateLifecycle{TTLSeconds: &s}), &out)
	return out, err
}

// Renew says that the owner of a sandbox that has a lease lives, which holds for the lease
// from now. It is hutch.ErrSandboxGone once the lease has run out.
func (c *Client) Renew(ctx context.Context, id hutch.SandboxID) (out api.Lifecycle, err error) {
	// Without a key: each attempt renews anew, and there is nothing to keep of it.
	err = c.do(ctx, call{method: http.MethodPost, path: pathOf("sandboxes", string(id), "renew")}, &out)
	return out, err
}

// Leaks compares the server's records with what is on its host. It needs a key of scope admin.
func (c *Client) Leaks(ctx context.Context) (out api.Leaks, err error) {
	err = c.do(ctx, get(pathOf("leaks"), nil), &out)
	return out, err
}

// SweepLeaks is Leaks, and removes what is left of sandboxes that are not on record.
func (c *Client) SweepLeaks(ctx context.Context) (out api.Leaks, err error) {
	err = c.do(ctx, change(http.MethodPost, pathOf("leaks", "sweep"), nil), &out)
	return out, err
}

// Update changes metadata and access of a sandbox; what is left out of req stays.
func (c *Client) Update(ctx context.Context, id hutch.SandboxID, req api.UpdateSandbox) (api.Sandbox, error) {
	var out api.Sandbox
	err := c.do(ctx, change(http.MethodPatch, pathOf("sandboxes", string(id)), req), &out)
	return out, err
}

// Pause freezes a sandbox in memory.
func (c *Client) Pause(ctx context.Context, id hutch.SandboxID) error {
	return c.do(ctx, change(http.MethodPost, pathOf("sandboxes", string(id), "pause"), nil), nil)
}

// Resume lets a paused sandbox go on.
func (c *Client) Resume(ctx context.Context, id hutch.SandboxID) error {
	return c.do(ctx, change(http.MethodPost, pathOf("sandboxes", string(id), "resume"), nil), nil)
}

// Kill ends a sandbox for good and returns once nothing of it runs.
func (c *Client) Kill(ctx context.Context, id hutch.SandboxID) error {
	return c.do(ctx, change(http.MethodDelete, pathOf("sandboxes", string(id)), nil), nil)
}

// Templates lists what sandboxes can be made from.
func (c *Client) Templates(ctx context.Context) ([]api.Template, error) {
	var out []api.Template
	err := c.do(ctx, get(pathOf("templates"), nil), &out)
	return out, err
}

// Template returns one template.
func (c *Client) Template(ctx context.Context, name string) (api.Template, error) {
	var out api.Template
	err := c.do(ctx, get(pathOf("templates", name), nil), &out)
	return out, err
}

// CreateKey makes an API key. The key itself is in the answer this once; it is missing
// if the first answer was lost and a repetition had to be asked.
func (c *Client) CreateKey(ctx context.Context, req api.CreateKey) (api.Key, error) {
	var out api.Key
	err := c.do(ctx, change(http.MethodPost, pathOf("keys"), req), &out)
	return out, err
}

// Keys lists the project's API keys, revoked ones too.
func (c *Client) Keys(ctx context.Context) ([]api.Key, error) {
	var out []api.Key
	err := c.do(ctx, get(pathOf("keys"), nil), &out)
	return out, err
}

// RevokeKey makes the key with that prefix useless.
func (c *Client) RevokeKey(ctx context.Context, prefix string) error {
	return c.do(ctx, change(http.MethodDelete, pathOf("keys", prefix), nil), nil)
}

// Me says whom calls are made as.
func (c *Client) Me(ctx context.Context) (api.Me, error) {
	var out api.Me
	err := c.do(ctx, get(pathOf("me"), nil), &out)
	return out, err
}

// ServerVersion says what the server is.
func (c *Client) ServerVersion(ctx context.Context) (api.BuildInfo, error) {
	var out api.BuildInfo
	err := c.do(ctx, get(pathOf("version"), nil), &out)
	return out, err
}
