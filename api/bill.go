package api

import (
	"time"

	"hutch.dev/hutch"
)

// Budget is what a sandbox may use before it is ended. At least one of them is set.
type Budget struct {
	CPUSeconds *float64 `json:"cpu_seconds,omitempty"` // of active CPU time
	Cost       *float64 `json:"cost,omitempty"`        // in the currency of the operator's rate card
}

// RateCard is what the operator charges.
type RateCard struct {
	Currency      string  `json:"currency"`
	CPUHour       float64 `json:"cpu_hour"`        // for an hour of active CPU time
	MemoryGiBHour float64 `json:"memory_gib_hour"` // for a GiB of working set for an hour
	DiskGiBHour   float64 `json:"disk_gib_hour"`
	EgressGiB     float64 `json:"egress_gib"`
}

// UsageReport is the answer of GET /v1/usage.
type UsageReport struct {
	From     time.Time    `json:"from,omitzero"` // as asked for
	To       time.Time    `json:"to,omitzero"`
	RateCard *RateCard    `json:"rate_card,omitempty"` // left out when the operator has none
	Usage    []UsageEntry `json:"usage"`               // one page
	Total    UsageEntry   `json:"total"`               // of all pages
	// Budget is left out when the project has none.
	Budget *ProjectBudget `json:"budget,omitempty"`
}

// ProjectBudget is what all sandboxes of the project may use together in the period that it is
// now, and what they have used of it. When it is used up they end, and creates are refused until
// the next period. The operator sets it.
type ProjectBudget struct {
	Period         hutch.Period `json:"period"` // by the calendar, in UTC
	From           time.Time    `json:"from"`
	Until          time.Time    `json:"until"`                 // when the next one begins
	CPUSeconds     *float64     `json:"cpu_seconds,omitempty"` // of active CPU time; nil = no limit
	Cost           *float64     `json:"cost,omitempty"`        // in the currency of the rate card; nil = no limit
	UsedCPUSeconds float64      `json:"used_cpu_seconds"`
	UsedCost       *float64     `json:"used_cost,omitempty"` // nil without a rate card
}

// UsageEntry is what was used in one interval, by one sandbox, or in all. A paused sandbox
// uses memory and disk, and no CPU.
type UsageEntry struct {
	Project          hutch.ProjectID `json:"project,omitempty"`    // with by=project
	SandboxID        hutch.SandboxID `json:"sandbox_id,omitempty"` // of an interval, and with by=sandbox
	State            hutch.State     `json:"state,omitempty"`      // of an interval: running or paused
	From             time.Time       `json:"from,omitzero"`
	To               time.Time       `json:"to,omitzero"`
	WallSeconds      float64         `json:"wall_seconds"`       // running or paused
	PausedSeconds    float64         `json:"paused_seconds"`     // of them
	CPUMicros        int64           `json:"cpu_us"`             // active CPU time
	MemoryGiBSeconds float64         `json:"memory_gib_seconds"` // of its working set
	DiskGiBSeconds   float64         `json:"disk_gib_seconds"`   // of its writable layer
	EgressBytes      int64           `json:"egress_bytes"`
	Cost             *float64        `json:"cost,omitempty"` // by the rate card; left out without one
}
