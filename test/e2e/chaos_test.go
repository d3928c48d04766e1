package e2e

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"hutch.dev/hutch/internal/chaos"
	"hutch.dev/hutch/internal/rootfs"
)

// A server under load, of which one thing after the other is killed, keeps its word.
func TestChaos(t *testing.T) {
	t.Parallel()
	exe, err := hutchBinary()
	if err != nil {
		t.Fatal(err)
	}
	length := "8s"
	if os.Getenv("HUTCH_SOAK") != "" {
		length = "5m"
	}
	file := filepath.Join(t.TempDir(), "chaos.json")
	out, err := exec.CommandContext(t.Context(), exe, "chaos", "--for", length, "--every", "1s", "--callers", "2", "--seed", "3",
		"--cache-dir", rootfs.CacheDir(), "--out", file).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var rep chaos.Report
	if err := json.Unmarshal(b, &rep); err != nil {
		t.Fatal(err)
	}
	if os.Getenv("HUTCH_SOAK") != "" {
		for _, kind := range []string{"server", "keeper", "egress", "kernel", "guest"} {
			if rep.Faults[kind] == 0 {
				t.Errorf("no %s was broken in %s: %v", kind, length, rep.Faults)
			}
		}
	}
	// That nothing was violated proves nothing where nothing was done.
	if rep.Faults["server"] == 0 || rep.Calls["create"] == 0 || rep.Calls["exec"] == 0 {
		t.Errorf("it broke %v, while %v was answered", rep.Faults, rep.Calls)
	}
}
