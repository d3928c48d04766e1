package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"hutch.dev/hutch"
	"hutch.dev/hutch/api"
	"hutch.dev/hutch/client"
)

func newLogs(a *app) *cobra.Command {
	var (
		o      client.LogOptions
		follow bool
	)
	c := &cobra.Command{
		Use:               "logs SANDBOX",
		Short:             "Print what a sandbox's commands wrote",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.completeSandboxes,
		RunE: func(cmd *cobra.Command, args []string) error {
			cl, err := a.client()
			if err != nil {
				return err
			}
			if err := atLeast(cmd, "tail", 1, o.Tail); err != nil {
				return a.usage(cmd, err)
			}
			id := hutch.SandboxID(args[0])
			if !follow && a.json {
				return a.usage(cmd, errors.New("--json is for --follow: what is kept of a command, as JSON, is shown by `hutch get EXEC --json`"))
			}
			if !follow {
				return cl.Logs(cmd.Context(), id, o, a.Stdout)
			}
			ctx, done := context.WithCancel(cmd.Context())
			defer done()
			return cl.FollowLogs(ctx, id, o, func(l api.LogLine) error {
				if a.json {
					return a.printLine(l)
				}
				_, err := fmt.Fprintln(a.Stdout, l.Line)
				return err
			})
		},
	}
	f := c.Flags()
	f.BoolVarP(&follow, "follow", "f", false, "go on with what comes, until the sandbox ends")
	f.IntVarP(&o.Tail, "tail", "n", 0, "only the last lines (default: all that is kept)")
	f.StringVar(&o.Stream, "stream", "", "only stdout or stderr")
	return c
}

// defaultEvents is how many events are printed unless asked otherwise.
const defaultEvents = 50

func newEvents(a *app) *cobra.Command {
	var (
		n      int
		follow bool
	)
	c := &cobra.Command{
		Use:               "events [SANDBOX]",
		Short:             "Print what happened to a sandbox, or to all",
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: a.completeSandboxes,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := atLeast(cmd, "tail", 0, n); err != nil {
				return a.usage(cmd, err)
			}
			cl, err := a.client()
			if err != nil {
				return err
			}
			var id hutch.SandboxID
			if len(args) == 1 {
				id = hutch.SandboxID(args[0])
			}
			list, err := cl.LastEvents(cmd.Context(), id, max(n, 1)) // one at least says where to go on from
			if err != nil {
				return err
			}
			after := int64(0)
			for _, ev := range list {
				if n > 0 {
					if err := a.printEvent(ev, id == ""); err != nil {
						return err
					}
				}
				after = ev.Seq
			}
			if !follow {
				return nil
			}
			return cl.Events(cmd.Context(), id, after, func(ev api.Event) error { return a.printEvent(ev, id == "") })
		},
	}
	f := c.Flags()
	f.BoolVarP(&follow, "follow", "f", false, "go on with what comes, until the sandbox ends")
	f.IntVarP(&n, "tail", "n", defaultEvents, "how many to begin with")
	return c
}

// printEvent prints an event in one line, whose sandbox it is if that is not plain.
func (a *app) printEvent(ev api.Event, whose bool) error {
	if a.json {
		return a.printLine(ev)
	}
	what := clean(ev.Type)
	if whose {
		what = clean(string(ev.SandboxID)) + "  " + what
	}
	if ev.ExecID != "" {
		what += " " + clean(string(ev.ExecID))
	}
	for _, k := range sortedKeys(ev.Data) {
		what += " " + clean(k+"="+ev.Data[k])
	}
	_, err := fmt.Fprintf(a.Stdout, "%s  %s\n", ev.Time.UTC().Format(time.RFC3339), what)
	return err
}
