package cli

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

// Strict makes root and all below it end a wrong call (an unknown command or flag, a
// surplus argument, flags that exclude each other) as [Commands] do: said on stderr, with
// the exit code 2. Call it once every command is mounted.
func Strict(root *cobra.Command) {
	root.SetFlagErrorFunc(wrongCall)
	strict(root)
}

func strict(c *cobra.Command) {
	args := c.Args
	switch {
	case !c.Runnable() && c.HasSubCommands():
		// cobra prints help, and is content, for whatever follows such a command.
		args = unknownCommand
		c.DisableFlagsInUseLine = true
		c.RunE = func(c *cobra.Command, _ []string) error { return c.Help() }
	case args == nil:
		args = cobra.NoArgs
	}
	c.Args = func(c *cobra.Command, in []string) error {
		if err := args(c, in); err != nil {
			return wrongCall(c, err)
		}
		if err := errors.Join(c.ValidateRequiredFlags(), c.ValidateFlagGroups()); err != nil {
			return wrongCall(c, err)
		}
		return nil
	}
	for _, sub := range c.Commands() {
		strict(sub)
	}
}

// unknownCommand refuses any argument of a command that has only others below it.
func unknownCommand(c *cobra.Command, in []string) error {
	if len(in) == 0 {
		return nil
	}
	text := fmt.Sprintf("unknown command %q for %q", in[0], c.CommandPath())
	if c.SuggestionsMinimumDistance <= 0 {
		c.SuggestionsMinimumDistance = 2
	}
	if like := c.SuggestionsFor(in[0]); len(like) > 0 {
		text += ", did you mean " + strings.Join(like, " or ") + "?"
	}
	return errors.New(text)
}

// wrongCall prints a wrong call, unless that has been done.
func wrongCall(c *cobra.Command, err error) error {
	var done *ExitError
	if errors.As(err, &done) {
		return err
	}
	fmt.Fprintf(c.ErrOrStderr(), "hutch: %v\nusage: %s\n", err, c.UseLine())
	return &ExitError{Code: exitUsage, err: err}
}
