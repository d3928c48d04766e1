package presets

import (
	"reflect"
	"strings"
	"testing"

	"hutch.dev/hutch"
	"hutch.dev/hutch/internal/egress/policy"
)

func TestSettings(t *testing.T) {
	for name, tt := range map[string]struct {
		text string
		want []setting
	}{
		"empty":                {"", nil},
		"INI":                  {"top = 1\n[global]\n# c\n; c\nkey = a = b\n", []setting{{"", "top", "1"}, {"global", "key", "a = b"}}},
		"lines that go on":     {"[g]\nk =\n  http://a.example/?x=1\n\thttp://b.example\nl = 2\n", []setting{{"g", "k", "http://a.example/?x=1 http://b.example"}, {"g", "l", "2"}}},
		"TOML":                 {"[source.\"a-b\"]\n  registry = \"sparse+https://a.example/\" # c\n[ source . c ]\nx='y'\n", []setting{{"source.a-b", "registry", "sparse+https://a.example/"}, {"source.c", "x", "y"}}},
		"npm":                  {"registry=http://a.example\n//a.example/:_auth=x\n@b:registry = http://b.example\n", []setting{{"", "registry", "http://a.example"}, {"", "//a.example/:_auth", "x"}, {"", "@b:registry", "http://b.example"}}},
		"what is none of them": {"hello\n[[array]]\n[open\nk = \"v\n", []setting{{"open", "k", "v"}}},
		"Windows' ends":        {"[g]\r\nk = v\r\n", []setting{{"g", "k", "v"}}},
	} {
		t.Run(name, func(t *testing.T) {
			if got := settings(tt.text); !reflect.DeepEqual(got, tt.want) {
				t.Errorf("got  %q\nwant %q", got, tt.want)
			}
		})
	}
}

// FuzzSettings: whatever is in a file, what is made of it is a preset that holds, without a
// login.
func FuzzSettings(f *testing.F) {
	f.Add("[global]\nindex-url = http://a.example\n  http://b.example\n")
	f.Add("[source.x]\nregistry=\"sparse+https://u:p@a.example:1\"\n")
	f.Add("registry=http://[::1]:99999/\n= \n\"=\n[")
	f.Add("GOPROXY=https://a.example|direct,off,,http://B.example.:70000\n")
	f.Fuzz(func(t *testing.T, text string) {
		f := &finder{hosts: make(map[string]map[string][]hutch.PortRange)}
		for _, s := range settings(text) {
			if u := f.add(PyPI, "pip", s.value); strings.Contains(u, "@") && strings.Contains(strings.SplitN(u, "/", 4)[2], "@") {
				t.Errorf("%q has a login", u)
			}
			f.goProxies(s.value)
		}
		if _, err := policy.Compile(hutch.NetworkPolicy{Mode: hutch.NetworkTrusted}, f.env()); err != nil {
			t.Error(err)
		}
	})
}
