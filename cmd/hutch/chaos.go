package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/chaos"
	"hutch.dev/hutch/internal/cli"
	"hutch.dev/hutch/internal/egress"
	"hutch.dev/hutch/internal/keeper"
	"hutch.dev/hutch/internal/x/atomicfile"
	"hutch.dev/hutch/internal/x/cgroup"
	"hutch.dev/hutch/internal/x/pidfd"

	apiclient "hutch.dev/hutch/client"
)

// Bounds of what `hutch chaos` does to a machine.
const (
	maxChaos        = 24 * time.Hour
	maxChaosCallers = 64
	maxChaosBoxes   = 16
	// chaosRetries is how often a caller makes a call again: for some minutes, which is longer
	// than a server takes to come back on a machine with every CPU taken.
	chaosRetries = 30
)

func newChaos() *cobra.Command {
	var s chaos.Settings
	var cacheDir, out string
	c := &cobra.Command{
		Use:    "chaos",
		Short:  "Break a server of its own at random, and say whether it kept its word",
		Hidden: true, // for who develops it
		Long: "Starts a server in a directory of its own, has callers use it, and kills kernels of sandboxes,\n" +
			"guest agents, the server, its keeper and its gateway at random meanwhile. Then it lets the server\n" +
			"settle and compares what is on record and on the host with what the callers were told. Exits with 1\n" +
			"if anything that was promised was not kept. Leaves nothing.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			switch {
			case s.For < time.Second || s.For > maxChaos || s.Every < time.Millisecond:
				return fmt.Errorf("--for must be from 1s to %s, and --every at least 1ms", maxChaos)
			case s.Callers < 1 || s.Callers > maxChaosCallers || s.Boxes < 1 || s.Boxes > maxChaosBoxes:
				return fmt.Errorf("--callers must be from 1 to %d, --boxes from 1 to %d", maxChaosCallers, maxChaosBoxes)
			}
			m, err := newChaosMachine(cmd.Context(), cacheDir)
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, m.close(cmd.Context())) }()
			cl, err := apiclient.New(m.server.url, apiclient.WithKey(m.server.key), apiclient.WithRetries(chaosRetries), apiclient.WithUserAgent("hutch-chaos/"+buildVersion))
			if err != nil {
				return err
			}
			rep, err := chaos.Run(cmd.Context(), s, m, cl)
			if err != nil {
				return fmt.Errorf("%w%s", err, m.server.lastWords())
			}
			if err := tellChaos(cmd.OutOrStdout(), out, rep); err != nil {
				return err
			}
			if len(rep.Violations) > 0 {
				return fmt.Errorf("%d promises were not kept (seed %d)%s", len(rep.Violations), s.Seed, m.server.lastWords())
			}
			return nil
		},
	}
	f := c.Flags()
	f.Uint64Var(&s.Seed, "seed", 1, "of what is done; the moments are the machine's")
	f.DurationVar(&s.For, "for", time.Minute, "how long things are broken")
	f.DurationVar(&s.Every, "every", 700*time.Millisecond, "mean time between two faults")
	f.IntVar(&s.Callers, "callers", 4, "callers at once")
	f.IntVar(&s.Boxes, "boxes", 2, "sandboxes of each caller")
	f.StringVar(&s.Template, "template", "base", "template of the sandboxes")
	f.IntVar(&s.MemoryMB, "memory", 128, "memory of a sandbox in MiB")
	f.StringVar(&cacheDir, "cache-dir", defaultCacheDir(), "where root images are kept")
	f.StringVar(&out, "out", "", "also write the result to this file, as JSON")
	return c
}

// tellChaos says what came of a run, for people, and to a file.
func tellChaos(w io.Writer, file string, rep *chaos.Report) error {
	for _, part := range []struct {
		what string
		n    map[string]int
	}{{"broken", rep.Faults}, {"answered", rep.Calls}} {
		fmt.Fprintf(w, "%s:", part.what)
		for _, k := range slices.Sorted(maps.Keys(part.n)) {
			fmt.Fprintf(w, " %s %d;", k, part.n[k])
		}
		fmt.Fprintln(w)
	}
	for _, v := range rep.Violations {
		fmt.Fprintln(w, "not kept: "+v)
	}
	if file == "" {
		return nil
	}
	b, err := json.MarshalIndent(rep, "", " ")
	if err != nil {
		return err
	}
	return atomicfile.Write(file, append(b, '\n'), 0o644)
}

// chaosMachine is a server of ours that may be broken.
type chaosMachine struct {
	base, cacheDir string
	server         *ownServer
	tree           *cgroup.Tree
}

// newChaosMachine starts one, below the directory for temporary files.
func newChaosMachine(ctx context.Context, cacheDir string) (_ *chaosMachine, err error) {
	base, err := os.MkdirTemp("", "hutch-chaos")
	if err != nil {
		return nil, err
	}
	m := &chaosMachine{base: base, cacheDir: cacheDir}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(base))
		}
	}()
	dir := filepath.Join(base, "data")
	if m.tree, err = cgroup.Detect(cgroupParent(dir)); err != nil {
		return nil, err
	}
	if m.server, err = startOwnServer(ctx, dir, cacheDir); err != nil {
		return nil, err
	}
	return m, nil
}

// close leaves nothing of it.
func (m *chaosMachine) close(ctx context.Context) error {
	return errors.Join(m.server.close(ctx), os.RemoveAll(m.base))
}

// Crash implements chaos.Machine.
func (m *chaosMachine) Crash() error {
	if err := m.server.kill(); err != nil {
		return err
	}
	<-m.server.exited
	return nil
}

// Restart implements chaos.Machine.
func (m *chaosMachine) Restart(ctx context.Context) error {
	addr := strings.TrimPrefix(m.server.url, "http://")
	// What the last run wrote there would be taken for this one's.
	if err := os.Remove(filepath.Join(m.server.dir, cli.ListenFile)); err != nil {
		return err
	}
	s, err := startOwnServer(ctx, m.server.dir, m.cacheDir, "--listen", addr)
	if err != nil {
		return err
	}
	m.server = s
	return nil
}

// EndCompanion implements chaos.Machine.
func (m *chaosMachine) EndCompanion(ctx context.Context, name string) error {
	was, err := m.companion(ctx, name)
	if err != nil {
		return err
	}
	if err := killProcess(was); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, ownServerTimeout)
	defer cancel()
	return poll(ctx, func(ctx context.Context) (bool, error) {
		now, err := m.companion(ctx, name)
		if err != nil || now == was {
			return false, nil //nolint:nilerr // not yet
		}
		return m.ready(ctx), nil
	})
}

// companion is the number of the process that answers as the keeper or the gateway.
func (m *chaosMachine) companion(ctx context.Context, name string) (int, error) {
	if name == "keeper" {
		k, err := keeper.Dial(ctx, m.server.dir)
		if err != nil {
			return 0, err
		}
		defer k.Close()
		return k.Hello().PID, nil
	}
	e, err := egress.Dial(ctx, m.server.dir)
	if err != nil {
		return 0, err
	}
	defer e.Close()
	return e.Hello().PID, nil
}

func (m *chaosMachine) ready(ctx context.Context) bool {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, m.server.url+"/readyz", nil)
	if err != nil {
		return false
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return false
	}
	_ = res.Body.Close()
	return res.StatusCode == http.StatusOK
}

// lastToSpare is the score of programs inside: what the kernel takes first when memory is short.
const lastToSpare = "1000"

// EndMachine implements chaos.Machine.
func (m *chaosMachine) EndMachine(id hutch.SandboxID, part chaos.Part) (struck bool, err error) {
	g, err := m.tree.Open(string(id))
	if err != nil {
		return false, nil //nolint:nilerr // it has no groups any more: it has ended
	}
	pids, err := g.Procs()
	if err != nil {
		return false, nil //nolint:nilerr // likewise
	}
	for _, pid := range pids {
		if !isPart(pid, part) {
			continue
		}
		killed, err := killIn(g, pid)
		if err != nil {
			return struck, err
		}
		struck = struck || killed
	}
	return struck, nil
}

// isPart reports whether a process of a sandbox is of that part of its machine.
func isPart(pid int, part chaos.Part) bool {
	dir := fmt.Sprintf("/proc/%d/", pid)
	cmdline, err := os.ReadFile(dir + "cmdline")
	if err != nil {
		return false // it has ended
	}
	score, err := os.ReadFile(dir + "oom_score_adj")
	if err != nil {
		return false
	}
	first, _, _ := strings.Cut(string(cmdline), "\x00")
	switch part {
	case chaos.Kernel:
		return first == argvSentry
	case chaos.Guest:
		// The process that the guest agent runs in is spared when memory is short; those of
		// programs are not.
		return first != argvSentry && first != argvGofer && strings.TrimSpace(string(score)) != lastToSpare
	}
	return false
}

// killIn kills a process of a sandbox. Its number may be another's by now: it is killed through
// a handle, once it is known to be of the sandbox.
func killIn(g *cgroup.Group, pid int) (bool, error) {
	f, err := pidfd.Open(pid)
	if errors.Is(err, os.ErrProcessDone) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer func() { _ = f.Close() }()
	pids, err := g.Procs()
	if err != nil || !slices.Contains(pids, pid) {
		return false, nil // it has ended, or all of the sandbox has
	}
	err = pidfd.Signal(f, unix.SIGKILL)
	if errors.Is(err, os.ErrProcessDone) {
		return false, nil
	}
	return err == nil, err
}

// Remains implements chaos.Machine.
func (m *chaosMachine) Remains(ctx context.Context) (kernels int, leaks []string, err error) {
	names, err := m.tree.List()
	if err != nil {
		return 0, nil, err
	}
	leaks, err = leaksOf(ctx, m.server.dir, m.cacheDir)
	return len(names), leaks, err
}
