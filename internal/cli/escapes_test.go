package cli

import "testing"

func TestKeysThatLeaveATerminal(t *testing.T) {
	for _, c := range []struct {
		typed []string // as the reads bring them
		sent  string
		left  bool
	}{
		{[]string{"~."}, "", true},
		{[]string{"ls\r~."}, "ls\r", true},
		{[]string{"ls\r", "~", "."}, "ls\r", true},
		{[]string{"~~.\r"}, "~.\r", false},
		{[]string{"~a"}, "~a", false},
		{[]string{"ls ~."}, "ls ~.", false},
		{[]string{"a~.", "\n~x~.", "\n~."}, "a~.\n~x~.\n", true},
		{[]string{"\x03\x1a\x00ü"}, "\x03\x1a\x00ü", false},
		{[]string{"~.rest is not sent"}, "", true},
	} {
		e, sent, left := escapes{start: true}, "", false
		for _, in := range c.typed {
			out, l := e.filter([]byte(in))
			sent += string(out)
			if left = l; left {
				break
			}
		}
		if sent != c.sent || left != c.left {
			t.Errorf("%q: sent %q, left %v; want %q, %v", c.typed, sent, left, c.sent, c.left)
		}
	}
}

func TestPlaces(t *testing.T) {
	for in, want := range map[string]place{
		"iabc:/x":    {"iabc", "/x"},
		"iabc:x:y":   {"iabc", "x:y"},
		"iabc:":      {"iabc", ""},
		"-":          {"", "-"},
		"./a:b":      {"", "./a:b"},
		"/tmp/a:b":   {"", "/tmp/a:b"},
		"plain":      {"", "plain"},
		":x":         {"", ":x"},
		"file.txt:x": {"", "file.txt:x"},
	} {
		if got := parsePlace(in); got != want {
			t.Errorf("%q: got %+v, want %+v", in, got, want)
		}
	}
}
