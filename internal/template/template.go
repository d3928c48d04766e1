// Package template builds templates: root images in the store, made from a recipe by way
// of the machine's own package sources, or from a container image.
//
// It owns recipes, the steps of a build, and the memory of what was built from what.
// It does not own images (package rootfs does) nor the records of templates: a build
// returns one, and whoever asked for the build stores it. Finding and verifying container
// images is package ociimage's, unpacking their layers package unpack's, and reading a
// root image back package erofs's.
//
// Invariants:
//   - Two builds with the same key make the same image, so only the first is made. The
//     key of a recipe is its hash, the package sources' identity, that of the recipe it
//     builds upon, and the version of this builder; the key of a container image is the
//     digest of its manifest. Builds of one key wait for each other, also across
//     processes.
//   - A build that fails, is cancelled, or is killed leaves nothing that counts: its
//     processes live in a pid namespace that ends with it, its mounts in a mount
//     namespace of their own, and its files in one directory, which the next build
//     removes if this one could not.
//   - Nothing of this machine gets into an image but where its packages came from:
//     no proxy, no password, no name, no log.
//   - Nothing that a container image says is run: it is unpacked, not started.
//
// Lock order: a build's lock file, then that of the recipe it builds upon, then the
// image store's.
//
// Start with [Builder.Build] and [Builder.BuildImage], then follow the steps: plan.go,
// bootstrap.go, layered.go, customise.go, tidy.go for recipes, container.go and furnish.go
// for images, image.go for both. [Service] is what a server runs builds with.
package template

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/google/uuid"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/rootfs"
	"hutch.dev/hutch/internal/template/unpack"
	"hutch.dev/hutch/internal/x/atomicfile"
	"hutch.dev/hutch/internal/x/failpoint"
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
	// Recipes is a directory of further recipes, NAME.yaml each; empty = none. They come
	// before those of the same name that come with Hutch.
	Recipes string
	// MaxImageBytes bounds what a container image may unpack to; 0 = [unpack.DefaultBytes].
	MaxImageBytes int64
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
	if cfg.MaxImageBytes == 0 {
		cfg.MaxImageBytes = unpack.DefaultBytes
	}
	return &Builder{cfg: cfg, images: images, log: log.With("component", "template")}
}

// Options change how a build is done.
type Options struct {
	Force    bool           // build although the result is there
	Progress func(Progress) // called often, from several goroutines one at a time; it must not block
	// Log takes each line of the build's output once, with the step it belongs to; called
	// as Progress is.
	Log func(step Step, line string)
}

// Result is a finished build.
type Result struct {
	Name       string
	Recipe     Recipe // as built, suite and what it builds upon filled in; zero for a container image
	Source     string // "recipe base", "image host/path:tag@sha256:…"; for people
	Key        string // what the image was made from
	BuildID    string // UUID; a cached result has that of the build that made it
	Image      rootfs.Image
	BuiltAt    time.Time
	SourceDate time.Time     // age of the newest thing in it; no file in the image is younger
	Took       time.Duration // of the build that made it
	Cached     bool          // nothing had to be done
	LogPath    string        // what the build printed

	record hutch.Template // what the plan says of the template
}

// Template is the record of the result.
func (r Result) Template() hutch.Template {
	t := r.record
	t.Name, t.BuildID, t.Image, t.SizeBytes = r.Name, r.BuildID, r.Image.Digest, r.Image.SizeBytes
	t.Recipe, t.CreatedAt = r.Key, r.BuiltAt
	return t
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
	t := newTracker(o)
	t.begin(StepPlan, "", nil)
	p, err := b.plan(r)
	if err != nil {
		return Result{}, t.fail(r.Name, err, false)
	}
	return b.run(ctx, p, o, t)
}

// run makes what p plans, or finds it made. t is in StepPlan.
func (b *Builder) run(ctx context.Context, p plan, o Options, t *tracker) (Result, error) {
	asked := time.Now()
	usable := func(res Result, err error) bool {
		return err == nil && (!o.Force || res.BuiltAt.After(asked))
	}
	if res, err := b.cached(p); usable(res, err) {
		return res, nil
	}
	unlock, err := b.lockKey(ctx, p.key)
	if err != nil {
		return Result{}, t.fail(p.name, fmt.Errorf("wait for another build of this template: %w", err), false)
	}
	defer unlock()
	if res, err := b.cached(p); usable(res, err) { // whom we waited for built it
		return res, nil
	}
	t.spans = p.spans()
	res, err := b.build(ctx, p, t)
	if err != nil {
		return Result{}, err
	}
	b.log.Info("template built", "op", "build", "template", p.name, "image", res.Image.Digest, "took", res.Took)
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

// treeSteps are the steps that make the tree.
func (run *building) treeSteps() []func(context.Context) error {
	switch {
	case run.plan.image != nil:
		return []func(context.Context) error{run.unpackImage}
	case run.plan.base != nil:
		return []func(context.Context) error{run.copyBase, run.addPackages, run.addPython, run.customise}
	}
	return []func(context.Context) error{run.bootstrap, run.addPython, run.customise}
}

// build runs the steps. t is in StepPlan.
func (b *Builder) build(ctx context.Context, p plan, t *tracker) (Result, error) {
	began := time.Now()
	fail := func(err error, lines bool) (Result, error) {
		if cause := context.Cause(ctx); cause != nil && !errors.Is(err, cause) {
			err = cause // what broke after the end broke because of it
		}
		return Result{}, t.fail(p.name, err, lines)
	}
	b.sweep(p.key)
	if err := checkTools(p.image == nil); err != nil {
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
	for _, step := range append(run.treeSteps(), run.makeImage) {
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
	failpoint.At(failpoint.ImageInstalled)
	if err := os.MkdirAll(run.buildsDir(), 0o755); err != nil {
		return Result{}, fmt.Errorf("make directory of builds: %w", err)
	}
	if err := atomicfile.Install(filepath.Join(run.dir, "log"), run.logPath(run.plan.key), 0o600); err != nil {
		return Result{}, fmt.Errorf("keep build log: %w", err)
	}
	failpoint.At(failpoint.BuildLogKept)
	rec := record{
		Key: run.plan.key, BuildID: uuid.NewString(), Source: run.plan.source, Image: img.Digest, SizeBytes: img.SizeBytes,
		BuiltAt: time.Now().UTC(), SourceDate: run.sourceDate, Took: time.Since(began),
	}
	if err := run.remember(rec); err != nil {
		return Result{}, err
	}
	failpoint.At(failpoint.BuildRemembered)
	return run.result(run.plan, rec, img, false), nil
}
