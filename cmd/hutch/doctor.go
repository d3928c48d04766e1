package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/cli"
	"hutch.dev/hutch/internal/doctor"
	"hutch.dev/hutch/internal/guestclient"
	"hutch.dev/hutch/internal/guestimage"
	"hutch.dev/hutch/internal/rootfs"
	"hutch.dev/hutch/internal/runtime"
	"hutch.dev/hutch/internal/runtime/gvisor"
	"hutch.dev/hutch/internal/x/cleanup"
	"hutch.dev/hutch/internal/x/id"
)

// probeTimeout bounds the sandbox that the doctor starts.
const probeTimeout = 30 * time.Second

func newDoctor() *cobra.Command {
	var cfg serveConfig
	var asJSON bool
	c := &cobra.Command{
		Use:   "doctor",
		Short: "Say what this machine can do, what is missing, and how to mend it",
		Long:  "Prints a line for each check, and exits with 1 if Hutch cannot work here.",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			env := doctor.Local()
			env.DataDir, env.CacheDir, env.Probe = cfg.dataDir, cfg.imageDir(), probe
			if running, err := served(cfg.dataDir); err == nil && !running { // else its port is taken, as it should be
				env.Listen = []string{cfg.listen}
			}
			checks := doctor.Run(cmd.Context(), env)
			var err error
			if asJSON {
				err = json.NewEncoder(cmd.OutOrStdout()).Encode(checks)
			} else {
				err = doctor.Write(cmd.OutOrStdout(), checks)
			}
			if err == nil && doctor.Worst(checks) == doctor.Fail {
				err = &cli.ExitError{Code: 1}
			}
			return err
		},
	}
	f := c.Flags()
	f.StringVar(&cfg.dataDir, "data-dir", defaultDataDir(), "data directory of the server")
	f.StringVar(&cfg.cacheDir, "cache-dir", os.Getenv(rootfs.DirEnv), "where root images are kept (default: in the data directory)")
	f.StringVar(&cfg.listen, "listen", "127.0.0.1:8080", "address the server will listen on")
	f.BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

// probe starts a sandbox of nothing but the guest agent, greets it, and ends it.
func probe(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	// Not below the data directory: the probe must work before there is one. The path
	// is short, as control sockets live below it.
	dir, err := os.MkdirTemp("", "hutch-probe")
	if err != nil {
		return "", err
	}
	undo := cleanup.New(func() { _ = os.RemoveAll(dir) })
	defer undo.Run()
	image, _, err := guestimage.Write(dir)
	if err != nil {
		return "", err
	}
	rt := gvisor.New(gvisor.Config{StateDir: filepath.Join(dir, "run"), CgroupParent: "hutch-probe", Log: slog.New(slog.DiscardHandler)})
	undo.Add(func() { _ = rt.Close() })
	spec := runtime.Spec{
		ID: hutch.SandboxID(id.NewSandbox()), Image: image, Guest: image, Hostname: "probe",
		Resources: hutch.Resources{MilliCPU: 1000, MemoryMB: 64, DiskMB: 16, DiskTier: hutch.TierMemory, Pids: 16},
	}
	began := time.Now()
	sb, err := rt.Create(ctx, spec)
	if err != nil {
		return "", fmt.Errorf("prepare a sandbox: %w", err)
	}
	undo.Add(func() { _ = sb.Kill(context.WithoutCancel(ctx)) })
	if err := sb.Start(ctx, runtime.StartOptions{}); err != nil {
		return "", fmt.Errorf("start a sandbox: %w", err)
	}
	guest := guestclient.New(sb.Handles().Guest)
	undo.Add(func() { _ = guest.Close() })
	rep, err := guest.Greet(ctx, spec.ID, spec.Hostname, spec.Resources)
	if err != nil {
		return "", fmt.Errorf("greet the guest agent: %w", err)
	}
	return fmt.Sprintf("a sandbox answered after %d ms (guest agent up in %d ms)",
		time.Since(began).Milliseconds(), time.Duration(rep.BootNS).Milliseconds()), nil
}
