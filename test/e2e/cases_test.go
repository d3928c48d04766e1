package e2e

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// cases are the faults that each have a test of their own, TestCase and the id; those that
// wait say for what. A waiting case becomes a test with the work it waits for.
var cases = map[string]string{
	// Timeouts, kill, cancel.
	"A01": "", "A03": "", "A05": "", "A06": "", "A08": "", "A10": "", "A11": "", "A15": "", "A16": "", "A18": "", "A20": "", "A21": "",
	"A13": "a setup script at create",
	// Background processes, stdin, long streams.
	"B01": "", "B03": "", "B06": "", "B08": "", "B10": "", "B11": "", "B13": "", "B15": "", "B21": "", "B23": "",
	"B05": "shell sessions (its heredoc without an end is in B06)",
	"B16": "terminals",
	"B18": "code contexts",
	"B20": "shell sessions",
	// Output.
	"D01": "", "D03": "", "D05": "", "D06": "", "D08": "", "D10": "", "D11": "", "D13": "",
	"D15": "terminals",
	"D16": "terminals",
	// Environment.
	"F01": "", "F03": "", "F05": "", "F06": "", "F08": "", "F10": "", "F11": "", // F11's install waits for a network
	// Zombies, pids, supervision.
	"C01": "", "C03": "", "C06": "", "C08": "",
	"C05": "terminals",
}

func TestEveryCaseHasItsTest(t *testing.T) {
	files, err := filepath.Glob("*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	tested := map[string]bool{}
	for _, name := range files {
		src, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, src, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && strings.HasPrefix(fn.Name.Name, "TestCase") {
				tested[fn.Name.Name[len("TestCase"):][:3]] = true
			}
		}
	}
	for id, waits := range cases {
		if waits == "" && !tested[id] {
			t.Errorf("case %s has no test", id)
		}
		if waits != "" && tested[id] {
			t.Errorf("case %s has a test and is listed as waiting for %s", id, waits)
		}
	}
	for id := range tested {
		if _, ok := cases[id]; !ok {
			t.Errorf("case %s has a test and is not listed", id)
		}
	}
}
