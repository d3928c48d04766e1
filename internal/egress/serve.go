package egress

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"

	"golang.org/x/sys/unix"

	"hutch.dev/hutch/internal/x/daemon"
	"hutch.dev/hutch/internal/x/fdpass"
)

// Names of the gateway's files in the data directory.
const (
	socketName = "egress.sock"
	lockName   = "egress.lock"
	logName    = "egress.log"
)

// Descriptors the gateway needs: two for each link while it is being attached, and what
// connections and Go itself take.
const (
	spareFiles = 256
	wantFiles  = 2*MaxLinks + spareFiles
)

// Config is what a gateway process needs to know.
type Config struct {
	Dir   string // the data directory: one gateway in each
	Build string // of this program, told to clients
	Log   *slog.Logger
}

// Serve is the whole life of a gateway process. It returns nil once ctx has ended or it
// has been told to stop (SIGTERM, SIGINT, [Client.Stop]); the links then lead nowhere
// until another gateway is given them. That another one serves the directory is
// [daemon.ErrRunning].
func Serve(ctx context.Context, cfg Config) error {
	logger := cfg.Log.With("component", "egress")
	claim, err := daemon.Claim(filepath.Join(cfg.Dir, lockName))
	if err != nil {
		return err
	}
	defer claim.Release()
	limit, err := daemon.RaiseFileLimit(2*spareFiles, wantFiles)
	if err != nil {
		return err
	}
	path := filepath.Join(cfg.Dir, socketName)
	l, err := fdpass.Listen(path)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	defer func() { _ = os.Remove(path) }()

	ctx, cancel := signal.NotifyContext(ctx, unix.SIGTERM, unix.SIGINT)
	defer cancel()
	g := newGateway(logger)
	defer g.close()
	server := fdpass.Server{
		Hello:   fdpass.Hello{Service: service, Version: Version, Build: cfg.Build, PID: os.Getpid()},
		Handler: &controller{Gateway: g, stop: cancel}, Log: logger,
	}
	logger.Info("serving", "pid", os.Getpid(), "version", Version, "max_files", limit)
	claim.Ready()
	return server.Serve(ctx, l)
}
