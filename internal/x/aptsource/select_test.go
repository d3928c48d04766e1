package aptsource_test

import (
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"hutch.dev/hutch/internal/x/aptsource"
)

func parse(t *testing.T, text string) []aptsource.Source {
	t.Helper()
	s, err := aptsource.Parse("x.list", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestSelect(t *testing.T) {
	releases := map[string]aptsource.Release{
		"http://deb.example stable":              {Origin: "Debian", Codename: "bookworm"},
		"http://deb.example bookworm":            {Origin: "Debian", Codename: "bookworm"},
		"http://third.example bookworm":          {Origin: "Third", Codename: "bookworm"},
		"http://sec.example stable-security":     {Origin: "Debian", Codename: "bookworm-security"},
		"http://deb.example oldstable":           {Origin: "Debian", Codename: "bullseye"},
		"http://resigned.example trixie":         {Origin: "Our company", Codename: "trixie"},
		"http://sec.example bookworm-security":   {Origin: "Debian", Codename: "bookworm-security"},
		"http://third.example bookworm-security": {Origin: "Third", Codename: "bookworm-security"},
	}
	release := func(uri, suite string) (aptsource.Release, bool) {
		r, ok := releases[uri+" "+suite]
		return r, ok
	}
	tests := map[string]struct {
		sources, suite string
		want           []string // "uri suites"
	}{
		"the suite, its updates and its security fixes": {
			"deb http://deb.example bookworm main\ndeb http://deb.example bookworm-updates main\ndeb http://sec.example bookworm-security main\ndeb http://deb.example bookworm-backports main\n",
			"bookworm",
			[]string{"http://deb.example bookworm", "http://deb.example bookworm-updates", "http://sec.example bookworm-security"},
		},
		"by codename when the entry says stable": {
			"deb http://deb.example stable main\ndeb http://sec.example stable-security main\ndeb http://deb.example oldstable main\n",
			"bookworm",
			[]string{"http://deb.example stable", "http://sec.example stable-security"},
		},
		"third parties that use the suite's name": {
			"deb http://third.example bookworm main\ndeb http://deb.example bookworm main\ndeb http://vendor.example bookworm stable\n",
			"bookworm",
			[]string{"http://deb.example bookworm"},
		},
		"a mirror signed by somebody else is better than none": {
			"deb http://resigned.example trixie main\n", "trixie", []string{"http://resigned.example trixie"},
		},
		"other architectures": {
			"deb [arch=arm64] http://arm.example bookworm main\ndeb [arch-=amd64] http://not.example bookworm main\ndeb [arch=arm64,amd64] http://deb.example bookworm main\n",
			"bookworm",
			[]string{"http://deb.example bookworm"},
		},
		"CDs": {
			"deb cdrom:[a b]/ bookworm main\ndeb http://deb.example bookworm main\n", "bookworm", []string{"http://deb.example bookworm"},
		},
		"security alone is not the suite": {"deb http://sec.example bookworm-security main\n", "bookworm", nil},
		"without main":                    {"deb http://deb.example bookworm contrib\n", "bookworm", nil},
		"another suite":                   {"deb http://deb.example bookworm main\n", "trixie", nil},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			sel, err := aptsource.Select(parse(t, tt.sources), aptsource.Query{Suite: tt.suite, Arch: "amd64", Distro: "debian", Release: release})
			var got []string
			for _, s := range sel.Sources {
				got = append(got, strings.Join(s.URIs, ",")+" "+strings.Join(s.Suites, ","))
			}
			if !reflect.DeepEqual(got, tt.want) {
				t.Errorf("got %q (%v), want %q", got, err, tt.want)
			}
			var missing *aptsource.NotFoundError
			if errors.As(err, &missing) != (tt.want == nil) {
				t.Errorf("error %v", err)
			}
		})
	}
}

func TestNotFoundSaysWhatToAdd(t *testing.T) {
	_, err := aptsource.Select(parse(t, "deb http://deb.example bookworm main\n"), aptsource.Query{Suite: "trixie", Arch: "amd64"})
	for _, want := range []string{`"trixie"`, "configured suites: bookworm", "/etc/apt/sources.list.d/trixie.sources", "trixie-updates", "apt-get update"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error lacks %q: %v", want, err)
		}
	}
}

func TestIdentityAndImage(t *testing.T) {
	sel := func(text string) aptsource.Selection {
		s, err := aptsource.Select(parse(t, text), aptsource.Query{Suite: "s", Arch: "amd64"})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	plain := sel("deb http://m.example/debian s main\n")
	secret := sel("deb http://builder:hunter2@m.example/debian s main\ndeb file:/srv/mirror s main\n")
	if got := secret.ForImage().Deb822(); strings.Contains(got, "hunter2") || strings.Contains(got, "builder") || strings.Contains(got, "/srv/mirror") {
		t.Errorf("the image would hold a password or a path of this machine:\n%s", got)
	}
	if !strings.Contains(secret.Deb822(), "hunter2") {
		t.Error("the build itself needs the password")
	}
	if a, b := plain.ForImage().Deb822(), secret.ForImage().Deb822(); a != b {
		t.Errorf("want the same in the image:\n%s\n%s", a, b)
	}
	withPassword := sel("deb http://builder:hunter2@m.example/debian s main\n")
	if plain.Identity() != withPassword.Identity() {
		t.Error("a password changes the identity")
	}
	other := sel("deb http://other.example/debian s main\n")
	if plain.Identity() == other.Identity() || strings.Contains(plain.Identity(), "example") {
		t.Error("identity does not tell mirrors apart, or names them")
	}
}

func TestReleaseAndCache(t *testing.T) {
	text := "-----BEGIN PGP SIGNED MESSAGE-----\nHash: SHA256\n\nOrigin: Debian\nLabel: Debian\nSuite: stable\nCodename: bookworm\nDate: Sat, 11 Jul 2026 10:16:37 UTC\nSHA256:\n abc 1 Origin: Evil\nOrigin: Evil\n"
	rel, err := aptsource.ParseRelease(strings.NewReader(text))
	want := aptsource.Release{Origin: "Debian", Suite: "stable", Codename: "bookworm", Date: time.Date(2026, 7, 11, 10, 16, 37, 0, time.UTC)}
	if err != nil || rel != want {
		t.Errorf("got %+v, %v; want %+v", rel, err, want)
	}
	if _, err := aptsource.ParseRelease(strings.NewReader("Date: yesterday\n")); err == nil {
		t.Error("a date that is none was taken")
	}

	root := tree(t, map[string]string{
		"var/lib/apt/lists/m.example:8080_debian_dists_bookworm_InRelease": text,
		"var/lib/apt/lists/m.example_a%7eb_dists_x_updates_Release":        text,
	})
	cached := aptsource.Cached(root)
	for _, hit := range [][2]string{{"http://m.example:8080/debian/", "bookworm"}, {"https://u:p@m.example/a~b", "x/updates"}} {
		if got, ok := cached(hit[0], hit[1]); !ok || got != want {
			t.Errorf("Cached(%v) = %+v, %v", hit, got, ok)
		}
	}
	if _, ok := cached("http://m.example/debian", "trixie"); ok {
		t.Error("found an index that is not there")
	}
}

func FuzzParseRelease(f *testing.F) {
	f.Add("Origin: Debian\nCodename: bookworm\nDate: Sat, 11 Jul 2026 10:16:37 UTC\nSHA256:\n x\n")
	f.Add("Date: x\n")
	f.Fuzz(func(t *testing.T, text string) {
		rel, err := aptsource.ParseRelease(strings.NewReader(text))
		if err != nil && rel != (aptsource.Release{}) && rel.Date.IsZero() == false {
			t.Fatalf("a date next to an error: %+v, %v", rel, err)
		}
	})
}

func TestReadDistro(t *testing.T) {
	root := tree(t, map[string]string{"etc/os-release": "# a comment\nNAME=\"Debian GNU/Linux\"\nID=debian\nVERSION_CODENAME='trixie'\n"})
	if got, err := aptsource.ReadDistro(root); err != nil || got != (aptsource.Distro{ID: "debian", Codename: "trixie"}) {
		t.Errorf("got %+v, %v", got, err)
	}
	if _, err := aptsource.ReadDistro(t.TempDir()); err == nil {
		t.Error("no os-release, no error")
	}
}
