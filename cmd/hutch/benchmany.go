package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/bench"
	"hutch.dev/hutch/internal/cli"
	"hutch.dev/hutch/internal/egress"
	"hutch.dev/hutch/internal/keeper"
	"hutch.dev/hutch/internal/rootfs"
	"hutch.dev/hutch/internal/x/cgroup"
)

// The benchmarks of many sandboxes at once.

// maxCrowd bounds how many sandboxes are asked for at once: each has some 15 tasks of the
// host, which by default gives out 32,768.
const maxCrowd = 2000

func newBenchPrepared() *cobra.Command {
	var cfg benchConfig
	cfg.settings.Parallel = 1
	c := &cobra.Command{
		Use:   "prepared",
		Short: "Measure creates that find a machine prepared",
		Long: "Has the server keep machines ready, makes a sandbox that finds one and runs a first command in\n" +
			"it, again and again, and in turn the same command in a sandbox that stands. With --baseline\n" +
			"a machine that was prepared by hand is let go by hand too, and podman, if it is installed,\n" +
			"runs the same command, with crun and with stock gVisor. It starts a server of its own,\n" +
			"below the directory for temporary files, and leaves nothing of it.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cfg.prepare < 1 || cfg.prepare > maxPrepare {
				return fmt.Errorf("--prepare must be from 1 to %d", maxPrepare)
			}
			return cfg.run(cmd, bench.Prepared, "from asking for the sandbox, or for the command in one that stands, to the first byte of `/bin/echo hi` at the caller; the floor's from letting its machine go. That a machine is ready is waited for off the clock")
		},
	}
	cfg.manyFlags(c, manyDefaults{n: 200, of: "counted runs of each subject", warmup: 5, limit: 20 * time.Minute})
	f := c.Flags()
	f.IntVar(&cfg.prepare, "prepare", 2, "machines that the server keeps ready")
	f.StringVar(&cfg.settings.Tier, "tier", "", "disk tier, disk or memory (default: the template's)")
	f.BoolVar(&cfg.settings.Baseline, "baseline", false, "measure the floor too, in turn")
	cfg.podmanFlags(c)
	return c
}

func newBenchDensity() *cobra.Command {
	var cfg benchConfig
	cfg.settings.Parallel = 1
	var tier string
	c := &cobra.Command{
		Use:   "density",
		Short: "Measure many sandboxes that stand and do nothing",
		Long: "Makes sandboxes and leaves them alone, on each disk tier, and says what one of them has of\n" +
			"the machine's memory, how much CPU all of them take over two minutes once they have come to rest,\n" +
			"what the machine is busy with then and without them, whether every one answers, and how long a\n" +
			"create takes beside them. It starts a server of its own, below the directory\n" +
			"for temporary files, and leaves nothing of it.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if cfg.settings.Tiers, err = tiers(tier); err != nil {
				return err
			}
			if s := cfg.settings; s.N > maxCrowd || s.Probes < 1 || s.Window < time.Second {
				return fmt.Errorf("-n must be at most %d, --probes at least 1, --over at least 1s", maxCrowd)
			}
			return cfg.run(cmd, onServer(bench.Density), "create: from asking for a sandbox to the answer that it runs; first output: to the first byte of `/bin/echo hi` at the caller; the machine starts cold. Memory and CPU: of the sandbox's processes on the host, guest agent and gVisor's kernel included, read from outside")
		},
	}
	cfg.manyFlags(c, manyDefaults{n: 100, of: "sandboxes on each tier", warmup: 5, limit: 2 * time.Hour})
	f := c.Flags()
	f.StringVar(&tier, "tier", "", "one disk tier, disk or memory (default: both, one after the other)")
	f.IntVar(&cfg.settings.Probes, "probes", 30, "creates without the sandboxes, and beside them")
	f.DurationVar(&cfg.settings.Window, "over", 2*time.Minute, "how long the CPU is looked at, without the sandboxes and with them")
	return c
}

func newBenchDisk() *cobra.Command {
	var cfg benchConfig
	cfg.settings.Parallel = 1
	var tier string
	c := &cobra.Command{
		Use:   "disk",
		Short: "Measure what sandboxes of one image take of the disk",
		Long: "Makes sandboxes of one image, on each disk tier, and says how many bytes of the disk each\n" +
			"has taken: once it is made, and once it has written a file.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if cfg.settings.Tiers, err = tiers(tier); err != nil {
				return err
			}
			if s := cfg.settings; s.N > maxCrowd || s.Bytes < 1 {
				return fmt.Errorf("-n must be at most %d, --bytes at least 1", maxCrowd)
			}
			return cfg.run(cmd, onServer(bench.Disk), "no time is measured but that of creates, from asking to the answer that the sandbox runs; disk: blocks allocated to the sandbox's own files, those without a name included")
		},
	}
	cfg.manyFlags(c, manyDefaults{n: 100, of: "sandboxes on each tier", limit: time.Hour})
	f := c.Flags()
	f.StringVar(&tier, "tier", "", "one disk tier, disk or memory (default: both, one after the other)")
	f.Int64Var(&cfg.settings.Bytes, "bytes", 10_000_000, "size of the file that each writes")
	return c
}

func newBenchCreates() *cobra.Command {
	var cfg benchConfig
	cfg.settings.Parallel = 1
	c := &cobra.Command{
		Use:   "creates",
		Short: "Measure how many sandboxes a second can be made",
		Long: "Has several callers at once make a sandbox and end it, again and again, and says how many\n" +
			"a second that comes to, and how long each caller waits. With --baseline as many make the\n" +
			"same machine by hand, in turn.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			s := &cfg.settings
			for _, n := range s.Levels {
				if n < 1 || n > maxAtOnce {
					return fmt.Errorf("--parallel: each number must be between 1 and %d", maxAtOnce)
				}
			}
			if len(s.Levels) == 0 || s.Window < time.Second {
				return errors.New("--parallel needs a number, and --over at least 1s")
			}
			cfg.progressOf = s.N * len(s.Levels)
			return cfg.run(cmd, onAPI(bench.Creates), "from asking for a sandbox to the answer that it runs, the wait for its turn included; kill: from asking to the answer that nothing is left. A second's creates include their kills; the machine starts cold")
		},
	}
	cfg.flags(c, 4, time.Hour)
	f := c.Flags()
	f.Lookup("runs").Usage = "rounds of each subject at each number at once"
	f.IntSliceVar(&cfg.settings.Levels, "parallel", []int{1, 4, 16, 64}, "how many are made at once, each number measured")
	f.DurationVar(&cfg.settings.Window, "over", 15*time.Second, "length of a round")
	return c
}

// maxAtOnce is below what the server's queue takes.
const maxAtOnce = 200

func newBenchCycles() *cobra.Command {
	var cfg benchConfig
	c := &cobra.Command{
		Use:   "cycles",
		Short: "Make, use and end sandboxes, and look for what is left",
		Long: "Makes sandboxes, has each run a command, ends them, many times over, and compares what the\n" +
			"server holds before and after: descriptors, goroutines, heap after a collection, and what\n" +
			"is on the host of sandboxes. The server runs in this process; keeper and gateway are\n" +
			"processes of their own, as always, and are looked at too. Fails if anything went wrong or is left.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			s := cfg.settings
			if s.Parallel > maxAtOnce {
				return fmt.Errorf("--concurrency must be at most %d", maxAtOnce)
			}
			cfg.inside, cfg.strict = true, true
			if s.Profiles != "" { // of all that is allocated from now on, not a sample
				runtime.MemProfileRate = 1
			}
			return cfg.run(cmd, onServer(bench.Cycles), "create: from asking for a sandbox to the answer that it runs; the command: from asking to its result; kill: from asking to the answer that nothing is left; the machine starts cold")
		},
	}
	cfg.manyFlags(c, manyDefaults{n: 2000, of: "cycles", warmup: 64, limit: time.Hour})
	f := c.Flags()
	f.StringVar(&cfg.settings.Tier, "tier", "", "disk tier, disk or memory (default: the template's)")
	f.IntVar(&cfg.settings.Parallel, "concurrency", 8, "cycles at once")
	f.StringVar(&cfg.settings.Profiles, "profiles", "", "directory to write profiles of CPU and heap to, for go tool pprof; the figures are not to be used then")
	return c
}

// manyDefaults are what a benchmark of many sandboxes is not told.
type manyDefaults struct {
	n      int
	of     string // what there are n of
	warmup int    // 0 = it has no warm-up
	limit  time.Duration
}

// manyFlags are the flags of benchmarks that need a server of their own.
func (cfg *benchConfig) manyFlags(c *cobra.Command, d manyDefaults) {
	cfg.own = true
	f, s := c.Flags(), &cfg.settings
	f.IntVarP(&s.N, "n", "n", d.n, d.of)
	if d.warmup > 0 {
		f.IntVar(&s.Warmup, "warmup", d.warmup, "runs before, not counted")
	}
	f.StringVar(&s.Template, "template", "base", "template of the sandboxes")
	f.IntVar(&s.MemoryMB, "memory", 0, "memory of a sandbox in MiB (default: the template's)")
	f.DurationVar(&s.Limit, "limit", d.limit, "end early after this time")
	cfg.outputFlags(c)
}

// tiers are the disk tiers to measure.
func tiers(one string) ([]hutch.DiskTier, error) {
	all := []hutch.DiskTier{hutch.TierDisk, hutch.TierMemory}
	for _, t := range all {
		if one == string(t) {
			return []hutch.DiskTier{t}, nil
		}
	}
	if one != "" {
		return nil, fmt.Errorf("--tier %q: want disk or memory", one)
	}
	return all, nil
}

// onServer is a measurement that has no floor.
func onServer(m func(context.Context, bench.Settings, bench.Server, func(done int)) (*bench.Report, error)) measurement {
	return func(ctx context.Context, s bench.Settings, srv bench.Server, _ *bench.Floor, progress func(done int)) (*bench.Report, error) {
		return m(ctx, s, srv, progress)
	}
}

// hostOf is what can be seen of a server of ours from outside.
func hostOf(ctx context.Context, s *ownServer, cacheDir string) (*bench.Host, error) {
	tree, err := cgroup.Detect(cgroupParent(s.dir))
	if err != nil {
		return nil, err
	}
	db := filepath.Join(s.dir, dbFile)
	h := &bench.Host{
		Groups:  tree,
		BoxDir:  func(id hutch.SandboxID) string { return filepath.Join(s.dir, "run", "sandboxes", string(id)) },
		Records: []string{db, db + "-wal", db + "-shm"},
		Image:   rootfs.New(rootfs.Config{Dir: cacheDir}).Path,
		PIDs:    map[string]int{"server": s.pid},
		Leaks:   func(ctx context.Context) ([]string, error) { return leaksOf(ctx, s.dir, cacheDir) },
	}
	k, err := keeper.Dial(ctx, s.dir)
	if err != nil {
		return nil, fmt.Errorf("find the keeper: %w", err)
	}
	defer k.Close()
	e, err := egress.Dial(ctx, s.dir)
	if err != nil {
		return nil, fmt.Errorf("find the egress gateway: %w", err)
	}
	defer e.Close()
	h.PIDs["keeper"], h.PIDs["egress gateway"] = k.Hello().PID, e.Hello().PID
	return h, nil
}

// leaksOf has `hutch leaks` look, and returns what it prints.
func leaksOf(ctx context.Context, dir, cacheDir string) ([]string, error) {
	var out, errs strings.Builder
	c := newLeaks()
	c.SetArgs([]string{"--data-dir", dir, "--cache-dir", cacheDir})
	c.SetOut(&out)
	c.SetErr(&errs)
	c.SilenceErrors, c.SilenceUsage = true, true
	err := c.ExecuteContext(ctx)
	var exit *cli.ExitError
	if err != nil && (!errors.As(err, &exit) || exit.Code != exitLeaks) {
		return nil, fmt.Errorf("%w: %s", err, errs.String())
	}
	return strings.FieldsFunc(out.String(), func(r rune) bool { return r == '\n' }), nil
}

// verdict is an error if a benchmark that is a test too did not hold what it must.
func (cfg *benchConfig) verdict(rep *bench.Report) error {
	if broken := rep.Broken(); cfg.strict && len(broken) > 0 {
		return fmt.Errorf("not held: %s", strings.Join(broken, "; "))
	}
	if cfg.strict && len(rep.Faults) > 0 {
		return fmt.Errorf("%d things went wrong, the first one: %s", len(rep.Faults), rep.Faults[0].Error)
	}
	return nil
}
