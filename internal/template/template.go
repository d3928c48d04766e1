// Package template builds templates: from a recipe, by way of the machine's own
// package sources, to a root image in the store.
//
// It owns recipes, the steps of a build, and the memory of what was built from what.
// It does not own images (package rootfs does) nor the records of templates: a build
// returns one, and whoever asked for the build stores it.
//
// Invariants:
//   - Two builds with the same key make the same image, so only the first is made:
//     the key is the recipe's hash, the package sources' identity, and the version of
//     this builder. Builds of one key wait for each other, also across processes.
//   - A build that fails, is cancelled, or is killed leaves nothing that counts: its
//     processes live in a pid namespace that ends with it, its mounts in a mount
//     namespace of their own, and its files in one directory, which the next build
//     removes if this one could not.
//   - Nothing of this machine gets into an image but where its packages came from:
//     no proxy, no password, no name, no log.
//
// Lock order: a build's lock file, then the image store's.
//
// Start with [Builder.Build], then follow the steps: plan.go, bootstrap.go,
// customise.go, tidy.go, image.go.
package template

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/google/uuid"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/rootfs"
	"hutch.dev/hutch/internal/x/atomicfile"
)

// builderVersion is raised whenever the same recipe and sources would make another
// image than before.
const builderVersion = "1"

// Config is what a builder is made from.
type Config struct {
	// Dir is where builds and what they remember are kept. It must be on the file
	// system of the image store.
	Dir string
	// Root is the machine whose package sources are used; empty = "/", this one.
	Root string
}

// Builder builds templates. Its methods are safe for concurrent use, by several
// processes with one Dir too.
type Builder struct {
	cfg    Config
	images *rootfs.Store
	log    *slog.Logger
}

// New returns a builder that puts its images into images. It does no I/O.
func New(cfg Config, images *rootfs.Store, log *slog.Logger) *Builder {
	if cfg.Root == "" {
		cfg.Root = "/"
	}
	return &Builder{cfg: cfg, images: images, log: log.With("component", "template")}
}

// Options change how a build is done.
type Options struct {
	Force    bool           // build although the result is there
	Progress func(Progress) // called often, from several goroutines one at a time; it must not block
}

// Result is a finished build.
type Result struct {
	Recipe     Recipe // as built, suite filled in
	Key        string // what the image was made from
	BuildID    string // UUID; a cached result has that of the build that made it
	Image      rootfs.Image
	BuiltAt    time.Time
	SourceDate time.Time     // age of the package index; no file in the image is younger
	Took       time.Duration // of the build that made it
	Cached     bool          // nothing had to be done
	LogPath    string        // what the build printed
}

// Template is the record of the result.
func (r Result) Template() hutch.Template {
	return hutch.Template{
		Name:      r.Recipe.Name,
		BuildID:   r.BuildID,
		Image:     r.Image.Digest,
		SizeBytes: r.Image.SizeBytes,
		Recipe:    r.Key,
		Defaults:  r.Recipe.defaults(),
		Resources: r.Recipe.size(),
		CreatedAt: r.BuiltAt,
	}
}

// Lookup returns what an earlier build of the recipe made, hutch.ErrNotFound if there
// is none, or if the recipe or the machine's package sources are others now.
func (b *Builder) Lookup(r Recipe) (Result, error) {
	p, err := b.plan(r)
	if err != nil {
		return Result{}, &StepError{Template: r.Name, Step: StepPlan, Err: err}
	}
	return b.cached(p)
}

// Build makes the image of a recipe, or finds it made. A failure is a [*StepError],
// also when ctx ends; its cause is then the context's. Waiting for another build of
// the same key counts as planning.
func (b *Builder) Build(ctx context.Context, r Recipe, o Options) (Result, error) {
	asked := time.Now()
	t := &tracker{report: o.Progress, log: io.Discard}
	t.begin(StepPlan, "", nil)
	p, err := b.plan(r)
	if err != nil {
		return Result{}, t.fail(r.Name, err, false)
	}
	usable := func(res Result, err error) bool {
		return err == nil && (!o.Force || res.BuiltAt.After(asked))
	}
	if res, err := b.cached(p); usable(res, err) {
		return res, nil
	}
	unlock, err := b.lockKey(ctx, p.key)
	if err != nil {
		return Result{}, t.fail(r.Name, fmt.Errorf("wait for another build of this template: %w", err), false)
	}
	defer unlock()
	if res, err := b.cached(p); usable(res, err) { // whom we waited for built it
		return res, nil
	}
	res, err := b.build(ctx, p, t)
	if err != nil {
		return Result{}, err
	}
	b.log.Info("template built", "op", "build", "template", r.Name, "image", res.Image.Digest, "took", res.Took)
	return res, nil
}

// building is a build under way. It holds the lock of its key.
type building struct {
	*Builder
	*tracker
	plan plan
	dir  string // of this build; everything temporary is in it
	tree string // what becomes the image

	sourceDate time.Time // set by bootstrap
}

// build runs the steps. t is in StepPlan.
func (b *Builder) build(ctx context.Context, p plan, t *tracker) (Result, error) {
	began := time.Now()
	fail := func(err error, lines bool) (Result, error) {
		if cause := context.Cause(ctx); cause != nil && !errors.Is(err, cause) {
			err = cause // what broke after the end broke because of it
		}
		return Result{}, t.fail(p.recipe.Name, err, lines)
	}
	b.sweep(p.key)
	if err := checkTools(); err != nil {
		return fail(err, false)
	}
	dir, err := b.makeDir(p.key)
	if err != nil {
		return fail(err, false)
	}
	defer b.removeDir(dir)
	logFile, err := os.OpenFile(filepath.Join(dir, "log"), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return fail(fmt.Errorf("create build log: %w", err), false)
	}
	defer logFile.Close()
	t.log = logFile

	run := &building{Builder: b, tracker: t, plan: p, dir: dir, tree: filepath.Join(dir, "tree")}
	for _, step := range []func(context.Context) error{run.bootstrap, run.customise, run.makeImage} {
		if err := step(ctx); err != nil {
			return fail(err, true)
		}
	}
	t.begin(StepRegister, "", nil)
	res, err := run.register(ctx, began)
	if err != nil {
		return fail(err, false)
	}
	t.at(1)
	return res, nil
}

// register puts image, log and memory of the build in place, in that order: what is
// remembered is there.
func (run *building) register(ctx context.Context, began time.Time) (Result, error) {
	img, err := run.images.Install(ctx, run.imagePath())
	if err != nil {
		return Result{}, fmt.Errorf("put image into the store: %w", err)
	}
	if err := os.MkdirAll(run.buildsDir(), 0o755); err != nil {
		return Result{}, fmt.Errorf("make directory of builds: %w", err)
	}
	if err := atomicfile.Install(filepath.Join(run.dir, "log"), run.logPath(run.plan.key), 0o600); err != nil {
		return Result{}, fmt.Errorf("keep build log: %w", err)
	}
	rec := record{
		Key: run.plan.key, BuildID: uuid.NewString(), Image: img.Digest, SizeBytes: img.SizeBytes,
		BuiltAt: time.Now().UTC(), SourceDate: run.sourceDate, Took: time.Since(began),
	}
	if err := run.remember(rec); err != nil {
		return Result{}, err
	}
	return run.result(run.plan, rec, img, false), nil
}
