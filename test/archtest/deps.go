package archtest

import (
	"context"
	"fmt"
	"os/exec"
	"slices"
	"strings"
)

// Linked is what a binary of ours is made of.
type Linked struct {
	Packages []string // import paths, the standard library's too
	Modules  []string // third-party modules, sorted
}

// linked asks the go command what the package in dir of the module at root links.
func linked(ctx context.Context, root, dir string) (Linked, error) {
	cmd := exec.CommandContext(ctx, "go", "list", "-deps", "-f", "{{.ImportPath}} {{with .Module}}{{.Path}}{{end}}", "./"+dir)
	cmd.Dir = root
	cmd.Env = append(cmd.Environ(), "CGO_ENABLED=0") // as it is built
	out, err := cmd.Output()
	if err != nil {
		return Linked{}, fmt.Errorf("go list -deps ./%s: %w", dir, err)
	}
	var l Linked
	for line := range strings.Lines(string(out)) {
		pkg, mod, _ := strings.Cut(strings.TrimSpace(line), " ")
		l.Packages = append(l.Packages, pkg)
		if mod != "" && mod != module && !slices.Contains(l.Modules, mod) {
			l.Modules = append(l.Modules, mod)
		}
	}
	slices.Sort(l.Modules)
	return l, nil
}

// The guest agent is in every sandbox, in memory that the tenant pays for, and whatever
// it links can be attacked from inside.
const maxGuestModules = 5

// notInGuest are packages the guest agent must not link, with why.
var notInGuest = map[string]string{
	"database/sql":             "records are the host's",
	"modernc.org":              "records are the host's",
	"gvisor.dev":               "the kernel is outside",
	"github.com/minio":         "snapshots are the host's",
	"github.com/aws":           "snapshots are the host's",
	"github.com/prometheus":    "the host measures",
	"go.opentelemetry.io":      "the host measures",
	"github.com/spf13":         "it has no command line",
	"github.com/pressly/goose": "records are the host's",
	"testing":                  "it is not a test",
	module + "/internal/store": "records are the host's",
	module + "/internal/node":  "it is inside, the node is outside",
}

// guestFindings: the guest agent stays small.
func guestFindings(l Linked) []Finding {
	var out []Finding
	for _, pkg := range l.Packages {
		for banned, why := range notInGuest {
			if pkg == banned || strings.HasPrefix(pkg, banned+"/") {
				out = append(out, Finding{"cmd/hutch-guest", fmt.Sprintf("it links %s: %s. Find the import with `go mod why` or `go list -deps`, and cut it", pkg, why)})
			}
		}
	}
	if len(l.Modules) > maxGuestModules {
		out = append(out, Finding{"cmd/hutch-guest", fmt.Sprintf("it links %d third-party modules (%s), at most %d", len(l.Modules), strings.Join(l.Modules, ", "), maxGuestModules)})
	}
	return out
}

// listFindings compares what is linked with the list in file, one module a line.
func listFindings(file, list string, l Linked) []Finding {
	var out []Finding
	want := strings.Fields(list)
	for _, m := range l.Modules {
		if !slices.Contains(want, m) {
			out = append(out, Finding{file, fmt.Sprintf("%s is linked and not on the list: if it is meant to be, run `go test ./test/archtest -update` and say why in the commit", m)})
		}
	}
	for _, m := range want {
		if !slices.Contains(l.Modules, m) {
			out = append(out, Finding{file, fmt.Sprintf("%s is on the list and not linked any more: run `go test ./test/archtest -update`", m)})
		}
	}
	return out
}
