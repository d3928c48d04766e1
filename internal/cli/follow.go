package cli

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"hutch.dev/hutch"
	"hutch.dev/hutch/api"
	"hutch.dev/hutch/client"
)

func newFollow(a *app) *cobra.Command {
	var fl execFlags
	c := &cobra.Command{
		Use:   "follow EXEC|SANDBOX",
		Short: "Follow a command's output, or a sandbox's events",
		Long: `Prints the output of a command that was started before, from its beginning or from byte
offsets on, and ends with its exit code. Ctrl-C ends the following, not the command.
For a sandbox it prints what happens to it, until it ends.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if !isExec(args[0]) {
				if err := without(cmd, "is about a command, not about a sandbox's events", "stdout-offset", "stderr-offset", "budget", "quiet"); err != nil {
					return a.usage(cmd, err)
				}
			}
			cl, err := a.client()
			if err != nil {
				return a.fail(err, exitNoResult)
			}
			if !isExec(args[0]) {
				return a.followEvents(cmd.Context(), cl, hutch.SandboxID(args[0]))
			}
			r := newRun(a, cl, fl)
			r.detached = true
			return r.report(r.follow(cmd.Context(), hutch.ExecID(args[0])))
		},
	}
	f := c.Flags()
	f.Int64Var(&fl.stdoutFrom, "stdout-offset", 0, "byte of stdout to start from")
	f.Int64Var(&fl.stderrFrom, "stderr-offset", 0, "byte of stderr to start from")
	f.BoolVar(&fl.budgeted, "budget", false, "print no more than the result keeps: head and tail")
	f.BoolVarP(&fl.quiet, "quiet", "q", false, "no remarks on how it ended")
	return c
}

func (r *run) follow(ctx context.Context, id hutch.ExecID) (api.ExecEnd, error) {
	ctx, leave := context.WithCancel(ctx)
	defer leave()
	stop := r.watchSignals(ctx, leave)
	defer stop()
	return r.cl.Follow(ctx, id, client.StreamOptions{
		Stdout: r.fl.stdoutFrom, Stderr: r.fl.stderrFrom, Budgeted: r.fl.budgeted || r.json, Started: r.begun,
	}, r.write)
}

func (a *app) followEvents(ctx context.Context, cl *client.Client, id hutch.SandboxID) error {
	return cl.Events(ctx, id, 0, func(ev api.Event) error { return a.printEvent(ev, false) })
}

func newCancel(a *app) *cobra.Command {
	var grace durationFlag
	c := &cobra.Command{
		Use:   "cancel EXEC...",
		Short: "End commands with everything they started",
		Args:  cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			cl, err := a.client()
			if err != nil {
				return err
			}
			var g *time.Duration
			if grace.set {
				g = &grace.d
			}
			ended := []api.Exec{}
			var last error
			for _, id := range args {
				x, err := cl.Cancel(cmd.Context(), hutch.ExecID(id), g)
				if err != nil {
					last = a.fail(fmt.Errorf("%s: %w", id, err), exitFailed)
					continue
				}
				ended = append(ended, x)
				if !a.json {
					if _, err := fmt.Fprintf(a.Stdout, "%s %s\n", id, cancelOutcome(x)); err != nil {
						last = a.fail(fmt.Errorf("%s: done, but not printed: %w", id, err), exitFailed)
					}
				}
			}
			if a.json {
				if err := a.printJSON(ended); err != nil {
					return err
				}
			}
			return last
		},
	}
	c.Flags().Var(&grace, "grace", "how long they may clean up (default: their own)")
	return c
}

func cancelOutcome(x api.Exec) string {
	if x.Result == nil {
		return "is being ended"
	}
	if x.Result.EndReason != hutch.ExecCancelled {
		return fmt.Sprintf("had ended before (%s, code %d)", x.Result.EndReason, x.Result.ExitCode)
	}
	return fmt.Sprintf("cancelled (%s ended)", plural(int64(len(x.Result.Killed)), "process"))
}

func (a *app) showExec(x api.Exec) error {
	if a.json {
		return a.printJSON(x)
	}
	rows := [][]cell{
		{{"exec", dim}, text(string(x.ExecID))},
		{{"sandbox", dim}, text(string(x.SandboxID))},
		{{"command", dim}, text(commandLine(x))},
		{{"started", dim}, text(a.when(x.CreatedAt))},
	}
	if x.Result == nil {
		return a.table(append(rows, []cell{{"state", dim}, {"running", green}}))
	}
	r := x.Result
	rows = append(rows,
		[]cell{{"end", dim}, endCell(r.EndReason, r.ExitCode)},
		[]cell{{"exit code", dim}, text(fmt.Sprint(r.ExitCode))},
		[]cell{{"took", dim}, text((time.Duration(r.DurationMS) * time.Millisecond).String())},
		[]cell{{"cpu", dim}, text((time.Duration(r.CPUMS) * time.Millisecond).String())},
		[]cell{{"peak memory", dim}, text(mib(int(r.PeakMemoryBytes >> 20)))},
	)
	if r.Detail != "" {
		rows = append(rows, []cell{{"detail", dim}, text(r.Detail)})
	}
	if r.OutputPath != "" {
		rows = append(rows, []cell{{"whole output", dim}, text(r.OutputPath)})
	}
	if err := a.table(rows); err != nil {
		return err
	}
	for _, s := range []struct{ name, text string }{{"stdout", r.Stdout}, {"stderr", r.Stderr}} {
		if s.text == "" {
			continue
		}
		_, err := fmt.Fprintf(a.Stdout, "\n%s\n%s\n", a.paint(cell{s.name + ":", bold}), strings.TrimRight(s.text, "\n"))
		if err != nil {
			return err
		}
	}
	return nil
}
