package keeper

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"hutch.dev/hutch/internal/x/daemon"
	"hutch.dev/hutch/internal/x/fdpass"
)

// Names of the keeper's files in the data directory.
const (
	socketName = "keeper.sock"
	lockName   = "keeper.lock"
	logName    = "keeper.log"
)

// oomScore keeps the kernel from choosing the keeper when memory is short: it is tiny,
// and with it the control of every sandbox would be lost.
const oomScore = -900

// Config is what a keeper process needs to know.
type Config struct {
	Dir   string // the data directory: one keeper in each
	Build string // of this program, told to clients
	Log   *slog.Logger
}

// Serve is the whole life of a keeper process. It returns nil once ctx has ended, which
// drops every entry, or once it has been told to stop (SIGTERM, SIGINT, [Client.Stop])
// and no sandbox is left. That another keeper serves the directory is
// [daemon.ErrRunning].
func Serve(ctx context.Context, cfg Config) error {
	logger := cfg.Log.With("component", "keeper")
	claim, err := daemon.Claim(filepath.Join(cfg.Dir, lockName))
	if err != nil {
		return err
	}
	defer claim.Release()
	limit, err := daemon.RaiseFileLimit(2*spareFiles, MaxEntries*(MaxFiles+1)+spareFiles)
	if err != nil {
		return err
	}
	protectFromOOM(logger)

	k, err := newKeeper(logger, limit-spareFiles)
	if err != nil {
		return err
	}
	path := filepath.Join(cfg.Dir, socketName)
	l, err := fdpass.Listen(path)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	defer func() { _ = os.Remove(path) }()

	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, unix.SIGTERM, unix.SIGINT)
	defer signal.Stop(signals)

	server := fdpass.Server{
		Hello:   fdpass.Hello{Service: service, Version: Version, Build: cfg.Build, PID: os.Getpid()},
		Handler: k, Log: logger,
	}
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error { return k.run(gctx) })
	g.Go(func() error { return server.Serve(gctx, l) })
	g.Go(func() error {
		for {
			select {
			case <-signals:
				k.drain(false)
			case <-k.drained:
				cancel()
				return nil
			case <-gctx.Done():
				return nil
			}
		}
	})
	logger.Info("keeping", "pid", os.Getpid(), "version", Version, "max_files", limit-spareFiles)
	claim.Ready()
	return g.Wait()
}

// protectFromOOM is a favour, not a condition: without privilege it is refused.
func protectFromOOM(logger *slog.Logger) {
	if err := os.WriteFile("/proc/self/oom_score_adj", []byte(strconv.Itoa(oomScore)), 0); err != nil {
		logger.Debug("not protected from the kernel's out-of-memory killer", "error", err)
	}
}
