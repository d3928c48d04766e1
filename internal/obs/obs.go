// Package obs is what an operator sees of a running server: its log and its metrics.
//
// It owns their names and shapes. Metrics are made in [New] from a registry that is
// handed in; label values come from closed sets (phases, results, ends), never from a
// request. Logs are structured, one Info line for each change of a sandbox's state,
// and carry nothing a tenant wrote.
//
// Start with [Metrics].
package obs

import (
	"errors"
	"io"
	"log/slog"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"hutch.dev/hutch"
)

// Metrics counts what happens. Its methods are safe for concurrent use and do not block.
type Metrics struct {
	stages     *prometheus.HistogramVec
	operations *prometheus.CounterVec
	execs      *prometheus.HistogramVec
	ends       *prometheus.CounterVec
	requests   *prometheus.HistogramVec
	queue      prometheus.Gauge
}

// createBuckets reach from a stage of a tenth of a millisecond to a start that times out.
var createBuckets = []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30}

// execBuckets reach from an echo to the default timeout and beyond.
var execBuckets = []float64{.001, .005, .01, .05, .1, .5, 1, 5, 10, 60, 300, 600, 3600}

// New registers the metrics with reg and returns them. alive tells how many sandboxes
// there are; it is called at each scrape.
func New(reg *prometheus.Registry, alive func() int) *Metrics {
	m := &Metrics{
		stages: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "hutch_create_stage_seconds", Buckets: createBuckets,
			Help: "How long each stage of a create took; stage \"total\" is the whole call.",
		}, []string{"stage"}),
		operations: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "hutch_operations_total",
			Help: "Operations on sandboxes and commands, by phase and result (\"ok\" or an error code).",
		}, []string{"phase", "result"}),
		execs: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "hutch_exec_seconds", Buckets: execBuckets,
			Help: "How long commands ran, by how they ended.",
		}, []string{"end"}),
		ends: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "hutch_sandbox_ends_total",
			Help: "Sandboxes that ended, by reason.",
		}, []string{"reason"}),
		requests: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "hutch_http_request_seconds", Buckets: createBuckets,
			Help: "How long requests took, by route, method and status.",
		}, []string{"route", "method", "status"}),
		queue: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "hutch_create_queue_length",
			Help: "Creates that wait for their turn.",
		}),
	}
	reg.MustRegister(m.stages, m.operations, m.execs, m.ends, m.requests, m.queue,
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "hutch_sandboxes",
			Help: "Sandboxes on this node, those being started included.",
		}, func() float64 { return float64(alive()) }),
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// Prepared adds the number of machines that are kept ready to what reg shows; count is called
// at each scrape.
func Prepared(reg *prometheus.Registry, count func() int) {
	reg.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "hutch_prepared_machines",
		Help: "Machines that stand ready for sandboxes which nobody has asked for yet.",
	}, func() float64 { return float64(count()) }))
}

// CreateStage books the time of one stage of a create.
func (m *Metrics) CreateStage(stage string, d time.Duration) {
	m.stages.WithLabelValues(stage).Observe(d.Seconds())
}

// Operation counts an operation and its result.
func (m *Metrics) Operation(phase string, err error) {
	m.operations.WithLabelValues(phase, result(err)).Inc()
}

// ExecEnded books a command that ended.
func (m *Metrics) ExecEnded(end hutch.ExecEnd, d time.Duration) {
	m.execs.WithLabelValues(string(end)).Observe(d.Seconds())
}

// SandboxEnded counts a sandbox that ended.
func (m *Metrics) SandboxEnded(why hutch.SandboxEnd) {
	m.ends.WithLabelValues(string(why)).Inc()
}

// QueueLength sets how many creates wait.
func (m *Metrics) QueueLength(n int) { m.queue.Set(float64(n)) }

// HTTPRequest books an answer. Route is a pattern of the route table, not a path.
func (m *Metrics) HTTPRequest(route, method string, status int, d time.Duration) {
	m.requests.WithLabelValues(route, method, strconv.Itoa(status)).Observe(d.Seconds())
}

func result(err error) string {
	var e *hutch.Error
	switch {
	case err == nil:
		return "ok"
	case errors.As(err, &e):
		return string(e.Code)
	}
	return string(hutch.CodeInternal)
}

// NewLogger returns a logger that writes to w: one JSON object a line, or text for a person.
func NewLogger(w io.Writer, asJSON bool, level slog.Level) *slog.Logger {
	o := &slog.HandlerOptions{Level: level}
	if asJSON {
		return slog.New(slog.NewJSONHandler(w, o))
	}
	return slog.New(slog.NewTextHandler(w, o))
}
