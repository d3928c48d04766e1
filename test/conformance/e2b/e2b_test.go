package e2b

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"hutch.dev/hutch/test/conformance/harness"
)

// atOnce is how many scripts run side by side unless -parallel says: most of what they do is waiting.
// Each looks only at sandboxes of its own.
const atOnce = "4"

// server is what all suites share.
var server *harness.Server

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) (code int) {
	err := flag.Set("test.parallel", atOnce)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if server, err = harness.Start(); err != nil {
		fmt.Fprintln(os.Stderr, "start the server:", err)
		return 1
	}
	defer func() {
		if err := server.Close(); err != nil {
			fmt.Fprintln(os.Stderr, "tear the server down:", err)
			code = 1
		}
		if code != 0 {
			fmt.Fprintf(os.Stderr, "the server's log:\n%s\n", server.Log())
		}
	}()
	return m.Run()
}

// environment is what a user of E2B's clients sets.
func environment(s *harness.Server) map[string]string {
	return map[string]string{"E2B_API_KEY": s.Key, "E2B_API_URL": s.Base, "E2B_SANDBOX_URL": s.Base}
}

func TestJavaScript(t *testing.T) {
	t.Parallel()
	pkg, err := harness.Node("js")
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []string{"sandbox.mjs", "commands.mjs", "files.mjs", "ports.mjs", "wire.mjs", "killed.mjs", "refusals.mjs"} {
		t.Run(s, func(t *testing.T) {
			t.Parallel()
			pkg.Run(t, harness.Script{Name: s, Env: environment(server), Timeout: 10 * time.Minute})
		})
	}
}

func TestPython(t *testing.T) {
	t.Parallel()
	pkg, err := harness.Python("py")
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []string{"sandbox.py", "commands.py", "files.py", "refusals.py"} {
		t.Run(s, func(t *testing.T) {
			t.Parallel()
			pkg.Run(t, harness.Script{Name: s, Env: environment(server), Timeout: 10 * time.Minute})
		})
	}
}

// TestRestart: what clients hold on to is good after a crash of the server.
func TestRestart(t *testing.T) {
	t.Parallel()
	pkg, err := harness.Node("js")
	if err != nil {
		t.Fatal(err)
	}
	own, err := harness.Start()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := own.Close(); err != nil {
			t.Error(err)
		}
	})
	env := environment(own)
	env["STATE"] = filepath.Join(t.TempDir(), "state.json")
	pkg.Run(t, harness.Script{Name: "restart_before.mjs", Env: env})
	if err := own.Restart(); err != nil {
		t.Fatal(err)
	}
	pkg.Run(t, harness.Script{Name: "restart_after.mjs", Env: env})
}
