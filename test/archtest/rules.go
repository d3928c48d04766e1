package archtest

import (
	"fmt"
	"go/ast"
	"go/token"
	"path"
	"regexp"
	"slices"
	"strings"
)

// The limits. Most code is far below: they are for the few places that grow for ever.
const (
	maxFileLines   = 800
	maxFuncLines   = 120
	maxMethods     = 8 // of an interface
	freeMethods    = 5 // of an interface without a reason in its comment
	maxParams      = 5 // after a context; aim for 4, and make it a struct before it is one more
	reasonForMore  = "methods because"
	sleepIsAllowed = "sleep:" // begins the comment that says why production code sleeps
)

// docFindings: every package says what it is, in one place, in the usual form.
func docFindings(t *Tree) []Finding {
	var out []Finding
	for dir, files := range t.packages() {
		docs := make(map[string][]*File) // by package name: the outside tests of a package are one of their own
		for _, f := range files {
			name := strings.TrimSuffix(f.Syntax.Name.Name, "_test")
			if f.Syntax.Doc != nil {
				docs[name] = append(docs[name], f)
			} else if docs[name] == nil {
				docs[name] = []*File{}
			}
		}
		for name, with := range docs {
			switch {
			case len(with) == 0:
				out = append(out, Finding{dir, "the package has no comment: say what it owns, what it refuses to own, its invariants and where to start reading"})
			case len(with) > 1:
				out = append(out, Finding{with[1].Path, "the package has a second comment beside that in " + with[0].Path + ": keep one"})
			default:
				want := "Package " + name + " "
				if name == "main" {
					want = "Command " + path.Base(dir) + " "
				}
				if !strings.HasPrefix(with[0].Syntax.Doc.Text(), want) {
					out = append(out, Finding{with[0].Path, fmt.Sprintf("the package's comment must begin with %q", want)})
				}
			}
		}
	}
	return out
}

// exportFindings: what is exported is explained. A test kit is code like any other.
func exportFindings(t *Tree) []Finding {
	var out []Finding
	for _, f := range t.Go {
		if f.Test || f.Generated || f.Syntax.Name.Name == "main" {
			continue
		}
		for _, d := range f.Syntax.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if d.Name.IsExported() && d.Doc == nil && exportedReceiver(d) && !selfEvident(d) {
					out = append(out, t.at(d, "%s is exported and has no comment: say what it does, its errors and who may call it", d.Name.Name))
				}
			case *ast.GenDecl:
				out = append(out, t.undocumented(d)...)
			}
		}
	}
	return out
}

// selfEvident is a method that means the same on every type.
func selfEvident(d *ast.FuncDecl) bool {
	return d.Recv != nil && slices.Contains([]string{"Error", "String", "Unwrap", "Len", "Less", "Swap"}, d.Name.Name)
}

func exportedReceiver(d *ast.FuncDecl) bool {
	if d.Recv == nil {
		return true
	}
	typ := d.Recv.List[0].Type
	for {
		switch x := typ.(type) {
		case *ast.StarExpr:
			typ = x.X
		case *ast.IndexExpr:
			typ = x.X
		case *ast.IndexListExpr:
			typ = x.X
		case *ast.Ident:
			return x.IsExported()
		default:
			return false
		}
	}
}

func (t *Tree) undocumented(d *ast.GenDecl) []Finding {
	var out []Finding
	for _, spec := range d.Specs {
		switch s := spec.(type) {
		case *ast.TypeSpec:
			if s.Name.IsExported() && d.Doc == nil && s.Doc == nil && s.Comment == nil {
				out = append(out, t.at(s, "type %s is exported and has no comment: say what it is", s.Name.Name))
			}
		case *ast.ValueSpec:
			for _, n := range s.Names {
				if n.IsExported() && d.Doc == nil && s.Doc == nil && s.Comment == nil {
					out = append(out, t.at(s, "%s is exported and has no comment: say what it is, its unit, and where a number comes from", n.Name))
				}
			}
		}
	}
	return out
}

// sizeFindings: files, functions, interfaces and parameter lists stay within limits.
func sizeFindings(t *Tree) []Finding {
	var out []Finding
	for _, f := range t.Go {
		if f.Generated {
			continue
		}
		if f.Lines > maxFileLines {
			out = append(out, Finding{f.Path, fmt.Sprintf("%d lines, at most %d: split it by noun or by operation", f.Lines, maxFileLines)})
		}
		ast.Inspect(f.Syntax, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.FuncDecl:
				if l := t.lines(n); l > maxFuncLines {
					out = append(out, t.at(n, "%s has %d lines, at most %d: name its parts", n.Name.Name, l, maxFuncLines))
				}
				if p := params(n.Type); p > maxParams && !f.Test {
					out = append(out, t.at(n, "%s takes %d parameters, at most %d after a context: make them a struct", n.Name.Name, p, maxParams))
				}
			case *ast.GenDecl:
				out = append(out, t.fatInterfaces(n)...)
			}
			return true
		})
	}
	return out
}

// params counts parameters, a context or the test in front apart.
func params(f *ast.FuncType) int {
	n := 0
	for i, p := range f.Params.List {
		typ := p.Type
		if star, ok := typ.(*ast.StarExpr); ok {
			typ = star.X
		}
		if sel, ok := typ.(*ast.SelectorExpr); ok && i == 0 && slices.Contains([]string{"Context", "T", "B", "TB"}, sel.Sel.Name) {
			continue
		}
		n += max(1, len(p.Names))
	}
	return n
}

func (t *Tree) fatInterfaces(d *ast.GenDecl) []Finding {
	var out []Finding
	for _, spec := range d.Specs {
		s, ok := spec.(*ast.TypeSpec)
		if !ok {
			continue
		}
		it, ok := s.Type.(*ast.InterfaceType)
		if !ok {
			continue
		}
		n := 0
		for _, m := range it.Methods.List {
			n += len(m.Names) // one that is embedded has none: it is counted where it is declared
		}
		doc := strings.Join(strings.Fields(d.Doc.Text()+" "+s.Doc.Text()), " ")
		switch {
		case n > maxMethods:
			out = append(out, t.at(s, "interface %s has %d methods, at most %d: cut it, and embed the parts where all are needed", s.Name.Name, n, maxMethods))
		case n > freeMethods && !strings.Contains(doc, reasonForMore):
			out = append(out, t.at(s, "interface %s has %d methods: cut it to %d, or say in its comment that it has %d %s …", s.Name.Name, n, freeMethods, n, reasonForMore))
		}
	}
	return out
}

// sleepFindings: nobody waits by the clock for what can be waited for itself.
func sleepFindings(t *Tree) []Finding {
	var out []Finding
	for _, f := range t.Go {
		// In the bubble of synctest time is false, and a sleep is exact and costs nothing.
		bubble := f.Test && slices.ContainsFunc(f.Imports, func(im Import) bool { return im.Path == "testing/synctest" })
		ast.Inspect(f.Syntax, func(n ast.Node) bool {
			sel, ok := n.(*ast.SelectorExpr)
			if !ok || sel.Sel.Name != "Sleep" || bubble {
				return true
			}
			if x, ok := sel.X.(*ast.Ident); !ok || x.Name != "time" {
				return true
			}
			switch {
			case f.Test:
				out = append(out, t.at(n, "time.Sleep in a test: wait for the thing itself (a channel, a condition with a deadline), or use testing/synctest"))
			case !t.commented(f, n, sleepIsAllowed):
				out = append(out, t.at(n, "time.Sleep: wait on a channel or a timer with the context; if it must sleep, say why in a comment above that begins with %q", sleepIsAllowed))
			}
			return true
		})
	}
	return out
}

// commented reports whether a comment that begins with mark ends on the line of n or the one above.
func (t *Tree) commented(f *File, n ast.Node, mark string) bool {
	line := t.fset.Position(n.Pos()).Line
	return slices.ContainsFunc(f.Syntax.Comments, func(c *ast.CommentGroup) bool {
		end := t.fset.Position(c.End()).Line
		return (end == line || end == line-1) && strings.HasPrefix(c.Text(), mark)
	})
}

// vague are names of packages that say nothing of what is in them.
var vague = []string{"base", "common", "helper", "helpers", "lib", "misc", "shared", "types", "util", "utils"}

// nameFindings: a package is called by its noun.
func nameFindings(t *Tree) []Finding {
	var out []Finding
	for dir := range t.packages() {
		if slices.Contains(vague, path.Base(dir)) {
			out = append(out, Finding{dir, "the name says nothing: call the package by the one noun it is about (internal/x/<noun> for a leaf helper)"})
		}
	}
	for _, f := range t.Go {
		if slices.Contains(vague, strings.TrimSuffix(path.Base(f.Path), ".go")) {
			out = append(out, Finding{f.Path, "the name says nothing: call the file by what is in it"})
		}
	}
	return out
}

// The words are split so that this file does not break its own rules.
var (
	unfinished = regexp.MustCompile(`\b(TO` + `DO|FIX` + `ME|XX` + `X|HA` + `CK)\b`)
	empty      = "fai" + "led to "
)

// codeFindings: what else is not written here.
func codeFindings(t *Tree) []Finding {
	var out []Finding
	for _, f := range t.Go {
		if f.Generated {
			continue
		}
		for _, d := range f.Syntax.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil && fn.Name.Name == "init" {
				out = append(out, t.at(fn, "init runs for everybody who imports this: make it a function that its user calls"))
			}
		}
		for _, group := range f.Syntax.Comments {
			if m := unfinished.FindString(group.Text()); m != "" {
				out = append(out, t.at(group, "%s in a comment: do it, or open an issue and say here what holds today", m))
			}
		}
		ast.Inspect(f.Syntax, func(n ast.Node) bool {
			if lit, ok := n.(*ast.BasicLit); ok && !f.Test && lit.Kind == token.STRING && strings.HasPrefix(strings.TrimLeft(lit.Value, "\"`"), empty) {
				out = append(out, t.at(lit, "an error that begins with %q says nothing when three of them are in a row: verb and object (\"read image: %%w\")", empty))
			}
			return true
		})
	}
	return out
}

// generatedFindings: what a program wrote is below a directory gen, and nothing else is.
func generatedFindings(t *Tree) []Finding {
	var out []Finding
	for _, f := range t.Go {
		in := slices.Contains(strings.Split(f.Dir, "/"), "gen")
		switch {
		case f.Generated && !in:
			out = append(out, Finding{f.Path, "it is generated: have it written into a directory called gen"})
		case !f.Generated && in && path.Base(f.Path) != "doc.go" && !f.Test:
			out = append(out, Finding{f.Path, "it is written by hand: only generated code and doc.go are in gen"})
		}
	}
	return out
}
