// Package archtest is the house's rules as tests: who may import whom, how large things
// may grow, what must be documented, and what must not be in the tree.
//
// It owns the rules that a program can decide by reading the sources; taste is left to
// reviewers, and what a stock linter does is left to it. Rules read text and syntax, so a
// run takes a second and needs no build (only the lists of linked modules ask the go
// command). Each rule is a function from a [Tree] to findings, and each is tried on a
// planted violation, so that a rule that has stopped to work is found out too.
//
// A finding says where, what, and how to mend it. To change a rule, change its table
// here, in the same commit as the code that needs it, and say why there.
//
// Start with the table in layers.go, then rules.go.
package archtest

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
)

// module is the path of ours in go.mod.
const module = "hutch.dev/hutch"

// Tree is the tracked files of the repository, or a planted one.
type Tree struct {
	FS    fs.FS
	Paths []string // every file, slashes, relative to the root, sorted
	Go    []*File  // those of Go, but not below a testdata directory
	fset  *token.FileSet
}

// File is one file of Go.
type File struct {
	Path      string
	Dir       string // "." for the root
	Test      bool   // named _test.go
	Generated bool   // says so in the way the go command knows
	Lines     int
	Imports   []Import
	Syntax    *ast.File
}

// Import is one import of a file.
type Import struct {
	Path  string
	Blank bool
	Line  int
}

// Finding is a broken rule.
type Finding struct {
	Where string // path, or path:line
	What  string // what is wrong, and how to mend it
}

// String is how a test reports it.
func (f Finding) String() string { return f.Where + ": " + f.What }

// Load parses the files of Go among paths.
func Load(fsys fs.FS, paths []string) (*Tree, error) {
	t := &Tree{FS: fsys, Paths: slices.Clone(paths), fset: token.NewFileSet()}
	slices.Sort(t.Paths)
	for _, p := range t.Paths {
		if path.Ext(p) != ".go" || slices.Contains(strings.Split(p, "/"), "testdata") {
			continue
		}
		f, err := t.parse(p)
		if err != nil {
			return nil, err
		}
		t.Go = append(t.Go, f)
	}
	return t, nil
}

func (t *Tree) parse(p string) (*File, error) {
	src, err := fs.ReadFile(t.FS, p)
	if err != nil {
		return nil, err
	}
	syntax, err := parser.ParseFile(t.fset, p, src, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	f := &File{
		Path: p, Dir: path.Dir(p), Test: strings.HasSuffix(p, "_test.go"),
		Generated: ast.IsGenerated(syntax),
		Lines:     strings.Count(string(src), "\n"),
		Syntax:    syntax,
	}
	for _, spec := range syntax.Imports {
		ip, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			return nil, fmt.Errorf("%s: import %s: %w", p, spec.Path.Value, err)
		}
		f.Imports = append(f.Imports, Import{
			Path: ip, Blank: spec.Name != nil && spec.Name.Name == "_", Line: t.fset.Position(spec.Pos()).Line,
		})
	}
	return f, nil
}

// at makes a finding about a place in the syntax.
func (t *Tree) at(n ast.Node, format string, args ...any) Finding {
	pos := t.fset.Position(n.Pos())
	return Finding{fmt.Sprintf("%s:%d", pos.Filename, pos.Line), fmt.Sprintf(format, args...)}
}

// lines is how many lines n takes.
func (t *Tree) lines(n ast.Node) int {
	return t.fset.Position(n.End()).Line - t.fset.Position(n.Pos()).Line + 1
}

// read returns a file's text; a missing one is a finding.
func (t *Tree) read(p, hint string) (string, []Finding) {
	b, err := fs.ReadFile(t.FS, p)
	if err != nil {
		return "", []Finding{{p, "it is missing: " + hint}}
	}
	return string(b), nil
}

// packages lists the directories that hold Go, with their files.
func (t *Tree) packages() map[string][]*File {
	dirs := make(map[string][]*File)
	for _, f := range t.Go {
		dirs[f.Dir] = append(dirs[f.Dir], f)
	}
	return dirs
}

// Match reports whether the package in dir is meant by pattern: a directory, or one and
// all below it ("internal/x/..."), or everything ("...").
func Match(pattern, dir string) bool {
	if pattern == "..." {
		return true
	}
	if top, ok := strings.CutSuffix(pattern, "/..."); ok {
		return dir == top || strings.HasPrefix(dir, top+"/")
	}
	return dir == pattern
}

func matchAny(patterns []string, dir string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool { return Match(p, dir) })
}

// ours returns the directory of an imported package of this module.
func ours(importPath string) (dir string, ok bool) {
	if importPath == module {
		return ".", true
	}
	return strings.CutPrefix(importPath, module+"/")
}

// thirdParty reports whether a package is neither ours nor the standard library's: only
// the latter has no dot in its first element.
func thirdParty(importPath string) bool {
	if _, ok := ours(importPath); ok {
		return false
	}
	first, _, _ := strings.Cut(importPath, "/")
	return strings.Contains(first, ".")
}
