package egress

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/runtime"
	"hutch.dev/hutch/internal/x/daemon"
	"hutch.dev/hutch/internal/x/fdpass"
)

// Client talks to a gateway. It is safe for concurrent use. Its errors are those of the
// root package; hutch.ErrUnavailable says that the gateway is gone: start another one and
// attach every link again.
type Client struct{ c *fdpass.Client }

// Start connects to the gateway of the data directory dir, and starts one if there is
// none: exe with args, which must end in a call of [Serve]. A gateway of another build is
// stopped and replaced, since that costs its sandboxes nothing; an empty build takes any.
// Start returns once the gateway answers; its links are for the caller to attach.
func Start(ctx context.Context, dir, build, exe string, args ...string) (*Client, error) {
	dir, err := filepath.Abs(dir) // the gateway's working directory is another
	if err != nil {
		return nil, err
	}
	spec := daemon.Spec{Exe: exe, Args: args, Log: filepath.Join(dir, logName)}
	start := func() (*Client, error) {
		return daemon.Start(ctx, spec, func(ctx context.Context) (*Client, error) { return Dial(ctx, dir) })
	}
	c, err := start()
	if err == nil && build != "" && c.Hello().Build != build {
		if err = c.stopAndWait(ctx); err == nil {
			c, err = start()
		}
	}
	if err != nil {
		return nil, fmt.Errorf("start egress gateway: %w", err)
	}
	return c, nil
}

// stopAndWait stops the gateway and returns once it listens no more.
func (c *Client) stopAndWait(ctx context.Context) error {
	defer c.Close()
	if err := c.Stop(ctx); err != nil {
		return err
	}
	select {
	case <-c.Done():
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for the old one to end: %w", context.Cause(ctx))
	}
}

// Dial connects to the gateway of dir; that there is none is fs.ErrNotExist.
func Dial(ctx context.Context, dir string) (*Client, error) {
	c, err := fdpass.Dial(ctx, filepath.Join(dir, socketName), service)
	if err != nil {
		return nil, err
	}
	return &Client{c: c}, nil
}

// Hello is what the gateway said of itself.
func (c *Client) Hello() fdpass.Hello { return c.c.Hello() }

// Done is closed when the connection is gone: the gateway has ended, or Close was called.
func (c *Client) Done() <-chan struct{} { return c.c.Done() }

// Close ends the connection; the gateway serves on.
func (c *Client) Close() { c.c.Close() }

// Attach makes the gateway serve a sandbox's link, in place of one with the same or an
// older epoch; an older epoch than that is hutch.ErrStale, a kind of link that is not
// supported hutch.ErrUnsupported, too many links hutch.ErrNoCapacity. The gateway works
// on a duplicate: f stays the caller's.
func (c *Client) Attach(ctx context.Context, id hutch.SandboxID, e hutch.Epoch, kind runtime.LinkKind, f *os.File) error {
	return c.call(ctx, opAttach, attachRequest{Name: id, Epoch: e, Kind: kind}, nil, f)
}

// Detach ends that, and drops what was counted. Detaching what is not attached is no
// error.
func (c *Client) Detach(ctx context.Context, id hutch.SandboxID) error {
	return c.call(ctx, opDetach, nameRequest{Name: id}, nil)
}

// Stats returns what was counted of a sandbox, also after its link has ended;
// hutch.ErrNotFound if it was not attached.
func (c *Client) Stats(ctx context.Context, id hutch.SandboxID) (Stats, error) {
	var s Stats
	err := c.call(ctx, opStats, nameRequest{Name: id}, &s)
	return s, err
}

// List returns every sandbox, ordered by name, without recent refusals. What changes
// meanwhile may be missing.
func (c *Client) List(ctx context.Context) ([]Stats, error) {
	var all []Stats
	var r listRequest
	for {
		var page listReply
		if err := c.call(ctx, opList, r, &page); err != nil {
			return nil, err
		}
		all = append(all, page.Sandboxes...)
		if !page.More || len(page.Sandboxes) == 0 {
			return all, nil
		}
		r.After = page.Sandboxes[len(page.Sandboxes)-1].Name
	}
}

// Stop ends the gateway. Done tells when it has.
func (c *Client) Stop(ctx context.Context) error {
	err := c.call(ctx, opStop, nil, nil)
	if errors.Is(err, hutch.ErrUnavailable) {
		return nil // it may be gone before its answer is out
	}
	return err
}

func (c *Client) call(ctx context.Context, op string, in, out any, files ...*os.File) error {
	fds, err := c.c.Call(ctx, op, in, out, files...)
	fdpass.CloseAll(fds) // none is expected
	if re, ok := errors.AsType[*fdpass.RemoteError](err); ok {
		return &hutch.Error{Code: hutch.Code(re.Code), Message: re.Message}
	}
	if errors.Is(err, fdpass.ErrClosed) {
		return hutch.Wrap(hutch.CodeUnavailable, err, "the egress gateway is gone")
	}
	return err
}
