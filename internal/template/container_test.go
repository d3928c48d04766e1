package template_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/template"
	"hutch.dev/hutch/internal/template/imagetest"
	"hutch.dev/hutch/internal/template/ociimage"
)

// app is a small image with everything that a configuration can say.
func app(t *testing.T) v1.Image {
	t.Helper()
	return imagetest.Image(t, v1.Config{
		User: "1000", WorkingDir: "/srv", Env: []string{"A=1", "PATH=/bin", "HUTCH_EXEC_ID=x", "UNSET"},
		Entrypoint: []string{"/bin/app"}, Cmd: []string{"--serve"},
	}, imagetest.Layer(t,
		imagetest.Dir("bin", 0o755), imagetest.Program("bin/app", "an app"),
		imagetest.Owned(imagetest.Of(imagetest.File("bin/su", "su"), 0o4755), 0, 7),
		imagetest.Hard("bin/app2", "bin/app"), imagetest.Link("etc", "/config"),
		imagetest.File("srv/old", "x"), imagetest.Device("dev/sda"),
	), imagetest.Layer(t, imagetest.Gone("srv", "old"), imagetest.File("etc/app.conf", "conf")))
}

func TestBuildImage(t *testing.T) {
	b := newBench(t, "")
	c := template.Container{
		Name: "app", Aliases: []string{"app-1.0"}, Resources: template.Resources{MemoryMB: 256},
		Source: ociimage.Source{Archive: imagetest.Layout(t, map[string]v1.Image{"": app(t)})},
	}
	var lines []string
	var steps []template.Step
	o := template.Options{
		Log:      func(step template.Step, line string) { lines = append(lines, string(step)+": "+line) },
		Progress: func(p template.Progress) { steps = append(steps, p.Step) },
	}
	res, err := b.BuildImage(t.Context(), c, o)
	if err != nil {
		t.Fatal(err)
	}
	digest, err := app(t).Digest()
	if err != nil {
		t.Fatal(err)
	}
	want := hutch.Template{
		Name: "app", BuildID: res.BuildID, Image: res.Image.Digest, SizeBytes: res.Image.SizeBytes, Recipe: res.Key,
		Defaults:    hutch.ProcessDefaults{User: "1000", Cwd: "/srv", Env: map[string]string{"A": "1", "PATH": "/bin"}},
		Resources:   hutch.Resources{MilliCPU: 1000, MemoryMB: 256, DiskMB: 10240, DiskTier: hutch.TierDisk},
		CreatedAt:   res.BuiltAt,
		Aliases:     []string{"app-1.0"},
		Description: "oci layout " + digest.String(),
		Entrypoint:  []string{"/bin/app", "--serve"},
	}
	if got := res.Template(); !reflect.DeepEqual(got, want) {
		t.Errorf("record %+v\nwant   %+v", got, want)
	}
	x := extract(t, res.Image.Path)
	for name, want := range map[string]string{
		"bin/app": "an app", "bin/app2": "an app", "config/app.conf": "conf", "config/hosts": "127.0.0.1 localhost\n::1 ip6-localhost ip6-loopback\n",
	} {
		if got := read(t, filepath.Join(x, name)); got != want {
			t.Errorf("/%s is %q, want %q", name, got, want)
		}
	}
	for name, want := range map[string]os.FileMode{"tmp": os.ModeDir | os.ModeSticky | 0o777, "workspace": os.ModeDir | 0o777, "srv": os.ModeDir | 0o755, "proc": os.ModeDir | 0o755} {
		if st, err := os.Stat(filepath.Join(x, name)); err != nil || st.Mode() != want {
			t.Errorf("/%s: %v, %v; want mode %v", name, st, err, want)
		}
	}
	for _, name := range []string{"srv/old", "dev/sda"} {
		if exists(filepath.Join(x, name)) {
			t.Errorf("/%s is in the image", name)
		}
	}
	if got, want := slices.Compact(steps), []template.Step{template.StepPlan, template.StepUnpack, template.StepCustomise, template.StepImage, template.StepRegister}; !reflect.DeepEqual(got, want) {
		t.Errorf("steps %v, want %v", got, want)
	}
	for _, want := range []string{
		"plan: found oci layout " + digest.String(), "unpack: layer 2 of 2: ", "customise: added: /tmp, mode 1777", "customise: added: /etc/hosts",
		"customise: left out: /dev/sda: a device",
	} {
		if !slices.ContainsFunc(lines, func(l string) bool { return strings.HasPrefix(l, want) }) {
			t.Errorf("the log lacks %q:\n%s", want, strings.Join(lines, "\n"))
		}
	}
	if log := read(t, res.LogPath); !strings.Contains(log, "left out: /dev/sda") {
		t.Errorf("the log that is kept:\n%s", log)
	}
	wantLeft := []string{"builds/" + res.Key + ".json", "builds/" + res.Key + ".log", "images/" + strings.TrimPrefix(res.Image.Digest, "sha256:") + ".erofs"}
	if got := b.left(t); !reflect.DeepEqual(got, wantLeft) {
		t.Errorf("in the directory: %q, want %q", got, wantLeft)
	}
	if calls := b.calls(t); len(calls) != 0 {
		t.Errorf("mmdebstrap was called: %q", calls)
	}
}

func TestAnImageIsBuiltOnce(t *testing.T) {
	b := newBench(t, "")
	oci := imagetest.Layout(t, map[string]v1.Image{"": app(t)})
	c := template.Container{Name: "app", Source: ociimage.Source{Archive: oci}}
	first, err := b.BuildImage(t.Context(), c, template.Options{})
	if err != nil {
		t.Fatal(err)
	}
	// Whatever the name and the place, it is the digest that counts.
	b.open()
	c = template.Container{Name: "other", Source: ociimage.Source{Archive: imagetest.Layout(t, map[string]v1.Image{"x": app(t)})}, Resources: template.Resources{CPU: 2}}
	again, err := b.BuildImage(t.Context(), c, template.Options{})
	if err != nil || !again.Cached || again.Image != first.Image || again.Template().Resources.MilliCPU != 2000 {
		t.Errorf("again: %+v, %v", again, err)
	}
	forced, err := b.BuildImage(t.Context(), c, template.Options{Force: true})
	if err != nil || forced.Cached || forced.Image.Digest != first.Image.Digest {
		t.Errorf("forced: %+v, %v; want the same image, built again", forced, err)
	}
	// An archive of docker's has no manifest, so its key is another, and the image the same.
	c.Source = ociimage.Source{Archive: imagetest.Docker(t, map[string]v1.Image{"a.example/app:1": app(t)})}
	docker, err := b.BuildImage(t.Context(), c, template.Options{})
	if err != nil || docker.Cached || docker.Image.Digest != first.Image.Digest {
		t.Errorf("from docker: %+v, %v", docker, err)
	}
}

// image is an image of one layer.
func image(t *testing.T, c v1.Config, entries ...imagetest.Entry) v1.Image {
	t.Helper()
	return imagetest.Image(t, c, imagetest.Layer(t, entries...))
}

func TestImagesThatAreRefused(t *testing.T) {
	tests := map[string]struct {
		image v1.Image
		name  string // of the template; empty = "app"
		step  template.Step
		code  hutch.Code
		want  string
	}{
		"a file where processes are":   {image: image(t, v1.Config{}, imagetest.File("proc", "x")), step: template.StepCustomise, code: hutch.CodeBadRequest, want: "/proc"},
		"a file where the agent is":    {image: image(t, v1.Config{}, imagetest.File("opt", "x")), step: template.StepCustomise, code: hutch.CodeBadRequest, want: "/opt"},
		"a name that climbs":           {image: image(t, v1.Config{}, imagetest.File("../x", "x")), step: template.StepUnpack, code: hutch.CodeBadRequest, want: "climbs"},
		"larger than allowed":          {image: image(t, v1.Config{}, imagetest.File("a", strings.Repeat("x", 3<<20))), step: template.StepUnpack, code: hutch.CodeTooLarge, want: "larger than 2 MiB"},
		"layers larger than allowed":   {image: imagetest.Image(t, v1.Config{}, random(t, 3<<20)), step: template.StepUnpack, code: hutch.CodeTooLarge, want: "2 are allowed"},
		"a user who is not there":      {image: image(t, v1.Config{User: "builder"}, imagetest.File("etc/passwd", "root:x:0:0::/:/bin/sh\n")), step: template.StepCustomise, code: hutch.CodeBadRequest, want: "no such user"},
		"a group that is not there":    {image: image(t, v1.Config{User: "1:staff"}), step: template.StepCustomise, code: hutch.CodeBadRequest, want: "no such group"},
		"a user that is none":          {image: image(t, v1.Config{User: "a b"}), step: template.StepPlan, code: hutch.CodeBadRequest, want: "USER"},
		"a directory that is none":     {image: image(t, v1.Config{WorkingDir: "srv"}), step: template.StepPlan, code: hutch.CodeBadRequest, want: "WORKDIR"},
		"a directory that is a file":   {image: image(t, v1.Config{WorkingDir: "/f"}, imagetest.File("f", "x")), step: template.StepCustomise, code: hutch.CodeBadRequest, want: "WORKDIR"},
		"a variable without a name":    {image: image(t, v1.Config{Env: []string{"=x"}}), step: template.StepPlan, code: hutch.CodeBadRequest, want: "variable"},
		"a template name that is none": {image: image(t, v1.Config{}), name: "No", step: template.StepPlan, code: hutch.CodeBadRequest, want: "name"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, "")
			b.maxBytes = 2 << 20
			b.open()
			c := template.Container{Name: cmp.Or(tt.name, "app"), Source: ociimage.Source{Archive: imagetest.Layout(t, map[string]v1.Image{"": tt.image})}}
			_, err := b.BuildImage(t.Context(), c, template.Options{})
			var at *template.StepError
			var e *hutch.Error
			if !errors.As(err, &at) || at.Step != tt.step || !errors.As(err, &e) || e.Code != tt.code || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %s in step %s with %q", err, tt.code, tt.step, tt.want)
			}
			if left := b.left(t); len(left) > 0 {
				t.Errorf("left behind: %q", left)
			}
		})
	}
}

// random is a layer that no compression makes smaller.
func random(t *testing.T, size int) v1.Layer {
	t.Helper()
	data := make([]byte, size)
	r := rand.New(rand.NewPCG(1, 2))
	for i := range data {
		data[i] = byte(r.Uint32())
	}
	return imagetest.Layer(t, imagetest.File("noise", string(data)))
}

func TestUsersThatAreThere(t *testing.T) {
	for _, user := range []string{"", "root", "1000", "1000:1000", "builder", "builder:staff", "root:0"} {
		b := newBench(t, "")
		im := image(t, v1.Config{User: user, WorkingDir: "/new/dir/"}, imagetest.File("etc/passwd", "root:x:0:0::/:/bin/sh\nbuilder:x:7:7::/:/bin/sh\n"), imagetest.File("etc/group", "staff:x:50:\n"))
		res, err := b.BuildImage(t.Context(), template.Container{Name: "app", Source: ociimage.Source{Archive: imagetest.Layout(t, map[string]v1.Image{"": im})}}, template.Options{})
		if err != nil {
			t.Errorf("USER %q: %v", user, err)
			continue
		}
		if d := res.Template().Defaults; d.User != user || d.Cwd != "/new/dir" {
			t.Errorf("USER %q: %+v", user, d)
		}
		if info, err := os.Stat(filepath.Join(extract(t, res.Image.Path), "new/dir")); err != nil || !info.IsDir() {
			t.Errorf("the image's WORKDIR: %v, %v", info, err)
		}
	}
}

// TestCancelledImageLeavesNothing cancels a build while a registry sends a layer.
func TestCancelledImageLeavesNothing(t *testing.T) {
	b := newBench(t, "")
	begun := make(chan struct{})
	inner := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	im := imagetest.Image(t, v1.Config{}, random(t, 1<<20))
	var pushed atomic.Bool
	var once sync.Once
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		layers, _ := im.Layers()
		h, _ := layers[0].Digest()
		if !pushed.Load() || r.Method != http.MethodGet || !strings.HasSuffix(r.URL.Path, h.String()) {
			inner.ServeHTTP(w, r)
			return
		}
		w.Header().Set("Content-Length", fmt.Sprint(1<<20))
		_, _ = w.Write([]byte{0x1f, 0x8b, 8, 0})
		w.(http.Flusher).Flush()
		once.Do(func() { close(begun) })
		<-r.Context().Done()
	}))
	defer srv.Close()
	ref, err := name.ParseReference(srv.Listener.Addr().String()+"/app:1", name.Insecure)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(ref, im); err != nil {
		t.Fatal(err)
	}
	pushed.Store(true)
	gone := errors.New("the caller left")
	ctx, cancel := context.WithCancelCause(t.Context())
	go func() {
		<-begun
		cancel(gone)
	}()
	_, err = b.BuildImage(ctx, template.Container{Name: "app", Source: ociimage.Source{Ref: ref.String(), Insecure: true}}, template.Options{})
	var at *template.StepError
	if !errors.Is(err, gone) || !errors.As(err, &at) || at.Step != template.StepUnpack {
		t.Errorf("got %v, want the cause in step unpack", err)
	}
	if left := b.left(t); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
}
