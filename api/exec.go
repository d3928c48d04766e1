package api

import (
	"time"

	"hutch.dev/hutch"
)

// ExecRequest is the body of POST /v1/sandboxes/{id}/exec and …/exec/stream. Exactly
// one of Cmd and Argv is given.
type ExecRequest struct {
	Cmd                    string            `json:"cmd,omitempty"`  // run by /bin/sh -c
	Argv                   []string          `json:"argv,omitempty"` // run as it is, without a shell
	Cwd                    string            `json:"cwd,omitempty"`
	Env                    map[string]string `json:"env,omitempty"`
	User                   string            `json:"user,omitempty"`
	Stdin                  *string           `json:"stdin,omitempty"`        // all of its stdin, as text
	StdinBase64            []byte            `json:"stdin_base64,omitempty"` // all of its stdin, as bytes
	StdinOpen              bool              `json:"stdin_open,omitempty"`   // stdin follows by POST …/stdin; else it is /dev/null
	TimeoutSeconds         *float64          `json:"timeout_seconds,omitempty"`
	NoOutputTimeoutSeconds *float64          `json:"no_output_timeout_seconds,omitempty"` // 0 = none
	GraceSeconds           *float64          `json:"grace_seconds,omitempty"`             // between TERM and KILL
	MaxOutputBytes         *int              `json:"max_output_bytes,omitempty"`          // budget a stream
	Background             bool              `json:"background,omitempty"`                // answer once it runs
	CollapseCR             bool              `json:"collapse_cr,omitempty"`               // show only the last frame of progress lines
	Terminal               *Terminal         `json:"terminal,omitempty"`                  // a terminal of that size instead of pipes
	Shell                  string            `json:"shell,omitempty"`                     // run cmd in the shell session of that name, which is started if there is none
	Login                  bool              `json:"login,omitempty"`                     // run cmd by /bin/bash -l -c
	Tag                    string            `json:"tag,omitempty"`                       // a label to find it by
}

// Process is a process inside that a stop ended or that a normal end left.
type Process struct {
	PID     int    `json:"pid"`
	Command string `json:"command"`
	Signal  string `json:"signal,omitempty"` // what ended it: "HUP", "TERM" or "KILL"
}

// StreamCut tells how a stream over its budget was cut: the text is a head, the
// marker, and a tail.
type StreamCut struct {
	Bytes        int64  `json:"bytes"` // that the command wrote
	HeadBytes    int64  `json:"head_bytes"`
	TailBytes    int64  `json:"tail_bytes"`
	DroppedBytes int64  `json:"dropped_bytes"`  // in neither
	Path         string `json:"path,omitempty"` // file in the sandbox with the whole stream
	// FileDroppedBytes is how many bytes at the stream's start that file lacks, because
	// it reached its own cap or the disk was full.
	FileDroppedBytes int64 `json:"file_dropped_bytes,omitempty"`
}

// ExecEnd is how a command ended: the "exit" event of a stream, and part of [ExecResult].
type ExecEnd struct {
	ExecID          hutch.ExecID  `json:"exec_id"`
	ExitCode        int           `json:"exit_code"` // 124 at a timeout, 128+n for signal n
	EndReason       hutch.ExecEnd `json:"end_reason"`
	Signal          string        `json:"signal,omitempty"`
	Detail          string        `json:"detail,omitempty"` // a sentence: which limit, how large
	DurationMS      int64         `json:"duration_ms"`
	CPUMS           int64         `json:"cpu_ms"` // its part of what the host charged the sandbox for
	PeakMemoryBytes int64         `json:"peak_memory_bytes"`
	StartedAt       time.Time     `json:"started_at,omitzero"`
	EndedAt         time.Time     `json:"ended_at,omitzero"`
	StdoutBytes     int64         `json:"stdout_bytes"` // that it wrote
	StderrBytes     int64         `json:"stderr_bytes"`
	Truncated       bool          `json:"truncated"`
	DroppedBytes    int64         `json:"dropped_bytes"`         // of both streams
	OutputPath      string        `json:"output_path,omitempty"` // whole stdout if it was cut, else whole stderr if that was
	StdoutCut       *StreamCut    `json:"stdout_cut,omitempty"`
	StderrCut       *StreamCut    `json:"stderr_cut,omitempty"`
	Killed          []Process     `json:"killed,omitempty"`
	LeftRunning     []Process     `json:"left_running,omitempty"`
	Escalated       bool          `json:"escalated,omitempty"`  // TERM was not enough
	LimitsHit       []string      `json:"limits_hit,omitempty"` // "disk", "pids", "memory": met without being the end
	Cwd             string        `json:"cwd,omitempty"`        // where the shell session is now
	// ShellReplaced says that the command began in a new shell session because the one
	// before it had ended, and why: "exited", "killed" or "hung".
	ShellReplaced string `json:"shell_replaced,omitempty"`
	// Error and Code are set when Hutch itself failed after the answer had begun: the
	// command's outcome is then not known and ExitCode is ExitNoResult.
	Error string     `json:"error,omitempty"`
	Code  hutch.Code `json:"code,omitempty"`
}

// ExitNoResult is the exit code in a result that could not be had.
const ExitNoResult = 125

// ExecResult is the answer to a command that was waited for.
type ExecResult struct {
	Stdout string `json:"stdout"`
	Stderr string `json:"stderr"`
	// Lossy says that a stream was not UTF-8: its text has replacement characters and
	// its bytes (head and tail, without the marker) are in the field ending in _base64.
	Lossy        bool   `json:"lossy,omitempty"`
	StdoutBase64 []byte `json:"stdout_base64,omitempty"`
	StderrBase64 []byte `json:"stderr_base64,omitempty"`
	ExecEnd
}

// Exec is the record of a command.
type Exec struct {
	ExecID                 hutch.ExecID    `json:"exec_id"`
	SandboxID              hutch.SandboxID `json:"sandbox_id"`
	Running                bool            `json:"running"`
	PID                    int             `json:"pid,omitempty"` // inside
	Cmd                    string          `json:"cmd,omitempty"`
	Argv                   []string        `json:"argv,omitempty"`
	Cwd                    string          `json:"cwd,omitempty"`
	User                   string          `json:"user,omitempty"`
	EnvNames               []string        `json:"env_names,omitempty"` // values are not kept
	StdinOpen              bool            `json:"stdin_open,omitempty"`
	Background             bool            `json:"background,omitempty"`
	TimeoutSeconds         float64         `json:"timeout_seconds"`           // 0 = none
	NoOutputTimeoutSeconds float64         `json:"no_output_timeout_seconds"` // 0 = none
	MaxOutputBytes         int             `json:"max_output_bytes"`
	Terminal               *Terminal       `json:"terminal,omitempty"` // its size at the start
	Shell                  string          `json:"shell,omitempty"`
	Login                  bool            `json:"login,omitempty"`
	Tag                    string          `json:"tag,omitempty"`
	CreatedAt              time.Time       `json:"created_at"`
	// Result is set once it has ended. In a listing it is without stdout and stderr.
	Result *ExecResult `json:"result,omitempty"`
}

// OutputChunk is a piece of a stream. Chunk never splits a UTF-8 sequence.
type OutputChunk struct {
	Chunk  string `json:"chunk"`
	Offset int64  `json:"offset"`           // of its first byte
	Bytes  int    `json:"bytes"`            // how many bytes of the stream it stands for
	Base64 []byte `json:"base64,omitempty"` // the bytes, when they are not UTF-8
	// Gap is set when the chunk is a marker for bytes that are not sent.
	Gap *OutputGap `json:"gap,omitempty"`
}

// OutputGap stands for the bytes [From, To) of a stream, which are not sent.
type OutputGap struct {
	Stream string `json:"stream"`
	From   int64  `json:"from"`
	To     int64  `json:"to"`
}

// CancelExec is the body of POST /v1/execs/{exec}/cancel; it may be empty.
type CancelExec struct {
	GraceSeconds *float64 `json:"grace_seconds,omitempty"` // between TERM and KILL; the command's own when left out
}

// SignalExec is the body of POST /v1/execs/{exec}/signal.
type SignalExec struct {
	Signal string `json:"signal"`         // a name: "INT", "HUP"
	Tree   bool   `json:"tree,omitempty"` // to all of its processes, not only the first
}

// StdinReply is the answer of POST /v1/execs/{exec}/stdin.
type StdinReply struct {
	Offset int64 `json:"offset"` // bytes of stdin the command has been given in all
	Closed bool  `json:"closed"`
}
