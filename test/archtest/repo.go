package archtest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"go/ast"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// The files that rules compare.
const (
	architecture = "docs/architecture.md"
	dependencies = "docs/dependencies.md"
	errorTable   = "docs/errors.md"
	errorList    = "api/openapi/errors.json"
)

// architectureFindings: the map names every part.
func architectureFindings(t *Tree) []Finding {
	text, out := t.read(architecture, "write the page that names every directory and what it owns")
	if out != nil {
		return out
	}
	for _, dir := range topPackages(t) {
		if !strings.Contains(text, "`"+dir+"`") && !strings.Contains(text, "`"+dir+"/") {
			out = append(out, Finding{architecture, fmt.Sprintf("it does not name `%s`: add its line to the table of directories", dir)})
		}
	}
	return out
}

// topPackages are the directories of Go two deep below internal and cmd, one elsewhere.
func topPackages(t *Tree) []string {
	var dirs []string
	for dir := range t.packages() {
		parts := strings.Split(dir, "/")
		if (parts[0] == "internal" || parts[0] == "cmd") && len(parts) > 1 {
			parts = parts[:2]
		} else {
			parts = parts[:1]
		}
		if d := strings.Join(parts, "/"); d != "." && !slices.Contains(dirs, d) {
			dirs = append(dirs, d)
		}
	}
	slices.Sort(dirs)
	return dirs
}

// dependencyFindings: each module we import ourselves has its reason on record, and
// what is on record is imported.
func dependencyFindings(t *Tree) []Finding {
	gomod, out := t.read("go.mod", "this is the module's root")
	if out != nil {
		return out
	}
	text, out := t.read(dependencies, "write the page that gives each direct dependency a line of why")
	if out != nil {
		return out
	}
	direct := directModules(t, gomod)
	for _, m := range direct {
		if !strings.Contains(text, "`"+m+"`") {
			out = append(out, Finding{dependencies, fmt.Sprintf("it does not name `%s`: add a line that says why we use it and what we would do without", m)})
		}
	}
	named := regexp.MustCompile("`([a-z0-9.-]+\\.[a-z]+/[A-Za-z0-9./_-]+)`")
	for _, m := range named.FindAllStringSubmatch(text, -1) {
		if !slices.Contains(direct, m[1]) && slices.Contains(modules(gomod), m[1]) {
			out = append(out, Finding{dependencies, fmt.Sprintf("`%s` is not imported by us any more: remove its line", m[1])})
		}
	}
	if n := len(direct); n > maxDirectModules {
		out = append(out, Finding{"go.mod", fmt.Sprintf("%d direct dependencies, at most %d: do without one", n, maxDirectModules)})
	}
	return out
}

// maxDirectModules bounds what we depend on by our own choice.
const maxDirectModules = 40

// modules lists the paths that go.mod requires.
func modules(gomod string) []string {
	var out []string
	for _, m := range regexp.MustCompile(`(?m)^(?:require)?\s+(\S+\.\S+) v\S+`).FindAllStringSubmatch(gomod, -1) {
		out = append(out, m[1])
	}
	return out
}

// directModules are the modules of what our files import, tests too.
func directModules(t *Tree, gomod string) []string {
	all := modules(gomod)
	var direct []string
	for _, f := range t.Go {
		if f.Dir == "tools" || strings.HasPrefix(f.Dir, "tools/") {
			continue // a module of its own
		}
		for _, im := range f.Imports {
			if !thirdParty(im.Path) {
				continue
			}
			best := ""
			for _, m := range all {
				if (im.Path == m || strings.HasPrefix(im.Path, m+"/")) && len(m) > len(best) {
					best = m
				}
			}
			if best != "" && !slices.Contains(direct, best) {
				direct = append(direct, best)
			}
		}
	}
	slices.Sort(direct)
	return direct
}

// errorRow is a row of errors.json.
type errorRow struct {
	Code      string `json:"code"`
	Status    int    `json:"status"`
	Retryable *bool  `json:"retryable"`
	Meaning   string `json:"meaning"`
	Action    string `json:"action"`
}

// errorFindings: the codes in the code, in errors.json and on the page are the same.
func errorFindings(t *Tree) []Finding {
	raw, out := t.read(errorList, "it has a row for each error code: code, status, retryable, meaning, action")
	if out != nil {
		return out
	}
	page, out := t.read(errorTable, "it has a line for each error code, made from "+errorList)
	if out != nil {
		return out
	}
	var rows []errorRow
	d := json.NewDecoder(strings.NewReader(raw))
	d.DisallowUnknownFields()
	if err := d.Decode(&rows); err != nil {
		return []Finding{{errorList, "it is not a list of rows of code, status, retryable, meaning and action: " + err.Error()}}
	}
	constants := errorCodes(t)
	seen := make(map[string]bool)
	for _, r := range rows {
		if seen[r.Code] {
			out = append(out, Finding{errorList, fmt.Sprintf("%q has two rows: keep one", r.Code)})
		}
		seen[r.Code] = true
		if !slices.Contains(constants, r.Code) {
			out = append(out, Finding{errorList, fmt.Sprintf("%q has no constant in errors.go: add one, or remove the row", r.Code)})
		}
		if r.Status < 400 || r.Status > 599 || r.Retryable == nil || r.Meaning == "" || r.Action == "" {
			out = append(out, Finding{errorList, fmt.Sprintf("the row of %q needs a status of 400 to 599, retryable, meaning and action", r.Code)})
		}
		if line := fmt.Sprintf("| `%s` | %d |", r.Code, r.Status); !strings.Contains(page, line) {
			out = append(out, Finding{errorTable, fmt.Sprintf("no line begins with %q: make the page anew from %s", line, errorList)})
		}
	}
	for _, c := range constants {
		if !seen[c] {
			out = append(out, Finding{errorList, fmt.Sprintf("%q of errors.go has no row: add one", c)})
		}
	}
	for _, m := range regexp.MustCompile("(?m)^\\| `([a-z_]+)` \\|").FindAllStringSubmatch(page, -1) {
		if !seen[m[1]] {
			out = append(out, Finding{errorTable, fmt.Sprintf("%q is on the page and not in %s: make the page anew", m[1], errorList)})
		}
	}
	return out
}

// errorCodes are the values of the root's constants of type Code.
func errorCodes(t *Tree) []string {
	var out []string
	for _, f := range t.Go {
		if f.Dir != "." || f.Test {
			continue
		}
		ast.Inspect(f.Syntax, func(n ast.Node) bool {
			if v, ok := n.(*ast.ValueSpec); ok {
				if typ, ok := v.Type.(*ast.Ident); ok && typ.Name == "Code" && len(v.Values) == 1 {
					if lit, ok := v.Values[0].(*ast.BasicLit); ok {
						if s, err := strconv.Unquote(lit.Value); err == nil {
							out = append(out, s)
						}
					}
				}
			}
			return true
		})
	}
	return out
}

// registries are hosts that packages and images are fetched from. Which ones are used is
// for the machine's configuration to say, never for us. Split, because this file is
// searched too.
var registries = []string{
	"registry.n" + "pmjs.org", "registry.yarn" + "pkg.com", "py" + "pi.org", "python" + "hosted.org", "proxy.go" + "lang.org", "sum.go" + "lang.org",
	"deb.deb" + "ian.org", "security.deb" + "ian.org", "snapshot.deb" + "ian.org", "ftp.deb" + "ian.org", "archive.ubu" + "ntu.com",
	"security.ubu" + "ntu.com", "ports.ubu" + "ntu.com", "dl-cdn.alpine" + "linux.org", "rubyg" + "ems.org", "crat" + "es.io",
	"registry-1.dock" + "er.io", "index.dock" + "er.io", "dock" + "er.io", "ghc" + "r.io", "qua" + "y.io", "gc" + "r.io",
	"registry.k" + "8s.io", "repo.mav" + "en.apache.org", "packag" + "ist.org", "goprox" + "y.io", "goprox" + "y.cn",
}

// Secrets are texts that must be in no file, with what each is. The text of a finding
// does not repeat them.
type Secrets map[string]string

// secretFindings: no file names a package registry, or a path or mirror of the machine
// it was written on.
func secretFindings(t *Tree, machine Secrets) []Finding {
	all := make(Secrets)
	for _, h := range registries {
		all[h] = "the host of a package registry"
	}
	for text, what := range machine {
		all[text] = what
	}
	var out []Finding
	for _, p := range t.Paths {
		b, err := fs.ReadFile(t.FS, p)
		if err != nil || bytes.IndexByte(b[:min(len(b), 8000)], 0) >= 0 {
			continue // a broken link, or not text
		}
		for text, what := range all {
			if i := find(b, text); i >= 0 {
				line := 1 + bytes.Count(b[:i], []byte("\n"))
				out = append(out, Finding{fmt.Sprintf("%s:%d", p, line), "it names " + what + ": take it from the machine's configuration when it is needed, and keep it out of the file"})
			}
		}
	}
	return out
}

// find returns where text stands in b as a whole name (not as a part of a longer one), or -1.
func find(b []byte, text string) int {
	for from := 0; ; {
		i := bytes.Index(b[from:], []byte(text))
		if i < 0 {
			return -1
		}
		i += from
		end := i + len(text)
		if (i == 0 || !inName(b[i-1])) && (end == len(b) || !inName(b[end])) {
			return i
		}
		from = i + 1
	}
}

func inName(c byte) bool {
	return c == '-' || c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
}

// licenceFindings: the tree says under what terms it may be used.
func licenceFindings(t *Tree) []Finding {
	text, out := t.read("LICENSE", "put the licence's full text there")
	if out == nil && len(text) < 1000 {
		out = []Finding{{"LICENSE", "it is too short to be a licence: put the full text there"}}
	}
	return out
}

// fileFindings: nothing is in the tree that a build or a machine left there.
func fileFindings(t *Tree) []Finding {
	var out []Finding
	for _, p := range t.Paths {
		switch path.Ext(p) {
		case ".exe", ".o", ".so", ".a", ".test", ".prof", ".pyc", ".db", ".log", ".orig", ".rej", ".swp":
			out = append(out, Finding{p, "it is something a program left behind: remove it and name its kind in .gitignore"})
		}
	}
	return out
}
