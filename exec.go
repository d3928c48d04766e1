package hutch

import "time"

// ExecID names a command run in a sandbox: "e" and 20 characters of [a-z0-9].
type ExecID string

// ExecEnd says how a command ended. Every end is typed.
type ExecEnd string

// The ends of a command.
const (
	ExecExit        ExecEnd = "exit"         // by itself, with an exit code
	ExecSignal      ExecEnd = "signal"       // by a signal nobody here sent
	ExecTimeout     ExecEnd = "timeout"      // over its timeout
	ExecNoOutput    ExecEnd = "no_output"    // silent for longer than allowed
	ExecCancelled   ExecEnd = "cancelled"    // a caller cancelled it
	ExecOOM         ExecEnd = "oom"          // over the sandbox's memory
	ExecDiskFull    ExecEnd = "disk_full"    // see ExecResult.LimitsHit; kept for clients that switch on it
	ExecPidsLimit   ExecEnd = "pids_limit"   // failed while the process limit refused it forks
	ExecSandboxGone ExecEnd = "sandbox_gone" // the sandbox ended under it
)

// Limits of a command and the defaults a request gets.
const (
	DefaultExecTimeout = 10 * time.Minute
	MaxExecTimeout     = 24 * time.Hour
	DefaultGrace       = 2 * time.Second // between TERM and KILL
	MaxGrace           = 60 * time.Second
	DefaultOutputBytes = 1 << 20 // budget a stream
	MaxOutputBytes     = 16 << 20
	MinOutputBytes     = 64
	ExitTimeout        = 124 // exit code of a command over its timeout, as timeout(1) gives
	ExitNotFound       = 127 // no such program, as a shell gives
	ExitNotExecutable  = 126
)

// ExecSpec is what is asked of a command. Exactly one of Cmd and Argv is set.
type ExecSpec struct {
	Cmd             string            `json:"cmd,omitempty"`  // run by /bin/sh -c
	Argv            []string          `json:"argv,omitempty"` // run as it is
	Cwd             string            `json:"cwd,omitempty"`
	Env             map[string]string `json:"env,omitempty"`
	User            string            `json:"user,omitempty"`
	StdinOpen       bool              `json:"stdin_open,omitempty"`        // stdin follows; else it is /dev/null
	Timeout         time.Duration     `json:"timeout,omitempty"`           // 0 = none (background only)
	NoOutputTimeout time.Duration     `json:"no_output_timeout,omitempty"` // 0 = none
	Grace           time.Duration     `json:"grace,omitempty"`
	MaxOutputBytes  int               `json:"max_output_bytes,omitempty"` // budget a stream
	Background      bool              `json:"background,omitempty"`

	// Terminal gives the command a terminal of that size as its stdin, stdout and stderr:
	// what it writes is all on [Stdout], and its input stays open. Ended by its hang-up
	// (HUP) when it is stopped, then TERM and KILL as any other.
	Terminal *TerminalSize `json:"terminal,omitempty"`
	// Shell runs Cmd in the shell session of that name (1 to 64 of [A-Za-z0-9_-]), which
	// is started if there is none: the working directory, variables, functions and options
	// that one command leaves are there for the next. While a command runs in a session
	// another is refused with [ErrShellBusy]. Cwd, Env and User are for the session's start; on
	// a session that runs, Cwd and Env are refused and another User too.
	Shell string `json:"shell,omitempty"`
	// Lossless makes the command wait, as a pipe would, rather than lose output that a
	// follower has not taken yet and that no file can hold.
	Lossless bool `json:"lossless,omitempty"`
	// Login runs Cmd by /bin/bash -l -c instead of /bin/sh -c.
	Login bool `json:"login,omitempty"`
	// Tag is a label to find the command by; 1 to 64 printable characters.
	Tag string `json:"tag,omitempty"`
}

// KilledProcess is one process a stop found and ended, or a normal end left running.
type KilledProcess struct {
	PID     int    `json:"pid"`
	Command string `json:"command"`          // comm, at most 64 bytes
	Signal  string `json:"signal,omitempty"` // "HUP", "TERM" or "KILL": what ended it
}

// Output is what is kept of one stream of a command: all of it while it fits the
// budget, else a head (a quarter of the budget) and a tail (three quarters).
type Output struct {
	Head    []byte `json:"head,omitempty"`
	Tail    []byte `json:"tail,omitempty"` // empty while nothing was dropped
	Total   int64  `json:"total"`          // bytes the command wrote
	Dropped int64  `json:"dropped"`        // bytes in neither Head nor Tail
	Path    string `json:"path,omitempty"` // file inside the sandbox with the whole stream; empty when nothing was dropped
	// FileDropped is how many bytes at the start of the stream the file lacks, because
	// it reached its own cap or the disk was full.
	FileDropped int64 `json:"file_dropped,omitempty"`
}

// ExecResult is how a command ended.
type ExecResult struct {
	End         ExecEnd         `json:"end"`
	ExitCode    int             `json:"exit_code"` // 128+n for signal n, 124 for timeout and no_output
	Signal      string          `json:"signal,omitempty"`
	Detail      string          `json:"detail,omitempty"` // a sentence: which limit, how large
	Stdout      Output          `json:"stdout"`
	Stderr      Output          `json:"stderr"`
	Killed      []KilledProcess `json:"killed,omitempty"`       // what a stop found
	LeftRunning []KilledProcess `json:"left_running,omitempty"` // children that outlived a normal end
	Escalated   bool            `json:"escalated,omitempty"`    // TERM was not enough
	LimitsHit   []string        `json:"limits_hit,omitempty"`   // "disk", "memory", "pids": limits met on the way
	Cwd         string          `json:"cwd,omitempty"`          // where the shell session is now
	// ShellReplaced says that this command began in a new session, because the one before
	// it had ended, and why: "exited", "killed", "hung".
	ShellReplaced string        `json:"shell_replaced,omitempty"`
	StartedAt     time.Time     `json:"started_at"`
	EndedAt       time.Time     `json:"ended_at"`
	CPU           time.Duration `json:"cpu"`         // of the sandbox's, its part by what the guest measured: a hint
	PeakMemory    int64         `json:"peak_memory"` // bytes, as the guest measured it: a hint
}

// Exec is the record of one command. It outlives the sandbox for the retention time.
type Exec struct {
	ID        ExecID
	Sandbox   SandboxID
	Project   ProjectID
	Spec      ExecSpec // Env holds names only: values are never stored
	PID       int      // inside; 0 until started
	CreatedAt time.Time
	Result    *ExecResult // nil while it runs
}

// EndedUnder is the result of a command that began then and whose sandbox has ended since, and
// has taken the command's own result with it. Of a limit that ended the sandbox it says so in
// LimitsHit too: whether it was this command that met it, nobody knows any more.
func EndedUnder(why SandboxEnd, detail string, began time.Time) ExecResult {
	r := ExecResult{
		End: ExecSandboxGone, ExitCode: 128 + 9, Signal: "KILL", Detail: "the sandbox ended under it",
		StartedAt: began, EndedAt: time.Now(),
	}
	if why != "" {
		r.Detail += " (" + string(why) + ")"
	}
	if detail != "" {
		r.Detail += ": " + detail
	}
	switch why {
	case EndOOM:
		r.LimitsHit = []string{"memory"}
	case EndPidsLimit:
		r.LimitsHit = []string{"pids"}
	default: // no limit of a command's
	}
	return r
}
