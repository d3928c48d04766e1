package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"hutch.dev/hutch"
	"hutch.dev/hutch/api"
	"hutch.dev/hutch/internal/auth"
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
	"hutch.dev/hutch/internal/x/atomicfile"
)

// drainTimeout is how long requests under way get when the server is told to stop. Waits
// and streams are ended at once, to be taken up again; creates and kills are finished.
const drainTimeout = 30 * time.Second

// serveConfig is what `hutch serve` is told.
type serveConfig struct {
	dataDir  string
	listen   string
	cacheDir string // of root images; empty = below dataDir
	jsonLog  bool
	control  control.Config
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
	f.StringVar(&cfg.cacheDir, "cache-dir", os.Getenv("HUTCH_CACHE_DIR"), "where root images are kept (default: in the data directory)")
	f.BoolVar(&cfg.jsonLog, "log-json", false, "log JSON objects instead of text")
	f.DurationVar(&cfg.control.DefaultTTL, "default-ttl", time.Hour, "time to live of a sandbox that asks for none")
	f.DurationVar(&cfg.control.MaxTTL, "max-ttl", 24*time.Hour, "longest time to live")
	f.DurationVar(&cfg.control.Retention, "retention", 24*time.Hour, "how long ended sandboxes and their commands are remembered")
	f.IntVar(&cfg.control.MaxSandboxes, "max-sandboxes", 1000, "most sandboxes alive at once")
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

// server is everything `hutch serve` runs.
type server struct {
	cfg     serveConfig
	log     *slog.Logger
	lock    *os.File
	store   *sqlite.Store
	keys    *auth.Keyring
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
			return c, c.Attach(ctx)
		},
		refill: func(ctx context.Context) error { return s.node.RefillKeeper(ctx) },
	}
	s.egress = &companion[*egress.Client]{
		name: "egress gateway", log: s.log,
		start: func(ctx context.Context) (*egress.Client, error) {
			return egress.Start(ctx, dir, buildVersion, exe, "egress", "--data-dir", dir)
		},
		refill: func(ctx context.Context) error { return s.node.RefillEgress(ctx) },
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
	s.control = control.New(s.cfg.control, s.store, s.metrics, s.log)
	s.node = node.New(node.Config{Guest: guest, ImagePath: images.Path, Log: s.log},
		s.rt, keeperPort{s.keeper}, egressPort{s.egress}, s.control)
	s.control.Attach(s.node)
	return nil
}

// adminKey makes the first key, for this machine's own command line.
func (s *server) adminKey(ctx context.Context) error {
	path := filepath.Join(s.cfg.dataDir, adminKeyFile)
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
	if err := atomicfile.Write(filepath.Join(s.cfg.dataDir, listenFile), []byte(ln.Addr().String()+"\n"), 0o600); err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	srv := httpapi.Server(ctx, s.handler(), s.log)
	g.Go(func() error {
		if err := srv.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	})
	g.Go(func() error {
		<-ctx.Done()
		sctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainTimeout)
		defer cancel()
		if err := srv.Shutdown(sctx); err != nil {
			return srv.Close()
		}
		return nil
	})
	g.Go(func() error { return s.keeper.run(ctx) })
	g.Go(func() error { return s.egress.run(ctx) })
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

func (s *server) handler() http.Handler {
	return s.whenRecovered(httpapi.New(httpapi.Config{Build: buildInfo()}, httpapi.Services{
		Sandboxes: s.control, Pausing: s.control, Execs: s.control, ExecControl: s.control,
		Templates: s.control, Keys: keysPort{s.keys}, Events: s.control, Health: s.control,
		Auth: s.keys, Idempotency: s.store, Metrics: s.metrics,
		MetricsPage: promhttp.HandlerFor(s.reg, promhttp.HandlerOpts{}),
	}, s.log))
}

// whenRecovered puts callers off until the sandboxes of the last run are taken over: one
// that is not yet would seem to be gone, and its caller would give it up.
func (s *server) whenRecovered(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasPrefix(r.URL.Path, "/v1/") || s.control.Recovered() {
			h.ServeHTTP(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Retry-After", "1")
		w.Header().Set("Connection", "close") // whatever body was announced is not waited for
		w.WriteHeader(http.StatusServiceUnavailable)
		_ = json.NewEncoder(w).Encode(api.Error{
			Error: "the server is starting: sandboxes of the last run are being taken over; ask again in a moment",
			Code:  hutch.CodeUnavailable,
		})
	})
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
