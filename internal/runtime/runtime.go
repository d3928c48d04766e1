// Package runtime is the port to an isolator: what makes one sandbox's machine,
// freezes it, saves it and ends it.
//
// It owns the contract, not a line of any isolator; the implementations live below
// it (gvisor, fake) and all pass runtimetest. Nothing here may be true of one
// isolator only. A capability that one lacks is refused with
// [hutch.ErrUnsupported], never ignored.
//
// A sandbox is made in two steps, so that the slow one can be done ahead: [Runtime.Create]
// prepares a machine in which nothing runs, [Sandbox.Start] lets it go, from its
// image or from a snapshot.
//
// What must outlive the process that made a sandbox are its [Handles]: the caller
// stores them elsewhere (see package keeper) and gives them back to [Runtime.Adopt].
//
// Start with [Runtime], then [Sandbox].
package runtime

import (
	"context"
	"os"
	"time"

	"hutch.dev/hutch"
)

// Spec is what a sandbox is made from. All paths are on this host.
type Spec struct {
	ID        hutch.SandboxID
	Image     string // root image (EROFS), shared read-only by every sandbox made from it
	Guest     string // guest agent's own image (EROFS), mounted read-only at GuestDir
	Resources hutch.Resources
	Hostname  string // as seen inside
	// Profile says what the guest agent will let its commands do; it learns it from its
	// first hello, which must name the same. Of a locked machine the isolator takes what
	// only root inside needs: no program in it gains rights from its owner. A snapshot is
	// good for its own profile only. Empty is hutch.ProfileRoot; one that is not known is a
	// bad_request.
	Profile hutch.Profile
}

// GuestDir is where the guest agent's image is mounted inside, and GuestPath its
// program, the first process of every sandbox.
const (
	GuestDir  = "/opt/hutch"
	GuestPath = GuestDir + "/hutch-guest"
)

// Runtime makes sandboxes on this host. Its methods are safe for concurrent use.
type Runtime interface {
	// Name is the isolator's name: "gvisor", "fake".
	Name() string

	// Create prepares a sandbox in which nothing runs yet. If it fails, or ctx ends
	// first, nothing of the sandbox is left on the host. An id that exists is
	// hutch.ErrConflict. It may block for as long as a process start takes.
	Create(ctx context.Context, spec Spec) (Sandbox, error)

	// Adopt takes over a sandbox that an earlier process made, with the handles
	// that process stored. It takes ownership of the files in h, also on failure.
	// A sandbox that is gone is hutch.ErrSandboxGone; its remains are left to Sweep. One
	// that this Runtime has already, until its Kill, is hutch.ErrConflict.
	Adopt(ctx context.Context, spec Spec, h Handles) (Sandbox, error)

	// List names every sandbox of which anything is left on this host (processes,
	// cgroups, state files), known to this process or not.
	List(ctx context.Context) ([]hutch.SandboxID, error)

	// Sweep ends and removes whatever is left of id on this host. It is idempotent,
	// and returns once nothing is left. Sweeping a sandbox that is in use kills it.
	Sweep(ctx context.Context, id hutch.SandboxID) error
}

// Sandbox is one machine. Its methods are safe for concurrent use; after Kill all
// but Kill, Events and Stats return hutch.ErrSandboxGone. It has eight methods because a
// machine's life cannot be cut smaller without splitting its state.
type Sandbox interface {
	// Start lets the prepared sandbox go: from its image, or from the snapshot in
	// o.Snapshot. It returns once the first process runs; that the guest answers is
	// for the caller to find out. Starting twice is hutch.ErrInvalidState. After a
	// failed Start only Kill is of use.
	Start(ctx context.Context, o StartOptions) error

	// Checkpoint writes memory and disk of the running sandbox into dir, which must
	// exist and be empty, and lets it run on (leaveRunning) or ends it. If it
	// fails the sandbox runs on and dir holds nothing of use.
	Checkpoint(ctx context.Context, dir string, leaveRunning bool) error

	// Pause stops every CPU; memory stays. Pausing what is paused does nothing.
	Pause(ctx context.Context) error

	// Resume lets a paused sandbox go on. Resuming what runs does nothing.
	Resume(ctx context.Context) error

	// Kill ends the sandbox, started or not, and removes everything of it from the
	// host. It is idempotent and returns once nothing is left; it is the one method
	// that must work in every state.
	Kill(ctx context.Context) error

	// Stats reads what the host accounts to the sandbox.
	Stats(ctx context.Context) (Stats, error)

	// Handles returns the files the sandbox lives by. They stay the sandbox's own:
	// the caller may duplicate and use them, and must not close them.
	Handles() Handles

	// Events returns the channel of what happens to the sandbox unasked. Every call
	// returns the same channel. The last event is always KindExited, after which it
	// is closed. Events that nobody reads are merged, never blocking the sandbox.
	Events() <-chan Event
}

// StartOptions says how a prepared sandbox begins.
type StartOptions struct {
	Snapshot string // directory that Checkpoint filled; empty = from the image
}

// LinkKind says what travels on a link.
type LinkKind string

// The kinds of link.
const (
	LinkPackets  LinkKind = "packets"  // SOCK_SEQPACKET, one IP packet a message, no link header
	LinkEthernet LinkKind = "ethernet" // a tap, one Ethernet frame a read
)

// Handles are the files a sandbox lives by. Whoever holds duplicates of them can
// take the sandbox over when its process is gone.
type Handles struct {
	Guest    *os.File   // byte stream to the guest agent
	Link     *os.File   // host end of the network link
	LinkKind LinkKind   // what travels on it
	Procs    []*os.File // pidfds: the first one's exit is the sandbox's end; killing all of them ends it
}

// Kind is a kind of event.
type Kind string

// The kinds of event.
const (
	KindMemoryHigh Kind = "memory_high" // use came near the limit: the guest should end something now
	KindOOMKill    Kind = "oom_kill"    // the kernel ended a process of the sandbox
	KindExited     Kind = "exited"      // the sandbox is gone
)

// Event is something that happened to a sandbox unasked.
type Event struct {
	Kind Kind
	OOM  bool // with KindExited: the kernel ended it over its memory limit
	Pids bool // with KindExited: the kernel had refused it processes over its cap of them on the host
}

// Stats is what the host accounts to a sandbox since its start.
type Stats struct {
	CPU         time.Duration // CPU time used
	Memory      int64         // bytes charged now
	WorkingSet  int64         // of Memory, what the host could not take back by dropping file pages
	MemoryPeak  int64         // most bytes charged at once
	MemoryLimit int64         // bytes
	Disk        int64         // bytes of the writable layer on the host's disk; 0 on the memory tier
	OOMKills    int64         // processes that the kernel ended over MemoryLimit: counted before they are gone
	PidsPeak    int64         // most processes and threads on the host at once; 0 = not known
	PidsLimit   int64         // the cap on them
}

// Coroner is a Runtime that can say how a sandbox ended which nobody watched, as long as Sweep has
// not removed what is left of it.
type Coroner interface {
	// Ended returns the event that the sandbox's end, at about that time, would have been, and
	// what was accounted to it; an end of which nothing tells is none over a limit.
	Ended(ctx context.Context, spec Spec, at time.Time) (Event, Stats, error)
}
