package template

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/template/ociimage"
	"hutch.dev/hutch/internal/template/unpack"
)

// containerVersion is raised whenever the same container image would make another root
// image than before.
const containerVersion = "1"

// Container asks for a template made from a container image.
type Container struct {
	Name        string // of the template
	Description string // empty = where the image came from
	Aliases     []string
	Source      ociimage.Source
	Resources   Resources // what is zero is the default
}

// BuildImage makes a template from a container image, or finds it made: then nothing of
// it but its manifest and configuration was fetched. Failures are as those of
// [Builder.Build].
func (b *Builder) BuildImage(ctx context.Context, c Container, o Options) (Result, error) {
	t := newTracker(o)
	t.spans = imageSpans
	t.begin(StepPlan, "", nil)
	p, err := b.planContainer(ctx, c)
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		return Result{}, t.fail(c.Name, err, false)
	}
	defer func() { _ = p.image.Close() }()
	t.note("found %s", p.source)
	return b.run(ctx, p, o, t)
}

// planContainer finds the image and decides what processes in it start with.
func (b *Builder) planContainer(ctx context.Context, c Container) (plan, error) {
	r := Recipe{Name: c.Name, Description: c.Description, Aliases: c.Aliases, Resources: c.Resources}
	r.normalise()
	if err := r.Validate(); err != nil {
		return plan{}, err
	}
	im, err := ociimage.Open(ctx, c.Source)
	if err != nil {
		return plan{}, err
	}
	p := plan{name: c.Name, source: im.Name, image: im, record: r.template()}
	if p.record.Description == "" {
		p.record.Description = im.Name
	}
	if p.record.Defaults, err = defaults(im.Config.Config); err != nil {
		_ = im.Close()
		return plan{}, err
	}
	p.record.Entrypoint = slices.Concat(im.Config.Config.Entrypoint, im.Config.Config.Cmd)
	sum := sha256.Sum256([]byte(strings.Join([]string{"container image", containerVersion, im.Digest}, "\n")))
	p.key = hex.EncodeToString(sum[:])
	return p, nil
}

// ownVariables are set by the sandbox itself in every process; an image cannot.
var ownVariables = []string{"HUTCH_EXEC_ID"}

// defaults is what an image says of the processes started in it.
func defaults(c v1.Config) (hutch.ProcessDefaults, error) {
	d := hutch.ProcessDefaults{User: c.User, Cwd: c.WorkingDir}
	if d.Cwd == "" {
		d.Cwd = "/" // as container runtimes have it
	}
	if !plainPath(d.Cwd) {
		d.Cwd = strings.TrimRight(d.Cwd, "/") // some builders leave a slash
	}
	if !plainPath(d.Cwd) {
		return d, hutch.Errorf(hutch.CodeBadRequest, "the image's WORKDIR %.200q is no clean absolute path", c.WorkingDir)
	}
	if len(d.User) > 200 || strings.ContainsFunc(d.User, func(r rune) bool { return r <= ' ' || r == 0x7f }) {
		return d, hutch.Errorf(hutch.CodeBadRequest, "the image's USER %.200q is no user", c.User)
	}
	for _, v := range c.Env {
		name, value, ok := strings.Cut(v, "=")
		if !ok || slices.Contains(ownVariables, name) {
			continue // unset, as container runtimes take it; or not the image's to set
		}
		if name == "" || strings.ContainsRune(v, 0) || len(v) > maxString {
			return d, hutch.Errorf(hutch.CodeBadRequest, "the image has a variable that no process can have: %.200q", v)
		}
		if d.Env == nil {
			d.Env = map[string]string{}
		}
		d.Env[name] = value
	}
	if len(d.Env) > maxItems {
		return d, hutch.Errorf(hutch.CodeTooLarge, "the image sets %d variables; %d are allowed", len(d.Env), maxItems)
	}
	return d, nil
}

// unpackImage makes the tree of a container image: its layers, and what it lacks.
func (run *building) unpackImage(ctx context.Context) error {
	run.begin(StepUnpack, "", nil)
	if err := os.Mkdir(run.tree, 0o755); err != nil {
		return fmt.Errorf("make tree: %w", err)
	}
	tree, err := unpack.Open(run.tree, unpack.Limits{Bytes: run.cfg.MaxImageBytes, Entries: unpack.DefaultEntries})
	if err != nil {
		return err
	}
	defer func() { _ = tree.Close() }()
	if err := run.unpackLayers(ctx, tree); err != nil {
		return err
	}
	if err := run.furnish(tree); err != nil {
		return err
	}
	report, err := tree.Finish()
	if err != nil {
		return err
	}
	run.sourceDate = newest(report.Newest, run.plan.image.Config.Created.Time)
	run.note("the image has %d files, directories and links, %d MiB", report.Entries, report.Bytes>>20)
	for _, s := range report.Skipped {
		run.note("left out: %s", s)
	}
	if more := report.SkippedCount - len(report.Skipped); more > 0 {
		run.note("left out: %d more", more)
	}
	return nil
}

// unpackLayers fetches the layers, one after the other, and unpacks them as they come.
func (run *building) unpackLayers(ctx context.Context, tree *unpack.Tree) error {
	layers, total := run.plan.image.Layers, int64(0)
	for _, l := range layers {
		total += max(l.Size, 0)
	}
	if total > run.cfg.MaxImageBytes {
		return hutch.Errorf(hutch.CodeTooLarge, "the image's layers have %d MiB; %d are allowed", total>>20, run.cfg.MaxImageBytes>>20)
	}
	meter := &meter{tracker: run.tracker, total: total}
	for i, l := range layers {
		run.note("layer %d of %d: %s, %d KiB", i+1, len(layers), l.DiffID, max(l.Size, 0)>>10)
		if err := run.unpackLayer(ctx, tree, l, meter); err != nil {
			return fmt.Errorf("layer %d of %d: %w", i+1, len(layers), err)
		}
	}
	return nil
}

func (run *building) unpackLayer(ctx context.Context, tree *unpack.Tree, l ociimage.Layer, m *meter) error {
	stream, err := l.Open(ctx, m)
	if err != nil {
		return err
	}
	defer func() { _ = stream.Close() }()
	if err := tree.Apply(ctx, stream); err != nil {
		if ctx.Err() != nil || errors.Is(err, hutch.ErrTooLarge) {
			return err
		}
		return stream.Explain(err)
	}
	return nil
}

// newest is the later of two times, to the second, and not before 1970.
func newest(a, b time.Time) time.Time {
	if b.After(a) {
		a = b
	}
	if s := a.Unix(); s > 0 {
		return time.Unix(s, 0).UTC()
	}
	return time.Unix(0, 0).UTC()
}

// meter reports a step's progress by the bytes that went through it.
type meter struct {
	*tracker
	total, done, told int64
}

var _ io.Writer = (*meter)(nil)

// Write counts p.
func (m *meter) Write(p []byte) (int, error) {
	m.done += int64(len(p))
	if m.total > 0 && m.done-m.told > m.total/200 {
		m.told = m.done
		m.at(float64(m.done) / float64(m.total))
	}
	return len(p), nil
}
