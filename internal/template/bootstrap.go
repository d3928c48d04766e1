package template

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"hutch.dev/hutch/internal/x/aptsource"

	"hutch.dev/hutch/internal/x/pattern"
)

// bootstrap unpacks and configures the packages into the tree.
func (run *building) bootstrap(ctx context.Context) error {
	progress := &bootstrapProgress{}
	run.begin(StepBootstrap, "", progress.line)
	settings, err := aptSettings(ctx)
	if err != nil {
		return err
	}
	sources, conf, tmp := filepath.Join(run.dir, "build.sources"), filepath.Join(run.dir, "apt.conf"), filepath.Join(run.dir, "tmp")
	if err := os.WriteFile(sources, []byte(run.plan.sources.Deb822()), 0o600); err != nil {
		return fmt.Errorf("write package sources: %w", err)
	}
	if err := os.WriteFile(conf, []byte(settings), 0o600); err != nil {
		return fmt.Errorf("write apt's settings: %w", err)
	}
	if err := os.Mkdir(tmp, 0o700); err != nil {
		return fmt.Errorf("make temporary directory: %w", err)
	}
	argv := []string{
		"mmdebstrap", "--verbose", "--mode=root", "--variant=minbase", "--format=directory",
		"--skip=cleanup/apt/lists", // their date is read below
		"--aptopt=" + conf,
	}
	for _, opt := range run.dpkgOptions() {
		argv = append(argv, "--dpkgopt="+opt)
	}
	if pkgs := run.plan.recipe.Packages; len(pkgs) > 0 {
		argv = append(argv, "--include="+strings.Join(pkgs, ","))
	}
	argv = append(argv, run.plan.recipe.Suite, run.tree, sources)
	if err := (job{argv: argv, tmp: tmp, out: run.tracker}).run(ctx); err != nil {
		return err
	}
	run.sourceDate, err = newestRelease(run.tree)
	return err
}

// dpkgOptions are dpkg's settings in the build and in the image.
func (run *building) dpkgOptions() []string {
	// Nothing is worth syncing: a build that is cut off is thrown away, and so is a
	// sandbox's disk.
	opts := []string{"force-unsafe-io"}
	for _, glob := range run.plan.recipe.Exclude {
		opts = append(opts, "path-exclude="+glob)
	}
	for _, glob := range run.plan.recipe.Keep {
		opts = append(opts, "path-include="+glob)
	}
	return opts
}

// carried are the settings of the machine's apt that a build takes over: how to reach
// the mirrors (proxies, certificates, address family) and how much to trust them.
// mmdebstrap runs apt with a configuration of its own and reads none of them.
var carried = pattern.New(`^Acquire::(https?|ftp|tor|mirror|proxy|Retries|ForceIPv[46]|Send-URI-Encoded|Check-Valid-Until|Check-Date|Max-ValidTime|Min-ValidTime|AllowInsecureRepositories|AllowWeakRepositories|AllowDowngradeToInsecureRepositories|By-Hash)\b[^ ]* ".*";$`)

// buildSettings are the settings of apt for every build. Passwords for mirrors stay in
// the machine's files; apt reads them there, for it runs outside of the tree.
const buildSettings = `Dir::Etc::netrc "/etc/apt/auth.conf";
Dir::Etc::netrcparts "/etc/apt/auth.conf.d";
APT::Install-Recommends "false";
APT::Sandbox::User "root";
`

// aptSettings returns apt's configuration for the build.
func aptSettings(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "apt-config", "dump").Output()
	if err != nil {
		return "", fmt.Errorf("read the machine's apt configuration: %w", err)
	}
	var b strings.Builder
	for line := range strings.Lines(string(out)) {
		if carried.MatchString(strings.TrimSuffix(line, "\n")) {
			b.WriteString(line)
		}
	}
	return b.String() + buildSettings, nil
}

// newestRelease returns the date of the newest package index in the tree: the age of
// what is in it, and so the same for everyone who builds from the same packages.
func newestRelease(tree string) (time.Time, error) {
	lists := filepath.Join(tree, "var/lib/apt/lists")
	var newest time.Time
	for _, pattern := range []string{"*_InRelease", "*_Release"} {
		names, err := filepath.Glob(filepath.Join(lists, pattern))
		if err != nil {
			return time.Time{}, fmt.Errorf("find package indexes: %w", err)
		}
		for _, name := range names {
			f, err := os.Open(name)
			if err != nil {
				return time.Time{}, fmt.Errorf("read package index: %w", err)
			}
			rel, err := aptsource.ParseRelease(f)
			f.Close()
			if err != nil {
				return time.Time{}, fmt.Errorf("read package index: %w", err)
			}
			if rel.Date.After(newest) {
				newest = rel.Date
			}
		}
	}
	if newest.IsZero() {
		return time.Time{}, errors.New("no package index with a date was fetched")
	}
	return newest, nil
}

// bootstrapProgress estimates from mmdebstrap's output how far it is. It works in two
// rounds, first the essential packages and then the rest; in each, apt says how many
// there are, and each is fetched, unpacked and set up.
type bootstrapProgress struct {
	rest                     bool // in the second round
	planned                  int  // packages of the round
	fetched, unpacked, setUp int
	last                     float64
}

// Where the rounds are in the step, and what the parts of a round weigh. Measured on
// the base template: of 70 s, fetching takes 2 + 1, extracting the essential packages
// (of which nothing is heard) up to 20, and the second round 40.
const (
	essentialFrom, essentialTo = 0.05, 0.4
	essentialExtracted         = 0.25
	restTo                     = 0.98
	weightFetched              = 0.1
	weightUnpacked             = 0.6
	weightSetUp                = 0.3
)

// newlyInstalled is apt's summary line.
var newlyInstalled = pattern.New(`^\d+ upgraded, (\d+) newly installed`)

// line takes a line of output and says how far the step is.
func (p *bootstrapProgress) line(s string) (float64, bool) {
	switch {
	case strings.HasPrefix(s, "I: downloading packages"):
		p.last = essentialFrom
	case strings.HasPrefix(s, "I: installing essential"):
		p.last = max(p.last, essentialExtracted)
	case strings.HasPrefix(s, "I: installing remaining packages"):
		*p = bootstrapProgress{rest: true, last: essentialTo}
	case strings.HasPrefix(s, "I: success"):
		p.last = 1
	case strings.HasPrefix(s, "Get:"):
		p.fetched++
	case strings.HasPrefix(s, "Unpacking "):
		p.unpacked++
	case strings.HasPrefix(s, "Setting up "):
		p.setUp++
	default:
		m := newlyInstalled.FindStringSubmatch(s)
		if m == nil {
			return p.last, false
		}
		n, err := strconv.Atoi(m[1])
		if err != nil {
			return p.last, false
		}
		p.planned, p.fetched = n, 0 // what was fetched before are indexes
	}
	if p.planned > 0 {
		from, to := essentialFrom, essentialTo
		if p.rest {
			from, to = essentialTo, restTo
		}
		part := func(n int) float64 { return float64(min(n, p.planned)) / float64(p.planned) }
		done := weightFetched*part(p.fetched) + weightUnpacked*part(p.unpacked) + weightSetUp*part(p.setUp)
		p.last = max(p.last, from+(to-from)*done)
	}
	return p.last, true
}
