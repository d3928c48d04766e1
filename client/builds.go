package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"

	"hutch.dev/hutch"
	"hutch.dev/hutch/api"
	"hutch.dev/hutch/internal/x/sse"
)

// BuildTemplate queues a build of a template from an image and returns at once.
func (c *Client) BuildTemplate(ctx context.Context, req api.BuildTemplate) (api.Build, error) {
	var out api.Build
	err := c.do(ctx, change(http.MethodPost, pathOf("templates", "build"), req), &out)
	return out, err
}

// Build returns how far a build is.
func (c *Client) Build(ctx context.Context, id string) (api.Build, error) {
	var out api.Build
	err := c.do(ctx, get(pathOf("templates", "builds", id), nil), &out)
	return out, err
}

// Builds lists the project's builds, newest first.
func (c *Client) Builds(ctx context.Context) ([]api.Build, error) {
	var out []api.Build
	err := c.do(ctx, get(pathOf("templates", "builds"), nil), &out)
	return out, err
}

// FollowBuild hands the lines of a build's log to sink, those to come too, and returns the
// build once it has ended. A broken connection is taken up again where it broke.
func (c *Client) FollowBuild(ctx context.Context, id string, sink func(line string) error) (api.Build, error) {
	line := 0
	for n := 0; ; n++ {
		moved := false
		res, err := c.send(ctx, get(pathOf("templates", "builds", id, "logs"), url.Values{"follow": {"1"}, "from": {strconv.Itoa(line)}}))
		if err == nil {
			began := c.now()
			err = readBuildLog(res.Body, func(s string) error {
				line, moved = line+1, true
				return sink(s)
			})
			_ = res.Body.Close()
			moved = moved || c.now().Sub(began) > lastsLong
		}
		if err == nil {
			return c.Build(ctx, id)
		}
		if moved {
			n = 0
		}
		if !c.again(ctx, n, err) {
			return api.Build{}, err
		}
	}
}

// readBuildLog reads lines up to the event that ends the log.
func readBuildLog(r io.Reader, sink func(string) error) error {
	in := sse.NewReader(r, maxEvent)
	for {
		ev, err := in.Next()
		switch {
		case errors.Is(err, io.EOF):
			return &lostError{io.ErrUnexpectedEOF}
		case err != nil:
			return &lostError{fmt.Errorf("the build's log broke: %w", err)}
		}
		switch ev.Name {
		case api.EventDone:
			return nil
		case api.EventError:
			var e api.Error
			if err := decodeEvent(ev, &e); err != nil {
				return err
			}
			return errorOf(e)
		default:
			if err := sink(ev.Data); err != nil {
				return err
			}
		}
	}
}

// DeleteTemplate makes a template unknown. Sandboxes made from it live on.
func (c *Client) DeleteTemplate(ctx context.Context, name string) error {
	return c.do(ctx, change(http.MethodDelete, pathOf("templates", name), nil), nil)
}

// Audit lists the project's calls that changed something, or tried to, newest first. A zero
// query asks for the last day's.
func (c *Client) Audit(ctx context.Context, q hutch.AuditQuery) ([]api.AuditEntry, error) {
	v := url.Values{}
	if !q.Since.IsZero() {
		v.Set("since", strconv.FormatInt(q.Since.Unix(), 10))
	}
	if q.Limit > 0 {
		v.Set("limit", strconv.Itoa(q.Limit))
	}
	var out api.Audit
	err := c.do(ctx, get(pathOf("audit"), v), &out)
	return out.Entries, err
}

// BootStats says how long the project's creates took.
func (c *Client) BootStats(ctx context.Context) ([]api.BootStat, error) {
	var out api.BootStats
	err := c.do(ctx, get(pathOf("stats", "boot"), nil), &out)
	return out.Stats, err
}
