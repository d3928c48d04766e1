package main

import (
	"errors"
	"fmt"
	"io"
	stdlog "log"
	"log/slog"
	"os"
	"runtime"
	"time"

	"github.com/spf13/cobra"

	"hutch.dev/hutch/internal/control"
	"hutch.dev/hutch/internal/obs"
	"hutch.dev/hutch/internal/rootfs"
	"hutch.dev/hutch/internal/template"
)

// serveConfig is what `hutch serve` is told.
type serveConfig struct {
	dataDir  string
	listen   string
	domain   string // names of sandboxes are below it; empty = localhost with the port
	cacheDir string // of root images; empty = below dataDir
	jsonLog  bool
	// maxUpload is the largest file or archive that one call may send, in bytes; 0 = any.
	maxUpload int64
	control   control.Config
	// projectCPUs is what all sandboxes of a project may use together; 0 = any number.
	projectCPUs int
	rateCard    string            // file of what is charged; empty = nothing is
	budgets     string            // file of what projects may use; empty = no limit
	profiles    map[string]string // of sandboxes that ask for none, by project
	recipes     string            // directory of further recipes
	builds      template.ServiceConfig
	// unresponsive says what becomes of a sandbox whose guest has not answered for
	// unresponsiveAfter: keepSilent or endSilent.
	unresponsive      string
	unresponsiveAfter time.Duration
}

// What an operator may want of sandboxes that do not answer.
const (
	keepSilent = "keep"
	endSilent  = "end"
)

// leastPatience is the least time that a sandbox may be given to answer: a machine with
// every CPU taken has been seen to need two seconds.
const leastPatience = 10 * time.Second

// maxPrepare bounds what an operator keeps ready: each takes the memory of an idle sandbox.
const maxPrepare = 256

// check refuses what cannot be meant. A limit of 0 would be taken for the usual one.
func (c serveConfig) check() error {
	for _, f := range []struct {
		flag  string
		value time.Duration
	}{
		{"default-ttl", c.control.DefaultTTL},
		{"max-ttl", c.control.MaxTTL},
		{"retention", c.control.Retention},
		{"audit-retention", c.control.AuditFor},
	} {
		if f.value <= 0 {
			return fmt.Errorf("--%s %s: must be longer than nothing", f.flag, f.value)
		}
	}
	switch {
	case c.control.MaxSandboxes < 1:
		return fmt.Errorf("--max-sandboxes %d: must be at least 1", c.control.MaxSandboxes)
	case c.maxUpload < 0:
		return fmt.Errorf("--max-upload %d: must not be negative; 0 is any size", c.maxUpload)
	case c.unresponsive != keepSilent && c.unresponsive != endSilent:
		return fmt.Errorf("--unresponsive must be %s or %s, not %q", keepSilent, endSilent, c.unresponsive)
	case c.unresponsiveAfter < leastPatience:
		return fmt.Errorf("--unresponsive-after must be at least %s, not %s: a busy machine's sandboxes answer late", leastPatience, c.unresponsiveAfter)
	case c.control.MaxAge != 0 && c.control.MaxAge < time.Second:
		return fmt.Errorf("--max-age must be at least 1s, or 0 for none, not %s", c.control.MaxAge)
	case c.control.ReconcileEvery < time.Second:
		return fmt.Errorf("--reconcile-every must be at least 1s, not %s", c.control.ReconcileEvery)
	case !(c.control.Overcommit > 0 && c.control.Overcommit <= 10_000): // not a number neither
		return fmt.Errorf("--overcommit must be more than 0 and at most 10000, not %v", c.control.Overcommit)
	case c.control.MemoryReserveMB < 0:
		return fmt.Errorf("--memory-reserve must not be negative, but is %d", c.control.MemoryReserveMB)
	case c.control.ProjectSandboxes < 0 || c.projectCPUs < 0 || c.control.ProjectMemoryMB < 0 || c.control.ProjectCreates < 0:
		return errors.New("--project-max-sandboxes, --project-max-cpus, --project-max-memory and --project-creates-per-minute must not be negative")
	case c.projectCPUs > 1_000_000:
		return errors.New("--project-max-cpus must be at most 1000000, or 0 for any number")
	case c.control.Prepare < 0 || c.control.Prepare > maxPrepare:
		return fmt.Errorf("--prepare must be from 0 to %d, not %d", maxPrepare, c.control.Prepare)
	case c.control.ProjectCreates > 60_000:
		return errors.New("--project-creates-per-minute must be at most 60000, or 0 for any number")
	}
	return nil
}

// silence is after how long without an answer a sandbox is ended; 0 = never.
func (c serveConfig) silence() time.Duration {
	if c.unresponsive == keepSilent {
		return 0
	}
	return c.unresponsiveAfter
}

func newServe() *cobra.Command {
	var cfg serveConfig
	c := &cobra.Command{
		Use:   "serve",
		Short: "Run the whole platform on this machine",
		Long: "Runs control plane, node agent and edge in this process, with the keeper and the\n" +
			"egress gateway as processes of their own that outlive it. Stopping or killing it\n" +
			"costs running sandboxes nothing: the next start takes them over.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := cfg.check(); err != nil {
				return err
			}
			if err := cfg.readRates(); err != nil {
				return err
			}
			if err := cfg.readBudgets(); err != nil {
				return err
			}
			if err := cfg.readProfiles(); err != nil {
				return err
			}
			// HTTP/2 writes to the standard logger whenever a guest breaks its rules, as often as
			// that likes. Whoever made the call is told.
			stdlog.SetOutput(io.Discard)
			log := obs.NewLogger(cmd.ErrOrStderr(), cfg.jsonLog, slog.LevelInfo)
			s, err := newServer(cmd.Context(), cfg, log)
			if err != nil {
				return err
			}
			return s.run(cmd.Context())
		},
	}
	f := c.Flags()
	f.StringVar(&cfg.dataDir, "data-dir", defaultDataDir(), "where records, images and sandboxes are kept")
	f.StringVar(&cfg.listen, "listen", "127.0.0.1:8080", "address to serve on; port 0 takes a free one")
	f.StringVar(&cfg.domain, "domain", "", "public domain, with its port, below which sandboxes' ports have names (default: localhost and the port served on)")
	f.StringVar(&cfg.cacheDir, "cache-dir", os.Getenv(rootfs.DirEnv), "where root images are kept (default: in the data directory)")
	f.BoolVar(&cfg.jsonLog, "log-json", false, "log JSON objects instead of text")
	f.DurationVar(&cfg.control.DefaultTTL, "default-ttl", time.Hour, "time to live of a sandbox that asks for none")
	f.DurationVar(&cfg.control.MaxTTL, "max-ttl", 24*time.Hour, "longest time to live")
	f.DurationVar(&cfg.control.Retention, "retention", 24*time.Hour, "how long ended sandboxes and their commands are remembered")
	f.DurationVar(&cfg.control.AuditFor, "audit-retention", 30*24*time.Hour, "how long audited calls are remembered")
	f.DurationVar(&cfg.control.UsageFor, "usage-retention", 90*24*time.Hour, "how long what ended sandboxes used is remembered")
	f.StringVar(&cfg.rateCard, "rate-card", "", "file of what is charged, in JSON; see docs/usage.md")
	f.StringVar(&cfg.budgets, "project-budgets", "", "file of what projects may use in a period, in JSON, read again when it changes; see docs/usage.md")
	f.IntVar(&cfg.control.MaxSandboxes, "max-sandboxes", 1000, "most sandboxes alive at once")
	f.DurationVar(&cfg.control.MaxAge, "max-age", 0, "longest life of a sandbox from its creation, however often it is extended; 0 is none")
	f.IntVar(&cfg.control.ProjectSandboxes, "project-max-sandboxes", 0, "most sandboxes alive at once of one project; 0 is any number")
	f.IntVar(&cfg.projectCPUs, "project-max-cpus", 0, "most CPUs that all sandboxes of one project alive at once may use; 0 is any number")
	f.IntVar(&cfg.control.ProjectMemoryMB, "project-max-memory", 0, "MiB of memory that all sandboxes of one project alive at once may use; 0 is any number")
	f.IntVar(&cfg.control.ProjectCreates, "project-creates-per-minute", 0, "most sandboxes that one project may make in a minute; 0 is any number")
	f.StringToStringVar(&cfg.profiles, "project-profile", nil, "profile of a project's sandboxes for which neither request nor template says one, PROJECT=root or PROJECT=locked; may be repeated")
	f.Float64Var(&cfg.control.Overcommit, "overcommit", control.DefaultOvercommit, "how many times the machine's memory, less the reserve, is given out to sandboxes")
	f.IntVar(&cfg.control.MemoryReserveMB, "memory-reserve", 0, "MiB of the machine's memory that sandboxes do not get (default: a twentieth, at least 512)")
	f.IntVar(&cfg.control.Prepare, "prepare", runtime.NumCPU(), "most machines kept ready for sandboxes like those that were asked for in the last 5 minutes, as many as were; 0 is none")
	f.StringVar(&cfg.unresponsive, "unresponsive", endSilent, "what becomes of a sandbox that does not answer: keep or end")
	f.DurationVar(&cfg.unresponsiveAfter, "unresponsive-after", time.Minute, "how long a sandbox may not answer before it is ended")
	f.DurationVar(&cfg.control.ReconcileEvery, "reconcile-every", time.Minute, "how often records are compared with what is on the machine, and remains removed")
	f.Int64Var(&cfg.maxUpload, "max-upload", 0, "largest file or archive that one call may send, in bytes; 0 is any")
	f.StringVar(&cfg.recipes, "recipes", "", "directory of further recipes that templates can be built from, NAME.yaml each")
	f.StringVar(&cfg.builds.CAFile, "registry-ca", "", "file of certificates to trust at registries of images besides the machine's")
	f.BoolVar(&cfg.builds.Insecure, "registry-insecure", false, "accept registries without TLS, or with any certificate")
	f.BoolVar(&cfg.builds.MachineLogin, "registry-login", false, "let builds use what docker login left on this machine")
	return c
}

// imageDir is where root images are: the cache, where one is named, so that several data
// directories of one machine share what was built once.
func (c serveConfig) imageDir() string {
	if c.cacheDir != "" {
		return c.cacheDir
	}
	return c.dataDir
}
