package archtest

import (
	"go/ast"
	"go/token"
	"strconv"
	"strings"
)

// failpointDir is where the points at which a process may be killed have their names.
const failpointDir = "internal/x/failpoint"

// failpointFindings: each point has a name of its own, is on the list that the fault walk
// takes them from, and is reached in one place of what we ship.
func failpointFindings(t *Tree) []Finding {
	var consts []*ast.Ident
	texts := map[string]string{} // the constant, by its value
	listed := map[string]int{}
	var out []Finding
	for _, f := range t.Go {
		if f.Dir != failpointDir || f.Test {
			continue
		}
		for _, d := range f.Syntax.Decls {
			switch d := d.(type) {
			case *ast.GenDecl:
				for _, p := range pointConsts(d) {
					consts = append(consts, p.name)
					if other, ok := texts[p.value]; ok {
						out = append(out, t.at(p.name, "%s and %s are both %q: give each point a name of its own", other, p.name.Name, p.value))
					}
					texts[p.value] = p.name.Name
				}
			case *ast.FuncDecl:
				if d.Name.Name == "All" {
					ast.Inspect(d.Body, func(n ast.Node) bool {
						if id, ok := n.(*ast.Ident); ok {
							listed[id.Name]++
						}
						return true
					})
				}
			}
		}
	}
	reached := map[string]int{}
	for _, f := range t.Go {
		if f.Test || f.Dir == failpointDir {
			continue
		}
		for _, imp := range f.Syntax.Imports {
			if path, err := strconv.Unquote(imp.Path.Value); err == nil && imp.Name != nil && strings.HasSuffix(path, failpointDir) {
				out = append(out, t.at(imp, "import %s under its own name: this rule finds its points by that", failpointDir))
			}
		}
		for n := range ast.Preorder(f.Syntax) {
			call, ok := n.(*ast.CallExpr)
			if !ok || selected(call.Fun) != "At" {
				continue
			}
			name := ""
			if len(call.Args) == 1 {
				name = selected(call.Args[0])
			}
			if name == "" {
				out = append(out, t.at(call, "a failpoint is reached by its name: failpoint.At(failpoint.X)"))
				continue
			}
			if reached[name]++; reached[name] == 2 {
				out = append(out, t.at(call, "%s is reached in two places: a walk to it could not say which it was; name the second one", name))
			}
		}
	}
	for _, name := range consts {
		if listed[name.Name] != 1 {
			out = append(out, t.at(name, "%s is %d times in All, where the fault walk finds it: want once", name.Name, listed[name.Name]))
		}
		if reached[name.Name] == 0 {
			out = append(out, t.at(name, "nothing comes to %s: call failpoint.At there, or remove it", name.Name))
		}
	}
	return out
}

// selected is X of failpoint.X; empty for anything else.
func selected(e ast.Expr) string {
	s, ok := e.(*ast.SelectorExpr)
	if !ok {
		return ""
	}
	if x, ok := s.X.(*ast.Ident); !ok || x.Name != "failpoint" {
		return ""
	}
	return s.Sel.Name
}

// point is a constant of type Name.
type point struct {
	name  *ast.Ident
	value string
}

// pointConsts are those in d.
func pointConsts(d *ast.GenDecl) []point {
	if d.Tok != token.CONST {
		return nil
	}
	var out []point
	for _, spec := range d.Specs {
		s, ok := spec.(*ast.ValueSpec)
		if !ok || len(s.Names) != 1 || len(s.Values) != 1 {
			continue
		}
		typ, ok := s.Type.(*ast.Ident)
		lit, isLit := s.Values[0].(*ast.BasicLit)
		if !ok || typ.Name != "Name" || !isLit {
			continue
		}
		if v, err := strconv.Unquote(lit.Value); err == nil {
			out = append(out, point{s.Names[0], v})
		}
	}
	return out
}
