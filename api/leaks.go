package api

import (
	"time"

	"hutch.dev/hutch"
)

// Leaks is the answer of GET /v1/leaks and POST /v1/leaks/sweep.
type Leaks struct {
	Leaks []Leak `json:"leaks"` // what is there and should not be, or the other way round
	Swept []Leak `json:"swept"` // what was, and was removed by this call
}

// Leak is a difference between the records and the host.
type Leak struct {
	Kind      hutch.TraceKind `json:"kind"`
	Name      string          `json:"name"`                 // a process, a path, an id
	SandboxID hutch.SandboxID `json:"sandbox_id,omitempty"` // whose it is; absent = of none
	Why       string          `json:"why"`                  // a sentence
	Since     time.Time       `json:"since,omitzero"`       // absent = not known
}
