package template

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/template/ociimage"
	"hutch.dev/hutch/internal/x/aptsource"
)

// plan is what to build, with everything decided that the machine decides.
type plan struct {
	name   string
	key    string
	source string         // for people
	record hutch.Template // what is known of the template before it is built

	// Of a recipe: everything that is in the image, what it builds upon included; what
	// this recipe adds to that; and what it builds upon, nil for none. Suite is set.
	recipe, own Recipe
	base        *plan
	sources     aptsource.Selection
	pip         pipSource

	// Of a container image, nil for a recipe.
	image *ociimage.Image
}

// spans says how much of the whole each step is.
func (p plan) spans() map[Step]span {
	switch {
	case p.image != nil:
		return imageSpans
	case p.base != nil:
		return layeredSpans
	}
	return recipeSpans
}

// tools are the programs a build needs, and the packages that have them.
var tools = []struct {
	program, pkg string
	recipe       bool // only recipes need it
}{
	{"mmdebstrap", "mmdebstrap", true},
	{"mkfs.erofs", "erofs-utils", false},
	{"unshare", "util-linux", false},
}

// checkTools says what a build lacks: root, or programs.
func checkTools(recipe bool) error {
	if os.Geteuid() != 0 {
		return errors.New("building a template makes namespaces and device files; run it as root")
	}
	var programs, packages []string
	for _, t := range tools {
		if t.recipe && !recipe {
			continue
		}
		if _, err := exec.LookPath(t.program); err != nil {
			programs, packages = append(programs, t.program), append(packages, t.pkg)
		}
	}
	if len(programs) > 0 {
		return fmt.Errorf("%s not found; run: apt-get install -y %s", strings.Join(programs, ", "), strings.Join(packages, " "))
	}
	return nil
}

// plan checks the recipe and those it builds upon, finds the suite and its sources, and
// names the whole. It runs nothing and takes a few milliseconds.
func (b *Builder) plan(r Recipe) (plan, error) { return b.planUpon(r, nil) }

// planUpon is plan for a recipe that those named in above build upon.
func (b *Builder) planUpon(r Recipe, above []string) (plan, error) {
	r.normalise()
	if err := r.Validate(); err != nil {
		return plan{}, err
	}
	p := plan{name: r.Name, own: r, recipe: r, source: "recipe " + r.Name}
	if r.From != "" {
		base, err := b.planBase(r, above)
		if err != nil {
			return plan{}, err
		}
		p.base, p.recipe = &base, r.upon(base.recipe)
		if err := p.recipe.Validate(); err != nil {
			return plan{}, err
		}
	}
	if err := b.findSources(&p); err != nil {
		return plan{}, err
	}
	if len(p.recipe.Pip) > 0 {
		var err error
		if p.pip, err = readPip(b.cfg.Root); err != nil {
			return plan{}, err
		}
	}
	arch, err := debianArch()
	if err != nil {
		return plan{}, err
	}
	parts := []string{builderVersion, arch, p.sources.Identity(), r.Hash()}
	if p.base != nil {
		parts = append(parts, layeredVersion, p.base.key)
	}
	if len(r.Pip) > 0 {
		parts = append(parts, pipVersion, p.pip.identity)
	}
	sum := sha256.Sum256([]byte(strings.Join(parts, "\n")))
	p.key = hex.EncodeToString(sum[:])
	p.record = p.recipe.template()
	return p, nil
}

// maxUpon is how many recipes may build upon each other.
const maxUpon = 8

// planBase plans what r builds upon.
func (b *Builder) planBase(r Recipe, above []string) (plan, error) {
	above = append(above, r.Name)
	if slices.Contains(above, r.From) || len(above) >= maxUpon {
		return plan{}, hutch.FieldErrorf("from", "recipes build upon each other: %s, %s", strings.Join(above, ", "), r.From)
	}
	base, err := b.Recipe(r.From)
	if err != nil {
		return plan{}, hutch.FieldErrorf("from", "%s", message(err))
	}
	if base.Name != r.From {
		return plan{}, hutch.FieldErrorf("from", "the recipe %s calls itself %s", r.From, base.Name)
	}
	p, err := b.planUpon(base, above)
	if err != nil {
		return plan{}, fmt.Errorf("recipe %s: %w", r.From, err)
	}
	return p, nil
}

// message is what an error says to a tenant, where it says something; else all of it.
func message(err error) string {
	var e *hutch.Error
	if errors.As(err, &e) {
		return e.Message
	}
	return err.Error()
}

// findSources finds the machine's package sources for p's suite, the machine's own if
// none is set.
func (b *Builder) findSources(p *plan) error {
	host, err := aptsource.ReadDistro(b.cfg.Root)
	if err != nil {
		return err
	}
	if p.recipe.Suite == "" {
		if p.recipe.Suite = host.Codename; p.recipe.Suite == "" {
			return errors.New("/etc/os-release has no VERSION_CODENAME; give the recipe a suite")
		}
	}
	arch, err := debianArch()
	if err != nil {
		return err
	}
	sources, readErr := aptsource.Read(b.cfg.Root)
	p.sources, err = aptsource.Select(sources, aptsource.Query{
		Suite: p.recipe.Suite, Arch: arch, Distro: host.ID, Release: aptsource.Cached(b.cfg.Root),
	})
	if err != nil && readErr != nil {
		err = fmt.Errorf("%w; what could not be read: %w", err, readErr)
	}
	return err
}

// Recipe returns the recipe of that name: one of the operator's, else one that comes
// with Hutch, else hutch.ErrNotFound.
func (b *Builder) Recipe(name string) (Recipe, error) {
	if b.cfg.Recipes == "" || !nameRE.MatchString(name) {
		return Builtin(name)
	}
	data, err := os.ReadFile(filepath.Join(b.cfg.Recipes, name+".yaml"))
	if errors.Is(err, fs.ErrNotExist) {
		return Builtin(name)
	}
	if err != nil {
		return Recipe{}, fmt.Errorf("read recipe %s: %w", name, err)
	}
	return ParseRecipe(data)
}

// debianArch is the machine's architecture as dpkg names it.
func debianArch() (string, error) {
	switch runtime.GOARCH {
	case "amd64", "arm64":
		return runtime.GOARCH, nil
	}
	return "", fmt.Errorf("no images can be built on %s", runtime.GOARCH)
}
