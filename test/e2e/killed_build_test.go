package e2e

import (
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"hutch.dev/hutch"
	"hutch.dev/hutch/api"
	"hutch.dev/hutch/internal/template/imagetest"
)

// slowRegistry is a registry whose layers stop half way until they are let go on.
type slowRegistry struct {
	*httptest.Server
	ref     string
	held    chan struct{} // closed = layers come
	waiting chan struct{} // takes one for each that has stopped
}

// newSlowRegistry returns a registry with one image in it, the one that is called app.
func newSlowRegistry(t *testing.T) *slowRegistry {
	t.Helper()
	r := &slowRegistry{held: make(chan struct{}), waiting: make(chan struct{}, 64)}
	im := imagetest.Image(t, v1.Config{User: "1000", Env: []string{"PATH=/bin"}}, imagetest.Layer(t, imagetest.Busybox(t, "sh", "echo")...))
	layers, err := im.Layers()
	if err != nil {
		t.Fatal(err)
	}
	layer, err := layers[0].Digest()
	if err != nil {
		t.Fatal(err)
	}
	inner := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		if q.Method != http.MethodGet || !strings.HasSuffix(q.URL.Path, "/blobs/"+layer.String()) {
			inner.ServeHTTP(w, q)
			return
		}
		blob := httptest.NewRecorder()
		inner.ServeHTTP(blob, q)
		body := blob.Body.Bytes()
		w.Header().Set("Content-Length", strconv.Itoa(len(body)))
		_, _ = w.Write(body[:len(body)/2])
		_ = http.NewResponseController(w).Flush()
		select {
		case <-r.held:
		default:
			r.waiting <- struct{}{}
			select {
			case <-r.held:
			case <-q.Context().Done():
				return
			}
		}
		_, _ = w.Write(body[len(body)/2:])
	}))
	t.Cleanup(r.Close)
	r.ref = r.Listener.Addr().String() + "/team/app:1"
	ref, err := name.ParseReference(r.ref, name.Insecure)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(ref, im); err != nil {
		t.Fatal(err)
	}
	return r
}

// goOn lets layers come.
func (r *slowRegistry) goOn() { close(r.held) }

// A build by the command line that is killed leaves no template and no image, and what it had
// in the making goes with the next build, which is not in its way.
func TestClientIsKilledInABuild(t *testing.T) {
	t.Parallel()
	house := newSlowRegistry(t)
	var cache string
	s := withTemplates(t, func(s *server, c string) {
		cache = c
		note := imagetest.Image(t, v1.Config{}, imagetest.Layer(t, imagetest.File("note", "alone\n")))
		buildTemplate(t, s, cache, "--oci", imagetest.Layout(t, map[string]v1.Image{"": note}), "--name", "scratch")
	})
	images := entries(t, cache, "images")
	args := []string{"--image", house.ref, "--insecure", "--name", "app", "--memory", "256"}
	p := s.startHutch(t, append([]string{"template", "build", "--data-dir", s.dir, "--cache-dir", cache}, args...)...)
	select {
	case <-house.waiting:
	case <-time.After(time.Minute):
		t.Fatalf("nothing was fetched: %s", p.log)
	}
	p.kill()
	if tpl, err := s.client.Template(t.Context(), "app"); err == nil {
		t.Errorf("there is a template of it: %+v", tpl)
	}
	if got := entries(t, cache, "images"); !slices.Equal(got, images) {
		t.Errorf("images: %q, were %q", got, images)
	}
	if got := entries(t, cache, "builds", "work"); len(got) != 1 {
		t.Errorf("it was not killed in the making: %q", got)
	}
	house.goOn()
	if out := buildTemplate(t, s, cache, args...); !strings.Contains(out, "template app built") {
		t.Errorf("the next build says %q", out)
	}
	for _, dir := range []string{"work", "locks"} {
		if left := entries(t, cache, "builds", dir); len(left) > 0 {
			t.Errorf("%s: %q is left", dir, left)
		}
	}
	sb := s.create(t, api.CreateSandbox{Template: "app"})
	if out := s.out(t, sb.ID, "echo built"); out != "built" {
		t.Errorf("got %q", out)
	}
}

func entries(t *testing.T, elem ...string) []string {
	t.Helper()
	l, err := os.ReadDir(filepath.Join(elem...))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range l {
		names = append(names, e.Name())
	}
	return names
}

// Killed while it follows a build that the server makes, it ends nothing: the build goes on to
// its end, which is there for whoever asks.
func TestClientIsKilledFollowingABuild(t *testing.T) {
	t.Parallel()
	house := newSlowRegistry(t)
	s := withTemplates(t, func(s *server, cache string) {
		note := imagetest.Image(t, v1.Config{}, imagetest.Layer(t, imagetest.File("note", "alone\n")))
		buildTemplate(t, s, cache, "--oci", imagetest.Layout(t, map[string]v1.Image{"": note}), "--name", "scratch")
	}, "--registry-insecure")
	b, err := s.client.BuildTemplate(t.Context(), api.BuildTemplate{Name: "app", ImageRef: house.ref})
	if err != nil {
		t.Fatal(err)
	}
	received(t, "the registry is asked", house.waiting)
	p := startCall(t, oneCall{Method: http.MethodGet, URL: s.base + "/v1/templates/builds/" + b.ID + "/logs?follow=1", Header: map[string]string{"Authorization": "Bearer " + s.key}})
	p.read(t, 1) // it is being told
	p.kill()
	house.goOn()
	done, err := s.client.FollowBuild(t.Context(), b.ID, func(string) error { return nil })
	if err != nil || done.Status != string(hutch.BuildDone) {
		t.Errorf("the build: %+v, %v", done, err)
	}
	sb := s.create(t, api.CreateSandbox{Template: "app"})
	if out := s.out(t, sb.ID, "echo built"); out != "built" {
		t.Errorf("got %q", out)
	}
}
