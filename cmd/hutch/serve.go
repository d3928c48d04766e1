package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

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
	"hutch.dev/hutch/internal/x/failpoint"
)

// drainTimeout is how long a server that is told to stop takes to end at the most. First
// creates are refused and those under way finished, while everything else goes on; then waits
// and streams are ended, to be taken up again, and what remains, such as a kill, is finished.
const drainTimeout = 30 * time.Second

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
	builder *template.Builder
	budgets *budgetFile // nil = projects have none
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
	if err := removeHalfWritten(cfg.dataDir, filepath.Join(cfg.dataDir, guestImages)); err != nil {
		return nil, err
	}
	if s.store, err = sqlite.Open(ctx, filepath.Join(cfg.dataDir, dbFile)); err != nil {
		return nil, err
	}
	failpoint.At(failpoint.ServeRecordsOpen)
	s.keys = auth.New(s.store, time.Now)
	if s.tokens, err = auth.OpenSandboxTokens(ctx, s.store); err != nil {
		return nil, err
	}
	if err := s.openCompanions(ctx); err != nil {
		return nil, err
	}
	failpoint.At(failpoint.ServeCompanionsUp)
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
	dir := filepath.Join(s.cfg.dataDir, guestImages)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	guest, _, err := guestimage.Write(dir)
	if err != nil {
		return err
	}
	images := rootfs.New(rootfs.Config{Dir: s.cfg.imageDir()})
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	s.rt = gvisor.New(s.cfg.isolator(exe, s.log))
	s.metrics = obs.New(s.reg, func() int { return s.node.Count() })
	builds := builderConfig(s.cfg.imageDir())
	builds.Recipes = s.cfg.recipes
	builder := template.New(builds, images, s.log)
	s.builder = builder
	s.cfg.control.Builder = template.NewService(builder, s.cfg.builds)
	if filepath.Clean(s.cfg.imageDir()) == filepath.Clean(s.cfg.dataDir) { // else others may share them
		s.cfg.control.Images = imagesPort{images}
	}
	s.cfg.control.HostMemory = hostMemory
	s.cfg.control.ProjectMilliCPU = s.cfg.projectCPUs * 1000
	s.control = control.New(s.cfg.control, s.store, s.metrics, s.log)
	s.node = node.New(node.Config{Guest: guest, ImagePath: images.Path, Log: s.log, Temp: s.cfg.leftovers(builder), EndSilent: s.cfg.silence()},
		s.rt, keeperPort{s.keeper}, egressPort{s.egress}, s.control)
	s.control.Attach(s.node)
	if path := s.cfg.budgets; path != "" {
		s.budgets = &budgetFile{path: path, set: s.control.SetProjectBudgets, log: s.log}
		if err := s.budgets.load(); err != nil {
			return fmt.Errorf("--project-budgets %s: %w", path, err)
		}
	}
	obs.Prepared(s.reg, s.control.PreparedMachines)
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
	failpoint.At(failpoint.ServeKeyOnRecord)
	return atomicfile.Write(path, []byte(plain+"\n"), 0o600)
}

// run serves until told ends, then lets go of the sandboxes and returns.
func (s *server) run(told context.Context) error {
	defer s.close()
	ctx, stop := context.WithCancel(context.WithoutCancel(told))
	defer stop()
	ln, err := (&net.ListenConfig{}).Listen(ctx, "tcp", s.cfg.listen)
	if err != nil {
		return fmt.Errorf("listen on %s: %w", s.cfg.listen, err)
	}
	addrFile := filepath.Join(s.cfg.dataDir, cli.ListenFile)
	if err := atomicfile.Write(addrFile, []byte(ln.Addr().String()+"\n"), 0o600); err != nil {
		return err
	}
	failpoint.At(failpoint.ServeListening)
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
		select {
		case <-told.Done():
		case <-ctx.Done(): // something failed
		}
		defer endCompanions()
		// First of all: whoever listens there next must not be taken for this server.
		if err := os.Remove(addrFile); err != nil {
			s.log.Warn("the address of this server could not be removed", "error", err)
		}
		failpoint.At(failpoint.ServeUnlisted)
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainTimeout)
		defer cancel()
		s.log.Info("stopping: no more sandboxes are made; those that run go on")
		if err := s.control.Drain(last); err != nil {
			s.log.Warn("a create is cut off", "op", "drain", "error", err)
		}
		stop() // waits and streams hear of it
		if err := srv.Shutdown(last); err != nil {
			return srv.Close()
		}
		return nil
	})
	g.Go(func() error { return s.keeper.run(drained) })
	g.Go(func() error { return s.egress.run(drained) })
	g.Go(func() error { return s.node.Run(ctx) })
	if s.budgets != nil {
		g.Go(func() error { return s.budgets.run(ctx) })
	}
	g.Go(func() error {
		s.builder.Sweep() // what the last run was building is on record as failed by now, or will be
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
		failpoint.At(failpoint.ServeLetGo)
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
