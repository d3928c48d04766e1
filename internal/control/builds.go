package control

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"github.com/google/uuid"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/store"
	"hutch.dev/hutch/internal/x/failpoint"
	"hutch.dev/hutch/internal/x/pattern"
)

// maxQueuedBuilds is how many builds may wait for their turn. One is made at a time: it
// takes all the disk and network that there is.
const maxQueuedBuilds = 16

// buildRetry is what a caller is told to wait who finds the queue of builds full.
const buildRetry = 30 * time.Second

// cutBuild is what is said of a build that the end of the server cut off.
const cutBuild = "the server stopped while it was under way: start it again"

// builds is the queue of builds: each is made when the one that entered before it has left.
// A build goes on when its caller has left.
type builds struct {
	work   context.Context // ends with close, and with it the build under way
	cancel context.CancelCauseFunc
	wg     sync.WaitGroup

	claims claims[string] // ids of builds that are being recorded
	moved  *eventWatchers // woken when a build's record or log has grown

	mu     sync.Mutex
	queued int           // waiting, or being made
	last   chan struct{} // closed when the last that entered has left; nil before the first
	closed bool
}

func newBuilds() *builds {
	work, cancel := context.WithCancelCause(context.Background())
	return &builds{work: work, cancel: cancel, moved: newEventWatchers()}
}

// place is a build's in the queue.
type place struct {
	turn  <-chan struct{} // closed when it is this one's turn
	leave func()          // must be called: until then nobody's turn comes
}

// enter takes a place in the queue.
func (b *builds) enter() (place, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return place{}, hutch.Errorf(hutch.CodeUnavailable, "the server is stopping")
	}
	if b.queued > maxQueuedBuilds {
		e := hutch.Errorf(hutch.CodeRateLimited, "%d builds are waiting already: try again when one has ended", maxQueuedBuilds)
		e.RetryAfter = buildRetry
		return place{}, e
	}
	before, mine := b.last, make(chan struct{})
	if before == nil {
		before = make(chan struct{})
		close(before)
	}
	b.queued, b.last = b.queued+1, mine
	b.wg.Add(1)
	return place{turn: before, leave: func() { b.leave(before, mine) }}, nil
}

// leave gives a place up. Who leaves before its turn has come does not bring on the next one's.
func (b *builds) leave(before <-chan struct{}, mine chan struct{}) {
	b.mu.Lock()
	b.queued--
	b.mu.Unlock()
	select {
	case <-before:
		close(mine)
		b.wg.Done()
	default:
		go func() {
			<-before
			close(mine)
			b.wg.Done()
		}()
	}
}

// close ends the build under way and returns once every record says how its build ended.
func (b *builds) close() {
	b.mu.Lock()
	b.closed = true
	b.mu.Unlock()
	b.cancel(errors.New(cutBuild))
	b.wg.Wait()
}

// StartBuild puts a build into the queue and returns. With the id of one that exists it
// starts nothing and returns that one.
func (c *Control) StartBuild(ctx context.Context, req hutch.BuildRequest) (hutch.Build, error) {
	b, err := c.startBuild(ctx, req)
	c.metrics.Operation("build", err)
	return b, err
}

func (c *Control) startBuild(ctx context.Context, req hutch.BuildRequest) (hutch.Build, error) {
	if c.cfg.Builder == nil {
		return hutch.Build{}, hutch.Errorf(hutch.CodeUnsupported, "this server builds no templates")
	}
	source, err := checkBuild(&req)
	if err != nil {
		return hutch.Build{}, err
	}
	if _, err := c.resources(req.Resources, hutch.Resources{}); err != nil {
		return hutch.Build{}, err
	}
	if _, err := profileOf(req.Profile); err != nil {
		return hutch.Build{}, err
	}
	for {
		release, taken := c.builds.claims.take(req.ID)
		if release == nil {
			select {
			case <-taken:
				continue
			case <-ctx.Done():
				return hutch.Build{}, hutch.Wrap(hutch.CodeCancelled, context.Cause(ctx), "the caller left while another call was starting build %s", req.ID)
			}
		}
		defer release()
		break
	}
	old, err := c.store.Build(ctx, req.ID)
	switch {
	case err == nil && old.Project == req.Project:
		return old, nil
	case err == nil:
		return hutch.Build{}, hutch.Errorf(hutch.CodeConflict, "build %s exists elsewhere: choose another id", req.ID)
	case !errors.Is(err, hutch.ErrNotFound):
		return hutch.Build{}, fmt.Errorf("read build %s: %w", req.ID, err)
	}
	at, err := c.builds.enter()
	if err != nil {
		return hutch.Build{}, err
	}
	rec := hutch.Build{
		ID: req.ID, Project: req.Project, Template: req.Name, Source: source,
		Status: hutch.BuildQueued, StartedAt: time.Now(),
	}
	if err := c.store.PutBuild(ctx, rec); err != nil {
		at.leave()
		return hutch.Build{}, fmt.Errorf("record build %s: %w", req.ID, err)
	}
	failpoint.At(failpoint.BuildRecorded)
	go func() {
		defer at.leave()
		c.runBuild(req, rec, at.turn)
	}()
	return rec, nil
}

// templateName is what a template may be called.
var templateName = pattern.New(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

// checkBuild fills what a build's request leaves open, and says what it is made from.
func checkBuild(req *hutch.BuildRequest) (source string, err error) {
	if req.ID == "" {
		req.ID = uuid.NewString()
	} else if u, err := uuid.Parse(req.ID); err != nil || u.String() != req.ID {
		return "", hutch.FieldErrorf("id", "must be a UUID in its usual form")
	}
	if !templateName.MatchString(req.Name) {
		return "", hutch.FieldErrorf("name", "must be 1 to 63 of a-z, 0-9 and inner '-'")
	}
	n := 0
	for _, s := range []struct{ kind, value, shown string }{
		{"recipe", req.Recipe, req.Recipe}, {"image", req.ImageRef, req.ImageRef}, {"archive", req.Archive, filepath.Base(req.Archive)},
	} {
		if s.value != "" {
			source = s.kind + " " + s.shown
			n++
		}
	}
	if n != 1 {
		return "", hutch.FieldErrorf("image_ref", "give one thing to build from: a recipe, an image or an archive")
	}
	if req.ImageRef == "" && (req.Username != "" || req.Password != "") {
		return "", hutch.FieldErrorf("username", "is for images in a registry only")
	}
	return source, nil
}

// runBuild makes a build when its turn has come, and records how it ended.
func (c *Control) runBuild(req hutch.BuildRequest, rec hutch.Build, turn <-chan struct{}) {
	b := c.builds
	log := newBuildLog(c, rec)
	select {
	case <-turn:
	case <-b.work.Done():
		log.end(hutch.Template{}, errors.New(cutBuild))
		return
	}
	log.begin()
	t, err := c.cfg.Builder.Build(b.work, req, log.line)
	if err == nil {
		failpoint.At(failpoint.BuildMade)
		err = c.putBuilt(req, &t)
	}
	if err == nil {
		failpoint.At(failpoint.TemplateRecorded)
	}
	log.end(t, err)
}

// putBuilt makes the build's result known under its name. A template keeps its aliases, and
// its profile unless the build names one.
func (c *Control) putBuilt(req hutch.BuildRequest, t *hutch.Template) error {
	ctx, cancel := finish(c.builds.work, finishTimeout)
	defer cancel()
	t.Name, t.BuildID, t.Profile = req.Name, req.ID, req.Profile
	old, err := c.store.Template(ctx, req.Name)
	if err == nil {
		t.Name = old.Name // an alias, maybe
		t.KeepAliases(old)
		t.Profile = cmp.Or(t.Profile, old.Profile)
	} else if !errors.Is(err, hutch.ErrNotFound) {
		return fmt.Errorf("read template %s: %w", req.Name, err)
	}
	return c.PutTemplate(ctx, *t)
}

// Build returns the record of a project's build.
func (c *Control) Build(ctx context.Context, p hutch.ProjectID, id string) (hutch.Build, error) {
	b, err := c.store.Build(ctx, id)
	if errors.Is(err, hutch.ErrNotFound) || (err == nil && b.Project != p) {
		return hutch.Build{}, hutch.Errorf(hutch.CodeNotFound, "there is no build %q", id)
	}
	if err != nil {
		return hutch.Build{}, fmt.Errorf("read build %s: %w", id, err)
	}
	return b, nil
}

// ListBuilds returns a project's builds, newest first, the last thousand of them.
func (c *Control) ListBuilds(ctx context.Context, p hutch.ProjectID) ([]hutch.Build, error) {
	l, err := c.store.Builds(ctx, store.BuildFilter{Project: p, Limit: 1000})
	if err != nil {
		return nil, fmt.Errorf("list builds: %w", err)
	}
	return l, nil
}

// FollowBuild hands a build's log to sink from the line number from on, counted from 0, and
// with follow what comes, until the build has ended.
func (c *Control) FollowBuild(ctx context.Context, p hutch.ProjectID, id string, from int, follow bool, sink func(hutch.LogLine) error) error {
	if from < 0 {
		return hutch.FieldErrorf("from", "must not be negative")
	}
	const page = 1000
	for {
		moved := c.builds.moved.next()
		b, err := c.Build(ctx, p, id) // before the lines: of one that has ended they are all there
		if err != nil {
			return err
		}
		lines, err := c.store.BuildLog(ctx, id, from, page)
		if err != nil {
			return fmt.Errorf("read the log of build %s: %w", id, err)
		}
		for _, l := range lines {
			if err := sink(l); err != nil {
				return err
			}
			from++
		}
		if len(lines) == page {
			continue
		}
		if !follow || !b.EndedAt.IsZero() {
			return nil
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-c.work.Done():
			return context.Cause(c.work)
		}
	}
}

// failCutBuilds records that the builds which an earlier process was making came to nothing.
func (c *Control) failCutBuilds(ctx context.Context) error {
	open, err := c.store.Builds(ctx, store.BuildFilter{Open: true, Limit: 1000})
	if err != nil {
		return fmt.Errorf("list builds: %w", err)
	}
	for _, b := range open {
		b.Status, b.Error, b.EndedAt = hutch.BuildFailed, cutBuild, time.Now()
		if err := c.store.AppendBuildLog(ctx, b.ID, failedLine(b)); err != nil {
			return fmt.Errorf("record the end of build %s: %w", b.ID, err)
		}
		if err := c.store.PutBuild(ctx, b); err != nil {
			return fmt.Errorf("record the end of build %s: %w", b.ID, err)
		}
	}
	return nil
}
