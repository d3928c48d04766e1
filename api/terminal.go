package api

import (
	"time"

	"hutch.dev/hutch"
)

// Terminal is the size of a terminal, in characters.
type Terminal struct {
	Rows int `json:"rows,omitempty"` // 24 when left out of an exec; a resize needs both
	Cols int `json:"cols,omitempty"` // 80 when left out of an exec
}

// TerminalInput is a text frame from a client of a terminal. Binary frames are input
// as it is.
type TerminalInput struct {
	Resize *Terminal `json:"resize,omitempty"`
	Stdin  *string   `json:"stdin,omitempty"`
}

// TerminalNotice is a text frame to a client of a terminal: its last one. Binary frames
// are output.
type TerminalNotice struct {
	Exit   *int         `json:"exit,omitempty"`
	ExecID hutch.ExecID `json:"exec_id,omitempty"` // with ?hello=1, as the first frame
	Error  string       `json:"error,omitempty"`
	Code   hutch.Code   `json:"code,omitempty"`
}

// MuxRequest is a text frame from a client of …/exec/ws: a command to run, or the
// cancelling of one.
type MuxRequest struct {
	ID             string   `json:"id"` // the client's own name for the command
	Cmd            string   `json:"cmd,omitempty"`
	TimeoutSeconds *float64 `json:"timeout_seconds,omitempty"`
	Cancel         bool     `json:"cancel,omitempty"`
}

// MuxReply is a text frame to a client of …/exec/ws. Exactly one of Data, Exit and
// Error is set; the last two end the command.
type MuxReply struct {
	ID     string       `json:"id"`
	Stream string       `json:"stream,omitempty"`
	Data   string       `json:"data,omitempty"`
	Exit   *int         `json:"exit,omitempty"`
	Error  string       `json:"error,omitempty"`
	Code   hutch.Code   `json:"code,omitempty"`
	ExecID hutch.ExecID `json:"exec_id,omitempty"` // once there is one
}

// Shell is a shell session.
type Shell struct {
	Name      string       `json:"name"`
	PID       int          `json:"pid"` // inside
	User      string       `json:"user"`
	Cwd       string       `json:"cwd"`
	ExecID    hutch.ExecID `json:"exec_id,omitempty"` // the command that runs in it now
	Commands  int          `json:"commands"`          // run in it so far
	StartedAt time.Time    `json:"started_at"`
}

// Port is a port of a sandbox: one that something listens on, or one with a label.
type Port struct {
	Port      int    `json:"port"`
	Label     string `json:"label,omitempty"`
	Listening bool   `json:"listening"`
	Source    string `json:"source"`            // "user" when it has a label, else "detected"
	ProxyURL  string `json:"proxy_url"`         // path on this server that leads to it
	Address   string `json:"address,omitempty"` // that is listened on
	PID       int    `json:"pid,omitempty"`
	Command   string `json:"command,omitempty"`
}

// Sources of a [Port].
const (
	PortUser     = "user"
	PortDetected = "detected"
)

// SetPort is the body of POST …/ports.
type SetPort struct {
	Port  int    `json:"port"`
	Label string `json:"label,omitempty"` // "service" when left out
}
