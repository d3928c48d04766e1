package gvisor

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/x/failpoint"
)

// record is what is kept of a sandbox beside it, for the process that adopts it. It
// need not survive a power loss: no sandbox does.
type record struct {
	Phase  phase `json:"phase"`
	Sentry proc  `json:"sentry"`
	Gofer  proc  `json:"gofer"` // zero on the memory tier

	// What was seen of the kernel's kills for memory: how many, and when there was one more.
	OOMKills int64     `json:"oom_kills,omitempty"`
	OOMAt    time.Time `json:"oom_at,omitzero"`
}

// proc is a process, told from a later one of the same number by its start.
type proc struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"` // clock ticks since boot
}

func (r *Runtime) recordPath(id hutch.SandboxID) string {
	return filepath.Join(r.boxDir(id), "sandbox.json")
}

// writeRecord replaces the record of id whole. It does not sync: see record.
func (r *Runtime) writeRecord(id hutch.SandboxID, rec record) error {
	b, err := json.Marshal(rec)
	if err != nil {
		return err
	}
	path := r.recordPath(id)
	tmp := path + ".new"
	if err := os.WriteFile(tmp, b, 0o600); err != nil {
		return fmt.Errorf("write record: %w", err)
	}
	failpoint.At(failpoint.StateWritten)
	if err := os.Rename(tmp, path); err != nil {
		return fmt.Errorf("replace record: %w", err)
	}
	return nil
}

func (r *Runtime) readRecord(id hutch.SandboxID) (record, error) {
	var rec record
	b, err := os.ReadFile(r.recordPath(id))
	if err != nil {
		return rec, err
	}
	if err := json.Unmarshal(b, &rec); err != nil {
		return rec, fmt.Errorf("decode record: %w", err)
	}
	return rec, nil
}
