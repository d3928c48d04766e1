// Package guestapi is the wire between the node and the guest agent: paths,
// messages and frames. Both ends compile this package; it holds no behaviour but
// encoding.
//
// Calls are HTTP requests with JSON bodies on the stream that package guestlink
// makes. A failure is a status of 400 or more with an [Error] body. Times are
// nanoseconds since 1970; durations are nanoseconds.
//
// Nothing that comes from the guest is trusted: root inside a sandbox can replace
// its agent. The node bounds every body it reads with [MaxBody] and [MaxFrame].
//
// The order of an attach: the node dials, sends [Hello], and only then is anything
// else answered; until then the guest refuses with code "not_identified", so that
// no process starts in a clone before it has its own identity, clock and seed.
//
// A machine that was made before anybody asked for its sandbox is sent a hello of epoch 0, and the
// one of the sandbox's first epoch once somebody has. The first says what is known by then:
// the guest does it, answers calls, and has been nobody's. If it is all true, the second hello is left
// out, and comes with the next change of epoch. The guest of a locked sandbox goes on
// refusing, because it does not know yet to whom to confine commands.
package guestapi

import (
	"time"

	"hutch.dev/hutch"
)

// ProtocolVersion of this package. The node speaks this and the previous one.
const ProtocolVersion = 1

// Bounds on what either side reads.
const (
	MaxBody  = 64 << 20 // a JSON body: two streams of the largest budget, base64, and the rest
	MaxFrame = 1 << 20  // a frame's payload; the end frame, which holds a result, may be MaxBody
	// MaxInput is the most input of a command that should be given to it in one call, so
	// that the guest can read it all before it waits for the command to take it.
	MaxInput = 256 << 10
)

// The calls. {id} is an exec id.
//
//	POST   /v1/hello                 Hello        → HelloReply
//	GET    /v1/health                             → Health
//	POST   /v1/exec                  StartExec    → ExecStatus (200; the same id twice starts nothing and returns what is)
//	GET    /v1/exec                               → ExecList
//	GET    /v1/exec/{id}                          → ExecStatus
//	GET    /v1/exec/{id}/follow?stdout=N&stderr=N&budget=0|1&wait=0|1&live=0|1&last=N
//	                                              → frames, from the byte offsets given, up to the end frame
//	POST   /v1/exec/{id}/stdin?offset=N&append=0|1&close=0|1   raw bytes → StdinReply
//	POST   /v1/exec/{id}/resize      hutch.TerminalSize → {}
//	POST   /v1/exec/{id}/signal      Signal       → {}
//	POST   /v1/exec/{id}/stop        Stop         → ExecStatus (once it has ended)
//	DELETE /v1/exec/{id}                          → {} (its result is recorded elsewhere: give its memory back; the output file stays)
//	GET    /v1/processes                          → ProcessList
//	POST   /v1/relieve                            → ExecStatus of the exec that was ended to free memory; 404 if none
//
// follow with budget=1 sends each stream live until a quarter of the exec's budget
// has gone out, holds the rest, and before the end frame sends what is left: all of
// it, or a gap frame and the tail. With budget=0 it sends every byte there is, as fast
// as the reader takes it (from memory, then from the output file), and gap frames
// only for bytes that nobody has any more. wait=0 ends after what there is now, with
// an end frame whose ExecStatus may still be running. live=1 takes no offsets and no
// budget: each stream begins last bytes before what there is now, as far as they are kept,
// and with a gap frame for all that is before that, if there is any.
//
// stdin with append=1 takes no offset: its body, at most MaxInput bytes, comes in one piece
// after what was given so far, and the call must not be repeated.
const (
	PathHello     = "/v1/hello"
	PathHealth    = "/v1/health"
	PathExec      = "/v1/exec"
	PathProcesses = "/v1/processes"
	PathRelieve   = "/v1/relieve"
)

// HeaderExec is in the answer to a start that is to be followed (the parameter follow=1, with those of
// a follow): the status of the command as JSON in base64, while the body is that of the follow. A command
// that has ended is answered as without the parameter, which agents older than it do always.
const HeaderExec = "Hutch-Exec"

// FollowType is the media type of a follow, which is frames.
const FollowType = "application/octet-stream"

// CodeNotIdentified is the error code of every call before Hello.
const CodeNotIdentified = "not_identified"

// Hello tells the guest who it is now.
type Hello struct {
	Protocol int                   `json:"protocol"`
	Sandbox  hutch.SandboxID       `json:"sandbox"`
	Epoch    hutch.Epoch           `json:"epoch"` // 0: the sandbox is nobody's yet
	Hostname string                `json:"hostname"`
	Time     int64                 `json:"time"` // the node's wall clock, ns since 1970
	Seed     []byte                `json:"seed"` // 64 fresh random bytes, mixed into the kernel's pool
	CPUs     int                   `json:"cpus"`
	Pids     int                   `json:"pids"`    // cap on processes and threads of all commands together
	DiskMB   int                   `json:"disk_mb"` // size of the writable layer: bounds output files
	Env      map[string]string     `json:"env"`     // for every command, below the command's own
	Defaults hutch.ProcessDefaults `json:"defaults"`
	// Profile is that of the machine; empty is root. The first hello decides: one that
	// brings another is a conflict.
	Profile hutch.Profile `json:"profile,omitempty"` // not sent for root, which agents of old know without
}

// HelloReply is what the guest says of itself.
type HelloReply struct {
	Protocol int    `json:"protocol"`
	Version  string `json:"version"`
	BootNS   int64  `json:"boot_ns"`  // from the agent's first instruction to its readiness
	Restored bool   `json:"restored"` // this is the first hello since a restore
}

// Health is a quick sign of life.
type Health struct {
	Time    int64 `json:"time"`
	Execs   int   `json:"execs"`   // running
	Zombies int   `json:"zombies"` // unreaped; always 0 unless the agent is broken
}

// StartExec starts a command. Env of the spec holds values here.
type StartExec struct {
	ID   hutch.ExecID   `json:"id"`
	Spec hutch.ExecSpec `json:"spec"`
}

// ExecStatus is a command as the guest knows it.
type ExecStatus struct {
	ID        hutch.ExecID      `json:"id"`
	PID       int               `json:"pid"`
	Running   bool              `json:"running"`
	StartedAt int64             `json:"started_at"`
	Stdout    int64             `json:"stdout"` // bytes so far
	Stderr    int64             `json:"stderr"`
	Tag       string            `json:"tag,omitempty"`    // as the spec has it
	Result    *hutch.ExecResult `json:"result,omitempty"` // set once ended
	// AllCPU is the CPU time of all commands together while this one ran: set with Result, of
	// which the CPU is its own. 0 = not known, as to agents of old.
	AllCPU time.Duration `json:"all_cpu,omitempty"`
}

// ExecList is every command the guest still knows: running, or ended and not yet deleted.
// Results in it are without Head and Tail: many of them together have no bound.
type ExecList struct {
	Execs []ExecStatus `json:"execs"`
}

// StdinReply says how many bytes of stdin the command has been given in all. A write
// with an offset below that skips what was already taken, so a retry repeats nothing.
type StdinReply struct {
	Offset int64 `json:"offset"`
	Closed bool  `json:"closed"`
}

// Signal sends a signal by name ("INT", "TERM", "KILL", …).
type Signal struct {
	Signal string `json:"signal"`
	Tree   bool   `json:"tree"` // to every process of the exec, not only its leader
}

// Stop ends a command: TERM to its whole tree, Grace, KILL. Reason becomes the result's
// end if the command was still running. Stopping one that has ended kills what it left running.
type Stop struct {
	Reason hutch.ExecEnd `json:"reason"`
	Detail string        `json:"detail"`
	Grace  int64         `json:"grace"` // ns; 0 = KILL at once; negative = the exec's own
}

// Process is one process inside.
type Process struct {
	PID     int          `json:"pid"`
	PPID    int          `json:"ppid"`
	Exec    hutch.ExecID `json:"exec,omitempty"` // whose tree it is in
	State   string       `json:"state"`
	Command string       `json:"command"`
}

// ProcessList is every process inside but the agent.
type ProcessList struct {
	Processes []Process `json:"processes"`
}

// Error is the body of a failed call.
type Error struct {
	Error string     `json:"error"`
	Code  hutch.Code `json:"code"`
	Field string     `json:"field,omitempty"`
}
