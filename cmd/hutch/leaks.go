package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"hutch.dev/hutch"
	"hutch.dev/hutch/api"
	"hutch.dev/hutch/internal/cli"
	"hutch.dev/hutch/internal/control"
	"hutch.dev/hutch/internal/egress"
	"hutch.dev/hutch/internal/keeper"
	"hutch.dev/hutch/internal/node"
	"hutch.dev/hutch/internal/runtime/gvisor"
	"hutch.dev/hutch/internal/store/sqlite"
	"hutch.dev/hutch/internal/template"
)

// Exit codes of `hutch leaks`.
const (
	exitLeaks   = 1 // there are some
	exitNoLook  = 2 // it could not look
	lookTimeout = time.Minute
)

// leaksConfig is what `hutch leaks` is told.
type leaksConfig struct {
	serveConfig

	json, sweep bool
}

func newLeaks() *cobra.Command {
	var cfg leaksConfig
	c := &cobra.Command{
		Use:   "leaks",
		Short: "Say what is on this machine that no record accounts for",
		Long: "Compares the records with what is on this machine: processes, control groups, mounts,\n" +
			"state, links, entries of the keeper, what builds left. Prints a line for each difference\n" +
			"and exits with 1 if there is one, with 0 and nothing printed if there is none, with 2 if it\n" +
			"could not look. A server that runs is asked; without one the records are only read.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := context.WithTimeout(cmd.Context(), lookTimeout)
			defer cancel()
			found, err := cfg.look(ctx)
			if err != nil {
				fmt.Fprintf(cmd.ErrOrStderr(), "hutch: %s\n", err)
				return &cli.ExitError{Code: exitNoLook}
			}
			if err := cfg.print(cmd.OutOrStdout(), found); err != nil {
				return err
			}
			if len(found.Leaks) > 0 {
				return &cli.ExitError{Code: exitLeaks}
			}
			return nil
		},
	}
	f := c.Flags()
	f.StringVar(&cfg.dataDir, "data-dir", defaultDataDir(), "data directory of the server")
	f.StringVar(&cfg.cacheDir, "cache-dir", os.Getenv("HUTCH_CACHE_DIR"), "where root images are kept (default: in the data directory)")
	f.BoolVar(&cfg.json, "json", false, "print JSON")
	f.BoolVar(&cfg.sweep, "sweep", false, "have the server remove what is left of sandboxes that are not on record")
	return c
}

// look asks the server, if one runs in the data directory, else looks itself.
func (c leaksConfig) look(ctx context.Context) (api.Leaks, error) {
	running, err := served(c.dataDir)
	if err != nil {
		return api.Leaks{}, err
	}
	if running {
		cl, err := cli.OSEnv(buildInfo()).Local(c.dataDir, "")
		if err != nil {
			return api.Leaks{}, err
		}
		if c.sweep {
			return cl.SweepLeaks(ctx)
		}
		return cl.Leaks(ctx)
	}
	if c.sweep {
		return api.Leaks{}, errors.New("no server runs here, and it is the server that sweeps: start `hutch serve`, which does so at its start")
	}
	out, err := c.lookTwice(ctx)
	if err != nil {
		return api.Leaks{}, err
	}
	if running, err := served(c.dataDir); err == nil && running {
		return api.Leaks{}, errors.New("a server was started meanwhile: look again")
	}
	return out, nil
}

// served reports whether a server works in dir, by its lock, which goes with its process. The
// look at the lock is over at once, and a server that starts waits for it.
func served(dir string) (bool, error) {
	f, err := os.Open(filepath.Join(dir, lockFile))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer f.Close()
	err = unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return true, nil
	}
	return false, err
}

// lookTwice compares records and host without a server.
func (c leaksConfig) lookTwice(ctx context.Context) (api.Leaks, error) {
	first, err := c.lookOnce(ctx)
	if err != nil || len(first) == 0 {
		return api.Leaks{}, err
	}
	t := time.NewTimer(control.SecondLook)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
		return api.Leaks{}, context.Cause(ctx)
	}
	second, err := c.lookOnce(ctx)
	if err != nil {
		return api.Leaks{}, err
	}
	var out api.Leaks
	for _, l := range control.Confirmed(first, second) {
		out.Leaks = append(out.Leaks, api.Leak{Kind: l.Kind, Name: l.Name, SandboxID: l.Sandbox, Why: l.Why, Since: l.Since})
	}
	return out, nil
}

func (c leaksConfig) lookOnce(ctx context.Context) ([]hutch.Leak, error) {
	survey, done, err := c.survey(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	traces, err := survey.Traces(ctx, true)
	if err != nil {
		return nil, err
	}
	records, err := sqlite.Living(ctx, filepath.Join(c.dataDir, dbFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("there are no records in %s: --data-dir names the data directory of a server", c.dataDir)
	}
	if err != nil {
		return nil, err
	}
	return control.Leaks(control.Sighting{Records: records, Traces: traces}), nil
}

// survey is a look at what is here without a server. A companion that does not run holds
// nothing. Done must be called.
func (c leaksConfig) survey(ctx context.Context) (s node.Survey, done func(), err error) {
	log := slog.New(slog.DiscardHandler)
	var close []func()
	done = func() {
		for _, f := range close {
			f()
		}
	}
	s.Runtime = gvisor.New(c.isolator("", log))
	s.Temp = c.leftovers(newBuilder(c.imageDir(), log))
	k, err := keeper.Dial(ctx, c.dataDir)
	if err == nil {
		s.Keeper = lister(func(ctx context.Context) ([]hutch.Trace, error) { return listKept(ctx, k) })
		close = append(close, k.Close)
	} else if !absent(err) {
		return s, done, fmt.Errorf("ask the keeper: %w", err)
	}
	e, err := egress.Dial(ctx, c.dataDir)
	if err == nil {
		s.Egress = lister(func(ctx context.Context) ([]hutch.Trace, error) { return listLinks(ctx, e) })
		close = append(close, e.Close)
	} else if !absent(err) {
		done()
		return s, done, fmt.Errorf("ask the egress gateway: %w", err)
	}
	return s, done, nil
}

// isolator is how a data directory's sandboxes are run, and found.
func (c serveConfig) isolator(exe string, log *slog.Logger) gvisor.Config {
	return gvisor.Config{StateDir: filepath.Join(c.dataDir, "run"), Exe: exe, CgroupParent: cgroupParent(c.dataDir), Log: log}
}

// absent says of the error of a call to a companion that there is none: no socket, or one
// that nobody listens on any more.
func absent(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ECONNREFUSED)
}

// lister is a function as the survey wants it.
type lister func(context.Context) ([]hutch.Trace, error)

// List implements node.Lister.
func (l lister) List(ctx context.Context) ([]hutch.Trace, error) { return l(ctx) }

// leftovers looks for what was left half made: by builds, and beside the server's own files.
func (c serveConfig) leftovers(b *template.Builder) func(context.Context) ([]hutch.Trace, error) {
	return func(ctx context.Context) ([]hutch.Trace, error) {
		built, err := b.Leftovers(ctx)
		if err != nil {
			return nil, err
		}
		for _, dir := range []string{c.dataDir, filepath.Join(c.dataDir, guestImages)} {
			own, err := template.HalfWritten(dir)
			if err != nil {
				return nil, err
			}
			built = append(built, own...)
		}
		return built, nil
	}
}

func (c leaksConfig) print(w io.Writer, l api.Leaks) error {
	if c.json {
		l.Leaks, l.Swept = append([]api.Leak{}, l.Leaks...), append([]api.Leak{}, l.Swept...) // none is []
		return json.NewEncoder(w).Encode(l)
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, x := range l.Swept {
		fmt.Fprintln(t, leakLine(x, "removed: "+x.Why))
	}
	for _, x := range l.Leaks {
		fmt.Fprintln(t, leakLine(x, x.Why))
	}
	return t.Flush()
}

func leakLine(x api.Leak, why string) string {
	since := "-"
	if !x.Since.IsZero() {
		since = x.Since.UTC().Format(time.RFC3339)
	}
	return strings.Join([]string{string(x.Kind), x.Name, since, why}, "\t")
}
