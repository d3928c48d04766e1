package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"hutch.dev/hutch"
	"hutch.dev/hutch/api"
	"hutch.dev/hutch/client"
)

// execFlags are what exec takes.
type execFlags struct {
	shell                    string
	cwd, user                string
	env                      []string
	session, tag             string
	stdin, detach, tty       bool
	timeout, noOutput, grace durationFlag
	maxOutput                int
	stdoutFrom, stderrFrom   int64
	budgeted, quiet          bool
}

func newExec(a *app) *cobra.Command {
	var (
		fl   execFlags
		argv []string
	)
	c := &cobra.Command{
		Use:   "exec [flags] SANDBOX [--] PROGRAM [ARG...]\n  hutch exec [flags] SANDBOX -c COMMAND",
		Short: "Run a command in a sandbox",
		Long: `Runs a command in a sandbox, prints its output as it comes, all of it, and ends with its
exit code. Ctrl-C cancels the command with everything it started; a second one does not
wait for it to clean up. A lost connection is taken up again where it broke.

The command's stdin is empty unless -i is given. Flags behind PROGRAM are its own.`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return errors.New("name a sandbox and a command")
			}
			// Our flags may also stand behind SANDBOX, up to the program's name or "--".
			if err := cmd.Flags().Parse(args[1:]); err != nil {
				return err
			}
			argv = cmd.Flags().Args()
			switch {
			case fl.shell == "" && len(argv) == 0:
				return errors.New("name a command to run, or give one to the shell with -c")
			case fl.shell != "" && len(argv) > 0:
				return errors.New("give a program with its arguments or -c, not both")
			case fl.session != "" && fl.shell == "":
				return errors.New("a shell session runs a line of shell: give it with -c")
			case fl.tty && (fl.stdin || a.json):
				return errors.New("--tty is a terminal, whose keys go in and whose output comes as it is: not with --stdin or --json")
			case fl.stdin && fl.detach:
				return errors.New("--stdin needs someone to read it: not possible with --detach")
			case fl.tty || fl.detach:
				return without(cmd, "is about output that is printed here: not with --tty or --detach", "budget", "quiet")
			}
			return nil
		},
		ValidArgsFunction: a.completeSandboxes,
		RunE: func(cmd *cobra.Command, args []string) error {
			req, err := a.execRequest(fl, argv)
			if err != nil {
				return a.usage(cmd, err)
			}
			if cmd.Flags().Changed("max-output") { // 0 too, which the server refuses
				req.MaxOutputBytes = &fl.maxOutput
			}
			cl, err := a.client()
			if err != nil {
				return a.fail(err, exitNoResult)
			}
			sb := hutch.SandboxID(args[0])
			if fl.tty {
				req.Terminal = a.terminalSize()
			}
			switch {
			case fl.detach:
				return a.detach(cmd.Context(), cl, sb, req)
			case fl.tty:
				return a.execTerminal(cmd.Context(), cl, sb, req)
			}
			r := newRun(a, cl, fl)
			return r.report(r.exec(cmd.Context(), sb, req))
		},
	}
	f := c.Flags()
	f.SetInterspersed(false)
	f.StringVarP(&fl.shell, "command", "c", "", "a line for the sandbox's shell, instead of PROGRAM")
	f.StringVarP(&fl.cwd, "cwd", "w", "", "directory to run it in")
	f.StringVarP(&fl.user, "user", "u", "", "user to run it as: a name, or uid[:gid]")
	f.StringArrayVarP(&fl.env, "env", "e", nil, "KEY=VALUE, or KEY to take it from here")
	f.BoolVarP(&fl.stdin, "stdin", "i", false, "give it this program's stdin")
	f.BoolVarP(&fl.tty, "tty", "t", false, "give it a terminal, and connect this one to it")
	f.StringVarP(&fl.session, "session", "s", "", "run the line of -c in the shell session of this name, started if there is none")
	f.StringVar(&fl.tag, "tag", "", "a label to find it by")
	f.BoolVarP(&fl.detach, "detach", "d", false, "start it, print its id and leave")
	f.Var(&fl.timeout, "timeout", "end it after this long (default 10m; with --detach never)")
	f.Var(&fl.noOutput, "no-output-timeout", "end it when it is silent for this long")
	f.Var(&fl.grace, "grace", "how long it may clean up when ended (default 2s)")
	f.IntVar(&fl.maxOutput, "max-output", 0, "bytes of each stream that its result keeps (default 1 MiB)")
	f.BoolVar(&fl.budgeted, "budget", false, "print no more than the result keeps: head and tail")
	f.BoolVarP(&fl.quiet, "quiet", "q", false, "no remarks on how it ended")
	return c
}

func (a *app) execRequest(fl execFlags, argv []string) (api.ExecRequest, error) {
	req := api.ExecRequest{
		Cmd: fl.shell, Argv: argv, Cwd: fl.cwd, User: fl.user, StdinOpen: fl.stdin, Shell: fl.session, Tag: fl.tag,
		TimeoutSeconds: fl.timeout.seconds(), NoOutputTimeoutSeconds: fl.noOutput.seconds(), GraceSeconds: fl.grace.seconds(),
	}
	var err error
	req.Env, err = a.envPairs(fl.env)
	return req, err
}

func (a *app) detach(ctx context.Context, cl *client.Client, sb hutch.SandboxID, req api.ExecRequest) error {
	x, err := cl.StartExec(ctx, sb, req)
	if err != nil {
		return a.fail(err, exitNoResult)
	}
	if err := a.printNew(x, string(x.ExecID)); err != nil {
		return fmt.Errorf("command %s runs, end it with `hutch cancel %s`: %w", x.ExecID, x.ExecID, err)
	}
	return nil
}

// run is one command being watched.
type run struct {
	*app
	cl *client.Client
	fl execFlags

	started  chan struct{} // closed once id is known
	id       hutch.ExecID
	once     sync.Once
	signal   os.Signal // the first that came; read after the watcher has ended
	detached bool      // signals end the watching, not the command
}

func newRun(a *app, cl *client.Client, fl execFlags) *run {
	return &run{app: a, cl: cl, fl: fl, started: make(chan struct{})}
}

func (r *run) begun(id hutch.ExecID) {
	r.once.Do(func() {
		r.id = id
		close(r.started)
	})
}

// exec runs a command and returns how it ended.
func (r *run) exec(ctx context.Context, sb hutch.SandboxID, req api.ExecRequest) (api.ExecEnd, error) {
	// A signal ends the command, and the command's end ends this: ctx must not do it first.
	ctx, leave := context.WithCancel(context.WithoutCancel(ctx))
	defer leave()
	stop := r.watchSignals(ctx, leave)
	defer stop()
	opt := client.StreamOptions{Budgeted: r.fl.budgeted || r.json, Started: func(id hutch.ExecID) {
		r.begun(id)
		if req.StdinOpen {
			go r.feed(ctx)
		}
	}}
	end, err := r.cl.Stream(ctx, sb, req, opt, r.write)
	if errors.Is(err, errReaderLeft) {
		// What reads our output has left, as `| head` does: the command has lost its reader too.
		if _, cerr := r.cl.Cancel(ctx, r.id, nil); cerr != nil {
			return end, cerr
		}
	}
	return end, err
}

// feed gives the command our stdin.
func (r *run) feed(ctx context.Context) {
	if err := r.cl.FeedStdin(ctx, r.id, r.Stdin); err != nil && ctx.Err() == nil {
		fmt.Fprintf(r.Stderr, "hutch: the command's stdin was cut off: %v\n", err)
	}
}

var errReaderLeft = errors.New("the reader of the output has left")

// write prints output as it comes. With --json it comes with the result.
func (r *run) write(o client.Output) error {
	if r.json {
		return nil
	}
	if o.GapTo > 0 {
		if !r.fl.quiet {
			fmt.Fprintf(r.Stderr, "hutch: %s of %s not shown here\n", plural(o.GapTo-o.Offset, "byte"), o.Stream)
		}
		return nil
	}
	w := r.Stdout
	if o.Stream == hutch.Stderr {
		w = r.Stderr
	}
	if _, err := w.Write(o.Data); err != nil {
		if errors.Is(err, syscall.EPIPE) || errors.Is(err, io.ErrClosedPipe) {
			return errReaderLeft
		}
		return fmt.Errorf("print output: %w", err)
	}
	return nil
}

// startWait is how long a signal that comes before the command has an id waits for it.
const startWait = 10 * time.Second

// watchSignals cancels the command on SIGINT and SIGTERM: on the first as the command wants
// it, on the second at once, on the third this program just leaves. The stop that it returns
// must be called.
func (r *run) watchSignals(ctx context.Context, leave context.CancelFunc) (stop func()) {
	sigs := make(chan os.Signal, 3)
	signal.Notify(sigs, syscall.SIGINT, syscall.SIGTERM)
	// With a handler, writing to a reader who left is an error instead of our end.
	pipe := make(chan os.Signal, 1)
	signal.Notify(pipe, syscall.SIGPIPE)
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for n := 0; ; n++ {
			select {
			case <-done:
				return
			case s := <-sigs:
				if n == 0 {
					r.signal = s
				}
				if n == 2 || r.detached {
					leave()
					return
				}
				go r.cancel(ctx, leave, n > 0)
			}
		}
	}()
	return func() {
		signal.Stop(sigs)
		signal.Stop(pipe)
		close(done)
		<-ended
	}
}

// cancel ends the command; its end then comes by the stream.
func (r *run) cancel(ctx context.Context, leave context.CancelFunc, now bool) {
	select {
	case <-r.started:
	case <-ctx.Done():
		return
	case <-time.After(startWait):
		leave()
		return
	}
	var grace *time.Duration
	if now {
		grace = new(time.Duration)
	}
	if _, err := r.cl.Cancel(ctx, r.id, grace); err != nil && ctx.Err() == nil {
		fmt.Fprintf(r.Stderr, "hutch: the command could not be cancelled: %v\n", err)
		leave()
	}
}

// report prints what there is to say of the end and turns it into the exit code.
func (r *run) report(end api.ExecEnd, err error) error {
	switch {
	case errors.Is(err, errReaderLeft):
		return &ExitError{Code: 128 + int(syscall.SIGPIPE)}
	case r.signal != nil && errors.Is(err, context.Canceled):
		return &ExitError{Code: exitOf(r.signal)}
	case err != nil:
		return r.fail(err, exitNoResult)
	}
	if r.json {
		if err := r.printResult(end); err != nil {
			return r.fail(err, exitNoResult)
		}
	} else if !r.fl.quiet {
		remark(r.Stderr, end)
	}
	code := end.ExitCode
	if r.signal != nil && !r.detached && end.EndReason == hutch.ExecCancelled {
		code = exitOf(r.signal)
	}
	if code == 0 {
		return nil
	}
	return &ExitError{Code: code}
}

func exitOf(s os.Signal) int {
	if n, ok := s.(syscall.Signal); ok {
		return 128 + int(n)
	}
	return exitInterrupted
}

func (r *run) printResult(end api.ExecEnd) error {
	x, err := r.cl.ExecRecord(context.Background(), end.ExecID)
	if err != nil {
		return err
	}
	if x.Result == nil {
		return r.printJSON(api.ExecResult{ExecEnd: end})
	}
	return r.printJSON(x.Result)
}

// remark says how a command ended, unless it ended by itself and left nothing behind.
func remark(w io.Writer, end api.ExecEnd) {
	var parts []string
	if end.EndReason != hutch.ExecExit {
		s := "the command was ended: " + strings.ReplaceAll(string(end.EndReason), "_", " ")
		if end.EndReason == hutch.ExecSignal && end.Signal != "" {
			s += " " + end.Signal
		}
		if end.Detail != "" {
			s += " (" + end.Detail + ")"
		}
		parts = append(parts, s)
	}
	if n := len(end.LeftRunning); n > 0 {
		names := make([]string, 0, n)
		for _, p := range end.LeftRunning {
			names = append(names, fmt.Sprintf("%d %s", p.PID, p.Command))
		}
		parts = append(parts, "left running: "+strings.Join(names, ", "))
	}
	if len(end.LimitsHit) > 0 {
		parts = append(parts, "limits met on the way: "+strings.Join(end.LimitsHit, ", "))
	}
	if end.ShellReplaced != "" {
		parts = append(parts, "the shell session began anew: the one before was "+end.ShellReplaced)
	}
	for _, s := range parts {
		fmt.Fprintf(w, "hutch: %s\n", clean(s)) // it may be a guest's
	}
}
