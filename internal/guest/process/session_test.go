package process

import (
	"os/exec"
	"reflect"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestReports(t *testing.T) {
	long := "/" + strings.Repeat("d", 4000)
	for name, x := range map[string]struct {
		parts []string
		want  []report
	}{
		"one":                {[]string{"n 0 /tmp\x00"}, []report{{"n", 0, "/tmp"}}},
		"in pieces":          {[]string{"n", " 2", "55 /t", "mp/a b\nc\x00"}, []report{{"n", 255, "/tmp/a b\nc"}}},
		"two at once":        {[]string{"a 1 /\x00b 256 /x\x00"}, []report{{"a", 1, "/"}, {"b", begun, "/x"}}},
		"no directory":       {[]string{"n 1 \x00"}, []report{{"n", 1, ""}}},
		"a relative one":     {[]string{"n 1 tmp\x00"}, []report{{"n", 1, ""}}},
		"a long one":         {[]string{"n 1 " + long + "\x00"}, []report{{"n", 1, long}}},
		"no report":          {[]string{"\x00\x00n\x00n 1\x00n x /\x00n -1 /\x00n 257 /\x00"}, nil},
		"no end":             {[]string{"n 1 /"}, nil},
		"after what is none": {[]string{strings.Repeat("x", 2*maxReport), "\x00n 0 /\x00"}, []report{{"n", 0, "/"}}},
	} {
		var b reportBuffer
		var got []report
		for _, p := range x.parts {
			got = append(got, b.add([]byte(p))...)
		}
		if !reflect.DeepEqual(got, x.want) {
			t.Errorf("%s: %v, want %v", name, got, x.want)
		}
	}
}

func FuzzReports(f *testing.F) {
	f.Add("n 0 /tmp\x00", "b 255 /\x00")
	f.Add("\x00\x00n", " 1 /\x00x")
	f.Fuzz(func(t *testing.T, a, b string) {
		var whole, pieces reportBuffer
		want := whole.add([]byte(a + b))
		got := append(pieces.add([]byte(a)), pieces.add([]byte(b))...)
		if len(a) < maxReport && len(a+b) < maxReport && !slices.Equal(got, want) {
			t.Errorf("in pieces %v, at once %v", got, want)
		}
		if len(pieces.b) > maxReport {
			t.Errorf("%d bytes are kept", len(pieces.b))
		}
		for _, r := range got {
			if r.status < 0 || r.status > begun || r.cwd != "" && r.cwd[0] != '/' {
				t.Errorf("%+v", r)
			}
		}
	})
}

func TestQuote(t *testing.T) {
	for _, s := range []string{
		"", "a b", "it's", "'''", "$x `y` \\ \"z\"", "line\nline\n", "ü 🙂 \xff",
		"ü it's $x `y` \\x41\\ \"z\" \x01\x7f\n?\x80\xff", "ü7", "ü''\\",
	} {
		for _, quoted := range []string{quote(s), asciiQuote(s)} {
			out, err := exec.CommandContext(t.Context(), "/bin/bash", "-c", "printf %s "+quoted).Output()
			if err != nil || string(out) != s {
				t.Errorf("%q as %q came as %q, %v", s, quoted, out, err)
			}
		}
		if strings.ContainsFunc(asciiQuote(s), func(r rune) bool { return r >= utf8.RuneSelf }) {
			t.Errorf("%q is not ASCII", asciiQuote(s))
		}
	}
}

func TestValidShell(t *testing.T) {
	for name, want := range map[string]bool{
		"": true, "a": true, "A-b_9": true, strings.Repeat("x", 64): true, // empty: no session
		strings.Repeat("x", 65): false, "a b": false, "../a": false, "ü": false, "a\x00": false,
	} {
		if got := validShell(name); got != want {
			t.Errorf("%q: %v", name, got)
		}
	}
}
