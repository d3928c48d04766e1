package archtest

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

// plant makes a tree of the files given.
func plant(t *testing.T, files map[string]string) *Tree {
	t.Helper()
	fsys := make(fstest.MapFS)
	for p, text := range files {
		fsys[p] = &fstest.MapFile{Data: []byte(text)}
	}
	tr, err := Load(fsys, slices.Collect(maps.Keys(files)))
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

// fn is a function of so many lines.
func fn(name string, lines int) string {
	return "func " + name + "() {\n" + strings.Repeat("\tprintln()\n", lines-2) + "}\n"
}

const errorsGo = "package hutch\n\ntype Code string\n\nconst (\n\tA Code = \"a\"\n\tB Code = \"b\"\n)\n"

func row(code string) string {
	return `{"code":"` + code + `","status":400,"retryable":false,"meaning":"m","action":"a"}`
}

// Each rule finds what is planted, where it is, and nothing in what is right.
func TestRulesFindWhatIsPlanted(t *testing.T) {
	type files = map[string]string
	for name, c := range map[string]struct {
		rule  func(*Tree) []Finding
		files files
		want  []string // each in a finding; none: nothing is to be found
	}{
		"a package without a row":    {layerFindings, files{"internal/new/a.go": "package new"}, []string{"internal/new: it has no row"}},
		"a service imports another":  {layerFindings, files{"internal/control/a.go": "package control\nimport _ \"hutch.dev/hutch/internal/node\""}, []string{"internal/control/a.go:2: internal/control must not import internal/node"}},
		"a service an adapter":       {layerFindings, files{"internal/control/a.go": "package control\nimport \"hutch.dev/hutch/internal/store/sqlite\""}, []string{"must not import internal/store/sqlite"}},
		"a service a transport":      {layerFindings, files{"internal/node/a.go": "package node\nimport \"hutch.dev/hutch/internal/httpapi\""}, []string{"must not import internal/httpapi"}},
		"a leaf the root":            {layerFindings, files{"internal/x/id/a.go": "package id\nimport \"hutch.dev/hutch\""}, []string{"must not import ."}},
		"the root anything":          {layerFindings, files{"a.go": "package hutch\nimport \"hutch.dev/hutch/internal/x/id\""}, []string{"a.go:2: . must not import internal/x/id"}},
		"the guest the host":         {layerFindings, files{"internal/guest/process/a.go": "package process\nimport \"hutch.dev/hutch/internal/runtime\""}, []string{"must not import internal/runtime"}},
		"the root acts":              {layerFindings, files{"a.go": "package hutch\nimport \"net/http\""}, []string{"it must do without \"net/http\""}},
		"production a test kit":      {layerFindings, files{"cmd/hutch-guest/a.go": "package main\nimport \"hutch.dev/hutch/internal/guest/guesttest\""}, []string{"internal/guest/guesttest is for tests"}},
		"what services may import":   {layerFindings, files{"internal/control/a.go": "package control\nimport (\n\"hutch.dev/hutch\"\n\"hutch.dev/hutch/internal/store\"\n\"hutch.dev/hutch/internal/x/id\"\n\"os\"\n)"}, nil},
		"what tests may import":      {layerFindings, files{"internal/control/a_test.go": "package control\nimport \"hutch.dev/hutch/internal/store/sqlite\""}, nil},
		"an odd door":                {doorFindings, files{"internal/node/a.go": "package node\nimport \"database/sql\""}, []string{"\"database/sql\" stops at internal/store/sqlite"}},
		"a blank import":             {doorFindings, files{"cmd/hutch/a.go": "package main\nimport _ \"net/http/pprof\""}, []string{"cmd/hutch/a.go:2: blank import of \"net/http/pprof\""}},
		"the right doors":            {doorFindings, files{"internal/store/sqlite/a.go": "package sqlite\nimport (\n\"database/sql\"\n_ \"embed\"\n)", "internal/node/a_test.go": "package node\nimport \"database/sql\""}, nil},
		"no package comment":         {docFindings, files{"a/a.go": "package a", "a/b.go": "package a", "b/a.go": "// Package b is.\npackage b"}, []string{"a: the package has no comment"}},
		"two package comments":       {docFindings, files{"a/a.go": "// Package a is.\npackage a", "a/b.go": "// Package a was.\npackage a"}, []string{"a/b.go: the package has a second comment"}},
		"an odd package comment":     {docFindings, files{"a/a.go": "// This is a.\npackage a", "cmd/x/a.go": "// Package main is.\npackage main"}, []string{"must begin with \"Package a \"", "must begin with \"Command x \""}},
		"outside tests":              {docFindings, files{"a/a.go": "// Package a is.\npackage a", "a/a_test.go": "package a_test"}, nil},
		"undocumented exports":       {exportFindings, files{"a/a.go": "package a\ntype T struct{}\nfunc F() {}\nfunc (t *T) M() {}\nvar V int\nconst (\n\tC = 1\n)"}, []string{"a.go:2: type T", "a.go:3: F is", "a.go:4: M is", "a.go:5: V is", "a.go:7: C is"}},
		"documented exports":         {exportFindings, files{"a/a.go": "package a\n// T is.\ntype T struct{}\n// F does.\nfunc F() {}\ntype u int\nfunc (u) M() {}\n// All of them.\nconst (\n\tC = 1\n)\nvar (\n\tV = 1 // is\n)", "cmd/x/a.go": "package main\nfunc F() {}", "a/a_test.go": "package a\nfunc TestX() {}"}, nil},
		"a long file":                {sizeFindings, files{"a/a.go": "package a\n" + strings.Repeat("\n", 800)}, []string{"a/a.go: 801 lines"}},
		"a long function":            {sizeFindings, files{"a/a.go": "package a\n" + fn("F", 121) + fn("g", 120)}, []string{"a/a.go:2: F has 121 lines"}},
		"many parameters":            {sizeFindings, files{"a/a.go": "package a\nfunc F(a, b, c, d, e, f int) {}\nfunc g(ctx context.Context, a, b int, c, d, e string) {}\nfunc (t *T) H(ctx context.Context, a, b, c, d int, e ...int) {}\nfunc i(a int, b, c, d, e int, ctx context.Context) {}\nfunc j(t *testing.T, a, b, c, d, e int) {}"}, []string{"a.go:2: F takes 6", "a.go:5: i takes 6"}},
		"a fat interface":            {sizeFindings, files{"a/a.go": "package a\ntype I interface{ A(); B(); C(); D(); E(); F(); G(); H(); J() }\ntype K interface{ A(); B(); C(); D(); E(); F() }\n// L has six\n// methods because it must.\ntype L interface{ A(); B(); C(); D(); E(); F() }\ntype M interface{ A(); B(); C(); D(); E(); L; I }"}, []string{"interface I has 9 methods", "a.go:3: interface K has 6 methods"}},
		"generated code may be long": {sizeFindings, files{"gen/a.go": "// Code generated by x. DO NOT EDIT.\n\npackage a\n" + fn("F", 900)}, nil},
		"a sleep in a test":          {sleepFindings, files{"a/a_test.go": "package a\nimport \"time\"\nfunc f() {\n\t// sleep: not even so\n\ttime.Sleep(1)\n}"}, []string{"a_test.go:5: time.Sleep in a test"}},
		"a sleep that is passed on":  {sleepFindings, files{"a/a.go": "package a\nimport \"time\"\nvar wait = time.Sleep"}, []string{"a.go:3: time.Sleep"}},
		"a sleep without a reason":   {sleepFindings, files{"a/a.go": "package a\nimport \"time\"\nfunc f() {\n\t// a while\n\ttime.Sleep(1)\n}"}, []string{"a.go:5: time.Sleep"}},
		"sleeps that are right":      {sleepFindings, files{"a/a.go": "package a\nimport \"time\"\nfunc f() {\n\t// sleep: the kernel says nothing\n\ttime.Sleep(1)\n}", "a/a_test.go": "package a\nimport (\n\"testing/synctest\"\n\"time\"\n)\nfunc f() { synctest.Test(nil, nil); time.Sleep(1) }"}, nil},
		"vague names":                {nameFindings, files{"internal/util/a.go": "package util", "internal/x/id/helpers.go": "package id"}, []string{"internal/util: the name says nothing", "helpers.go: the name says nothing"}},
		"an init":                    {codeFindings, files{"a/a.go": "package a\nfunc init() {}\nfunc (t T) init() {}"}, []string{"a.go:2: init runs"}},
		"unfinished business":        {codeFindings, files{"a/a.go": "package a\n// TO" + "DO: more.\n"}, []string{"a.go:2: TO" + "DO in a comment"}},
		"an empty error":             {codeFindings, files{"a/a.go": "package a\nvar err = errors.New(\"fai" + "led to open\")"}, []string{"a.go:2: an error that begins"}},
		"generated outside gen":      {generatedFindings, files{"a/a.go": "// Code generated by x. DO NOT EDIT.\n\npackage a", "b/gen/doc.go": "package gen", "b/gen/a.go": "// Code generated by x. DO NOT EDIT.\n\npackage gen", "c/gen/a.go": "package gen"}, []string{"a/a.go: it is generated", "c/gen/a.go: it is written by hand"}},
		"a part that is not mapped":  {architectureFindings, files{architecture: "| `internal/store` | `internal/x/` |", "internal/store/sqlite/a.go": "package sqlite", "internal/x/id/a.go": "package id", "internal/sto/a.go": "package sto", "a.go": "package hutch"}, []string{"does not name `internal/sto`"}},
		"no map":                     {architectureFindings, files{"a.go": "package hutch"}, []string{architecture + ": it is missing"}},
		"a module without a reason": {
			dependencyFindings,
			files{"go.mod": "module hutch.dev/hutch\n\nrequire (\n\texample.com/a v1.0.0\n\texample.com/a/b v1.0.0 // indirect\n\texample.com/c v1.0.0\n\texample.com/d v1.0.0\n)\n", "a.go": "package hutch\nimport (\n\"example.com/a/b/x\"\n\"example.com/c\"\n)", dependencies: "- `example.com/c`: good.\n- `example.com/d`: gone.\n"},
			[]string{"does not name `example.com/a/b`", "`example.com/d` is not imported"},
		},
		"error codes that differ": {
			errorFindings,
			files{"errors.go": errorsGo, errorList: "[" + row("a") + "," + row("c") + "]", errorTable: "| `a` | 400 |\n| `d` | 400 |\n"},
			[]string{"\"c\" has no constant", "\"b\" of errors.go has no row", "no line begins with \"| `c` | 400 |\"", "\"d\" is on the page"},
		},
		"error rows that lack":   {errorFindings, files{"errors.go": errorsGo, errorList: `[{"code":"a","status":200},` + row("b") + `,` + row("b") + `]`, errorTable: "| `a` | 200 |\n| `b` | 400 |"}, []string{"the row of \"a\" needs", "\"b\" has two rows"}},
		"error codes that agree": {errorFindings, files{"errors.go": errorsGo, errorList: "[" + row("a") + "," + row("b") + "]", errorTable: "| `a` | 400 | no |\n| `b` | 400 | no |"}, nil},
		"failpoints that differ": {
			failpointFindings,
			files{
				"internal/x/failpoint/points.go": "package failpoint\nconst (\nA Name = \"a\"\nB Name = \"a\"\nC Name = \"c\"\nD Name = \"d\"\n)\nfunc All() []Name { return []Name{A, B, B, C} }",
				"internal/node/a.go":             "package node\nfunc f() {\nfailpoint.At(failpoint.A)\nfailpoint.At(failpoint.C)\nfailpoint.At(failpoint.C)\nfailpoint.At(x)\nfailpoint.At(failpoint.D)\n}",
				"internal/node/a_test.go":        "package node\nfunc g() {\nfailpoint.At(failpoint.B)\n}",
			},
			[]string{"A and B are both", "B is 2 times in All", "nothing comes to B", "a.go:5: C is reached in two places", "a.go:6: a failpoint is reached by its name", "D is 0 times in All"},
		},
		"failpoints by another name": {
			failpointFindings,
			files{
				"internal/x/failpoint/points.go": "package failpoint\nconst A Name = \"a\"\nfunc All() []Name { return []Name{A} }",
				"internal/node/a.go":             "package node\nimport fp \"hutch.dev/hutch/internal/x/failpoint\"\nfunc f() {\nfp.At(fp.A)\n}",
			},
			[]string{"a.go:2: import internal/x/failpoint under its own name", "nothing comes to A"},
		},
		"failpoints that are right": {failpointFindings, files{"internal/x/failpoint/points.go": "package failpoint\nconst A Name = \"a\"\nfunc All() []Name { return []Name{A} }", "internal/node/a.go": "package node\nfunc f() {\nfailpoint.At(failpoint.A)\n}"}, nil},
		"no licence":                {licenceFindings, files{"LICENSE": "free"}, []string{"LICENSE: it is too short"}},
		"something left behind":     {fileFindings, files{"a/x.test": "", "a/y.txt": ""}, []string{"a/x.test: it is something a program left"}},
		"a registry in a file":      {noSecrets, files{"README.md": "line\nsee https://" + registries[0] + "/x", "a.txt": "my" + registries[2] + " " + registries[2] + "x"}, []string{"README.md:2: it names the host of a package registry"}},
		"a path of the machine":     {noSecrets, files{"x.sh": "cd /home/me/hutch/x", "y.sh": "cd /home/me/hutchings"}, []string{"x.sh:1: it names a path"}},
		"a binary is not looked at": {noSecrets, files{"x.bin": "\x00" + registries[0]}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			found := c.rule(plant(t, c.files))
			for _, want := range c.want {
				if !slices.ContainsFunc(found, func(f Finding) bool { return strings.Contains(f.String(), want) }) {
					t.Errorf("not found: %q", want)
				}
			}
			if len(found) != len(c.want) {
				t.Errorf("%d findings, want %d: %q", len(found), len(c.want), found)
			}
		})
	}
}

func noSecrets(t *Tree) []Finding {
	return secretFindings(t, Secrets{"/home/me/hutch": "a path"})
}

func TestGuestBudget(t *testing.T) {
	l := Linked{Packages: []string{"net/http", "database/sql", "database/sqlite", "gvisor.dev/gvisor/pkg/tcpip"}, Modules: []string{"a", "b", "c", "d", "e", "f"}}
	found := guestFindings(l)
	for _, want := range []string{"it links database/sql:", "it links gvisor.dev/gvisor/pkg/tcpip:", "it links 6 third-party modules"} {
		if !slices.ContainsFunc(found, func(f Finding) bool { return strings.Contains(f.What, want) }) {
			t.Errorf("not found: %q", want)
		}
	}
	if len(found) != 3 {
		t.Errorf("findings: %q; want 3", found)
	}
	if found := guestFindings(Linked{Packages: []string{"net", "os"}, Modules: []string{"a"}}); len(found) != 0 {
		t.Errorf("findings about a small agent: %q", found)
	}
}

func TestModuleLists(t *testing.T) {
	found := listFindings("f", "a\nb\n", Linked{Modules: []string{"a", "c"}})
	if len(found) != 2 || !strings.Contains(found[0].What, "c is linked") || !strings.Contains(found[1].What, "b is on the list") {
		t.Errorf("findings: %q", found)
	}
	if found := listFindings("f", "a\nb\n", Linked{Modules: []string{"a", "b"}}); len(found) != 0 {
		t.Errorf("findings about equal lists: %q", found)
	}
}

func TestMatch(t *testing.T) {
	for _, c := range []struct {
		pattern, dir string
		want         bool
	}{
		{".", ".", true},
		{".", "api", false},
		{"...", "anything/at/all", true},
		{"internal/x", "internal/x", true},
		{"internal/x", "internal/x/id", false},
		{"internal/x/...", "internal/x", true},
		{"internal/x/...", "internal/x/id", true},
		{"internal/x/...", "internal/xyz", false},
		{"internal/store/...", "internal/storetest", false},
	} {
		if got := Match(c.pattern, c.dir); got != c.want {
			t.Errorf("Match(%q, %q) = %v", c.pattern, c.dir, got)
		}
	}
}

// Every row of the table can decide: none is hidden by one above.
func TestNoRowIsHidden(t *testing.T) {
	for i, l := range layers {
		dir := strings.TrimSuffix(l.pkg, "/...")
		for _, above := range layers[:i] {
			if Match(above.pkg, dir) && !strings.HasSuffix(l.pkg, "/...") {
				t.Errorf("row %q never decides: %q above it fits first", l.pkg, above.pkg)
			}
		}
	}
}
