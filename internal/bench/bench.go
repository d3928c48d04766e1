// Package bench measures what a caller of a server waits for, and beside it the floor:
// the same machine made and driven by hand, with no platform around it.
//
// Where it means something, what else is installed takes its turns too: podman, with crun and
// with stock gVisor.
//
// It owns what is measured, where each clock starts and stops, the order of the runs,
// the statistics and how they are shown. It does not own the server, nor where images
// and the guest agent come from: cmd/hutch hands it a client and a [Floor].
//
// How a comparison is made fair:
//   - all subjects are measured in one run, in turn, and the order alternates, so that a
//     machine that warms up, slows down or is shared weighs on all alike;
//   - the floor has the same root image, guest agent, sizes, disk tier, control groups
//     and link as the server's sandbox, copied from what the server made; podman's containers
//     have the same root image and sizes, and no network;
//   - the first runs are not counted, and are the same for all;
//   - work that the server or podman does behind its answer is waited for, off the clock, so
//     that it falls into nobody else's time.
//
// Every run is in the report, failed ones with their reason: the summary can be made
// again from the runs, and [Report.Check] does. Times are whole microseconds; percentiles
// are nearest-rank, so each is a time that was measured.
//
// Where many sandboxes are measured at once there are no pairs: what was measured is in
// samples (samples.go), what they come to in figures, and what is held of them in claims.
//
// Start with [Create], [Exec], [Files] and [Terminals], then [measure] in rounds.go and
// stats.go; or with [Density], [Creates], [Disk], [Cycles] and [Siege].
package bench

import (
	"time"

	"hutch.dev/hutch"
)

// The subjects of a comparison.
const (
	SubjectHutch = "hutch" // through the API
	SubjectFloor = "floor" // by hand
)

// subjectOrder is how subjects are shown.
var subjectOrder = []string{SubjectHutch, SubjectStanding, SubjectFloor, SubjectCrun, SubjectRunsc}

// compared are the subjects that hutch is compared with, run by run.
var compared = []string{SubjectFloor, SubjectCrun, SubjectRunsc}

// What a run's times are called. Those of the server's own stages have stagePrefix.
const (
	MetricCreate      = "create"       // asking for a sandbox, to the answer that it runs
	MetricFirstOutput = "first_output" // asking for a sandbox, to the first byte of its first command
	MetricFirstExec   = "first_exec"   // asking for that command, to its first byte
	MetricPrepared    = "prepared"     // starting a machine that was prepared ahead, by hand, to the first byte of its first command
	MetricKill        = "kill"         // asking for the end, to nothing being left
	MetricWhole       = "whole"        // asking for a sandbox, to nothing being left of it, its first command included
	MetricRoundTrip   = "round_trip"   // asking for a command that does nothing, to its result
	MetricFirstByte   = "first_byte"   // asking for a command, to its first byte
	MetricTransfer    = "transfer"     // asking for much output, to its end
	MetricUpload      = "upload"       // asking for a file to be written, to the answer that it is in its place
	MetricDownload    = "download"     // asking for a file, to its last byte
	MetricEcho        = "echo"         // pressing a key in a terminal, to its echo

	stagePrefix = "stage."
)

// Limit is what the platform may cost: asking for a sandbox, to its first output, in
// multiples of the floor of the same run.
const Limit = 1.5

// Settings say how a benchmark is run.
type Settings struct {
	N        int           `json:"n"`               // counted runs of each subject
	Warmup   int           `json:"warmup"`          // runs of each before them
	Parallel int           `json:"parallel"`        // runs of a subject at once
	Limit    time.Duration `json:"limit_ns"`        // of the whole benchmark; it ends early then
	Baseline bool          `json:"baseline"`        // the floor is measured too
	Bytes    int64         `json:"bytes,omitempty"` // of a transfer, or of a file
	Transfer int           `json:"n_transfer"`      // counted transfers of each subject
	// Terminals are open at once in the benchmark of terminals, where N is how many keys
	// are pressed in each.
	Terminals int              `json:"terminals,omitempty"`
	Levels    []int            `json:"levels,omitempty"`    // of creates at once, where N is the rounds of each
	Window    time.Duration    `json:"window_ns,omitempty"` // of a round of creates, or of the look at the CPU
	Tiers     []hutch.DiskTier `json:"tiers,omitempty"`     // measured one after the other, where N is the sandboxes of each
	Probes    int              `json:"probes,omitempty"`    // creates without and beside the crowd
	Profiles  string           `json:"-"`                   // directory for profiles of a server in this process; empty = none
	Template  string           `json:"template"`            // that sandboxes are made from
	Tier      string           `json:"disk_tier"`           // as asked for; empty = the template's
	MemoryMB  int              `json:"memory_mb"`           // as asked for; 0 = the template's
	Rounds    int              `json:"rounds,omitempty"`    // of a siege, where N is the commands of each subject in each
	Loaded    *Sandbox         `json:"loaded,omitempty"`    // what every sandbox with a load was
	Sandbox   *Sandbox         `json:"sandbox,omitempty"`   // what every sandbox of the benchmark was, the floor's too
}

// Sandbox is what the measured sandboxes are.
type Sandbox struct {
	Image     string          `json:"image"` // digest
	Resources hutch.Resources `json:"resources"`
	BootMode  string          `json:"boot_mode"`
}
