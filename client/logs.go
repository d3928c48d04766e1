package client

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strconv"

	"hutch.dev/hutch"
	"hutch.dev/hutch/api"
	"hutch.dev/hutch/internal/x/sse"
)

// LogOptions chooses lines of a sandbox's log; zero fields do not.
type LogOptions struct {
	Stream string // hutch.Stdout or hutch.Stderr; empty = both
	Tail   int    // only the last lines
}

func (o LogOptions) query() url.Values {
	q := url.Values{}
	if o.Stream != "" {
		q.Set("stream", o.Stream)
	}
	if o.Tail > 0 {
		q.Set("tail", strconv.Itoa(o.Tail))
	}
	return q
}

// Logs copies what a sandbox's commands wrote, line by line, into w.
func (c *Client) Logs(ctx context.Context, id hutch.SandboxID, o LogOptions, w io.Writer) error {
	res, err := c.send(ctx, get(pathOf("sandboxes", string(id), "logs"), o.query()))
	if err != nil {
		return err
	}
	defer func() { _ = res.Body.Close() }()
	_, err = copyAnswer(w, res.Body)
	return err
}

// FollowLogs hands sink the lines there are, then those to come, until the sandbox ends,
// sink fails or ctx ends. It is not taken up again when the connection breaks: lines have no
// place to go on from.
func (c *Client) FollowLogs(ctx context.Context, id hutch.SandboxID, o LogOptions, sink func(api.LogLine) error) error {
	q := o.query()
	q.Set("follow", "1")
	res, err := c.send(ctx, get(pathOf("sandboxes", string(id), "logs"), q))
	if err != nil {
		return err
	}
	defer func() { _ = res.Body.Close() }()
	in := sse.NewReader(res.Body, maxEvent)
	for {
		ev, err := in.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return &lostError{err}
		}
		if ev.Name == api.EventError {
			var e api.Error
			if err := decodeEvent(ev, &e); err != nil {
				return err
			}
			return errorOf(e)
		}
		var line api.LogLine
		if err := decodeEvent(ev, &line); err != nil {
			return err
		}
		if err := sink(line); err != nil {
			return err
		}
	}
}

// LastEvents returns the last n events of a sandbox, or with an empty id of the project.
func (c *Client) LastEvents(ctx context.Context, id hutch.SandboxID, n int) ([]api.Event, error) {
	if n < 1 {
		return nil, nil // to the server 0 is no end of them
	}
	path := pathOf("events")
	if id != "" {
		path = pathOf("sandboxes", string(id), "events")
	}
	var out api.Events
	err := c.do(ctx, get(path, url.Values{"tail": {strconv.Itoa(n)}}), &out)
	return out.Events, err
}

// Ports lists the ports of a sandbox that something listens on, and those with labels.
func (c *Client) Ports(ctx context.Context, id hutch.SandboxID) ([]api.Port, error) {
	var out []api.Port
	err := c.do(ctx, get(pathOf("sandboxes", string(id), "ports"), nil), &out)
	return out, err
}

// SetPort gives a port a label. Ports need none to be reached.
func (c *Client) SetPort(ctx context.Context, id hutch.SandboxID, req api.SetPort) (api.Port, error) {
	var out api.Port
	err := c.do(ctx, change(http.MethodPost, pathOf("sandboxes", string(id), "ports"), req), &out)
	return out, err
}

// UnsetPort takes a port's label away.
func (c *Client) UnsetPort(ctx context.Context, id hutch.SandboxID, port int) error {
	return c.do(ctx, change(http.MethodDelete, pathOf("sandboxes", string(id), "ports", strconv.Itoa(port)), nil), nil)
}

// Usage returns what a sandbox uses now.
func (c *Client) Usage(ctx context.Context, id hutch.SandboxID) (api.Usage, error) {
	var out api.Usage
	err := c.do(ctx, get(pathOf("sandboxes", string(id), "usage"), nil), &out)
	return out, err
}

// Shells lists the shell sessions of a sandbox.
func (c *Client) Shells(ctx context.Context, id hutch.SandboxID) ([]api.Shell, error) {
	var out []api.Shell
	err := c.do(ctx, get(pathOf("sandboxes", string(id), "shells"), nil), &out)
	return out, err
}

// CloseShell ends a shell session with everything that runs in it.
func (c *Client) CloseShell(ctx context.Context, id hutch.SandboxID, name string) error {
	return c.do(ctx, change(http.MethodDelete, pathOf("sandboxes", string(id), "shells", name), nil), nil)
}
