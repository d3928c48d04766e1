package ociimage_test

import (
	"encoding/pem"
	"errors"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/template/ociimage"
)

// house is a registry on this machine, with basic authentication.
type house struct {
	*httptest.Server
	host string
	ca   string // file with its certificate
	seen atomic.Int64
	// corrupt, if set, changes the body of blobs on their way out.
	corrupt atomic.Bool
}

const user, password = "robot", "let me in: #1"

func newHouse(t *testing.T, secure bool) *house {
	t.Helper()
	h := &house{}
	inner := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.seen.Add(1)
		if u, p, _ := r.BasicAuth(); u != user || p != password {
			w.Header().Set("WWW-Authenticate", `Basic realm="house"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		if h.corrupt.Load() && strings.Contains(r.URL.Path, "/blobs/") && r.Method == http.MethodGet {
			w = &corrupter{ResponseWriter: w}
		}
		inner.ServeHTTP(w, r)
	})
	if secure {
		h.Server = httptest.NewTLSServer(handler)
		h.ca = filepath.Join(t.TempDir(), "ca.pem")
		block := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: h.Certificate().Raw})
		if err := os.WriteFile(h.ca, block, 0o644); err != nil {
			t.Fatal(err)
		}
	} else {
		h.Server = httptest.NewServer(handler)
	}
	t.Cleanup(h.Close)
	h.Config.ErrorLog = log.New(io.Discard, "", 0)
	h.host = h.Listener.Addr().String()
	return h
}

// corrupter flips a bit in everything that is written.
type corrupter struct{ http.ResponseWriter }

func (c *corrupter) Write(p []byte) (int, error) {
	bad := append([]byte(nil), p...)
	bad[len(bad)-1] ^= 1
	return c.ResponseWriter.Write(bad)
}

// push puts an image into the house and returns its name there.
func (h *house) push(t *testing.T, path string, im v1.Image) string {
	t.Helper()
	ref, err := name.ParseReference(h.host+"/"+path, name.Insecure)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(ref, im, remote.WithTransport(h.Client().Transport), remote.WithAuth(&authn.Basic{Username: user, Password: password})); err != nil {
		t.Fatal(err)
	}
	return h.host + "/" + path
}

func TestRegistry(t *testing.T) {
	h := newHouse(t, true)
	im := two(t)
	ref := h.push(t, "team/app:1", im)
	src := ociimage.Source{Ref: ref, Username: user, Password: password, CAFile: h.ca}
	got, err := check(t, src)
	if err != nil {
		t.Fatal(err)
	}
	if want := "image " + ref + "@" + digest(t, im); got.Name != want || got.Digest != digest(t, im) || got.Config.Config.User != "1000" {
		t.Errorf("%+v, want %q", got, want)
	}

	pinned := src
	pinned.Ref = h.host + "/team/app@" + digest(t, im)
	if got, err := check(t, pinned); err != nil || got.Name != "image "+pinned.Ref {
		t.Errorf("by its digest: %+v, %v", got, err)
	}

	insecure := src
	insecure.CAFile, insecure.Insecure = "", true
	if _, err := check(t, insecure); err != nil {
		t.Errorf("with any certificate: %v", err)
	}
}

func TestRegistryRefusals(t *testing.T) {
	h, plain := newHouse(t, true), newHouse(t, false)
	ref, plainRef := h.push(t, "app:1", two(t)), plain.push(t, "app:1", two(t))
	h.push(t, "foreign:1", foreign(t, "linux", "riscv64"))
	good := func(change func(*ociimage.Source)) ociimage.Source {
		src := ociimage.Source{Ref: ref, Username: user, Password: password, CAFile: h.ca}
		change(&src)
		return src
	}
	empty := filepath.Join(t.TempDir(), "empty")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	tests := map[string]struct {
		src  ociimage.Source
		code hutch.Code
		want string
	}{
		"wrong password":         {good(func(s *ociimage.Source) { s.Password = "guess" }), hutch.CodeForbidden, "check the user name and the password"},
		"nobody":                 {good(func(s *ociimage.Source) { s.Username, s.Password = "", "" }), hutch.CodeForbidden, "refuses"},
		"no such tag":            {good(func(s *ociimage.Source) { s.Ref = h.host + "/app:2" }), hutch.CodeNotFound, "does not have it"},
		"no such digest":         {good(func(s *ociimage.Source) { s.Ref = h.host + "/app@sha256:" + strings.Repeat("0", 64) }), hutch.CodeNotFound, "does not have it"},
		"an unknown authority":   {good(func(s *ociimage.Source) { s.CAFile = "" }), hutch.CodeBadRequest, "give its certificate authority"},
		"an authority of naught": {good(func(s *ociimage.Source) { s.CAFile = empty }), hutch.CodeBadRequest, "no certificate"},
		"no reference":           {good(func(s *ociimage.Source) { s.Ref = "Not A Name" }), hutch.CodeBadRequest, "no image reference"},
		"another architecture":   {good(func(s *ociimage.Source) { s.Ref = h.host + "/foreign:1" }), hutch.CodeBadRequest, "riscv64"},
		"no TLS":                 {good(func(s *ociimage.Source) { s.Ref = plainRef }), hutch.CodeBadRequest, "no TLS"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := check(t, tt.src)
			var e *hutch.Error
			if !errors.As(err, &e) || e.Code != tt.code || !strings.Contains(e.Message, tt.want) {
				t.Errorf("got %v, want %s with %q", err, tt.code, tt.want)
			}
			if err != nil && strings.Contains(err.Error(), password) {
				t.Errorf("the password is in the error: %v", err)
			}
		})
	}
	// The one without TLS was never told the password.
	before := plain.seen.Load()
	if _, err := check(t, good(func(s *ociimage.Source) { s.Ref = plainRef })); err == nil || plain.seen.Load() != before {
		t.Errorf("without leave, plain HTTP was spoken: %v, %d requests", err, plain.seen.Load()-before)
	}
	if _, err := check(t, good(func(s *ociimage.Source) { s.Ref, s.CAFile, s.Insecure = plainRef, "", true })); err != nil {
		t.Errorf("with leave: %v", err)
	}
}

func TestRegistryThatLies(t *testing.T) {
	h := newHouse(t, true)
	src := ociimage.Source{Ref: h.push(t, "app:1", two(t)), Username: user, Password: password, CAFile: h.ca}
	im, err := ociimage.Open(t.Context(), src)
	if err != nil {
		t.Fatal(err)
	}
	defer im.Close()
	h.corrupt.Store(true)
	if _, err := contents(t, im); err == nil {
		t.Error("a layer that was changed on its way was taken")
	}
	if _, err := ociimage.Open(t.Context(), src); err == nil {
		t.Error("a configuration that was changed on its way was taken")
	}
}

// TestMachineLogin uses what `docker login` leaves.
func TestMachineLogin(t *testing.T) {
	h := newHouse(t, true)
	ref := h.push(t, "app:1", two(t))
	dir := t.TempDir()
	config := `{"auths":{"` + h.host + `":{"username":"` + user + `","password":"` + password + `"}}}`
	if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("DOCKER_CONFIG", dir)
	if _, err := check(t, ociimage.Source{Ref: ref, CAFile: h.ca, MachineLogin: true}); err != nil {
		t.Errorf("with the machine's login: %v", err)
	}
	if _, err := check(t, ociimage.Source{Ref: ref, CAFile: h.ca}); !errors.Is(err, hutch.ErrForbidden) {
		t.Errorf("without it: %v, want forbidden", err)
	}
}
