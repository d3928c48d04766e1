// Command hutch-guest is the guest agent: the first process of every sandbox. Its
// standard input is the stream to the node; it takes no arguments and no environment.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime/debug"
	"time"

	"golang.org/x/sys/unix"

	"hutch.dev/hutch/internal/guest"
	"hutch.dev/hutch/internal/guest/machine"
	"hutch.dev/hutch/internal/guestlink"
	"hutch.dev/hutch/internal/x/collect"
)

// version is set by the linker.
var version = "devel"

// The agent's own memory counts as the sandbox's. It keeps little (output has a bound of
// its own), so it can afford to collect early.
const (
	gcPercent   = 50
	memoryLimit = 32 << 20 // soft, and without what output may take
)

func main() {
	started := time.Now()
	collect.Every(collect.Idle)
	if err := run(started); err != nil {
		fmt.Fprintln(os.Stderr, "hutch-guest:", err)
		os.Exit(1)
	}
}

func run(started time.Time) error {
	machine.Survive()
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	if os.Getpid() != 1 {
		// Orphans must come here all the same.
		if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
			return fmt.Errorf("become the parent of orphans: %w", err)
		}
	}
	if err := machine.Mount(); err != nil {
		log.Warn("some file systems are missing", "err", err)
	}
	if err := machine.Isolate(); err != nil {
		log.Warn("children may inherit descriptors", "err", err)
	}
	protected, err := machine.Protect()
	if err != nil {
		log.Warn("the agent is not protected", "err", err)
	}
	cfg := guest.Default()
	cfg.Protected = protected
	cfg.Version, cfg.Started, cfg.Log = version, started, log
	debug.SetGCPercent(gcPercent)
	debug.SetMemoryLimit(memoryLimit + cfg.OutputPool)

	err = guest.New(cfg).Run(context.Background(), guestlink.NewListener(os.Stdin))
	if errors.Is(err, io.EOF) {
		return nil // the node has closed the stream for good
	}
	return err
}
