package bench

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/api"
	"hutch.dev/hutch/client"
	"hutch.dev/hutch/internal/x/id"
)

const (
	// runLimit bounds a single run: thirty times what one takes on a machine with every
	// CPU taken.
	runLimit = time.Minute
	// boxTTL is how long a sandbox of a bench that was itself killed goes on.
	boxTTL = 10 * time.Minute
)

// The command whose first byte stops the headline's clock, and what it prints.
var (
	helloArgv = []string{"/bin/echo", "hi"}
	helloText = "hi\n"
)

// Create measures how long a caller waits for a sandbox and for the first output of the
// first command in it, and how long its end takes. floor, and what else is installed, are used
// if s.Baseline is set.
// When it is ended early, by ctx or by a limit, the report is of the runs until then, and
// the error says why.
func Create(ctx context.Context, s Settings, c *client.Client, floor *Floor, progress func(done int)) (_ *Report, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, s.Limit, errLimit)
	defer cancel()
	rep, err := begin(ctx, "create", s, c)
	if err != nil {
		return nil, err
	}
	subjects := []subject{{SubjectHutch, func(ctx context.Context, t *clock) error { return createRun(ctx, c, s, t, nil) }}}
	if s.Baseline {
		like := *rep.Settings.Sandbox
		subjects = append(subjects, subject{SubjectFloor, func(ctx context.Context, t *clock) error { return floor.createRun(ctx, like, t) }})
		defer func() { err = errors.Join(err, floor.Podman.close(ctx)) }()
		var others []subject
		others, rep.Alternatives = floor.Podman.subjects(ctx, like, floor.ImagePath)
		subjects = append(subjects, others...)
	}
	runs, err := measure(ctx, series{n: s.N, warmup: s.Warmup, parallel: s.Parallel, limit: runLimit, progress: progress}, subjects)
	return rep.finish(runs, err)
}

// begin makes one sandbox to learn what the server makes of the request, and the report.
func begin(ctx context.Context, kind string, s Settings, c *client.Client) (*Report, error) {
	sb, err := learn(ctx, c, s.request())
	if err != nil {
		return nil, err
	}
	s.Sandbox = sb
	return newReport(kind, s), nil
}

// learn makes one sandbox to learn what the server makes of a request, and ends it.
func learn(ctx context.Context, c *client.Client, req api.CreateSandbox) (*Sandbox, error) {
	sb, err := c.CreateSandbox(ctx, req)
	if err != nil {
		return nil, fmt.Errorf("make a first sandbox: %w", err)
	}
	if err := killBox(ctx, c, sb.ID); err != nil {
		return nil, fmt.Errorf("end the first sandbox: %w", err)
	}
	return sandboxOf(sb), nil
}

func sandboxOf(sb api.Sandbox) *Sandbox {
	return &Sandbox{Image: sb.Image, BootMode: sb.BootMode, Resources: hutch.Resources{
		MilliCPU: int(sb.CPU*1000 + 0.5), MemoryMB: sb.MemoryMB, DiskMB: sb.DiskMB, DiskTier: sb.DiskTier, Pids: sb.Pids,
	}}
}

func (s Settings) request() api.CreateSandbox {
	ttl := boxTTL.Seconds()
	req := api.CreateSandbox{Template: s.Template, DiskTier: hutch.DiskTier(s.Tier), TTLSeconds: &ttl}
	if s.MemoryMB != 0 {
		req.MemoryMB = &s.MemoryMB
	}
	return req
}

// createRun makes a sandbox through the API, runs a command in it, and ends it. check, if there
// is one, says whether it is what is measured.
func createRun(ctx context.Context, c *client.Client, s Settings, t *clock, check func(api.Sandbox) error) (err error) {
	begun := time.Now()
	sb, err := c.CreateSandbox(ctx, s.request())
	if err != nil {
		return fmt.Errorf("create: %w", err)
	}
	t.since(MetricCreate, begun)
	defer func() {
		ended := time.Now()
		if kerr := killBox(ctx, c, sb.ID); kerr != nil {
			err = errors.Join(err, fmt.Errorf("kill: %w", kerr))
			return
		}
		t.since(MetricKill, ended)
		if err == nil {
			t.since(MetricWhole, begun)
			err = serverStages(ctx, c, sb.ID, t)
		}
	}()
	if check != nil {
		if err := check(sb); err != nil {
			return err
		}
	}
	asked := time.Now()
	first := firstByte(func(at time.Time) {
		t.book(MetricFirstExec, at.Sub(asked))
		t.book(MetricFirstOutput, at.Sub(begun))
	})
	end, err := c.Stream(ctx, sb.ID, api.ExecRequest{Argv: helloArgv}, client.StreamOptions{}, func(o client.Output) error {
		first.take(o.Data)
		return nil
	})
	if err != nil {
		return fmt.Errorf("exec: %w", err)
	}
	return first.check(end.ExitCode, helloText)
}

// killBox ends a sandbox, also when ctx has ended.
func killBox(ctx context.Context, c *client.Client, sid hutch.SandboxID) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), killTimeout)
	defer cancel()
	return c.Kill(ctx, sid)
}

// createRun is the same by hand.
func (f *Floor) createRun(ctx context.Context, like Sandbox, t *clock) (err error) {
	begun := time.Now()
	b, err := f.start(ctx, like)
	if err != nil {
		return err
	}
	t.since(MetricCreate, begun)
	defer func() {
		ended := time.Now()
		if kerr := b.kill(ctx); kerr != nil {
			err = errors.Join(err, fmt.Errorf("kill: %w", kerr))
			return
		}
		t.since(MetricKill, ended)
		t.since(MetricWhole, begun)
	}()
	if s, ok := b.sb.(interface {
		Stages() map[string]time.Duration
	}); ok {
		for name, d := range s.Stages() {
			t.book(stagePrefix+"machine."+name, d)
		}
	}
	asked := time.Now()
	first := firstByte(func(at time.Time) {
		t.book(MetricFirstExec, at.Sub(asked))
		t.book(MetricFirstOutput, at.Sub(begun))
		t.book(MetricPrepared, at.Sub(b.ready))
	})
	res, err := b.run(ctx, hutch.ExecID(id.NewExec()), helloArgv, first.take)
	if err != nil {
		return err
	}
	return first.check(res.ExitCode, helloText)
}

// output checks what a command printed, and notes when its first byte came.
type output struct {
	began func(at time.Time)
	text  []byte
}

func firstByte(began func(at time.Time)) *output { return &output{began: began} }

func (o *output) take(p []byte) {
	if len(o.text) == 0 && len(p) > 0 {
		o.began(time.Now())
	}
	o.text = append(o.text, p...)
}

// Write makes it the output of a process.
func (o *output) Write(p []byte) (int, error) {
	o.take(p)
	return len(p), nil
}

// check refuses a run that was fast because it did not do its work.
func (o *output) check(exitCode int, want string) error {
	if exitCode != 0 || string(o.text) != want {
		return fmt.Errorf("the command ended with exit code %d and %d bytes of output, not with 0 and %q", exitCode, len(o.text), want)
	}
	return nil
}

// serverStages books what the server says of its own stages. The sandbox has ended, so
// its events do too.
func serverStages(ctx context.Context, c *client.Client, sid hutch.SandboxID, t *clock) error {
	err := c.Events(ctx, sid, 0, func(ev api.Event) error {
		if ev.Type != "sandbox.started" {
			return nil
		}
		for k, v := range ev.Data {
			name, ok := strings.CutSuffix(k, "_us")
			if name, stage := strings.CutPrefix(name, stagePrefix); ok && stage {
				us, err := strconv.ParseInt(v, 10, 64)
				if err != nil {
					return fmt.Errorf("stage %s: %w", name, err)
				}
				t.us[stagePrefix+name] = us
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("read the server's stages: %w", err)
	}
	return nil
}
