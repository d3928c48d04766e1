package main

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"hutch.dev/hutch"
	"hutch.dev/hutch/api"
	"hutch.dev/hutch/internal/control"
	"hutch.dev/hutch/internal/obs"
)

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
