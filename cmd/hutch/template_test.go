package main

import (
	"bytes"
	"encoding/pem"
	"errors"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/rootfs"
	"hutch.dev/hutch/internal/store/sqlite"
	"hutch.dev/hutch/internal/template/imagetest"
)

// workshop runs template commands on a data directory of its own.
type workshop struct {
	t    *testing.T
	data string
}

func newWorkshop(t *testing.T) workshop {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("building needs root")
	}
	if _, err := exec.LookPath("mkfs.erofs"); err != nil {
		t.Fatalf("tools/setup installs what builds images: %v", err)
	}
	t.Setenv(rootfs.DirEnv, "")
	return workshop{t: t, data: t.TempDir()}
}

// run runs `hutch template` with args and returns what it printed.
func (w workshop) run(stdin string, args ...string) (string, error) {
	w.t.Helper()
	for _, c := range templateCommands() {
		if c.Name() != args[0] {
			continue
		}
		var out bytes.Buffer
		c.SetArgs(append(args[1:], "--data-dir", w.data))
		c.SetIn(strings.NewReader(stdin))
		c.SetOut(&out)
		c.SetErr(&out)
		c.SilenceUsage, c.SilenceErrors = true, true
		err := c.ExecuteContext(w.t.Context())
		return out.String(), err
	}
	w.t.Fatalf("there is no command %q", args[0])
	return "", nil
}

// must is run for what has to work.
func (w workshop) must(args ...string) string {
	w.t.Helper()
	out, err := w.run("", args...)
	if err != nil {
		w.t.Fatalf("%v: %v\n%s", args, err, out)
	}
	return out
}

func (w workshop) template(called string) (hutch.Template, error) {
	w.t.Helper()
	st, err := sqlite.Open(w.t.Context(), filepath.Join(w.data, dbFile))
	if err != nil {
		w.t.Fatal(err)
	}
	defer st.Close()
	return st.Template(w.t.Context(), called)
}

func (w workshop) hasImage(digest string) bool {
	_, err := rootfs.New(rootfs.Config{Dir: w.data}).Image(digest)
	return err == nil
}

// layoutOf is an OCI layout of an image with one file.
func layoutOf(t *testing.T, content string) string {
	t.Helper()
	return imagetest.Layout(t, map[string]v1.Image{"": imagetest.Image(t, v1.Config{User: "7"}, imagetest.Layer(t, imagetest.File("f", content)))})
}

func TestTemplateBuildFromAnImage(t *testing.T) {
	w := newWorkshop(t)
	out := w.must("build", "--oci", layoutOf(t, "1"), "--name", "app", "--alias", "app-v1", "--cpu", "0.5", "--memory", "200", "--disk", "99", "--profile", "locked")
	got, err := w.template("app-v1")
	if err != nil {
		t.Fatal(err)
	}
	if got.Name != "app" || got.Defaults.User != "7" || got.Resources.MilliCPU != 500 || got.Resources.MemoryMB != 200 || got.Resources.DiskMB != 99 || got.Profile != hutch.ProfileLocked || !w.hasImage(got.Image) {
		t.Errorf("template %+v", got)
	}
	for _, want := range []string{"app: unpack", "template app built in", got.Image, "from oci layout sha256:"} {
		if !strings.Contains(out, want) {
			t.Errorf("the output lacks %q:\n%s", want, out)
		}
	}
	w.must("alias", "app", "prod")
	if out := w.must("build", "--oci", layoutOf(t, "1"), "--name", "app", "--alias", "app-v2"); !strings.Contains(out, "was built already") {
		t.Errorf("again: %s", out)
	}
	if got, err = w.template("prod"); err != nil || !slices.Equal(got.Aliases, []string{"app-v1", "prod", "app-v2"}) || got.Profile != hutch.ProfileLocked {
		t.Errorf("built again, it answers to %v and has the profile %q, %v", got.Aliases, got.Profile, err)
	}
}

// TestTemplateBuildFromARegistry logs in with a password from stdin, at a registry whose
// certificate is signed by an authority of its own.
func TestTemplateBuildFromARegistry(t *testing.T) {
	w := newWorkshop(t)
	inner := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	house := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if u, p, _ := r.BasicAuth(); u != "robot" || p != "let me in" {
			w.Header().Set("WWW-Authenticate", `Basic realm="house"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		inner.ServeHTTP(w, r)
	}))
	defer house.Close()
	ca := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: house.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	ref, err := name.ParseReference(house.Listener.Addr().String() + "/app:1")
	if err != nil {
		t.Fatal(err)
	}
	im := imagetest.Image(t, v1.Config{}, imagetest.Layer(t, imagetest.File("f", "x")))
	if err := remote.Write(ref, im, remote.WithTransport(house.Client().Transport), remote.WithAuth(&authn.Basic{Username: "robot", Password: "let me in"})); err != nil {
		t.Fatal(err)
	}
	args := []string{"build", "--image", ref.String(), "--name", "app", "--ca", ca, "--username", "robot", "--password-stdin"}
	if out, err := w.run("guess\n", args...); err == nil || !strings.Contains(err.Error(), "check the user name") || strings.Contains(out+err.Error(), "guess") {
		t.Errorf("a wrong password: %v\n%s", err, out)
	}
	out, err := w.run("let me in\n", args...)
	if err != nil || !strings.Contains(out, "from image "+ref.String()+"@sha256:") || strings.Contains(out, "let me in") {
		t.Errorf("the right one: %v\n%s", err, out)
	}
}

func TestTemplateBuildRefuses(t *testing.T) {
	w := newWorkshop(t)
	large := layoutOf(t, strings.Repeat("x", 2<<20))
	for name, tt := range map[string]struct {
		args  []string
		stdin string
		want  string
	}{
		"nothing":                  {args: nil, want: "give one thing"},
		"two things":               {args: []string{"base", "--oci", "x"}, want: "give one thing"},
		"no name":                  {args: []string{"--oci", "x"}, want: "--name"},
		"a password for nothing":   {args: []string{"base", "--password-stdin"}, want: "need --image"},
		"a user without password":  {args: []string{"--image", "a.example/b", "--name", "x", "--username", "robot"}, want: "need each other"},
		"no password after all":    {args: []string{"--image", "a.example/b", "--name", "x", "--username", "robot", "--password-stdin"}, want: "no password on stdin"},
		"a tag for nothing":        {args: []string{"base", "--tag", "x"}, want: "--tag is about an archive"},
		"recipes for an image":     {args: []string{"--oci", "x", "--name", "x", "--recipes", "/tmp"}, want: "--recipes is about"},
		"a recipe's image size":    {args: []string{"base", "--max-image-size", "9"}, want: "--max-image-size is about"},
		"an image of no size":      {args: []string{"--oci", "x", "--name", "x", "--max-image-size", "0"}, want: "at least 1"},
		"a profile there is not":   {args: []string{"base", "--profile", "half"}, want: "--profile must be"},
		"no such recipe":           {args: []string{"nosuch"}, want: "nosuch"},
		"no such archive":          {args: []string{"--docker-archive", "/no/such", "--name", "x"}, want: "no archive"},
		"not that kind of archive": {args: []string{"--docker-archive", layoutOf(t, "1"), "--name", "x"}, want: "no docker archive"},
		"too large":                {args: []string{"--oci", large, "--name", "x", "--max-image-size", "1"}, want: "larger than 1 MiB"},
	} {
		t.Run(name, func(t *testing.T) {
			if out, err := w.run(tt.stdin, append([]string{"build"}, tt.args...)...); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %q\n%s", err, tt.want, out)
			}
		})
	}
	if images, err := rootfs.New(rootfs.Config{Dir: w.data}).List(); err != nil || len(images) != 0 {
		t.Errorf("images left: %v, %v", images, err)
	}
}

func TestTemplateRm(t *testing.T) {
	w := newWorkshop(t)
	for _, name := range []string{"one", "two"} {
		w.must("build", "--oci", layoutOf(t, "shared"), "--name", name)
	}
	w.must("build", "--oci", layoutOf(t, "used"), "--name", "three", "--alias", "third")
	shared, err := w.template("one")
	if err != nil {
		t.Fatal(err)
	}
	used, err := w.template("three")
	if err != nil {
		t.Fatal(err)
	}
	if out := w.must("rm", "one"); !strings.Contains(out, "template two has it too") || !w.hasImage(shared.Image) {
		t.Errorf("an image that another template has: %s", out)
	}
	if out := w.must("rm", "two"); !strings.Contains(out, "with image "+shared.Image) || w.hasImage(shared.Image) {
		t.Errorf("one that none has: %s", out)
	}
	if left, err := filepath.Glob(filepath.Join(w.data, "builds", "builds", shared.Recipe+"*")); err != nil || len(left) != 0 {
		t.Errorf("left of its build: %v, %v", left, err)
	}
	if _, err := w.template("two"); !errors.Is(err, hutch.ErrNotFound) {
		t.Errorf("after removal: %v", err)
	}
	if _, err := w.run("", "rm", "third"); err == nil || !strings.Contains(err.Error(), "alias of three") {
		t.Errorf("by its alias: %v", err)
	}
	st, err := sqlite.Open(t.Context(), filepath.Join(w.data, dbFile))
	if err != nil {
		t.Fatal(err)
	}
	sb := hutch.Sandbox{ID: "i0123456789abcdefghij", Project: hutch.DefaultProject, Template: "three", Image: used.Image, State: hutch.StateRunning, CreatedAt: time.Now(), ExpiresAt: time.Now().Add(time.Hour)}
	if err := errors.Join(st.CreateSandbox(t.Context(), sb), st.Close()); err != nil {
		t.Fatal(err)
	}
	if out := w.must("rm", "three"); !strings.Contains(out, "sandbox i0123456789abcdefghij was made from it") || !w.hasImage(used.Image) {
		t.Errorf("one that a sandbox has: %s", out)
	}
	w.must("build", "--oci", layoutOf(t, "pinned"), "--name", "four")
	pinned, err := w.template("four")
	if err != nil {
		t.Fatal(err)
	}
	if err := rootfs.New(rootfs.Config{Dir: w.data}).Pin(pinned.Image, "somebody"); err != nil {
		t.Fatal(err)
	}
	if out := w.must("rm", "four"); !strings.Contains(out, "it is pinned") || !w.hasImage(pinned.Image) {
		t.Errorf("one that is pinned: %s", out)
	}
	if _, err := w.run("", "rm", "four"); !errors.Is(err, hutch.ErrNotFound) {
		t.Errorf("one that is not there: %v", err)
	}
	cache := t.TempDir()
	w.must("build", "--oci", layoutOf(t, "cached"), "--name", "five", "--cache-dir", cache)
	if out := w.must("rm", "five", "--cache-dir", cache); !strings.Contains(out, "may share the cache") {
		t.Errorf("one in a cache: %s", out)
	}
}

func TestTemplateAlias(t *testing.T) {
	w := newWorkshop(t)
	w.must("build", "--oci", layoutOf(t, "1"), "--name", "app")
	w.must("build", "--oci", layoutOf(t, "1"), "--name", "other")
	if out := w.must("alias", "app", "app-1.0", "latest"); !strings.Contains(out, "answers to: app, app-1.0, latest") {
		t.Errorf("got %s", out)
	}
	if got, err := w.template("latest"); err != nil || got.Name != "app" {
		t.Errorf("by its alias: %+v, %v", got, err)
	}
	for _, args := range [][]string{{"other", "latest"}, {"other", "app"}, {"app", "No Name"}, {"--rm", "app", "nosuch"}} {
		if out, err := w.run("", append([]string{"alias"}, args...)...); err == nil {
			t.Errorf("alias %v was taken: %s", args, out)
		}
	}
	w.must("alias", "--rm", "app", "latest")
	w.must("alias", "other", "latest")
	if got, err := w.template("latest"); err != nil || got.Name != "other" {
		t.Errorf("moved: %+v, %v", got, err)
	}
}
