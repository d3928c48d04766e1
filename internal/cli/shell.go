package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"hutch.dev/hutch"
	"hutch.dev/hutch/api"
	"hutch.dev/hutch/client"
)

// replayBytes is how much of what a terminal wrote is shown to who comes back to it: some
// screens full.
const replayBytes = 16 << 10

func newShell(a *app) *cobra.Command {
	var (
		o      client.TerminalOptions
		attach string
		keep   durationFlag
	)
	c := &cobra.Command{
		Use:   "shell SANDBOX\n  hutch shell --attach EXEC",
		Short: "Open a terminal in a sandbox",
		Long: `Opens a login shell in a terminal of the sandbox and connects this one to it: keys go in as
they are typed, Ctrl-C too, and the size follows this terminal's. It ends with the shell's exit
code. A lost connection is taken up again.

Enter, ~ and . leave it. It is ended when nobody has come back to it for the time of --keep;
until then --attach, with the id that "hutch ls SANDBOX" shows, connects to it again, beside
whoever else is.`,
		Args: func(_ *cobra.Command, args []string) error {
			if (len(args) == 1) == (attach != "") {
				return errors.New("name a sandbox, or a terminal's command with --attach")
			}
			return nil
		},
		ValidArgsFunction: a.completeSandboxes,
		RunE: func(cmd *cobra.Command, args []string) error {
			cl, err := a.client()
			if err != nil {
				return a.fail(err, exitNoResult)
			}
			if keep.set {
				o.Keep = &keep.d
			}
			return a.session(cmd.Context(), cl, func(ctx context.Context, size api.Terminal) (*client.Terminal, error) {
				if attach != "" {
					return cl.AttachTerminal(ctx, hutch.ExecID(attach), replayBytes, size)
				}
				o.Size = size
				return cl.OpenTerminal(ctx, hutch.SandboxID(args[0]), o)
			})
		},
	}
	f := c.Flags()
	f.StringVar(&attach, "attach", "", "connect to a terminal that is there")
	f.StringVarP(&o.Cmd, "command", "c", "", "run this in it instead of a login shell")
	f.StringVarP(&o.Cwd, "cwd", "w", "", "directory to start in")
	f.StringVarP(&o.User, "user", "u", "", "user to be: a name, or uid[:gid]")
	f.Var(&keep, "keep", "how long it outlives its last visitor (default 1m)")
	return c
}

// terminalSize is that of this terminal, or the usual one.
func (a *app) terminalSize() *api.Terminal {
	if a.TTY != nil {
		if size, ok := a.TTY.Size(); ok {
			return &size
		}
	}
	return &api.Terminal{Rows: hutch.DefaultRows, Cols: hutch.DefaultCols}
}

// execTerminal starts a command in a terminal and connects this one to it, from its first
// byte of output on. Leaving it ends the visit, not the command.
func (a *app) execTerminal(ctx context.Context, cl *client.Client, sb hutch.SandboxID, req api.ExecRequest) error {
	x, err := cl.StartExec(ctx, sb, req)
	if err != nil {
		return a.fail(err, exitNoResult)
	}
	return a.session(ctx, cl, func(ctx context.Context, size api.Terminal) (*client.Terminal, error) {
		return cl.AttachTerminal(ctx, x.ExecID, hutch.DefaultOutputBytes, size)
	})
}

// session connects this terminal to one in a sandbox until that one ends or is left.
func (a *app) session(ctx context.Context, cl *client.Client, open func(context.Context, api.Terminal) (*client.Terminal, error)) error {
	var size api.Terminal
	if a.TTY != nil {
		size, _ = a.TTY.Size()
	}
	t, err := open(ctx, size)
	if err != nil {
		return a.fail(err, exitNoResult)
	}
	restore := func() {}
	if a.TTY != nil {
		if restore, err = a.TTY.Raw(); err != nil {
			return a.fail(err, exitNoResult)
		}
	}
	v := &visit{app: a, cl: cl, id: t.ID}
	end, err := v.run(ctx, t)
	restore()
	switch {
	case errors.Is(err, errLeft):
		fmt.Fprintf(a.Stderr, "\nhutch: left; come back with `hutch shell --attach %s`\n", v.id)
		return nil
	case err != nil:
		return a.fail(err, exitNoResult)
	case end != 0:
		return &ExitError{Code: end}
	}
	return nil
}

// visit is this terminal at one in a sandbox, over however many connections it takes.
type visit struct {
	*app
	cl *client.Client
	id hutch.ExecID
}

var errLeft = errors.New("left")

// run passes keys and output on until the terminal's command ends, with its exit code.
func (v *visit) run(ctx context.Context, t *client.Terminal) (int, error) {
	ctx, leave := context.WithCancelCause(ctx)
	defer leave(nil)
	keys := make(chan []byte)
	go v.readKeys(ctx, keys, leave)
	for tries := 0; ; {
		began := v.Now()
		end, err := v.converse(ctx, t, keys)
		var ended *client.TerminalEnd
		switch {
		case errors.As(err, &ended):
			return ended.ExitCode, nil
		case context.Cause(ctx) != nil:
			return 0, context.Cause(ctx)
		case err == nil:
			return end, nil
		case !client.Lost(err):
			return 0, err
		}
		if v.Now().Sub(began) > time.Minute {
			tries = 0
		}
		if t, tries, err = v.comeBack(ctx, tries, err); err != nil {
			return 0, err
		}
	}
}

// converse uses one connection until it ends.
func (v *visit) converse(ctx context.Context, t *client.Terminal, keys <-chan []byte) (int, error) {
	ctx, stop := context.WithCancel(ctx)
	defer func() { _ = t.Close() }()
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		v.send(ctx, t, keys)
	}()
	defer func() { stop(); <-sent }()
	for {
		out, err := t.Read(ctx)
		if err != nil {
			return 0, err
		}
		if _, err := v.Stdout.Write(out); err != nil {
			return 0, fmt.Errorf("print output: %w", err)
		}
	}
}

// send passes on keys and changes of size.
func (v *visit) send(ctx context.Context, t *client.Terminal, keys <-chan []byte) {
	resized, stop := (<-chan os.Signal)(nil), func() {}
	if v.TTY != nil {
		resized, stop = v.TTY.Resized()
	}
	defer stop()
	for {
		var err error
		select {
		case <-ctx.Done():
			return
		case k := <-keys:
			err = t.Write(ctx, k)
		case <-resized:
			if size, ok := v.TTY.Size(); ok {
				err = t.Resize(ctx, size)
			}
		}
		if err != nil {
			return // the reading side learns why
		}
	}
}

// readKeys reads what is typed. The end of a stdin that is no terminal is the terminal's
// end of input, Ctrl-D. It cannot be stopped while it reads; the program's end does that.
func (v *visit) readKeys(ctx context.Context, keys chan<- []byte, leave context.CancelCauseFunc) {
	buf, escape := make([]byte, 32<<10), escapes{start: true}
	for {
		n, err := v.Stdin.Read(buf)
		k, left := bytes.Clone(buf[:n]), false
		if v.TTY != nil {
			k, left = escape.filter(k)
		}
		if err != nil && v.TTY == nil && errors.Is(err, io.EOF) {
			k = append(k, 0x04)
		}
		if len(k) > 0 {
			select {
			case keys <- k:
			case <-ctx.Done():
				return
			}
		}
		if left {
			leave(errLeft)
		}
		if err != nil || left {
			return
		}
	}
}

// comeBack connects again, beside the output that was missed.
func (v *visit) comeBack(ctx context.Context, tries int, lost error) (*client.Terminal, int, error) {
	var size api.Terminal
	if v.TTY != nil {
		size, _ = v.TTY.Size()
	}
	for ; tries < retries; tries++ {
		fmt.Fprintf(v.Stderr, "\r\nhutch: the connection is lost; coming back\r\n")
		select {
		case <-ctx.Done():
			return nil, tries, context.Cause(ctx)
		case <-time.After(time.Second << min(tries, 3)):
		}
		t, err := v.cl.AttachTerminal(ctx, v.id, replayBytes, size)
		if err == nil {
			return t, tries + 1, nil
		}
		lost = err
		if !client.Lost(err) && !errors.Is(err, hutch.ErrUnavailable) {
			break
		}
	}
	return nil, tries, lost
}

// escapes finds the keys that leave a terminal: at the begin of a line, ~ and a dot. Two
// tildes are one.
type escapes struct {
	start bool // of a line
	tilde bool // a tilde at the begin of a line waits for what follows
}

// filter returns what is to be sent on, and whether the user leaves.
func (e *escapes) filter(in []byte) (out []byte, left bool) {
	for _, c := range in {
		switch {
		case e.tilde:
			e.tilde = false
			if c == '.' {
				return out, true
			}
			if c != '~' {
				out = append(out, '~')
			}
		case e.start && c == '~':
			e.tilde, e.start = true, false
			continue
		}
		out = append(out, c)
		e.start = c == '\r' || c == '\n'
	}
	return out, false
}
