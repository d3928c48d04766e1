package control

import (
	"errors"
	"strings"
	"testing"

	"hutch.dev/hutch"
)

func TestCheckMaskHost(t *testing.T) {
	for _, good := range []string{
		"", "localhost", "localhost:3000", "localhost:${PORT}", "a-b.example.com", "127.0.0.1:80", "[::1]:8080", "[::1]",
		"${PORT}.example.com", "my_host",
	} {
		if err := checkMaskHost(good); err != nil {
			t.Errorf("%q: %v", good, err)
		}
	}
	for _, bad := range []string{
		":80", "host:", "host:0", "host:65536", "host:http", "host:-1", "host:+1", "a b", "a\r\nb: c", "a\x00", "höst", "a/b", "a@b",
		"http://a", "::1", "[::1", "[]", "[::1]x", "a:1:2", "$PORT", "${port}", strings.Repeat("a", 261), "a,b",
	} {
		if err := checkMaskHost(bad); !errors.Is(err, hutch.ErrBadRequest) {
			t.Errorf("%q: got %v, want bad_request", bad, err)
		}
	}
}

// What is let through can stand in a header as it is.
func FuzzCheckMaskHost(f *testing.F) {
	for _, s := range []string{"localhost:${PORT}", "[::1]:80", "a\nb", "höst", "a:b", ""} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if checkMaskHost(s) != nil {
			return
		}
		for _, r := range strings.ReplaceAll(s, portVariable, "80") {
			if r <= ' ' || r > '~' || strings.ContainsRune(`/\@,;"'<>(){}?#%`, r) {
				t.Errorf("let %q through with %q in it", s, r)
			}
		}
	})
}

func TestCheckAccess(t *testing.T) {
	many := map[int]string{}
	for i := range 65 {
		many[i+1] = "x"
	}
	for what, a := range map[string]hutch.Access{
		"an unknown surface":     {Surface: "other"},
		"a host that is none":    {MaskHost: "a b"},
		"port 0":                 {Ports: map[int]string{0: "x"}},
		"port 65536":             {Ports: map[int]string{65536: "x"}},
		"a label with a newline": {Ports: map[int]string{80: "a\nb"}},
		"a label of garbage":     {Ports: map[int]string{80: "\xff"}},
		"a long label":           {Ports: map[int]string{80: strings.Repeat("x", 65)}},
		"many ports":             {Ports: many},
	} {
		if err := checkAccess(a); !errors.Is(err, hutch.ErrBadRequest) {
			t.Errorf("%s: got %v, want bad_request", what, err)
		}
	}
	good := hutch.Access{Surface: hutch.SurfaceE2B, Secure: true, PrivatePorts: true, MaskHost: "a:${PORT}", Ports: map[int]string{1: "", 65535: "größe"}}
	if err := checkAccess(good); err != nil {
		t.Errorf("%+v: %v", good, err)
	}
}

func TestCheckShape(t *testing.T) {
	size := &hutch.TerminalSize{}
	spec := hutch.ExecSpec{Cmd: "a", Terminal: size}
	if err := checkShape(&spec); err != nil || *spec.Terminal != (hutch.TerminalSize{Rows: hutch.DefaultRows, Cols: hutch.DefaultCols}) || size.Rows != 0 {
		t.Errorf("a terminal without a size: %+v, %v; the caller's is %+v", spec.Terminal, err, size)
	}
	for what, s := range map[string]hutch.ExecSpec{
		"a shell of argv":              {Argv: []string{"a"}, Shell: "s"},
		"a shell with a blank":         {Cmd: "a", Shell: "s s"},
		"a shell that is long":         {Cmd: "a", Shell: strings.Repeat("s", 65)},
		"a shell with a terminal":      {Cmd: "a", Shell: "s", Terminal: &hutch.TerminalSize{Rows: 1, Cols: 1}},
		"a login of argv":              {Argv: []string{"a"}, Login: true},
		"a terminal too wide":          {Cmd: "a", Terminal: &hutch.TerminalSize{Rows: 1, Cols: hutch.MaxCols + 1}},
		"a terminal without columns":   {Cmd: "a", Terminal: &hutch.TerminalSize{Rows: 1}},
		"a tag with an escape":         {Cmd: "a", Tag: "\x1b[0m"},
		"a tag of garbage":             {Cmd: "a", Tag: "\xff"},
		"a tag longer than characters": {Cmd: "a", Tag: strings.Repeat("é", 65)},
	} {
		if err := checkShape(&s); !errors.Is(err, hutch.ErrBadRequest) {
			t.Errorf("%s: got %v, want bad_request", what, err)
		}
	}
	for what, s := range map[string]hutch.ExecSpec{
		"a shell":            {Cmd: "a", Shell: "main_1-x"},
		"a shell with stdin": {Cmd: "a", Shell: "main_1-x", StdinOpen: true},
		"a login":            {Cmd: "a", Login: true},
		"a tag":              {Argv: []string{"a"}, Tag: strings.Repeat("é", 64)},
		"a terminal of argv": {Argv: []string{"a"}, Terminal: &hutch.TerminalSize{Rows: 1, Cols: hutch.MaxCols}},
	} {
		if err := checkShape(&s); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
}
