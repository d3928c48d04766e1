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
	"A01": "", "A03": "", "A05": "", "A06": "", "A08": "", "A10": "", "A11": "", "A13": "", "A15": "", "A16": "", "A18": "", "A20": "", "A21": "",
	// Background processes, sessions, stdin, long streams.
	"B01": "", "B03": "", "B05": "", "B06": "", "B08": "", "B10": "", "B11": "", "B13": "", "B15": "", "B16": "", "B20": "", "B21": "", "B23": "",
	"B18": "code contexts",
	// Output.
	"D01": "", "D03": "", "D05": "", "D06": "", "D08": "", "D10": "", "D11": "", "D13": "", "D15": "", "D16": "",
	// Terminal.
	"E01": "", "E03": "", "E05": "",
	// Environment.
	"F01": "", "F03": "", "F05": "", "F06": "", "F08": "", "F10": "", "F11": "", // F11's install waits for a network
	// Files.
	"G01": "", "G03": "", "G05": "", "G06": "", "G08": "", "G11": "", "G13": "", "G16": "", "G18": "", "G20": "", "G21": "",
	"G10": "snapshots",
	"G15": "hibernation; until then nothing is stopped that could be started again",
	// Zombies, pids, supervision.
	"C01": "", "C03": "", "C05": "", "C06": "", "C08": "",
	// Ports.
	"K01": "", "K05": "", "K06": "", "K08": "",
	"K03": "", // of its causes, a resume; a rollback waits for snapshots
	// Life of a sandbox.
	"L01": "", "L03": "", "L05": "", "L06": "", "L08": "", "L10": "", "L11": "", "L13": "", "L15": "", "L16": "", "L18": "", "L20": "", "L21": "", // a pause being one in memory
	"L23": "", // of the one host there is; moving from one to another waits for more
	// Creates.
	"M01": "", "M03": "", "M05": "", "M08": "", "M10": "", "M11": "",
	"M06": "more than one host: where a sandbox is",
	"M13": "more than one host: where its template is",
	// Taking all of something.
	"O01": "", "O03": "", "O05": "", "O06": "", "O08": "",
	// Secrets.
	"P01": "", "P03": "", "P05": "", "P06": "", "P08": "",
	// Metering and running Hutch.
	"Q01": "", "Q03": "", "Q05": "", "Q06": "", "Q08": "",
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
