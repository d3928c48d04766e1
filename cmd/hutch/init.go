package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/egress/policy"
	"hutch.dev/hutch/internal/egress/presets"
	"hutch.dev/hutch/internal/x/atomicfile"
)

// askTime bounds one question to a package client, and to the resolver.
const askTime = 20 * time.Second

func newInit() *cobra.Command {
	var (
		dir   string
		force bool
	)
	c := &cobra.Command{
		Use:   "init",
		Short: "Write what sandboxes may reach, from this machine's package clients",
		Long: "Writes egress.json into the data directory: as presets, the hosts that this machine's own\n" +
			"apt, pip, npm, Go, Cargo and gh fetch from, with the exceptions that they take where their\n" +
			"names have private addresses; and for sandboxes of which nobody says anything, those of\n" +
			"them that are package registries. Nothing is fetched. See docs/network.md.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			home, err := os.UserHomeDir()
			if err != nil {
				return err
			}
			m := presets.Machine{Root: "/", Home: home, Getenv: os.Getenv, Run: askClient, Resolve: resolve}
			if m.Addrs, err = interfaces(); err != nil {
				return err
			}
			return initEgress(cmd.Context(), m, filepath.Join(dir, egressFileName), force, cmd.OutOrStdout())
		},
	}
	c.Flags().StringVar(&dir, "data-dir", defaultDataDir(), "data directory of the server")
	c.Flags().BoolVar(&force, "force", false, "replace the file that is there")
	return c
}

// initEgress writes the file at path from what m says, and says what it found.
func initEgress(ctx context.Context, m presets.Machine, path string, force bool, out io.Writer) error {
	if _, err := os.Stat(path); !force && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s is there already: --force replaces it", path)
	}
	found, err := presets.Find(ctx, m)
	if err != nil {
		return err
	}
	cfg := egressConfig{Presets: found.Env.Presets, Trusted: found.Env.Trusted, Exceptions: found.Env.Exceptions}
	if len(cfg.Trusted) > 0 {
		cfg.Projects = map[hutch.ProjectID]*egressProject{hutch.EveryProject: {Default: &hutch.NetworkPolicy{Mode: hutch.NetworkTrusted}}}
	}
	b, err := json.MarshalIndent(cfg, "", "  ")
	if err != nil {
		return err
	}
	back, err := parseEgress(b)
	if err == nil {
		err = back.Check()
	}
	if err != nil {
		return fmt.Errorf("what was found can't be held: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	if err := atomicfile.Write(path, append(b, '\n'), 0o600); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(cfg.Presets)) {
		trusted := ""
		if slices.Contains(cfg.Trusted, name) {
			trusted = ", trusted"
		}
		fmt.Fprintf(out, "%-8s %s%s\n", name, strings.Join(domains(cfg.Presets[name]), " "), trusted)
	}
	for _, p := range found.Problems {
		fmt.Fprintf(out, "note: %s\n", p)
	}
	_, err = fmt.Fprintf(out, "%s is written; a server that runs takes it over within seconds\n", path)
	return err
}

func domains(p policy.Preset) (all []string) {
	for _, h := range p.Hosts {
		all = append(all, h.Domain)
	}
	return all
}

// askClient runs a package client where there are no settings of anybody's project.
func askClient(ctx context.Context, name string, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	c := exec.CommandContext(ctx, name, args...)
	c.Dir = "/"
	return c.Output()
}

func resolve(ctx context.Context, host string) ([]netip.Addr, error) {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	return net.DefaultResolver.LookupNetIP(ctx, "ip", host)
}

// interfaces are the addresses of this machine, with their networks.
func interfaces() (all []netip.Prefix, err error) {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("read the host's own addresses: %w", err)
	}
	for _, a := range addrs {
		if p, err := netip.ParsePrefix(a.String()); err == nil {
			all = append(all, p)
		}
	}
	return all, nil
}
