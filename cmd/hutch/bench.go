package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"
	"golang.org/x/term"
	"gvisor.dev/gvisor/runsc/version"

	"hutch.dev/hutch"
	apiclient "hutch.dev/hutch/client"
	"hutch.dev/hutch/internal/bench"
	"hutch.dev/hutch/internal/cli"
	"hutch.dev/hutch/internal/guestimage"
	"hutch.dev/hutch/internal/link"
	"hutch.dev/hutch/internal/rootfs"
	"hutch.dev/hutch/internal/runtime"
	"hutch.dev/hutch/internal/runtime/gvisor"
	"hutch.dev/hutch/internal/x/atomicfile"
	"hutch.dev/hutch/internal/x/cgroup"
)

func newBench() *cobra.Command {
	c := &cobra.Command{Use: "bench", Short: "Measure what a caller waits for, and the floor beneath it"}
	c.AddCommand(newBenchCreate(), newBenchPrepared(), newBenchExec(), newBenchFiles(), newBenchTerminals(),
		newBenchDensity(), newBenchCreates(), newBenchDisk(), newBenchCycles(), newBenchSiege(),
		newBenchReport())
	return c
}

// benchConfig is what a benchmark is told.
type benchConfig struct {
	settings    bench.Settings
	url         string
	cacheDir    string
	out         string
	asJSON      bool
	noKeepAlive bool
	api         string // how the API is called, where it is not as usual
	own         bool   // a server of its own is needed
	prepare     int    // machines that it keeps ready
	inside      bool   // the server runs in this process
	strict      bool   // what is not held is an error
	progressOf  int    // how many steps there are, where it is not the number of runs
	podman      bool   // podman is measured beside the floor
	runsc       string // stock gVisor for it
}

// measurement is one of the benchmarks of package bench.
type measurement func(context.Context, bench.Settings, bench.Server, *bench.Floor, func(done int)) (*bench.Report, error)

func newBenchCreate() *cobra.Command {
	var cfg benchConfig
	c := &cobra.Command{
		Use:   "create",
		Short: "Measure create, first output and kill",
		Long: "Makes a sandbox, runs a first command in it and ends it, again and again, and says how\n" +
			"long a caller waits. With --baseline the same machine is made by hand in turn, with no\n" +
			"platform around it, and the two are compared; so is podman, if it is installed, with\n" +
			"crun and with stock gVisor. Without --url it starts a server of its own, below the\n" +
			"directory for temporary files, and leaves nothing of it.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return cfg.run(cmd, onAPI(bench.Create), "from asking for the sandbox to the first byte of `/bin/echo hi` at the caller; the machine starts cold")
		},
	}
	cfg.flags(c, 200, 20*time.Minute)
	cfg.podmanFlags(c)
	c.Flags().IntVar(&cfg.settings.Parallel, "parallel", 1, "sandboxes made at once")
	return c
}

func newBenchExec() *cobra.Command {
	var cfg benchConfig
	cfg.settings.Parallel = 1
	c := &cobra.Command{
		Use:   "exec",
		Short: "Measure commands in a sandbox that stands",
		Long: "Runs commands in one sandbox: a round trip that prints nothing, the first byte of a\n" +
			"stream, and the transfer of much output. With --baseline the guest agent of a second\n" +
			"sandbox is asked for the same by hand, in turn.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return cfg.run(cmd, onAPI(bench.Exec), "from asking for the command to its result, its first byte, or the last of all bytes, at the caller")
		},
	}
	cfg.flags(c, 500, 20*time.Minute)
	c.Flags().Int64Var(&cfg.settings.Bytes, "bytes", 200_000_000, "size of a transfer")
	c.Flags().IntVar(&cfg.settings.Transfer, "transfers", 5, "transfers of each subject; 0 leaves them out")
	return c
}

// onAPI is a measurement that needs no more of the server than its API.
func onAPI(m func(context.Context, bench.Settings, *apiclient.Client, *bench.Floor, func(done int)) (*bench.Report, error)) measurement {
	return func(ctx context.Context, s bench.Settings, srv bench.Server, floor *bench.Floor, progress func(done int)) (*bench.Report, error) {
		return m(ctx, s, srv.API, floor, progress)
	}
}

// flags that all benchmarks have.
func (cfg *benchConfig) flags(c *cobra.Command, n int, limit time.Duration) {
	f, s := c.Flags(), &cfg.settings
	f.IntVarP(&s.N, "runs", "n", n, "counted runs of each subject")
	f.IntVar(&s.Warmup, "warmup", 5, "runs of each before them, not counted")
	f.StringVar(&s.Template, "template", "base", "template of the sandboxes")
	f.StringVar(&s.Tier, "tier", "", "disk tier, disk or memory (default: the template's)")
	f.IntVar(&s.MemoryMB, "memory", 0, "memory in MiB (default: the template's)")
	f.BoolVar(&s.Baseline, "baseline", false, "measure the floor too, in turn")
	f.DurationVar(&s.Limit, "limit", limit, "end early after this time")
	f.StringVar(&cfg.url, "url", os.Getenv(cli.EnvURL), "measure this server, with the key in "+cli.EnvKey+", instead of one of its own")
	f.BoolVar(&cfg.noKeepAlive, "no-keep-alive", false, "a new connection for every call")
	cfg.outputFlags(c)
}

func (cfg *benchConfig) outputFlags(c *cobra.Command) {
	f := c.Flags()
	f.BoolVar(&cfg.asJSON, "json", false, "print the raw results as JSON")
	f.StringVar(&cfg.out, "out", "", "also write the raw results to this file")
	f.StringVar(&cfg.cacheDir, "cache-dir", defaultCacheDir(), "where root images are kept")
}

// defaultCacheDir is where root images are, unless told otherwise: where a server of this
// machine would have them.
func defaultCacheDir() string {
	if d := os.Getenv(rootfs.DirEnv); d != "" {
		return d
	}
	return defaultDataDir()
}

// run measures and prints.
func (cfg *benchConfig) run(cmd *cobra.Command, measure measurement, clock string) (err error) {
	ctx := cmd.Context()
	if err := cfg.check(); err != nil {
		return err
	}
	// Short, since control sockets live below it.
	dir, err := os.MkdirTemp("", "hutch-bench")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	var cond bench.Conditions
	cond.Host(time.Now())
	cfg.describe(&cond, clock)

	guestDir, srv := dir, bench.Server{URL: cfg.url, Key: os.Getenv(cli.EnvKey), HTTP: cfg.httpClient()}
	if srv.URL == "" {
		var s *ownServer
		if cfg.inside {
			s, err = startServerInside(ctx, filepath.Join(dir, "data"), cfg.cacheDir)
		} else {
			s, err = startOwnServer(ctx, filepath.Join(dir, "data"), cfg.cacheDir, "--prepare", strconv.Itoa(cfg.prepare))
		}
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, s.close(ctx)) }()
		guestDir, srv.URL, srv.Key, srv.PID = filepath.Join(s.dir, "guest"), s.url, s.key, s.pid
		cond.RecordsFS = bench.FileSystem(s.dir)
		if srv.Host, err = hostOf(ctx, s, cfg.cacheDir); err != nil {
			return err
		}
	}
	opts := cfg.clientOptions(srv.Key)
	if cfg.inside { // where connections are looked for afterwards, they must be ours to close
		opts = append(opts, apiclient.WithHTTPClient(srv.HTTP))
	}
	if srv.API, err = apiclient.New(srv.URL, opts...); err != nil {
		return err
	}
	var floor *bench.Floor
	if cfg.settings.Baseline {
		var done func(context.Context) error
		if floor, done, err = newFloor(filepath.Join(dir, "floor"), guestDir, cfg.cacheDir); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, done(ctx)) }()
		if cfg.podman {
			floor.Podman = cfg.newPodman(filepath.Join(dir, "p"))
		}
	}
	progress, hide := benchProgress(cmd.ErrOrStderr(), cfg.steps())
	rep, err := measure(ctx, cfg.settings, srv, floor, progress)
	hide()
	if rep == nil {
		return err
	}
	cond.LoadAfter = bench.LoadAverage()
	rep.Conditions = cond
	return errors.Join(err, cfg.print(cmd.OutOrStdout(), rep), cfg.verdict(rep))
}

// steps is how many steps of progress there are.
func (cfg *benchConfig) steps() int {
	switch {
	case cfg.progressOf > 0:
		return cfg.progressOf
	case len(cfg.settings.Tiers) > 0:
		return cfg.settings.N * len(cfg.settings.Tiers)
	}
	return cfg.settings.N
}

func (cfg *benchConfig) check() error {
	s := cfg.settings
	switch {
	case s.N >= 1 && s.Warmup >= 0 && s.Parallel >= 1 && s.Transfer >= 0 && s.Limit > 0:
	case cfg.own:
		return errors.New("-n, --concurrency and --limit must be at least 1, --warmup at least 0")
	default:
		return errors.New("--runs, --parallel and --limit must be at least 1, --warmup and --transfers at least 0")
	}
	if err := cfg.checkPodman(); err != nil {
		return err
	}
	switch {
	case s.Transfer > 0 && s.Bytes <= int64(hutch.DefaultOutputBytes):
		return fmt.Errorf("--bytes must be more than %d, the output budget: less is no transfer", hutch.DefaultOutputBytes)
	case cfg.url != "" && os.Getenv(cli.EnvKey) == "":
		return fmt.Errorf("set %s to a key of the server at %s", cli.EnvKey, cfg.url)
	}
	return nil
}

// describe fills in what is true of every run of this command.
func (cfg *benchConfig) describe(c *bench.Conditions, clock string) {
	c.Hutch, c.GVisor, c.Clock = buildVersion, version.Version(), clock
	c.Cgroups = cgroupVersion()
	c.Start = "cold: gVisor boots the root image; nothing is restored or kept warm"
	if cfg.prepare > 0 {
		c.Start = "prepared: gVisor has booted the root image, and the guest agent runs, before anybody asks; the floor's machine stands, and boots on the clock"
	}
	c.Image = "on the local disk, in the page cache after the warm-up"
	c.Link = "included: a socket pair into a user-space stack that refuses everything; hutch's is served by its gateway process, the floor's in the bench's own"
	c.Server = "of the bench's own: this binary, started for it"
	if cfg.inside {
		c.Server = "of the bench's own, in its process"
	}
	c.Records = "included: SQLite, WAL, synchronous=FULL"
	if cfg.url != "" {
		c.Remote, c.Server, c.Records, c.RecordsFS = true, cfg.url, "included, as that server keeps them", ""
		c.Start, c.Image, c.Link = "as that server does it", "as that server keeps it", "included, as that server has it"
	}
	c.API = "HTTP through the Go client, with an Idempotency-Key on every change"
	if cfg.api != "" {
		c.API = cfg.api
	}
	if cfg.noKeepAlive {
		c.API += "; a new connection for every call"
	} else {
		c.API += "; connections are kept alive"
	}
}

func cgroupVersion() string {
	t, err := cgroup.Detect("hutch")
	switch {
	case err != nil:
		return ""
	case t.V2():
		return "v2"
	}
	return "v1"
}

func (cfg *benchConfig) clientOptions(key string) []apiclient.Option {
	// No retries: a call that had to be made again is a failed run, not a slow one.
	opts := []apiclient.Option{apiclient.WithKey(key), apiclient.WithRetries(0), apiclient.WithUserAgent("hutch-bench/" + buildVersion)}
	if cfg.noKeepAlive {
		opts = append(opts, apiclient.WithHTTPClient(cfg.httpClient()))
	}
	return opts
}

// httpClient is for calls that the Go client does not make. It has no time limit: runs have.
func (cfg *benchConfig) httpClient() *http.Client {
	return &http.Client{Transport: &http.Transport{
		DisableKeepAlives: cfg.noKeepAlive, DisableCompression: true, MaxIdleConnsPerHost: maxTerminals,
		ReadBufferSize: socketBuffer, WriteBufferSize: socketBuffer,
	}}
}

// socketBuffer is what a caller who moves files gives to a connection: with the default, 4 KiB,
// half of the time goes into system calls.
const socketBuffer = 256 << 10

// print writes the results: for people or as JSON to w, and to the file if one is named.
func (cfg *benchConfig) print(w io.Writer, rep *bench.Report) error {
	var raw bytes.Buffer
	if err := rep.Write(&raw); err != nil {
		return err
	}
	if cfg.out != "" {
		if err := atomicfile.Write(cfg.out, raw.Bytes(), 0o644); err != nil {
			return fmt.Errorf("write results: %w", err)
		}
	}
	if cfg.asJSON {
		_, err := raw.WriteTo(w)
		return err
	}
	return rep.Text(w)
}

// newFloor makes what the floor is measured with. done removes it from the host.
func newFloor(dir, guestDir, cacheDir string) (_ *bench.Floor, done func(context.Context) error, err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, nil, err
	}
	guest, _, err := guestimage.Write(guestDir)
	if err != nil {
		return nil, nil, err
	}
	log := slog.New(slog.DiscardHandler)
	rt := gvisor.New(gvisor.Config{StateDir: dir, CgroupParent: cgroupParent(dir), Log: log})
	images := rootfs.New(rootfs.Config{Dir: cacheDir})
	floor := &bench.Floor{
		Runtime: rt, Guest: guest, ImagePath: images.Path,
		Attach: func(kind runtime.LinkKind, f *os.File) (io.Closer, error) {
			ep, err := link.Attach(kind, f, refuseAll{}, log)
			if err != nil {
				return nil, err
			}
			return endpointCloser{ep}, nil
		},
	}
	done = func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), ownServerTimeout)
		defer cancel()
		return sweepRuntime(ctx, rt)
	}
	return floor, done, nil
}

// refuseAll is the floor's network: like the gateway's, nothing answers on it.
type refuseAll struct{ link.Handler }

func (refuseAll) Admit(link.Flow) bool { return false }
func (refuseAll) Refused(link.Flow)    {}

type endpointCloser struct{ *link.Endpoint }

func (c endpointCloser) Close() error {
	c.Endpoint.Close()
	return nil
}

// benchProgress shows how far a benchmark is, on a terminal only.
func benchProgress(w io.Writer, n int) (progress func(done int), hide func()) {
	f, ok := w.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return nil, func() {}
	}
	bar := progressbar.NewOptions(n, progressbar.OptionSetWriter(w), progressbar.OptionSetWidth(30),
		progressbar.OptionClearOnFinish(), progressbar.OptionThrottle(100*time.Millisecond),
		progressbar.OptionSetDescription("measuring"), progressbar.OptionShowCount())
	return func(done int) { _ = bar.Set(done) }, func() { _ = bar.Finish() }
}
