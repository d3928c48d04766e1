package main

import (
	"context"
	"log/slog"

	"github.com/spf13/cobra"

	"hutch.dev/hutch/internal/egress"
	"hutch.dev/hutch/internal/keeper"
	"hutch.dev/hutch/internal/obs"
)

func newKeeper() *cobra.Command {
	return newCompanion("keeper", "Hold what must outlive the server: descriptors and deadlines",
		func(ctx context.Context, dir string, log *slog.Logger) error {
			return keeper.Serve(ctx, keeper.Config{Dir: dir, Build: buildVersion, Log: log})
		})
}

func newEgress() *cobra.Command {
	return newCompanion("egress", "Serve the sandboxes' network links",
		func(ctx context.Context, dir string, log *slog.Logger) error {
			return egress.Serve(ctx, egress.Config{Dir: dir, Build: buildVersion, Log: log})
		})
}

// newCompanion is the command of a process that serve starts by itself, and that a service
// manager may start instead. Its signals are its own affair: a keeper that holds sandboxes
// does not end when it is asked to.
func newCompanion(name, short string, serve func(context.Context, string, *slog.Logger) error) *cobra.Command {
	var dir string
	c := &cobra.Command{
		Use: name, Short: short, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			log := obs.NewLogger(cmd.ErrOrStderr(), false, slog.LevelInfo)
			return serve(context.WithoutCancel(cmd.Context()), dir, log)
		},
	}
	c.Flags().StringVar(&dir, "data-dir", defaultDataDir(), "data directory of the server")
	return c
}
