package main

import (
	"github.com/spf13/cobra"

	"hutch.dev/hutch/internal/x/failpoint"
)

// mayDie lets the command of a process that outlives its callers be told where to die, for
// tests of what becomes of it. The flags are not shown: there is no other use for them.
func mayDie(c *cobra.Command) *cobra.Command {
	var dieAt, holdAt string
	c.Flags().StringVar(&dieAt, "die-at", "", "NAME[@N]: end as kill -9 does at this failpoint, at the Nth time; for tests")
	c.Flags().StringVar(&holdAt, "hold-at", "", "NAME[@N],…: let nobody get past these failpoints, from the Nth time on; for tests")
	for _, name := range []string{"die-at", "hold-at"} {
		c.Flags().Lookup(name).Hidden = true
	}
	run := c.RunE
	c.RunE = func(cmd *cobra.Command, args []string) error {
		if dieAt == "" && holdAt == "" {
			return run(cmd, args)
		}
		p, err := failpoint.Parse(dieAt, holdAt)
		if err != nil {
			return err
		}
		if _, err := failpoint.Arm(p); err != nil { // for good: it is what the process is for
			return err
		}
		return run(cmd, args)
	}
	return c
}
