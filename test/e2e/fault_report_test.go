package e2e

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"time"

	"hutch.dev/hutch/internal/x/failpoint"
)

// walkReport is what a long walk leaves.
type walkReport struct {
	At     time.Time `json:"at"`
	Go     string    `json:"go"`
	CPUs   int       `json:"cpus"`
	Kernel string    `json:"kernel"`
	Stops  int       `json:"stops"`
	Held   int       `json:"held"`
	Points int       `json:"points"`
	Walked []walked  `json:"walked"`
}

func writeWalk(t *testing.T, path string, results []walked) {
	t.Helper()
	var u syscall.Utsname
	if err := syscall.Uname(&u); err != nil {
		t.Fatal(err)
	}
	var kernel []byte
	for _, c := range u.Release {
		if c == 0 {
			break
		}
		kernel = append(kernel, byte(c))
	}
	rep := walkReport{At: time.Now().UTC().Truncate(time.Second), Go: runtime.Version(), CPUs: runtime.NumCPU(), Kernel: string(kernel), Stops: len(results), Points: len(failpoint.All()), Walked: results}
	for _, r := range results {
		if r.Held {
			rep.Held++
		}
	}
	b, err := json.MarshalIndent(rep, "", " ")
	if err == nil {
		err = errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, append(b, '\n'), 0o644))
	}
	if err != nil {
		t.Fatal(err)
	}
}
