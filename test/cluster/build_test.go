package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"hutch.dev/hutch"
)

// workshop is a builder whose builds do what a test wants.
type workshop struct {
	mu    sync.Mutex
	order []string
	build func(ctx context.Context, req hutch.BuildRequest, log func(step, line string)) (hutch.Template, error)
}

func (s *workshop) Build(ctx context.Context, req hutch.BuildRequest, log func(step, line string)) (hutch.Template, error) {
	s.mu.Lock()
	s.order = append(s.order, req.Name)
	build := s.build
	s.mu.Unlock()
	return build(ctx, req, log)
}

func (s *workshop) set(build func(context.Context, hutch.BuildRequest, func(step, line string)) (hutch.Template, error)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.build = build
}

func (s *workshop) began() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.order)
}

func withWorkshop(t *testing.T) (*world, *workshop) {
	t.Helper()
	shop := &workshop{build: func(_ context.Context, _ hutch.BuildRequest, log func(step, line string)) (hutch.Template, error) {
		log("unpack", "one\ntwo\n")
		log("pack", "three")
		return hutch.Template{Image: "sha256:2", SizeBytes: 77, CreatedAt: time.Now()}, nil
	}}
	return newWorld(t, func(w *world) { w.control.Builder = shop }), shop
}

func (w *world) build(name string, tune ...func(*hutch.BuildRequest)) hutch.Build {
	w.t.Helper()
	req := hutch.BuildRequest{Project: project, Name: name, ImageRef: "example.com/" + name + ":1"}
	for _, f := range tune {
		f(&req)
	}
	b, err := w.c.StartBuild(w.ctx(), req)
	if err != nil {
		w.t.Fatalf("StartBuild %s: %v", name, err)
	}
	return b
}

// built waits for a build's end.
func (w *world) built(id string) hutch.Build {
	w.t.Helper()
	var b hutch.Build
	eventually(w.t, "build "+id+" ends", func() (err error) {
		if b, err = w.c.Build(w.ctx(), project, id); err == nil && b.EndedAt.IsZero() {
			err = fmt.Errorf("it is %s", b.Status)
		}
		return err
	})
	return b
}

func (w *world) buildLog(id string, from int, follow bool) []string {
	w.t.Helper()
	var lines []string
	err := w.c.FollowBuild(w.ctx(), project, id, from, follow, func(l hutch.LogLine) error {
		lines = append(lines, l.Text)
		return nil
	})
	if err != nil {
		w.t.Fatalf("FollowBuild: %v", err)
	}
	return lines
}

// A template keeps its profile until a build names another.
func TestBuildKeepsTheProfile(t *testing.T) {
	w, _ := withWorkshop(t)
	for _, c := range []struct{ asked, want hutch.Profile }{
		{"", ""}, {hutch.ProfileLocked, hutch.ProfileLocked}, {"", hutch.ProfileLocked}, {hutch.ProfileRoot, hutch.ProfileRoot},
	} {
		w.built(w.build("py", func(r *hutch.BuildRequest) { r.Profile = c.asked }).ID)
		if tpl, err := w.c.Template(w.ctx(), "py"); err != nil || tpl.Profile != c.want {
			t.Errorf("%+v: the template has %q, %v", c, tpl.Profile, err)
		}
	}
}

func TestBuildMakesATemplate(t *testing.T) {
	w, shop := withWorkshop(t)
	b := w.build("py")
	if b.Status != hutch.BuildQueued || b.Source != "image example.com/py:1" || b.Template != "py" || b.StartedAt.IsZero() {
		t.Errorf("the build: %+v", b)
	}
	if got := w.buildLog(b.ID, 0, true); !slices.Equal(got, []string{"one", "two", "three"}) {
		t.Errorf("the log: %q", got)
	}
	b = w.built(b.ID)
	if b.Status != hutch.BuildDone || b.Step != "pack" || b.Error != "" || b.SizeBytes != 77 {
		t.Errorf("the build: %+v", b)
	}
	if got := w.buildLog(b.ID, 2, false); !slices.Equal(got, []string{"three"}) {
		t.Errorf("the log from the third line: %q", got)
	}
	tpl, err := w.c.Template(w.ctx(), "py")
	if err != nil || tpl.Image != "sha256:2" || tpl.BuildID != b.ID {
		t.Errorf("the template: %+v, %v", tpl, err)
	}
	sb := w.create(func(r *hutch.CreateSandbox) { r.Template = "py" })
	if sb.Image != "sha256:2" {
		t.Errorf("a sandbox of it has the image %s", sb.Image)
	}
	// Built again, it keeps its aliases, and is found by them.
	tpl.Aliases = []string{"python"}
	if err := w.c.PutTemplate(w.ctx(), tpl); err != nil {
		t.Fatal(err)
	}
	shop.set(func(context.Context, hutch.BuildRequest, func(step, line string)) (hutch.Template, error) {
		return hutch.Template{Image: "sha256:2", SizeBytes: 77, CreatedAt: time.Now(), Aliases: []string{"py3"}}, nil
	})
	again := w.built(w.build("python").ID)
	tpl, err = w.c.Template(w.ctx(), "python")
	if err != nil || tpl.Name != "py" || tpl.BuildID != again.ID || !slices.Equal(tpl.Aliases, []string{"python", "py3"}) {
		t.Errorf("the template built by its alias: %+v, %v", tpl, err)
	}
	if err := w.c.DeleteTemplate(w.ctx(), "python"); err != nil {
		t.Errorf("delete it by its alias: %v", err)
	}
	_, err = w.c.Template(w.ctx(), "py")
	wantError(t, "the template afterwards", err, hutch.ErrNotFound)
	wantError(t, "deleting it again", w.c.DeleteTemplate(w.ctx(), "py"), hutch.ErrNotFound)
	w.wantEnd(w.exec(sb, "echo on"), hutch.ExecExit, 0, "on\n") // which costs its sandboxes nothing
}

func TestBuildThatFails(t *testing.T) {
	w, shop := withWorkshop(t)
	for text, cause := range map[string]error{
		"there is no such image": hutch.Errorf(hutch.CodeNotFound, "there is no such image"),
		"it failed for a reason that is the server's: its log and the server's say more": errors.New("open /var/lib/x: no space"),
	} {
		shop.set(func(_ context.Context, _ hutch.BuildRequest, log func(step, line string)) (hutch.Template, error) {
			log("fetch", "trying")
			return hutch.Template{}, cause
		})
		b := w.built(w.build("py").ID)
		if b.Status != hutch.BuildFailed || b.Error != text || b.Step != "fetch" {
			t.Errorf("the build: %+v, want it failed with %q", b, text)
		}
		_, err := w.c.Template(w.ctx(), "py")
		wantError(t, "a template", err, hutch.ErrNotFound)
	}
	shop.set(func(context.Context, hutch.BuildRequest, func(step, line string)) (hutch.Template, error) {
		return hutch.Template{Image: "sha256:2"}, nil
	})
	w.store.fail("Template", 1) // the look at the template of before, behind the build
	if b := w.built(w.build("py").ID); b.Status != hutch.BuildFailed {
		t.Errorf("a build whose result could not be recorded: %+v", b)
	}
}

// gallery is images that are looked through as a test wants.
type gallery struct {
	mu     sync.Mutex
	images []string
}

func (g *gallery) Collect(_ context.Context, keep func(string) bool) (int, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	before := len(g.images)
	g.images = slices.DeleteFunc(g.images, func(d string) bool { return !keep(d) })
	return before - len(g.images), nil
}

func (g *gallery) has(digest string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Contains(g.images, digest)
}

// An image goes when no template points at it and no living sandbox was made from it.
func TestImagesThatNothingNeedsGo(t *testing.T) {
	g := &gallery{images: []string{"sha256:1"}}
	w := newWorld(t, func(w *world) { w.control.Images, w.control.ImagesEvery = g, time.Millisecond })
	if err := w.c.PutTemplate(w.ctx(), hutch.Template{Name: "two", Image: "sha256:2"}); err != nil {
		t.Fatal(err)
	}
	gone := func(digest string) {
		t.Helper()
		eventually(t, digest+" goes", func() error {
			if g.has(digest) {
				return errors.New("it is there")
			}
			return nil
		})
	}
	sb := w.create(func(r *hutch.CreateSandbox) { r.Template = "two" })
	g.mu.Lock()
	g.images = append(g.images, "sha256:2", "sha256:later")
	g.mu.Unlock()
	if err := w.c.DeleteTemplate(w.ctx(), "two"); err != nil {
		t.Fatal(err)
	}
	gone("sha256:later")
	if !g.has("sha256:1") || !g.has("sha256:2") {
		t.Errorf("images that are needed went: %q", g.images)
	}
	if _, err := w.c.KillSandbox(w.ctx(), project, sb.ID); err != nil {
		t.Fatal(err)
	}
	gone("sha256:2")
	if !g.has("sha256:1") {
		t.Error("the image of a template went")
	}
}

// One at a time, in order; so many wait; who leaves ends nothing.
func TestBuildsQueue(t *testing.T) {
	w, shop := withWorkshop(t)
	gate := make(chan struct{})
	shop.set(func(_ context.Context, req hutch.BuildRequest, _ func(step, line string)) (hutch.Template, error) {
		<-gate
		return hutch.Template{Image: "sha256:" + req.Name}, nil
	})
	ctx, leave := context.WithCancel(w.ctx())
	first, err := w.c.StartBuild(ctx, hutch.BuildRequest{Project: project, Name: "t-00", Recipe: "base"})
	if err != nil {
		t.Fatal(err)
	}
	leave()
	eventually(t, "the first is under way", func() error {
		b, err := w.c.Build(w.ctx(), project, first.ID)
		if err == nil && b.Status != hutch.BuildRunning {
			err = fmt.Errorf("it is %s", b.Status)
		}
		return err
	})
	var ids []string
	for i := range 16 {
		ids = append(ids, w.build(fmt.Sprintf("t-%02d", i+1)).ID)
	}
	_, err = w.c.StartBuild(w.ctx(), hutch.BuildRequest{Project: project, Name: "many", Recipe: "base"})
	wantError(t, "one more", err, hutch.ErrRateLimited)
	if began := shop.began(); len(began) != 1 {
		t.Errorf("%d builds are made at once", len(began))
	}
	if l, err := w.c.ListBuilds(w.ctx(), project); err != nil || len(l) != 17 || l[16].ID != first.ID {
		t.Errorf("ListBuilds: %d, %v; want 17, the first last", len(l), err)
	}
	close(gate)
	for _, id := range append(ids, first.ID) {
		if b := w.built(id); b.Status != hutch.BuildDone {
			t.Errorf("build %s: %+v", id, b)
		}
	}
	if began := shop.began(); len(began) != 17 || !slices.IsSorted(began) {
		t.Errorf("they were made in the order %q", began)
	}
	w.built(w.build("many").ID)
}

func TestBuildRequests(t *testing.T) {
	w, _ := withWorkshop(t)
	id := uuid.NewString()
	withID := func(r *hutch.BuildRequest) { r.ID = id }
	first := w.build("py", withID)
	w.built(first.ID)
	if again := w.build("other", withID); again.Template != "py" || again.Status != hutch.BuildDone {
		t.Errorf("asked for twice: %+v, want the first", again)
	}
	for what, c := range map[string]struct {
		req  hutch.BuildRequest
		want error
	}{
		"no source":            {hutch.BuildRequest{Name: "a"}, hutch.ErrBadRequest},
		"two sources":          {hutch.BuildRequest{Name: "a", Recipe: "r", ImageRef: "i"}, hutch.ErrBadRequest},
		"no name":              {hutch.BuildRequest{Recipe: "r"}, hutch.ErrBadRequest},
		"a name that is a way": {hutch.BuildRequest{Name: "../a", Recipe: "r"}, hutch.ErrBadRequest},
		"an id that is none":   {hutch.BuildRequest{ID: "x", Name: "a", Recipe: "r"}, hutch.ErrBadRequest},
		"a user of a recipe":   {hutch.BuildRequest{Name: "a", Recipe: "r", Username: "u"}, hutch.ErrBadRequest},
		"an unknown profile":   {hutch.BuildRequest{Name: "a", Recipe: "r", Profile: "half"}, hutch.ErrBadRequest},
		"too much memory":      {hutch.BuildRequest{Name: "a", Recipe: "r", Resources: hutch.Resources{MemoryMB: 1 << 30}}, hutch.ErrBadRequest},
		"another's id":         {hutch.BuildRequest{ID: id, Project: "other", Name: "a", Recipe: "r"}, hutch.ErrConflict},
	} {
		if c.req.Project == "" {
			c.req.Project = project
		}
		_, err := w.c.StartBuild(w.ctx(), c.req)
		wantError(t, what, err, c.want)
	}
	_, err := w.c.Build(w.ctx(), "other", id)
	wantError(t, "another project's look at it", err, hutch.ErrNotFound)
	err = w.c.FollowBuild(w.ctx(), "other", id, 0, true, nil)
	wantError(t, "another project's look at its log", err, hutch.ErrNotFound)
	plain := newWorld(t)
	_, err = plain.c.StartBuild(w.ctx(), hutch.BuildRequest{Project: project, Name: "a", Recipe: "r"})
	wantError(t, "a server without a builder", err, hutch.ErrUnsupported)
}

// A log is bounded; its beginning and its end are kept.
func TestBuildLogIsBounded(t *testing.T) {
	w, shop := withWorkshop(t)
	shop.set(func(_ context.Context, _ hutch.BuildRequest, log func(step, line string)) (hutch.Template, error) {
		for i := range 10_200 {
			log("noise", fmt.Sprintf("line %d", i))
		}
		log("noise", strings.Repeat("long", 100_000))
		log("noise", "the end \xff")
		return hutch.Template{}, hutch.Errorf(hutch.CodeBadRequest, "no")
	})
	b := w.build("loud")
	lines := w.buildLog(b.ID, 0, true) // to the end, which costs less than asking for it again and again
	w.built(b.ID)
	if len(lines) > 10_002 || lines[0] != "line 0" || !slices.Equal(lines[len(lines)-2:], []string{"the end \uFFFD", "failed: no"}) {
		t.Fatalf("%d lines, from %q to %q", len(lines), lines[0], lines[len(lines)-1])
	}
	if i := slices.IndexFunc(lines, func(l string) bool { return strings.Contains(l, "lines are not kept") }); i < 0 {
		t.Error("nothing says that lines are missing")
	} else if lines[i-1] != fmt.Sprintf("line %d", i-1) {
		t.Errorf("before the gap comes %q", lines[i-1])
	}
}

// The server is killed in the middle of builds: they are on record as failed, and why.
func TestRestartInTheMiddleOfABuild(t *testing.T) {
	for name, stop := range map[string]func(w *world){
		"killed": func(w *world) { w.kill() },
		"told to stop": func(w *world) {
			s := w.server
			w.server = nil
			s.stop()
			s.runs.Wait()
			s.n.Close()
			s.c.Close()
			s.keeper.c.Close()
		},
	} {
		t.Run(name, func(t *testing.T) {
			w, shop := withWorkshop(t)
			begun := make(chan struct{})
			shop.set(func(ctx context.Context, _ hutch.BuildRequest, log func(step, line string)) (hutch.Template, error) {
				log("unpack", "so far")
				close(begun)
				<-ctx.Done()
				return hutch.Template{}, ctx.Err()
			})
			running := w.build("py")
			queued := w.build("node")
			within(t, "the build begins", begun)
			eventually(t, "its log is stored", func() error {
				if got := w.buildLog(running.ID, 0, false); len(got) != 1 {
					return fmt.Errorf("%q", got)
				}
				return nil
			})
			follow := make(chan error, 1)
			server, ctx := w.c, w.ctx()
			go func() {
				follow <- server.FollowBuild(ctx, project, running.ID, 0, true, func(hutch.LogLine) error { return nil })
			}()
			stop(w)
			within(t, "who follows is told", follow)
			w.start()
			for _, id := range []string{running.ID, queued.ID} {
				b := w.built(id)
				if b.Status != hutch.BuildFailed || !strings.Contains(b.Error, "the server stopped") {
					t.Errorf("build %s: %+v", b.Template, b)
				}
			}
			if got := w.buildLog(running.ID, 0, true); len(got) != 2 || got[0] != "so far" || !strings.HasPrefix(got[1], "failed: the server stopped") {
				t.Errorf("its log: %q", got)
			}
			shop.set(func(context.Context, hutch.BuildRequest, func(step, line string)) (hutch.Template, error) {
				return hutch.Template{Image: "sha256:2"}, nil
			})
			if b := w.built(w.build("py").ID); b.Status != hutch.BuildDone {
				t.Errorf("built again: %+v", b)
			}
		})
	}
}
