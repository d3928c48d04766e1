package archtest

import (
	"fmt"
	"slices"
	"strings"
)

// layer is a row of the table: what the files of a package, tests apart, may import.
type layer struct {
	pkg string   // pattern, see Match
	may []string // our packages
	not []string // standard packages it must do without, because it decides and does not act
}

// doing is what a package that only decides has no use for.
var doing = []string{"database/sql", "net", "net/http", "os", "os/exec", "syscall"}

// layers is read from the top; the first row that fits a package decides, and a package
// that none fits is a finding. One direction: cmd → transports → services → ports →
// root. Services never import each other: each declares the small interface it needs,
// and cmd/hutch joins them.
var layers = []layer{
	// The vocabulary.
	{pkg: ".", not: doing},

	// The wire contracts and those who speak them to the outside.
	{pkg: "api/...", may: []string{".", "api/..."}},
	{pkg: "client/...", may: []string{".", "api/...", "internal/x/..."}},

	// Leaf helpers, one noun each: they import nothing of ours but one another.
	{pkg: "internal/x/...", may: []string{"internal/x/..."}},

	// Ports, with the checks every adapter passes.
	{pkg: "internal/store", may: []string{"."}, not: doing},
	{pkg: "internal/store/storetest", may: []string{".", "internal/store"}},
	{pkg: "internal/runtime", may: []string{"."}},
	{pkg: "internal/runtime/runtimetest", may: []string{".", "internal/guestapi", "internal/guestclient", "internal/runtime", "internal/x/..."}},

	// Adapters: their port, the root, leaves. No adapter imports another.
	{pkg: "internal/store/...", may: []string{".", "internal/store", "internal/x/..."}},
	{pkg: "internal/runtime/gvisor/gen/..."},
	{pkg: "internal/runtime/gvisor/...", may: []string{".", "internal/runtime", "internal/runtime/gvisor/...", "internal/x/..."}},
	{pkg: "internal/runtime/fake/...", may: []string{".", "internal/runtime", "internal/runtime/fake/...", "internal/guestapi", "internal/guestlink", "internal/x/..."}},

	// The guest agent, which runs where nothing of the host is.
	{pkg: "internal/guestapi", may: []string{"."}, not: doing},
	{pkg: "internal/guest/...", may: []string{".", "internal/guest/...", "internal/guestapi", "internal/x/..."}},

	// Libraries between host and guest, and of the host.
	{pkg: "internal/guestlink", may: []string{"internal/x/..."}},
	{pkg: "internal/guestclient", may: []string{".", "internal/guestapi", "internal/guestlink", "internal/x/..."}},
	{pkg: "internal/guestimage", may: []string{"internal/x/..."}},
	{pkg: "internal/rootfs", may: []string{".", "internal/x/..."}},
	{pkg: "internal/link", may: []string{".", "internal/runtime", "internal/x/..."}},
	{pkg: "internal/keeper", may: []string{".", "internal/runtime", "internal/x/..."}},
	{pkg: "internal/obs", may: []string{"."}},
	{pkg: "internal/doctor", may: []string{".", "internal/x/..."}},

	// Services.
	{pkg: "internal/auth", may: []string{".", "internal/store", "internal/x/..."}},
	{pkg: "internal/control/...", may: []string{".", "internal/control/...", "internal/store", "internal/x/..."}},
	{pkg: "internal/node/...", may: []string{".", "internal/node/...", "internal/guestapi", "internal/guestclient", "internal/keeper", "internal/runtime", "internal/x/..."}},
	{pkg: "internal/template/...", may: []string{".", "internal/template/...", "internal/rootfs", "internal/x/..."}},
	{pkg: "internal/egress/...", may: []string{".", "internal/egress/...", "internal/link", "internal/runtime", "internal/x/..."}},

	// Transports. They use the types of the store port (pages, filters), never an adapter,
	// and reach services through interfaces of their own.
	{pkg: "internal/httpapi/...", may: []string{".", "api/...", "internal/httpapi/...", "internal/obs", "internal/store", "internal/x/..."}},

	{pkg: "internal/e2bapi/...", may: []string{".", "internal/e2bapi/...", "internal/x/..."}},
	{pkg: "internal/edge/...", may: []string{".", "internal/edge/...", "internal/x/..."}},

	// What talks to a server as anybody could.
	{pkg: "internal/cli/...", may: []string{".", "api/...", "client/...", "internal/cli/...", "internal/x/..."}},
	{pkg: "internal/chaos", may: []string{".", "api/...", "client/...", "internal/x/..."}},
	{pkg: "internal/bench/...", may: []string{".", "api/...", "client/...", "internal/bench/...", "internal/guestapi", "internal/guestclient", "internal/link", "internal/runtime/...", "internal/x/..."}},

	// The binaries: the only place that wires.
	{pkg: "cmd/hutch-guest", may: []string{".", "internal/guest/...", "internal/guestapi", "internal/guestlink", "internal/x/..."}},
	{pkg: "cmd/hutch", may: []string{"..."}},

	{pkg: "bench/...", may: []string{"..."}},
	{pkg: "test/...", may: []string{"..."}},
	{pkg: "tools/...", may: []string{"..."}},
}

// testKits are for tests: only tests, other kits and test/ import them.
var testKits = []string{
	"internal/guest/guesttest", "internal/httpapi/httpapitest", "internal/runtime/fake", "internal/runtime/runtimetest",
	"internal/store/storetest", "test/...",
}

// doors are where foreign types stop: a module, and the packages that may import it.
var doors = []struct {
	pkgs string // prefix of import paths
	may  []string
}{
	{"database/sql", []string{"internal/store/sqlite"}},
	{"modernc.org/sqlite", []string{"internal/store/sqlite"}},
	{"github.com/pressly/goose", []string{"internal/store/sqlite"}},
	{"gvisor.dev/gvisor/pkg/tcpip", []string{"internal/link", "internal/egress/..."}},
	{"gvisor.dev/gvisor", []string{"internal/runtime/gvisor/...", "internal/link", "internal/egress/...", "cmd/hutch"}},
	{"github.com/spf13/cobra", []string{"cmd/hutch", "internal/cli/..."}},
	{"github.com/prometheus", []string{"internal/obs", "internal/control/...", "internal/node/...", "internal/egress/...", "internal/httpapi/...", "cmd/hutch"}},
	{"os/exec", []string{"cmd/...", "internal/guest/...", "internal/runtime/...", "internal/template/...", "internal/rootfs", "internal/doctor", "internal/x/...", "internal/bench/...", "test/...", "tools/..."}},
}

// layerFindings checks every import of ours against the table.
func layerFindings(t *Tree) []Finding {
	var out []Finding
	for dir, files := range t.packages() {
		row := slices.IndexFunc(layers, func(l layer) bool { return Match(l.pkg, dir) })
		if row < 0 {
			out = append(out, Finding{dir, "it has no row in the layer table: add one to test/archtest/layers.go that says what it may import"})
			continue
		}
		for _, f := range files {
			if !f.Test {
				out = append(out, importFindings(layers[row], f)...)
			}
		}
	}
	return out
}

func importFindings(row layer, f *File) []Finding {
	var out []Finding
	for _, im := range f.Imports {
		where := fmt.Sprintf("%s:%d", f.Path, im.Line)
		dir, own := ours(im.Path)
		switch {
		case own && dir != f.Dir && !matchAny(row.may, dir):
			out = append(out, Finding{where, fmt.Sprintf("%s must not import %s (row %q of the layer table allows %s): declare the interface it needs and let cmd/hutch hand it in, or move the code",
				f.Dir, dir, row.pkg, strings.Join(append([]string{"the standard library"}, row.may...), ", "))})
		case own && matchAny(testKits, dir) && !matchAny(testKits, f.Dir) && !Match("cmd/hutch", f.Dir) && !Match("bench/...", f.Dir):
			out = append(out, Finding{where, fmt.Sprintf("%s is for tests: import it from _test.go files only", dir)})
		case !own && slices.Contains(row.not, im.Path):
			out = append(out, Finding{where, fmt.Sprintf("%s decides and does not act, so it must do without %q: take the value as an argument", f.Dir, im.Path)})
		}
	}
	return out
}

// doorFindings checks that foreign types stay where they are translated.
func doorFindings(t *Tree) []Finding {
	var out []Finding
	for _, f := range t.Go {
		if f.Test {
			continue
		}
		for _, im := range f.Imports {
			for _, d := range doors {
				if im.Path != d.pkgs && !strings.HasPrefix(im.Path, d.pkgs+"/") {
					continue
				}
				if !matchAny(d.may, f.Dir) {
					out = append(out, Finding{fmt.Sprintf("%s:%d", f.Path, im.Line), fmt.Sprintf("%q stops at %s: use that package, or widen the door in test/archtest/layers.go with a reason", im.Path, strings.Join(d.may, ", "))})
				}
				break // the first row that fits decides
			}
			if im.Blank && im.Path != "embed" && im.Path != "unsafe" { // these two are asked for by directives
				out = append(out, Finding{fmt.Sprintf("%s:%d", f.Path, im.Line), fmt.Sprintf("blank import of %q: nothing here registers itself by being imported; call what you need", im.Path)})
			}
		}
	}
	return out
}
