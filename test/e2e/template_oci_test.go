package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"hutch.dev/hutch"
	"hutch.dev/hutch/api"
	"hutch.dev/hutch/client"
	"hutch.dev/hutch/internal/template/imagetest"
)

// buildTemplate runs `hutch template build` beside the server and returns what it printed.
func buildTemplate(t *testing.T, s *server, cache string, args ...string) string {
	t.Helper()
	exe, err := hutchBinary()
	if err != nil {
		t.Fatal(err)
	}
	args = append([]string{"template", "build", "--data-dir", s.dir, "--cache-dir", cache}, args...)
	out, err := exec.CommandContext(t.Context(), exe, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("hutch %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// withTemplates returns a server of its own whose only templates are those that build
// makes, in a cache of their own: nothing of them stays in the one that tests share.
func withTemplates(t *testing.T, build func(s *server, cache string), args ...string) *server {
	t.Helper()
	dir, err := os.MkdirTemp("", "hutch-e2e") //nolint:usetesting // short: sockets live below it
	if err != nil {
		t.Fatal(err)
	}
	s, cache := &server{dir: dir}, t.TempDir()
	build(s, cache)
	err = s.start(append([]string{"--cache-dir", cache}, args...)...)
	if s.cmd != nil && s.cmd.Process != nil { // also one that did not become ready
		t.Cleanup(func() {
			if err := s.tearDown(); err != nil {
				t.Error(err)
			}
			if t.Failed() {
				t.Logf("server's log:\n%s", s.log.String())
			}
		})
	}
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestCaseF01ImageDefaults builds a template from a container image whose configuration
// names a user, a directory and a variable, and starts processes in it.
func TestCaseF01ImageDefaults(t *testing.T) {
	im := imagetest.Image(t, v1.Config{User: "1000", WorkingDir: "/srv", Env: []string{"A=1", "PATH=/bin"}},
		imagetest.Layer(t, imagetest.Busybox(t, "sh", "id", "pwd", "cat", "ls", "stat", "ping", "touch", "echo")...),
		imagetest.Layer(t, imagetest.Owned(imagetest.Dir("srv", 0o755), 1000, 1000), imagetest.Owned(imagetest.File("srv/data", "kept\n"), 1000, 1000)),
		imagetest.Layer(t, imagetest.Gone("bin", "ping")))
	oci := imagetest.Layout(t, map[string]v1.Image{"": im})
	docker := imagetest.Docker(t, map[string]v1.Image{"registry.example/app:1": im})
	s := withTemplates(t, func(s *server, cache string) {
		if out := buildTemplate(t, s, cache, "--oci", oci, "--name", "app", "--memory", "256", "--cpu", "0.5"); !strings.Contains(out, "template app built") {
			t.Errorf("the first build says %q", out)
		}
		if out := buildTemplate(t, s, cache, "--oci", oci, "--name", "app2"); !strings.Contains(out, "was built already") {
			t.Errorf("the second build of one image says %q", out)
		}
		buildTemplate(t, s, cache, "--docker-archive", docker, "--name", "app3")
	})
	for _, name := range []string{"app", "app2", "app3"} {
		sb := s.create(t, api.CreateSandbox{Template: name})
		if out := s.out(t, sb.ID, `id -u; pwd; echo $A; cat data; touch mine; ls; ls /bin/ping 2>/dev/null; stat -c %a /tmp /workspace`); out != "1000\n/srv\n1\nkept\ndata\nmine\n1777\n777" {
			t.Errorf("%s: got %q", name, out)
		}
		if out := s.out(t, sb.ID, `id -u; pwd`, asUser("root"), func(r *api.ExecRequest) { r.Cwd = "/tmp" }); out != "0\n/tmp" {
			t.Errorf("%s, as root: got %q", name, out)
		}
	}
}

func TestCaseG11RelativePathsBeginAtTheTemplatesUsersHome(t *testing.T) {
	im := imagetest.Image(t, v1.Config{User: "app", WorkingDir: "/srv", Env: []string{"PATH=/bin"}},
		imagetest.Layer(t, imagetest.Busybox(t, "sh", "cat", "stat", "echo")...),
		imagetest.Layer(t,
			imagetest.File("etc/passwd", "root:x:0:0::/root:/bin/sh\napp:x:1000:1000::/home/app:/bin/sh\n"), imagetest.File("etc/group", "root:x:0:\napp:x:1000:\n"),
			imagetest.Dir("srv", 0o755), imagetest.Dir("home", 0o755), imagetest.Owned(imagetest.Dir("home/app", 0o750), 1000, 1000)))
	oci := imagetest.Layout(t, map[string]v1.Image{"": im})
	s := withTemplates(t, func(s *server, cache string) { buildTemplate(t, s, cache, "--oci", oci, "--name", "app") })
	sb := s.create(t, api.CreateSandbox{Template: "app"})
	for _, path := range []string{"deep/notes", "~/deep/notes", "/home/app/deep/notes"} {
		if _, err := s.client.WriteFile(t.Context(), client.File{Sandbox: sb.ID, Path: path}, strings.NewReader(path), client.WriteOptions{}); err != nil {
			t.Fatal(err)
		}
		if out := s.out(t, sb.ID, `cat /home/app/deep/notes; stat -c ' %U:%G %a' /home/app/deep /home/app/deep/notes`); out != path+" app:app 755\n app:app 644" {
			t.Errorf("%s: got %q", path, out)
		}
	}
	if _, err := s.client.WriteFile(t.Context(), client.File{Sandbox: sb.ID, Path: "/srv/x"}, strings.NewReader("x"), client.WriteOptions{}); !errors.Is(err, hutch.ErrForbidden) {
		t.Errorf("where the user may not write: %v", err)
	}
}

// TestImageWithNothingInIt starts a sandbox from an image of one file: the agent works,
// and a shell that is not there is what a shell would say.
func TestImageWithNothingInIt(t *testing.T) {
	im := imagetest.Image(t, v1.Config{Entrypoint: []string{"/app"}}, imagetest.Layer(t, imagetest.File("note", "alone\n")))
	s := withTemplates(t, func(s *server, cache string) {
		buildTemplate(t, s, cache, "--oci", imagetest.Layout(t, map[string]v1.Image{"": im}), "--name", "scratch")
	})
	sb := s.create(t, api.CreateSandbox{Template: "scratch"})
	for name, req := range map[string]api.ExecRequest{
		"a shell": {Cmd: "echo hello"}, "a program": {Argv: []string{"/app", "--serve"}}, "a name": {Argv: []string{"ls"}},
	} {
		res, err := s.client.Exec(t.Context(), sb.ID, req)
		if err != nil || res.ExitCode != 127 {
			t.Errorf("%s that is not there: %+v, %v; want exit code 127", name, res, err)
		}
	}
}

// TestImageFromARegistry has a server build a template from a registry that wants a
// password and whose certificate is signed by an authority of its own.
func TestImageFromARegistry(t *testing.T) {
	const user, password = "robot", "let me in"
	inner := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	house := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if u, p, _ := r.BasicAuth(); u != user || p != password {
			w.Header().Set("WWW-Authenticate", `Basic realm="house"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		inner.ServeHTTP(w, r)
	}))
	defer house.Close()
	ca := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: house.Certificate().Raw}), 0o644); err != nil {
		t.Fatal(err)
	}
	im := imagetest.Image(t, v1.Config{User: "1000", WorkingDir: "/srv", Env: []string{"A=1", "PATH=/bin"}},
		imagetest.Layer(t, imagetest.Busybox(t, "sh", "id", "pwd", "echo")...))
	ref, err := name.ParseReference(house.Listener.Addr().String() + "/team/app:1")
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(ref, im, remote.WithTransport(house.Client().Transport), remote.WithAuth(&authn.Basic{Username: user, Password: password})); err != nil {
		t.Fatal(err)
	}
	s := withTemplates(t, func(s *server, cache string) {
		note := imagetest.Image(t, v1.Config{}, imagetest.Layer(t, imagetest.File("note", "alone\n")))
		buildTemplate(t, s, cache, "--oci", imagetest.Layout(t, map[string]v1.Image{"": note}), "--name", "scratch")
	}, "--registry-ca", ca)

	wrong := s.build(t, api.BuildTemplate{Name: "app", ImageRef: ref.String(), Username: user, Password: "guess"})
	if wrong.Status != string(hutch.BuildFailed) || !strings.Contains(wrong.Error, "check the user name and the password") || strings.Contains(wrong.Error, "guess") {
		t.Errorf("with a wrong password: %+v", wrong)
	}
	right := s.build(t, api.BuildTemplate{Name: "app", ImageRef: ref.String(), Username: user, Password: password})
	if right.Status != string(hutch.BuildDone) {
		t.Fatalf("build: %+v", right)
	}
	sb := s.create(t, api.CreateSandbox{Template: "app"})
	if out := s.out(t, sb.ID, `id -u; pwd; echo $A`); out != "1000\n/srv\n1" {
		t.Errorf("got %q", out)
	}
	tpl, err := s.client.Template(t.Context(), "app")
	digest, digestErr := im.Digest()
	if err != nil || digestErr != nil || !strings.Contains(tpl.Description, ref.String()+"@"+digest.String()) {
		t.Errorf("template %+v, %v; want it to name the digest %s", tpl, err, digest)
	}
}

// build has the server build a template and waits for the end.
func (s *server) build(t *testing.T, req api.BuildTemplate) api.Build {
	t.Helper()
	var b api.Build
	s.call(t, http.MethodPost, "/v1/templates/build", req, &b)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	err := poll(ctx, "the build has ended", func() (bool, error) {
		s.call(t, http.MethodGet, "/v1/templates/builds/"+b.ID, nil, &b)
		return !b.EndedAt.IsZero(), nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// call makes a request that the client has no method for.
func (s *server) call(t *testing.T, method, path string, in, out any) {
	t.Helper()
	var body io.Reader
	if in != nil {
		data, err := json.Marshal(in)
		if err != nil {
			t.Fatal(err)
		}
		body = bytes.NewReader(data)
	}
	req, err := http.NewRequestWithContext(t.Context(), method, s.base+path, body)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+s.key)
	req.Header.Set("Content-Type", "application/json")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode >= 300 {
		t.Fatalf("%s %s: %d %s (%v)", method, path, res.StatusCode, data, err)
	}
	if err := json.Unmarshal(data, out); err != nil {
		t.Fatalf("%s %s: %v in %s", method, path, err, data)
	}
}

// TestTemplatesThatComeWithHutch asks for them by the names that clients use, and draws.
func TestTemplatesThatComeWithHutch(t *testing.T) {
	s := common(t)
	for alias, name := range map[string]string{"ubuntu-24.04": "base", "debian": "base", "code-interpreter-v1": "code-interpreter"} {
		if tpl, err := s.client.Template(t.Context(), alias); err != nil || tpl.Name != name {
			t.Errorf("%s: %+v, %v; want %s", alias, tpl, err, name)
		}
	}
	sb := s.create(t, api.CreateSandbox{Template: "code-interpreter-v1"})
	const draw = `cd; cat >p.py <<'PY'
import matplotlib, matplotlib.pyplot as plt, numpy as np, pandas as pd
pd.DataFrame({"a": np.arange(5)}).plot(title="Drawn")
plt.savefig("p.png")
print(pd.Series([1, 2, 3]).sum(), matplotlib.get_backend())
PY
python -W error p.py 2>&1 && head -c 4 p.png | tail -c 3`
	for _, user := range []string{"root", "user"} {
		if out := s.out(t, sb.ID, draw, asUser(user)); !strings.EqualFold(out, "6 agg\nPNG") {
			t.Errorf("as %s: got %q", user, out)
		}
	}
}
