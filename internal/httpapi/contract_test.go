package httpapi

import (
	"bytes"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"net/http"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"hutch.dev/hutch"
	"hutch.dev/hutch/api"
)

var update = flag.Bool("update", false, "rewrite docs/errors.md from the catalogue")

// codeConstants reads the error codes from the root package's source.
func codeConstants(t *testing.T) []string {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), "../../errors.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	ast.Inspect(f, func(n ast.Node) bool {
		v, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		if id, ok := v.Type.(*ast.Ident); ok && id.Name == "Code" {
			s, err := strconv.Unquote(v.Values[0].(*ast.BasicLit).Value)
			if err != nil {
				t.Fatal(err)
			}
			out = append(out, s)
		}
		return true
	})
	if len(out) < 10 {
		t.Fatalf("found only %d codes in errors.go", len(out))
	}
	return out
}

func TestErrorCatalogueAgreesEverywhere(t *testing.T) {
	want := codeConstants(t)
	var listed []string
	for _, row := range api.ErrorCodes() {
		listed = append(listed, string(row.Code))
		if got, ok := statuses[row.Code]; !ok || got != row.Status {
			t.Errorf("%s: status %d in the table, %d in errors.json", row.Code, got, row.Status)
		}
		if row.Meaning == "" || row.Action == "" {
			t.Errorf("%s: errors.json does not say what it means and what to do", row.Code)
		}
		if api.Retryable(row.Code) != row.Retryable {
			t.Errorf("%s: Retryable disagrees with errors.json", row.Code)
		}
		if retryAfters[row.Code] > 0 && !row.Retryable {
			t.Errorf("%s: has a Retry-After but is not retryable", row.Code)
		}
	}
	var tabled []string
	for c := range statuses {
		tabled = append(tabled, string(c))
	}
	for name, got := range map[string][]string{"errors.json": listed, "the status table": tabled, "native.yaml": contract(t).enum("ErrorCode")} {
		slices.Sort(got)
		if sorted := slices.Sorted(slices.Values(want)); !slices.Equal(got, sorted) {
			t.Errorf("%s has %v, errors.go has %v", name, got, sorted)
		}
	}
}

func TestStatusOfUnknownCodeIsInternal(t *testing.T) {
	if got := Status("no_such_code"); got != http.StatusInternalServerError {
		t.Errorf("Status of an unknown code = %d, want 500", got)
	}
}

// docs/errors.md is made from the catalogue.
func TestErrorDocs(t *testing.T) {
	var b bytes.Buffer
	b.WriteString("# Errors\n\n" +
		"Every failed call answers with a flat JSON object: `error` (a sentence that says what to do), `code`,\n" +
		"`request_id`, and where they apply `field` (of the request) and `end_reason` (of the sandbox).\n" +
		"This page is made from `api/openapi/errors.json`: change it there, then run\n" +
		"`go test ./internal/httpapi -run TestErrorDocs -update`.\n\n" +
		"*Retry* says whether the same call may succeed later, unchanged. For those that may, clients wait\n" +
		"(`Retry-After`, plus chance) and repeat under the same `Idempotency-Key`.\n\n" +
		"| Code | Status | Retry | Meaning | What to do |\n|---|---|---|---|---|\n")
	for _, row := range api.ErrorCodes() {
		retry := "no"
		if row.Retryable {
			retry = "yes"
		}
		fmt.Fprintf(&b, "| `%s` | %d | %s | %s | %s |\n", row.Code, row.Status, retry, row.Meaning, row.Action)
	}
	const path = "../../docs/errors.md"
	if *update {
		if err := os.WriteFile(path, b.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, b.Bytes()) {
		t.Error("docs/errors.md is not what errors.json makes: run this test with -update")
	}
}

// spec is native.yaml as far as the tests look at it.
type spec struct {
	Paths      map[string]map[string]operation `yaml:"paths"`
	Components struct {
		Schemas map[string]schema `yaml:"schemas"`
	} `yaml:"components"`
}

type operation struct {
	ID         string         `yaml:"operationId"`
	Scope      string         `yaml:"x-scope"`
	Security   *[]any         `yaml:"security"`
	Parameters []parameter    `yaml:"parameters"`
	Responses  map[string]any `yaml:"responses"`
	Body       *struct {
		Content map[string]struct {
			Schema schema `yaml:"schema"`
		} `yaml:"content"`
	} `yaml:"requestBody"`
}

type parameter struct {
	Name     string `yaml:"name"`
	In       string `yaml:"in"`
	Required bool   `yaml:"required"`
	Ref      string `yaml:"$ref"`
	Schema   schema `yaml:"schema"`
}

type schema struct {
	Type       string            `yaml:"type"`
	Format     string            `yaml:"format"`
	Encoding   string            `yaml:"contentEncoding"`
	Ref        string            `yaml:"$ref"`
	Items      *schema           `yaml:"items"`
	Enum       []string          `yaml:"enum"`
	Required   []string          `yaml:"required"`
	Properties map[string]schema `yaml:"properties"`
	Additional any               `yaml:"additionalProperties"`
}

func contract(t *testing.T) spec {
	t.Helper()
	var s spec
	if err := yaml.Unmarshal(api.OpenAPI, &s); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s spec) enum(name string) []string { return slices.Clone(s.Components.Schemas[name].Enum) }

func TestRoutesAgreeWithOpenAPI(t *testing.T) {
	s := contract(t)
	inSpec, ids := map[string]operation{}, map[string]bool{}
	for path, ops := range s.Paths {
		for m, op := range ops {
			inSpec[strings.ToUpper(m)+" "+path] = op
			if ids[op.ID] || op.ID == "" {
				t.Errorf("%s %s: operationId %q is missing or used twice", m, path, op.ID)
			}
			ids[op.ID] = true
		}
	}
	for _, rt := range routes() {
		name := rt.method + " " + rt.pattern
		op, ok := inSpec[name]
		if !ok {
			t.Errorf("%s is served but not in native.yaml", name)
			continue
		}
		delete(inSpec, name)
		if op.Scope != string(rt.scope) {
			t.Errorf("%s: scope %q in native.yaml, %q served", name, op.Scope, rt.scope)
		}
		if open := op.Security != nil && len(*op.Security) == 0; open != (rt.scope == "") {
			t.Errorf("%s: native.yaml says that it needs no key: %v; served: %v", name, open, rt.scope == "")
		}
		keyed := slices.ContainsFunc(op.Parameters, func(p parameter) bool { return strings.HasSuffix(p.Ref, "/IdempotencyKey") })
		if keyed != (rt.once != onceNone) {
			t.Errorf("%s: takes an Idempotency-Key: %v in native.yaml, %v served", name, keyed, rt.once != onceNone)
		}
		if mutating := rt.method != "GET"; mutating != (rt.once != onceNone) {
			t.Errorf("%s: every mutating call takes an Idempotency-Key, and no other", name)
		}
		if _, ok := op.Responses["default"]; !ok {
			t.Errorf("%s: native.yaml does not say what an error looks like", name)
		}
	}
	for _, rt := range proxyRoutes() { // any method: one stands for all
		name := "GET " + strings.ReplaceAll(rt.pattern, "...", "")
		if op, ok := inSpec[name]; !ok || op.Scope != string(rt.scope) {
			t.Errorf("%s is served but not in native.yaml, or with another scope", name)
		}
		delete(inSpec, name)
	}
	for name := range inSpec {
		t.Errorf("%s is in native.yaml but not served", name)
	}
}

// wireTypes are the structs of package api that have a schema, by its name.
var wireTypes = map[string]any{
	"Audit": api.Audit{}, "AuditEntry": api.AuditEntry{}, "BootStat": api.BootStat{},
	"BootStats": api.BootStats{}, "Build": api.Build{}, "BuildInfo": api.BuildInfo{},
	"BuildTemplate": api.BuildTemplate{}, "CancelExec": api.CancelExec{}, "Changes": api.Changes{},
	"CreateKey": api.CreateKey{}, "CreateSandbox": api.CreateSandbox{}, "CreateToken": api.CreateToken{},
	"CreateWatcher": api.CreateWatcher{}, "Directory": api.Directory{}, "Error": api.Error{},
	"Event": api.Event{}, "Events": api.Events{}, "Exec": api.Exec{}, "ExecEnd": api.ExecEnd{},
	"ExecRequest": api.ExecRequest{}, "ExecResult": api.ExecResult{}, "File": api.File{},
	"FileChange": api.FileChange{}, "FileMatch": api.FileMatch{}, "FileMatches": api.FileMatches{},
	"FileTarget": api.FileTarget{}, "Health": api.Health{}, "Key": api.Key{}, "Lifecycle": api.Lifecycle{},
	"Budget": api.Budget{}, "ProjectBudget": api.ProjectBudget{}, "RateCard": api.RateCard{}, "UsageEntry": api.UsageEntry{}, "UsageReport": api.UsageReport{},
	"Leak": api.Leak{}, "Leaks": api.Leaks{},
	"LogLine": api.LogLine{}, "MakeDirectory": api.MakeDirectory{}, "Me": api.Me{},
	"MoveFile": api.MoveFile{}, "MuxReply": api.MuxReply{}, "MuxRequest": api.MuxRequest{},
	"OutputChunk": api.OutputChunk{}, "OutputGap": api.OutputGap{}, "Point": api.Point{}, "Port": api.Port{},
	"Process": api.Process{}, "ProcessMetrics": api.ProcessMetrics{}, "Sandbox": api.Sandbox{},
	"SearchEnd": api.SearchEnd{}, "Series": api.Series{}, "SetPort": api.SetPort{}, "Shell": api.Shell{},
	"SignalExec": api.SignalExec{}, "StdinReply": api.StdinReply{}, "StreamCut": api.StreamCut{},
	"Template": api.Template{}, "Terminal": api.Terminal{}, "TerminalInput": api.TerminalInput{},
	"TerminalNotice": api.TerminalNotice{}, "Token": api.Token{}, "Unpacked": api.Unpacked{},
	"UpdateLifecycle": api.UpdateLifecycle{}, "UpdateSandbox": api.UpdateSandbox{}, "Usage": api.Usage{},
	"Volume": api.Volume{}, "WatchReady": api.WatchReady{}, "Watcher": api.Watcher{},
	"Written": api.Written{},
}

// wireStructs names the structs declared in package api, from its source.
func wireStructs(t *testing.T) []string {
	t.Helper()
	names, err := os.ReadDir("../../api")
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, n := range names {
		if !strings.HasSuffix(n.Name(), ".go") || strings.HasSuffix(n.Name(), "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), "../../api/"+n.Name(), nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(f, func(n ast.Node) bool {
			if ts, ok := n.(*ast.TypeSpec); ok {
				if _, ok := ts.Type.(*ast.StructType); ok && ts.Name.Name != "ErrorCode" {
					out = append(out, ts.Name.Name)
				}
			}
			return true
		})
	}
	slices.Sort(out)
	return out
}

func TestSchemasAgreeWithStructs(t *testing.T) {
	s := contract(t)
	if got, want := keys(wireTypes), wireStructs(t); !slices.Equal(got, want) {
		t.Fatalf("the test compares %v, package api declares %v", got, want)
	}
	for name, sc := range s.Components.Schemas {
		if len(sc.Enum) > 0 {
			continue
		}
		v, ok := wireTypes[name]
		if !ok {
			t.Errorf("schema %s has no struct", name)
			continue
		}
		compareStruct(t, name, sc, reflect.TypeOf(v))
	}
	for name := range wireTypes {
		if _, ok := s.Components.Schemas[name]; !ok {
			t.Errorf("struct %s has no schema", name)
		}
	}
}

func compareStruct(t *testing.T, name string, sc schema, typ reflect.Type) {
	t.Helper()
	fields, required := map[string]reflect.Type{}, []string{}
	for _, f := range reflect.VisibleFields(typ) {
		n, opts, _ := strings.Cut(f.Tag.Get("json"), ",")
		if f.Anonymous {
			continue
		}
		fields[n] = f.Type
		if opts == "" {
			required = append(required, n)
		}
	}
	for n, p := range sc.Properties {
		ft, ok := fields[n]
		if !ok {
			t.Errorf("%s.%s is in native.yaml but not in the struct", name, n)
			continue
		}
		if got, want := describe(p), describeGo(ft); got != want {
			t.Errorf("%s.%s is %s in native.yaml, %s in the struct", name, n, got, want)
		}
	}
	for n := range fields {
		if _, ok := sc.Properties[n]; !ok {
			t.Errorf("%s.%s is in the struct but not in native.yaml", name, n)
		}
	}
	slices.Sort(required)
	if got := slices.Sorted(slices.Values(sc.Required)); !slices.Equal(got, required) {
		t.Errorf("%s: required are %v in native.yaml, %v in the struct", name, got, required)
	}
}

func describe(s schema) string {
	switch {
	case s.Ref != "":
		return strings.TrimPrefix(s.Ref, "#/components/schemas/")
	case s.Type == "array":
		return "list of " + describe(*s.Items)
	case s.Format != "":
		return s.Format
	case s.Encoding != "":
		return s.Encoding
	}
	return s.Type
}

// enumTypes are Go types whose values are an enum in native.yaml.
var enumTypes = map[reflect.Type]string{
	reflect.TypeFor[hutch.DiskTier](): "DiskTier", reflect.TypeFor[hutch.State](): "State",
	reflect.TypeFor[hutch.Transition](): "Transition", reflect.TypeFor[hutch.SandboxEnd](): "SandboxEnd",
	reflect.TypeFor[hutch.ExecEnd](): "ExecEndReason", reflect.TypeFor[hutch.Scope](): "Scope",
	reflect.TypeFor[hutch.FileType](): "FileType", reflect.TypeFor[hutch.FileOp](): "FileOp",
	reflect.TypeFor[hutch.Code](): "ErrorCode", reflect.TypeFor[api.Status](): "Status",
	reflect.TypeFor[hutch.Profile](): "Profile", reflect.TypeFor[hutch.TraceKind](): "TraceKind",
	reflect.TypeFor[hutch.Period](): "Period",
}

func describeGo(t reflect.Type) string {
	if e, ok := enumTypes[t]; ok {
		return e
	}
	if t.String() == "time.Time" {
		return "date-time"
	}
	switch t.Kind() {
	case reflect.Pointer:
		return describeGo(t.Elem())
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			return "base64"
		}
		return "list of " + describeGo(t.Elem())
	case reflect.Struct:
		return t.Name()
	case reflect.Map:
		return "object"
	case reflect.Int, reflect.Int64, reflect.Uint32:
		return "integer"
	case reflect.Float64:
		return "number"
	case reflect.Bool:
		return "boolean"
	default:
		return t.Kind().String()
	}
}

// Enums in native.yaml are the constants of the Go types, read from their source.
func TestEnumsAgreeWithConstants(t *testing.T) {
	want := map[string][]string{}
	for _, file := range []string{"../../sandbox.go", "../../state.go", "../../exec.go", "../../key.go", "../../files.go", "../../leaks.go", "../../usage.go", "../../api/sandbox.go"} {
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(f, func(n ast.Node) bool {
			v, ok := n.(*ast.ValueSpec)
			if !ok || len(v.Values) != 1 {
				return true
			}
			id, isIdent := v.Type.(*ast.Ident)
			lit, isLit := v.Values[0].(*ast.BasicLit)
			if isIdent && isLit && lit.Kind == token.STRING {
				s, _ := strconv.Unquote(lit.Value)
				want[id.Name] = append(want[id.Name], s)
			}
			return true
		})
	}
	want["ExecEnd"] = append(want["ExecEnd"], "") // a result that could not be had
	s := contract(t)
	for goName, schemaName := range map[string]string{
		"DiskTier": "DiskTier", "State": "State", "Transition": "Transition", "SandboxEnd": "SandboxEnd",
		"ExecEnd": "ExecEndReason", "Scope": "Scope", "Status": "Status",
		"FileType": "FileType", "FileOp": "FileOp", "Profile": "Profile", "TraceKind": "TraceKind",
		"Period": "Period",
	} {
		got, w := s.enum(schemaName), slices.Clone(want[goName])
		slices.Sort(got)
		slices.Sort(w)
		if !slices.Equal(got, w) {
			t.Errorf("%s is %q in native.yaml, %q in Go", schemaName, got, w)
		}
	}
}
