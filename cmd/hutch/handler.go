package main

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"strings"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"hutch.dev/hutch"
	"hutch.dev/hutch/api"
	"hutch.dev/hutch/internal/e2bapi"
	"hutch.dev/hutch/internal/edge"
	"hutch.dev/hutch/internal/httpapi"
)

// Ready returns nil if a create would work now, else why not.
func (s *server) Ready(ctx context.Context) error {
	if err := errors.Join(s.keeper.ready(), s.egress.ready()); err != nil {
		return err
	}
	return s.control.Ready(ctx)
}

// handler answers everything on the one listener: E2B's API and the agents of sandboxes,
// then the ports of sandboxes, then the native API. close must be called.
func (s *server) handler(ln net.Addr) (h http.Handler, close func()) {
	domain := s.publicDomain(ln)
	native := httpapi.New(httpapi.Config{Build: buildInfo(), MaxUpload: s.cfg.maxUpload}, httpapi.Services{
		Sandboxes: s.control, Prepared: s.control, Pausing: s.control, Execs: s.control, ExecControl: s.control,
		Guests: s.control, Settings: s.control, Leases: s.control, Leaks: s.control, Meter: s.control, Billing: s.control, Logs: s.control,
		Templates: s.control, Builds: s.control, Audit: s.control,
		Keys: keysPort{s.keys}, Events: s.control, Health: s,
		Auth: s.keys, Idempotency: s.store, Metrics: s.metrics,
		MetricsPage: promhttp.HandlerFor(s.reg, promhttp.HandlerOpts{}),
	}, s.log)
	in := edge.New(edge.Config{Domain: domain, Recovered: s.control.Recovered}, s.control, s.tokens, s.whenRecovered(native), s.log)
	e2b := e2bapi.New(e2bapi.Config{Domain: domain, MaxTTL: s.cfg.control.MaxTTL}, e2bapi.Services{
		Sandboxes: s.control, Lifetimes: s.control, Execs: s.control, ExecControl: s.control,
		Guests: s.control, Templates: s.control, Usage: s.control, Logs: s.control,
		Tokens: s.tokens, Auth: s.keys, Audit: s.control, Metrics: s.metrics, Recovered: s.control.Recovered,
	}, s.log)
	return e2b.Router(in), func() {
		e2b.Close()
		native.Close()
	}
}

// publicDomain is where the names of sandboxes' ports are below.
func (s *server) publicDomain(ln net.Addr) string {
	if s.cfg.domain != "" {
		return s.cfg.domain
	}
	_, port, err := net.SplitHostPort(ln.String())
	if err != nil {
		return "localhost"
	}
	return net.JoinHostPort("localhost", port)
}

// whenRecovered puts callers off until the sandboxes of the last run are taken over: one
// that is not yet would seem to be gone, and its caller would give it up.
func (s *server) whenRecovered(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasPrefix(r.URL.Path, "/v1/") || s.control.Recovered() {
			h.ServeHTTP(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Retry-After", "1")
		w.Header().Set("Connection", "close") // whatever body was announced is not waited for
		w.WriteHeader(http.StatusServiceUnavailable)
		_ = json.NewEncoder(w).Encode(api.Error{
			Error: "the server is starting: sandboxes of the last run are being taken over; ask again in a moment",
			Code:  hutch.CodeUnavailable,
		})
	})
}
