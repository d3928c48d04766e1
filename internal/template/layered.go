package template

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"hutch.dev/hutch/internal/template/erofs"
)

// layeredVersion is raised whenever a recipe that builds upon another would make another
// image from the same base than before.
const layeredVersion = "1"

// copyBase makes the tree that of the recipe below, built for the purpose if it is not
// there.
func (run *building) copyBase(ctx context.Context) error {
	run.begin(StepBase, "", nil)
	below := newTracker(Options{
		Progress: func(p Progress) { run.at(0.9 * p.Fraction) },
		Log:      func(_ Step, line string) { run.note("%s", line) },
	})
	below.begin(StepPlan, "", nil)
	base, err := run.run(ctx, *run.plan.base, Options{}, below)
	if err != nil {
		return err
	}
	f, err := run.images.Open(base.Image.Digest)
	if err != nil {
		return err
	}
	defer f.Close()
	run.note("from %s, image %s", base.Source, base.Image.Digest)
	run.sourceDate = base.SourceDate
	if err := erofs.Extract(ctx, f, base.Image.SizeBytes, run.tree); err != nil {
		return fmt.Errorf("copy the tree of %s: %w", base.Name, err)
	}
	return nil
}

// treeSettings make the machine's apt work on a tree: it reads its state and puts
// packages there, and runs dpkg inside. Sources and keys are the machine's.
const treeSettings = `Dir "%[1]s/";
Dir::Etc::main "/dev/null";
Dir::Etc::parts "/dev/null";
Dir::Etc::sourcelist "%[2]s";
Dir::Etc::sourceparts "/dev/null";
Dir::Etc::trusted "/etc/apt/trusted.gpg";
Dir::Etc::trustedparts "/etc/apt/trusted.gpg.d";
DPkg::Chroot-Directory "%[1]s";
Dpkg::Use-Pty "0";
`

// addPackages installs the recipe's own packages into the tree it builds upon.
func (run *building) addPackages(ctx context.Context) error {
	run.begin(StepBootstrap, "", nil)
	root, err := os.OpenRoot(run.tree)
	if err != nil {
		return fmt.Errorf("open tree: %w", err)
	}
	defer func() { _ = root.Close() }()
	if err := replaceFile(root, dpkgFile, []byte(run.dpkgFile()), 0o644); err != nil {
		return fmt.Errorf("write dpkg's settings: %w", err)
	}
	settings, err := aptSettings(ctx)
	if err != nil {
		return err
	}
	// Also without packages: what is written of the mirror into the image is in it.
	sources, conf := filepath.Join(run.dir, "build.sources"), filepath.Join(run.dir, "apt.conf")
	settings += fmt.Sprintf(treeSettings, run.tree, sources)
	if err := os.WriteFile(conf, []byte(settings), 0o600); err != nil {
		return fmt.Errorf("write apt's settings: %w", err)
	}
	if len(run.plan.own.Packages) == 0 {
		return nil
	}
	if err := os.WriteFile(sources, []byte(run.plan.sources.Deb822()), 0o600); err != nil {
		return fmt.Errorf("write package sources: %w", err)
	}
	for _, argv := range [][]string{
		{"apt-get", "-q", "update"},
		append([]string{"apt-get", "-q", "-y", "install"}, run.plan.own.Packages...),
	} {
		j := job{argv: argv, around: run.tree, env: []string{"APT_CONFIG=" + conf}, out: run.tracker}
		if err := j.run(ctx); err != nil {
			return err
		}
	}
	date, err := newestRelease(run.tree)
	if err != nil {
		return err
	}
	run.sourceDate = newest(run.sourceDate, date)
	return nil
}

// dpkgFile is where an image has dpkg's settings.
const dpkgFile = "etc/dpkg/dpkg.cfg.d/hutch"

func (run *building) dpkgFile() string { return strings.Join(run.dpkgOptions(), "\n") + "\n" }
