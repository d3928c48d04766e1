package keeper

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/runtime"
	"hutch.dev/hutch/internal/x/daemon"
	"hutch.dev/hutch/internal/x/fdpass"
)

// Labels of a sandbox's handles. A process has its number appended.
const (
	labelGuest = "guest"
	labelLink  = "link."
	labelProc  = "proc."
)

// Entry is what is stored of a sandbox. Its files stay the caller's.
type Entry struct {
	Name     hutch.SandboxID
	Epoch    hutch.Epoch
	Lifetime hutch.Lifetime
	Meta     []byte // whatever the node agent wants back; at most MaxMeta bytes
	Handles  runtime.Handles
}

// Kept is what a keeper hands back: what it knows and fresh duplicates, which the caller
// owns.
type Kept struct {
	Info
	UsedAt  time.Time // as it was last told; zero = it was not
	Meta    []byte
	Handles runtime.Handles // all nil once it has exited
}

// Client talks to a keeper. It is safe for concurrent use. Its errors are those of the
// root package; hutch.ErrUnavailable says that the keeper is gone, and with it all it
// held: start another one and put everything again.
type Client struct{ c *fdpass.Client }

// Start connects to the keeper of the data directory dir, and starts one if there is
// none: exe with args, which must end in a call of [Serve]. It returns once the keeper
// answers.
func Start(ctx context.Context, dir, exe string, args ...string) (*Client, error) {
	dir, err := filepath.Abs(dir) // the keeper's working directory is another
	if err != nil {
		return nil, err
	}
	spec := daemon.Spec{Exe: exe, Args: args, Log: filepath.Join(dir, logName)}
	c, err := daemon.Start(ctx, spec, func(ctx context.Context) (*Client, error) { return Dial(ctx, dir) })
	if err != nil {
		return nil, fmt.Errorf("start keeper: %w", err)
	}
	return c, nil
}

// Dial connects to the keeper of dir; that there is none is fs.ErrNotExist.
func Dial(ctx context.Context, dir string) (*Client, error) {
	c, err := fdpass.Dial(ctx, filepath.Join(dir, socketName), service)
	if err != nil {
		return nil, err
	}
	return &Client{c: c}, nil
}

// Hello is what the keeper said of itself. Its version may be older than [Version].
func (c *Client) Hello() fdpass.Hello { return c.c.Hello() }

// Done is closed when the connection is gone: the keeper has ended, or Close was called.
func (c *Client) Done() <-chan struct{} { return c.c.Done() }

// Close ends the connection, and with it what Attach began.
func (c *Client) Close() { c.c.Close() }

// Attach tells the keeper that this process keeps the deadlines, for as long as the
// connection lasts.
func (c *Client) Attach(ctx context.Context) error { return c.call(ctx, opAttach, nil, nil) }

// Put stores duplicates of a sandbox's handles with its lifetime.
func (c *Client) Put(ctx context.Context, id hutch.SandboxID, e hutch.Epoch, h runtime.Handles, l hutch.Lifetime) error {
	return c.PutEntry(ctx, Entry{Name: id, Epoch: e, Lifetime: l, Handles: h})
}

// PutEntry stores an entry, in place of one with the same name and epoch or an older one.
// It is hutch.ErrStale with an older epoch than the stored one, hutch.ErrSandboxGone
// where that one has ended at this epoch, and hutch.ErrNoCapacity if the keeper is full.
// There must be at least one process.
func (c *Client) PutEntry(ctx context.Context, e Entry) error {
	infos, files := fromHandles(e.Handles)
	r := putRequest{
		Name: e.Name, Epoch: e.Epoch, Deadline: e.Lifetime.ExpiresAt.UnixNano(), use: useOf(e.Lifetime),
		Meta: e.Meta, Files: infos,
	}
	if err := r.validate(len(files)); err != nil { // before a message is too large to say why
		return err
	}
	return c.call(ctx, opPut, r, nil, files...)
}

// SetLifetime changes a sandbox's lifetime and raises its epoch. It is hutch.ErrStale
// with an older epoch, hutch.ErrNotFound where nothing is stored, and
// hutch.ErrSandboxGone where the sandbox has exited or was killed.
func (c *Client) SetLifetime(ctx context.Context, id hutch.SandboxID, e hutch.Epoch, l hutch.Lifetime) error {
	return c.call(ctx, opSetDeadline, deadlineRequest{Name: id, Epoch: e, Deadline: l.ExpiresAt.UnixNano(), use: useOf(l)}, nil)
}

// Get returns what is stored of a sandbox; hutch.ErrNotFound if that is nothing.
func (c *Client) Get(ctx context.Context, id hutch.SandboxID) (Kept, error) {
	var r getReply
	fds, err := c.c.Call(ctx, opGet, nameRequest{Name: id}, &r)
	if err != nil {
		return Kept{}, translate(err)
	}
	files := fdpass.Files(fds, "kept")
	if len(files) != len(r.Files) {
		closeFiles(files)
		return Kept{}, fmt.Errorf("get %s from keeper: %d files came of %d", id, len(files), len(r.Files))
	}
	h, err := toHandles(r.Files, files)
	if err != nil {
		closeFiles(files)
		return Kept{}, fmt.Errorf("get %s from keeper: %w", id, err)
	}
	return Kept{Info: r.Info, UsedAt: r.usedAt(time.Now()), Meta: r.Meta, Handles: h}, nil
}

// List describes every entry, ordered by name. What changes meanwhile may be missing.
func (c *Client) List(ctx context.Context) ([]Info, error) {
	var all []Info
	var r listRequest
	for {
		var page listReply
		if err := c.call(ctx, opList, r, &page); err != nil {
			return nil, err
		}
		all = append(all, page.Entries...)
		if !page.More || len(page.Entries) == 0 {
			return all, nil
		}
		r.After = page.Entries[len(page.Entries)-1].Name
	}
}

// Delete drops what is stored of a sandbox, and ends nothing. Dropping nothing is no
// error.
func (c *Client) Delete(ctx context.Context, id hutch.SandboxID) error {
	return c.call(ctx, opDelete, nameRequest{Name: id}, nil)
}

// Stop makes the keeper leave once no sandbox is left; with kill it ends them all now.
// Done tells when it has left.
func (c *Client) Stop(ctx context.Context, kill bool) error {
	return ignoreGone(c.call(ctx, opStop, stopRequest{Kill: kill}, nil))
}

// ignoreGone makes success of a connection lost to a process that was told to end: it
// may do so before its answer is out.
func ignoreGone(err error) error {
	if errors.Is(err, hutch.ErrUnavailable) {
		return nil
	}
	return err
}

func (c *Client) call(ctx context.Context, op string, in, out any, files ...*os.File) error {
	fds, err := c.c.Call(ctx, op, in, out, files...)
	fdpass.CloseAll(fds) // none is expected
	return translate(err)
}

// translate gives errors from the connection a code.
func translate(err error) error {
	if re, ok := errors.AsType[*fdpass.RemoteError](err); ok {
		return &hutch.Error{Code: hutch.Code(re.Code), Message: re.Message}
	}
	if errors.Is(err, fdpass.ErrClosed) {
		return hutch.Wrap(hutch.CodeUnavailable, err, "the keeper is gone")
	}
	return err
}

// fromHandles names a sandbox's files. The link's label carries its kind.
func fromHandles(h runtime.Handles) (infos []FileInfo, files []*os.File) {
	add := func(info FileInfo, f *os.File) {
		if f != nil {
			infos, files = append(infos, info), append(files, f)
		}
	}
	add(FileInfo{Label: labelGuest}, h.Guest)
	add(FileInfo{Label: labelLink + string(h.LinkKind)}, h.Link)
	for i, f := range h.Procs {
		add(FileInfo{Label: fmt.Sprint(labelProc, i), Process: true}, f)
	}
	return infos, files
}

// toHandles is the inverse of fromHandles.
func toHandles(infos []FileInfo, files []*os.File) (runtime.Handles, error) {
	var h runtime.Handles
	for i, info := range infos {
		kind, isLink := strings.CutPrefix(info.Label, labelLink)
		switch {
		case info.Process:
			h.Procs = append(h.Procs, files[i])
		case info.Label == labelGuest:
			h.Guest = files[i]
		case isLink:
			h.Link, h.LinkKind = files[i], runtime.LinkKind(kind)
		default:
			return runtime.Handles{}, fmt.Errorf("file %q is none of a sandbox's handles", info.Label)
		}
	}
	return h, nil
}

func closeFiles(files []*os.File) {
	for _, f := range files {
		_ = f.Close()
	}
}
