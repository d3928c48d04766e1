package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"hutch.dev/hutch"
	"hutch.dev/hutch/api"
	"hutch.dev/hutch/client"
)

func newCreate(a *app) *cobra.Command {
	var (
		req           api.CreateSandbox
		cpu           float64
		pids          int
		tier          string
		memory, disk  sizeFlag
		ttl, idle     durationFlag
		setupLimit    durationFlag
		lease         durationFlag
		maxCPU        durationFlag
		maxCost       float64
		keepAlive     bool
		env, metadata []string
	)
	c := &cobra.Command{
		Use:   "create",
		Short: "Make a sandbox and print its id",
		Long:  "Makes a sandbox, waits until it runs, and prints its id. Sizes left out are the template's.",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cmd.Flags().Changed("cpu") {
				req.CPU = &cpu
			}
			if cmd.Flags().Changed("pids") {
				req.Pids = &pids
			}
			req.MemoryMB, req.DiskMB, req.DiskTier = memory.ptr(), disk.ptr(), hutch.DiskTier(tier)
			req.TTLSeconds, req.IdleTimeoutSeconds = ttl.seconds(), idle.seconds()
			req.SetupTimeoutSeconds = setupLimit.seconds()
			req.LeaseSeconds = lease.seconds()
			if maxCPU.set || cmd.Flags().Changed("max-cost") {
				req.Budget = &api.Budget{CPUSeconds: maxCPU.seconds()}
			}
			if cmd.Flags().Changed("max-cost") {
				req.Budget.Cost = &maxCost
			}
			if keepAlive && lease.d == 0 {
				return a.usage(cmd, errors.New("--keep-alive renews a lease: say with --lease how long each renewal is good for"))
			}
			var err error
			if req.Env, err = a.envPairs(env); err != nil {
				return a.usage(cmd, err)
			}
			if req.Metadata, err = pairs("metadata", metadata); err != nil {
				return a.usage(cmd, err)
			}
			cl, err := a.client()
			if err != nil {
				return err
			}
			sb, err := cl.CreateSandbox(cmd.Context(), req)
			if err != nil {
				return err
			}
			if err := a.printNew(sb, string(sb.ID)); err != nil {
				return fmt.Errorf("sandbox %s runs, end it with `hutch rm %s`: %w", sb.ID, sb.ID, err)
			}
			if keepAlive {
				return a.keepAlive(cmd.Context(), cl, sb.ID, lease.d)
			}
			if sb.SetupExecID != "" && !a.json {
				return a.watchSetup(cmd.Context(), cl, sb.SetupExecID)
			}
			return nil
		},
	}
	f := c.Flags()
	f.StringVarP(&req.Template, "template", "t", api.DefaultTemplate, "template to make it from")
	f.Float64Var(&cpu, "cpu", 0, "CPUs; 1.5 is possible")
	f.Var(&memory, "memory", "memory: MiB, or like 2G")
	f.Var(&disk, "disk", "cap of what it may write: MiB, or like 10G")
	f.StringVar(&tier, "disk-tier", "", "where that is kept: disk or memory")
	f.StringVar((*string)(&req.Profile), "profile", "", "what its commands may do within it: root, or locked (default: the template's, else the project's)")
	f.IntVar(&pids, "pids", 0, "most processes and threads at once")
	f.StringArrayVarP(&env, "env", "e", nil, "KEY=VALUE for every command, or KEY to take it from here")
	f.StringArrayVarP(&metadata, "metadata", "m", nil, "KEY=VALUE to find it by")
	f.StringVar(&req.Hostname, "hostname", "", "its host name")
	f.Var(&ttl, "ttl", "how long it may live, like 30m or 2h; 0 = the longest allowed (default 1h)")
	f.Var(&idle, "idle-timeout", "how long it may be idle (default: for ever)")
	f.Var(&lease, "lease", "end it unless its owner renews within this, from 10s to 1d (default: it has no owner)")
	f.BoolVar(&keepAlive, "keep-alive", false, "be its owner: stay, and renew the lease until this command ends")
	f.Var(&maxCPU, "max-cpu", "end it when it has used that much CPU time, like 90s or 2h (default: no limit)")
	f.Float64Var(&maxCost, "max-cost", 0, "end it when it has cost that much, by the server's rate card (default: no limit)")
	f.StringVar(&req.Setup, "setup", "", "a line for its shell to begin with, which is waited for")
	f.Var(&setupLimit, "setup-timeout", "how long that may take (default 1h)")
	f.BoolVar(&req.PrivatePorts, "private-ports", false, "who reaches its ports by name needs its token")
	f.StringVar(&req.MaskHost, "mask-host", "", "Host header that servers inside are shown, like localhost:${PORT}")
	c.MarkFlagsMutuallyExclusive("keep-alive", "setup")
	return c
}

// watchSetup prints what a setup writes, beside the id that was printed, and ends with its
// exit code.
func (a *app) watchSetup(ctx context.Context, cl *client.Client, id hutch.ExecID) error {
	to := *a
	to.Stdout = a.Stderr
	r := newRun(&to, cl, execFlags{})
	r.detached = true
	return r.report(r.follow(ctx, id))
}

// envPairs reads KEY=VALUE flags, where KEY alone is taken from this environment.
func (a *app) envPairs(in []string) (map[string]string, error) {
	full := make([]string, 0, len(in))
	for _, s := range in {
		if s != "" && !strings.Contains(s, "=") {
			s += "=" + a.Getenv(s)
		}
		full = append(full, s)
	}
	return pairs("env", full)
}
