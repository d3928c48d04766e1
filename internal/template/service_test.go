package template_test

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/template"
	"hutch.dev/hutch/internal/template/imagetest"
)

func TestService(t *testing.T) {
	b := newLayeredBench(t)
	s := template.NewService(b.Builder, template.ServiceConfig{})
	oci := imagetest.Layout(t, map[string]v1.Image{"": app(t)})
	tests := map[string]struct {
		req   hutch.BuildRequest
		check func(hutch.Template) bool
		log   string
	}{
		"recipe": {
			hutch.BuildRequest{Name: "upper", Recipe: "upper", Resources: hutch.Resources{MilliCPU: 1500}},
			func(got hutch.Template) bool {
				return got.Name == "upper" && len(got.Aliases) == 1 && got.Resources.MilliCPU == 1500 && got.Resources.MemoryMB == 700
			}, "python: python package numpy",
		},
		"recipe under another name": {
			hutch.BuildRequest{Name: "mine", Recipe: "upper"},
			func(got hutch.Template) bool {
				return got.Name == "mine" && got.Aliases == nil && got.Resources.MilliCPU == 3000
			},
			"built before", // by the one above
		},
		"archive": {
			hutch.BuildRequest{Name: "app", Archive: oci, Resources: hutch.Resources{MemoryMB: 128, DiskTier: hutch.TierMemory}},
			func(got hutch.Template) bool {
				return got.Defaults.User == "1000" && got.Resources.MemoryMB == 128 && got.Resources.DiskTier == hutch.TierMemory
			}, "unpack: layer 1 of 2",
		},
	}
	for _, name := range slices.Sorted(maps.Keys(tests)) { // in this order
		tt := tests[name]
		t.Run(name, func(t *testing.T) {
			var lines []string
			got, err := s.Build(t.Context(), tt.req, func(step, line string) { lines = append(lines, step+": "+line) })
			if err != nil {
				t.Fatal(err)
			}
			if !tt.check(got) {
				t.Errorf("got %+v", got)
			}
			if log := strings.Join(lines, "\n"); !strings.Contains(log, tt.log) {
				t.Errorf("the log lacks %q:\n%s", tt.log, log)
			}
			lines = nil
			if _, err := s.Build(t.Context(), tt.req, func(step, line string) { lines = append(lines, line) }); err != nil {
				t.Fatal(err)
			}
			if log := strings.Join(lines, "\n"); !strings.Contains(log, "built before") {
				t.Errorf("the log of the second build:\n%s", log)
			}
		})
	}
}

func TestServiceErrors(t *testing.T) {
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	tests := map[string]struct {
		ctx    context.Context
		req    hutch.BuildRequest
		before func(*testing.T, *bench)
		code   hutch.Code
		want   string
	}{
		"no such recipe":      {req: hutch.BuildRequest{Name: "x", Recipe: "nosuch"}, code: hutch.CodeNotFound, want: "nosuch"},
		"a name that is none": {req: hutch.BuildRequest{Name: "No", Recipe: "low"}, code: hutch.CodeBadRequest, want: "plan: name"},
		"no such archive":     {req: hutch.BuildRequest{Name: "x", Archive: "/no/such/file"}, code: hutch.CodeNotFound, want: "plan: there is no archive"},
		"cancelled":           {ctx: cancelled, req: hutch.BuildRequest{Name: "x", Recipe: "low"}, code: hutch.CodeCancelled, want: "cancelled"},
		"a command": {
			req: hutch.BuildRequest{Name: "x", Recipe: "broken"}, code: hutch.CodeBadRequest, want: "customise (stumble): run /bin/sh: exit status 3",
			before: func(t *testing.T, b *bench) {
				write(t, filepath.Join(b.recipes, "broken.yaml"), "name: broken\ncommands: [{name: stumble, run: exit 3}]\n", 0o644)
			},
		},
		"the machine": {
			req: hutch.BuildRequest{Name: "x", Recipe: "low"}, code: hutch.CodeInternal, want: "customise: the server could not do it",
			before: func(t *testing.T, b *bench) {
				if err := os.Remove(filepath.Join(b.root, "etc/apt/keyrings/m.gpg")); err != nil {
					t.Fatal(err)
				}
			},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			b := newLayeredBench(t)
			if tt.before != nil {
				tt.before(t, b)
			}
			ctx := tt.ctx
			if ctx == nil {
				ctx = t.Context()
			}
			_, err := template.NewService(b.Builder, template.ServiceConfig{}).Build(ctx, tt.req, func(string, string) {})
			var e *hutch.Error
			if !errors.As(err, &e) || e.Code != tt.code || !strings.Contains(e.Message, tt.want) {
				t.Fatalf("got %v, want %s with %q", err, tt.code, tt.want)
			}
			for _, secret := range []string{b.dir, b.root, "hunter2", "letmein"} {
				if strings.Contains(e.Message, secret) {
					t.Errorf("the message has %q in it: %s", secret, e.Message)
				}
			}
		})
	}
}
