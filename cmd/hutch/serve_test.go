package main

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"hutch.dev/hutch"
	"hutch.dev/hutch/api"
	"hutch.dev/hutch/internal/control"
	"hutch.dev/hutch/internal/obs"
)

// A limit that is none is refused: it would silently be the usual one, or none at all.
func TestServeRefusesLimitsThatAreNone(t *testing.T) {
	for _, args := range [][]string{
		{"--max-sandboxes", "0"},
		{"--max-sandboxes", "-1"},
		{"--retention", "0"},
		{"--audit-retention", "0s"},
		{"--max-ttl", "0"},
		{"--default-ttl", "0"},
		{"--default-ttl", "-5m"},
		{"--max-upload", "-1"},
	} {
		c := newServe()
		c.SetArgs(append(args, "--data-dir", filepath.Join(t.TempDir(), "data"), "--listen", "nowhere"))
		c.SilenceUsage, c.SilenceErrors = true, true
		if err := c.ExecuteContext(t.Context()); err == nil || !strings.HasPrefix(err.Error(), args[0]+" ") {
			t.Errorf("%v: %v, want it refused", args, err)
		}
	}
}

// The doctor looks at the address on a fresh machine too, but not while a server has it.
func TestDoctorKnowsWhetherAServerWorks(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	if yes, err := served(dir); yes || err != nil {
		t.Errorf("a server works in a directory that is not there, or %v", err)
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if yes, err := served(dir); yes || err != nil {
		t.Errorf("a server works in an empty directory, or %v", err)
	}
	lock, err := lockDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if yes, err := served(dir); !yes || err != nil {
		t.Errorf("no server works in a directory that is locked, or %v", err)
	}
}

// Until the sandboxes of the last run are taken over, callers are put off, not lied to.
func TestCallersArePutOffUntilRecovered(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	m := obs.New(prometheus.NewRegistry(), func() int { return 0 })
	s := &server{control: control.New(control.Config{}, nil, m, log)}
	t.Cleanup(s.control.Close)
	h := s.whenRecovered(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) }))
	for path, want := range map[string]int{
		"/v1/sandboxes": http.StatusServiceUnavailable, "/v1/execs/e1": http.StatusServiceUnavailable,
		"/healthz": http.StatusTeapot, "/readyz": http.StatusTeapot, "/metrics": http.StatusTeapot,
	} {
		rec := httptest.NewRecorder()
		h.ServeHTTP(rec, httptest.NewRequest(http.MethodGet, path, nil))
		if rec.Code != want {
			t.Errorf("%s: status %d, want %d", path, rec.Code, want)
		}
		if rec.Code != http.StatusServiceUnavailable {
			continue
		}
		var e api.Error
		if err := json.Unmarshal(rec.Body.Bytes(), &e); err != nil || e.Code != hutch.CodeUnavailable || rec.Header().Get("Retry-After") == "" {
			t.Errorf("%s: got %s, %v, Retry-After %q", path, rec.Body, err, rec.Header().Get("Retry-After"))
		}
	}
}
