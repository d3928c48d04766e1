package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"hutch.dev/hutch/internal/bench"
)

func newBenchFiles() *cobra.Command {
	var cfg benchConfig
	cfg.settings.Parallel = 1
	size := int64(256)
	c := &cobra.Command{
		Use:   "files",
		Short: "Measure uploads and downloads of a file",
		Long: "Writes a file into one sandbox and reads it back, and checks every byte. With --baseline\n" +
			"the guest agent of a second sandbox is asked for the same by hand, in turn. The most\n" +
			"memory that the server's process had in use is measured too, with small files first:\n" +
			"it must not grow with them.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if size < minFileMB || size > maxFileMB {
				return fmt.Errorf("--size must be between %d and %d", minFileMB, maxFileMB)
			}
			cfg.settings.Bytes = size << 20
			cfg.api = "HTTP, one PUT and one GET for each file"
			return cfg.run(cmd, bench.Files, "from asking for the file to be written to the answer that it is in its place, on the sandbox's disk; and from asking for it to its last byte, at the caller")
		},
	}
	cfg.flags(c, 20, 30*time.Minute)
	c.Flags().Int64Var(&size, "size", size, "size of the file in MiB")
	return c
}

func newBenchTerminals() *cobra.Command {
	var cfg benchConfig
	cfg.settings.Parallel = 1
	c := &cobra.Command{
		Use:   "terminals",
		Short: "Measure keystrokes in many terminals at once",
		Long: "Opens terminals in one sandbox and types into all of them at once, and says how long a\n" +
			"key takes to its echo, which a program inside prints. With --baseline there are as many\n" +
			"terminals in a second sandbox, whose guest agent is asked by hand, and the two are typed into in turn.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if n := cfg.settings.Terminals; n < 1 || n > maxTerminals {
				return fmt.Errorf("--terminals must be between 1 and %d", maxTerminals)
			}
			cfg.api = "WebSockets through the Go client, one for each terminal"
			return cfg.run(cmd, onAPI(bench.Terminals), "from pressing a key to the arrival of its echo, at the caller")
		},
	}
	cfg.flags(c, 40, 20*time.Minute)
	c.Flags().IntVar(&cfg.settings.Terminals, "terminals", 50, "terminals that are open at once")
	return c
}

// Bounds of what can be asked for. A file is in the sandbox twice while it is replaced.
const (
	minFileMB, maxFileMB = 1, 1024
	maxTerminals         = 200
)
