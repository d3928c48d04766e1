package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	stdlog "log"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/auth"
	"hutch.dev/hutch/internal/cli"
	"hutch.dev/hutch/internal/control"
	"hutch.dev/hutch/internal/egress"
	"hutch.dev/hutch/internal/guestimage"
	"hutch.dev/hutch/internal/httpapi"
	"hutch.dev/hutch/internal/keeper"
	"hutch.dev/hutch/internal/node"
	"hutch.dev/hutch/internal/obs"
	"hutch.dev/hutch/internal/rootfs"
	"hutch.dev/hutch/internal/runtime/gvisor"
	"hutch.dev/hutch/internal/store/sqlite"
	"hutch.dev/hutch/internal/template"
	"hutch.dev/hutch/internal/x/atomicfile"
)

// drainTimeout is how long requests under way get when the server is told to stop. Waits
// and streams are ended at once, to be taken up again; creates and kills are finished.
const drainTimeout = 30 * time.Second

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
	recipes   string // directory of further recipes
	builds    template.ServiceConfig
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
			// HTTP/2 writes to the standard logger whenever a guest breaks its rules, as often as
			// the guest likes; what is worth knowing is in the errors of the calls.
			stdlog.SetOutput(io.Discard)
			if err := cfg.check(); err != nil {
				return err
			}
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
	f.IntVar(&cfg.control.MaxSandboxes, "max-sandboxes", 1000, "most sandboxes alive at once")
	f.Int64Var(&cfg.maxUpload, "max-upload", 0, "largest file or archive that one call may send, in bytes; 0 is any")
	f.StringVar(&cfg.recipes, "recipes", "", "directory of further recipes that templates can be built from, NAME.yaml each")
	f.StringVar(&cfg.builds.CAFile, "registry-ca", "", "file of certificates to trust at registries of images besides the machine's")
	f.BoolVar(&cfg.builds.Insecure, "registry-insecure", false, "accept registries without TLS, or with any certificate")
	f.BoolVar(&cfg.builds.MachineLogin, "registry-login", false, "let builds use what docker login left on this machine")
	return c
}

// check refuses limits that are none: 0 would be taken for the usual one.
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
	}
	return nil
}

// imageDir is where root images are: the cache, where one is named, so that several data
// directories of one machine share what was built once.
func (c serveConfig) imageDir() string {
	if c.cacheDir != "" {
		return c.cacheDir
	}
	return c.dataDir
}

// server is everything `hutch serve` runs.
type server struct {
	cfg     serveConfig
	log     *slog.Logger
	lock    *os.File
	store   *sqlite.Store
	keys    *auth.Keyring
	tokens  *auth.SandboxTokens
	keeper  *companion[*keeper.Client]
	egress  *companion[*egress.Client]
	control *control.Control
	rt      *gvisor.Runtime
	node    *node.Node
	metrics *obs.Metrics
	reg     *prometheus.Registry
}

// newServer opens what the server works with. Nothing is served before run.
func newServer(ctx context.Context, cfg serveConfig, log *slog.Logger) (_ *server, err error) {
	s := &server{cfg: cfg, log: log, reg: prometheus.NewRegistry()}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	if err := os.MkdirAll(cfg.dataDir, 0o700); err != nil {
		return nil, err
	}
	if s.lock, err = lockDir(cfg.dataDir); err != nil {
		return nil, err
	}
	if s.store, err = sqlite.Open(ctx, filepath.Join(cfg.dataDir, dbFile)); err != nil {
		return nil, err
	}
	s.keys = auth.New(s.store, time.Now)
	if s.tokens, err = auth.OpenSandboxTokens(ctx, s.store); err != nil {
		return nil, err
	}
	if err := s.openCompanions(ctx); err != nil {
		return nil, err
	}
	if err := s.openNode(); err != nil {
		return nil, err
	}
	if err := s.adminKey(ctx); err != nil {
		return nil, err
	}
	return s, registerBuilt(ctx, s.store, cfg.imageDir(), log)
}

// nobody is the name of no sandbox: what is asked of it is a companion's sign of life.
const nobody = "nobody"

func (s *server) openCompanions(ctx context.Context) error {
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	dir := s.cfg.dataDir
	s.keeper = &companion[*keeper.Client]{
		name: "keeper", log: s.log,
		start: func(ctx context.Context) (*keeper.Client, error) {
			c, err := keeper.Start(ctx, dir, exe, "keeper", "--data-dir", dir)
			if err != nil {
				return nil, err
			}
			if err := c.Attach(ctx); err != nil {
				c.Close()
				return nil, err
			}
			return c, nil
		},
		refill: func(ctx context.Context) error { return s.node.RefillKeeper(ctx) },
		ping: func(ctx context.Context, c *keeper.Client) error {
			_, err := c.Get(ctx, nobody)
			return err
		},
		kill: func(c *keeper.Client) error { return killProcess(c.Hello().PID) },
	}
	s.egress = &companion[*egress.Client]{
		name: "egress gateway", log: s.log,
		start: func(ctx context.Context) (*egress.Client, error) {
			return egress.Start(ctx, dir, buildVersion, exe, "egress", "--data-dir", dir)
		},
		refill: func(ctx context.Context) error { return s.node.RefillEgress(ctx) },
		ping: func(ctx context.Context, c *egress.Client) error {
			_, err := c.Stats(ctx, nobody)
			return err
		},
		kill: func(c *egress.Client) error { return killProcess(c.Hello().PID) },
	}
	if err := s.keeper.open(ctx); err != nil {
		return err
	}
	return s.egress.open(ctx)
}

func (s *server) openNode() error {
	guestDir := filepath.Join(s.cfg.dataDir, "guest")
	if err := os.MkdirAll(guestDir, 0o700); err != nil {
		return err
	}
	guest, _, err := guestimage.Write(guestDir)
	if err != nil {
		return err
	}
	images := rootfs.New(rootfs.Config{Dir: s.cfg.imageDir()})
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	s.rt = gvisor.New(gvisor.Config{
		StateDir: filepath.Join(s.cfg.dataDir, "run"), Exe: exe, CgroupParent: cgroupParent(s.cfg.dataDir), Log: s.log,
	})
	s.metrics = obs.New(s.reg, func() int { return s.node.Count() })
	builds := builderConfig(s.cfg.imageDir())
	builds.Recipes = s.cfg.recipes
	s.cfg.control.Builder = template.NewService(template.New(builds, images, s.log), s.cfg.builds)
	if filepath.Clean(s.cfg.imageDir()) == filepath.Clean(s.cfg.dataDir) { // else others may share them
		s.cfg.control.Images = imagesPort{images}
	}
	s.control = control.New(s.cfg.control, s.store, s.metrics, s.log)
	s.node = node.New(node.Config{Guest: guest, ImagePath: images.Path, Log: s.log},
		s.rt, keeperPort{s.keeper}, egressPort{s.egress}, s.control)
	s.control.Attach(s.node)
	return nil
}

// adminKey makes the first key, for this machine's own command line.
func (s *server) adminKey(ctx context.Context) error {
	path := filepath.Join(s.cfg.dataDir, cli.KeyFile)
	if _, err := os.Stat(path); err == nil {
		return nil
	}
	plain, _, err := s.keys.Create(ctx, "local command line", hutch.DefaultProject, hutch.ScopeAdmin, 0)
	if err != nil {
		return fmt.Errorf("make the first key: %w", err)
	}
	return atomicfile.Write(path, []byte(plain+"\n"), 0o600)
}

// run serves until ctx ends, then lets go of the sandboxes and returns.
func (s *server) run(ctx context.Context) error {
	defer s.close()
	ln, err := (&net.ListenConfig{}).Listen(ctx, "tcp", s.cfg.listen)
	if err != nil {
		return fmt.Errorf("listen on %s: %w", s.cfg.listen, err)
	}
	addrFile := filepath.Join(s.cfg.dataDir, cli.ListenFile)
	if err := atomicfile.Write(addrFile, []byte(ln.Addr().String()+"\n"), 0o600); err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	// What is finished while the server drains needs the companions still.
	drained, endCompanions := context.WithCancel(context.WithoutCancel(ctx))
	defer endCompanions()
	h, closeAPIs := s.handler(ln.Addr())
	defer closeAPIs()
	srv := httpapi.Server(ctx, h, s.log)
	g.Go(func() error {
		if err := srv.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	})
	g.Go(func() error {
		<-ctx.Done()
		defer endCompanions()
		// First of all: whoever listens there next must not be taken for this server.
		if err := os.Remove(addrFile); err != nil {
			s.log.Warn("the address of this server could not be removed", "error", err)
		}
		sctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainTimeout)
		defer cancel()
		if err := srv.Shutdown(sctx); err != nil {
			return srv.Close()
		}
		return nil
	})
	g.Go(func() error { return s.keeper.run(drained) })
	g.Go(func() error { return s.egress.run(drained) })
	g.Go(func() error { return s.node.Run(ctx) })
	g.Go(func() error {
		if err := s.control.Recover(ctx); err != nil {
			return fmt.Errorf("take over the sandboxes of the last run: %w", err)
		}
		s.log.Info("ready", "listen", ln.Addr().String(), "version", buildVersion)
		return s.control.Run(ctx)
	})
	return g.Wait()
}

// close lets go of everything, in the reverse order of its making.
func (s *server) close() {
	if s.node != nil {
		empty := s.node.Count() == 0
		s.node.Close()
		s.control.Close()
		if empty {
			if err := s.rt.Close(); err != nil {
				s.log.Warn("the isolator left something", "error", err)
			}
		}
	}
	if s.store != nil {
		if err := s.store.Close(); err != nil {
			s.log.Error("close records", "error", err)
		}
	}
	if s.lock != nil {
		_ = s.lock.Close()
	}
}

// cgroupParent names the control groups of a data directory's sandboxes. It is the same
// after a restart, and another for another directory: a server takes what is in its groups
// and not in its records for remains, and removes it.
func cgroupParent(dataDir string) string {
	if abs, err := filepath.Abs(dataDir); err == nil {
		dataDir = abs
	}
	sum := sha256.Sum256([]byte(dataDir))
	return "hutch-" + hex.EncodeToString(sum[:6])
}

// lockDir makes sure that one server works in a data directory. The lock goes with the process.
func lockDir(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, "serve.lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("another hutch serve works in %s: stop it, or choose another --data-dir", dir)
	}
	return f, nil
}
