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

func newLs(a *app) *cobra.Command {
	var (
		filter   client.SandboxFilter
		states   []string
		metadata []string
		limit    int
		running  bool
		quiet    bool
	)
	c := &cobra.Command{
		Use:               "ls [SANDBOX]",
		Short:             "List sandboxes, or the commands of one",
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: a.completeSandboxes,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkLs(cmd, len(args) == 1, limit); err != nil {
				return a.usage(cmd, err)
			}
			cl, err := a.client()
			if err != nil {
				return err
			}
			if len(args) == 1 {
				return a.listExecs(cmd.Context(), cl, hutch.SandboxID(args[0]), listing{running, quiet, limit})
			}
			if filter.Metadata, err = pairs("metadata", metadata); err != nil {
				return a.usage(cmd, err)
			}
			for _, s := range states {
				filter.States = append(filter.States, hutch.State(s))
			}
			return a.listSandboxes(cmd.Context(), cl, filter, listing{false, quiet, limit})
		},
	}
	f := c.Flags()
	f.BoolVarP(&quiet, "quiet", "q", false, "print ids only")
	f.BoolVarP(&filter.All, "all", "a", false, "those that have ended too")
	f.StringSliceVar(&states, "state", nil, "only in these states: new, running, paused, dead")
	f.StringVarP(&filter.Template, "template", "t", "", "only those made from it")
	f.StringArrayVarP(&metadata, "metadata", "m", nil, "only those with KEY=VALUE")
	f.IntVarP(&limit, "limit", "n", 0, "at most this many (default: all)")
	f.BoolVar(&running, "running", false, "of a sandbox's commands, only those that run")
	c.MarkFlagsMutuallyExclusive("all", "state")
	return c
}

// checkLs refuses flags of ls that would have no effect.
func checkLs(c *cobra.Command, ofOne bool, limit int) error {
	if err := atLeast(c, "limit", 1, limit); err != nil {
		return err
	}
	if ofOne {
		return without(c, "is about sandboxes, not about the commands of one", "all", "state", "template", "metadata")
	}
	return without(c, "is about the commands of a sandbox: name one, or say --state running", "running")
}

// take collects at most limit values; 0 = all.
func take[T any](seq func(func(T, error) bool), limit int) ([]T, error) {
	out := []T{} // printed as [] when empty
	for v, err := range seq {
		if err != nil {
			return nil, err
		}
		out = append(out, v)
		if len(out) == limit {
			break
		}
	}
	return out, nil
}

// listing says how ls lists.
type listing struct {
	running bool // of commands, only those that run
	quiet   bool // ids only
	limit   int  // 0 = all
}

func (a *app) listSandboxes(ctx context.Context, cl *client.Client, f client.SandboxFilter, l listing) error {
	if l.limit > 0 {
		f.PageSize = min(l.limit, 1000)
	}
	list, err := take(cl.Sandboxes(ctx, f), l.limit)
	switch {
	case err != nil:
		return err
	case a.json:
		return a.printJSON(list)
	case l.quiet:
		return printIDs(a, list, func(sb api.Sandbox) string { return string(sb.ID) })
	}
	rows := [][]cell{head("ID", "TEMPLATE", "STATUS", "CPU", "MEMORY", "AGE", "ENDS IN")}
	for _, sb := range list {
		ends := span(sb.ExpiresAt.Sub(a.Now()))
		if sb.EndReason != "" {
			ends = string(sb.EndReason)
		}
		rows = append(rows, []cell{
			text(string(sb.ID)), text(sb.Template),
			{string(sb.Status), statusColour(sb.Status)},
			text(number(sb.CPU)), text(mib(sb.MemoryMB)), text(span(a.Now().Sub(sb.CreatedAt))), text(ends),
		})
	}
	return a.table(rows)
}

func printIDs[T any](a *app, list []T, id func(T) string) error {
	for _, v := range list {
		if _, err := fmt.Fprintln(a.Stdout, id(v)); err != nil {
			return err
		}
	}
	return nil
}

func (a *app) listExecs(ctx context.Context, cl *client.Client, id hutch.SandboxID, l listing) error {
	list, err := take(cl.Execs(ctx, id, l.running), l.limit)
	switch {
	case err != nil:
		return err
	case a.json:
		return a.printJSON(list)
	case l.quiet:
		return printIDs(a, list, func(x api.Exec) string { return string(x.ExecID) })
	}
	rows := [][]cell{head("EXEC", "END", "CODE", "TOOK", "AGE", "COMMAND")}
	for _, x := range list {
		end, code, took := cell{"running", green}, "-", span(a.Now().Sub(x.CreatedAt))
		if r := x.Result; r != nil {
			end, code, took = endCell(r.EndReason, r.ExitCode), fmt.Sprint(r.ExitCode), (time.Duration(r.DurationMS) * time.Millisecond).String()
		}
		rows = append(rows, []cell{
			text(string(x.ExecID)), end, text(code), text(took), text(span(a.Now().Sub(x.CreatedAt))), text(short(commandLine(x))),
		})
	}
	return a.table(rows)
}

func endCell(end hutch.ExecEnd, code int) cell {
	c := cell{text: string(end)}
	if end != hutch.ExecExit || code != 0 {
		c.colour = red
	}
	return c
}

func commandLine(x api.Exec) string {
	if x.Cmd != "" {
		return x.Cmd
	}
	return strings.Join(x.Argv, " ")
}

// short cuts a line to what fits beside a table's other columns.
func short(s string) string {
	const most = 60
	if r := []rune(s); len(r) > most {
		return string(r[:most-1]) + "…"
	}
	return s
}

// isExec tells a command's id from a sandbox's.
func isExec(id string) bool { return strings.HasPrefix(id, "e") }

func newGet(a *app) *cobra.Command {
	return &cobra.Command{
		Use:               "get SANDBOX|EXEC",
		Short:             "Show a sandbox or a command",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.completeSandboxes,
		RunE: func(cmd *cobra.Command, args []string) error {
			cl, err := a.client()
			if err != nil {
				return err
			}
			if isExec(args[0]) {
				x, err := cl.ExecRecord(cmd.Context(), hutch.ExecID(args[0]))
				if err != nil {
					return err
				}
				return a.showExec(x)
			}
			sb, err := cl.Sandbox(cmd.Context(), hutch.SandboxID(args[0]))
			if err != nil {
				return err
			}
			return a.showSandbox(sb)
		},
	}
}

func (a *app) showSandbox(sb api.Sandbox) error {
	if a.json {
		return a.printJSON(sb)
	}
	rows := [][]cell{
		{{"id", dim}, text(string(sb.ID))},
		{{"status", dim}, {string(sb.Status), statusColour(sb.Status)}},
		{{"template", dim}, text(sb.Template)},
		{{"hostname", dim}, text(sb.Hostname)},
		{{"cpu", dim}, text(number(sb.CPU))},
		{{"memory", dim}, text(mib(sb.MemoryMB))},
		{{"disk", dim}, text(mib(sb.DiskMB) + " (" + string(sb.DiskTier) + ")")},
		{{"pids", dim}, text(fmt.Sprint(sb.Pids))},
		{{"profile", dim}, text(string(sb.Profile))},
		{{"created", dim}, text(a.when(sb.CreatedAt))},
		{{"ends", dim}, text(a.when(sb.ExpiresAt))},
	}
	if sb.LeaseSeconds > 0 {
		rows = append(rows, []cell{{"leased to", dim}, text(a.when(sb.LeasedTo))})
	}
	if sb.IdleTimeoutSeconds > 0 {
		rows = append(rows, []cell{{"idle timeout", dim}, text(span(time.Duration(sb.IdleTimeoutSeconds * float64(time.Second))))})
	}
	if b := sb.Budget; b != nil {
		rows = append(rows, []cell{{"budget", dim}, text(budgetText(*b))})
	}
	rows = append(rows, []cell{{"boot", dim}, text(fmt.Sprintf("%d ms (%s)", sb.BootMS, sb.BootMode))})
	for _, k := range sortedKeys(sb.Metadata) {
		rows = append(rows, []cell{{"metadata", dim}, text(k + "=" + sb.Metadata[k])})
	}
	return a.table(rows)
}

// budgetText is what a sandbox may use before it is ended.
func budgetText(b api.Budget) string {
	var parts []string
	if b.CPUSeconds != nil {
		parts = append(parts, number(*b.CPUSeconds)+" CPU-seconds")
	}
	if b.Cost != nil {
		parts = append(parts, "a cost of "+number(*b.Cost))
	}
	return strings.Join(parts, ", ")
}

// when is a time and how far it is away.
func (a *app) when(t time.Time) string {
	d := t.Sub(a.Now())
	rel := "in " + span(d)
	if d < 0 {
		rel = span(-d) + " ago"
	}
	return t.UTC().Format(time.RFC3339) + " (" + rel + ")"
}

func newRm(a *app) *cobra.Command {
	return a.actOnEach("rm SANDBOX...", "End sandboxes for good", (*client.Client).Kill)
}

func newPause(a *app) *cobra.Command {
	return a.actOnEach("pause SANDBOX...", "Freeze sandboxes in memory", (*client.Client).Pause)
}

func newResume(a *app) *cobra.Command {
	return a.actOnEach("resume SANDBOX...", "Let paused sandboxes go on", (*client.Client).Resume)
}

// actOnEach is a command that does one thing to each sandbox named.
func (a *app) actOnEach(use, about string, act func(*client.Client, context.Context, hutch.SandboxID) error) *cobra.Command {
	return &cobra.Command{
		Use: use, Short: about,
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: a.completeSandboxes,
		RunE: func(cmd *cobra.Command, args []string) error {
			cl, err := a.client()
			if err != nil {
				return err
			}
			return a.each(args, func(id string) error { return act(cl, cmd.Context(), hutch.SandboxID(id)) })
		},
	}
}

func newExtend(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "extend SANDBOX TTL",
		Short: "Move a sandbox's end",
		Long:  "Moves a sandbox's end to TTL from now (30m, 2h, 1d); 0 = the longest allowed. It may come sooner than before.",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 2 {
				return fmt.Errorf("want a sandbox and how long it may live from now, got %s", plural(int64(len(args)), "argument"))
			}
			_, err := parseDuration(args[1])
			return err
		},
		ValidArgsFunction: a.completeSandboxes,
		RunE: func(cmd *cobra.Command, args []string) error {
			ttl, err := parseDuration(args[1])
			if err != nil {
				return err
			}
			cl, err := a.client()
			if err != nil {
				return err
			}
			l, err := cl.Extend(cmd.Context(), hutch.SandboxID(args[0]), ttl)
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(l)
			}
			_, err = fmt.Fprintf(a.Stdout, "%s ends %s\n", args[0], a.when(l.ExpiresAt))
			return err
		},
	}
}
