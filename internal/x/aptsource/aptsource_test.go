package aptsource_test

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"hutch.dev/hutch/internal/x/aptsource"
)

const modern = `# what Debian's installer writes today
Types: deb deb-src
URIs: http://mirror.example/debian
Suites: bookworm bookworm-updates
Components: main contrib
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
URIs: http://mirror.example/debian-security
Suites: bookworm-security
Components: main
# a comment amid a stanza
Architectures: amd64
 arm64
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
Check-Valid-Until: no
`

func TestParse(t *testing.T) {
	key := "/usr/share/keyrings/debian-archive-keyring.gpg"
	tests := map[string]struct {
		name, text string
		want       []aptsource.Source
		problem    string // part of the error; empty = none
	}{
		"deb822": {"a.sources", modern, []aptsource.Source{
			{URIs: []string{"http://mirror.example/debian"}, Suites: []string{"bookworm", "bookworm-updates"}, Components: []string{"main", "contrib"}, SignedBy: key, From: "a.sources:2"},
			{
				URIs: []string{"http://mirror.example/debian-security"}, Suites: []string{"bookworm-security"}, Components: []string{"main"},
				Architectures: []string{"amd64", "arm64"}, SignedBy: key, Options: map[string]string{"Check-Valid-Until": "no"}, From: "a.sources:8",
			},
		}, ""},
		"deb822: disabled, sources only, field names in any case": {
			"a.sources", "Types: deb\nURIs: u\nSuites: s\nComponents: main\nEnabled: No\n\nTypes: deb-src\nURIs: u\nSuites: s\nComponents: main\n\ntYpEs: deb\nuris: u\nsuites: s/\n",
			[]aptsource.Source{{URIs: []string{"u"}, Suites: []string{"s/"}, From: "a.sources:12"}},
			"",
		},
		"deb822: a key in the stanza": {
			"a.sources", "Types: deb\nURIs: u\nSuites: s\nComponents: main\nSigned-By:\n -----BEGIN PGP PUBLIC KEY BLOCK-----\n .\n mQINB\n -----END PGP PUBLIC KEY BLOCK-----\n",
			[]aptsource.Source{{URIs: []string{"u"}, Suites: []string{"s"}, Components: []string{"main"}, SignedBy: "\n-----BEGIN PGP PUBLIC KEY BLOCK-----\n.\nmQINB\n-----END PGP PUBLIC KEY BLOCK-----", From: "a.sources:1"}},
			"",
		},
		"deb822: one broken stanza hides no other": {
			"a.sources", "Types: deb\nSuites: s\nComponents: main\n\nTypes: deb\nURIs: u\nSuites: s\nComponents: main\n",
			[]aptsource.Source{{URIs: []string{"u"}, Suites: []string{"s"}, Components: []string{"main"}, From: "a.sources:5"}},
			"a.sources:1: an entry without a URI",
		},
		"deb822: no types":          {"a.sources", "URIs: u\nSuites: s\nComponents: main\n", nil, "a.sources:1: a stanza without Types"},
		"deb822: no components":     {"a.sources", "Types: deb\nURIs: u\nSuites: s\n", nil, `suite "s" without components`},
		"deb822: not a field":       {"a.sources", "hello\n", nil, "a.sources:1: not of the form"},
		"deb822: continues nothing": {"a.sources", " hello\n", nil, "a.sources:1: an indented line"},
		"lines": {
			"b.list", "# the old way\n\ndeb http://mirror.example/debian bookworm main contrib # trailing\ndeb-src http://mirror.example/debian bookworm main\n#deb http://off.example/ x main\n",
			[]aptsource.Source{{URIs: []string{"http://mirror.example/debian"}, Suites: []string{"bookworm"}, Components: []string{"main", "contrib"}, From: "b.list:3"}},
			"",
		},
		"lines: options": {
			"b.list", "deb [ arch=amd64,arm64 arch-=i386 signed-by=" + key + " trusted=yes by-hash=force lang=none ] https://m.example/ s main\n",
			[]aptsource.Source{{
				URIs: []string{"https://m.example/"}, Suites: []string{"s"}, Components: []string{"main"},
				Architectures: []string{"amd64", "arm64"}, NotArchitectures: []string{"i386"}, SignedBy: key,
				Options: map[string]string{"Trusted": "yes", "By-Hash": "force", "Languages": "none"}, From: "b.list:1",
			}},
			"",
		},
		"lines: a CD with blanks in its name": {
			"b.list", "deb cdrom:[Debian GNU/Linux 12 _Bookworm_ - DVD 1]/ bookworm main\n",
			[]aptsource.Source{{URIs: []string{"cdrom:[Debian GNU/Linux 12 _Bookworm_ - DVD 1]/"}, Suites: []string{"bookworm"}, Components: []string{"main"}, From: "b.list:1"}},
			"",
		},
		"lines: flat":          {"b.list", "deb http://m.example ./\n", []aptsource.Source{{URIs: []string{"http://m.example"}, Suites: []string{"./"}, Components: []string{}, From: "b.list:1"}}, ""},
		"lines: unclosed":      {"b.list", "deb [arch=amd64 http://m.example s main\n", nil, `b.list:1: a "]" is missing`},
		"lines: unknown type":  {"b.list", "rpm http://m.example s main\n", nil, `"rpm" is no type`},
		"lines: too short":     {"b.list", "deb http://m.example\n", nil, "needs a URI and a suite"},
		"lines: no components": {"b.list", "deb http://m.example s\n", nil, "without components"},
		"lines: broken option": {"b.list", "deb [arch] http://m.example s main\n", nil, `option "arch"`},
		"empty":                {"b.list", "", nil, ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := aptsource.Parse(tt.name, []byte(tt.text))
			if (err == nil) != (tt.problem == "") || err != nil && !strings.Contains(err.Error(), tt.problem) {
				t.Errorf("error %v, want one with %q", err, tt.problem)
			}
			// As text: nil and empty are the same here.
			if g, w := fmt.Sprintf("%+v", got), fmt.Sprintf("%+v", tt.want); g != w {
				t.Errorf("got  %s\nwant %s", g, w)
			}
		})
	}
}

// tree writes files below a fresh root directory.
func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func TestReadTakesWhatAptTakes(t *testing.T) {
	root := tree(t, map[string]string{
		"etc/apt/sources.list":                       "deb http://one.example s main\n",
		"etc/apt/sources.list.d/b.list":              "deb http://three.example s main\n",
		"etc/apt/sources.list.d/a.sources":           "Types: deb\nURIs: http://two.example\nSuites: s\nComponents: main\n",
		"etc/apt/sources.list.d/c.list.save":         "deb http://no.example s main\n",
		"etc/apt/sources.list.d/d.sources.disabled":  "Types: deb\nURIs: http://no.example\nSuites: s\nComponents: main\n",
		"etc/apt/sources.list.d/bad name.list":       "deb http://no.example s main\n",
		"etc/apt/sources.list.d/z.list":              "deb mirror+file:/etc/apt/mirrors/m.list s main\n",
		"etc/apt/mirrors/m.list":                     "# mirrors\nhttps://four.example/debian\tpriority:1\n\nhttps://five.example/debian\n",
		"etc/apt/sources.list.d/nested.list/in.list": "deb http://no.example s main\n",
	})
	got, err := aptsource.Read(root)
	if err == nil || !strings.Contains(err.Error(), "nested.list") {
		t.Errorf("error %v, want one about the directory that is named like a list", err)
	}
	var uris []string
	for _, s := range got {
		uris = append(uris, s.URIs...)
	}
	want := []string{"http://one.example", "http://two.example", "http://three.example", "https://four.example/debian", "https://five.example/debian"}
	if !reflect.DeepEqual(uris, want) {
		t.Errorf("read %v\nwant %v", uris, want)
	}
}

func TestReadWithoutAnyConfiguration(t *testing.T) {
	got, err := aptsource.Read(t.TempDir())
	if err != nil || len(got) != 0 {
		t.Fatalf("got %v, %v; want nothing", got, err)
	}
}

func TestReadMissingMirrorListIsAProblem(t *testing.T) {
	root := tree(t, map[string]string{"etc/apt/sources.list": "deb mirror+file:/etc/none s main\n"})
	if _, err := aptsource.Read(root); err == nil || !strings.Contains(err.Error(), "etc/apt/sources.list:1") {
		t.Fatalf("got %v, want an error that names the entry", err)
	}
}

func TestKeyFiles(t *testing.T) {
	tests := map[string][]string{
		"":                          nil,
		"/a.gpg":                    {"/a.gpg"},
		"/a.gpg,/b.gpg":             {"/a.gpg", "/b.gpg"},
		"/a.gpg ABCD1234!":          {"/a.gpg"},
		"\n-----BEGIN PGP\n/not/it": nil,
	}
	for in, want := range tests {
		if got := (&aptsource.Source{SignedBy: in}).KeyFiles(); !reflect.DeepEqual(got, want) {
			t.Errorf("KeyFiles of %q = %v, want %v", in, got, want)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add("a.sources", modern)
	f.Add("a.sources", "Types: deb\nURIs: u\nSuites: s\nComponents: main\nSigned-By:\n -----BEGIN\n .\n x\n")
	f.Add("b.list", "deb [ arch=amd64 signed-by=/k ] http://m.example/ s main # c\n")
	f.Add("b.list", "deb cdrom:[a b]/ s main\n")
	f.Fuzz(func(t *testing.T, name, text string) {
		sources, _ := aptsource.Parse(name, []byte(text))
		for _, s := range sources {
			if len(s.URIs) == 0 || len(s.Suites) == 0 {
				t.Fatalf("an entry that is none: %+v", s)
			}
		}
		// What is rendered reads back as the same entries.
		once := aptsource.Selection{Sources: sources}.Deb822()
		again, err := aptsource.Parse("x.sources", []byte(once))
		if err != nil {
			t.Fatalf("rendered text does not parse: %v\n%s", err, once)
		}
		if twice := (aptsource.Selection{Sources: again}).Deb822(); twice != once {
			t.Fatalf("rendered twice:\n%s\nonce:\n%s", twice, once)
		}
	})
}
