package archtest

import (
	"bytes"
	"context"
	"flag"
	"io/fs"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
)

var update = flag.Bool("update", false, "rewrite the lists of linked modules in deps/")

const root = "../.."

var tree = sync.OnceValues(func() (*Tree, error) {
	paths, err := tracked()
	if err != nil {
		return nil, err
	}
	return Load(os.DirFS(root), paths)
})

// tracked lists the files that are, or would be, under version control; in a tree
// without any, all but what a build leaves.
func tracked() ([]string, error) {
	cmd := exec.Command("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	cmd.Dir = root
	if out, err := cmd.Output(); err == nil {
		var paths []string
		for p := range bytes.SplitSeq(bytes.TrimSuffix(out, []byte{0}), []byte{0}) {
			if _, err := os.Stat(filepath.Join(root, string(p))); err == nil { // not one that was removed and is still in the index
				paths = append(paths, string(p))
			}
		}
		return paths, nil
	}
	var paths []string
	err := fs.WalkDir(os.DirFS(root), ".", func(p string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == ".git" || p == "bin" || p == "internal/guestimage/bin" || d.Name() == "node_modules" || d.Name() == "__pycache__"):
			return fs.SkipDir
		case !d.IsDir():
			paths = append(paths, p)
		}
		return nil
	})
	return paths, err
}

func loaded(t *testing.T) *Tree {
	t.Helper()
	tr, err := tree()
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

// rules by the name they are run and reported under.
var rules = map[string]func(*Tree) []Finding{
	"layers":             layerFindings,
	"doors":              doorFindings,
	"package comments":   docFindings,
	"exported comments":  exportFindings,
	"sizes":              sizeFindings,
	"sleeps":             sleepFindings,
	"names":              nameFindings,
	"code":               codeFindings,
	"generated code":     generatedFindings,
	"architecture page":  architectureFindings,
	"dependencies page":  dependencyFindings,
	"error codes":        errorFindings,
	"licence":            licenceFindings,
	"files left behind":  fileFindings,
	"failpoints":         failpointFindings,
	"hosts and machines": func(t *Tree) []Finding { return secretFindings(t, machine(t)) },
}

func TestRules(t *testing.T) {
	for name, rule := range rules {
		t.Run(name, func(t *testing.T) { report(t, rule(loaded(t))) })
	}
}

func report(t *testing.T, found []Finding) {
	t.Helper()
	for _, f := range found {
		t.Error(f)
	}
}

func TestLinkedModules(t *testing.T) {
	for _, name := range []string{"hutch", "hutch-guest"} {
		t.Run(name, func(t *testing.T) {
			l, err := linked(context.WithoutCancel(t.Context()), root, "cmd/"+name)
			if err != nil {
				t.Fatal(err)
			}
			if name == "hutch-guest" {
				report(t, guestFindings(l))
			}
			file := filepath.Join("deps", name+".txt")
			if *update {
				if err := os.WriteFile(file, []byte(strings.Join(l.Modules, "\n")+"\n"), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			list, err := os.ReadFile(file)
			if err != nil {
				t.Fatalf("%v: run `go test ./test/archtest -update`", err)
			}
			report(t, listFindings("test/archtest/"+file, string(list), l))
		})
	}
}

// machine is what this machine would leave in a file by accident: where the tree is
// checked out, and the mirrors it fetches packages from.
func machine(t *Tree) Secrets {
	s := make(Secrets)
	gomod, _ := t.read("go.mod", "") // another rule finds that it is missing
	if abs, err := filepath.Abs(root); err == nil && strings.Count(abs, "/") > 1 {
		s[abs] = "the directory this tree is checked out in"
	}
	env := func(key string) string {
		out, err := exec.Command("go", "env", key).Output()
		if err != nil {
			return ""
		}
		return strings.TrimSpace(string(out))
	}
	if dir := env("GOMODCACHE"); strings.Count(dir, "/") > 1 {
		s[dir] = "the module cache of this machine"
	}
	text := strings.Join([]string{env("GOPROXY"), env("GOSUMDB"), os.Getenv("PIP_INDEX_URL"), os.Getenv("PIP_EXTRA_INDEX_URL"), os.Getenv("NPM_CONFIG_REGISTRY"), os.Getenv("npm_config_registry")}, "\n")
	home, _ := os.UserHomeDir() // without one there is nothing of the user's to read
	for _, pattern := range []string{
		"/etc/apt/sources.list", "/etc/apt/sources.list.d/*", "/etc/apt/apt.conf.d/*", "/etc/pip.conf", "/etc/npmrc", "/usr/etc/npmrc",
		filepath.Join(home, ".npmrc"), filepath.Join(home, ".pip/pip.conf"), filepath.Join(home, ".config/pip/pip.conf"),
	} {
		files, _ := filepath.Glob(pattern) // the patterns are well-formed
		for _, f := range files {
			if b, err := os.ReadFile(f); err == nil {
				text += "\n" + string(b)
			}
		}
	}
	for _, u := range regexp.MustCompile(`https?://[^\s'",;|]+`).FindAllString(text, -1) {
		parsed, err := url.Parse(u)
		if err != nil {
			continue
		}
		// A host that is part of a module's name is named for that, not as a mirror.
		host := parsed.Hostname()
		named := slices.ContainsFunc(modules(gomod), func(m string) bool { return strings.HasPrefix(m, host+"/") })
		if strings.Contains(host, ".") && !strings.HasPrefix(host, "127.") && !named {
			s[host] = "a host from this machine's package configuration"
		}
	}
	return s
}
