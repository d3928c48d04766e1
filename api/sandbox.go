package api

import (
	"time"

	"hutch.dev/hutch"
)

// CreateSandbox is the body of POST /v1/sandboxes. Sizes left out are the template's.
type CreateSandbox struct {
	Template           string            `json:"template,omitempty"`             // "base" when left out
	CPU                *float64          `json:"cpu,omitempty"`                  // CPUs; 1.5 is possible
	MemoryMB           *int              `json:"memory_mb,omitempty"`            // MiB
	DiskMB             *int              `json:"disk_mb,omitempty"`              // cap of what it may write, MiB
	DiskTier           hutch.DiskTier    `json:"disk_tier,omitempty"`            // "disk" (default) or "memory"
	Pids               *int              `json:"pids,omitempty"`                 // most processes and threads at once
	Profile            hutch.Profile     `json:"profile,omitempty"`              // "root" or "locked"; when left out the template's, else the project's, else "root"
	Env                map[string]string `json:"env,omitempty"`                  // for every command; never read back
	Metadata           map[string]string `json:"metadata,omitempty"`             // keys beginning "secret." are never read back
	Hostname           string            `json:"hostname,omitempty"`             // a DNS label
	TTLSeconds         *float64          `json:"ttl_seconds,omitempty"`          // 3600 when left out; 0 = the most the operator allows
	IdleTimeoutSeconds *float64          `json:"idle_timeout_seconds,omitempty"` // 0 = none
	LeaseSeconds       *float64          `json:"lease_seconds,omitempty"`        // it ends unless its owner renews within this; 10 s to a day, 0 = none
	Budget             *Budget           `json:"budget,omitempty"`               // it is ended when it has used that up
	PrivatePorts       bool              `json:"private_ports,omitempty"`        // who reaches its ports by name needs a token
	MaskHost           string            `json:"mask_host,omitempty"`            // Host that servers inside are shown; "${PORT}" is the port

	// Setup is a line for the sandbox's shell, started as its first command. The answer does
	// not wait for it: it names the command, which has a record, a log and a limit of its own.
	Setup               string   `json:"setup,omitempty"`
	SetupTimeoutSeconds *float64 `json:"setup_timeout_seconds,omitempty"` // 3600 when left out; up to a day

	// Known from elsewhere and refused as unsupported when they ask for something.
	Persistent   *bool    `json:"persistent,omitempty"`
	FromSnapshot string   `json:"from_snapshot,omitempty"`
	Volumes      []Volume `json:"volumes,omitempty"`
}

// Volume is an entry of CreateSandbox.Volumes.
type Volume struct {
	Name     string `json:"name"`
	ReadOnly bool   `json:"read_only,omitempty"`
}

// Status is a sandbox's state in one word, as clients of the compatible API know it.
// State and Transition say the same in Hutch's words.
type Status string

// The statuses.
const (
	StatusCreating Status = "creating"
	StatusRunning  Status = "running"
	StatusPaused   Status = "paused"
	StatusStopping Status = "stopping"
	StatusDeleted  Status = "deleted"
	StatusFailed   Status = "failed" // it never ran
)

// Sandbox is a sandbox as the API shows it.
type Sandbox struct {
	ID                 hutch.SandboxID   `json:"id"`
	Template           string            `json:"template"`
	CPU                float64           `json:"cpu"`
	MemoryMB           int               `json:"memory_mb"`
	DiskMB             int               `json:"disk_mb"`
	DiskTier           hutch.DiskTier    `json:"disk_tier"`
	Pids               int               `json:"pids"`
	Profile            hutch.Profile     `json:"profile"` // how much its commands may do within it
	Hostname           string            `json:"hostname"`
	Status             Status            `json:"status"`
	State              hutch.State       `json:"state"`
	Transition         hutch.Transition  `json:"transition,omitempty"` // under way
	Metadata           map[string]string `json:"metadata,omitempty"`
	BuildID            string            `json:"build_id,omitempty"` // of the template
	Image              string            `json:"image,omitempty"`    // digest of the root image
	BootMS             int64             `json:"boot_ms"`            // create call to guest answering
	BootMode           string            `json:"boot_mode,omitempty"`
	TTLSeconds         float64           `json:"ttl_seconds"`          // as asked for
	IdleTimeoutSeconds float64           `json:"idle_timeout_seconds"` // 0 = none
	CreatedAt          time.Time         `json:"created_at"`           // whole seconds
	StartedAt          time.Time         `json:"started_at,omitzero"`
	ExpiresAt          time.Time         `json:"expires_at"`             // when it is killed
	ActiveAt           time.Time         `json:"active_at,omitzero"`     // last activity
	LeaseSeconds       float64           `json:"lease_seconds,omitzero"` // what a renewal is good for; absent = it has no owner
	LeasedTo           time.Time         `json:"leased_to,omitzero"`     // it ends then unless its owner renews
	EndedAt            time.Time         `json:"ended_at,omitzero"`
	EndReason          hutch.SandboxEnd  `json:"end_reason,omitempty"`
	EndDetail          string            `json:"end_detail,omitempty"`
	Budget             *Budget           `json:"budget,omitempty"`
	PrivatePorts       bool              `json:"private_ports,omitempty"`
	MaskHost           string            `json:"mask_host,omitempty"`
	SetupExecID        hutch.ExecID      `json:"setup_exec_id,omitempty"` // the command of setup; in the answer to the create
}

// UpdateSandbox is the body of PATCH /v1/sandboxes/{id}. What is left out stays.
type UpdateSandbox struct {
	Metadata     map[string]string `json:"metadata,omitempty"` // pairs to set; others stay
	PrivatePorts *bool             `json:"private_ports,omitempty"`
	MaskHost     *string           `json:"mask_host,omitempty"`
}

// Lifecycle is the answer of GET and PATCH /v1/sandboxes/{id}/lifecycle.
type Lifecycle struct {
	TTLSeconds         float64   `json:"ttl_seconds"` // as asked for, at create or at the last change
	Persistent         bool      `json:"persistent"`  // always false
	IdleSeconds        float64   `json:"idle_seconds"`
	IdleTimeoutSeconds float64   `json:"idle_timeout_seconds"` // 0 = none
	ExpiresAt          time.Time `json:"expires_at"`
	LeaseSeconds       float64   `json:"lease_seconds,omitzero"` // what a renewal is good for; absent = it has no owner
	LeasedTo           time.Time `json:"leased_to,omitzero"`     // it ends then unless its owner renews
}

// UpdateLifecycle is the body of PATCH /v1/sandboxes/{id}/lifecycle.
type UpdateLifecycle struct {
	TTLSeconds *float64 `json:"ttl_seconds,omitempty"` // from now on; 0 = the most the operator allows
	Persistent *bool    `json:"persistent,omitempty"`  // true is refused as unsupported
}
