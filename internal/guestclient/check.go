package guestclient

import (
	"bytes"
	"encoding/json"
	"fmt"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/guestapi"
	"hutch.dev/hutch/internal/x/pattern"
)

// What is kept of an answer's lists and texts. A lawful guest stays far below.
const (
	maxText      = 512  // bytes of a sentence
	maxCommand   = 64   // bytes of a process's name
	maxPath      = 4096 // PATH_MAX
	maxTag       = 256  // bytes of a tag: 64 characters
	maxKilled    = 1024 // processes in a result
	maxExecs     = 4096
	maxProcesses = 16384
	maxLimits    = 8
)

// times of a guest outside of these are taken for none: the clock inside is root's.
var (
	earliest = time.Date(1970, 1, 1, 0, 0, 0, 0, time.UTC)
	latest   = time.Date(2200, 1, 1, 0, 0, 0, 0, time.UTC)
)

var (
	execID     = pattern.New(`^e[a-z0-9]{20}$`)
	signalName = pattern.New(`^[A-Z0-9+]{1,16}$`)
	shellName  = pattern.New(`^[A-Za-z0-9_-]{1,64}$`)
	fieldName  = pattern.New(`^[a-z0-9_.]{1,64}$`)
)

// ends are how a guest may say that a command ended. That the sandbox is gone is not
// for a guest to say.
var ends = map[hutch.ExecEnd]bool{
	hutch.ExecExit: true, hutch.ExecSignal: true, hutch.ExecTimeout: true, hutch.ExecNoOutput: true,
	hutch.ExecCancelled: true, hutch.ExecOOM: true, hutch.ExecDiskFull: true, hutch.ExecPidsLimit: true,
}

// replaced are the reasons why a shell session was replaced.
var replaced = map[string]bool{"exited": true, "killed": true, "hung": true}

// capped is a JSON array of which at most maxOf elements are kept. The rest is an
// error: it would cost many times its size to decode.
type capped[T any] []T

func (c *capped[T]) decode(b []byte, most int) error {
	dec := json.NewDecoder(bytes.NewReader(b))
	tok, err := dec.Token()
	if err != nil || tok == nil {
		return err // null
	}
	if tok != json.Delim('[') {
		return fmt.Errorf("%v in place of an array", tok)
	}
	var out []T
	for dec.More() {
		if len(out) == most {
			return nonsense("a list of more than %d", most)
		}
		var v T
		if err := dec.Decode(&v); err != nil {
			return err
		}
		out = append(out, v)
	}
	*c = out
	return nil
}

type killedList struct{ capped[hutch.KilledProcess] }

// UnmarshalJSON implements json.Unmarshaler.
func (l *killedList) UnmarshalJSON(b []byte) error { return l.decode(b, maxKilled) }

type limitList struct{ capped[string] }

// UnmarshalJSON implements json.Unmarshaler.
func (l *limitList) UnmarshalJSON(b []byte) error { return l.decode(b, maxLimits) }

// wireResult is a result whose lists are cut while they are decoded.
type wireResult struct {
	hutch.ExecResult
	Killed      killedList `json:"killed"`
	LeftRunning killedList `json:"left_running"`
	LimitsHit   limitList  `json:"limits_hit"`
}

// wireStatus is a status with such a result.
type wireStatus struct {
	guestapi.ExecStatus
	Result *wireResult `json:"result"`
}

type statusList struct{ capped[wireStatus] }

// UnmarshalJSON implements json.Unmarshaler.
func (l *statusList) UnmarshalJSON(b []byte) error { return l.decode(b, maxExecs) }

type execList struct{ Execs statusList }

type procList struct{ capped[guestapi.Process] }

// UnmarshalJSON implements json.Unmarshaler.
func (l *procList) UnmarshalJSON(b []byte) error { return l.decode(b, maxProcesses) }

type processList struct{ Processes procList }
