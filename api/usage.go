package api

import (
	"time"

	"hutch.dev/hutch"
)

// LogLine is a line in a followed log.
type LogLine struct {
	Line   string       `json:"line"`
	Stream string       `json:"stream"`
	Time   time.Time    `json:"time"`
	ExecID hutch.ExecID `json:"exec_id,omitempty"`
}

// Usage is what a sandbox uses at one instant.
type Usage struct {
	Time           time.Time `json:"time"`
	CPUs           int       `json:"cpus"`        // that it sees
	CPUPercent     float64   `json:"cpu_percent"` // of one CPU, averaged since the sample before
	MemoryBytes    int64     `json:"memory_bytes"`
	MemoryMaxBytes int64     `json:"memory_max_bytes"`
	DiskBytes      int64     `json:"disk_bytes"`
	DiskMaxBytes   int64     `json:"disk_max_bytes"`
}

// ProcessMetrics is the answer of GET …/metrics: the names of the compatible API, for
// what a sandbox costs its host.
type ProcessMetrics struct {
	UptimeSeconds  float64 `json:"uptime_seconds"`
	HostCPUPercent float64 `json:"host_cpu_percent"`
	HostRSSBytes   int64   `json:"host_rss_bytes"`
}

// Series is the answer of GET /v1/metrics/…: usage over time.
type Series struct {
	From        time.Time `json:"from"`
	To          time.Time `json:"to"`
	StepSeconds float64   `json:"step_seconds"`
	Series      []Point   `json:"series"`
}

// Point is one step of a series: averages over the step, summed over sandboxes.
type Point struct {
	Time        time.Time `json:"time"` // of the step's begin
	Sandboxes   int       `json:"sandboxes"`
	CPUPercent  float64   `json:"cpu_percent"`
	MemoryBytes int64     `json:"memory_bytes"`
	DiskBytes   int64     `json:"disk_bytes"`
}

// BootStats is the answer of GET /v1/stats/boot.
type BootStats struct {
	Stats []BootStat `json:"stats"`
}

// BootStat is how long creates of one template took.
type BootStat struct {
	Template string  `json:"template"`
	BootMode string  `json:"boot_mode"`
	Count    int     `json:"count"`
	P50MS    float64 `json:"p50_ms"`
	P95MS    float64 `json:"p95_ms"`
	P99MS    float64 `json:"p99_ms"`
	MaxMS    float64 `json:"max_ms"`
}

// Audit is the answer of GET /v1/audit, newest first.
type Audit struct {
	Entries []AuditEntry `json:"entries"`
	Since   time.Time    `json:"since"`
}

// AuditEntry is one call that changed something, or tried to.
type AuditEntry struct {
	ID        int64           `json:"id"`
	TS        time.Time       `json:"ts"`
	Workspace hutch.ProjectID `json:"workspace"`
	RequestID string          `json:"request_id"`
	Method    string          `json:"method"`
	Path      string          `json:"path"`            // the route, with names in place of ids
	Status    int             `json:"status"`          // HTTP
	Actor     string          `json:"actor,omitempty"` // prefix of the API key
	SandboxID hutch.SandboxID `json:"sandbox_id,omitempty"`
}
