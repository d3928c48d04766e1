package hutch

import (
	"slices"
	"strings"
	"time"
)

// SandboxID names a sandbox: "i" and 20 characters of [a-z0-9]. It is a DNS label.
type SandboxID string

// ProjectID names a tenant.
type ProjectID string

// DefaultProject is the tenant of a single-tenant installation.
const DefaultProject ProjectID = "default"

// DiskTier says where a sandbox's writable layer lives.
type DiskTier string

// The disk tiers.
const (
	TierDisk   DiskTier = "disk"   // a file on the node's disk; survives memory pressure
	TierMemory DiskTier = "memory" // in memory; files count as memory
)

// SandboxEnd says why a sandbox is dead.
type SandboxEnd string

// The reasons a sandbox ends.
const (
	EndKilled      SandboxEnd = "killed"       // a caller killed it
	EndExpired     SandboxEnd = "expired"      // its ExpiresAt passed
	EndIdle        SandboxEnd = "idle"         // its idle timeout passed
	EndOOM         SandboxEnd = "oom"          // the kernel ended it over its memory limit
	EndStartFailed SandboxEnd = "start_failed" // it never ran
	EndUnstoppable SandboxEnd = "unstoppable"  // a command in it outlived every softer stop
	EndCrashed     SandboxEnd = "crashed"      // its kernel or guest agent ended unasked
	EndLost        SandboxEnd = "lost"         // found gone, or out of reach, after a restart
	EndPidsLimit   SandboxEnd = "pids_limit"   // it ran into its cap of processes on the host
	EndOwnerGone   SandboxEnd = "owner_gone"   // its owner's lease was not renewed
	EndBudget      SandboxEnd = "budget"       // it used up its budget
	EndSilent      SandboxEnd = "unresponsive" // its guest agent no longer answered
)

// Profile says how much the processes of a sandbox may do within it. What they may do to the
// host is nothing, in each.
type Profile string

// The profiles.
const (
	// ProfileRoot lets commands be root inside: they install packages, mount, change
	// everything but the shared image underneath.
	ProfileRoot Profile = "root"
	// ProfileLocked lets commands be ordinary users only, without capabilities or a way to
	// gain any, on a system that is read-only but for the workspace, the user's home and
	// temporary files.
	ProfileLocked Profile = "locked"
)

// Valid reports whether p is a known profile.
func (p Profile) Valid() bool { return p == ProfileRoot || p == ProfileLocked }

// Resources is the size of a sandbox.
type Resources struct {
	MilliCPU int      // thousandths of a CPU; inside, the number of CPUs is this rounded up
	MemoryMB int      // MiB
	DiskMB   int      // cap of the writable layer, MiB
	DiskTier DiskTier // where the writable layer lives
	Pids     int      // most processes and threads at once inside
}

// CPUs is the number of CPUs a process inside sees: MilliCPU rounded up, at least 1.
func (r Resources) CPUs() int { return max(1, (r.MilliCPU+999)/1000) }

// Sandbox is the record of one sandbox, from create until its tombstone expires.
type Sandbox struct {
	ID       SandboxID
	Project  ProjectID
	Template string // its name, also when it was asked for by an alias
	Image    string // digest of the root image, "sha256:…"
	BuildID  string // build of the template it started from
	Hostname string

	State      State
	Transition Transition
	Epoch      Epoch

	Resources   Resources
	Profile     Profile           // never empty once stored
	Env         map[string]string // for every command; write-only through the API
	Metadata    map[string]string
	Defaults    ProcessDefaults // from the template
	TTL         time.Duration   // as it holds: what was asked for, or the default
	IdleTimeout time.Duration   // 0 = none
	Lease       time.Duration   // what each renewal by its owner is good for; 0 = it has no owner
	Budget      Budget

	CreatedAt time.Time
	StartedAt time.Time // zero until running
	ExpiresAt time.Time // the instant it is killed; never zero once stored
	ActiveAt  time.Time // last activity, for the idle timeout
	LeasedTo  time.Time // it ends then unless its owner renews the lease; zero without one

	EndReason SandboxEnd // empty until dead; while it is being killed, why, unless somebody asked for it
	EndDetail string     // a sentence for the tenant; may be empty
	EndedAt   time.Time

	BootMode string        // BootCold or BootPrepared
	Boot     time.Duration // create call to guest answering

	Access Access
}

// Lifetime says when a sandbox is ended by whoever holds that, unless it is moved meanwhile.
type Lifetime struct {
	ExpiresAt time.Time // by the wall clock
	// UsedAt is, by the monotonic clock, when it was last used, or when at the latest that ends
	// which goes on in it now; zero = not known.
	UsedAt time.Time
	Idle   time.Duration // how long it is kept after that; 0 = to ExpiresAt
}

// IdlesAt is when it will have been without use for too long; zero = never.
func (l Lifetime) IdlesAt() time.Time {
	if l.Idle == 0 || l.UsedAt.IsZero() {
		return time.Time{}
	}
	return l.UsedAt.Add(l.Idle)
}

// What a sandbox's machine was when it was asked for.
const (
	BootCold     = "cold"     // not there: it was made for it
	BootPrepared = "prepared" // booted ahead, and nobody's until then
)

// SecretMetadata reports whether the metadata of that key is set, found by, and never read
// back.
func SecretMetadata(key string) bool { return strings.HasPrefix(key, "secret.") }

// Surface is the API that a sandbox was made through; it decides defaults that the APIs
// do not share.
type Surface string

// The surfaces.
const (
	SurfaceNative Surface = ""
	SurfaceE2B    Surface = "e2b"
)

// Access says who reaches a sandbox besides the holders of its project's keys.
type Access struct {
	Surface Surface `json:"surface,omitempty"`
	// Secure demands the sandbox's token of who calls its agent through the E2B surface.
	Secure bool `json:"secure,omitempty"`
	// PrivatePorts demands a token of who reaches its ports through the edge; else the
	// sandbox's id, which nobody can guess, is enough.
	PrivatePorts bool `json:"private_ports,omitempty"`
	// MaskHost is the Host header that servers inside are shown; "${PORT}" in it is the
	// port. Empty = as the caller sent it.
	MaskHost string `json:"mask_host,omitempty"`
	// Ports are labels of ports, by number.
	Ports map[int]string `json:"ports,omitempty"`
}

// ProcessDefaults is what a template says of the processes started in it.
type ProcessDefaults struct {
	User string            `json:"user,omitempty"` // name or uid[:gid]; empty = root
	Cwd  string            `json:"cwd,omitempty"`  // empty = the user's home
	Env  map[string]string `json:"env,omitempty"`
}

// Template is a named recipe together with its current build.
type Template struct {
	Name      string
	BuildID   string // UUID of the build it points at
	Image     string // digest of its root image, "sha256:…"
	SizeBytes int64
	Recipe    string // hash of what it was built from
	Defaults  ProcessDefaults
	Resources Resources // defaults for sandboxes made from it
	Profile   Profile   // of sandboxes that do not ask for one; empty = the project's, else [ProfileRoot]
	CreatedAt time.Time

	Aliases     []string // other names it answers to; no two templates share one
	Description string
	// Entrypoint is the image's: it is not run by itself, but known to who asks.
	Entrypoint []string
}

// KeepAliases gives a template that was built anew the other names of its last build too.
func (t *Template) KeepAliases(last Template) {
	all := slices.Clone(last.Aliases)
	for _, a := range t.Aliases {
		if !slices.Contains(all, a) {
			all = append(all, a)
		}
	}
	t.Aliases = all
}

// BuildStatus is how far a build of a template is.
type BuildStatus string

// The states of a build.
const (
	BuildQueued  BuildStatus = "queued"
	BuildRunning BuildStatus = "building"
	BuildDone    BuildStatus = "done"
	BuildFailed  BuildStatus = "failed"
)

// Build is the record of one build of a template. Its log is kept beside it.
type Build struct {
	ID        string // UUID
	Project   ProjectID
	Template  string
	Source    string // "recipe base", "image host/path:tag", …
	Status    BuildStatus
	Step      string // the step it is in, or failed in
	Error     string // a sentence; empty unless failed
	SizeBytes int64
	StartedAt time.Time
	EndedAt   time.Time // zero until it has ended
}

// AuditEntry is one call that changed something, or tried to.
type AuditEntry struct {
	ID        int64
	At        time.Time
	Project   ProjectID
	Key       string // prefix of the API key
	RequestID string
	Method    string
	Route     string // pattern, never the path itself
	Sandbox   SandboxID
	Status    int
}

// Event is one line of a sandbox's life, for people and for programs.
type Event struct {
	Seq     int64 // grows; unique in the installation
	At      time.Time
	Project ProjectID
	Sandbox SandboxID
	Exec    ExecID // empty unless about a command
	Type    string // "sandbox.started", "exec.ended", …
	Data    map[string]string
}

// LogLine is one line that something in a sandbox, or a build of a template, wrote.
type LogLine struct {
	At     time.Time // of the command's start for lines of old, else when it was read
	Exec   ExecID    // whose line it is; empty in a build's log
	Stream string    // [Stdout] or [Stderr]; empty in a build's log
	Text   string    // valid UTF-8, without its line end
}

// BootStat is how long creates of one template took.
type BootStat struct {
	Template string
	Mode     string // BootMode
	Count    int
	P50, P95 time.Duration
	P99, Max time.Duration
}
