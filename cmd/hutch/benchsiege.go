package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"hutch.dev/hutch/internal/bench"
)

// maxRounds bounds how often a siege can be asked to be laid.
const maxRounds = 1000

func newBenchSiege() *cobra.Command {
	var cfg benchConfig
	cfg.settings.Parallel = 1
	c := &cobra.Command{
		Use:   "siege",
		Short: "Measure a neighbour, and the calls that control them, of sandboxes that take all they can",
		Long: "Has a fork bomb, a memory hog, a disk filler, an output flood and a CPU burner at work, all at\n" +
			"once, each in a sandbox of its own, and runs a command that does nothing in a neighbour, again\n" +
			"and again. Meanwhile each of the five is asked for its commands and for a file, and in the end\n" +
			"all are killed. With --baseline as many sandboxes are made and loaded by hand, in turn. It\n" +
			"starts a server of its own, below the directory for temporary files, and leaves nothing of it.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if n := cfg.settings.Rounds; n < 1 || n > maxRounds {
				return fmt.Errorf("--rounds must be from 1 to %d", maxRounds)
			}
			cfg.progressOf = cfg.settings.Rounds
			return cfg.run(cmd, bench.Siege, "from asking for `/bin/true` in the neighbour to its result; from asking for the commands or for a file of a sandbox with a load to the last of the answer, and for its end to the answer that nothing is left; at the caller")
		},
	}
	cfg.manyFlags(c, manyDefaults{n: 60, of: "counted commands of each subject in each round", warmup: 10, limit: 30 * time.Minute})
	f := c.Flags()
	f.IntVar(&cfg.settings.Rounds, "rounds", 8, "rounds of each subject")
	f.StringVar(&cfg.settings.Tier, "tier", "", "disk tier, disk or memory (default: the template's)")
	f.BoolVar(&cfg.settings.Baseline, "baseline", false, "measure the floor too, in turn")
	return c
}
