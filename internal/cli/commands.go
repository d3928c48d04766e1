package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"hutch.dev/hutch"
	"hutch.dev/hutch/api"
	"hutch.dev/hutch/client"
)

// Command is a cobra command, named so that callers need not import cobra for Env.
type Command = *cobra.Command

// Exit codes of the command line itself.
const (
	exitFailed      = 1
	exitUsage       = 2
	exitNoResult    = api.ExitNoResult // exec could not learn how the command ended
	exitInterrupted = 130              // 128 + SIGINT
)

// ExitError ends the program with a code. What there was to say has been printed.
type ExitError struct {
	Code int
	err  error
}

// Error says why.
func (e *ExitError) Error() string {
	if e.err != nil {
		return e.err.Error()
	}
	return fmt.Sprintf("exit code %d", e.Code)
}

// Unwrap returns what failed, if anything did.
func (e *ExitError) Unwrap() error { return e.err }

// ExitCode is what to end the program with.
func (e *ExitError) ExitCode() int { return e.Code }

// app is what all commands share.
type app struct {
	Env
	json bool
	data string
}

// Commands returns the commands, to be mounted on a root command. Errors that they
// return are [*ExitError] and have been printed.
func Commands(env Env) []*cobra.Command {
	makers := []func(*app) *cobra.Command{
		newCreate, newLs, newGet, newExec, newShell, newCp, newFollow, newLogs, newEvents, newCancel, newRm, newExtend,
		newPause, newResume, newUsage, newTemplate, newKey, newVersion,
	}
	out := make([]*cobra.Command, 0, len(makers))
	for _, mk := range makers {
		a := &app{Env: env}
		c := mk(a)
		a.prepare(c)
		out = append(out, c)
	}
	return out
}

// prepare gives a command, or those under it, what all have.
func (a *app) prepare(c *cobra.Command) {
	a.flags(c)
	a.wrap(c)
}

// flags adds the flags that all of our own commands have.
func (a *app) flags(c *cobra.Command) {
	if c.HasSubCommands() {
		for _, sub := range c.Commands() {
			a.flags(sub)
		}
		return
	}
	if slices.Contains(a.TemplateCommands, c) {
		return // it has its own
	}
	c.Flags().BoolVar(&a.json, "json", false, "print JSON")
	c.Flags().StringVar(&a.data, "data-dir", "", "data directory of the server on this machine (default $"+EnvDataDir+" or "+DefaultDataDir+")")
}

// wrap prints what goes wrong and turns it into an exit code.
func (a *app) wrap(c *cobra.Command) {
	c.SilenceUsage, c.SilenceErrors = true, true
	c.SetOut(a.Stdout)
	c.SetErr(a.Stderr)
	c.SetFlagErrorFunc(func(c *cobra.Command, err error) error { return a.usage(c, err) })
	if args := c.Args; args != nil {
		c.Args = func(c *cobra.Command, in []string) error {
			if err := args(c, in); err != nil {
				return a.usage(c, err)
			}
			return nil
		}
	}
	if run := c.RunE; run != nil {
		c.RunE = func(c *cobra.Command, in []string) error { return a.report(run(c, in)) }
	}
	for _, sub := range c.Commands() {
		a.wrap(sub)
	}
}

func (*app) usage(c *cobra.Command, err error) error {
	return wrongCall(c, err)
}

// without refuses flags that mean nothing to a call, and says why.
func without(c *cobra.Command, why string, flags ...string) error {
	for _, f := range flags {
		if c.Flags().Changed(f) {
			return fmt.Errorf("--%s %s", f, why)
		}
	}
	return nil
}

// atLeast refuses a number that a flag was given and that is too low.
func atLeast(c *cobra.Command, flag string, least, n int) error {
	if c.Flags().Changed(flag) && n < least {
		return fmt.Errorf("--%s %d: want %d or more", flag, n, least)
	}
	return nil
}

// report prints a failure, unless that has been done.
func (a *app) report(err error) error {
	var done *ExitError
	if err == nil || errors.As(err, &done) {
		return err
	}
	return a.fail(err, exitFailed)
}

// failure is [api.Error] as the command line prints it: what did not come from a server
// has no code.
type failure struct {
	Error     string           `json:"error"`
	Code      hutch.Code       `json:"code,omitempty"`
	Field     string           `json:"field,omitempty"`
	RequestID string           `json:"request_id,omitempty"`
	EndReason hutch.SandboxEnd `json:"end_reason,omitempty"`
}

// fail prints a failure and returns it with its exit code.
func (a *app) fail(err error, code int) error {
	if errors.Is(err, context.Canceled) {
		return &ExitError{Code: exitInterrupted, err: err}
	}
	if a.json {
		body := failure{Error: err.Error()}
		var e *client.Error
		if errors.As(err, &e) {
			body = failure{Error: e.Message, Code: e.Code, Field: e.Field, RequestID: e.RequestID, EndReason: e.EndReason}
		}
		b, _ := json.Marshal(body) // strings only
		fmt.Fprintf(a.Stderr, "%s\n", b)
	} else {
		fmt.Fprintf(a.Stderr, "hutch: %s\n", err)
	}
	return &ExitError{Code: code, err: err}
}

func (a *app) client(more ...client.Option) (*client.Client, error) {
	return a.Env.client(a.data, more...)
}

// each calls do for every argument and goes on after a failure; the last one is
// returned. It prints the arguments that do succeeded with.
func (a *app) each(args []string, do func(string) error) error {
	var last error
	done := []string{} // printed as [] when empty
	for _, arg := range args {
		if err := do(arg); err != nil {
			last = a.fail(fmt.Errorf("%s: %w", arg, err), exitFailed)
			continue
		}
		done = append(done, arg)
		if !a.json {
			if _, err := fmt.Fprintln(a.Stdout, arg); err != nil {
				last = a.fail(fmt.Errorf("%s: done, but not printed: %w", arg, err), exitFailed)
			}
		}
	}
	if a.json {
		if err := a.printJSON(done); err != nil {
			return err
		}
	}
	return last
}

// pairs reads KEY=VALUE flags.
func pairs(flag string, in []string) (map[string]string, error) {
	if len(in) == 0 {
		return nil, nil
	}
	out := make(map[string]string, len(in))
	for _, s := range in {
		k, v, ok := strings.Cut(s, "=")
		if !ok || k == "" {
			return nil, fmt.Errorf("--%s %q: want KEY=VALUE", flag, s)
		}
		out[k] = v
	}
	return out, nil
}

// completeTimeout bounds what a shell waits for after Tab.
const completeTimeout = 2 * time.Second

// completeSandboxes offers the ids of sandboxes that live.
func (a *app) completeSandboxes(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 && cmd.Name() != "rm" {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	c, err := a.client()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	ctx, cancel := context.WithTimeout(context.Background(), completeTimeout)
	defer cancel()
	var out []string
	for sb, err := range c.Sandboxes(ctx, client.SandboxFilter{}) {
		if err != nil {
			break
		}
		out = append(out, string(sb.ID)+"\t"+sb.Template+", "+string(sb.Status))
	}
	return out, cobra.ShellCompDirectiveNoFileComp
}
