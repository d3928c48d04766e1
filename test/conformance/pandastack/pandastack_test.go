package pandastack

import (
	"flag"
	"fmt"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"hutch.dev/hutch/test/conformance/harness"
)

// atOnce is how many scripts run side by side unless -parallel says: most of what they do is waiting.
// Each looks only at sandboxes and templates of its own.
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
	if server, err = harness.Start("--registry-insecure"); err != nil {
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

// environment is what a user of PandaStack's clients sets.
func environment(more ...string) map[string]string {
	env := map[string]string{"PANDASTACK_API": server.Base, "PANDASTACK_API_KEY": server.Key}
	for i := 0; i+1 < len(more); i += 2 {
		env[more[i]] = more[i+1]
	}
	return env
}

// image pushes a small image to a registry on the loopback and returns its name.
func image(t *testing.T) string {
	t.Helper()
	s := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(s.Close)
	ref, err := name.ParseReference(strings.TrimPrefix(s.URL, "http://")+"/team/app:1", name.Insecure)
	if err != nil {
		t.Fatal(err)
	}
	img, err := random.Image(4096, 2)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(ref, img); err != nil {
		t.Fatal(err)
	}
	return ref.String()
}

func TestJavaScript(t *testing.T) {
	t.Parallel()
	pkg, err := harness.Node("js")
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []string{"sandbox.mjs", "commands.mjs", "files.mjs", "templates.mjs", "terminal.mjs", "cli.mjs", "refusals.mjs"} {
		t.Run(s, func(t *testing.T) {
			t.Parallel()
			env := environment()
			if s == "templates.mjs" {
				env["TEST_IMAGE"] = image(t)
			}
			pkg.Run(t, harness.Script{Name: s, Env: env, Timeout: 10 * time.Minute})
		})
	}
}

func TestPython(t *testing.T) {
	t.Parallel()
	pkg, err := harness.Python("py")
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []string{"sandbox.py", "commands.py", "files.py", "logs.py", "templates.py", "wire.py", "refusals.py", "seed.py"} {
		t.Run(s, func(t *testing.T) {
			t.Parallel()
			env := environment()
			if s == "templates.py" {
				env["TEST_IMAGE"] = image(t)
			}
			pkg.Run(t, harness.Script{Name: s, Env: env, Timeout: 10 * time.Minute})
		})
	}
}
