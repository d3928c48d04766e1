package template

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"

	"hutch.dev/hutch/internal/x/aptsource"
)

// plan is a recipe with everything decided that the machine decides.
type plan struct {
	recipe  Recipe // Suite is set
	sources aptsource.Selection
	key     string
}

// tools are the programs a build needs, and the packages that have them.
var tools = []struct{ program, pkg string }{
	{"mmdebstrap", "mmdebstrap"},
	{"mkfs.erofs", "erofs-utils"},
	{"unshare", "util-linux"},
}

// checkTools says what a build lacks: root, or programs.
func checkTools() error {
	if os.Geteuid() != 0 {
		return errors.New("building a template makes namespaces and device files; run it as root")
	}
	var programs, packages []string
	for _, t := range tools {
		if _, err := exec.LookPath(t.program); err != nil {
			programs, packages = append(programs, t.program), append(packages, t.pkg)
		}
	}
	if len(programs) > 0 {
		return fmt.Errorf("%s not found; run: apt-get install -y %s", strings.Join(programs, ", "), strings.Join(packages, " "))
	}
	return nil
}

// plan checks the recipe, finds the suite and its sources, and names the whole. It
// runs nothing and takes a few milliseconds.
func (b *Builder) plan(r Recipe) (plan, error) {
	r.normalise()
	if err := r.Validate(); err != nil {
		return plan{}, err
	}
	host, err := aptsource.ReadDistro(b.cfg.Root)
	if err != nil {
		return plan{}, err
	}
	if r.Suite == "" {
		if r.Suite = host.Codename; r.Suite == "" {
			return plan{}, errors.New("/etc/os-release has no VERSION_CODENAME; give the recipe a suite")
		}
	}
	arch, err := debianArch()
	if err != nil {
		return plan{}, err
	}
	sources, readErr := aptsource.Read(b.cfg.Root)
	sel, err := aptsource.Select(sources, aptsource.Query{
		Suite: r.Suite, Arch: arch, Distro: host.ID, Release: aptsource.Cached(b.cfg.Root),
	})
	if err != nil {
		if readErr != nil {
			err = fmt.Errorf("%w; what could not be read: %w", err, readErr)
		}
		return plan{}, err
	}
	sum := sha256.Sum256([]byte(strings.Join([]string{builderVersion, arch, sel.Identity(), r.Hash()}, "\n")))
	return plan{recipe: r, sources: sel, key: hex.EncodeToString(sum[:])}, nil
}

// debianArch is the machine's architecture as dpkg names it.
func debianArch() (string, error) {
	switch runtime.GOARCH {
	case "amd64", "arm64":
		return runtime.GOARCH, nil
	}
	return "", fmt.Errorf("no images can be built on %s", runtime.GOARCH)
}
