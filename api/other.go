package api

import (
	"time"

	"hutch.dev/hutch"
)

// Template is a template as the API shows it.
type Template struct {
	Name       string         `json:"name"`
	RootfsPath string         `json:"rootfs_path"` // opaque
	SizeBytes  int64          `json:"size_bytes"`
	BuildID    string         `json:"build_id"`
	Image      string         `json:"image"` // digest of the root image
	CPU        float64        `json:"cpu,omitempty"`
	MemoryMB   int            `json:"memory_mb,omitempty"`
	DiskMB     int            `json:"disk_mb,omitempty"`
	DiskTier   hutch.DiskTier `json:"disk_tier,omitempty"`
	Pids       int            `json:"pids,omitempty"`
	Profile    hutch.Profile  `json:"profile,omitempty"` // of sandboxes that do not ask for one; the project's when left out
	User       string         `json:"user,omitempty"`
	Cwd        string         `json:"cwd,omitempty"`
	CreatedAt  time.Time      `json:"created_at"`

	Aliases     []string `json:"aliases,omitempty"` // other names it answers to
	Description string   `json:"description,omitempty"`
	Entrypoint  []string `json:"entrypoint,omitempty"` // the image's; it is not run by itself
}

// CreateKey is the body of POST /v1/keys.
type CreateKey struct {
	Name             string      `json:"name,omitempty"`
	Scope            hutch.Scope `json:"scope,omitempty"`              // "run" when left out
	ExpiresInSeconds *float64    `json:"expires_in_seconds,omitempty"` // never when left out
}

// Key is an API key as the API shows it. Key itself is set only in the first answer
// to the call that made it.
type Key struct {
	Key       string      `json:"key,omitempty"`
	Prefix    string      `json:"prefix"`
	Name      string      `json:"name"`
	Scope     hutch.Scope `json:"scope"`
	CreatedAt time.Time   `json:"created_at"`
	ExpiresAt time.Time   `json:"expires_at,omitzero"` // absent = never
	RevokedAt time.Time   `json:"revoked_at,omitzero"` // absent = valid
}

// CreateToken is the body of POST /v1/me/tokens, the compatible form of [CreateKey].
type CreateToken struct {
	Label         string   `json:"label,omitempty"`
	Name          string   `json:"name,omitempty"`
	ExpiresInDays *float64 `json:"expires_in_days,omitempty"`
}

// Token is the compatible form of [Key].
type Token struct {
	Token     string    `json:"token,omitempty"`
	Prefix    string    `json:"prefix"`
	Label     string    `json:"label"`
	CreatedAt time.Time `json:"created_at"`
}

// Me says whom a call is made as.
type Me struct {
	Project   hutch.ProjectID `json:"project"`
	Prefix    string          `json:"prefix"` // of the key
	Name      string          `json:"name"`
	Scope     hutch.Scope     `json:"scope"`
	ExpiresAt time.Time       `json:"expires_at,omitzero"`
}

// Event is one line of a sandbox's life.
type Event struct {
	Seq       int64             `json:"seq"` // grows; unique in the installation
	Time      time.Time         `json:"time"`
	SandboxID hutch.SandboxID   `json:"sandbox_id,omitempty"`
	ExecID    hutch.ExecID      `json:"exec_id,omitempty"`
	Type      string            `json:"type"`
	Data      map[string]string `json:"data,omitempty"`
	Payload   map[string]string `json:"payload,omitempty"` // Data again, under the compatible API's name
}

// Events is a page of events. The next one is asked for with ?after=Next.
type Events struct {
	Events []Event `json:"events"`
	Next   int64   `json:"next"`
}

// BuildInfo is the answer of GET /version and /v1/version.
type BuildInfo struct {
	Service   string `json:"service"` // "hutch"
	Semver    string `json:"semver"`
	Commit    string `json:"commit"`
	BuildTime string `json:"build_time"`
	Go        string `json:"go"`
	OS        string `json:"os"`
	Arch      string `json:"arch"`
}

// Health is the answer of /healthz and, when all is well, of /readyz.
type Health struct {
	Status string `json:"status"` // "ok"
}
