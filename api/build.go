package api

import (
	"time"

	"hutch.dev/hutch"
)

// BuildTemplate is the body of POST /v1/templates/build, as JSON, as a form or as
// multipart/form-data.
type BuildTemplate struct {
	Name     string `json:"name"`      // of the template; replaced if it exists
	ImageRef string `json:"image_ref"` // "host/path:tag" or "host/path@sha256:…"

	Username string   `json:"username,omitempty"` // for the registry; never kept
	Password string   `json:"password,omitempty"`
	CPU      *float64 `json:"cpu,omitempty"`
	MemoryMB *int     `json:"memory_mb,omitempty"`
	DiskMB   *int     `json:"disk_mb,omitempty"`
	// SizeMB is the least size of a sandbox's disk: it raises the default, and never lowers it.
	SizeMB *int `json:"size_mb,omitempty"`
	Force  bool `json:"force,omitempty"` // build although the result is there
	// Profile of sandboxes that do not ask for one, "root" or "locked". When left out, a
	// template that exists keeps its own.
	Profile hutch.Profile `json:"profile,omitempty"`

	// Known from elsewhere and refused as unsupported.
	Kernel     string `json:"kernel,omitempty"`
	Dockerfile string `json:"dockerfile,omitempty"`
}

// Build is one build of a template.
type Build struct {
	ID        string    `json:"id"`
	Name      string    `json:"name"`   // of the template
	Status    string    `json:"status"` // queued, building, done or failed
	Error     string    `json:"error,omitempty"`
	StartedAt time.Time `json:"started_at"`
	EndedAt   time.Time `json:"ended_at,omitzero"`
	SizeMB    int64     `json:"size_mb"` // of the image made
	Bytes     int64     `json:"bytes,omitempty"`
	Source    string    `json:"source,omitempty"`
	Step      string    `json:"step,omitempty"` // that it is in, or failed in
}

// Names of the events of a build's log. A line of it is an event without a name.
const EventDone = "done" // "end"; the last event
