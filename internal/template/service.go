package template

import (
	"cmp"
	"context"
	"errors"
	"os/exec"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/template/ociimage"
)

// ServiceConfig is what a server lets its callers build from.
type ServiceConfig struct {
	// MachineLogin lets builds that bring no user name use what `docker login` left on
	// the server. Who may ask for builds can then read what that may read.
	MachineLogin bool
	// CAFile has certificates of registries to trust besides the machine's; empty = none.
	CAFile string
	// Insecure accepts registries without TLS, or with any certificate.
	Insecure bool
}

// Service builds what callers of a server ask for. Its methods are safe for concurrent
// use.
type Service struct {
	builder *Builder
	cfg     ServiceConfig
}

// NewService returns a service that builds with b.
func NewService(b *Builder, cfg ServiceConfig) *Service { return &Service{builder: b, cfg: cfg} }

// Build makes the template that req asks for and returns its record, for the caller to
// store. log takes what the build prints, line by line, each with the step it is part of,
// from one goroutine at a time; it must not block. An error is a [hutch.Error] that says
// which step failed, and why as far as that is the caller's business.
func (s *Service) Build(ctx context.Context, req hutch.BuildRequest, log func(step, line string)) (hutch.Template, error) {
	o := Options{Force: req.Force, Log: func(step Step, line string) { log(string(step), line) }}
	res, err := s.build(ctx, req, o)
	if err != nil {
		return hutch.Template{}, s.forCaller(ctx, err)
	}
	if res.Cached {
		log(string(StepPlan), "it was built before, from the same source")
	}
	return res.Template(), nil
}

func (s *Service) build(ctx context.Context, req hutch.BuildRequest, o Options) (Result, error) {
	size := Resources{
		CPU: float64(req.Resources.MilliCPU) / 1000, MemoryMB: req.Resources.MemoryMB, DiskMB: req.Resources.DiskMB,
		DiskTier: req.Resources.DiskTier, Pids: req.Resources.Pids,
	}
	if req.Recipe == "" {
		return s.builder.BuildImage(ctx, Container{Name: req.Name, Resources: size, Source: ociimage.Source{
			Ref: req.ImageRef, Archive: req.Archive, Username: req.Username, Password: req.Password,
			MachineLogin: s.cfg.MachineLogin, CAFile: s.cfg.CAFile, Insecure: s.cfg.Insecure,
		}}, o)
	}
	r, err := s.builder.Recipe(req.Recipe)
	if err != nil {
		return Result{}, err
	}
	return s.builder.Build(ctx, r.As(req.Name).Sized(size), o)
}

// As is the recipe for a template of another name. Aliases stay with the recipe's own.
func (r Recipe) As(name string) Recipe {
	if name != "" && name != r.Name {
		r.Name, r.Aliases = name, nil
	}
	return r
}

// Sized is the recipe with other resources, where size has any.
func (r Recipe) Sized(size Resources) Recipe {
	z := &r.Resources
	z.CPU, z.MemoryMB, z.DiskMB = cmp.Or(size.CPU, z.CPU), cmp.Or(size.MemoryMB, z.MemoryMB), cmp.Or(size.DiskMB, z.DiskMB)
	z.DiskTier, z.Pids = cmp.Or(size.DiskTier, z.DiskTier), cmp.Or(size.Pids, z.Pids)
	return r
}

// forCaller is an error without what is nobody's business: paths of this machine.
func (s *Service) forCaller(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return hutch.Wrap(hutch.CodeCancelled, err, "the build was cancelled")
	}
	step := ""
	var at *StepError
	if errors.As(err, &at) {
		step = string(at.Step)
		if at.Command != "" {
			step += " (" + at.Command + ")"
		}
		step += ": "
	}
	var e *hutch.Error
	var exit *exec.ExitError
	switch {
	case errors.As(err, &e):
		return hutch.Wrap(e.Code, err, "%s%s", step, e.Message)
	case errors.As(err, &exit), errors.Is(err, errTimeout):
		return hutch.Wrap(hutch.CodeBadRequest, err, "%s%s; the last lines of the log say more", step, message(at.Err))
	}
	s.builder.log.Error("build failed", "op", "build", "err", err)
	return hutch.Wrap(hutch.CodeInternal, err, "%sthe server could not do it; its own log says why", step)
}
