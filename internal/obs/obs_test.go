package obs

import (
	"errors"
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"hutch.dev/hutch"
)

func TestMetricsPage(t *testing.T) {
	reg := prometheus.NewRegistry()
	m := New(reg, func() int { return 3 })
	m.CreateStage("total", 70*time.Millisecond)
	m.Operation("create", nil)
	m.Operation("create", fmt.Errorf("start: %w", hutch.ErrNoCapacity))
	m.Operation("create", errors.New("something of the host"))
	m.ExecEnded(hutch.ExecTimeout, 2*time.Second)
	m.SandboxEnded(hutch.EndExpired)
	m.QueueLength(4)
	m.HTTPRequest("/v1/sandboxes/{id}", "GET", 404, time.Millisecond)

	rec := httptest.NewRecorder()
	promhttp.HandlerFor(reg, promhttp.HandlerOpts{}).ServeHTTP(rec, httptest.NewRequest("GET", "/metrics", nil))
	page := rec.Body.String()
	for _, want := range []string{
		`hutch_create_stage_seconds_bucket{stage="total",le="0.1"} 1`,
		`hutch_create_stage_seconds_bucket{stage="total",le="0.05"} 0`,
		`hutch_operations_total{phase="create",result="ok"} 1`,
		`hutch_operations_total{phase="create",result="no_capacity"} 1`,
		`hutch_operations_total{phase="create",result="internal"} 1`,
		`hutch_exec_seconds_count{end="timeout"} 1`,
		`hutch_sandbox_ends_total{reason="expired"} 1`,
		`hutch_create_queue_length 4`,
		`hutch_sandboxes 3`,
		`hutch_http_request_seconds_count{method="GET",route="/v1/sandboxes/{id}",status="404"} 1`,
	} {
		if !strings.Contains(page, want+"\n") {
			t.Errorf("the page lacks %s", want)
		}
	}
	if strings.Contains(page, "something of the host") {
		t.Error("the page repeats an error's text")
	}
}

func TestLoggerFormats(t *testing.T) {
	for _, asJSON := range []bool{false, true} {
		var b strings.Builder
		log := NewLogger(&b, asJSON, 0)
		log.Debug("hidden")
		log.Info("running", "sandbox", "i1")
		if got := b.String(); strings.Contains(got, "hidden") || strings.HasPrefix(got, "{") != asJSON || !strings.Contains(got, "i1") {
			t.Errorf("as JSON %v: %q", asJSON, got)
		}
	}
}
