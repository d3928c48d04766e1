package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/netip"
	"path/filepath"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/control"
	"hutch.dev/hutch/internal/egress/policy"
)

// egressFileName is the file in the data directory, where none is named.
const egressFileName = "egress.json"

// egressEvery is how often that file is looked at.
const egressEvery = 2 * time.Second

// egressFile is the file of what sandboxes may reach. It is read again when it changes; what is
// wrong in it then changes nothing, and is logged once.
type egressFile struct {
	path     string
	optional bool // that there is none is as if it said nothing
	set      func(context.Context, control.NetworkConfig) error
	log      *slog.Logger

	last    []byte // what was read last; nil before
	trouble string // what was logged last; empty while all is well
}

// newEgressFile is the file that cfg names, or the one in the data directory.
func newEgressFile(cfg serveConfig, set func(context.Context, control.NetworkConfig) error, log *slog.Logger) *egressFile {
	if cfg.egress != "" {
		return &egressFile{path: cfg.egress, set: set, log: log}
	}
	return &egressFile{path: filepath.Join(cfg.dataDir, egressFileName), optional: true, set: set, log: log}
}

// readEgress refuses a file that could not be held, before anything is started.
func (c *serveConfig) readEgress() error {
	f := newEgressFile(*c, func(_ context.Context, n control.NetworkConfig) error { return n.Check() }, nil)
	return f.load(context.Background())
}

// load reads the file and sets what is in it, if anything changed.
func (f *egressFile) load(ctx context.Context) error {
	b, err := readSmall(f.path)
	if f.optional && errors.Is(err, fs.ErrNotExist) {
		b, err = []byte("{}"), nil
	}
	if err != nil || f.last != nil && f.trouble == "" && bytes.Equal(b, f.last) {
		return err
	}
	cfg, err := parseEgress(b)
	if err == nil {
		err = f.set(ctx, cfg)
	}
	if err != nil {
		return fmt.Errorf("egress configuration %s: %w", f.path, err)
	}
	f.last = b
	return nil
}

// run keeps to the file until ctx ends.
func (f *egressFile) run(ctx context.Context) error {
	t := time.NewTicker(egressEvery)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
			f.look(ctx)
		}
	}
}

// look loads the file, and logs what comes of it.
func (f *egressFile) look(ctx context.Context) {
	before := f.last
	err := f.load(ctx)
	switch {
	case ctx.Err() != nil:
	case err == nil && f.trouble == "" && bytes.Equal(before, f.last):
	case err == nil:
		f.trouble = ""
		f.log.Info("what sandboxes may reach is set", "op", "network")
	case err.Error() != f.trouble:
		f.trouble = err.Error()
		f.log.Error("what sandboxes may reach stays as it was", "op", "network", "error", err)
	}
}

// egressConfig is the file; docs/network.md describes it.
type egressConfig struct {
	Presets    map[string]policy.Preset           `json:"presets,omitempty"`
	Trusted    []string                           `json:"trusted,omitempty"`
	Exceptions []policy.Exception                 `json:"exceptions,omitempty"`
	Names      map[string]egressName              `json:"names,omitempty"`
	Base       *hutch.NetworkPolicy               `json:"base,omitempty"`
	Projects   map[hutch.ProjectID]*egressProject `json:"projects,omitempty"`
}

// egressName is what the operator says of a host name.
type egressName struct {
	Addrs []netip.Addr `json:"addrs"`
}

// egressProject is what a project's sandboxes get, and may get.
type egressProject struct {
	Default *hutch.NetworkPolicy `json:"default,omitempty"`
	Ceiling *hutch.NetworkPolicy `json:"ceiling,omitempty"`
}

// parseEgress reads the file. What could not be held is for the control plane to refuse.
func parseEgress(b []byte) (control.NetworkConfig, error) {
	var in *egressConfig
	if err := decodeStrictly(b, &in); err != nil {
		return control.NetworkConfig{}, fmt.Errorf("it is not an object in JSON: %w", err)
	}
	if in == nil {
		return control.NetworkConfig{}, errors.New("it is null: {} says nothing")
	}
	out := control.NetworkConfig{
		Env:  policy.Env{Presets: in.Presets, Trusted: in.Trusted, Exceptions: in.Exceptions, Names: map[string]policy.Override{}},
		Base: in.Base, Projects: map[hutch.ProjectID]control.ProjectNetwork{},
	}
	for host, n := range in.Names {
		out.Env.Names[host] = policy.Override{Addrs: n.Addrs}
	}
	for p, x := range in.Projects {
		if p == "" {
			return control.NetworkConfig{}, errors.New("projects: one has no name: * is every project")
		}
		if x == nil {
			x = &egressProject{}
		}
		out.Projects[p] = control.ProjectNetwork{Default: x.Default, Ceiling: x.Ceiling}
	}
	var err error
	out.Env.Own, out.Env.Neighbours, err = hostAddrs()
	return out, err
}

// hostAddrs are the host's own addresses, and the networks that it is on.
func hostAddrs() (own []netip.Addr, neighbours []netip.Prefix, err error) {
	all, err := net.InterfaceAddrs()
	if err != nil {
		return nil, nil, fmt.Errorf("read the host's own addresses: %w", err)
	}
	for _, a := range all {
		p, err := netip.ParsePrefix(a.String())
		if err != nil {
			continue
		}
		own = append(own, p.Addr().Unmap().WithZone(""))
		if p = p.Masked(); p.Bits() > 0 && !p.IsSingleIP() {
			neighbours = append(neighbours, p)
		}
	}
	return own, neighbours, nil
}
